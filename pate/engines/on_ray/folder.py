"""A directory for one task on one machine: nobody else's, and gone when the task is.

It goes when the task ends; when the process that made it is killed, a small process that outlives
it (the warden) ends the worker and removes it; and should even that be killed, whoever sweeps
next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import final

from pate.errors import PateError

VARIABLE = "PATE_TASK_FOLDER"  # where on this machine; else the usual place for temporary files
PREFIX = "pate-task-"
DRAFT_SECONDS = 3600.0  # a directory takes its name at once; one that has none for so long is dead


class TaskFolderError(PateError):
    """There is no room for a task on this machine."""


def home() -> Path:
    """The folder below which tasks have theirs."""
    return Path(os.environ.get(VARIABLE) or tempfile.gettempdir())


@contextlib.contextmanager
def task_folder() -> Iterator[Path]:
    """A new directory, locked while it is in use.

    Guarantees:
        Only its owner can read it, and at the end it is removed with all that is in it.
    """
    name = f"{PREFIX}{secrets.token_hex(8)}"
    working, folder = home() / f".{name}", home() / name
    try:
        home().mkdir(parents=True, exist_ok=True)
        working.mkdir(mode=0o700)
        handle = os.open(working, os.O_RDONLY)
    except OSError as error:
        raise cannot_use(error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        working.rename(folder)  # only now: who sees it unlocked under this name may remove it
        yield folder
    finally:
        for path in (working, folder):
            remove(path)
        os.close(handle)


def cannot_use(error: OSError) -> TaskFolderError:
    """What is wrong with the folder of tasks here, and what can be done about it."""
    why = os.strerror(error.errno).lower() if error.errno else "not all was written"
    return TaskFolderError(
        f"a worker cannot write the files of its task to {home()}: {why}; "
        f"make room there, or set {VARIABLE} on that machine to a folder that has some"
    )


def remove(folder: Path) -> None:
    """Removes a directory, whatever the modes of what is in it."""
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        with contextlib.suppress(OSError):
            for place, _names, _files in os.walk(folder):
                os.chmod(place, 0o700)


def sweep() -> int:
    """Removes what killed tasks of this user left on this machine; how many are left."""
    left = 0
    for folder in home().glob(f"{PREFIX}*"):
        left += not _swept(folder)
    for draft in home().glob(f".{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > DRAFT_SECONDS:
                _swept(draft)
    return left


def _swept(folder: Path) -> bool:
    try:
        if folder.stat().st_uid != os.getuid():
            return True
        handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return not folder.exists()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder)
    except OSError:  # in use
        return False
    finally:
        os.close(handle)
    return not folder.exists()


# It leaves the family of whoever started it, reads what it has to watch, and acts when the other
# end of its input is closed, which the system does for the dead.
_WARDEN = """
import os, shutil, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
worker, folder = 0, b""
for line in sys.stdin:
    kind, _, value = line.rstrip("\\n").partition(" ")
    if kind == "worker":
        worker = int(value)
    else:
        folder = bytes.fromhex(value)
try:
    for _ in range(250 if worker else 0):
        os.killpg(worker, signal.SIGKILL)
        time.sleep(0.02)
except OSError:
    pass
for _ in range(100):
    if not folder or not os.path.lexists(folder):
        break
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.02)
"""


@final
class Warden:
    """Ends the worker and removes the task's directory should this process be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WARDEN],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        self._process.wait()  # what stays is its child, in a session of its own

    def watch_worker(self, pid: int) -> None:
        """Says which process works, with a group of its own; 0 for none."""
        self._tell(f"worker {pid}")

    def watch_folder(self, folder: Path | None) -> None:
        """Says where it works; None when that is removed."""
        self._tell(f"folder {'' if folder is None else os.fsencode(folder).hex()}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
