"""Columns of a table: numbers and categories, missing values, and codes in place of text.

A table reaches the pipeline as numbers: a number as it is, a category as its place in the column's
list of categories, a missing value as NaN, and a category outside the list as −1.

Guarantees:
    Which columns hold categories, and which categories there are, follows from the recipe and from
    public records alone; and a record's codes from that, and from the record itself. So no private
    record changes how another one is read. Text where public records hold numbers is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.table import Column, Table, content_names
from pate.errors import InvalidInput

UNKNOWN = -1.0  # the code of a category that is not in the list
MOST_CATEGORIES = 1000
_FEW = 2  # categories that a column may have, however few records there are
_MISSING = {"na", "n/a", "nan", "null", "none"}  # in a column of numbers, besides an empty cell
_EXACT = 2**53

Categories = Mapping[str, Sequence[str]]  # by column; without any: those of the public records


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """A column as it is written: cells that are numbers, and the texts of the others."""

    numbers: NDArray[np.float64]  # NaN where a cell is empty or text
    places: NDArray[np.int32] | None = None  # of each cell's text in ``texts``; −1: it has none
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Iterable[Any]) -> Cells:
        """Return the cells of a column: numbers, texts and None.

        Raises ``TypeError`` for a value of another kind.

        >>> cells = Cells.of(["1", " a", "", None, 2.5])
        >>> cells.numbers.tolist(), cells.texts
        ([1.0, nan, nan, nan, 2.5], ('a',))
        """
        reader = CellReader()
        for value in values:
            reader.add(value)
        return reader.cells()


class CellReader:
    """Cells of a column, read one by one; a text is kept once."""

    def __init__(self) -> None:
        self._numbers = array("d")
        self._places: array[int] | None = None
        self._texts: dict[str, int] = {}

    def add(self, value: Any) -> None:
        """Append a cell; ``TypeError`` if it is neither a number nor text nor None."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            text = "" if _is_missing(value) else value
            if not isinstance(text, str):
                raise TypeError("neither a number nor text") from None
            text = text.strip()
            self._numbers.append(math.nan)
            if text and self._places is None:
                self._places = array("i", [-1]) * (len(self._numbers) - 1)
            if self._places is not None:
                place = self._texts.setdefault(text, len(self._texts)) if text else -1
                self._places.append(place)
            return
        self._numbers.append(math.nan if math.isnan(number) else number)
        if self._places is not None:
            self._places.append(-1)

    def cells(self) -> Cells:
        """Return the cells read so far."""
        return Cells(
            numbers=np.array(self._numbers, dtype=np.float64),
            places=None if self._places is None else np.array(self._places, dtype=np.int32),
            texts=tuple(self._texts),
        )


def is_frame(thing: Any) -> bool:
    """Return whether an object is a table with named columns, of whichever library."""
    return column_names(thing) is not None


def column_names(table: Any) -> list[Any] | None:
    """Return the names of a table's columns, each of which is ``table[name]``; None if it has none.

    Tables of pyarrow and Hugging Face's datasets have ``column_names``, those of pandas and polars
    ``columns``.
    """
    names = getattr(table, "column_names", None)
    names = getattr(table, "columns", None) if names is None else names
    if names is None or isinstance(names, Mapping) or not hasattr(table, "__getitem__"):
        return None
    return list(names)


def column_values(table: Any, name: Any) -> Any:
    """Return a column of a table; one of pyarrow that is coded by a dictionary as its values.

    NumPy would read a missing value as the dictionary's last one, which other records decide.
    """
    column = table[name]
    kind: Any = getattr(column, "type", None)
    return column.cast(kind.value_type) if str(kind).startswith("dictionary<") else column


def frame_cells(frame: Any, *, where: str) -> dict[str, Cells]:
    """Return the cells of a table by the names of its columns."""
    columns = column_names(frame) or []
    names = [str(name) for name in columns]
    if len(set(names)) < len(names):
        raise InvalidInput(f"{where} has two columns of one name; give each its own name")
    found = {}
    for name, column in zip(names, columns, strict=True):
        found[name] = array_cells(np.asarray(column_values(frame, column)), name=name, where=where)
    return found


def array_cells(values: NDArray[Any], *, name: str, where: str) -> Cells:
    """Return the cells of one column of an array."""
    if values.dtype.kind in "biuf":
        return Cells(numbers=values.astype(np.float64))
    try:
        if values.ndim != 1 or values.dtype.kind not in "OUT":
            raise TypeError
        return Cells.of(values.tolist())
    except TypeError:
        raise InvalidInput(
            f"column {name!r} of {where} is of type {values.dtype} and holds values that are "
            "neither numbers nor text; turn them into one of these, or leave the column out"
        ) from None


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas'


# --- the schema -----------------------------------------------------------------------------------


