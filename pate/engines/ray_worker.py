"""The part of the Ray engine that runs on a node: a task's folder, its files, and its process.

Ray calls :func:`run_task`. It writes copies of the files that the task reads to a folder of their
own and has the task run by a worker process (:class:`pate.engines.worker_pool.WorkerProcess`), as
on the other engines, not inside the Ray worker: so the task's output is discarded at the level of
file descriptors instead of reaching Ray's logs, a crash is a report with its signal, and a timeout
counts from the moment the task starts, not while it is queued. The process is kept for the next
task.

Guarantees:
    * Copies of files are in the task's own folder only, which its owner alone can read. It is
      removed when the task ends; if the Ray worker is killed, by the worker process; and if that is
      killed too, by whoever sweeps next.
    * An exception here leaves with its type and place only, so that Ray logs no record.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import select
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, final

from pate import __version__
from pate._files import draft_folder, error_reason, remove_abandoned
from pate.devices import Device
from pate.engines.files import MAKES, ROWS, Reference, kind_of, modules, path_of, with_files
from pate.engines.task import Report
from pate.engines.worker import READY
from pate.engines.worker_pool import WorkerProcess
from pate.errors import PateError
from pate.untrusted import describe_error, forbid_core_dumps

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER_VARIABLE = "PATE_TASK_FOLDER"
TASK_PREFIX = "pate-task-"
_SWEEP_SECONDS = 30.0  # between two sweeps by one Ray worker
_START_SECONDS = 120.0  # for a worker process to start, on a busy machine
_CHECK_SECONDS = 1.0


# ------------------------------------------------------------------ folders


class TaskFolderError(PateError):
    """A machine has no room for a task's files."""


def task_home() -> Path:
    """Return the folder in which tasks have their folders: ``PATE_TASK_FOLDER``, or a default."""
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()).absolute()


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


def sweep(place: Path | None = None, *, prefix: str = TASK_PREFIX) -> int:
    """Remove the folders that killed processes left on this machine; return how many are in use."""
    pattern = prefix + "[a-z0-9_]" * 8  # as tempfile ends a name
    place = place or task_home()
    remove_abandoned(place, drafts=pattern)
    return len(list(place.glob(pattern)))


# ------------------------------------------------------------------ files in transit


class TransferError(PateError):
    """A transferred file is damaged, or was not asked for."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The content of a file or folder, or its absence, so that it is missing elsewhere too.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = Path(folder)
    ...     _ = (place / "a.txt").write_text("hello")
    ...     unpack(pack(place / "a.txt"), place / "b.txt")
    ...     (place / "b.txt").read_text()
    'hello'
    """

    kind: Literal["file", "folder", "missing"] = "missing"
    files: tuple[tuple[str, NDArray[Any]], ...] = field(default=(), repr=False)  # names and bytes
    folders: tuple[str, ...] = ()
    digest: str = ""  # of all names and bytes

    @property
    def size(self) -> int:
        """The number of bytes of its files."""
        return sum(content.nbytes for _, content in self.files)


def pack(path: Path) -> Transfer:
    """Read the file or folder that is at a path now."""
    try:
        if path.is_dir():
            inside = [(each.relative_to(path).as_posix(), each) for each in sorted(path.rglob("*"))]
            folders = tuple(name for name, each in inside if each.is_dir())
            files = [(name, each.read_bytes()) for name, each in inside if each.is_file()]
            return _transfer("folder", files, folders=folders)
        if path.is_file():
            return _transfer("file", [("", path.read_bytes())])
    except FileNotFoundError:  # it disappeared while it was read
        pass
    return Transfer()


def pack_rows(path: Path, start: int, stop: int) -> Transfer:
    """Read some rows of an ``.npy`` file, as an ``.npy`` file of their own.

    Guarantees:
        No other row is in it. A file that cannot be read becomes an empty one, at which the reader
        fails as it would here.
    """
    import numpy as np

    if not path.exists():
        return Transfer()
    written = io.BytesIO()
    with contextlib.suppress(OSError, ValueError, EOFError):
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        np.save(written, mapped[start:stop], allow_pickle=False)
    return _transfer("file", [("", written.getbuffer())])


