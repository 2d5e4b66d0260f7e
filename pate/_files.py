"""Durable files: atomic writes, exclusive locks, draft folders.

A draft is a folder that its process holds locked while it fills it. The lock ends with the process,
however that ends, so a draft that nobody holds was abandoned and can be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

from pate.errors import InvalidInput, StoreError

DRAFT_PREFIX = ".draft-"
_RANDOM = "[a-z0-9_]" * 8  # as tempfile ends a name


def user_data_folder() -> Path:
    """Return the folder of data sets and ledgers where none is given, as the system has it."""
    return platformdirs.user_data_path("pate", appauthor=False)


def earlier_data_folders() -> tuple[Path, ...]:
    """Return the folders that versions before 0.2 used where none was given."""
    return Path("data"), platformdirs.user_cache_path("pate", appauthor=False)


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def error_reason(error: OSError) -> str:
    """Return the reason of a failed system call, for the end of a sentence.

    >>> error_reason(FileNotFoundError(2, "No such file or directory"))
    'no such file or directory'
    """
    # NumPy reports a short write without an errno.
    return os.strerror(error.errno).lower() if error.errno else "not all of it was written"


def write_new(path: Path, text: str) -> None:
    """Write a file of the user's choice that must not exist."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(f"{path} exists; choose another name") from None
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def write_atomically(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    name: str | None = None,
    make_parents: bool = False,
) -> None:
    """Write a file so that readers see the whole of it, or what was there before.

    The content is on disk before the file takes its name, and the name before this returns. At no
    time is the content open to more than ``mode``, as far as the umask allows that; parents that
    are made are as narrow. An error names the file by ``name``.
    """
    try:
        if make_parents:
            parents = 0o777 if mode & 0o077 else 0o700
            path.parent.mkdir(mode=parents, parents=True, exist_ok=True)
        with _drafted(path, content, mode=mode) as draft:
            draft.replace(path)
        sync(path.parent)
    except OSError as error:
        raise StoreError(
            f"cannot write {name or path}: {error_reason(error)}; nothing was changed"
        ) from error


def create_once(path: Path, content: bytes, *, mode: int = 0o600) -> bool:
    """Create a file atomically unless it exists; of several processes, the first one wins.

    Returns whether this call created it. Raises :class:`OSError` if it cannot be written.
    """
    created = False
    with _drafted(path, content, mode=mode) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)
        created = True
    sync(path.parent)
    return created


@contextlib.contextmanager
def _drafted(path: Path, content: bytes, *, mode: int) -> Iterator[Path]:
    prefix = f".{path.name}-"
    remove_abandoned(path.parent, drafts=f"{glob.escape(prefix)}{_RANDOM}")
    with draft_folder(path.parent, prefix=prefix) as folder:
        draft = folder / "draft"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        yield draft


@contextlib.contextmanager
def exclusive_lock(
    path: Path,
    *,
    busy: Exception | None = None,
    patience: float = 0.0,
    on_wait: Callable[[], object] | None = None,
    mode: int = 0o600,
) -> Iterator[None]:
    """Hold a file, created where it is missing, or a folder against all who lock it.

    The system drops the lock when the process ends, however it ends. If another process holds it,
    raise ``busy`` after so many seconds of ``patience``; without ``busy``, call ``on_wait`` once
    and wait for that process.
    """
    if path.is_dir():
        handle = os.open(path, os.O_RDONLY)
    else:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        deadline = time.monotonic() + patience
        while not _lock_now(handle):
            if busy is None:
                if on_wait is not None:
                    on_wait()
                fcntl.flock(handle, fcntl.LOCK_EX)
                break
            if time.monotonic() >= deadline:
                raise busy
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def shared_lock(folder: Path, *, busy: Exception) -> Iterator[None]:
    """Hold a folder together with others who share it, against :func:`exclusive_lock`.

    If another process holds it for itself, raise ``busy``.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not _lock_now(handle, fcntl.LOCK_SH):
            raise busy
        yield
    finally:
        os.close(handle)


def _lock_now(handle: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def draft_folder(parent: Path, *, prefix: str = DRAFT_PREFIX) -> Iterator[Path]:
    """Create a folder of mode 0700, locked for the block and removed after it unless renamed."""
    while True:
        working = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            handle = os.open(working, os.O_RDONLY)
        except FileNotFoundError:  # taken for an abandoned one before it was opened
            if not parent.is_dir():
                raise
            continue
        with contextlib.suppress(OSError):  # a file system without locks: abandoned drafts stay
            fcntl.flock(handle, fcntl.LOCK_EX)
        if working.is_dir():
            break
        os.close(handle)  # taken for an abandoned one before it was locked
    try:
        yield working
    finally:
        shutil.rmtree(working, ignore_errors=True)
        os.close(handle)


def remove_abandoned(root: Path, *, drafts: str = f"*/*/{DRAFT_PREFIX}*") -> None:
    """Remove the drafts of processes that ended; ``drafts`` is a pattern below ``root``."""
    for leftover in root.glob(drafts):
        with contextlib.suppress(OSError):
            handle = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(handle)


def remove_abandoned_files(folder: Path) -> None:
    """Remove the drafts that killed processes left of any file written atomically in a folder."""
    remove_abandoned(folder, drafts=f".*-{_RANDOM}")
