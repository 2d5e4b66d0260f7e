"""The serial engine: one task after another, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from pate.engines.task import Outcome, Pending, Report, RetryPolicy, Task
from pate.engines.worker import attempt
from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True)
class SerialEngine:
    """Run tasks in order, in this process: the engine to debug with.

    A task's prints and warnings appear on the screen, and a debugger works. A task cannot be
    stopped from outside, so a timeout is refused, and a task that kills its process ends the run.
    """

    name: ClassVar[str] = "serial"

    @property
    def slots(self) -> int:
        return 1

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def run(
        self,
        tasks: Iterable[Task],
        *,
        retries: int = 0,
        rescues: int = 0,
        timeout: float | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order of the tasks; see :class:`pate.engines.task.Engine`."""
        policy = RetryPolicy(retries=retries, rescues=rescues, timeout=timeout)
        if timeout is not None:
            raise InvalidInput(
                f"timeout is {timeout:g} seconds, but the serial engine cannot stop a task; "
                "use the engine 'processes', or set no timeout"
            )
        return (_outcome(Pending(task), policy) for task in tasks)


def _outcome(pending: Pending, policy: RetryPolicy) -> Outcome:
    while True:
        pending.attempts += 1
        report = Report.decode(attempt(pending.task.encode()))
        if not policy.tries_again(pending, report):
            return pending.outcome(report)
