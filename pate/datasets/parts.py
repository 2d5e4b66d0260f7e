"""Records of the user's own, before and after the classes are agreed on.

A reader of files or of the user's own code returns a :class:`Part` with labels as written;
:func:`to_tables` turns parts into tables with one set of classes, one shape and finite numbers.

Guarantees:
    * **The class names are public, and so is their number.** They are printed, they shape every
      teacher and every vote. So they come from ``classes`` in the recipe or from the labels of
      public and test records; a private label beyond them is an error, not a new class.
    * No message shows a label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.table import Table, check_features
from pate.errors import InvalidInput
from pate.recipes.read import printable


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
    """The columns that a reader looks for, and those that must exist."""

    label: str | None = None
    id: str | None = None
    group: str | None = None
    features: tuple[str, ...] | None = None
    image_size: int | None = None
    colour: bool | None = None  # image folders: None: colour if any image has it
    needs_label: bool = True
    needs_keys: bool = True  # the id and group columns, where they are named


def to_numbers(values: Any, *, where: str) -> NDArray[Any]:
    """Return features as float32 or float64; they are not scaled.

    >>> to_numbers(np.array([[0, 255]], dtype=np.uint8), where="x.npz").dtype
    dtype('float32')
    """
    array = np.asarray(values)
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"features of {where} hold {array.dtype}, not numbers; give numbers only"
        )
    small = array.dtype.kind == "b" or array.dtype.itemsize <= 2
    return array.astype(np.float32 if small else np.float64)


def to_names(values: Any, *, where: str, what: str) -> tuple[str, ...]:
    """Return ids or groups as strings; an empty one is an error."""
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
    """Return the error for a missing column; column names are not private."""
    near = get_close_matches(column, present, n=1)
    shown = ", ".join(present[:12]) + (", …" if len(present) > 12 else "")
    hint = f"did you mean {near[0]!r}?" if near else f"it has {shown}"
    return InvalidInput(f"{where} has no {role} {printable(column, longest=60)!r}; {hint}")


def to_tables(
    parts: Sequence[Part], *, classes: Sequence[str] | None
) -> tuple[list[Table], tuple[str, ...]]:
    """Return tables that agree on classes and on the shape of a record, and the class names."""
    first = parts[0]
    for part in parts:
        check_features(part.features, where=part.where, columns=part.columns)
        if part.labels is not None and len(part.labels) != len(part.features):
            raise InvalidInput(
                f"{part.where} has {len(part.features)} records and {len(part.labels)} labels; "
                "give one for each record"
            )
        if part.features.shape[1:] != first.features.shape[1:]:
            raise InvalidInput(
                f"a record of {part.where} has shape {part.features.shape[1:]} and one of "
                f"{first.where} has {first.features.shape[1:]}; make them agree"
            )
        if part.ids is not None and len(set(part.ids)) < len(part.ids):
            raise InvalidInput(
                f"{len(part.ids) - len(set(part.ids))} ids of {part.where} occur more than once; "
                "give each record its own, or name the column as group to keep records together"
            )
    labels, names = encode_labels([(part.where, part.labels) for part in parts], classes=classes)
    precise = np.result_type(*(part.features for part in parts))
    tables = [
        Table(
            features=part.features.astype(precise, copy=False),
            labels=column,
            ids=part.ids,
            groups=part.groups,
        )
        for part, column in zip(parts, labels, strict=True)
    ]
    return tables, names


_WHOLE = re.compile(r"([+-]?\d{1,18})(?:\.0*)?")


def encode_labels(
    columns: Sequence[tuple[str, NDArray[Any] | None]], *, classes: Sequence[str] | None = None
) -> tuple[list[NDArray[np.int64] | None], tuple[str, ...]]:
    """Return class numbers for each column of labels, and the class names.

    Names are the sorted union over all columns: by value where all of them are whole numbers,
    else by spelling. ``columns`` pairs the place (for messages) with the labels.

    >>> encode_labels([("a.csv", np.array(["10", "9"])), ("b.csv", np.array(["9", "9"]))])
    ([array([1, 0]), array([0, 0])], ('9', '10'))
    """
    texts = [(where, None if raw is None else _texts(raw, where)) for where, raw in columns]
    found = {name for _, text in texts if text is not None for name in text}
    whole = {name: match for name in found if (match := _WHOLE.fullmatch(name))}
    numbers = bool(found) and len(whole) == len(found)
    plain = {name: str(int(whole[name][1])) if numbers else name for name in found}
    names = tuple(sorted(set(plain.values()), key=int if numbers else str))
    if classes is not None:
        names = tuple(classes)
    if len(names) < 2:
        raise InvalidInput(
            f"the labels of {columns[0][0]} name {len(names)} class; classification needs 2 or more"
        )
    index = {name: at for at, name in enumerate(names)}
    encoded: list[NDArray[np.int64] | None] = []
    for where, text in texts:
        if text is None:
            encoded.append(None)
            continue
        if not all(plain[name] in index for name in set(text)):
            raise InvalidInput(
                f"{where} holds a label that is not among the {len(names)} classes of the recipe; "
                "add it to classes or remove those records"
            )
        encoded.append(np.array([index[plain[name]] for name in text], dtype=np.int64))
    return encoded, names


def _texts(raw: NDArray[Any], where: str) -> list[str]:
    if raw.ndim != 1:
        raise InvalidInput(
            f"the labels of {where} have shape {raw.shape}; give one for each record"
        )
    if raw.dtype.kind == "f":
        if not np.isfinite(raw).all():
            raise InvalidInput(f"a label of {where} is missing (NaN) or infinite; fill it in")
        if not np.array_equal(raw, np.floor(raw)) or np.abs(raw).max(initial=0) >= 2**53:
            raise InvalidInput(f"the labels of {where} hold fractions; labels are classes")
    elif raw.dtype.kind not in "biuUO":
        raise InvalidInput(f"the labels of {where} are {raw.dtype}, not class names or numbers")
    if raw.dtype.kind in "fb":
        raw = raw.astype(np.int64)
    names = [str(label).strip() for label in raw.tolist()]
    if any(name in ("", "None") for name in names):
        raise InvalidInput(f"a label of {where} is missing; fill it in or remove the record")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:  # a folder's name in another encoding
        raise InvalidInput(
            f"the name of a class of {where} is not Unicode text; rename the label, or the folder"
        ) from None
    return names
