"""Plots of a study, accuracy over ε, as PNG and SVG: the same bytes on every machine, mode 0600."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pate._plots import COLOURS, MARKERS, new_figure, plain_axes, plot_style, render_figure
from pate.recipes.read import as_setting
from pate.studies.tables import (
    METHODS,
    ComparisonRow,
    SweepRow,
    no_better_rows,
    write_private_file,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pate.metrics import Share
    from pate.studies.sweep import Sweep


def save_figure(figure: Figure, folder: Path, stem: str) -> tuple[Path, Path]:
    """Write ``STEM.png`` and ``STEM.svg`` atomically, without a date."""
    files = folder / f"{stem}.png", folder / f"{stem}.svg"
    with plot_style():
        write_private_file(files[0], render_figure(figure, "png"))
        write_private_file(files[1], render_figure(figure, "svg"))
    return files


# --- a sweep --------------------------------------------------------------------------------------

_FEW = 12  # points that are annotated with their other settings; more show their number
_MANY = 80  # points whose numbers would be a blot
_GROUPS = 36  # values of the first setting that can be distinguished
_LONGEST = 24  # characters of a value
_WIDE = 5.0  # the largest ε over the least, from which the axis is logarithmic
_ALIKE = 0.025  # of the axis: ε that the eye cannot tell apart
_CROWD = 0.1  # of the axis: all markers of one ε
_APART = 0.022  # of the axis: markers of one ε stand side by side


def plot_sweep(sweep: Sweep) -> None:
    """Write ``sweep.png`` and ``sweep.svg``: a marker with its interval for each finished point.

    Nothing is written if no point has a student yet.
    """
    rows = [row for row in sweep.rows if row.student is not None]
    if not rows:
        return
    with new_figure(8.6, 5.2) as figure:
        axes = plain_axes(
            figure.subplots(),
            title=_sweep_title(sweep),
            x=f"ε of the point alone, at δ = {sweep.deltas}; points of about one ε stand side by "
            "side",
            y="student's accuracy on test records, %",
        )
        _plot_points(axes, rows, sweep)
        save_figure(figure, sweep.folder, "sweep")


def _sweep_title(sweep: Sweep) -> str:
    cost = f"\nchoosing by them costs {sweep.cost.describe(why=False)}"
    if sweep.seeded:
        cost = "\nNOT PRIVATE: the noise was seeded"
    done, points = len(sweep.rows), len(sweep.grid.points)
    count = f"{points} points" if sweep.complete else f"{done} of {points} points"
    data = sweep.grid.points[0].recipe.data.name
    return f"{sweep.cost.name[:60]}, {data}: {count}, 95 % intervals{cost}"


def _plot_points(axes: Axes, rows: Sequence[SweepRow], sweep: Sweep) -> None:
    places, logarithmic = spread_out([row.epsilon for row in rows])
    if logarithmic:
        axes.set_xscale("log")
    first = sweep.grid.axes[0]
    groups = [as_setting(value) for value in first.values]
    numbered = len(rows) > _FEW or len(sweep.grid.axes) > 2
    distinct = len(groups) <= _GROUPS
    for order, value in enumerate(groups):
        turn = order if distinct else 0
        colour = COLOURS[turn % len(COLOURS)]
        marker = MARKERS[(turn + turn // len(COLOURS)) % len(MARKERS)]  # pairs that repeat late
        own = [
            (place, row, _student(row))
            for place, row in zip(places, rows, strict=True)
            if as_setting(row.point.values[0]) == value
        ]
        if not own:
            continue
        axes.errorbar(
            [place for place, _, _ in own],
            [100 * share.accuracy for _, _, share in own],
            yerr=[
                [100 * (share.accuracy - share.low) for _, _, share in own],
                [100 * (share.high - share.accuracy) for _, _, share in own],
            ],
            fmt=marker, color=colour, markersize=5.5, elinewidth=1.0, capsize=2.0, alpha=0.9,
            label=_short(value),
        )  # fmt: skip
        for place, row, share in own if len(rows) <= _MANY else ():
            others = ", ".join(as_setting(each) for each in row.point.values[1:])
            text = str(row.point.number) if numbered else _short(others)
            axes.annotate(text, (place, 100 * share.high), xytext=(0, 2), color=colour,
                          textcoords="offset points", fontsize=7, ha="center")  # fmt: skip
    _plain_ticks(axes, rows, logarithmic=logarithmic)
    if not distinct:
        return
    others = ", ".join(_short(axis.key) for axis in sweep.grid.axes[1:])
    beside = "numbers: the points of the table" if numbered else others and f"above: {others}"
    note = f"\n({beside})" if beside and len(rows) <= _MANY else ""
    axes.legend(title=f"{_short(first.key)}{note}", fontsize=8, title_fontsize=8,
                loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
                ncols=1 + len(groups) // 25)  # fmt: skip


def _student(row: SweepRow) -> Share:
    assert row.student is not None
    return row.student


def _short(text: str) -> str:
    """Return a text that fits into the plot.

    >>> _short("sklearn.neighbors:KNeighborsClassifier")
    '…ors:KNeighborsClassifier'
    """
    return text if len(text) <= _LONGEST else f"…{text[-_LONGEST:]}"


def spread_out(epsilons: Sequence[float]) -> tuple[list[float], bool]:
    """Return places at which markers of about one ε do not overlap, and whether on a log axis.

    >>> spread_out([1.0, 2.0])
    ([1.0, 2.0], False)
    >>> places, _ = spread_out([1.0, 2.0, 2.0])
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


