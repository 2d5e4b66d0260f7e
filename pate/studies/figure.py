"""Pictures of a study as PNG and SVG: the same on every machine, and for their owner only."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pate.studies.files import write_owned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart by eyes of all kinds, and in grey by the marks that go with them.
COLOURS = ("#1f5fa8", "#c4570b", "#2e8b57", "#8e3b8e", "#6b6b6b", "#b08a00")
MARKS = "osD^vP"


@contextmanager
def drawing(width: float = 7.5, height: float = 4.6) -> Iterator[Figure]:
    """An empty figure, in inches; nothing global is touched, and no setting of the user's own.

    Draw and :func:`save` within the block.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        # A key may hold a dollar sign; names inside the file are the same every time.
        matplotlib.rcParams.update({"text.parse_math": False, "svg.hashsalt": "pate"})
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def save(figure: Figure, folder: Path, stem: str) -> tuple[Path, Path]:
    """Writes ``STEM.png`` and ``STEM.svg`` of mode 0600, each whole or not at all, undated."""
    nothing = {
        "png": {"Software": None},
        "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    }
    files = folder / f"{stem}.png", folder / f"{stem}.svg"
    for file in files:
        kind = file.suffix.removeprefix(".")
        image = io.BytesIO()
        with warnings.catch_warnings():
            # A font may lack what a word is written in: it is a box then, and no warning helps.
            warnings.filterwarnings("ignore", message=r"Glyph .* missing")
            figure.savefig(image, format=kind, dpi=150, metadata=nothing[kind])
        write_owned(file, image.getvalue())
    return files
