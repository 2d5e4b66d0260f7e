"""The layout of the user's own files, for a recipe to start from: no value of a feature.

Read are the names and kinds of columns, labels, people and the number of records. All of it is for
the owner; what of it enters a recipe is public from then on.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.files import _choose, _image, _list_images, _open_arrays, _readable
from pate.datasets.parts import Wanted, missing_column, require_unique
from pate.errors import InvalidInput

_MOST_TEXTS = 50  # of a column that a recipe to start from takes as categories


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preview:
    """The layout of one file or image folder. PRIVATE, if its records are."""

    records: int
    labels: NDArray[Any] | None = None  # as written
    people: int | None = None  # different groups
    columns: tuple[str, ...] = ()  # of features, where they have names
    gaps: tuple[str, ...] = ()  # columns of numbers of which some are missing
    text: tuple[str, ...] = ()  # columns of a few texts, to be taken as categories
    unusable: tuple[str, ...] = ()  # columns that are empty, or hold texts of many kinds
    features: str | None = None  # the array of the features, where it is not X
    sides: tuple[int, int] | None = None  # smallest and largest side of an image
    files: bool = False  # images are files, which can be resized

    @property
    def resized(self) -> bool:
        """Whether images have to be, or had better be, of another size."""
        smallest, largest = self.sides or (0, 0)
        return self.files and (smallest < largest or largest > 64)

    @property
    def wavelets(self) -> bool:
        """Whether the inputs are images that are large enough for a scattering transform."""
        smallest, largest = self.sides or (0, 0)
        return self.resized or 16 <= smallest == largest


def preview(path: Path, wanted: Wanted, *, kinds: bool = True) -> Preview:
    """Return the layout of a CSV or .npz file, or of an image folder.

    Without ``kinds`` no cell of a feature is looked at.
    """
    if path.is_dir():
        return _images(path, wanted)
    if not path.is_file():
        raise InvalidInput(f"there is no file at {path}")
    return _npz(path, wanted) if path.suffix.lower() == ".npz" else _csv(path, wanted, kinds=kinds)


def _csv(path: Path, wanted: Wanted, *, kinds: bool) -> Preview:
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise InvalidInput(f"{path} is not a .csv or .tsv file; save the table as CSV")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with (
        _readable(f"{path} is not a readable CSV file in UTF-8"),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        reader = csv.reader(file, delimiter=delimiter)
        header = [name.strip() for name in next(reader, [])]
        features, roles = _choose(header, wanted, path=path)
        records, kinds_of = 0, {name: set[str]() for name in features}
        texts = {name: set[str]() for name in features}
        found: dict[str, list[str]] = {role: [] for role in roles}
        for row in filter(None, reader):
            records += 1
            cells = dict(zip(header, row, strict=True))
            for role, column in roles.items():
                found[role].append(cells[column])
            for name in features if kinds else ():
                kinds_of[name].add(kind := _kind(cells[name]))
                if kind != "gap" and len(texts[name]) <= _MOST_TEXTS:
                    texts[name].add(cells[name].strip())
    require_unique([each.strip() for each in found.get("id", ())], where=str(path))
    people = {name.strip() for name in found["group"]} if "group" in found else None
    return Preview(
        records=records,
        labels=np.array(found["label"], dtype=object) if "label" in found else None,
        people=None if people is None else len(people),
        columns=features,
        text=tuple(n for n in features if "text" in kinds_of[n] and len(texts[n]) <= _MOST_TEXTS),
        gaps=tuple(name for name in features if kinds_of[name] == {"gap", "number"}),
        unusable=tuple(
            name
            for name in features
            if kinds_of[name] == {"gap"}
            or ("text" in kinds_of[name] and len(texts[name]) > _MOST_TEXTS)
        ),
    )


def _kind(cell: str) -> str:
    """Return the kind of a cell.

    >>> [_kind(cell) for cell in ("1.5", " ", "nan", "f")]
    ['number', 'gap', 'gap', 'text']
    """
    try:
        return "number" if math.isfinite(float(cell)) else "gap"
    except ValueError:
        return "text" if cell.strip() else "gap"


def _npz(path: Path, wanted: Wanted) -> Preview:
    opened = _open_arrays(path)
    if isinstance(opened, np.ndarray):
        raise InvalidInput(f"{path} is not a .npz file; save it with numpy.savez")
    with opened as file, _readable(f"{path} is not a readable file of arrays"):
        keys = {"label": wanted.label or "y", "id": wanted.id, "group": wanted.group}
        for role, key in keys.items():
            needed = wanted.needs_label if role == "label" else wanted.needs_keys
            if key is not None and key not in file and needed:
                raise missing_column(key, role=f"{role} array", where=str(path), present=list(file))
        rest = [key for key in file if key not in keys.values()]
        if "X" not in rest and len(rest) != 1:
            raise missing_column("X", role="array of features", where=str(path), present=rest)
        features = "X" if "X" in rest else rest[0]
        shape = _shape(file, features)
        labels = np.asarray(file[keys["label"]]) if keys["label"] in file else None
        if keys["id"] in file:
            require_unique(np.asarray(file[keys["id"]]).tolist(), where=str(path))
        groups = keys["group"]
        people = None if groups is None or groups not in file else len(np.unique(file[groups]))
    return Preview(
        records=shape[0] if shape else 0,
        labels=labels,
        people=people,
        features=None if features == "X" else features,
        sides=(min(shape[1:3]), max(shape[1:3])) if len(shape) > 2 else None,
    )


def _shape(file: Any, key: str) -> tuple[int, ...]:
    """Return the shape of an array in an archive; only its header is read."""
    with file.zip.open(f"{key}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        header = "read_array_header_1_0" if version == (1, 0) else "read_array_header_2_0"
        shape: tuple[int, ...] = getattr(np.lib.format, header)(stream)[0]
        return shape


def _images(path: Path, wanted: Wanted) -> Preview:
    files = _list_images(path)
    if not files:
        raise InvalidInput(f"{path} holds no images; put them in one sub-folder for each class")
    places = [file.relative_to(path).parts for file in files]
    labelled = all(len(parts) > 1 for parts in places)
    if wanted.needs_label and not labelled:
        raise InvalidInput(
            f"{path} has images outside any class folder; give every class its own sub-folder"
        )
    sides: set[int] = set()
    for file in files:
        with _image(file) as image:
            sides |= set(image.size)
    return Preview(
        records=len(files),
        labels=np.array([parts[0] for parts in places]) if labelled else None,
        sides=(min(sides), max(sides)),
        files=True,
    )


def preview_three(paths: Sequence[Path], wanted: Wanted) -> list[Preview]:
    """Return the layouts of private, public and test records; public ones show kinds of columns."""
    others = replace(wanted, needs_keys=False)
    return [
        preview(paths[0], wanted, kinds=False),
        preview(paths[1], replace(others, needs_label=False)),
        preview(paths[2], others, kinds=False),
    ]
