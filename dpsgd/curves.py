"""The learning curve: accuracy and ε by epoch, as a table and a figure."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import final

from pate._files import write_atomically
from pate._format import format_epsilon
from pate._plots import COLOURS, new_figure, plain_axes, render_figure
from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The state of a run at the end of an epoch, or of a fit that ended within one.

    Parameters
    ----------
    epoch, step : int
        The number of epochs and steps so far.
    epsilon : float
        ε of the steps so far, had the run been planned to end here.
    accuracy : float or None
        The number that ``evaluate`` returned: of a test set, never of the training data.
    learning_rate : float
        The learning rate of the last step.
    clip_bound : float
        The clipping norm of the last step, over all layers.
    seconds : float
        The duration of the epoch. Private: it depends on the sizes of the lots.

    >>> Row(epoch=1, step=10, epsilon=0.5, accuracy=0.9, learning_rate=0.1, clip_bound=1.0,
    ...     seconds=2.0).epsilon
    0.5
    """

    epoch: int
    step: int
    epsilon: float
    accuracy: float | None
    learning_rate: float
    clip_bound: float
    seconds: float


def write_curve(history: Sequence[Row], folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write ``curve.csv`` and ``curve.png`` into a folder, each atomically.

    Parameters
    ----------
    history : sequence of Row
        ``Trainer.history``; not empty.
    folder : path
        The folder; it is created if missing.

    Returns
    -------
    tuple of pathlib.Path
        The two files.

    >>> import tempfile
    >>> row = Row(epoch=1, step=10, epsilon=0.5, accuracy=0.9, learning_rate=0.1, clip_bound=1.0,
    ...           seconds=0.0)
    >>> [file.name for file in write_curve([row], tempfile.mkdtemp())]
    ['curve.csv', 'curve.png']
    """
    if not history:
        raise InvalidInput("there is no epoch to plot yet; train first")
    files = Path(folder, "curve.csv"), Path(folder, "curve.png")
    for file, content in zip(files, (_table(history), _plot(history)), strict=True):
        write_atomically(file, content, mode=0o666, name=f"the curve {file}", make_parents=True)
    return files


def _table(history: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in history)  # no accuracy: an empty cell
    return text.getvalue().encode()


def _plot(history: Sequence[Row]) -> bytes:
    from matplotlib.ticker import MaxNLocator

    epochs = [row.epoch for row in history]
    measured = [(row.epoch, 100 * row.accuracy) for row in history if row.accuracy is not None]
    panels = 2 if measured else 1
    with new_figure(6.4, 1.2 + 2.4 * panels) as figure:
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        dots = "o" if len(history) <= 40 else None
        lines = [
            (axes[-1], epochs, [row.epsilon for row in history], COLOURS[1], "ε of the run so far")
        ]
        if measured:
            xs, ys = zip(*measured, strict=True)
            lines.append((axes[0], list(xs), list(ys), COLOURS[0], "test accuracy, %"))
        for axis, xs_, ys_, colour, name in lines:
            axis.plot(xs_, ys_, color=colour, marker=dots, markersize=3.5, linewidth=1.6)
            plain_axes(axis, y=name)
            axis.annotate(
                format_epsilon(ys_[-1]) if axis is axes[-1] else f"{ys_[-1]:.4g}",
                (xs_[-1], ys_[-1]),
                xytext=(5, 0),
                textcoords="offset points",
                color=colour,
                va="center",
                fontsize=9,
            )
        axes[-1].set_ylim(bottom=0)
        axes[-1].set_xlabel("epoch")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        return render_figure(figure, "png")
