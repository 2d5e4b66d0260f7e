"""Plots as SVG inside the page: made by matplotlib, coloured by the page's own style.

Each plot is made twice, wide and narrow, and the page shows the one that fits. Lines and text take
their colours from CSS variables, so that light, dark and print need no second plot. Text stays
text, in the page's font.

Releases are compared with these plots byte for byte: a change of one that a release shows needs a
new release format (:mod:`pate.releases.documents`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pate._format import format_epsilon
from pate._plots import plot_style
from pate.metrics import Share
from pate.report.facts import Facts
from pate.report.templates import escape_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pate.report.training import TrainingFacts

# The colours given to matplotlib, and the variables of the page's style that take their place.
INK, MUTED, GRID, MAIN, SECOND, THIRD, FOURTH, SOFT = (f"#0000{n:02x}" for n in range(1, 9))
_VARIABLES = {
    "#000000": "ink", INK: "ink", MUTED: "muted", GRID: "grid", MAIN: "main", SECOND: "second",
    THIRD: "third", FOURTH: "fourth", SOFT: "soft",
}  # fmt: skip
_WIDE, _NARROW = (9.2, 4.3), (4.6, 4.3)  # inches; both in one scale, so that text is of one size
_LONGEST = 18  # of a class's name in a plot

_SETTINGS = {
    "svg.fonttype": "none",
    "font.size": 11.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
}

Shown = Callable[[float], str]
_NEAREST = "{:.4g}".format  # format 2 described plots so; later ones round ε up

Plotter = Callable[["Axes", bool], None]


def plot(
    name: str, plotter: Plotter, *, title: str, description: str, height: float = 1.0
) -> Markup:
    """Return a plot for both widths, with a title and a description for screen readers."""
    parts = []
    for kind in ("wide", "narrow"):
        svg = _svg(f"{name}-{kind}", plotter, kind == "narrow", title, description, height)
        parts.append(f'<div class="plot {kind}">{svg}</div>')
    return Markup("".join(parts))


def _svg(
    name: str, plotter: Plotter, narrow: bool, title: str, description: str, height: float
) -> str:
    from matplotlib.figure import Figure

    with plot_style(name, **_SETTINGS):
        width, tall = _NARROW if narrow else _WIDE
        canvas = Figure(figsize=(width, tall * height), layout="constrained")
        axes = canvas.subplots()
        _plain(axes)
        plotter(axes, narrow)
        return _inline(name, _save(canvas), title, description)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6)


def _save(canvas: Figure) -> str:
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    canvas.savefig(text, format="svg", metadata=nothing)
    return text.getvalue()


def _inline(name: str, svg: str, title: str, description: str) -> str:
    """Return an SVG file as an element of a page: own ids, own colours, title and description."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    body = re.sub(r"font: ([\d.]+)px[^;\"]*", r"font-size: \1px", body)
    opening, rest = body.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} role="img" '
        f'aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape_html(title)}</title>'
        f'<desc id="{name}-desc">{escape_html(description)}</desc>{rest}'
    )


# --- the plots ------------------------------------------------------------------------------------


def cost_plot(facts: Facts, shown: Shown = _NEAREST) -> Markup:
    """Plot ε as queries are answered."""
    curves, private = facts.curves, facts.private
    assert curves is not None  # there is no such plot of a table
    last = curves.queries[-1]
    lines = [
        ("naive", curves.naive, MUTED, (0, (1, 1.6)), 1.8),
        ("advanced", curves.advanced, SECOND, (0, (5, 2)), 1.8),
        ("moments", curves.moments, MAIN, "-", 2.6),
    ]

    def plotter(axes: Axes, narrow: bool) -> None:
        for label, values, colour, dashes, width in lines:
            axes.plot(curves.queries, values, color=colour, linestyle=dashes, linewidth=width,
                      label=label, solid_capstyle="round")  # fmt: skip
        if private is not None and private.dependent_curve:
            axes.plot(private.dependent_queries, private.dependent_curve, color=FOURTH,
                      linewidth=2.2, linestyle=(0, (7, 2, 1.5, 2)),
                      label="data-dependent (private)")  # fmt: skip
        axes.plot([last], [facts.guarantee.epsilon], "o", color=MAIN, markersize=8, clip_on=False,
                  label="the guarantee")  # fmt: skip
        if facts.sanitised is not None:
            axes.plot([last], [facts.sanitised.epsilon], "D", color=THIRD, markersize=7,
                      clip_on=False, label="sanitised")  # fmt: skip
        # What matters stays in sight where naive sums run far above it.
        most = max(facts.guarantee.epsilon, curves.moments[-1], 1e-6)
        axes.set_ylim(0, min(2.4 * most, 1.06 * max(*curves.naive, *curves.advanced, most)))
        axes.set_xlim(0, last * 1.015)
        axes.set_xlabel("queries asked, at the plan’s worst")
        axes.set_ylabel("ε")
        _legend(axes, columns=2 if narrow else 5 if private is None else 3)

    ends = ", ".join(f"{label} {shown(values[-1])}" for label, values, *_ in lines)
    description = f"ε grows with the queries asked. After all {last}: {ends}."
    return plot("cost", plotter, title="ε as queries are answered", description=description)


