"""A comparison as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from pate._format import format_epsilon
from pate.cli.fitting import Column, fitted_table

# Heading, side, and rank: what a narrow terminal has no room for is in the notes or the files.
_COLUMNS: tuple[tuple[str, Literal["left", "right"], int], ...] = (
    ("method", "left", 0), ("ε", "right", 0), ("accuracy, %", "right", 0), ("labels", "right", 1),
    ("time", "right", 2), ("memory", "right", 3), ("neighbours", "left", 4),
    ("data-dep.", "left", 5), ("publish?", "left", 0),
)  # fmt: skip
_NONE = "–"


def show_comparison(content: Mapping[str, Any], folder: Path, again: str) -> None:
    """The table, what one must know to read it, and where it was written.

    ``again`` is the folder as a shell takes it, with what it takes to find its results.
    """
    console = Console(width=None if Console().is_terminal else 120, markup=False, highlight=False)
    cells = zip(*map(_cells, content["rows"]), strict=True)
    columns = [
        Column(heading=heading, cells=column, justify=justify, rank=rank)
        for (heading, justify, rank), column in zip(_COLUMNS, cells, strict=True)
    ]
    console.print(fitted_table(columns, console.width))
    for note in content["notes"]:
        console.print(f"• {note}", soft_wrap=True)
    files = "compare.json, compare.csv, compare.png, compare.svg"
    console.print(f"Written to {folder}: {files}", soft_wrap=True)
    console.print(f"Next: pate report {again}", soft_wrap=True)


def _cells(row: Mapping[str, Any]) -> list[str]:
    more = "" if all(once["whole"] for once in row["runs"]) else "≥ "
    epsilon, dependent = row["epsilon"], row["data_dependent"]
    return [
        row["name"],
        _NONE if epsilon is None else format_epsilon(epsilon),
        accuracy_told(row["accuracy"], row["spread"], len(row["runs"])),
        _NONE if row["labels"] is None else str(row["labels"]),
        _NONE if row["seconds"] is None else f"{more}{duration(row['seconds'])}",
        _NONE if row["peak_memory_mb"] is None else f"{row['peak_memory_mb']:.0f} MB",
        row["neighbours"] or _NONE,
        _NONE if dependent is None else "yes" if dependent else "no",
        "yes" if row["publishable"] else "NO",
    ]


def accuracy_told(mean: float, spread: float | None, runs: int) -> str:
    """Accuracy in per cent, with its spread.

    >>> accuracy_told(0.91234, 0.0123, 3), accuracy_told(0.1, None, 1)
    ('91.2 ± 1.2 (3)', '10.0')
    """
    if spread is None:
        return f"{100 * mean:.1f}"
    return f"{100 * mean:.1f} ± {100 * spread:.1f} ({runs})"


def duration(seconds: float) -> str:
    """A time that people can read.

    >>> duration(0.42), duration(59.96), duration(3725)
    ('0.4 s', '60.0 s', '62 min')
    """
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
