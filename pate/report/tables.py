"""Tables with captions, headings that say what they head, and cells that sort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pate.report.markup import Markup, tag


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, and the number it sorts by."""

    shown: object
    value: float | None = None


def table(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell | object]],
    *,
    numeric: Sequence[int] = (),
    sortable: bool = True,
    chosen: int | None = None,
) -> Markup:
    """A table whose first column names its rows; ``numeric`` columns stand right."""
    head = tag(
        "tr",
        *(
            tag("th", each, scope="col", class_="n" if place in numeric else None)
            for place, each in enumerate(headings)
        ),
    )
    body = [
        tag("tr", *(_cell(each, place, place in numeric) for place, each in enumerate(row)),
            class_="chosen" if number == chosen else None)
        for number, row in enumerate(rows)
    ]  # fmt: skip
    made = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", head),
        tag("tbody", *body),
        class_="sortable" if sortable else None,
    )
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(content: Cell | object, place: int, numeric: bool) -> Markup:
    cell = content if isinstance(content, Cell) else Cell(content)
    kind = "n" if numeric else None
    if place == 0:
        return tag("th", cell.shown, scope="row", class_=kind, data_value=cell.value)
    return tag("td", cell.shown, class_=kind, data_value=cell.value)


def confusion_table(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Markup:
    """Rows: what it is. Columns: what the student said. Shaded by the share of the row."""
    caption = "Test records by their class (rows) and by what the student said (columns)"
    head = tag(
        "tr",
        tag("th", "is \\ said", scope="col"),
        *(tag("th", name, scope="col") for name in names),
    )
    body = []
    for place, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = max(1, sum(row))
        cells = [
            tag("td", count or "·", class_="right" if column == place else None,
                style=f"--s:{count / total:.2f}")
            for column, count in enumerate(row)
        ]  # fmt: skip
        body.append(tag("tr", tag("th", name, scope="row"), *cells))
    made = tag(
        "table", tag("caption", tag("span", caption)), tag("thead", head), tag("tbody", *body),
        class_="confusion",
    )  # fmt: skip
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)