def pack_modules(path: Path) -> Transfer:
    """Read the modules of the user's plug-ins, and no other file beside them."""
    try:
        files = [(name, file.read_bytes()) for name, file in modules(path).items()]
    except OSError as error:
        raise PateError(f"cannot read the plug-ins in {path}: {error.strerror}") from error
    if path.is_dir():
        return _transfer("folder", files)
    return _transfer("file", [("", content) for _, content in files])


def unpack(transfer: Transfer, place: Path) -> None:
    """Verify the content, then put it at ``place`` in one step.

    A file replaces what was there; of a folder the first to arrive stays, as in the store.

    Guarantees:
        Nothing is written but at ``place`` and, until it is complete, in a hidden folder beside it.
    """
    if transfer.kind == "missing":
        return
    alone = transfer.kind == "file"
    names = [name for name, _ in transfer.files]
    if transfer.kind not in ("file", "folder") or (alone and names != [""]):
        raise TransferError("a worker sent content of an unknown kind")
    if _digest(transfer.files) != transfer.digest:
        raise TransferError("a file was damaged in transit")
    folders = [_parts(name) for name in transfer.folders]
    files = [(() if alone else _parts(name), content) for name, content in transfer.files]
    with draft_folder(place.parent, prefix=f".{place.name}-") as draft:
        working = draft / "content"
        if not alone:
            working.mkdir(mode=0o700)
        for parts in folders:
            working.joinpath(*parts).mkdir(parents=True, exist_ok=True)
        for parts, content in files:
            file = working.joinpath(*parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.data)
        if alone:
            working.replace(place)
            return
        try:
            working.rename(place)
        except OSError:
            if not place.is_dir():
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
    root = path_of(reference)
    return root.joinpath(*_parts(name)) if name else root


def _transfer(
    kind: Literal["file", "folder"],
    files: Iterable[tuple[str, bytes | memoryview]],
    folders: tuple[str, ...] = (),
) -> Transfer:
    import numpy as np

    # Arrays, because Ray shares their memory between processes instead of copying it.
    arrays = tuple((name, np.frombuffer(content, dtype=np.uint8)) for name, content in files)
    return Transfer(kind=kind, files=arrays, folders=folders, digest=_digest(arrays))


def _digest(files: Iterable[tuple[str, NDArray[Any]]]) -> str:
    whole = hashlib.sha256()
    for name, content in files:
        whole.update(json.dumps([name, content.nbytes]).encode())
        whole.update(content.data)
    return whole.hexdigest()


def _parts(name: str) -> tuple[str, ...]:
    """Split a relative path; reject one that leads up, out or nowhere."""
    path = PurePosixPath(name)
    unsafe = "\0" in name or "\\" in name or os.path.splitdrive(name)[0]
    if path.is_absolute() or ".." in path.parts or not path.parts or unsafe:
        raise TransferError("a worker sent a file that leads out of its place")
    return path.parts


# ------------------------------------------------------------------ tasks

Input = Transfer | int | None  # an int counts among the shared transfers; None is made here


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTask:
    """One attempt at one task, as the driver sends it."""

    version: str
    request: bytes = field(repr=False)
    inputs: tuple[Input, ...]  # one for each reference of the payload, in its order
    path: tuple[str, ...]  # the driver's search path for modules
    gpus: float
    timeout: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteResult:
    """The report of an attempt, and the files that it made."""

    report: bytes = field(repr=False)  # its result may be a metric of private data
    made: tuple[tuple[int, str, Transfer], ...] = ()  # number of the reference, name below it
    lost: bool = False  # the worker process died: another attempt may succeed
    stop: bool = False  # no task's fault: the run stops with the report's message


def run_task(task: RemoteTask, *shared: Transfer) -> RemoteResult:
    """Run one attempt; always returns, unless this process is killed."""
    try:
        if task.version != __version__:
            raise PateError(
                f"a node of the cluster has pate {__version__} and the driver has "
                f"{task.version}; install the same version on all"
            )
        return _node().run(task, shared)
    except TaskFolderError as error:
        return RemoteResult(
            report=Report(error=describe_error(error)).encode(), lost=True, stop=True
        )
    except PateError as error:
        return RemoteResult(report=Report(error=describe_error(error)).encode(), stop=True)
    except Exception as error:
        text = f"PateError: a Ray worker could not prepare its task ({describe_error(error)})"
        return RemoteResult(report=Report(error=text).encode(), lost=True, stop=True)


def sweep_node() -> int:
    """Remove the folders that killed tasks left on this node; return how many are in use."""
    return sweep()


