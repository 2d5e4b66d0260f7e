"""``.npz`` and ``.npy`` files; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.part import Part, Wanted, missing_column, to_names, to_numbers
from pate.errors import InvalidInput


def read_npz(path: Path, wanted: Wanted) -> Part:
    """Arrays by key: features "X" and labels "y" unless the recipe names others."""
    if wanted.features is not None and len(wanted.features) != 1:
        raise InvalidInput(
            f"features names {len(wanted.features)} arrays and {path} is a .npz file; "
            "name the one array that holds the features"
        )
    key = wanted.features[0] if wanted.features else "X"
    label = wanted.label or "y"
    opened = _opened(path)
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise InvalidInput(f"{path} is not a .npz file; save it with numpy.savez")
    with opened as file:
        present = list(file)
        if key not in present:
            raise missing_column(key, role="array of features", where=str(path), present=present)
        if wanted.needs_label and label not in present:
            raise missing_column(label, role="array of labels", where=str(path), present=present)
        names: dict[str, tuple[str, ...] | None] = {}
        for role, column in (("id", wanted.id), ("group", wanted.group)):
            if column is not None and column not in present and wanted.needs_keys:
                raise missing_column(column, role=f"{role} array", where=str(path), present=present)
            names[role] = (
                to_names(_member(file, column, path), where=str(path), what=f"{role} {column!r}")
                if column in present
                else None
            )
        return Part(
            where=str(path),
            features=to_numbers(_member(file, key, path), where=str(path)),
            labels=_member(file, label, path) if label in present else None,
            ids=names["id"],
            groups=names["group"],
        )


def read_npy(path: Path, wanted: Wanted) -> Part:
    """Features alone: for public inputs, which need no labels."""
    if wanted.needs_label:
        raise InvalidInput(
            f"{path} holds features and no labels; save both in a .npz, CSV or Parquet file"
        )
    array = _opened(path)
    if not isinstance(array, np.ndarray):
        array.close()
        raise InvalidInput(f"{path} holds several arrays; call it .npz")
    return Part(where=str(path), features=to_numbers(array, where=str(path)), labels=None)


def _opened(path: Path) -> Any:
    try:
        with path.open("rb") as stream:  # numpy leaves a damaged archive open
            if stream.read(2) == b"PK":
                zipfile.ZipFile(stream).close()
        return np.load(path, allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # zipfile, numpy and the system each have their own
        raise _unreadable(path) from error


def _member(file: Any, key: str | None, path: Path) -> NDArray[Any]:
    try:
        return np.asarray(file[key])
    except MemoryError:
        raise
    except Exception as error:
        raise _unreadable(path) from error


def _unreadable(path: Path) -> InvalidInput:
    return InvalidInput(
        f"{path} is not a readable file of arrays (pickled objects and damaged files are refused); "
        "save it again with numpy.savez"
    )
