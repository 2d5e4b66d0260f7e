"""Worker processes on this machine, on the processor or on GPUs; the longest task goes first.

Devices are named as in :mod:`pate.devices`. ``cpu`` is one too: ``gpus:cpu,cpu`` behaves the same
way, so that a plan can be tried without a GPU.

A task that ends its worker (a crash in native code, no memory left) costs that worker only: another
takes its place. A timeout counts from the moment a worker has loaded the modules of the task and
ends the worker; it is checked whenever the next outcome is asked for.

Guarantees:
    * When the iterator is closed, raises or is dropped, its workers are killed, with whatever their
      tasks started. When this process dies, they end themselves within a second.
    * The output of workers is discarded: a task may print private data. Debug with ``serial``.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import ClassVar, final

from pate._validate import check_whole
from pate.devices import Device, parse_device, pinned
from pate.engines.task import Outcome, Pending, Report, RetryPolicy, Task, TaskQueue, outcomes
from pate.engines.worker import BEGUN, READY, THREADS, thread_variables, usable_cores
from pate.errors import InvalidInput, PateError

_CHECK_SECONDS = 1.0
_CHUNK = 1 << 20  # bytes of reports read at once
_EXIT_SECONDS = 2.0
_LOAD_SECONDS = 120.0  # beyond a timeout, for a worker that has yet to load modules
_MAX_FAILED_STARTS = 3
_MAX_WORKERS = 4096  # more than a machine can start

# The worker searches for modules where the driver does, the user's own plug-ins included; until
# it knows where, -P keeps a json.py in the working directory from shadowing the real one.
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from pate.engines.worker import main; main(int(sys.argv[1]))"
)


_GPU_USAGE = (
    "write the devices after a colon, such as 'gpus:0,1', or 'gpus:0,1@3' for 3 workers on each"
)


class WorkerPoolEngine(ABC):
    """An engine of worker processes on this machine; subclasses name their devices."""

    __slots__ = ()

    @property
    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """One name for each slot. Slots are filled in this order, as far as there are tasks."""

    @property
    def slots(self) -> int:
        """The largest number of workers."""
        return len(self.devices)

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
        pool = WorkerPool([parse_device(name) for name in self.devices], timeout=policy.timeout)
        try:
            yield from outcomes(TaskQueue(tasks), pool, policy)
            pool.close()
        finally:
            pool.kill()


@final
@dataclass(frozen=True, slots=True)
class ProcessEngine(WorkerPoolEngine):
    """Run tasks in fresh interpreters on the processor, each of which takes task after task."""

    workers: int = field(default_factory=usable_cores)

    name: ClassVar[str] = "processes"

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, least=1, most=_MAX_WORKERS)

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu",) * self.workers


def _visible_gpus() -> tuple[str, ...]:
    """Return all GPUs that torch can use in this process: those of CUDA, and Apple's."""
    import torch

    cuda = tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
    return cuda + (("mps",) if torch.backends.mps.is_available() else ())


@final
@dataclass(frozen=True, slots=True)
class GpuEngine(WorkerPoolEngine):
    """Run tasks in fresh interpreters, each of which sees one device only."""

    devices: tuple[str, ...]  # one for each slot, once made
    workers_each: InitVar[int] = 1

    name: ClassVar[str] = "gpus"

    def __post_init__(self, workers_each: int) -> None:
        check_whole("workers_each", workers_each, least=1, most=_MAX_WORKERS)
        if not self.devices:
            raise InvalidInput("no GPU was found; use 'processes', or name slots: 'gpus:cpu,cpu'")
        names = tuple(str(parse_device(text)) for text in self.devices)
        wanted = [name for name in names if name != "cpu"]
        seen = _visible_gpus() if wanted else ()  # torch is imported only if a GPU is named
        for name in wanted:
            if name not in seen:
                there = f"there is {', '.join(seen)}" if seen else "there is none"
                raise InvalidInput(f"no GPU {name!r} was found, {there}; name others, or 'cpu'")
        # All devices once, then all of them again: few tasks still use every GPU.
        object.__setattr__(self, "devices", names * workers_each)

    @classmethod
    def from_option(cls, option: str | None) -> GpuEngine:
        """Return the engine of ``gpus:OPTION``, such as ``0,1@3``; without devices, on all GPUs."""
        named, at, count = (option or "").partition("@")
        if option == "":
            raise InvalidInput(f"no device is named after 'gpus:'; {_GPU_USAGE}")
        if at and not (count.isascii() and count.isdecimal() and int(count) > 0):
            raise InvalidInput(f"{count!r} is not a number of workers; {_GPU_USAGE}")
        if named:
            return cls(tuple(named.split(",")), int(count or 1))
        gpus = _visible_gpus()
        cuda = tuple(name for name in gpus if name != "mps")
        return cls(cuda or gpus, int(count or 1))


