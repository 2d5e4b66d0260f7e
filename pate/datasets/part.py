"""What a reader hands over: one file's records, before the classes are agreed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Records of one file or object; labels are as written there, names or numbers."""

    where: str  # the file or entry point, for messages
    features: NDArray[Any]
    labels: NDArray[Any] | None
    ids: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None  # names of the features, where they have names


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which columns a reader is to find, and which it must."""

    label: str | None = None
    id: str | None = None
    group: str | None = None
    features: tuple[str, ...] | None = None
    image_size: int | None = None
    colour: bool | None = None  # image folders: None: colour if any image has it
    needs_label: bool = True
    needs_keys: bool = True  # the id and group columns, where they are named


def to_numbers(values: Any, *, where: str, what: str = "features") -> NDArray[Any]:
    """float32 or float64; the values are not scaled.

    >>> to_numbers(np.array([[0, 255]], dtype=np.uint8), where="x.npz").dtype
    dtype('float32')
    """
    array = np.asarray(values)
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{what} of {where} hold {array.dtype}, not numbers; give numbers only")
    small = array.dtype.kind == "b" or array.dtype.itemsize <= 2
    return array.astype(np.float32 if small else np.float64)


def to_names(values: Any, *, where: str, what: str) -> tuple[str, ...]:
    """Ids or groups as strings; an empty one is an error."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidInput(f"{what} of {where} has shape {array.shape}; give one for each record")
    if array.dtype.kind == "f" and np.array_equal(array, np.floor(array)):
        array = array.astype(np.int64)  # a column of whole numbers that passed through floats
    names = tuple(str(value) for value in array.tolist())
    if any(name.strip() in ("", "None", "nan") for name in names):
        raise InvalidInput(f"{what} of {where} is empty in some records; fill it in")
    return names


def missing_column(column: str, *, role: str, where: str, present: Sequence[str]) -> InvalidInput:
    """The error for a column that is not there; column names are not private."""
    near = get_close_matches(column, present, n=1)
    shown = ", ".join(present[:12]) + (", …" if len(present) > 12 else "")
    hint = f"did you mean {near[0]!r}?" if near else f"it has {shown}"
    return InvalidInput(f"{where} has no {role} {column!r}; {hint}")
