"""Readers of the user's own files: CSV, Parquet, ``.npz`` and ``.npy`` files, and image folders.

Nothing is ever unpickled, and unused columns are not kept. Images are in one sub-folder for each
class; pixels become float32 in [0, 1].
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.columns import CellReader, Cells, array_cells
from pate.datasets.parts import Part, Wanted, missing_column, to_names, to_numbers
from pate.errors import InvalidInput
from pate.recipes.read import printable


def read(path: Path, wanted: Wanted) -> Part:
    """Read the records of one file or image folder."""
    if path.is_dir():
        return read_images(path, wanted)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(
            f"{path} has a format that cannot be read; give {', '.join(_READERS)} "
            "or a folder of images"
        )
    if not path.is_file():
        raise InvalidInput(f"there is no file at {path}")
    return reader(path, wanted)


@contextlib.contextmanager
def _readable(problem: str) -> Iterator[None]:
    """Report any error of a reading library as this problem: their messages may quote values."""
    try:
        yield
    except (InvalidInput, MemoryError):
        raise
    except Exception as error:
        raise InvalidInput(problem) from error


# --- tables ---------------------------------------------------------------------------------------


def read_csv(path: Path, wanted: Wanted) -> Part:
    """Read a CSV or TSV file in UTF-8 whose first line names the columns."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            features, roles = _choose(header, wanted, path=path)
            cells = [(header.index(name), CellReader()) for name in features]
            texts: dict[str, list[str]] = {role: [] for role in roles}
            for row in reader:
                if not row:
                    continue  # a blank line
                if len(row) != len(header):
                    raise InvalidInput(
                        f"line {reader.line_num} of {path} has {len(row)} values for "
                        f"{len(header)} columns; make them agree"
                    )
                for at, column in cells:
                    column.add(row[at])
                for role, written in texts.items():
                    written.append(row[header.index(roles[role])])
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text; save it as UTF-8") from error
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a readable CSV file ({error})") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    found = {role: _objects(written) for role, written in texts.items()}
    table = [column.cells() for _, column in cells]
    part = _table_part(path, wanted, table, found, features=features, roles=roles)
    return replace(part, unused=_unused(header, features, roles))


