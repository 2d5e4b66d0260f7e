"""Image folders: one sub-folder for each class; pixels become float32 in [0, 1]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.datasets.part import Part, Wanted
from pate.errors import InvalidInput

_KINDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
_GREY = {"1", "L", "I;16"}


def read_images(path: Path, wanted: Wanted) -> Part:
    """The images below ``path``, named by their place in it.

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
    """Every image below ``path``, in a fixed order; other files and hidden ones are passed over."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in _KINDS
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


def has_colour(path: Path) -> bool:
    """Whether any image below ``path`` is more than grey; reads headers only."""
    return any(_mode(file) not in _GREY for file in list_images(path))


def _mode(file: Path) -> str:
    from PIL import Image

    try:
        with Image.open(file) as image:
            return str(image.mode)
    except MemoryError:
        raise
    except Exception as error:
        raise _unreadable(file) from error


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
        raise _unreadable(file) from error


def _unreadable(file: Path) -> InvalidInput:
    return InvalidInput(f"{file} is not a readable image; replace or remove it")
