"""Tables that commands print, fitted to the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; those of a higher ``rank`` go first, those of rank 0 never do."""

    heading: str
    cells: Sequence[str]
    justify: Literal["left", "right"] = "right"
    rank: int = 0

    @property
    def width(self) -> int:
        lines = [line for text in (self.heading, *self.cells) for line in text.split("\n")]
        return max(map(cell_len, lines), default=0)


def fitting_columns(columns: Sequence[Column], width: int) -> tuple[Column, ...]:
    """Return the columns for which there is room, with a border around each.

    >>> name, note = Column(heading="ε", cells=["2.5"]), Column(heading="note", cells=[""], rank=1)
    >>> [each.heading for each in fitting_columns([name, note], 80)]
    ['ε', 'note']
    >>> [each.heading for each in fitting_columns([name, note], 12)]
    ['ε']
    """
    kept = list(columns)
    while sum(each.width + 3 for each in kept) + 1 > width:
        least = max(kept, key=lambda each: each.rank)
        if least.rank == 0:
            break
        kept.remove(least)
    return tuple(kept)


def fitted_table(columns: Sequence[Column], width: int) -> Table:
    """Return a table of the columns that fit; no value in it is cut short."""
    kept = fitting_columns(columns, width)
    table = Table()
    for each in kept:
        table.add_column(each.heading, justify=each.justify, no_wrap=True, min_width=each.width,
                         vertical="bottom")  # fmt: skip
    for row in zip(*(each.cells for each in kept), strict=True):
        table.add_row(*row)
    return table