_the_node: _Node | None = None


def _node() -> _Node:
    global _the_node
    if _the_node is None:
        _the_node = _Node()
    return _the_node


class _Node:
    """The state of one Ray worker: its worker process, and the settings it was started with."""

    def __init__(self) -> None:
        forbid_core_dumps()  # the files of a task pass through here
        self._worker: WorkerProcess | None = None
        self._settings: tuple[Any, ...] = ()
        self._swept = float("-inf")

    def run(self, task: RemoteTask, shared: Sequence[Transfer]) -> RemoteResult:
        if time.monotonic() - self._swept > _SWEEP_SECONDS:
            sweep()
            self._swept = time.monotonic()
        with task_folder() as folder:
            copies = _Copies(folder)
            request = json.loads(task.request) | {"folder": str(folder)}
            try:
                request["payload"] = copies.write(request["payload"], task.inputs, shared)
            except OSError as error:
                raise _no_room(error) from None
            report, lost = self._work(json.dumps(request).encode(), task)
            made = copies.made()
            return RemoteResult(report=copies.with_original_names(report), made=made, lost=lost)

    def _work(self, request: bytes, task: RemoteTask) -> tuple[bytes, bool]:
        """Return the report of the worker process, or of its death, and whether it died."""
        worker = self._ready_worker(task)
        start = time.monotonic()
        worker.send(request)
        while True:
            seconds = time.monotonic() - start
            left = _CHECK_SECONDS if task.timeout is None else task.timeout - seconds
            if select.select([worker], [], [], max(0.0, min(left, _CHECK_SECONDS)))[0]:
                line = worker.receive()
                return (self._death(start), True) if line is None else (line.rstrip(b"\n"), False)
            if task.timeout is not None and left <= 0:
                self._end_worker()
                error = f"TimedOut: no result within {task.timeout:g} seconds"
                return Report(error=error, seconds=time.monotonic() - start).encode(), False
            if worker.exited() and not select.select([worker], [], [], 0)[0]:
                return self._death(start), True  # a process it started holds the socket open

    def _death(self, start: float) -> bytes:
        error = f"WorkerDied: the worker process was ended {self._end_worker()}"
        return Report(error=error, seconds=time.monotonic() - start).encode()

    def _ready_worker(self, task: RemoteTask) -> WorkerProcess:
        """Return the worker process, a new one if it was started with other settings."""
        device = Device("cuda", 0) if task.gpus and _has_gpu() else Device("cpu")
        sharers = max(1, int(1 / task.gpus)) if 0 < task.gpus < 1 else 1
        # After our own entries: what is installed here comes first.
        sys.path += [each for each in task.path if each not in sys.path and Path(each).exists()]
        settings = (device, sharers, os.environ.get("CUDA_VISIBLE_DEVICES"), tuple(sys.path))
        if self._worker is not None and (self._settings != settings or self._worker.exited()):
            self._end_worker()
        if self._worker is None:
            self._worker, self._settings = WorkerProcess(device, sharers=sharers), settings
            ready = select.select([self._worker], [], [], _START_SECONDS)[0]
            if not ready or self._worker.receive() != READY:
                how = self._end_worker()
                raise PateError(f"a worker process on a node ended {how} before it could start")
        return self._worker

    def _end_worker(self) -> str:
        """End the worker process and return how it ended."""
        assert self._worker is not None
        how = self._worker.terminate()
        self._worker = None
        return how


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

    def write(self, payload: Any, inputs: Sequence[Input], shared: Sequence[Transfer]) -> Any:
        """Write the inputs; return the payload with references to the copies."""
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

        return with_files(payload, copy)

    def made(self) -> tuple[tuple[int, str, Transfer], ...]:
        """Return all complete files, also of a task that failed."""
        found = [
            (number, name, pack(path_of(reference) / name))
            for number, reference in self._makes.items()
            for name in reference["names"] or [""]
        ]
        return tuple(each for each in found if each[2].kind != "missing")

    def with_original_names(self, report: bytes) -> bytes:
        """Return the report with the driver's names of files: the copies are gone by then."""
        for here, original in sorted(self._originals.items(), key=lambda names: -len(names[0])):
            report = report.replace(_quoted(here), _quoted(original))
        return report


def _quoted(text: str) -> bytes:
    return json.dumps(text)[1:-1].encode()
