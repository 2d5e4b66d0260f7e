"""The engine of worker processes on this machine: dealt one task at a time, longest first."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, final

from pate.engines.attempt import Report
from pate.engines.task import Outcome, Task, check_limits
from pate.engines.task_queue import Pending, TaskQueue
from pate.engines.worker import READY
from pate.engines.worker_process import WorkerProcess
from pate.errors import InvalidInput, PateError

LOOK_AROUND_SECONDS = 1.0
MOST_FAILED_STARTS = 3


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@final
@dataclass(frozen=True, slots=True)
class ProcessEngine:
    """Runs tasks in fresh interpreters, one thread each, that take task after task.

    A task that ends its worker (a crash in native code, no memory left) costs that worker only:
    another takes its place. A timeout is counted from the moment a running worker takes the task
    and ends the worker; it is looked at whenever the next outcome is asked for.

    Guarantees:
        * When the iterator is closed, raises or is dropped, its workers are killed, with whatever
          their tasks started. When this process dies, they end themselves within a second.
        * Workers show nothing: what a task prints may be private. Debug with ``serial``.
    """

    workers: int = field(default_factory=usable_cores)

    name: ClassVar[str] = "processes"

    def __post_init__(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise InvalidInput(f"workers is {self.workers!r}; it must be a whole number, 1 or more")

    def run(
        self, tasks: Iterable[Task], *, retries: int = 0, timeout: float | None = None
    ) -> Iterator[Outcome]:
        """Outcomes in the order they finish; see :class:`pate.engines.task.Engine`."""
        check_limits(retries=retries, timeout=timeout)
        return self._outcomes(tasks, retries=retries, timeout=timeout)

    def _outcomes(
        self, tasks: Iterable[Task], *, retries: int, timeout: float | None
    ) -> Iterator[Outcome]:
        queue = TaskQueue(tasks)
        crew = _Crew(timeout=timeout)
        try:
            finished: list[Outcome] = []
            while True:
                crew.staff(min(self.workers, len(queue) + crew.busy))
                crew.deal(queue)
                yield from finished  # after dealing: the workers go on while the caller reads
                if not crew.busy and not len(queue):
                    break
                finished = []
                for pending, report in crew.gather():
                    if report.error is not None and pending.attempts <= retries:
                        queue.put_back(pending)
                    else:
                        finished.append(_outcome(pending, report))
            crew.dismiss()
        finally:
            crew.kill()


def _outcome(pending: Pending, report: Report) -> Outcome:
    return Outcome(
        key=pending.task.key,
        result=report.result,
        error=report.error,
        where=report.where,
        seconds=report.seconds,
        attempts=pending.attempts,
    )


@dataclass(slots=True, eq=False)
class _Member:
    """A worker, and what it is doing: starting, waiting for a task, or busy with ``pending``."""

    process: WorkerProcess
    started: bool = False
    pending: Pending | None = None
    since: float = 0.0  # when it took the task


class _Crew:
    """The workers of one run."""

    def __init__(self, *, timeout: float | None) -> None:
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
        """Starts workers until there are as many as wanted."""
        while len(self._members) < wanted:
            try:
                member = _Member(WorkerProcess())
            except OSError as error:
                raise PateError(
                    f"worker process {len(self._members) + 1} of {wanted} cannot be started "
                    f"({error.strerror}); use fewer workers, such as 'processes:2'"
                ) from error
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
        return [(member.pending, Report(error=error, seconds=time.monotonic() - member.since))]

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
