"""The Ray engine: tasks on a Ray started on this machine, or on a cluster, from one recipe.

The driver sends each task with the content of the files it reads, a bounded number at a time, and
writes what comes back, verified by digest. :mod:`pate.engines.ray_worker` is the part that runs on
a node.

One connection serves all runs of this process: starting Ray takes seconds. A Ray that was started
here is shut down when the process ends; a connection that the caller made is left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn, final

from pate import __version__
from pate._files import draft_folder, error_reason
from pate.engines.files import CODE, MAKES, ROWS, Reference, path_of, with_files
from pate.engines.ray_worker import (
    FOLDER_VARIABLE,
    TASK_PREFIX,
    Input,
    RemoteResult,
    RemoteTask,
    Transfer,
    TransferError,
    pack,
    pack_modules,
    pack_rows,
    place_of,
    run_task,
    sweep,
    sweep_node,
    task_home,
    unpack,
)
from pate.engines.task import Outcome, Pending, Report, RetryPolicy, Task, TaskQueue
from pate.engines.threads import usable_cores
from pate.errors import InvalidInput, PateError

_MIN_IN_FLIGHT, _MAX_IN_FLIGHT = 4, 256  # tasks
_MEMORY_SHARE = 0.3  # of the cluster's object stores, for files in transit
_SHARED_BYTES = 1 << 20  # files at least this large are put into Ray's object store once
_SHARED_FILES = 4  # how many of them are kept for the next task
_POLL_SECONDS = 2.0
_GONE_SECONDS = 15.0  # without an answer; Ray itself ends the process after 60
_GRACE_SECONDS = 120.0  # for a growing cluster to offer what a task needs
_CANCEL_SECONDS = 5.0  # for cancelled tasks to end, and again for their folders to be removed
_CONNECT_SECONDS = 20.0
_ANSWER_SECONDS = 2.0
_SHUTDOWN_SECONDS = 10.0
_SESSION_PREFIX = "pate-ray-"
_LONGEST_TEMPORARY = 40  # characters: Ray's sockets lie below it, and their paths have a limit
_MIN_STORE, _MAX_STORE = 75 << 20, 4 << 30  # bytes; Ray takes no less
_TERMINATED = 128 + signal.SIGTERM  # the exit status of a process that SIGTERM ended


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """Run tasks on Ray, on this machine or on a cluster.

    Files of a task travel with it through Ray's object store, and what it makes comes back
    verified. A task whose worker or node is lost is submitted again, up to ``rescues`` times, by
    this engine: Ray itself retries nothing, since it would not count workers that it ended for
    want of memory.

    Parameters
    ----------
    address
        ``"HOST:PORT"`` of a cluster that this machine is part of, ``"auto"`` for the one that runs
        on this machine, or None to start a Ray of our own here.

    Guarantees:
        * On a node, copies of files are in the task's own folder only, which is removed.
        * Closing the iterator cancels all tasks and removes their folders.
        * The output of tasks is discarded: it may be private.
        * Nothing is encrypted: the machines of a cluster and their disks are trusted with the
          shards they work on, and Ray may spill what does not fit into memory to a disk.
    """

    address: str | None = None

    name: ClassVar[str] = "ray"

    @property
    def slots(self) -> int:
        """The number of tasks of one core that the cluster can run at once."""
        return _Cluster(connect(self.address)).slots(cpus=1.0, gpus=0.0)

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this machine, for work such as training the student."""
        import torch

        return ("cuda:0",) if torch.cuda.is_available() else ("cpu",)

    def run(
        self,
        tasks: Iterable[Task],
        *,
        retries: int = 0,
        rescues: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order they finish; see :class:`pate.engines.task.Engine`."""
        policy = RetryPolicy(retries=retries, rescues=rescues, timeout=timeout)
        return self._outcomes(tasks, policy)

    def _outcomes(self, tasks: Iterable[Task], policy: RetryPolicy) -> Iterator[Outcome]:
        queue = TaskQueue(tasks)
        if not len(queue):
            return
        flight = _InFlight(_Cluster(connect(self.address)), policy)
        try:
            finished: list[Outcome] = []
            while len(queue) or flight.count:
                flight.submit(queue)
                yield from finished
                finished = []
                for pending, report in flight.collect():
                    if policy.tries_again(pending, report):
                        queue.put_back(pending)
                    else:
                        finished.append(pending.outcome(report))
            yield from finished
        except _ClusterGone:
            raise
        except BaseException as error:
            flight.cancel()
            if isinstance(error, SystemExit) and _session is not None and _session.terminated:
                raise SystemExit(_TERMINATED) from None  # Ray has changed the status
            raise


class _ClusterGone(PateError):
    """The cluster does not answer any more."""


class _Cluster:
    """The resources of the cluster, read again every few seconds, since clusters change."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._nodes: list[dict[str, float]] = []
        self._read = float("-inf")
        self._answered = time.monotonic()

    def nodes(self) -> list[dict[str, float]]:
        """Return the total resources of every node that is alive."""
        if time.monotonic() - self._read > _POLL_SECONDS:
            if self.answers():
                self._nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self._read = time.monotonic()
        return self._nodes

    def answers(self) -> bool:
        """Return whether the cluster answers; stop the run if it has not for a while."""
        if _answers(self.ray):
            self._answered = time.monotonic()
            return True
        if time.monotonic() - self._answered > _GONE_SECONDS:
            raise _ClusterGone(
                "the Ray cluster does not answer any more; finished work is kept: run again when "
                "it is back, or on another engine"
            )
        return False

    def slots(self, *, cpus: float, gpus: float) -> int:
        """Return how many tasks of this kind can run at once, up to the limit of submission."""
        return min(_MAX_IN_FLIGHT, sum(_places(node, cpus, gpus) for node in self.nodes()))

    def shares(self, task: Task) -> dict[str, float]:
        """Return the cpus and gpus that a task takes: of a Ray of our own, at most all there are.

        So a recipe that was written for a cluster runs here too, one task after another.
        """
        if _session is None or _session.address is not None:
            return {"cpus": task.cpus, "gpus": task.gpus}
        (node,) = self.nodes() or [{}]
        return {
            "cpus": min(task.cpus, node.get("CPU", 0.0)),
            "gpus": min(task.gpus, node.get("GPU", 0.0)),
        }

    def memory(self) -> float:
        """Return the bytes of all object stores."""
        return sum(node.get("object_store_memory", 0.0) for node in self.nodes())

    def refusal(self, task: Task) -> str:
        """Return why no node will ever take a task.

        It does not name the task: the order of tasks follows from the sizes of private shards.
        """
        cpus = max(node.get("CPU", 0.0) for node in self.nodes() or [{}])
        gpus = max(node.get("GPU", 0.0) for node in self.nodes() or [{}])
        return (
            f"a task asks for {task.cpus:g} cpus and {task.gpus:g} gpus at once, and no node of "
            f"the Ray cluster has them: the largest have {cpus:g} cpus and {gpus:g} gpus; lower "
            "cpus or gpus in [teachers]"
        )


def _places(node: dict[str, float], cpus: float, gpus: float) -> int:
    shares = [(node.get(name, 0.0), share) for name, share in (("CPU", cpus), ("GPU", gpus))]
    return int(min((has / share for has, share in shares if share > 0), default=_MAX_IN_FLIGHT))


@dataclass(frozen=True, slots=True)
class _Submitted:
    pending: Pending
    size: int  # bytes that travel for this task alone


class _InFlight:
    """The submitted tasks of one run: few enough that the driver's memory stays flat."""

    def __init__(self, cluster: _Cluster, policy: RetryPolicy) -> None:
        self._cluster, self._ray, self._policy = cluster, cluster.ray, policy
        self._remote = self._ray.remote(run_task)
        self._path = tuple(entry for entry in sys.path if isinstance(entry, str) and entry)
        self._submitted: dict[Any, _Submitted] = {}
        self._shared: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._bytes = 0
        self._stuck_since: float | None = None

    @property
    def count(self) -> int:
        """The number of submitted tasks."""
        return len(self._submitted)

    def submit(self, queue: TaskQueue) -> None:
        """Submit tasks until enough are in flight."""
        while len(queue) and self._has_room():
            self._submit(queue.take())

    def _has_room(self) -> bool:
        if not self._submitted:
            return True
        task = next(iter(self._submitted.values())).pending.task
        slots = self._cluster.slots(**self._cluster.shares(task))
        room = self._bytes < _MEMORY_SHARE * self._cluster.memory()
        limit = min(_MAX_IN_FLIGHT, max(_MIN_IN_FLIGHT, 2 * slots))
        return room and len(self._submitted) < limit

    def _submit(self, pending: Pending) -> None:
        task = pending.task
        shares = self._cluster.shares(task)
        pending.attempts += 1
        inputs, shared = self._inputs(task)
        reference = self._remote.options(
            name="pate",  # nothing of the task: names are in Ray's logs
            num_cpus=shares["cpus"],
            num_gpus=shares["gpus"],
            max_retries=0,
        ).remote(
            RemoteTask(
                version=__version__,
                request=task.encode(),
                inputs=inputs,
                path=self._path,
                gpus=shares["gpus"],
                timeout=self._policy.timeout,
            ),
            *shared,
        )
        size = sum(content.size for content in inputs if isinstance(content, Transfer))
        self._bytes += size
        self._submitted[reference] = _Submitted(pending, size)

    def _inputs(self, task: Task) -> tuple[tuple[Input, ...], list[Any]]:
        """Read what a task reads, as it is now; large files are put into Ray's store once a run.

        Folders travel with their task, however large: few tasks read the same ones.
        """
        inputs: list[Input] = []
        shared: list[Any] = []
        for reference in _references(task):
            path = path_of(reference)
            if MAKES in reference:
                inputs.append(None)
            elif CODE in reference:
                inputs.append(pack_modules(path))
            elif ROWS in reference:
                inputs.append(pack_rows(path, reference["start"], reference["stop"]))
            elif path.is_dir() or _size(path) < _SHARED_BYTES:
                inputs.append(pack(path))
            else:
                inputs.append(len(shared))
                shared.append(self._share(path))
        return tuple(inputs), shared

    def _share(self, path: Path) -> Any:
        about = path.stat()
        key = (path, about.st_ino, about.st_size, about.st_mtime_ns)
        if key not in self._shared:
            self._shared[key] = self._ray.put(pack(path))
            while len(self._shared) > _SHARED_FILES:
                self._shared.popitem(last=False)
        self._shared.move_to_end(key)
        return self._shared[key]

    def collect(self) -> list[tuple[Pending, Report]]:
        """Wait a while for a task to end; its files are in their places then."""
        ready, _ = self._ray.wait(list(self._submitted), num_returns=1, timeout=_POLL_SECONDS)
        if not ready:
            self._check_stuck()
            return []
        self._stuck_since = None
        submitted = self._submitted.pop(ready[0])
        self._bytes -= submitted.size
        return [(submitted.pending, self._report(ready[0], submitted.pending))]

    def _report(self, reference: Any, pending: Pending) -> Report:
        errors = self._ray.exceptions
        try:
            returned: RemoteResult = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise PateError(_broken_node(error)) from None
        except errors.RayError as error:
            while not self._cluster.answers():  # then all are lost, and no task is to blame
                time.sleep(_POLL_SECONDS / 4)
            # The task runs in a process below the Ray worker, so it cannot have ended the latter.
            full = type(error).__name__ == "OutOfMemoryError"
            why = "was ended because its node ran out of memory" if full else "or its node was lost"
            return Report(error=f"NodeLost: the Ray worker {why}", lost=True)
        try:
            _write_files(pending.task, returned)
        except TransferError as error:
            raise PateError(f"task {pending.task.key!r} stopped: {error}; run it again") from None
        report = Report.decode(returned.report)
        if returned.stop and not (returned.lost and pending.rescued < self._policy.rescues):
            _, _, sentence = str(report.error).partition(": ")
            raise PateError(f"task {pending.task.key!r} stopped: {sentence}")
        return Report(
            result=report.result,
            error=report.error,
            where=report.where,
            seconds=report.seconds,
            lost=returned.lost,
        )

    def _check_stuck(self) -> None:
        """Stop the run if no node can take any task, after some time for the cluster to grow."""
        tasks = [submitted.pending.task for submitted in self._submitted.values()]
        slots, shares = self._cluster.slots, self._cluster.shares
        stuck = [task for task in tasks if not slots(**shares(task))]
        now = time.monotonic()
        if len(stuck) < len(tasks):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > _GRACE_SECONDS:
            raise InvalidInput(self._cluster.refusal(stuck[0]))

    def cancel(self) -> None:
        """End all submitted tasks, and remove their folders on every node that is alive."""
        if not self._ray.is_initialized() or not _answers(self._ray):
            return
        references = list(self._submitted)
        self._submitted.clear()
        with contextlib.suppress(Exception):
            for reference in references:
                self._ray.cancel(reference, force=True)
            if references:
                self._ray.wait(references, num_returns=len(references), timeout=_CANCEL_SECONDS)
            self._sweep_nodes()

    def _sweep_nodes(self) -> None:
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        remote = self._ray.remote(sweep_node)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while time.monotonic() < deadline:
            strategies = [
                affinity(node["NodeID"], soft=False) for node in self._ray.nodes() if node["Alive"]
            ]
            sweeps = [
                remote.options(name="pate", num_cpus=0, scheduling_strategy=strategy).remote()
                for strategy in strategies
            ]
            if not any(self._ray.get(sweeps, timeout=max(0.1, deadline - time.monotonic()))):
                return
            time.sleep(0.1)


def _references(task: Task) -> list[Reference]:
    """Return the references of a task, in the order in which both sides count them."""
    found: list[Reference] = []

    def note(reference: Reference) -> Reference:
        found.append(reference)
        return reference

    with_files(dict(task.payload), note)
    return found


def _write_files(task: Task, returned: RemoteResult) -> None:
    references = _references(task)
    for number, name, content in returned.made:
        place = place_of(references[number], name)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unpack(content, place)
        except OSError as error:
            raise PateError(
                f"cannot write to {path_of(references[number])}: {error_reason(error)}; "
                "what was there before is unchanged"
            ) from None


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _broken_node(error: Exception) -> str:
    """Return why a node cannot run our code; the text of such errors is not shown."""
    if "No module named 'pate" in str(error):
        return "pate is not installed on a node of the Ray cluster; install the same version on all"
    cause = type(getattr(error, "cause", None) or error).__name__
    return f"a node of the Ray cluster cannot run pate ({cause}); install the same version on all"


# ------------------------------------------------------------------ the connection


@dataclass(slots=True)
class _Session:
    """The connection that this process made, and the folders of a Ray that it started."""

    address: str | None  # None: started here
    pid: int = field(default_factory=os.getpid)
    folders: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    terminated: bool = False  # whether SIGTERM has come


_session: _Session | None = None


def connect(address: str | None) -> ModuleType:
    """Return Ray, connected; a connection that the caller made to the same cluster is used.

    >>> connect("nowhere")
    Traceback (most recent call last):
    pate.errors.InvalidInput: 'nowhere' is not a cluster's address; write HOST:PORT, or auto
    """
    host = _parse_address(address)
    if address is None:
        _set_token()
    ray = _import_ray()
    if ray.is_initialized():
        _check_same_cluster(ray, address, host)
        return ray
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _quiet():
            if address is None:
                _start(ray)
            else:
                _attach(ray, address, host)
    finally:
        _handle_sigterm(handler)
    return ray


def disconnect() -> None:
    """Shut down the Ray that :func:`connect` started, or leave the cluster that it joined."""
    global _session
    session = _session
    if session is None or session.pid != os.getpid():  # of the caller, or of a forked parent
        return
    import ray

    with _quiet():
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        try:
            leaving.start()  # in a thread: with a cluster that is gone it may never return
            leaving.join(_SHUTDOWN_SECONDS)
        except RuntimeError:  # some Pythons start no threads at exit
            ray.shutdown()
    session.folders.close()
    _session = None


def sweep_leftovers() -> None:
    """Remove the folders of local Rays and of tasks whose processes were killed on this machine."""
    sweep(_session_home(), prefix=_SESSION_PREFIX)
    sweep()


def _import_ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as newer versions do
    try:
        import ray
    except ImportError:
        raise InvalidInput(
            "the engine 'ray' needs Ray, which is not installed: pip install 'pate[ray]'"
        ) from None
    return ray


def _set_token() -> None:
    """Make a secret that this process and its nodes share; it must be set when Ray is imported.

    Without it Ray makes one itself, and keeps it in the user's home.
    """
    if "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _parse_address(address: str | None) -> tuple[str, int] | None:
    if address is None or address == "auto":
        return None
    if address.startswith("ray://"):
        raise InvalidInput(
            f"{address!r} is an address for Ray's client; run pate on a machine of the cluster "
            "('ray start --address=HOST:PORT' makes it one) and write 'ray:HOST:PORT'"
        )
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise InvalidInput(f"{address!r} is not a cluster's address; write HOST:PORT, or auto")
    return host.strip("[]"), int(port)


def _check_same_cluster(ray: ModuleType, address: str | None, host: tuple[str, int] | None) -> None:
    """Reject another cluster than the one in use: private data goes where it was meant to go."""
    if _session is not None:
        same, there = address == _session.address, _session.address or "this machine"
    else:
        there = str(ray.get_runtime_context().gcs_address)
        same = host is None or _endpoints(host) & _endpoints(_parse_address(there)) != set()
    if not same:
        raise InvalidInput(
            f"this process is connected to the Ray cluster at {there} already, and Ray allows one "
            f"connection; use a separate process for {address or 'this machine'}, or that cluster"
        )


def _endpoints(host: tuple[str, int] | None) -> set[tuple[str, int]]:
    """Return the addresses behind a name, with the port."""
    with contextlib.suppress(OSError, TypeError):
        assert host is not None
        return {(str(found[4][0]), host[1]) for found in socket.getaddrinfo(host[0], None)}
    return set()


def _start(ray: ModuleType) -> None:
    """Start a Ray of our own on this machine, for this process.

    Guarantees:
        It listens on this machine only, to processes that have its token. Objects that do not fit
        into memory are spilled to a folder below ``PATE_TASK_FOLDER`` (by default the temporary
        folder), which its owner alone can read and which is removed.
    """
    session = _open_session(None)
    sweep_leftovers()
    try:
        folder = session.folders.enter_context(
            draft_folder(_session_home(), prefix=_SESSION_PREFIX)
        )
        spilling = session.folders.enter_context(draft_folder(task_home(), prefix=TASK_PREFIX))
    except OSError as error:
        disconnect()
        raise PateError(
            f"Ray's folders cannot be made: {error_reason(error)}; set {FOLDER_VARIABLE} or TMPDIR "
            "to a folder that can be written"
        ) from None
    try:
        with _loopback():
            ray.init(
                address="local",
                num_cpus=usable_cores(),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_store_bytes(),
                object_spilling_directory=str(spilling),
                _temp_dir=str(folder / "ray"),  # Ray opens this one to all users
                _node_ip_address="127.0.0.1",
            )
    except Exception as error:
        disconnect()
        raise PateError(
            f"Ray cannot be started on this machine ({type(error).__name__}); "
            "use the engine 'processes', or see what 'ray start --head' prints"
        ) from None


def _attach(ray: ModuleType, address: str, host: tuple[str, int] | None) -> None:
    asked = address
    if address == "auto" and os.environ.get("RAY_ADDRESS"):
        address = os.environ["RAY_ADDRESS"]
        host = _parse_address(address)
    if host is not None:
        try:
            socket.create_connection(host, timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            why = error.strerror or f"no answer in {_CONNECT_SECONDS:g} seconds"
            raise PateError(
                f"cannot reach the Ray cluster at {address}: {why}; check the address"
            ) from None
    _open_session(asked)
    try:
        with _loopback() if host and _is_loopback(host[0]) else contextlib.nullcontext():
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:
        disconnect()
        raise PateError(_refusal(address, error)) from None


def _refusal(address: str, error: Exception) -> str:
    text = str(error)
    if "ersion mismatch" in text:
        return (
            f"the Ray cluster at {address} has another version of Ray or Python than this "
            "machine; install the same on all"
        )
    if address == "auto" and isinstance(error, ConnectionError) and "token" not in text.lower():
        return (
            "no Ray cluster runs on this machine; start one with 'ray start --head', or use 'ray'"
        )
    if isinstance(error, ConnectionError) or "token" in text.lower():
        return (
            f"the Ray cluster at {address} does not let this process in; set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to what it was started with, and check "
            "that this is the address of a Ray cluster"
        )
    return (
        f"cannot join the Ray cluster at {address} ({type(error).__name__}); this machine must be "
        f"part of it: 'ray start --address={address}'"
    )


def _open_session(address: str | None) -> _Session:
    global _session
    _session = _Session(address)
    # Ray prints messages of its nodes between our lines, and no option turns all of them off.
    _import_ray()._private.worker.print_to_stdstream = lambda *_, **__: None
    atexit.unregister(disconnect)
    atexit.register(disconnect)
    return _session


def _answers(ray: Any) -> bool:
    """Return whether the cluster accepts connections; Ray itself would wait for a minute, and then
    end this process.
    """
    with contextlib.suppress(OSError, ValueError):
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
        return True
    return False


def _handle_sigterm(before: Any) -> None:
    """Exit in order on SIGTERM, with the usual status; a handler of the caller's is put back.

    Ray has replaced the handler with one that exits with another status.
    """
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGTERM, _terminate if before == signal.SIG_DFL else before)


def _terminate(*_: object) -> NoReturn:
    if _session is not None:
        _session.terminated = True
    sys.exit(_TERMINATED)


def _is_loopback(host: str) -> bool:
    """Return whether a cluster at this address listens to this machine only."""
    return host in ("localhost", "::1") or host.startswith("127.")


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Make Ray use the loopback address, as it does on a Mac; it has no option for that."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    if before is not None:  # in a version without it, the token is the only guard
        ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if before is not None:
            ray_constants.ENABLE_RAY_CLUSTER = before


def _session_home() -> Path:
    default = Path(tempfile.gettempdir()).absolute()
    return default if len(str(default)) <= _LONGEST_TEMPORARY else Path("/tmp")


def _store_bytes() -> int:
    """Return a size for Ray's object store that fits into shared memory, if Ray accepts so little.

    Where processes can share less, as in many containers, Ray would put its store on a disk.
    """
    size = _MAX_STORE
    with contextlib.suppress(OSError):
        about = os.statvfs("/dev/shm")
        size = min(size, about.f_bavail * about.f_frsize * 8 // 10)
    return max(size, _MIN_STORE)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ray's logger inside the block; afterwards it logs critical errors only."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(max(before, logging.CRITICAL))
