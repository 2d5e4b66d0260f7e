"""A file that is whole, or is the one before."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pate.artifacts import StoreError

OWNER_ONLY = 0o600
FOR_ALL = 0o666  # as far as the user's umask lets it


def write_whole(path: Path, content: bytes, *, what: str, permissions: int = OWNER_ONLY) -> None:
    """Puts a file in the place of the one before, in one step; ``what`` names it in a refusal.

    Guarantees:
        The new file is on disk before it takes the old one's name, and the name is on disk before
        this returns. A crash, or a full disk, leaves the old file as it was.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        folder = 0o700 if permissions == OWNER_ONLY else 0o777
        path.parent.mkdir(mode=folder, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            part.unlink()  # of a process that was killed
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        why = (os.strerror(error.errno) if error.errno else "not all was written").lower()
        raise StoreError(f"cannot write {what}: {why}; the one before is unchanged") from error


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
