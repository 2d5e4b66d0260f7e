"""The style of plots in files: one palette, and figures that use no global state.

The pages of :mod:`pate.report` have a style of their own, which follows the page's colours.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct to colour-blind readers, and in grey by the markers that go with them.
COLOURS = ("#1f5fa8", "#c4570b", "#2e8b57", "#8e3b8e", "#6b6b6b", "#b08a00")
MARKERS = "osD^vP"

_METADATA = {  # no date, no version: the same plot is the same file
    "png": {"Software": None},
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
}


@contextmanager
def new_figure(width: float = 7.5, height: float = 4.6) -> Iterator[Figure]:
    """Yield an empty figure of this size in inches; no global state or user setting is used.

    Plot and call :func:`image_of` within the block.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        # A key may hold a dollar sign; identifiers inside an SVG file are the same every time.
        matplotlib.rcParams.update({"text.parse_math": False, "svg.hashsalt": "pate"})
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def new_axes(figure: Figure, *, title: str, x: str, y: str) -> Axes:
    """Return the axes of a figure with one plot, with their title and labels."""
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=10, loc="left")
    return axes


def image_of(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of this kind ("png", "svg", "pdf" …), without a date."""
    image = io.BytesIO()
    with warnings.catch_warnings():
        # A font may lack a glyph: it is a box then, and no warning helps.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing")
        figure.savefig(image, format=kind, dpi=150, metadata=_METADATA.get(kind))
    return image.getvalue()
