"""The part of the Ray engine that runs on a node: a task's folder, its files, and its process.

Ray calls :func:`run_task`. It writes copies of the files that the task reads to a folder of their
own and has the task run by a worker process (:mod:`pate.engines.worker_pool`), as on the other
engines, not inside the Ray worker: so the task's output is discarded at the level of file
descriptors instead of reaching Ray's logs, a crash is a report with its signal, and a timeout
counts from the moment the task starts, not while it is queued. The process is kept for the next
task.

Guarantees:
    * Copies of files are in the task's own folder only, which its owner alone can read. It is
      removed when the task ends; if the Ray worker is killed, by the worker process; and if that is
      killed too, by the next sweep.
    * An exception here leaves with its type and place only, so that Ray logs no record.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, final

from pate import __version__
from pate._files import draft_folder, error_reason
from pate.devices import Device
from pate.engines.files import (
    FOLDER_VARIABLE,
    MAKES,
    ROWS,
    TASK_PREFIX,
    Reference,
    kind_of,
    modules,
    path_of,
    sweep,
    task_home,
    with_files,
)
from pate.engines.task import Report, Task, TaskQueue
from pate.engines.worker_pool import WorkerPool
from pate.errors import PateError
from pate.untrusted import describe_error, forbid_core_dumps

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SWEEP_SECONDS = 30.0  # between two sweeps by one Ray worker
_ROOT = "content"  # the name, in transit, of the file or folder itself


class TaskFolderError(PateError):
    """A machine has no room for a task's files."""


@contextlib.contextmanager
def task_folder() -> Iterator[Path]:
    """Make a folder for one task, locked while it is in use and removed at the end."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(draft_folder(task_home(), prefix=TASK_PREFIX))
        except FileNotFoundError:
            raise TaskFolderError(
                f"a worker's folder for tasks, {task_home()}, does not exist; make it on that "
                f"machine, or set {FOLDER_VARIABLE} there to one that does"
            ) from None
        except OSError as error:
            raise _no_room(error) from None
        try:
            yield folder
        finally:
            for inside, _, _ in os.walk(folder):  # a task may have made a part read-only
                os.chmod(inside, 0o700)


def _no_room(error: OSError) -> TaskFolderError:
    return TaskFolderError(
        f"a worker cannot write the files of its task to {task_home()}: {error_reason(error)}; "
        f"make room there, or set {FOLDER_VARIABLE} on that machine to a folder that has some"
    )


# ------------------------------------------------------------------ files in transit


class TransferError(PateError):
    """A transferred file is damaged, or was not asked for."""


@final
@dataclass(frozen=True, slots=True)
class Transfer:
    """The content of a file or folder by names below ``content``; none if there is nothing.

    The name of a folder ends in a slash, and its content is empty.
    """

    files: tuple[tuple[str, NDArray[Any]], ...] = field(repr=False)
    digest: str  # of all names and bytes

    @property
    def size(self) -> int:
        """The number of bytes of its files."""
        return sum(content.nbytes for _, content in self.files)


def pack(path: Path) -> Transfer:
    """Read the file or folder that is at a path now."""
    files: list[tuple[str, bytes | memoryview]] = []
    try:
        for each in [path, *sorted(path.rglob("*"))]:
            name = (_ROOT / each.relative_to(path)).as_posix()
            if each.is_dir():
                files.append((f"{name}/", b""))
            elif each.is_file():
                files.append((name, each.read_bytes()))
    except FileNotFoundError:  # it disappeared while it was read
        files = []
    return _transfer(files)


def pack_rows(path: Path, start: int, stop: int) -> Transfer:
    """Read some rows of an ``.npy`` file, as an ``.npy`` file of their own.

    Guarantees:
        No other row is in it. A file that cannot be read becomes an empty one, at which the reader
        fails as it would here.
    """
    import numpy as np

    if not path.exists():
        return _transfer([])
    written = io.BytesIO()
    with contextlib.suppress(OSError, ValueError, EOFError):
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        np.save(written, mapped[start:stop], allow_pickle=False)
    return _transfer([(_ROOT, written.getbuffer())])


def pack_modules(path: Path) -> Transfer:
    """Read the modules of the user's plug-ins, and no other file beside them."""
    try:
        files = [(name, file.read_bytes()) for name, file in modules(path).items()]
    except OSError as error:
        raise PateError(f"cannot read the plug-ins in {path}: {error.strerror}") from error
    if path.is_dir():
        return _transfer([(f"{_ROOT}/", b""), *((f"{_ROOT}/{n}", each) for n, each in files)])
    return _transfer([(_ROOT, content) for _, content in files])


