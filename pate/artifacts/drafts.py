"""Drafts: folders that become artifacts, and what a killed process leaves of them.

A draft is locked by the process that fills it. The lock ends with the process, however it ends; so
a draft that nobody holds is a leftover, and may go.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_PREFIX = ".draft-"
_RANDOM = "[a-z0-9_]" * 8  # as tempfile ends a name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """A folder that becomes an artifact when its ``with`` block ends well."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def save_array(self, name: str, values: NDArray[Any]) -> None:
        np.save(self.path / name, np.ascontiguousarray(values), allow_pickle=False)

    def save_json(self, name: str, value: Any) -> None:
        (self.path / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")

    def new_array(self, name: str, *, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """A memory-mapped array to fill, its space on disk taken at once.

        Without that a full disk would end the process with a signal at some later write.
        """
        file = self.path / name
        mapped: NDArray[Any] = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with file.open("rb+") as stream:
                os.posix_fallocate(stream.fileno(), 0, os.fstat(stream.fileno()).st_size)
        return mapped


def is_draft(folder: Path) -> bool:
    return folder.name.startswith(_PREFIX)


@contextlib.contextmanager
def drafting(parent: Path, *, prefix: str = _PREFIX) -> Iterator[Path]:
    """A fresh folder of mode 0700, held until the block ends; then it is gone, unless renamed."""
    while True:
        working = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = os.open(working, os.O_RDONLY)
        except FileNotFoundError:  # swept away before it was opened
            if not parent.is_dir():
                raise
            continue
        with contextlib.suppress(OSError):  # a file system without locks: leftovers stay
            fcntl.flock(handle, fcntl.LOCK_EX)
        if working.is_dir():
            break
        os.close(handle)  # swept away before it was locked
    try:
        yield working
    finally:
        shutil.rmtree(working, ignore_errors=True)
        os.close(handle)


def write_file(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Writes a file in one step: nobody sees half of it, nor is it ever open to more than ``mode``.

    What a killed process left of an earlier try at the same file is removed.
    """
    prefix = f".{file.name}-"
    sweep(file.parent, drafts=f"{glob.escape(prefix)}{_RANDOM}")
    with drafting(file.parent, prefix=prefix) as folder:
        draft = folder / "draft"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.chmod(mode)
        draft.replace(file)


def sweep_files(folder: Path) -> None:
    """Removes what killed processes left of any file that :func:`write_file` was to write there."""
    sweep(folder, drafts=f".*-{_RANDOM}")


def sweep(root: Path, *, drafts: str = f"*/*/{_PREFIX}*") -> None:
    """Removes the drafts of processes that are gone; those being filled are left alone."""
    for leftover in root.glob(drafts):
        with contextlib.suppress(OSError):
            handle = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(handle)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
