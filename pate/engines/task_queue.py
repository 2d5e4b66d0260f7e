"""Tasks waiting for a worker: read ahead a little, the heaviest first; and how often each."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from pate.engines.attempt import Report
from pate.engines.task import Outcome, Task, check_limits

READ_AHEAD = 64


@final
@dataclass(slots=True)
class Pending:
    """A task, how often it was begun, and how often of those it was rescued from a lost worker."""

    task: Task
    attempts: int = 0
    rescued: int = 0

    def outcome(self, report: Report) -> Outcome:
        """How the task ended, by the report of its last attempt."""
        return Outcome(
            key=self.task.key,
            result=report.result,
            error=report.error,
            where=report.where,
            seconds=report.seconds,
            attempts=self.attempts,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often a task is tried: a lost worker uses up rescues first, anything else retries.

    >>> patience, job = Patience(rescues=1), Pending(Task(key="k", function="m:f", payload={}))
    >>> job.attempts = 1
    >>> patience.once_more(job, Report(error="WorkerDied", lost=True))
    True
    >>> job.attempts = 2
    >>> patience.once_more(job, Report(error="WorkerDied", lost=True))
    False
    """

    retries: int = 0
    rescues: int = 0
    timeout: float | None = None  # seconds, for each attempt

    def __post_init__(self) -> None:
        check_limits(retries=self.retries, rescues=self.rescues, timeout=self.timeout)

    def once_more(self, pending: Pending, report: Report) -> bool:
        """Whether an attempt that ended so is to be followed by another; a rescue is noted."""
        if report.error is None:
            return False
        if report.lost and pending.rescued < self.rescues:
            pending.rescued += 1
            return True
        return pending.attempts - pending.rescued <= self.retries


@final
class TaskQueue:
    """Hands out the heaviest of the next ``read_ahead`` tasks, and holds no more than those.

    Longest first leaves the short tasks to fill the gaps at the end. An ensemble of up to
    ``read_ahead`` tasks is sorted as a whole; a longer one within a window that moves along.

    >>> job = lambda key, weight: Task(key=key, function="m:f", payload={}, weight=weight)
    >>> queue = TaskQueue([job("a", 1), job("b", 3), job("c", 2), job("d", 9)], read_ahead=3)
    >>> [queue.take().task.key for _ in range(len(queue) + 1)]
    ['b', 'd', 'c', 'a']
    """

    def __init__(self, tasks: Iterable[Task], *, read_ahead: int = READ_AHEAD) -> None:
        self._source = iter(tasks)
        self._read_ahead = read_ahead
        self._arrivals = itertools.count()  # equal weights go in the order they came
        self._heap: list[tuple[float, int, Pending]] = []
        self._refill()

    def __len__(self) -> int:
        """How many are waiting in the window; 0 only when there are no more at all."""
        return len(self._heap)

    def take(self) -> Pending:
        """The heaviest in the window; its place is taken by the next task there is."""
        pending = heapq.heappop(self._heap)[-1]
        self._refill()
        return pending

    def put_back(self, pending: Pending) -> None:
        """Queues a task for another attempt."""
        heapq.heappush(self._heap, (-pending.task.weight, next(self._arrivals), pending))

    def _refill(self) -> None:
        for task in itertools.islice(self._source, max(0, self._read_ahead - len(self._heap))):
            self.put_back(Pending(task))