def choose_columns(
    names: Sequence[str],
    cells: Sequence[Cells],
    *,
    rows: NDArray[np.intp] | None = None,
    categorical: Categories | None = None,
    where: str,
) -> tuple[Column, ...]:
    """Return the kind of each column, and its categories, by its ``rows``: PUBLIC ones, or all.

    A column holds categories if ``categorical`` names it or some cell is text.

    >>> choose_columns(["age"], [Cells.of(["31", "", "NA"])], where="x.csv")
    (Column(name='age', categories=None),)
    >>> choose_columns(["sex"], [Cells.of(["f", "m", ""])], where="x.csv")[0].categories
    ('f', 'm')
    """
    declared = {} if categorical is None else categorical
    return tuple(
        _choose(name, each, rows=rows, declared=declared.get(name), where=where)
        for name, each in zip(names, cells, strict=True)
    )


def _choose(
    name: str,
    cells: Cells,
    *,
    rows: NDArray[np.intp] | None,
    declared: Sequence[str] | None,
    where: str,
) -> Column:
    at: Any = slice(None) if rows is None else rows
    numbers = cells.numbers[at]
    places = np.empty(0, dtype=np.int32) if cells.places is None else cells.places[at]
    texts = [cells.texts[place] for place in np.unique(places[places >= 0])]
    if declared is None and all(text.lower() in _MISSING for text in texts):
        if np.isnan(numbers).all():
            raise _empty(name, where)
        return Column(name=name)
    if declared:
        return Column(name=name, categories=tuple(dict.fromkeys(map(category, declared))))
    found = [category(number) for number in np.unique(numbers[~np.isnan(numbers)])]
    categories = _ordered({*found, *map(category, texts)})
    if not categories:
        raise _empty(name, where)
    if declared is None and len(categories) > max(_FEW, len(numbers) // 2):
        raise InvalidInput(
            f"column {name!r} of {where} holds texts that are mostly different, as names and "
            "remarks are; leave it out by naming the columns to use in features, or list it in "
            "categorical"
        )
    if len(categories) > MOST_CATEGORIES:
        raise InvalidInput(
            f"column {name!r} of {where} has {len(categories)} categories in public records, and "
            f"{MOST_CATEGORIES} are the most; leave it out, or name those to know in categorical"
        )
    return Column(name=name, categories=categories)


def _empty(name: str, where: str) -> InvalidInput:
    return InvalidInput(
        f"column {name!r} of {where} is empty in all public records, so that nothing is known of "
        "it; leave it out by naming the columns to use in features"
    )


def category(value: Any) -> str:
    """Return a value as the name of a category; numbers of one value have one name.

    >>> category("01"), category(1.0), category(1.5), category(" low "), category(True)
    ('1', '1', '1.5', 'low', 'True')
    """
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return str(int(number)) if number.is_integer() and abs(number) < _EXACT else repr(number)


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return names by value where all are numbers, otherwise by spelling."""
    found = list(names)
    return tuple(sorted(found, key=float if all(map(is_number, found)) else str))


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- codes ----------------------------------------------------------------------------------------


def encode_columns(
    columns: Sequence[Column], cells: Sequence[Cells], *, where: str
) -> NDArray[np.float64]:
    """Return the records as numbers, (n, columns).

    >>> size = Column(name="size", categories=("S", "M"))
    >>> encode_columns([size], [Cells.of(["M", "XXL", ""])], where="x.csv").ravel().tolist()
    [1.0, -1.0, nan]
    """
    coded = [_encode(one, each, where=where) for one, each in zip(columns, cells, strict=True)]
    return np.column_stack(coded)


def _encode(column: Column, cells: Cells, *, where: str) -> NDArray[np.float64]:
    if column.categories is None:
        odd = [place for place, text in enumerate(cells.texts) if text.lower() not in _MISSING]
        if odd and cells.places is not None and np.isin(cells.places, odd).any():
            raise InvalidInput(
                f"column {column.name!r} of {where} is not numeric: some record holds text, and "
                "public records hold numbers; correct it, or list the column in categorical"
            )
        if np.isinf(cells.numbers).any():
            raise InvalidInput(
                f"column {column.name!r} of {where} holds infinity; correct or remove those records"
            )
        return cells.numbers
    codes = {name: float(place) for place, name in enumerate(column.categories)}
    coded = np.full(len(cells.numbers), np.nan)
    known = ~np.isnan(cells.numbers)
    values, inverse = np.unique(cells.numbers[known], return_inverse=True)
    coded[known] = np.array([codes.get(category(each), UNKNOWN) for each in values])[inverse]
    if cells.places is not None:
        table = np.array([codes.get(category(text), UNKNOWN) for text in cells.texts])
        written = cells.places >= 0
        coded[written] = table[cells.places[written]]
    return coded


def table_names(cells: Sequence[Cells], labels: NDArray[np.int64] | None) -> list[str]:
    """Return a name for each record, by what is written in it alone.

    A record of numbers has the name that :func:`pate.datasets.table.content_names` gives it.
    """
    numbers = Table(features=np.column_stack([each.numbers for each in cells]), labels=labels)
    names = content_names(numbers)
    texts: dict[int, list[tuple[int, str]]] = {}
    for at, each in enumerate(cells):
        if each.places is not None:
            for row in np.flatnonzero(each.places >= 0).tolist():
                texts.setdefault(row, []).append((at, each.texts[each.places[row]]))
    for row, written in texts.items():
        content = json.dumps([names[row], written]).encode()
        names[row] = hashlib.sha256(content).hexdigest()
    return names
