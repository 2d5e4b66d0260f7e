"""A simulated schedule: the use of many slots on a simulated clock, with no work done.

Tasks are taken from the same :class:`~pate.engines.task.TaskQueue` as in engines: whichever slot
is free first takes the heaviest task in the window. A weight is what an engine knows before (the
records of a group), seconds are what it then took; so where the two disagree, the plan is as
imperfect as the real one would be.

>>> done = simulate([Job(1, 1.0), Job(2, 2.0), Job(3, 3.0)], slots=2)
>>> done.makespan, done.lower_bound, done.utilisation
(3.0, 3.0, 1.0)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

from pate.engines.task import READ_AHEAD, Task, TaskQueue
from pate.errors import InvalidInput


class Job(NamedTuple):
    """One task of a recorded run, or of one made up from records."""

    weight: float  # what its engine knew of it
    seconds: float  # what it took


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a simulated run went, in seconds of its clock.

    >>> Schedule(slots=2, tasks=4, makespan=5.0, busy=8.0, longest=3.0).ratio
    1.25
    """

    slots: int
    tasks: int
    makespan: float  # from the first task's start to the last one's end
    busy: float  # what all tasks took together
    longest: float  # what one task took at most

    @property
    def lower_bound(self) -> float:
        """No schedule is shorter than the longest task, or than work that is shared out evenly."""
        return max(self.busy / self.slots, self.longest)

    @property
    def utilisation(self) -> float:
        """The share of all slots' time in which there was work."""
        return self.busy / (self.slots * self.makespan) if self.makespan else 1.0

    @property
    def ratio(self) -> float:
        """The makespan over its lower bound; 1 is perfect."""
        return self.makespan / self.lower_bound if self.makespan else 1.0


def simulate(
    jobs: Iterable[Job], *, slots: int = 64, overhead: float = 0.0, read_ahead: int = READ_AHEAD
) -> Schedule:
    """Assign jobs to slots; ``overhead`` is what a slot waits before each, besides its work.

    Jobs are read as they are needed, so that memory does not grow with their number.

    Guarantees:
        Whatever the weights, the makespan (without overhead) is at most busy / slots +
        (1 − 1/slots) · longest. With weights in the order of seconds and all jobs in the window
        it is at most 4/3 − 1/(3 slots) of the shortest possible (Graham, Bounds on multiprocessing
        timing anomalies, 1969, theorems 1 and 2).
    """
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise InvalidInput(f"slots is {slots!r}; it must be a whole number, 1 or more")
    queue = TaskQueue(_tasks(jobs), read_ahead=read_ahead)
    free = [0.0] * slots  # when each slot has nothing to do; a heap
    makespan = busy = longest = 0.0
    tasks = 0
    while len(queue):
        seconds = queue.take().task.payload["seconds"]
        ends = free[0] + overhead + seconds
        heapq.heapreplace(free, ends)
        tasks, busy = tasks + 1, busy + seconds
        makespan, longest = max(makespan, ends), max(longest, seconds)
    return Schedule(slots=slots, tasks=tasks, makespan=makespan, busy=busy, longest=longest)


def _tasks(jobs: Iterable[Job]) -> Iterator[Task]:
    for number, job in enumerate(jobs):
        if not (math.isfinite(job.seconds) and job.seconds >= 0):
            raise InvalidInput(
                f"job {number} took {job.seconds!r} seconds; use a number, 0 or more"
            )
        yield Task(
            key=str(number),
            function="builtins:dict",  # never called
            payload={"seconds": float(job.seconds)},
            weight=job.weight,
        )
