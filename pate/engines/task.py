"""What an engine is given, what it gives back, and what it promises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One piece of work as plain data: which function, called with what.

    The function is called as ``function(payload)`` and returns a dict of plain JSON data; what is
    big or private it writes to files itself. Both travel as JSON on every engine, so a tuple
    arrives as a list, and a key of a dict as a string.

    >>> Task(key="teacher-30", function="pate.stages.at_work:train", payload={"first": 30})
    Task(key='teacher-30', function='pate.stages.at_work:train', weight=1.0, cpus=1.0, gpus=0.0)
    """

    key: str  # unique among the tasks of one run
    function: str  # "package.module:name"; it must not be in __main__
    payload: Mapping[str, Any] = field(repr=False)
    weight: float = 1.0  # expected duration, relative to the others: the heaviest starts first
    cpus: float = 1.0  # what it takes of a cluster; a task uses so many threads, and at least one
    gpus: float = 0.0

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
        self.order()  # a payload that cannot travel is found here, where it was made

    @property
    def threads(self) -> int:
        """How many threads its libraries may use: the same on every engine, so that rounding is.

        >>> Task(key="k", function="m:f", payload={}, cpus=2.5).threads
        2
        """
        return max(1, int(self.cpus))

    def order(self) -> bytes:
        """The task as one line of JSON, as a worker receives it (without the line's end)."""
        try:
            payload = dict(self.payload)
            order = {"function": self.function, "payload": payload, "threads": self.threads}
            return json.dumps(order).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"the payload of task {self.key!r} is not plain JSON data "
                f"({type(error).__name__}); use strings, numbers, lists and dicts"
            ) from None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one task ended: exactly one of ``result`` and ``error`` is None.

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
    seconds: float  # how long the function took, in the last attempt
    attempts: int  # 1 unless it was retried
    where: str | None = None  # "plugins/mine.py line 12", if an exception came from there

    @property
    def kind(self) -> str | None:
        """The first word of the error: the type of what was raised, or WorkerDied (it crashed, or
        was killed), NodeLost (with the machine it was on), TimedOut.
        """
        return None if self.error is None else self.error.partition(":")[0]

    @property
    def why(self) -> str:
        """The error as a sentence: its message, or its type and place."""
        place = f" in {self.where}" if self.where and self.error == self.kind else ""
        return f"{self.error}{place}"


class Engine(Protocol):
    """Carries out tasks somewhere, and hands over each outcome when it is there.

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
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def slots(self) -> int:
        """How many tasks can run at once."""
        ...

    @property
    def devices(self) -> tuple[str, ...]:
        """Where work on this machine runs: one name for each slot; see :mod:`pate.devices`."""
        ...

    def run(
        self,
        tasks: Iterable[Task],
        *,
        retries: int = 0,
        rescues: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Outcomes in the order they finish; ``timeout`` is in seconds, for each attempt."""
        ...


def check_limits(*, retries: int, rescues: int, timeout: float | None) -> None:
    """Refuses limits that mean nothing."""
    for name, times in (("retries", retries), ("rescues", rescues)):
        if isinstance(times, bool) or not isinstance(times, int) or times < 0:
            raise InvalidInput(f"{name} is {times!r}; it must be a whole number, 0 or more")
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise InvalidInput(f"timeout is {timeout!r}; it must be a positive number of seconds")
