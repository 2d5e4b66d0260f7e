"""Plots of an audit: ROC curves, lower bounds beside the claim, realised ε. PRIVATE.

Each is drawn twice: as SVG in the page, coloured by its style, and as a PNG file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from pate._format import format_epsilon
from pate._plots import COLOURS, new_figure, plain_axes, render_figure
from pate.audits.findings import Finding
from pate.audits.results import Audit
from pate.audits.roc import most_tpr
from pate.report.plots import FOURTH, INK, MAIN, MUTED, SECOND, THIRD, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST_RATE = 1e-3  # the left end of logarithmic axes
_PAGE = (MAIN, THIRD, SECOND, FOURTH, MUTED, INK)  # stand for colours of the page's style
_MOST_CURVES = 3  # of one target, so that they can be told apart
_BINS = 30

Drawing = Callable[["Axes", "tuple[str, ...]", bool], None]


def roc_drawing(audit: Audit) -> Drawing | None:
    """Return the drawing of ROC curves on log axes, below what the claim allows."""
    targets = list(dict.fromkeys(each.target for each in audit.findings if each.curve is not None))
    if not targets:
        return None

    def draw(axes: Axes, colours: tuple[str, ...], narrow: bool) -> None:
        for number, target in enumerate(targets):
            best = _strongest(audit, target)[: 1 if audit.methods else _MOST_CURVES]
            for place, each in enumerate(best):
                assert each.curve is not None
                fpr, tpr = each.curve.fpr, each.curve.tpr
                hue, style = number, place
                if audit.methods:  # a colour of each, dashed without privacy
                    hue = [target.startswith(name) for name in audit.methods].index(True)
                    style = int(not audit.covers(each))
                axes.plot(
                    np.maximum(fpr, _LEAST_RATE / 10), np.maximum(tpr, _LEAST_RATE / 10),
                    color=colours[hue % len(colours)], linestyle=("-", "--", ":")[style],
                    linewidth=1.8, drawstyle="steps-post", label=f"{target}: {each.attack}",
                )  # fmt: skip
        rates = np.geomspace(_LEAST_RATE / 10, 1, 200)
        claim = max(audit.claims.values(), key=lambda each: each.epsilon, default=None)
        if claim is not None:
            most = most_tpr(rates, epsilon=claim.epsilon, delta=claim.delta)
            claimed = format_epsilon(claim.epsilon)
            axes.plot(rates, most, color=colours[-1], linewidth=2.4,
                      label=f"the most that ε = {claimed} allows")  # fmt: skip
        axes.plot(rates, rates, color=colours[-2], linewidth=1.2, linestyle=(0, (1, 1.6)),
                  label="guessing")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(_LEAST_RATE, 1)
        axes.set_ylim(_LEAST_RATE, 1.05)
        ticks = (0.001, 0.01, 0.1, 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.2 if narrow else -0.18),
            ncols=1 if narrow else 2, fontsize=9.5, frameon=False,
        )  # fmt: skip

    return draw


def _strongest(audit: Audit, target: str) -> list[Finding]:
    """Return the findings of a target with a curve, those that find most at 1 % FPR first."""
    mine = [each for each in audit.findings if each.target == target and each.curve is not None]
    return sorted(mine, key=lambda each: -each.values.get("TPR at 1 % FPR", 0.0))


def bounds_drawing(audit: Audit) -> Drawing | None:
    """Return the drawing of lower bounds on ε, each within what it could have shown."""
    bounded = _bounded(audit)
    if not bounded or not audit.claims:
        return None
    claimed = {target: claim.epsilon for target, claim in audit.claims.items()}
    limited = [place for place, each in enumerate(bounded) if each.largest_possible is not None]

    def draw(axes: Axes, colours: tuple[str, ...], narrow: bool) -> None:
        for place, each in enumerate(bounded):
            shown = each.epsilon or 0.0
            if each.largest_possible is not None:
                axes.barh(place, each.largest_possible, height=0.62, color=colours[4], alpha=0.28,
                          label="it could have shown" if place == limited[0] else None)  # fmt: skip
            axes.barh(place, shown, height=0.34, color=colours[0],
                      label="it shows" if not place else None)  # fmt: skip
            if each.target in claimed:
                axes.vlines(claimed[each.target], place - 0.45, place + 0.45, colors=colours[1],
                            linewidth=2.2, label="claimed" if not place else "")  # fmt: skip
        if narrow:  # names above their bars, where there is no room beside them
            axes.set_yticks([])
            for place, each in enumerate(bounded):
                axes.text(0, place - 0.36, each.attack, fontsize=9.5, va="bottom")
        else:
            names = [f"{each.attack}\n{each.target}" for each in bounded]
            axes.set_yticks(range(len(bounded)), names)
        axes.invert_yaxis()
        axes.set_xlim(
            0,
            1.08 * max(*claimed.values(), *(e.largest_possible or e.epsilon or 0 for e in bounded)),
        )
        axes.set_xlabel("ε")
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.3), ncols=1 if narrow else 3, fontsize=9.5,
            frameon=False,
        )  # fmt: skip

    return draw


def _bounded(audit: Audit) -> list[Finding]:
    return [each for each in audit.findings if each.epsilon is not None]


def realised_drawing(audit: Audit) -> Drawing | None:
    """Return the drawing of how many records have which realised ε."""
    found = audit.realised
    if found is None or not len(found) or audit.claim is None:
        return None
    claimed = audit.claim.epsilon
    top = max(claimed, float(found.max()))

    def draw(axes: Axes, colours: tuple[str, ...], narrow: bool) -> None:
        counts, edges = np.histogram(found, bins=_BINS, range=(0, top))
        axes.bar(edges[:-1], np.maximum(counts, 0), width=np.diff(edges), align="edge",
                 color=colours[0], linewidth=0)  # fmt: skip
        axes.axvline(claimed, color=colours[1], linewidth=2.2)
        axes.annotate(f"claimed\n{format_epsilon(claimed)}", (claimed, 1), xytext=(-6, -4),
                      xycoords=("data", "axes fraction"), textcoords="offset points",
                      ha="right", va="top")  # fmt: skip
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(0, 2 * max(1, counts.max()))
        ticks = [10**power for power in range(int(np.log10(max(1, counts.max()))) + 1)]
        axes.set_yticks([0, *ticks], [f"{tick}" for tick in (0, *ticks)])
        axes.set_xlim(0, 1.04 * top)
        axes.set_xlabel("realised ε of a record")
        axes.set_ylabel("records")

    return draw


_DRAWINGS: dict[str, tuple[Callable[[Audit], Drawing | None], Callable[[Audit], float]]] = {
    "roc": (roc_drawing, lambda audit: 1.4),
    "bounds": (bounds_drawing, lambda audit: 0.4 + 0.16 * len(_bounded(audit))),
    "realised": (realised_drawing, lambda audit: 0.8),
}
_TITLES = {
    "roc": "Membership attacks on logarithmic axes",
    "bounds": "Lower bounds on ε beside the claim",
    "realised": "Realised ε of single records",
}


def page_plots(audit: Audit) -> dict[str, Markup]:
    """Return the plots of the page by name, without those that there is nothing to show in."""
    return {
        name: plot(
            name,
            partial(_on_page, draw),
            title=_TITLES[name],
            description=f"{_TITLES[name]}; the tables beside it hold the values.",
            height=height,
        )
        for name, draw, height in _drawings(audit)
    }


def _drawings(audit: Audit) -> Iterator[tuple[str, Drawing, float]]:
    for name, (make, height) in _DRAWINGS.items():
        if (draw := make(audit)) is not None:
            yield name, draw, height(audit)


def _on_page(draw: Drawing, axes: Axes, narrow: bool) -> None:
    draw(axes, _PAGE, narrow)


IMAGE_FILES = {name: f"audit-{name}.png" for name in _DRAWINGS}


def image_files(audit: Audit) -> dict[str, bytes]:
    """Return the plots as PNG files by name."""
    found = {}
    for name, draw, height in _drawings(audit):
        with new_figure(height=4.6 * height) as figure:
            draw(plain_axes(figure.subplots(), title=f"{_TITLES[name]} (PRIVATE)"), COLOURS, False)
            found[IMAGE_FILES[name]] = render_figure(figure, "png")
    return found