def _plain_ticks(axes: Axes, rows: Sequence[SweepRow], *, logarithmic: bool) -> None:
    """Label the axis with plain numbers; with one ε alone, that one."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    distinct = sorted({row.epsilon for row in rows})
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    if len(distinct) == 1:
        axes.xaxis.set_major_locator(FixedLocator(distinct))
    elif logarithmic:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())


# --- a comparison ---------------------------------------------------------------------------------

_BASELINES = {  # colour and dashes of what needs no ε
    "public-labels": (COLOURS[0], (0, (6, 2))),  # of the method that asked about them
    "record-public-labels": (COLOURS[2], (0, (6, 2))),
    "majority": (COLOURS[4], (0, (1, 1.8))),
    "reference": (COLOURS[3], (0, (6, 2, 1.5, 2))),
}
_NEAR = 0.06  # of the axis: the room that a label takes
_NUDGE = 1.012  # markers of several methods at one ε stand side by side
_COMPARED = {  # colour and marker, and place
    "record-votes": (2, 1 / _NUDGE**3),
    "pate": (0, 1 / _NUDGE),
    "dpsgd": (1, _NUDGE),
    "least-squares": (5, _NUDGE**3),
}


def plot_comparison(rows: Sequence[ComparisonRow], *, title: str, private: bool) -> Figure:
    """Return a plot of all methods over ε, with 95 % intervals of the test.

    Repetitions are dots. A method that does not beat the majority class has a hollow marker.
    """
    weak = no_better_rows(rows)
    with new_figure(7.8, 4.9) as figure:
        axes = plain_axes(
            figure.subplots(),
            title=title,
            x="ε of one run",
            y="accuracy on the test records, %, and 95 % interval",
        )
        targets: set[float] = set()
        for method, (place, shift) in _COMPARED.items():
            own = [row for row in rows if row.method == method]
            if not own:
                continue
            at = [(row.target or 0.0) * shift for row in own]
            targets |= {row.target or 0.0 for row in own}
            for x, row in zip(at, own, strict=True):
                axes.plot([x] * len(row.runs), [100 * once.accuracy for once in row.runs],
                          marker=".", linestyle="none", color=COLOURS[place], alpha=0.35,
                          markersize=7)  # fmt: skip
            axes.errorbar(
                at, [100 * row.accuracy for row in own],
                yerr=[
                    [100 * (row.accuracy - row.low) for row in own],
                    [100 * (row.high - row.accuracy) for row in own],
                ],
                color=COLOURS[place], marker=MARKERS[place], markersize=6.5, linewidth=1.8,
                elinewidth=1.3, capsize=3, label=METHODS[method],
            )  # fmt: skip
            flat = [(x, row) for x, row in zip(at, own, strict=True) if row in weak]
            axes.plot(
                [x for x, _ in flat], [100 * row.accuracy for _, row in flat],
                marker=MARKERS[place], markersize=6.5, linestyle="none", color=COLOURS[place],
                markerfacecolor="white", zorder=4,
                label=f"{METHODS[method]}, no better than\nthe majority class" if flat else None,
            )  # fmt: skip
        bottom, top = _limits(rows)
        axes.set_ylim(bottom, top)
        for row in rows:
            if row.method in _BASELINES:
                colour, dashes = _BASELINES[row.method]
                note = "" if row.publishable else " (do not publish)"
                if 100 * row.accuracy < bottom:  # it would squeeze all others together
                    note = f": {100 * row.accuracy:.1f} %, below"
                axes.axhline(100 * row.accuracy, color=colour, linestyle=dashes, linewidth=1.4,
                             label=f"{row.name}{note}", zorder=1)  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sorted(targets), _tick_labels(sorted(targets)))
        axes.minorticks_off()
        if len(targets) == 1:
            (only,) = targets
            axes.set_xlim(only / 1.5, only * 1.5)
        handles, names = axes.get_legend_handles_labels()
        first = [METHODS[method] for method in _COMPARED]
        heads = [name.partition(",")[0] for name in names]
        order = sorted(
            range(len(names)),
            key=lambda n: (first.index(heads[n]) if heads[n] in first else 9, heads[n] != names[n]),
        )
        axes.legend([handles[n] for n in order], [names[n] for n in order], fontsize=8.5,
                    loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)  # fmt: skip
        if not private:
            axes.text(0.5, 0.5, "NOT PRIVATE: seeded noise", transform=axes.transAxes, alpha=0.25,
                      fontsize=22, ha="center", va="center", rotation=20)  # fmt: skip
        return figure


def _tick_labels(targets: Sequence[float]) -> list[str]:
    """Return a label for each ε, empty where it would overlap the one before.

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


def _limits(rows: Sequence[ComparisonRow]) -> tuple[float, float]:
    """Return the accuracies that the plot spans, in per cent: all but the majority class."""
    shown = [row for row in rows if row.method != "majority"]
    seen = [once.accuracy for row in shown for once in row.runs]
    seen += [end for row in shown if row.target is not None for end in (row.low, row.high)]
    margin = max(0.01, 0.12 * (max(seen) - min(seen)))
    return 100 * max(0.0, min(seen) - margin), 100 * min(1.005, max(seen) + margin)
