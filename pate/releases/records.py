"""The form of the records that a student takes: columns of a table by name, or images by scale.

A student is right only on records in the form it learnt from. Columns in another order, pixels on
another scale and missing values that it does not take are put right where that is certain, and
otherwise refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.datasets.columns import (
    array_cells,
    column_names,
    encode_columns,
    is_frame,
    is_number,
)
from pate.datasets.table import Column
from pate.errors import InvalidInput

_WHERE = "X"
_SLACK = 0.25  # beyond 0 … 1, before pixels are taken to be on another scale
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """The form of one record, as ``input`` of ``student.json`` has it."""

    shape: tuple[int, ...]
    dtype: str  # of the records it learnt from
    columns: tuple[Column, ...] | None = None  # of a table
    range: tuple[int, int] | None = None  # of the pixels of images: 0 … 1 or 0 … 255
    missing: bool | None = None  # whether values may be missing; None: not known

    def read(self, X: ArrayLike) -> NDArray[Any]:
        """Return records as numbers in this form; raise the rule that they break."""
        if is_frame(X):
            records = self._coded(self._frame_columns(X))
        else:
            records = np.asarray(X)
            self._check_shape(records)
            if self.columns is not None and any(each.categories for each in self.columns):
                records = self._coded(list(records.T))
        if records.dtype.kind not in "fiub":
            raise InvalidInput(f"the records have type {records.dtype}; the student takes numbers")
        if self.missing is False and records.dtype.kind == "f":
            self._check_complete(records)
        return self._scaled(records)

    # --- tables -------------------------------------------------------------------------------

    def _named(self, at: int) -> str:
        """Return a column's name for a message, or its number; a stranger may have named it."""
        name = None if self.columns is None else self.columns[at].name
        return str(at + 1) if name is None else repr(name)

    def _frame_columns(self, frame: Any) -> list[NDArray[Any]]:
        """Return the columns of a DataFrame in the student's order: they are found by name."""
        names = [] if self.columns is None else [each.name for each in self.columns]
        if not names or None in names:
            raise InvalidInput(
                "X is a table, and this student does not know the names of its columns; give an "
                f"array of shape (n, {', '.join(map(str, self.shape))}) in the order it learnt "
                "from, such as X.to_numpy()"
            )
        columns = column_names(frame) or []
        given = {str(name): name for name in columns}
        if len(given) < len(columns):
            raise InvalidInput("X has two columns of one name; give each its own name")
        missing = [name for name in names if name not in given]
        if missing:
            raise InvalidInput(
                f"X has no column {_listed(missing)}; the student takes {_listed(names)}"
            )
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InvalidInput(
                f"X has {_listed(unknown)}, which the student did not learn from; drop "
                f"{'it' if len(unknown) == 1 else 'them'}: the "
                f"student takes {_listed(names)}"
            )
        return [np.asarray(frame[given[str(name)]]) for name in names]

    def _coded(self, values: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """Return the columns of a table as numbers."""
        assert self.columns is not None
        checked = []
        for at, (column, each) in enumerate(zip(self.columns, values, strict=True)):
            name = self._named(at)
            if column.categories is not None and {"True", "False"} & set(column.categories):
                spelt = [str(one) if isinstance(one, bool) else one for one in each.tolist()]
                each = np.array(spelt, dtype=object)
            cells = array_cells(each, name=column.name or name, where=_WHERE)
            if column.categories is None:
                if cells.texts:
                    raise InvalidInput(
                        f"column {name} of X holds text, and the student takes numbers there"
                    )
            elif not (cells.texts or np.isnan(cells.numbers).all() or _numbered(column.categories)):
                raise InvalidInput(
                    f"column {name} of X holds numbers, and the student takes categories there, "
                    f"such as {column.categories[0]!r}; give them as text"
                )
            checked.append(cells)
        return encode_columns(self.columns, checked, where=_WHERE)

    def _check_shape(self, records: NDArray[Any]) -> None:
        if records.ndim and records.shape[1:] == self.shape:
            return
        hint = ""
        turned = records.shape[2:] + records.shape[1:2]
        if records.ndim == 4 and turned == self.shape and self.channels == "last":
            hint = ": channels come last, X.transpose(0, 2, 3, 1)"
        raise InvalidInput(
            f"the records have shape {records.shape}; the student takes (n, "
            f"{', '.join(map(str, self.shape))}){hint}"
        )

    def _check_complete(self, records: NDArray[Any]) -> None:
        empty = np.isnan(records)
        if empty.any():
            at = int(np.flatnonzero(empty.reshape(len(empty), -1).any(axis=0))[0])
            column = f"column {self._named(at)} of X" if self.columns is not None else "X"
            raise InvalidInput(f"{column} has missing values, and the student takes none")

    # --- images -------------------------------------------------------------------------------

    @property
    def channels(self) -> str | None:
        """The place of the channels of an image, "first" or "last"; None: there are none."""
        return channels_of(self.shape)

    def _scaled(self, records: NDArray[Any]) -> NDArray[Any]:
        if self.range is None or not records.size:
            return records
        low, high = float(records.min()), float(records.max())
        if self.range == (0, 1):
            if records.dtype == np.uint8 and high != 1:
                return records / np.float32(255)
            if low < -_SLACK or high > 1 + _SLACK or (records.dtype == np.uint8 and high == 1):
                raise InvalidInput(
                    f"the pixels are {records.dtype} from {low:g} to {high:g}, and the student "
                    "learnt from 0 … 1; scale them as floats, or give bytes (uint8) from 0 to 255"
                )
        elif records.dtype.kind == "f" and 0 < high <= 1 and (records % 1 != 0).any():
            raise InvalidInput(
                f"the pixels reach {high:g}, and the student learnt from 0 … 255; multiply by 255"
            )
        return records

    # --- for the check of a student -----------------------------------------------------------

    def drawn(self, records: int, *, near: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return random records of this form, as the student itself sees them.

        They are drawn between and around those of ``near``, if given.
        """
        rng = np.random.default_rng(0)
        shape = (records, *self.shape)
        if near is None:
            made = rng.normal(size=shape)
            made[: records // 2] = 0
        else:
            low, high = np.nanmin(near, axis=0), np.nanmax(near, axis=0)
            made = rng.uniform(low - (high - low) / 4, high + (high - low) / 4, shape)
        for at, column in enumerate(self.columns or ()):
            if column.categories is not None:
                made[:, at] = rng.integers(-1, len(column.categories), size=records)
        if self.missing:
            made[rng.random(shape) < 0.1] = np.nan
        with np.errstate(all="ignore"):
            return made.astype(self.dtype)


def channels_of(shape: Sequence[int]) -> str | None:
    """Return where the channels of an image are, by its shape.

    >>> channels_of((28, 28, 3)), channels_of((3, 28, 28)), channels_of((28, 28))
    ('last', 'first', None)
    """
    if len(shape) != 3:
        return None
    return "last" if shape[-1] in _CHANNELS else "first" if shape[0] in _CHANNELS else None


def range_of(inputs: NDArray[Any]) -> tuple[int, int] | None:
    """Return the scale of images by public ones: 0 … 1, 0 … 255, or None if it is another."""
    if inputs.ndim < 3 or not inputs.size:
        return None
    low, high = float(inputs.min()), float(inputs.max())
    if low < 0 or high > 255:
        return None
    return (0, 1) if high <= 1 else (0, 255)


def form_record(
    inputs: NDArray[Any],
    columns: Sequence[Mapping[str, Any]] | None,
    *,
    missing: bool,
    names: bool,
) -> dict[str, Any]:
    """Return ``input`` of ``student.json``, by the public inputs and the columns of their table.

    Names of columns are left out unless ``names``: they are the owner's to publish.
    """
    record: dict[str, Any] = {
        "shape": list(inputs.shape[1:]),
        "dtype": inputs.dtype.name,
        "missing": missing,
    }
    if columns is not None:
        record["columns"] = [
            {"name": each["name"] if names else None, "categories": each["categories"]}
            for each in columns
        ]
    scale = range_of(inputs)
    return record if scale is None else record | {"range": list(scale)}


def _numbered(categories: Sequence[str]) -> bool:
    return any(map(is_number, categories))


def _listed(names: Sequence[Any], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (", …" if len(names) > most else "")
