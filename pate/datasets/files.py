"""Readers of the user's own files, chosen by suffix; ``.npz`` and ``.npy`` files and image folders.

Nothing is ever unpickled. Images are in one sub-folder for each class; pixels become float32 in
[0, 1].
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.parts import Part, Wanted, missing_column, to_names, to_numbers
from pate.datasets.tabular import read_csv, read_parquet
from pate.errors import InvalidInput


def read_npz(path: Path, wanted: Wanted) -> Part:
    """Read arrays by key: features "X" and labels "y" unless the recipe names others."""
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
    """Read features alone: for public inputs, which need no labels."""
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
    except Exception as error:  # zipfile, numpy and the system each have their own errors
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


_KINDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_GREY = {"1", "L", "I;16"}


def read_images(path: Path, wanted: Wanted) -> Part:
    """Read the images below ``path``, identified by their relative paths.

    Without sub-folders the images have no labels, which suits public inputs only.
    """
    files = list_images(path)
    if not files:
        raise InvalidInput(f"{path} holds no images; put them in one sub-folder for each class")
    labelled = all(len(file.relative_to(path).parts) > 1 for file in files)
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
    places = [file.relative_to(path) for file in files]
    return Part(
        where=str(path),
        features=features,
        labels=np.array([place.parts[0] for place in places]) if labelled else None,
        ids=tuple(place.as_posix() for place in places),
    )


def list_images(path: Path) -> list[Path]:
    """Return every image below ``path``, sorted; other files and hidden ones are ignored."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in _KINDS
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


def has_colour(path: Path) -> bool:
    """Return whether any image below ``path`` has colour; reads headers only."""
    return any(_mode(file) not in _GREY for file in list_images(path))


def _mode(file: Path) -> str:
    from PIL import Image

    try:
        with Image.open(file) as image:
            return str(image.mode)
    except MemoryError:
        raise
    except Exception as error:
        raise _not_an_image(file) from error


def _pixels(file: Path, *, size: int | None, colour: bool) -> NDArray[Any]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            if image.mode == "I;16" and not colour:  # 16 bits of grey: "L" would clip them
                deep = np.asarray(image, dtype=np.float32) / 65535
                picture = Image.fromarray(deep)
            else:
                picture = image.convert("RGB" if colour else "L")
            if size is not None:
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, dtype=np.float32)
            return pixels if picture.mode == "F" else pixels / np.float32(255)
    except MemoryError:
        raise
    except Exception as error:  # PIL raises many kinds for a damaged file
        raise _not_an_image(file) from error


def _not_an_image(file: Path) -> InvalidInput:
    return InvalidInput(f"{file} is not a readable image; replace or remove it")


_READERS = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}


def read(path: Path, wanted: Wanted) -> Part:
    """Read the records of one file or image folder."""
    if path.is_dir():
        _refuse_columns(path, wanted)
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


def locate(name: str, root: Path) -> Path:
    """Return a path as given; if nothing exists there, the path below the data root."""
    path = Path(name).expanduser()
    return root / path if not path.exists() and (root / path).exists() else path


def _refuse_columns(path: Path, wanted: Wanted) -> None:
    for option, value in (
        ("label", wanted.label),
        ("id", wanted.id),
        ("group", wanted.group),
        ("features", wanted.features),
    ):
        if value is not None and wanted.needs_label:
            raise InvalidInput(
                f"{option} names a column and {path} is a folder of images; remove it"
            )
