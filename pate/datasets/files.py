"""The user's own files: which reader reads which."""

from __future__ import annotations

from pathlib import Path

from pate.datasets.arrays import read_npy, read_npz
from pate.datasets.columns import read_csv, read_parquet
from pate.datasets.images import read_images
from pate.datasets.part import Part, Wanted
from pate.errors import InvalidInput

_READERS = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}


def read(path: Path, wanted: Wanted) -> Part:
    """The records of one file or image folder."""
    if path.is_dir():
        _refuse_columns(path, wanted)
        return read_images(path, wanted)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(
            f"{path} is not of a kind that can be read; give {', '.join(_READERS)} "
            "or a folder of images"
        )
    if not path.is_file():
        raise InvalidInput(f"there is no file at {path}")
    return reader(path, wanted)


def locate(name: str, root: Path) -> Path:
    """A path as given, from the working folder; if nothing is there, below the data root."""
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
