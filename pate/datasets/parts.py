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
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.columns import (
    Categories,
    Cells,
    choose_columns,
    encode_columns,
    table_names,
)
from pate.datasets.table import Column, Table, check_features, content_names
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
    cells: tuple[Cells, ...] | None = None  # of a table, as written; None: features are numbers
    unused: tuple[str, ...] = ()  # columns of its file that are read for nothing

    @classmethod
    def of_cells(cls, cells: Sequence[Cells], **more: Any) -> Part:
        """Return a table as it is written; its features are to come (:func:`read_columns`)."""
        numbers = np.column_stack([each.numbers for each in cells])
        return cls(features=numbers, cells=tuple(cells), **more)


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
    names = tuple(map(_name, array.tolist()))
    if any(name.strip() in ("", "None", "nan") for name in names):
        raise InvalidInput(f"{what} of {where} is empty in some records; fill it in")
    return names


def _name(value: Any) -> str:
    """Return an id as a string; a whole number may have passed through floats, one by one.

    >>> [_name(each) for each in (7, 7.0, 7.5, "7.0")]
    ['7', '7', '7.5', '7.0']
    """
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def missing_column(column: str, *, role: str, where: str, present: Sequence[str]) -> InvalidInput:
    """Return the error for a missing column; column names are not private."""
    near = get_close_matches(column, present, n=1)
    shown = ", ".join(present[:12]) + (", …" if len(present) > 12 else "")
    hint = f"did you mean {near[0]!r}?" if near else f"it has {shown}"
    return InvalidInput(f"{where} has no {role} {printable(column, longest=60)!r}; {hint}")


def read_columns(
    parts: Sequence[Part], *, categorical: Categories | None
) -> tuple[list[Part], tuple[Column, ...] | None]:
    """Return private, public and test records as numbers, by the columns of the public ones."""
    names = parts[0].columns
    if any(part.columns is None for part in parts) or names is None:
        for part in parts:
            if part.cells is not None and np.isnan(part.features).any():
                raise InvalidInput(
                    f"{part.where} holds text or missing values, and not all of its private, "
                    "public and test records are tables; give all as CSV or Parquet files"
                )
        return _without_columns(parts, categorical)
    parts = [_in_order(part, names, like=parts[0].where) for part in parts]
    found = _columns(parts[1], None, categorical)
    return [_coded(part, found) for part in parts], found


def _without_columns(
    parts: Sequence[Part], categorical: Categories | None
) -> tuple[list[Part], None]:
    if categorical:
        where = next(part.where for part in parts if part.columns is None)
        raise InvalidInput(f"categorical names columns, and {where} has none; remove it")
    return [replace(part, columns=None, cells=None) for part in parts], None


def _in_order(part: Part, names: tuple[str, ...], *, like: str) -> Part:
    """Return a table with its columns in the order of ``names``."""
    assert part.columns is not None
    if part.columns == names:
        return part
    for name in names:
        if name not in part.columns:
            raise missing_column(
                name, role="feature column", where=part.where, present=part.columns
            )
    if len(part.columns) != len(names):
        raise InvalidInput(f"{part.where} has columns that {like} has not; make them agree")
    order = [part.columns.index(name) for name in names]
    cells = None if part.cells is None else tuple(part.cells[at] for at in order)
    return replace(part, features=part.features[:, order], cells=cells, columns=names)


def _columns(
    public: Part, rows: NDArray[np.intp] | None, categorical: Categories | None
) -> tuple[Column, ...]:
    assert public.columns is not None
    for name in categorical or ():
        if name not in public.columns:
            raise missing_column(
                name, role="feature column", where=public.where, present=public.columns
            )
    cells = public.cells or [Cells(numbers=column) for column in public.features.T]
    where = public.where
    return choose_columns(public.columns, cells, rows=rows, categorical=categorical, where=where)


def _coded(part: Part, columns: Sequence[Column]) -> Part:
    """Return a table with its categories as codes."""
    if part.cells is None and all(each.categories is None for each in columns):
        return part
    cells = part.cells or [Cells(numbers=column) for column in part.features.T]
    return replace(part, features=encode_columns(columns, cells, where=part.where), cells=None)


def pool_names(part: Part, table: Table) -> tuple[str, ...]:
    """Return a name for each record of a pool, by what is written in it alone."""
    if part.cells is None or part.ids is not None:
        return tuple(content_names(table))
    return tuple(table_names(part.cells, table.labels))


def read_pool_columns(
    part: Part, public: NDArray[np.intp], *, categorical: Categories | None
) -> tuple[NDArray[Any], tuple[Column, ...] | None]:
    """Return a pool's features as numbers, by the columns of its ``public`` rows."""
    if part.columns is None:
        _without_columns([part], categorical)
        return part.features, None
    found = _columns(part, public, categorical)
    return _coded(part, found).features, found


def require_unique(ids: Collection[Any], *, where: str) -> None:
    """Refuse ids that do not identify one record each."""
    if len(set(ids)) < len(ids):
        raise InvalidInput(
            f"{len(ids) - len(set(ids))} ids of {where} occur more than once; give each record its "
            "own, or name the column as group to keep records together"
        )


def to_tables(
    parts: Sequence[Part], *, classes: Sequence[str] | None
) -> tuple[list[Table], tuple[str, ...]]:
    """Return tables that agree on classes and on the shape of a record, and the class names."""
    first = parts[0]
    for part in parts:
        check_features(
            part.features,
            where=part.where,
            columns=part.columns,
            missing=part.columns is not None,
        )
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
        require_unique(part.ids or (), where=part.where)
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
