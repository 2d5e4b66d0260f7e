"""CSV and Parquet: columns by name."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.part import Part, Wanted, missing_column, to_names, to_numbers
from pate.errors import InvalidInput

Columns = Mapping[str, NDArray[Any]]


def read_csv(path: Path, wanted: Wanted) -> Part:
    """A CSV file (or TSV) whose first line names the columns; UTF-8."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows: list[list[str]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            _check_header(header, path)
            for row in reader:
                if not row:
                    continue  # a blank line
                if len(row) != len(header):
                    raise InvalidInput(
                        f"line {reader.line_num} of {path} has {len(row)} values for "
                        f"{len(header)} columns; make them agree"
                    )
                rows.append(row)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text; save it as UTF-8") from error
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a readable CSV file ({error})") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    columns = {name: np.array([row[at] for row in rows]) for at, name in enumerate(header)}
    return _select(columns, wanted, path=path, records=len(rows))


def read_parquet(path: Path, wanted: Wanted) -> Part:
    """A Parquet file; needs pyarrow."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InvalidInput(f"reading {path} needs pyarrow; run pip install pyarrow") from error
    try:
        table = parquet.ParquetFile(path).read()
    except Exception as error:  # pyarrow's own, or the system's
        raise InvalidInput(f"{path} is not a readable Parquet file") from error
    _check_header(table.column_names, path)
    columns: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        column = table.column(name)
        if column.null_count == len(column) and len(column):
            columns[name] = np.full(len(column), "")
        elif column.null_count and name != wanted.label:
            columns[name] = np.array(["" if v is None else str(v) for v in column.to_pylist()])
        else:
            columns[name] = np.array(column.to_pylist())
    return _select(columns, wanted, path=path, records=int(table.num_rows))


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


def _select(columns: Columns, wanted: Wanted, *, path: Path, records: int) -> Part:
    present = list(columns)
    where = str(path)
    if wanted.needs_label and wanted.label is None:
        raise InvalidInput(f"label is not set; name the label column of {path}")
    required = {"label": wanted.needs_label, "id": wanted.needs_keys, "group": wanted.needs_keys}
    keys = {"label": wanted.label, "id": wanted.id, "group": wanted.group}
    for role, column in keys.items():
        if column is not None and column not in columns and required[role]:
            raise missing_column(column, role=f"{role} column", where=where, present=present)
    used = set(keys.values())
    names = wanted.features or tuple(name for name in present if name not in used)
    if not names:
        raise InvalidInput(f"{path} has no feature column beside its label, id and group")
    for name in names:
        if name not in columns:
            raise missing_column(name, role="feature column", where=where, present=present)
    features = np.empty((records, len(names)), dtype=np.float64)
    for at, name in enumerate(names):
        features[:, at] = _numbers(columns[name], name=name, where=where)
    found = {role: columns[column] for role, column in keys.items() if column and column in columns}
    labels = found.get("label")
    if labels is not None and not wanted.needs_label and _all_blank(labels):
        labels = None  # a public file may keep the column and leave it empty
    ids, groups = (
        to_names(found[role], where=where, what=f"{role} column {keys[role]!r}")
        if role in found
        else None
        for role in ("id", "group")
    )
    return Part(
        where=where, features=features, labels=labels, ids=ids, groups=groups, columns=tuple(names)
    )


def _numbers(values: NDArray[Any], *, name: str, where: str) -> NDArray[Any]:
    if values.dtype.kind in "UO" and any(str(value).strip() == "" for value in values):
        raise InvalidInput(
            f"column {name!r} of {where} has missing values; fill them in or leave the column out"
        )
    if values.dtype.kind == "U":
        try:
            return values.astype(np.float64)
        except ValueError:  # its text quotes the value, so it is not passed on
            raise _not_numeric(name, where) from None
    if values.dtype.kind not in "biuf" or values.ndim != 1:
        raise _not_numeric(name, where)
    return to_numbers(values, where=where)


def _not_numeric(name: str, where: str) -> InvalidInput:
    return InvalidInput(
        f"column {name!r} of {where} is not numeric; turn it into numbers, "
        "or name the columns to use in features"
    )


def _all_blank(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "UO" and all(str(v).strip() in ("", "None") for v in labels)
