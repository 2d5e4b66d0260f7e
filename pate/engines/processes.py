"""The engine of worker processes on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from pate.engines.crew import CrewEngine, require_sane
from pate.engines.threads import usable_cores
from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True)
class ProcessEngine(CrewEngine):
    """Runs tasks in fresh interpreters, on the processor, that take task after task.

    See :mod:`pate.engines.crew` for what happens to a worker that is lost.
    """

    workers: int = field(default_factory=usable_cores)

    name: ClassVar[str] = "processes"

    def __post_init__(self) -> None:
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise InvalidInput(f"workers is {self.workers!r}; it must be a whole number, 1 or more")
        require_sane(self.workers)

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu",) * self.workers
