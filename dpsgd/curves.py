"""Curves: accuracy and ε by epoch, as a table and as a picture."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import final

from pate._files import write_atomically
from pate.errors import InvalidInput

_BLUE, _ORANGE = "#1f5fa8", "#c4570b"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Where a run stood at the end of an epoch (or of a fit that ended within one).

    ``epsilon`` is that of the steps up to here, had the run been planned to end here. ``accuracy``
    is what ``evaluate`` returned: of a test set, never of the training data.
    """

    epoch: int
    step: int
    epsilon: float
    accuracy: float | None
    learning_rate: float
    clip_bound: float
    seconds: float


def write_curve(history: Sequence[Row], folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Writes ``curve.csv`` and ``curve.png`` into a folder; each appears whole or not at all."""
    if not history:
        raise InvalidInput("there is no epoch to draw yet; train first")
    place = Path(folder)
    files = place / "curve.csv", place / "curve.png"
    for file, content in zip(files, (_table(history), _picture(history)), strict=True):
        write_atomically(file, content, mode=0o666, name=f"the curve {file}", make_parents=True)
    return files


def _table(history: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in history)  # no accuracy: an empty cell
    return text.getvalue().encode()


def _picture(history: Sequence[Row]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # the object API: nothing global is touched
    from matplotlib.ticker import MaxNLocator

    epochs = [row.epoch for row in history]
    measured = [(row.epoch, 100 * row.accuracy) for row in history if row.accuracy is not None]
    panels = 2 if measured else 1
    figure = Figure(figsize=(6.4, 1.2 + 2.4 * panels), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    dots = "o" if len(history) <= 40 else None
    lines = [(axes[-1], epochs, [row.epsilon for row in history], _ORANGE, "ε of the run so far")]
    if measured:
        xs, ys = zip(*measured, strict=True)
        lines.append((axes[0], list(xs), list(ys), _BLUE, "test accuracy, %"))
    for axis, xs_, ys_, colour, name in lines:
        axis.plot(xs_, ys_, color=colour, marker=dots, markersize=3.5, linewidth=1.6)
        axis.set_ylabel(name)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.annotate(
            f"{ys_[-1]:.4g}",
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
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    return image.getvalue()