def read_parquet(path: Path, wanted: Wanted) -> Part:
    """Read a Parquet file; needs pyarrow."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InvalidInput(f"reading {path} needs pyarrow; run pip install pyarrow") from error
    with (
        _readable(f"{path} is not a readable Parquet file"),
        parquet.ParquetFile(path) as file,
    ):
        names = file.schema_arrow.names
        features, roles = _choose(names, wanted, path=path)
        table = file.read(columns=[*features, *roles.values()])
    cells = []
    for name in features:
        cells.append(array_cells(_column(table, name, path), name=name, where=str(path)))
    found = {role: _column(table, name, path) for role, name in roles.items()}
    part = _table_part(path, wanted, cells, found, features=features, roles=roles)
    return replace(part, unused=_unused(names, features, roles))


def _column(table: Any, name: str, path: Path) -> NDArray[Any]:
    """Return a column of Parquet: numbers as numbers, anything else as Python objects.

    Guarantees:
        pyarrow's message about a value that Python cannot represent (a nanosecond, an unknown time
        zone, text that is not UTF-8) quotes it, and is not passed on.
    """
    types = importlib.import_module("pyarrow.types")
    column = table.column(name)
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
        f"column {name!r} of {path} is of type {kind} and holds a value that cannot be read; "
        "turn it into numbers or text, or leave the column out"
    )


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return an array of objects: of strings, numpy would make each as wide as the longest."""
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _choose(
    header: Sequence[str], wanted: Wanted, *, path: Path
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the feature columns, and those of label, id and group that exist, by their role."""
    _check_header(header, path)
    where, present = str(path), list(header)
    if wanted.needs_label and wanted.label is None:
        raise InvalidInput(f"label is not set; name the label column of {path}")
    keys = {"label": wanted.label, "id": wanted.id, "group": wanted.group}
    for role, column in keys.items():
        required = wanted.needs_label if role == "label" else wanted.needs_keys
        if column is not None and column not in present and required:
            raise missing_column(column, role=f"{role} column", where=where, present=present)
    used = set(keys.values())
    names = wanted.features or tuple(name for name in present if name not in used)
    if not names:
        raise InvalidInput(f"{path} has no feature column beside its label, id and group")
    for name in names:
        if name not in present:
            raise missing_column(name, role="feature column", where=where, present=present)
    return names, {role: column for role, column in keys.items() if column and column in present}


def _unused(
    header: Sequence[str], features: Sequence[str], roles: Mapping[str, str]
) -> tuple[str, ...]:
    return tuple(name for name in header if name not in (*features, *roles.values()))


def _check_header(header: Sequence[str], path: Path) -> None:
    if not header:
        raise InvalidInput(f"{path} is empty; its first line must name the columns")
    if len(set(header)) < len(header):
        raise InvalidInput(f"{path} has two columns of one name; give each its own name")
    if "" in header:
        raise InvalidInput(
            f"column {header.index('') + 1} of {path} has no name; name every column"
        )
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise InvalidInput(
            f"{path} has one column, {printable(header[0], longest=60)!r}; separate columns by "
            "commas, or by tabs in a .tsv file"
        )
    if all(map(_is_number, header)):
        raise InvalidInput(f"the first line of {path} holds numbers; it must name the columns")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _table_part(
    path: Path,
    wanted: Wanted,
    cells: Sequence[Cells],
    found: Mapping[str, NDArray[Any]],
    *,
    features: tuple[str, ...],
    roles: Mapping[str, str],
) -> Part:
    labels = found.get("label")
    optional = labels is not None and not wanted.needs_label and labels.dtype.kind == "O"
    if optional and all(str(label).strip() in ("", "None") for label in found["label"]):
        labels = None  # a public file may keep the column and leave it empty
    ids, groups = (
        to_names(found[role], where=str(path), what=f"{role} column {roles[role]!r}")
        if role in found
        else None
        for role in ("id", "group")
    )
    return Part.of_cells(
        cells, where=str(path), labels=labels, ids=ids, groups=groups, columns=features
    )


# --- arrays ---------------------------------------------------------------------------------------


def read_npz(path: Path, wanted: Wanted) -> Part:
    """Read arrays by key: features "X" and labels "y" unless the recipe names others."""
    if wanted.features is not None and len(wanted.features) != 1:
        raise InvalidInput(
            f"features names {len(wanted.features)} arrays and {path} is a .npz file; "
            "name the one array that holds the features"
        )
    where = str(path)
    opened = _open_arrays(path)
    if isinstance(opened, np.ndarray):
        raise InvalidInput(f"{path} is not a .npz file; save it with numpy.savez")
    with opened as file:

        def member(key: str | None, role: str, *, required: bool) -> NDArray[Any] | None:
            if key in file:
                with _readable(_not_arrays(path)):
                    return np.asarray(file[key])
            if key is not None and required:
                raise missing_column(key, role=role, where=where, present=list(file))
            return None

        def names(key: str | None, role: str) -> tuple[str, ...] | None:
            found = member(key, f"{role} array", required=wanted.needs_keys)
            return None if found is None else to_names(found, where=where, what=f"{role} {key!r}")

        key = wanted.features[0] if wanted.features else "X"
        features = member(key, "array of features", required=True)
        labels = member(wanted.label or "y", "array of labels", required=wanted.needs_label)
        return Part(
            where=where,
            features=to_numbers(features, where=where),
            labels=labels,
            ids=names(wanted.id, "id"),
            groups=names(wanted.group, "group"),
        )


def read_npy(path: Path, wanted: Wanted) -> Part:
    """Read features alone: for public inputs, which need no labels."""
    if wanted.needs_label:
        raise InvalidInput(
            f"{path} holds features and no labels; save both in a .npz, CSV or Parquet file"
        )
    found = _open_arrays(path)
    if not isinstance(found, np.ndarray):
        found.close()
        raise InvalidInput(f"{path} holds several arrays; call it .npz")
    return Part(where=str(path), features=to_numbers(found, where=str(path)), labels=None)


def _open_arrays(path: Path) -> Any:
    with _readable(_not_arrays(path)):
        with path.open("rb") as stream:  # numpy leaves a damaged archive open
            if stream.read(2) == b"PK":
                zipfile.ZipFile(stream).close()
        return np.load(path, allow_pickle=False)


def _not_arrays(path: Path) -> str:
    return (
        f"{path} is not a readable file of arrays (pickled objects and damaged files are refused); "
        "save it again with numpy.savez"
    )


# --- images ---------------------------------------------------------------------------------------

_KINDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_GREY = {"1", "L", "I;16"}


def read_images(path: Path, wanted: Wanted) -> Part:
    """Read the images below ``path``, identified by their relative paths.

    Without sub-folders the images have no labels, which suits public inputs only.
    """
    for option in ("label", "id", "group", "features"):
        if getattr(wanted, option) is not None and wanted.needs_label:
            raise InvalidInput(
                f"{option} names a column and {path} is a folder of images; remove it"
            )
    files = _list_images(path)
    if not files:
        raise InvalidInput(f"{path} holds no images; put them in one sub-folder for each class")
    places = [file.relative_to(path) for file in files]
    labelled = all(len(place.parts) > 1 for place in places)
    if wanted.needs_label and not labelled:
        raise InvalidInput(
            f"{path} has images outside any class folder; give every class its own sub-folder"
        )
    colour = has_colour(path) if wanted.colour is None else wanted.colour
    first = _pixels(files[0], size=wanted.image_size, colour=colour)
    features = np.empty((len(files), *first.shape), dtype=np.float32)
    for row, file in enumerate(files):
        pixels = _pixels(file, size=wanted.image_size, colour=colour)
        if pixels.shape != first.shape:
            raise InvalidInput(
                f"{file} is {pixels.shape[1]}×{pixels.shape[0]} pixels and others are "
                f"{first.shape[1]}×{first.shape[0]}; set image_size"
            )
        features[row] = pixels
    return Part(
        where=str(path),
        features=features,
        labels=np.array([place.parts[0] for place in places]) if labelled else None,
        ids=tuple(place.as_posix() for place in places),
    )


def has_colour(path: Path) -> bool:
    """Return whether any image below ``path`` has colour; reads headers only."""
    return any(_mode(file) not in _GREY for file in _list_images(path))


def _list_images(path: Path) -> list[Path]:
    """Return every image below ``path``, sorted; other files and hidden ones are ignored."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in _KINDS
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


@contextlib.contextmanager
def _image(file: Path) -> Iterator[Any]:
    from PIL import Image

    with (
        _readable(f"{file} is not a readable image; replace or remove it"),
        Image.open(file) as image,
    ):
        yield image


def _mode(file: Path) -> str:
    with _image(file) as image:
        return str(image.mode)


def _pixels(file: Path, *, size: int | None, colour: bool) -> NDArray[Any]:
    from PIL import Image

    with _image(file) as image:
        if image.mode == "I;16" and not colour:  # 16 bits of grey: "L" would clip them
            picture = Image.fromarray(np.asarray(image, dtype=np.float32) / 65535)
        else:
            picture = image.convert("RGB" if colour else "L")
        if size is not None:
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.float32)
        return pixels if picture.mode == "F" else pixels / np.float32(255)


_READERS = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}