def moment_plot(facts: Facts, shown: Shown = _NEAREST) -> Markup:
    """Plot ε over λ, and mark the best λ."""
    profile = facts.profile
    assert profile is not None
    best = min(range(len(profile.moments)), key=profile.epsilons.__getitem__)
    moment, least = profile.moments[best], profile.epsilons[best]

    def plotter(axes: Axes, narrow: bool) -> None:
        axes.plot(profile.moments, profile.epsilons, color=MAIN, linewidth=2.4)
        axes.plot([moment], [least], "o", color=THIRD, markersize=9, clip_on=False)
        axes.annotate(
            f"λ = {moment:g}", (moment, least), xytext=(0, -20), textcoords="offset points",
            ha="center", color=INK, fontweight="bold",
        )  # fmt: skip
        axes.set_xscale("log")
        low, high = profile.moments[0], profile.moments[-1]
        ticks = [t for t in (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 10000) if low <= t <= high]
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.set_ylim(0, max(1.05 * max(profile.epsilons), 1e-6))
        axes.set_xlabel("λ")
        axes.set_ylabel("ε of the labels")

    description = (
        f"ε of the planned labels at each λ; the least, {shown(least)}, is at λ = {moment:g}."
    )
    return plot("moment", plotter, title="Which λ won", description=description, height=0.8)


def steps_plot(facts: TrainingFacts, shown: Shown) -> Markup:
    """Plot ε as steps are taken."""
    steps, costs = zip(*facts.curve, strict=True)
    guarantee = facts.guarantee.epsilon

    def plotter(axes: Axes, narrow: bool) -> None:
        axes.plot(steps, costs, color=MAIN, linewidth=2.6, solid_capstyle="round")
        axes.plot([steps[-1]], [guarantee], "o", color=MAIN, markersize=8, clip_on=False)
        axes.set_ylim(0, 1.12 * max(guarantee, *costs))
        axes.set_xlim(0, steps[-1] * 1.015)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("steps")
        axes.set_ylabel("ε")

    description = f"ε grows with the steps. After all {steps[-1]} it is {shown(guarantee)}."
    return plot("steps", plotter, title="ε as steps are taken", description=description, height=0.8)


def epochs_plot(epochs: Sequence[tuple[int, float]]) -> Markup:
    """Plot accuracy on test records by epoch."""
    places, shares = zip(*epochs, strict=True)

    def plotter(axes: Axes, narrow: bool) -> None:
        axes.plot(places, [100 * share for share in shares], color=MAIN, linewidth=2.2,
                  marker="o" if len(places) <= 40 else None, markersize=5)  # fmt: skip
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("epochs")
        axes.set_ylabel("accuracy, per cent")

    ends = f"{100 * shares[0]:.1f} % after the first, {100 * shares[-1]:.1f} % after the last"
    title = "Accuracy by epoch"
    return plot("epochs", plotter, title=title, description=f"{title}: {ends}.", height=0.8)


def labels_plot(facts: Facts) -> Markup:
    """Plot the number of released labels of each class."""
    names = [short(row.name) for row in facts.classes]
    counts = [row.labels for row in facts.classes]

    def plotter(axes: Axes, narrow: bool) -> None:
        _bars(axes, names, counts)
        axes.set_xlabel("released labels")

    description = ", ".join(f"{row.name}: {row.labels}" for row in facts.classes)
    height = (0.55 + 0.36 * len(names)) / _WIDE[1]
    return plot(
        "labels",
        plotter,
        title="Released labels of each class",
        description=description,
        height=height,
    )


def shares_plot(rows: Sequence[tuple[str, Share]]) -> Markup:
    """Plot shares with their 95 % intervals, one under the other."""

    def plotter(axes: Axes, narrow: bool) -> None:
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        for place, (_, share) in enumerate(rows):
            axes.plot([100 * share.low, 100 * share.high], [place, place], color=SOFT, linewidth=7,
                      solid_capstyle="round")  # fmt: skip
            axes.plot([100 * share.accuracy], [place], "o", color=MAIN, markersize=9)
            axes.annotate(
                f"{100 * share.accuracy:.1f}", (100 * share.accuracy, place), xytext=(0, 10),
                textcoords="offset points", ha="center", color=INK, fontsize=10.5,
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [name for name, _ in rows], color=INK)
        axes.set_ylim(len(rows) - 0.5, -0.75)
        axes.set_xlim(-2, 102)
        axes.set_xlabel("per cent, with 95 % intervals")

    description = "; ".join(
        f"{name}: {100 * s.accuracy:.1f} %, from {100 * s.low:.1f} to {100 * s.high:.1f}"
        for name, s in rows
    )
    height = (1.0 + 0.62 * len(rows)) / _WIDE[1]
    return plot(
        "shares", plotter, title="Accuracy, side by side", description=description, height=height
    )


