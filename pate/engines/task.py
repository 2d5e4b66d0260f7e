"""Tasks, outcomes and the contract of an engine; the queue and retry rules that engines share.

A :class:`Task` is plain data that travels as JSON. Each attempt at it ends in a :class:`Report`;
the last report becomes the :class:`Outcome` that the caller receives.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, final

from pate._validate import check_positive, check_whole
from pate.errors import InvalidInput

READ_AHEAD = 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One unit of work as plain data: a function's name and its argument.

    The function is called as ``function(payload)`` and returns a dict of plain JSON data; it writes
    large or private results to files itself. Both travel as JSON on every engine, so a tuple
    arrives as a list, and every key of a dict as a string.

    Parameters
    ----------
    key
        Identifies the task among the tasks of one run.
    function
        ``"package.module:name"``; the module must not be ``__main__``.
    payload
        The argument, of plain JSON data. Files are named by references
        (:mod:`pate.engines.files`).
    weight
        The expected duration relative to the other tasks: the heaviest starts first.
    cpus, gpus
        The resources it takes of a cluster. Its libraries use ``int(cpus)`` threads, at least one.

    >>> Task(key="group-3", function="package.module:train", payload={"first": 30})
    Task(key='group-3', function='package.module:train', weight=1.0, cpus=1.0, gpus=0.0)
    """

    key: str
    function: str
    payload: Mapping[str, Any] = field(repr=False)
    weight: float = 1.0
    cpus: float = 1.0
    gpus: float = 0.0
    folder: str | None = field(default=None, repr=False)  # of its files' copies: goes with a driver

    def __post_init__(self) -> None:
        module, colon, name = self.function.partition(":")
        if not (module and colon and name) or module == "__main__":
            raise InvalidInput(
                f"task {self.key!r} names the function {self.function!r}; "
                "write 'package.module:name', of a module that can be imported"
            )
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise InvalidInput(
                f"task {self.key!r} has the weight {self.weight!r}; use a number, 0 or more"
            )
        for name, share in (("cpus", self.cpus), ("gpus", self.gpus)):
            if not (math.isfinite(share) and share >= 0):
                raise InvalidInput(
                    f"task {self.key!r} asks for {share!r} {name}; use a number, 0 or more"
                )
        self.encode()  # rejects a payload that cannot travel where it was made

    @property
    def threads(self) -> int:
        """The number of threads of its libraries, equal on every engine so that rounding is."""
        return max(1, int(self.cpus))

    def encode(self) -> bytes:
        """Return the task as one line of JSON, as a worker receives it, without the newline."""
        try:
            request = {
                "function": self.function,
                "payload": dict(self.payload),
                "threads": self.threads,
                "folder": self.folder,
            }
            return json.dumps(request).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"the payload of task {self.key!r} is not plain JSON data "
                f"({type(error).__name__}); use strings, numbers, lists and dicts"
            ) from None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one attempt at a task, as a worker sends it."""

    result: dict[str, Any] | None = None
    error: str | None = None
    where: str | None = None
    seconds: float = 0.0
    lost: bool = False  # set by the driver: the worker ended without a report

    def encode(self) -> bytes:
        """Return the report as one line of JSON, without the newline."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, line: bytes) -> Report:
        """Return the report that :meth:`encode` wrote."""
        return cls(**json.loads(line))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one task: exactly one of ``result`` and ``error`` is None.

    Guarantees:
        * ``error`` is one line: the message only of a :class:`~pate.errors.PateError` that our
          own code raised, which by rule quotes no record; of any other exception only the type,
          since its message may quote private data. ``where`` names a line of code, never a value.
        * The result is left out of ``repr``, so that a logged outcome shows no metric of
          private data.
    """

    key: str
    result: dict[str, Any] | None = field(repr=False)
    error: str | None
    seconds: float  # duration of the function in the last attempt
    attempts: int  # 1 unless it was retried
    where: str | None = None  # "plugins/mine.py line 12", if an exception came from there

    @property
    def kind(self) -> str | None:
        """The first word of the error: the type of the exception, or ``WorkerDied`` (it crashed or
        was killed), ``NodeLost`` (with its machine), ``TimedOut``.
        """
        return None if self.error is None else self.error.partition(":")[0]

    @property
    def why(self) -> str:
        """The error as a sentence: its message, or its type and place."""
        place = f" in {self.where}" if self.where and self.error == self.kind else ""
        return f"{self.error}{place}"


class Engine(Protocol):
    """Runs tasks somewhere and yields each outcome as soon as it is known.

    Guarantees:
        * Every task yields exactly one outcome. A failed attempt (an exception, a lost worker, a
          timeout) is repeated up to ``retries`` times before it is reported as an error; one whose
          worker was lost up to ``rescues`` times besides.
        * The same task gives the same result on every engine, to the last bit, on machines and
          devices of one kind.
        * The iterator is lazy and its memory does not grow with the number of tasks.
        * Closing the iterator, or an exception in the loop that reads it, ends all work.
    """

    @property
    def name(self) -> str: ...  # as on the command line

    @property
    def slots(self) -> int: ...  # the number of tasks that can run at once

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of this machine, one name for each slot; see :mod:`pate.devices`."""
        ...

    def run(
        self,
        tasks: Iterable[Task],
        *,
        retries: int = 0,
        rescues: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order they finish.

        Parameters
        ----------
        tasks
            Read lazily, a bounded number ahead.
        retries
            Further attempts after a failure of any kind.
        rescues
            Further attempts after a lost worker, which use up no retry.
        timeout
            Seconds for each attempt; None is no limit.
        """
        ...


@final
@dataclass(slots=True)
class Pending:
    """A task that has not ended, and how often it was started."""

    task: Task
    attempts: int = 0
    rescued: int = 0  # attempts that were repeated because a worker was lost

    def outcome(self, report: Report) -> Outcome:
        """Return the task's outcome, given the report of its last attempt."""
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
class RetryPolicy:
    """The number of attempts at a task: a lost worker uses up rescues first, then retries."""

    retries: int = 0
    rescues: int = 0
    timeout: float | None = None  # seconds, for each attempt

    def __post_init__(self) -> None:
        check_whole("retries", self.retries)
        check_whole("rescues", self.rescues)
        if self.timeout is not None:
            check_positive("timeout", self.timeout)

    def tries_again(self, pending: Pending, report: Report) -> bool:
        """Return whether another attempt follows this report; a rescue is counted."""
        if report.error is None:
            return False
        if report.lost and pending.rescued < self.rescues:
            pending.rescued += 1
            return True
        return pending.attempts - pending.rescued <= self.retries


@final
class TaskQueue:
    """The heaviest of the next ``read_ahead`` tasks first, holding no more than those.

    Longest first leaves the short tasks to fill the gaps at the end.

    >>> job = lambda key, weight: Task(key=key, function="m:f", payload={}, weight=weight)
    >>> queue = TaskQueue([job("a", 1), job("b", 3), job("c", 2), job("d", 9)], read_ahead=3)
    >>> [queue.take().task.key for _ in range(len(queue) + 1)]
    ['b', 'd', 'c', 'a']
    """

    def __init__(self, tasks: Iterable[Task], *, read_ahead: int = READ_AHEAD) -> None:
        self._source = iter(tasks)
        self._read_ahead = read_ahead
        self._arrivals = itertools.count()  # equal weights stay in the order of their arrival
        self._heap: list[tuple[float, int, Pending]] = []
        self._refill()

    def __len__(self) -> int:
        """Return the number of tasks in the window; 0 only when none are left at all."""
        return len(self._heap)

    def take(self) -> Pending:
        """Remove and return the heaviest task of the window; the next task takes its place."""
        pending = heapq.heappop(self._heap)[-1]
        self._refill()
        return pending

    def put_back(self, pending: Pending) -> None:
        """Queue a task for another attempt."""
        heapq.heappush(self._heap, (-pending.task.weight, next(self._arrivals), pending))

    def _refill(self) -> None:
        for task in itertools.islice(self._source, max(0, self._read_ahead - len(self._heap))):
            self.put_back(Pending(task))


class Workers(Protocol):
    """The workers of one run, in whatever place."""

    @property
    def busy(self) -> int: ...  # tasks that were taken and not reported

    def assign(self, queue: TaskQueue) -> None: ...  # takes as many tasks as there is room for

    def collect(self) -> list[tuple[Pending, Report]]: ...  # waits a while; attempts that ended


def outcomes(queue: TaskQueue, workers: Workers, policy: RetryPolicy) -> Iterator[Outcome]:
    """Yield the outcome of every task of the queue; attempts that failed are repeated."""
    finished: list[Outcome] = []
    while len(queue) or workers.busy:
        workers.assign(queue)
        yield from finished  # only now: the workers are busy while the caller reads
        finished = []
        for pending, report in workers.collect():
            if policy.tries_again(pending, report):
                queue.put_back(pending)
            else:
                finished.append(pending.outcome(report))
    yield from finished
