"""The style of all plots: no global state, no user settings, the same bytes on every machine."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct to colour-blind readers, and in grey by the markers that go with them.
COLOURS = ("#1f5fa8", "#c4570b", "#2e8b57", "#8e3b8e", "#6b6b6b", "#b08a00")
MARKERS = "osD^vP"
GRID = "#dddddd"

_UNWANTED = {  # metadata with which the same plot would not be the same file
    "png": ("Software",),
    "svg": ("Date", "Creator", "Format", "Type"),
}


@contextmanager
def plot_style(salt: str = "pate", **settings: Any) -> Iterator[None]:
    """Plot within the block with matplotlib's defaults and these ``settings``.

    Identifiers inside an SVG follow from ``salt``; a name may hold a dollar sign; a glyph that the
    font lacks is a box, and no warning.
    """
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing")
        warnings.filterwarnings("ignore", message=r".*constrained_layout.*")
        matplotlib.rcdefaults()
        own: dict[Any, Any] = {"text.parse_math": False, "svg.hashsalt": salt}
        matplotlib.rcParams.update(own | settings)
        yield


@contextmanager
def new_figure(width: float = 7.5, height: float = 4.6) -> Iterator[Figure]:
    """Yield an empty figure of this size in inches; plot and render it within the block."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with plot_style():
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def plain_axes(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> Axes:
    """Give axes their labels, a light grid and no frame; return them."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=10, loc="left")
    return axes


def render_figure(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of this kind ("png", "svg", "pdf" …), without a date."""
    unwanted = _UNWANTED.get(kind, ())
    image = io.BytesIO()
    figure.savefig(image, format=kind, dpi=150, metadata=dict.fromkeys(unwanted) or None)
    return image.getvalue()
