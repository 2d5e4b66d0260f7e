"""A directory for one task on one machine: nobody else's, and gone when the task is.

It goes when the task ends; when the process that made it is killed, a small process that outlives
it (the warden) ends the worker and removes it; and should even that be killed, whoever sweeps
next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from pate.errors import PateError

VARIABLE = "PATE_TASK_FOLDER"  # where on this machine; else the usual place for temporary files
PREFIX = "pate-task-"
NAME = rf"{PREFIX}[0-9a-f]{{16}}"
ATTEMPTS = 20  # at a directory of one's own, before a sweeper takes it for a dead one's


class TaskFolderError(PateError):
    """There is no room for a task on this machine."""


def home() -> Path:
    """The folder below which tasks have theirs."""
    return Path(os.environ.get(VARIABLE) or tempfile.gettempdir()).absolute()


def is_ours(folder: Path, name: str = NAME) -> bool:
    """Whether a task of this user made it, by its name: nothing else is ever removed.

    >>> is_ours(Path(".")), is_ours(Path("/tmp")), is_ours(Path("/tmp/pate-task-force"))
    (False, False, False)
    """
    if not folder.is_absolute() or not re.fullmatch(name, folder.name):
        return False
    try:
        about = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()


@contextlib.contextmanager
def task_folder() -> Iterator[Path]:
    """A new directory, locked while it is in use.

    Guarantees:
        Only its owner can read it, and at the end it is removed with all that is in it.
    """
    folder, handle = locked(_new)
    try:
        yield folder
    finally:
        remove(folder)
        os.close(handle)


def _new() -> Path:
    folder = home() / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        raise TaskFolderError(
            f"a worker's folder for tasks, {home()}, does not exist; make it on that machine, or "
            f"set {VARIABLE} there to one that does"
        ) from None
    return folder


def locked(new: Callable[[], Path], name: str = NAME) -> tuple[Path, int]:
    """A new directory, and what holds its lock; nothing is in it before."""
    for _ in range(ATTEMPTS):
        try:
            folder = new()
        except OSError as error:
            raise cannot_use(error) from None
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # somebody swept before it was locked
            continue
        except OSError as error:
            remove(folder, name)
            raise cannot_use(error) from None
        fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.exists():
            return folder, handle
        os.close(handle)
    raise cannot_use(OSError(errno.EAGAIN, "swept"))


def cannot_use(error: OSError) -> TaskFolderError:
    """What is wrong with the folder of tasks here, and what can be done about it."""
    why = os.strerror(error.errno).lower() if error.errno else "not all was written"
    return TaskFolderError(
        f"a worker cannot write the files of its task to {home()}: {why}; "
        f"make room there, or set {VARIABLE} on that machine to a folder that has some"
    )


def remove(folder: Path, name: str = NAME) -> None:
    """Removes a task's directory, whatever the modes of what is in it.

    Guarantees:
        Nothing else is touched, whatever it is called with, nor anything a link leads to.
    """
    for _ in range(2):
        if not is_ours(folder, name):
            return
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for place, _names, _files in os.walk(folder):  # into no link
                os.chmod(place, 0o700)


def sweep(place: Path | None = None, name: str = NAME) -> int:
    """Removes what killed tasks of this user left on this machine; how many are in use."""
    found = [folder for folder in (place or home()).glob("pate-*") if is_ours(folder, name)]
    return sum(not _swept(folder, name) for folder in found)


def _swept(folder: Path, name: str) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return not folder.exists()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder, name)
    except OSError:  # in use
        return False
    finally:
        os.close(handle)
    return not folder.exists()


# It leaves the family of whoever started it, reads what it has to watch, and acts when the other
# end of its input is closed, which the system does for the dead.
_WARDEN = """
import os, re, shutil, signal, stat, sys, time
if os.fork():
    os._exit(0)
os.setsid()
worker, born, folder = 0, "", ""
for line in sys.stdin:
    if not line.endswith("\\n"):
        break  # cut off: it could name anything
    kind, *values = line.split()
    if kind == "worker":
        worker, born = int(values[0]), values[1]
    else:
        folder = os.fsdecode(bytes.fromhex("".join(values)))

def ended():
    try:
        with open(f"/proc/{worker}/stat") as file:
            if file.read().rpartition(")")[2].split()[19] != born:
                return True  # the number was given to another process meanwhile
    except OSError:
        pass
    try:
        if worker > 1:
            os.killpg(worker, signal.SIGKILL)
        return worker <= 1
    except OSError:
        return True

def removed():
    if not os.path.isabs(folder) or not re.fullmatch(sys.argv[1], os.path.basename(folder)):
        return True
    try:
        about = os.lstat(folder)
    except OSError:
        return True
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)

for _ in range(250):
    if all([ended(), removed()]):
        break
    time.sleep(0.02)
"""


@final
class Warden:
    """Ends the worker and removes the task's directory should this process be killed.

    Guarantees:
        It ends no process but the one it was told of, with its group, and removes no folder that
        has not the name of a task's.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WARDEN, NAME],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        self._process.wait()  # what stays is its child, in a session of its own

    def watch_worker(self, pid: int) -> None:
        """Says which process works, with a group of its own; 0 for none."""
        self._tell(f"worker {pid} {_born(pid)}")

    def watch_folder(self, folder: Path | None) -> None:
        """Says where it works; None when that is removed."""
        self._tell(f"folder {'' if folder is None else os.fsencode(folder).hex()}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()


def _born(pid: int) -> str:
    """When a process began, as the system counts: a number may be given to another later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # no such process, or no such folder on this system
        return "-"
