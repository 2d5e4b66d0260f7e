"""The engine without machinery: one task after another, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from pate.engines.attempt import Report, attempt
from pate.engines.task import Outcome, Task, check_limits
from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True)
class SerialEngine:
    """Runs tasks in order, in this process: the engine to debug with.

    A task's prints and warnings appear on the screen, a debugger works, and libraries use as many
    threads as they like. A task cannot be stopped from outside, so a timeout is refused, and a
    task that kills its process ends the run.
    """

    name: ClassVar[str] = "serial"

    def run(
        self, tasks: Iterable[Task], *, retries: int = 0, timeout: float | None = None
    ) -> Iterator[Outcome]:
        """Outcomes in the order of the tasks; see :class:`pate.engines.task.Engine`."""
        check_limits(retries=retries, timeout=timeout)
        if timeout is not None:
            raise InvalidInput(
                f"timeout is {timeout:g} seconds, but the serial engine cannot stop a task; "
                "use the engine 'processes', or set no timeout"
            )
        return (_outcome(task, retries) for task in tasks)


def _outcome(task: Task, retries: int) -> Outcome:
    attempts = 0
    while True:
        attempts += 1
        report = Report.decode(attempt(task.order()))
        if report.error is None or attempts > retries:
            return Outcome(
                key=task.key,
                result=report.result,
                error=report.error,
                where=report.where,
                seconds=report.seconds,
                attempts=attempts,
            )