@final
class WorkerPool:
    """The workers of one run, one for each slot; a new one takes the slot of one that is lost.

    ``sharers`` is the number of workers on each device, if they are not all of this pool.
    """

    def __init__(
        self,
        slots: Sequence[Device],
        *,
        timeout: float | None = None,
        sharers: int | None = None,
    ) -> None:
        self._slots = slots
        self._sharers = sharers
        self.timeout = timeout
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts = 0
        self._checked = time.monotonic()

    @property
    def busy(self) -> int:
        """The number of tasks that workers are running."""
        return sum(worker.pending is not None for worker in self._workers)

    def _start_workers(self, wanted: int) -> None:
        """Start workers in the first free slots until there are ``wanted``."""
        while len(self._workers) < wanted:
            slot = min(set(range(len(self._slots))) - {worker.slot for worker in self._workers})
            device = self._slots[slot]
            try:
                sharers = self._sharers or self._slots.count(device)
                worker = _Worker(device, slot=slot, sharers=sharers)
            except OSError as error:
                raise PateError(
                    f"worker process {len(self._workers) + 1} of {wanted} cannot be started "
                    f"({error.strerror}); use fewer workers, such as 'processes:2'"
                ) from error
            self._workers.append(worker)
            self._selector.register(worker, selectors.EVENT_READ, worker)

    def assign(self, queue: TaskQueue) -> None:
        """Send every idle worker the heaviest task of the queue; start workers for the others."""
        self._start_workers(min(len(self._slots), len(queue) + self.busy))
        for worker in self._workers:
            if not len(queue):
                return
            if worker.started and worker.pending is None:
                pending = queue.take()
                pending.attempts += 1
                worker.pending, worker.since = pending, time.monotonic()
                worker.begun = False
                # If the worker has died meanwhile, collect finds its closed socket.
                worker.send(pending.task.encode())

    def collect(self) -> list[tuple[Pending, Report]]:
        """Wait for events and return the attempts that have ended, with their reports."""
        ended = []
        for key, _ in self._selector.select(self._wait_seconds()):
            worker: _Worker = key.data
            lines = worker.receive()
            if lines is None:
                ended += self._lost(worker)
            for line in lines or ():
                if worker.pending is None:
                    worker.started = worker.started or line == READY
                    self._failed_starts = 0
                elif line == BEGUN:
                    worker.begun, worker.since = True, time.monotonic()
                else:
                    ended.append((worker.pending, Report.decode(line)))
                    worker.pending = None
        return ended + self._timed_out() + self._exited()

    def _wait_seconds(self) -> float:
        if self.timeout is None:
            return _CHECK_SECONDS
        left = [self.timeout - worker.spent() for worker in self._workers if worker.pending]
        return max(0.0, min([_CHECK_SECONDS, *left]))

    def _timed_out(self) -> list[tuple[Pending, Report]]:
        if self.timeout is None:
            return []
        ended = []
        for worker in list(self._workers):
            if worker.pending is not None and worker.spent() >= self.timeout:
                error = f"TimedOut: no result within {self.timeout:g} seconds"
                seconds = time.monotonic() - worker.since
                ended.append((worker.pending, Report(error=error, seconds=seconds)))
                self._remove(worker)
        return ended

    def _exited(self) -> list[tuple[Pending, Report]]:
        """Workers that ended while a process they had forked keeps their socket open."""
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return []
        self._checked = now
        exited = [worker for worker in self._workers if worker.exited()]
        readable = {key.data for key, _ in self._selector.select(0)}  # a last report is read first
        return [pair for w in exited if w not in readable for pair in self._lost(w)]

    def _lost(self, worker: _Worker) -> list[tuple[Pending, Report]]:
        """Remove a worker that died, with its task or before it had started."""
        how = self._remove(worker)
        if not worker.started:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise PateError(
                    f"{self._failed_starts} worker processes in a row ended {how} before they "
                    "could start; use the engine 'serial', or fewer workers if memory is short"
                )
        if worker.pending is None:
            return []
        error = f"WorkerDied: the worker process was ended {how}"
        seconds = time.monotonic() - worker.since
        return [(worker.pending, Report(error=error, seconds=seconds, lost=True))]

    def _remove(self, worker: _Worker) -> str:
        self._selector.unregister(worker)
        self._workers.remove(worker)
        return worker.terminate()

    def close(self) -> None:
        """Let idle workers exit by themselves."""
        for worker in self._workers:
            worker.close_input()
        for worker in list(self._workers):
            self._selector.unregister(worker)
            worker.join()
            self._workers.remove(worker)

    def kill(self) -> None:
        """Kill all remaining workers, the signals first."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.terminate()
        self._workers.clear()
        self._selector.close()


@final
class _Worker:
    """A worker process, seen from the driver: starting, idle, or busy with ``pending``.

    It is a fresh interpreter in a process group of its own: so whatever a task starts can be ended
    with it, and Ctrl-C reaches the driver alone.

    Guarantees:
        A task may print or warn of private data, so all output is discarded.
    """

    def __init__(self, device: Device, *, slot: int, sharers: int) -> None:
        self.slot = slot  # the index of its device
        self.started = False
        self.pending: Pending | None = None
        self.begun = False  # has loaded the modules of the task
        self.since = 0.0  # when it received the task, then when it began it
        settings = {**os.environ, **thread_variables(THREADS), **pinned(device, sharers=sharers)}
        ours, theirs = socket.socketpair()
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _START, str(theirs.fileno()), path],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=settings,
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        self._connection = ours
        self._partial = b""  # of a line

    def spent(self) -> float:
        """Return the seconds of a task's timeout that have passed; below zero while loading."""
        allowance = 0.0 if self.begun else _LOAD_SECONDS
        return time.monotonic() - self.since - allowance

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is a report or the worker is gone."""
        return self._connection.fileno()

    def send(self, request: bytes) -> None:
        """Send an encoded task; a worker that is gone is noticed by :meth:`receive`."""
        with contextlib.suppress(OSError):
            self._connection.sendall(request + b"\n")

    def receive(self) -> list[bytes] | None:
        """Return the lines that have arrived, perhaps none; None if the worker is gone."""
        try:
            arrived = self._connection.recv(_CHUNK)
        except OSError:
            return None
        *lines, self._partial = (self._partial + arrived).split(b"\n")
        return lines if arrived else None

    def exited(self) -> bool:
        """Return whether the process has ended, even if a process it started holds the socket."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT  # seen, not reaped: see kill
        try:
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """Send SIGKILL to the worker and all it started; :meth:`terminate` must follow."""
        if self._process.returncode is None:  # not yet reaped, so the pid is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def terminate(self) -> str:
        """Kill what is left of the worker and return how it ended: ``"by signal SIGKILL"``."""
        self.kill()
        code = self._process.wait()
        self._connection.close()
        return f"with exit code {code}" if code >= 0 else f"by signal {_signal_name(-code)}"

    def close_input(self) -> None:
        """Ask an idle worker to exit; :meth:`join` must follow."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        """Wait briefly for the worker to exit by itself, then end it."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while not self.exited() and time.monotonic() < deadline:
            time.sleep(0.005)
        self.terminate()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
