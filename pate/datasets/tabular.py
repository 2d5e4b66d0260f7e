"""Readers of CSV and Parquet files: columns by name; unused columns are not kept."""

from __future__ import annotations

import csv
import importlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.parts import Part, Wanted, missing_column, to_names, to_numbers
from pate.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The columns of a file that are used: the features, and others by their role."""

    features: tuple[str, ...]
    roles: Mapping[str, str]  # of label, id and group those that exist


def read_csv(path: Path, wanted: Wanted) -> Part:
    """Read a CSV or TSV file in UTF-8 whose first line names the columns."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            chosen = _choose(header, wanted, path=path)
            numbers = [(header.index(name), name, array("d")) for name in chosen.features]
            texts: dict[str, list[str]] = {role: [] for role in chosen.roles}
            for row in _rows(reader, len(header), path):
                for at, name, values in numbers:
                    values.append(_number(row[at], name=name, where=str(path)))
                for role, cells in texts.items():
                    cells.append(row[header.index(chosen.roles[role])])
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text; save it as UTF-8") from error
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a readable CSV file ({error})") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    features = np.empty((len(numbers[0][2]), len(numbers)), dtype=np.float64)
    for place, (_, _, values) in enumerate(numbers):
        features[:, place] = values
    found = {role: _objects(cells) for role, cells in texts.items()}
    return _part(chosen, features, found, wanted, where=str(path))


def _rows(reader: Any, columns: int, path: Path) -> Iterator[list[str]]:
    for row in reader:
        if not row:
            continue  # a blank line
        if len(row) != columns:
            raise InvalidInput(
                f"line {reader.line_num} of {path} has {len(row)} values for "
                f"{columns} columns; make them agree"
            )
        yield row


def read_parquet(path: Path, wanted: Wanted) -> Part:
    """Read a Parquet file; needs pyarrow."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InvalidInput(f"reading {path} needs pyarrow; run pip install pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            chosen = _choose(file.schema_arrow.names, wanted, path=path)
            table = file.read(columns=[*chosen.features, *chosen.roles.values()])
    except (InvalidInput, MemoryError):
        raise
    except Exception as error:  # pyarrow's own, or the system's
        raise InvalidInput(f"{path} is not a readable Parquet file") from error
    features = np.empty((table.num_rows, len(chosen.features)), dtype=np.float64)
    for place, name in enumerate(chosen.features):
        values = _values(table.column(name), name=name, where=str(path))
        features[:, place] = _numbers(values, name=name, where=str(path))
    found = {
        role: _values(table.column(name), name=name, where=str(path))
        for role, name in chosen.roles.items()
    }
    return _part(chosen, features, found, wanted, where=str(path))


def _values(column: Any, *, name: str, where: str) -> NDArray[Any]:
    """Return a column of Parquet: numbers as numbers, anything else as Python objects.

    Guarantees:
        pyarrow's message about a value that Python cannot represent (a nanosecond, an unknown time
        zone, text that is not UTF-8) quotes it, and is not passed on.
    """
    types = importlib.import_module("pyarrow.types")
    kind = column.type
    try:
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        if plain and not column.null_count:
            return np.asarray(column.to_numpy())
        if not types.is_nested(kind):
            return _objects(column.to_pylist())
    except MemoryError:
        raise
    except Exception:
        pass
    raise InvalidInput(
        f"column {name!r} of {where} is of type {kind} and holds a value that cannot be read; "
        "turn it into numbers or text, or leave the column out"
    )


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return an array of objects: of strings, numpy would make each as wide as the longest."""
    made = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        made[place] = value
    return made


def _check_header(header: Sequence[str], path: Path) -> None:
    if not header:
        raise InvalidInput(f"{path} is empty; its first line must name the columns")
    if len(set(header)) < len(header):
        raise InvalidInput(f"{path} has two columns of one name; give each its own name")
    if "" in header:
        raise InvalidInput(
            f"column {header.index('') + 1} of {path} has no name; name every column"
        )
    if all(_is_number(name) for name in header):
        raise InvalidInput(f"the first line of {path} holds numbers; it must name the columns")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _choose(header: Sequence[str], wanted: Wanted, *, path: Path) -> _Chosen:
    """Return the columns to use, by their names alone."""
    _check_header(header, path)
    where, present = str(path), list(header)
    if wanted.needs_label and wanted.label is None:
        raise InvalidInput(f"label is not set; name the label column of {path}")
    required = {"label": wanted.needs_label, "id": wanted.needs_keys, "group": wanted.needs_keys}
    keys = {"label": wanted.label, "id": wanted.id, "group": wanted.group}
    for role, column in keys.items():
        if column is not None and column not in present and required[role]:
            raise missing_column(column, role=f"{role} column", where=where, present=present)
    used = set(keys.values())
    names = wanted.features or tuple(name for name in present if name not in used)
    if not names:
        raise InvalidInput(f"{path} has no feature column beside its label, id and group")
    for name in names:
        if name not in present:
            raise missing_column(name, role="feature column", where=where, present=present)
    roles = {role: column for role, column in keys.items() if column and column in present}
    return _Chosen(features=tuple(names), roles=roles)


def _part(
    chosen: _Chosen,
    features: NDArray[np.float64],
    found: Mapping[str, NDArray[Any]],
    wanted: Wanted,
    *,
    where: str,
) -> Part:
    labels = found.get("label")
    if labels is not None and not wanted.needs_label and _all_blank(labels):
        labels = None  # a public file may keep the column and leave it empty
    ids, groups = (
        to_names(found[role], where=where, what=f"{role} column {chosen.roles[role]!r}")
        if role in found
        else None
        for role in ("id", "group")
    )
    return Part(
        where=where,
        features=features,
        labels=labels,
        ids=ids,
        groups=groups,
        columns=chosen.features,
    )


def _numbers(values: NDArray[Any], *, name: str, where: str) -> NDArray[Any]:
    if values.dtype.kind != "O":
        return to_numbers(values, where=where)
    texts: Iterable[Any] = ("" if value is None else value for value in values)
    return np.array([_number(text, name=name, where=where) for text in texts], dtype=np.float64)


def _number(text: Any, *, name: str, where: str) -> float:
    """Return a cell as a number."""
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):  # its message quotes the value: not passed on
        missing = isinstance(text, str) and not text.strip()
    if missing:
        raise InvalidInput(
            f"column {name!r} of {where} has missing values; fill them in or leave the column out"
        )
    raise InvalidInput(
        f"column {name!r} of {where} is not numeric; turn it into numbers, "
        "or name the columns to use in features"
    )


def _all_blank(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "UO" and all(str(v).strip() in ("", "None") for v in labels)