def consensus_plot(winners: Sequence[int]) -> Markup:
    """Plot how many teachers voted for the winner. PRIVATE."""
    width = 100 / len(winners)

    def plotter(axes: Axes, narrow: bool) -> None:
        left = [width * n for n in range(len(winners))]
        axes.bar(left, winners, width=0.88 * width, align="edge", color=FOURTH)
        axes.set_xlim(0, 100)
        axes.set_xlabel("teachers who voted for the winner, per cent")
        axes.set_ylabel("queries")

    description = ", ".join(
        f"{width * n:.0f} to {width * (n + 1):.0f} per cent: {count}"
        for n, count in enumerate(winners)
        if count
    )
    return plot(
        "consensus", plotter, title="How far teachers agree", description=description, height=0.8
    )


def comparison_plot(facts: Facts) -> Markup:
    """Plot accuracy over ε of all methods compared; one without an ε is a horizontal line."""
    priced = [row for row in facts.comparison if row.epsilon is not None]
    free = [row for row in facts.comparison if row.epsilon is None]
    names = list(dict.fromkeys(row.name for row in priced))
    costs = sorted({float(f"{row.epsilon:.3g}") for row in priced})
    weak = facts.no_better
    styles = ((THIRD, (0, (6, 2))), (MUTED, (0, (1, 1.8))), (FOURTH, (0, (6, 2, 1.5, 2))))

    def plotter(axes: Axes, narrow: bool) -> None:
        curves = []
        marks = ((MAIN, "o"), (SECOND, "s"), (FOURTH, "P"), (THIRD, "D"))
        for place, name in enumerate(names):
            colour, marker = marks[place % len(marks)]
            rows = sorted((r for r in priced if r.name == name), key=lambda r: r.epsilon or 0.0)
            curves.append(
                axes.errorbar(
                    [row.epsilon or 0.0 for row in rows], [100 * row.accuracy for row in rows],
                    yerr=[
                        [100 * (row.accuracy - row.low) for row in rows],
                        [100 * (row.high - row.accuracy) for row in rows],
                    ],
                    label=short(name),
                    color=colour, marker=marker, markersize=7,
                    linewidth=1.8, elinewidth=1.4, capsize=3,
                )
            )  # fmt: skip
            flat = [row for row in rows if row in weak]
            axes.plot(
                [row.epsilon or 0.0 for row in flat], [100 * row.accuracy for row in flat],
                linestyle="none", color=colour, marker=marker,
                markersize=13, markerfacecolor="none",
            )  # fmt: skip
        bottom, _ = axes.get_ylim()
        lines = []
        for place, row in enumerate(free):
            if row.method == "majority" and 100 * row.accuracy < bottom:
                continue  # it would press all others together; the table has it
            colour, dashes = styles[place % len(styles)]
            lines.append(
                axes.axhline(100 * row.accuracy, color=colour, linestyle=dashes, linewidth=1.6,
                             label=short(row.name), zorder=1)
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(costs, [f"{cost:g}" for cost in costs])
        axes.minorticks_off()
        if len(costs) == 1:
            axes.set_xlim(costs[0] / 1.5, costs[0] * 1.5)
        axes.set_xlabel("ε of one run")
        axes.set_ylabel("accuracy, per cent")
        _legend(axes, columns=2 if narrow else 4, handles=[*curves, *lines])

    description = "; ".join(
        f"{row.name}{'' if row.epsilon is None else f' at ε {format_epsilon(row.epsilon)}'}: "
        f"{100 * row.accuracy:.1f} % ({100 * row.low:.1f} to {100 * row.high:.1f} %)"
        f"{', no better than the majority class' if row in weak else ''}"
        for row in facts.comparison
    )
    return plot("comparison", plotter, title="Accuracy over ε", description=description)


def _bars(axes: Axes, names: Sequence[str], counts: Sequence[int]) -> None:
    axes.grid(axis="y", visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.barh(range(len(names)), counts, height=0.66, color=MAIN)
    for place, count in enumerate(counts):
        axes.annotate(str(count), (count, place), xytext=(6, 0), textcoords="offset points",
                      va="center", color=INK)  # fmt: skip
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * max(1, *counts))
    axes.set_xticks([])


def _legend(axes: Axes, *, columns: int, handles: list[Any] | None = None) -> Any:
    order = {} if handles is None else {"handles": handles}
    return axes.legend(
        **order,
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, handlelength=1.9,
        columnspacing=1.3, labelcolor=INK, borderaxespad=0.2,
    )  # fmt: skip


def short(name: str) -> str:
    """Return a name that fits beside a bar.

    >>> short("a class with quite a long name")
    'a class with quit…'
    """
    seen = "".join(letter if letter.isprintable() else " " for letter in name)
    line = " ".join(seen.split()) or "·"
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