def _transfer(files: Iterable[tuple[str, bytes | memoryview]]) -> Transfer:
    import numpy as np

    # Arrays, because Ray shares their memory between processes instead of copying it.
    arrays = tuple((name, np.frombuffer(content, dtype=np.uint8)) for name, content in files)
    return Transfer(arrays, _digest(arrays))


def _digest(files: Iterable[tuple[str, NDArray[Any]]]) -> str:
    whole = hashlib.sha256()
    for name, content in files:
        whole.update(json.dumps([name, content.nbytes]).encode())
        whole.update(content.data)
    return whole.hexdigest()


def unpack(transfer: Transfer, place: Path) -> None:
    """Verify the content, then put it at ``place`` in one step.

    A file replaces what was there; of a folder the first to arrive stays, as in the store.

    Guarantees:
        Nothing is written but at ``place`` and, until it is complete, in a hidden folder beside it.
    """
    if _digest(transfer.files) != transfer.digest:
        raise TransferError("a file was damaged in transit")
    for name, _ in transfer.files:
        parts = PurePosixPath(name).parts
        if parts[:1] != (_ROOT,) or ".." in parts or "\0" in name:
            raise TransferError("a worker sent a file that leads out of its place")
    if not transfer.files:
        return
    with draft_folder(place.parent, prefix=f".{place.name}-") as draft:
        for name, content in transfer.files:
            if name.endswith("/"):
                (draft / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                (draft / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (draft / name).write_bytes(content.data)
        working = draft / _ROOT
        try:
            working.replace(place)
        except OSError:
            if not (working.is_dir() and place.is_dir()):
                raise


def place_of(reference: Reference, name: str) -> Path:
    """Return where a file that a task made belongs; reject one that it was not asked to make.

    >>> from pate.engines.files import makes
    >>> place_of(makes("/store", names=["private/teacher/abc"]), "private/teacher/abc").as_posix()
    '/store/private/teacher/abc'
    >>> place_of(makes("/store", names=["private/teacher/abc"]), "private/teacher/xyz")
    Traceback (most recent call last):
    pate.engines.ray_worker.TransferError: a worker sent a file that it was not asked to make
    """
    if MAKES not in reference or name not in (reference["names"] or [""]):
        raise TransferError("a worker sent a file that it was not asked to make")
    return path_of(reference) / name


# ------------------------------------------------------------------ tasks

Input = Transfer | int | None  # an int counts among the shared transfers; None is made here


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTask:
    """One attempt at one task, as the driver sends it."""

    version: str
    task: Task
    inputs: tuple[Input, ...] = field(repr=False)  # for each reference of the payload, in its order
    path: tuple[str, ...]  # the driver's search path for modules
    gpus: float
    timeout: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteResult:
    """The report of an attempt, and the files that it made."""

    report: bytes = field(repr=False)  # its result may be a metric of private data
    made: tuple[tuple[int, str, Transfer], ...] = ()  # number of the reference, name below it
    stop: bool = False  # no task's fault: the run stops with the report's message


def run_task(task: RemoteTask, *shared: Transfer) -> RemoteResult:
    """Run one attempt; always returns, unless this process is killed."""
    try:
        if task.version != __version__:
            raise PateError(
                f"a node of the cluster has pate {__version__} and the driver has "
                f"{task.version}; install the same version on all"
            )
        return _node.run(task, shared)
    except PateError as error:
        text, lost = describe_error(error), isinstance(error, TaskFolderError)
    except Exception as error:
        text = f"PateError: a Ray worker could not prepare its task ({describe_error(error)})"
        lost = True
    return RemoteResult(report=Report(error=text, lost=lost).encode(), stop=True)


class _Node:
    """The state of one Ray worker: its worker process, and the settings it was started with."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None
        self._settings: tuple[Any, ...] = ()
        self._swept = float("-inf")

    def run(self, task: RemoteTask, shared: Sequence[Transfer]) -> RemoteResult:
        forbid_core_dumps()  # the files of a task pass through here
        if time.monotonic() - self._swept > _SWEEP_SECONDS:
            sweep()
            self._swept = time.monotonic()
        with task_folder() as folder:
            copies = _Copies(folder)
            try:
                local = copies.write(task.task, task.inputs, shared)
            except OSError as error:
                raise _no_room(error) from None
            report = self._work(local, task)
            return RemoteResult(
                report=copies.with_original_names(report.encode()), made=copies.made()
            )

    def _work(self, local: Task, task: RemoteTask) -> Report:
        """Have the worker process run the task; its death and a timeout are reports, too."""
        pool, queue = self._ready_pool(task), TaskQueue([local])
        pool.timeout = task.timeout
        while True:
            pool.assign(queue)
            for _, report in pool.collect():
                return report

    def _ready_pool(self, task: RemoteTask) -> WorkerPool:
        """Return the pool of one worker, a new one if it was started with other settings."""
        device = Device("cuda", 0) if task.gpus and _has_gpu() else Device("cpu")
        sharers = max(1, int(1 / task.gpus)) if 0 < task.gpus < 1 else 1
        # After our own entries: what is installed here comes first.
        sys.path += [each for each in task.path if each not in sys.path and Path(each).exists()]
        settings = (device, sharers, os.environ.get("CUDA_VISIBLE_DEVICES"), tuple(sys.path))
        if self._pool is None or self._settings != settings:
            self.close()
            self._pool, self._settings = WorkerPool([device], sharers=sharers), settings
        return self._pool

    def close(self) -> None:
        """End the worker process."""
        if self._pool is not None:
            self._pool.kill()
            self._pool = None


_node = _Node()


def _has_gpu() -> bool:
    """Return whether the GPU that Ray promises exists: a cluster may declare GPUs it lacks."""
    drivers = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    return bool(os.environ.get("CUDA_VISIBLE_DEVICES")) and any(map(os.path.exists, drivers))


class _Copies:
    """The copies of a task's files in its folder, and the driver's names of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._originals: dict[str, str] = {}
        self._makes: dict[int, Reference] = {}

    def write(self, task: Task, inputs: Sequence[Input], shared: Sequence[Transfer]) -> Task:
        """Write the inputs; return the task with references to the copies."""
        numbered = iter(enumerate(inputs))

        def copy(reference: Reference) -> Reference:
            number, content = next(numbered)
            (self._folder / str(number)).mkdir(mode=0o700)
            original, kind = path_of(reference), kind_of(reference)
            place = self._folder / str(number) / (original.name or "all")
            if isinstance(content, int):
                content = shared[content]
            if content is not None:
                unpack(content, place)
            here = {**reference, kind: str(place)}
            if kind == MAKES:
                if reference["names"]:
                    place.mkdir(mode=0o700)
                self._makes[number] = here
            if kind == ROWS:
                here |= {"start": 0, "stop": reference["stop"] - reference["start"]}
            self._originals[str(place)] = str(original)
            return here

        payload = with_files(task.payload, copy)
        return replace(task, payload=payload, folder=str(self._folder))

    def made(self) -> tuple[tuple[int, str, Transfer], ...]:
        """Return all complete files, also of a task that failed."""
        found = [
            (number, name, pack(path_of(reference) / name))
            for number, reference in self._makes.items()
            for name in reference["names"] or [""]
        ]
        return tuple(each for each in found if each[2].files)

    def with_original_names(self, report: bytes) -> bytes:
        """Return the report with the driver's names of files: the copies are gone by then."""
        for here, original in sorted(self._originals.items(), key=lambda names: -len(names[0])):
            report = report.replace(_quoted(here), _quoted(original))
        return report


def _quoted(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()
