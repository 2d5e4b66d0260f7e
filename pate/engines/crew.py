"""Workers on this machine, each on its device: dealt one task at a time, longest first.

A task that ends its worker (a crash in native code, no memory left) costs that worker only: another
takes its place. A timeout is counted from the moment a running worker takes the task and ends the
worker; it is looked at whenever the next outcome is asked for.

Guarantees:
    * When the iterator is closed, raises or is dropped, its workers are killed, with whatever their
      tasks started. When this process dies, they end themselves within a second.
    * Workers show nothing: what a task prints may be private. Debug with ``serial``.
"""

from __future__ import annotations

import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pate.devices import Device, parse_device
from pate.engines.attempt import Report
from pate.engines.task import Outcome, Task
from pate.engines.task_queue import Patience, Pending, TaskQueue
from pate.engines.worker import READY
from pate.engines.worker_process import WorkerProcess
from pate.errors import InvalidInput, PateError

LOOK_AROUND_SECONDS = 1.0
MOST_FAILED_STARTS = 3
MOST_WORKERS = 4096


def require_sane(workers: int) -> None:
    """Refuses more workers than a machine can start."""
    if workers > MOST_WORKERS:
        raise InvalidInput(f"{workers} workers are more than a machine can start; use fewer")


class CrewEngine(ABC):
    """An engine of workers on this machine; which devices they have is for it to say."""

    __slots__ = ()

    @property
    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """One name for each slot. Slots are filled in this order, as far as there are tasks."""

    @property
    def slots(self) -> int:
        """How many workers there can be."""
        return len(self.devices)

    def run(
        self,
        tasks: Iterable[Task],
        *,
        retries: int = 0,
        rescues: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Outcomes in the order they finish; see :class:`pate.engines.task.Engine`."""
        patience = Patience(retries=retries, rescues=rescues, timeout=timeout)
        return _outcomes(tasks, [parse_device(name) for name in self.devices], patience)


def _outcomes(
    tasks: Iterable[Task], slots: Sequence[Device], patience: Patience
) -> Iterator[Outcome]:
    queue = TaskQueue(tasks)
    crew = _Crew(slots, timeout=patience.timeout)
    try:
        finished: list[Outcome] = []
        while True:
            crew.staff(min(len(slots), len(queue) + crew.busy))
            crew.deal(queue)
            yield from finished  # after dealing: the workers go on while the caller reads
            if not crew.busy and not len(queue):
                break
            finished = []
            for pending, report in crew.gather():
                if patience.once_more(pending, report):
                    queue.put_back(pending)
                else:
                    finished.append(pending.outcome(report))
        crew.dismiss()
    finally:
        crew.kill()


@dataclass(slots=True, eq=False)
class _Member:
    """A worker, and what it is doing: starting, waiting for a task, or busy with ``pending``."""

    process: WorkerProcess
    slot: int  # which of the devices it has
    started: bool = False
    pending: Pending | None = None
    since: float = 0.0  # when it took the task


class _Crew:
    """The workers of one run: one for each slot; a new one takes the slot of one that is lost."""

    def __init__(self, slots: Sequence[Device], *, timeout: float | None) -> None:
        self._slots = slots
        self._timeout = timeout
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts = 0
        self._looked = time.monotonic()

    @property
    def busy(self) -> int:
        """How many tasks are with a worker."""
        return sum(member.pending is not None for member in self._members)

    def staff(self, wanted: int) -> None:
        """Starts workers in the first free slots until there are as many as wanted."""
        while len(self._members) < wanted:
            slot = min(set(range(len(self._slots))) - {member.slot for member in self._members})
            device = self._slots[slot]
            try:
                process = WorkerProcess(device, sharers=self._slots.count(device))
            except OSError as error:
                raise PateError(
                    f"worker process {len(self._members) + 1} of {wanted} cannot be started "
                    f"({error.strerror}); use fewer workers, such as 'processes:2'"
                ) from error
            member = _Member(process, slot)
            self._members.append(member)
            self._selector.register(member.process, selectors.EVENT_READ, member)

    def deal(self, queue: TaskQueue) -> None:
        """Gives every waiting worker the heaviest task there is."""
        for member in self._members:
            if not len(queue):
                return
            if member.started and member.pending is None:
                pending = queue.take()
                pending.attempts += 1
                member.pending, member.since = pending, time.monotonic()
                # If the worker has died meanwhile, gather sees its closed socket and reports it.
                member.process.send(pending.task.order())

    def gather(self) -> list[tuple[Pending, Report]]:
        """Waits for news, and says which attempts have ended and how."""
        ended = []
        for key, _ in self._selector.select(self._patience()):
            member: _Member = key.data
            line = member.process.receive()
            if line is None:
                ended += self._lost(member)
            elif member.pending is None:
                member.started = member.started or line == READY
                self._failed_starts = 0
            else:
                ended.append((member.pending, Report.decode(line)))
                member.pending = None
        return ended + self._overdue() + self._silently_gone()

    def _patience(self) -> float:
        """How long to wait for news before something else is due."""
        if self._timeout is None:
            return LOOK_AROUND_SECONDS
        now = time.monotonic()
        left = [m.since + self._timeout - now for m in self._members if m.pending is not None]
        return max(0.0, min([LOOK_AROUND_SECONDS, *left]))

    def _overdue(self) -> list[tuple[Pending, Report]]:
        if self._timeout is None:
            return []
        now, ended = time.monotonic(), []
        for member in list(self._members):
            if member.pending is not None and now - member.since >= self._timeout:
                error = f"TimedOut: no result within {self._timeout:g} seconds"
                ended.append((member.pending, Report(error=error, seconds=now - member.since)))
                self._remove(member)
        return ended

    def _silently_gone(self) -> list[tuple[Pending, Report]]:
        """Workers that ended while a process they had forked keeps their socket open."""
        now = time.monotonic()
        if now - self._looked < LOOK_AROUND_SECONDS:
            return []
        self._looked = now
        gone = [member for member in self._members if member.process.exited()]
        news = {key.data for key, _ in self._selector.select(0)}  # a last report is read first
        return [pair for member in gone if member not in news for pair in self._lost(member)]

    def _lost(self, member: _Member) -> list[tuple[Pending, Report]]:
        """A worker died: its task failed, or it never came up."""
        how = self._remove(member)
        if not member.started:
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS:
                raise PateError(
                    f"{self._failed_starts} worker processes in a row ended {how} before they "
                    "could start; use the engine 'serial', or fewer workers if memory is short"
                )
        if member.pending is None:
            return []
        error = f"WorkerDied: the worker process was ended {how}"
        seconds = time.monotonic() - member.since
        return [(member.pending, Report(error=error, seconds=seconds, lost=True))]

    def _remove(self, member: _Member) -> str:
        self._selector.unregister(member.process)
        self._members.remove(member)
        return member.process.bury()

    def dismiss(self) -> None:
        """Lets idle workers leave in good order."""
        for member in self._members:
            member.process.hang_up()
        for member in list(self._members):
            self._selector.unregister(member.process)
            member.process.see_off()
            self._members.remove(member)

    def kill(self) -> None:
        """Ends every worker that is left, now."""
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.process.bury()
        self._members.clear()
        self._selector.close()
