"""Handing out work to an engine: all of it at once, then what is in doubt while nothing else runs.

Guarantees:
    A teacher abstains, or is computed in another place than the recipe gives it, only for what
    happened while it alone was at work. While others work beside it, one of them may take all
    memory or time, for what is in its own shard; for such a reason one record would reach many
    votes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from pate.engines import Engine, Outcome, Progress, Task
from pate.errors import PateError
from pate.stages.groups import Work, runs

RESCUES = 2  # of a task whose worker was lost, before its teachers are tried one by one


class Settled(NamedTuple):
    """Work that has ended: for whom all is well, and who failed, and why."""

    work: Work
    fine: list[int]
    failed: dict[int, str]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dealer:
    """How one stage hands out its work."""

    engine: Engine
    timeout: float | None  # seconds, for each teacher
    abstaining: bool  # whether who fails casts no vote; nobody is told then that anyone did
    task: Callable[[Work], Task]
    weight: Callable[[Work], float]
    missing: Callable[[Work], list[int]]  # who of a lost group has to be tried again
    failures: Callable[[Work, Outcome], dict[int, str]]
    shown: Progress

    def settle(self, todo: Iterable[Work]) -> Iterator[Settled]:
        """Every teacher that was asked for, once: fine or failed.

        The members of a group that was lost are tried each in its place. Who is lost there too, or
        is to abstain for whatever reason, is tried again when all others have ended.
        """
        doubtful: list[Work] = []
        for work, outcome in self._all(todo):
            failed = self.failures(work, outcome)
            fine = [number for number in work.wanted if number not in failed]
            if self.abstaining or (outcome.error is not None and len(work.group) > 1):
                doubtful += [Work(work.group, [number]) for number in failed]
                failed = {}
            yield self._settled(work, fine, failed)
        for work, outcome in self._one_by_one(doubtful):
            failed = self.failures(work, outcome)
            yield self._settled(work, [n for n in work.wanted if n not in failed], failed)

    def _settled(self, work: Work, fine: list[int], failed: dict[int, str]) -> Settled:
        self.shown.advance(len(fine))
        return Settled(work, fine, failed)

    def _all(self, todo: Iterable[Work]) -> Iterator[tuple[Work, Outcome]]:
        pieces = list(todo)
        while pieces:
            if self.engine.slots > 1:
                # The longest of all first: an engine by itself looks no further than a window.
                pieces.sort(key=self.weight, reverse=True)
            again: list[Work] = []
            for run in runs(pieces, timeout=self.timeout):
                named = {key_of(work): work for work in run.work}
                tasks = map(self.task, run.work)
                for outcome in self.engine.run(tasks, rescues=RESCUES, timeout=run.timeout):
                    work = named[outcome.key]
                    self._retried(outcome.attempts - 1)
                    if outcome.error is None or len(work.wanted) == 1:
                        yield work, outcome
                        continue
                    lost = self.missing(work)
                    self._retried(len(lost))
                    self.shown.advance(len(work.wanted) - len(lost))
                    again += work.again(lost)
            pieces = again

    def _one_by_one(self, todo: Iterable[Work]) -> Iterator[tuple[Work, Outcome]]:
        """Each in its place, then by itself, while no other task is with the engine."""
        pieces = list(todo)
        while pieces:
            work = pieces.pop(0)
            (run,) = runs([work], timeout=self.timeout)
            (outcome,) = self.engine.run([self.task(work)], rescues=RESCUES, timeout=run.timeout)
            self._retried(outcome.attempts)
            if outcome.error is not None and len(work.group) > 1:
                pieces[:0] = work.again(work.wanted)
                continue
            if self.abstaining and outcome.kind == "NodeLost":
                # A machine's failure, or of others who use it: no reason to abstain.
                raise PateError(f"teacher {work.wanted[0]} was lost: {outcome.error}")
            yield work, outcome

    def _retried(self, count: int) -> None:
        if not self.abstaining:
            self.shown.retried(count)


def key_of(work: Work) -> str:
    """What an engine calls the work."""
    return f"teachers-{work.name}"


def read_failures(result: Mapping[str, Any] | None, why: str, wanted: list[int]) -> dict[int, str]:
    """Which teachers of a task failed, and why; what no teacher is to blame for is raised."""
    if result is None:
        return dict.fromkeys(wanted, why)
    if result["stop"]:
        raise PateError(result["stop"])
    return {int(number): reason for number, reason in result["failed"].items()}
