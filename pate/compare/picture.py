"""Accuracy over ε: both methods with the spread of their repetitions, and what needs no ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pate.compare.rows import NAMES, Row
from pate.studies.figure import COLOURS, MARKS, drawing, save

_LINES = {  # of what needs no ε: colour and dashes
    "public-labels": (COLOURS[2], (0, (6, 2))),
    "majority": (COLOURS[4], (0, (1, 1.8))),
    "reference": (COLOURS[3], (0, (6, 2, 1.5, 2))),
}
_FIRST = (NAMES["pate"], NAMES["dpsgd"])
_NEAR = 0.06  # of the axis: the room that a label takes
_NUDGE = 1.012  # marks of two methods at one ε stand side by side


def draw(rows: Sequence[Row], folder: Path, *, title: str, private: bool) -> tuple[Path, Path]:
    """Writes ``compare.png`` and ``compare.svg``."""
    with drawing(7.8, 4.9) as figure:
        axes = figure.subplots()
        targets: set[float] = set()
        for place, method in enumerate(("pate", "dpsgd")):
            shift = _NUDGE if place else 1 / _NUDGE
            own = [row for row in rows if row.method == method]
            at = [(row.target or 0.0) * shift for row in own]
            targets |= {row.target or 0.0 for row in own}
            for x, row in zip(at, own, strict=True):
                axes.plot([x] * len(row.runs), [100 * once.accuracy for once in row.runs],
                          marker=".", linestyle="none", color=COLOURS[place], alpha=0.35,
                          markersize=7)  # fmt: skip
            axes.errorbar(
                at, [100 * row.accuracy for row in own],
                yerr=[100 * (row.spread or 0.0) for row in own],
                color=COLOURS[place], marker=MARKS[place], markersize=6.5, linewidth=1.8,
                elinewidth=1.3, capsize=3, label=NAMES[method],
            )  # fmt: skip
        bottom, top = _limits(rows)
        axes.set_ylim(bottom, top)
        for row in rows:
            if row.method in _LINES:
                colour, dashes = _LINES[row.method]
                mark = "" if row.publishable else " (do not publish)"
                if 100 * row.accuracy < bottom:  # it would press all others together
                    mark = f": {100 * row.accuracy:.1f} %, below"
                axes.axhline(100 * row.accuracy, color=colour, linestyle=dashes, linewidth=1.4,
                             label=f"{row.name}{mark}", zorder=1)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sorted(targets), _tick_labels(sorted(targets)))
        axes.minorticks_off()
        if len(targets) == 1:
            (only,) = targets
            axes.set_xlim(only / 1.5, only * 1.5)
        axes.set_xlabel("ε of one run")
        axes.set_ylabel("accuracy on the test records, %")
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title, fontsize=11, loc="left")
        handles, names = axes.get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda place: names[place] not in _FIRST)
        axes.legend([handles[n] for n in order], [names[n] for n in order], fontsize=8.5,
                    loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)  # fmt: skip
        if not private:
            axes.text(0.5, 0.5, "NOT PRIVATE: seeded noise", transform=axes.transAxes, alpha=0.25,
                      fontsize=22, ha="center", va="center", rotation=20)  # fmt: skip
        return save(figure, folder, "compare")


def _tick_labels(targets: Sequence[float]) -> list[str]:
    """Each ε, but none that would stand in the one before it.

    >>> _tick_labels([0.5, 1, 1.05, 8])
    ['0.5', '1', '', '8']
    """
    labels, last = [], -math.inf
    width = math.log(targets[-1] / targets[0])
    for each in map(float, targets):
        near = math.log(each) - last < _NEAR * width
        labels.append("" if near else f"{each:g}")
        last = last if near else math.log(each)
    return labels


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """What the picture shows of the accuracies, in per cent: all but the commonest class."""
    seen = [once.accuracy for row in rows if row.method != "majority" for once in row.runs]
    margin = max(0.01, 0.12 * (max(seen) - min(seen)))
    return 100 * max(0.0, min(seen) - margin), 100 * min(1.005, max(seen) + margin)
