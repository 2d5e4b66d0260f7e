"""Accuracy over ε: a mark for each point with its interval, coloured by the first setting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pate.metrics import Share
from pate.studies.figure import COLOURS, MARKS, drawing, save
from pate.sweep.results import STEM, Results, Row
from pate.sweep.values import as_setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 12  # points whose marks say their other settings; more say their number
_WIDE = 5.0  # the largest ε over the least, from which the axis is logarithmic
_MANY = 80  # points whose numbers would be a blot
_GROUPS = 36  # values of the first setting that can be told apart, with some patience
_LONGEST = 24  # of a value in the picture
_ALIKE = 0.025  # of the axis: ε that cannot be told apart by eye
_CROWD = 0.1  # of the axis: all marks of one ε
_APART = 0.022  # of the axis: marks of one ε stand side by side


def draw(results: Results, folder: Path) -> None:
    """Draws the finished points into the folder; none, if no point has a student yet."""
    rows = [row for row in results.rows if row.student is not None]
    if not rows:
        return
    with drawing(8.6, 5.2) as figure:
        axes = figure.subplots()
        _points(axes, rows, results)
        aside = "marks of about one ε stand side by side"
        axes.set_xlabel(f"ε of the point alone, at δ = {results.deltas}; {aside}")
        axes.set_ylabel("student's accuracy on test records, %")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(_title(results), fontsize=10, loc="left")
        save(figure, folder, STEM)


def _title(results: Results) -> str:
    cost = f"\nchoosing by them costs {results.cost.told(why=False)}"
    if results.seeded:
        cost = "\nNOT PRIVATE: the noise was seeded"
    done, points = len(results.rows), len(results.grid.points)
    count = f"{points} points" if results.complete else f"{done} of {points} points"
    data = results.grid.points[0].recipe.data.name
    return f"{results.cost.name[:60]}, {data}: {count}, 95 % intervals{cost}"


def _points(axes: Axes, rows: Sequence[Row], results: Results) -> None:
    """All marks, group by group, and what tells them apart."""
    places, logarithmic = side_by_side([row.epsilon for row in rows])
    if logarithmic:
        axes.set_xscale("log")
    first = results.grid.axes[0]
    groups = [as_setting(value) for value in first.values]
    numbered = len(rows) > _FEW or len(results.grid.axes) > 2
    told = len(groups) <= _GROUPS
    for order, value in enumerate(groups):
        turn = order if told else 0
        colour = COLOURS[turn % len(COLOURS)]
        mark = MARKS[(turn + turn // len(COLOURS)) % len(MARKS)]  # pairs that come back late
        own = [
            (place, row)
            for place, row in zip(places, rows, strict=True)
            if as_setting(row.point.values[0]) == value
        ]
        if not own:
            continue
        shares = [_share(row) for _, row in own]
        centres = [100 * share.accuracy for share in shares]
        below = [100 * (share.accuracy - share.low) for share in shares]
        above = [100 * (share.high - share.accuracy) for share in shares]
        axes.errorbar(
            [place for place, _ in own], centres, yerr=[below, above], fmt=mark, color=colour,
            markersize=5.5, elinewidth=1.0, capsize=2.0, alpha=0.9, label=_short(value),
        )  # fmt: skip
        for place, row in own if len(rows) <= _MANY else ():
            text = str(row.point.number) if numbered else _others(row)
            axes.annotate(text, (place, 100 * _share(row).high), xytext=(0, 2), color=colour,
                          textcoords="offset points", fontsize=7, ha="center")  # fmt: skip
    _ticks(axes, rows, logarithmic=logarithmic)
    if not told:
        return
    others = ", ".join(_short(axis.key) for axis in results.grid.axes[1:])
    beside = "numbers: the points of the table" if numbered else others and f"above: {others}"
    said = f"\n({beside})" if beside and len(rows) <= _MANY else ""
    title = f"{_short(first.key)}{said}"
    axes.legend(title=title, fontsize=8, title_fontsize=8, loc="center left",
                bbox_to_anchor=(1.0, 0.5), frameon=False, ncols=1 + len(groups) // 25)  # fmt: skip


def _share(row: Row) -> Share:
    assert row.student is not None
    return row.student


def _others(row: Row) -> str:
    """The settings of a point but for the first, without their keys."""
    return _short(", ".join(as_setting(value) for value in row.point.values[1:]))


def _short(text: str) -> str:
    """A text that has room in the picture.

    >>> _short("sklearn.neighbors:KNeighborsClassifier")
    '…ors:KNeighborsClassifier'
    """
    return text if len(text) <= _LONGEST else f"…{text[-_LONGEST:]}"


def side_by_side(epsilons: Sequence[float]) -> tuple[list[float], bool]:
    """Where marks stand, so that those of about one ε do not cover one another; and if on a log.

    >>> side_by_side([1.0, 2.0])
    ([1.0, 2.0], False)
    >>> places, _ = side_by_side([1.0, 2.0, 2.0])
    >>> places[0], [round(place, 3) for place in places[1:]]
    (1.0, [1.989, 2.011])
    """
    logarithmic = min(epsilons) > 0 and max(epsilons) / min(epsilons) > _WIDE
    scaled = [math.log(each) if logarithmic else each for each in epsilons]
    width = max(scaled) - min(scaled)
    crowds: list[list[int]] = []  # of points, by their place in the list
    for place in sorted(range(len(scaled)), key=lambda each: scaled[each]):
        if crowds and scaled[place] - scaled[crowds[-1][0]] <= _ALIKE * width:
            crowds[-1].append(place)
        else:
            crowds.append([place])
    centres = [sum(scaled[each] for each in crowd) / len(crowd) for crowd in crowds]
    gaps = [math.inf, *(b - a for a, b in itertools.pairwise(centres)), math.inf]
    places = list(scaled)
    for order, (crowd, centre) in enumerate(zip(crowds, centres, strict=True)):
        # No crowd looks like many ε, or reaches into the next one; a single one has all the room.
        room = min(_APART * len(crowd), _CROWD) * width if width else 1.0
        step = min(room, 0.9 * min(gaps[order : order + 2])) / len(crowd)
        for turn, each in enumerate(crowd):
            places[each] = centre + (turn - (len(crowd) - 1) / 2) * step
    return [math.exp(place) if logarithmic else place for place in places], logarithmic


def _ticks(axes: Axes, rows: Sequence[Row], *, logarithmic: bool) -> None:
    """Plain numbers on the axis; of one ε alone, that one."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    distinct = sorted({row.epsilon for row in rows})
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    if len(distinct) == 1:
        axes.xaxis.set_major_locator(FixedLocator(distinct))
    elif logarithmic:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
