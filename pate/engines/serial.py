"""The engine without machinery: one task after another, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from pate.engines.attempt import Report, attempt
from pate.engines.task import Outcome, Task
from pate.engines.task_queue import Patience, Pending
from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True)
class SerialEngine:
    """Runs tasks in order, in this process: the engine to debug with.

    A task's prints and warnings appear on the screen, and a debugger works. A task cannot be
    stopped from outside, so a timeout is refused, and a task that kills its process ends the run:
    there is nobody to rescue it.
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
        """Outcomes in the order of the tasks; see :class:`pate.engines.task.Engine`."""
        patience = Patience(retries=retries, rescues=rescues, timeout=timeout)
        if timeout is not None:
            raise InvalidInput(
                f"timeout is {timeout:g} seconds, but the serial engine cannot stop a task; "
                "use the engine 'processes', or set no timeout"
            )
        return (_outcome(Pending(task), patience) for task in tasks)


def _outcome(pending: Pending, patience: Patience) -> Outcome:
    while True:
        pending.attempts += 1
        report = Report.decode(attempt(pending.task.order()))
        if not patience.once_more(pending, report):
            return pending.outcome(report)
