"""Groups of teachers, and their dispatch to an engine: all at once, then doubtful ones alone.

Guarantees:
    A teacher abstains, or is computed in another place than the recipe gives it, only for what
    happened while no other task was running. While others run beside it, one of them may take all
    memory or time because of its own shard; one record would then reach many votes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from pate.engines import Engine, Outcome, Progress, Task
from pate.engines.files import code
from pate.errors import PateError
from pate.pipeline.stage import Context
from pate.teachers.spec import TeachersSpec, model_for, seed_for

RESCUES = 2  # of a task whose worker was lost, before its teachers are tried one by one
_MAX_SIZE = 32  # large enough to hide the cost of a task, small enough to share the work
_MAX_LINEAR = {"ridge": 64, "logistic": 64}  # so cheap that more of them make one task
_MIN_GROUPS = 8  # where there are teachers enough


class Work(NamedTuple):
    """One task: a group, and its members that are wanted; the others only keep their places."""

    group: list[int]
    wanted: list[int]

    @property
    def name(self) -> str:
        """A name that differs between all work of one run."""
        places = f"teachers-{self.group[0]}-{self.group[-1]}-of-{len(self.group)}"
        return f"{places}-only-{self.wanted[0]}" if len(self.wanted) == 1 else places

    def after_loss(self, lost: list[int]) -> list[Work]:
        """Return the work to try after a lost worker: each in its place, then alone, then none.

        Guarantees:
            In its place among empty ones a teacher is, to the last bit, what it is in its group.
            So the failure of another member does not change how it is rounded.

        >>> Work([3, 4, 5], [3, 4, 5]).after_loss([4, 5])
        [Work(group=[3, 4, 5], wanted=[4]), Work(group=[3, 4, 5], wanted=[5])]
        >>> Work([3, 4, 5], [4]).after_loss([4]), Work([4], [4]).after_loss([4])
        ([Work(group=[4], wanted=[4])], [])
        """
        if len(self.wanted) > 1:
            return [Work(self.group, [number]) for number in lost]
        return alone(lost) if len(self.group) > 1 else []


def groups(spec: TeachersSpec) -> list[list[int]]:
    """Return all teachers in groups of one model.

    A group may take as long as its members together. A time limit is for one teacher: so where
    there is one, models that are not known to be quick form groups of one.

    >>> groups(TeachersSpec(count=5, model="ridge"))
    [[0], [1], [2], [3], [4]]
    >>> [len(group) for group in groups(TeachersSpec(count=100, model="ridge"))]
    [12, 12, 12, 12, 12, 12, 12, 12, 4]

    Guarantees:
        Groups follow from the public section alone, never from data, failures, engines or the
        remains of a killed run: the neighbours of a computation may decide its last bit.
    """
    entries: dict[str, list[int]] = {}
    for number in range(spec.count):
        model = model_for(spec, number)
        entries.setdefault(model.model_dump_json(), []).append(number)
    found: list[list[int]] = []
    for numbers in entries.values():
        name = model_for(spec, numbers[0]).model
        largest = _MAX_LINEAR.get(name, 1 if spec.timeout else _MAX_SIZE)
        size = max(1, min(largest, spec.count // _MIN_GROUPS))
        found += [numbers[start : start + size] for start in range(0, len(numbers), size)]
    return found


def work_for(found: Iterable[list[int]], numbers: Iterable[int]) -> list[Work]:
    """Return the groups that hold one of these teachers, and which they hold."""
    wanted = set(numbers)
    work = [Work(group, [n for n in group if n in wanted]) for group in found]
    return [piece for piece in work if piece.wanted]


def alone(numbers: Iterable[int]) -> list[Work]:
    """Return each teacher as a group of its own."""
    return [Work([number], [number]) for number in numbers]


def group_task(
    context: Context,
    work: Work,
    function: str,
    *,
    member: Callable[[int], dict[str, Any]],
    weight: float,
    attempt: int = 0,
    **payload: Any,
) -> Task:
    """Return the engine's task for some work; ``member`` returns what a wanted teacher needs."""
    spec, plugins = context.recipe.teachers, context.options.plugin_path
    model = model_for(spec, work.group[0]).model_dump(mode="json", exclude={"weight"})
    teachers = []
    for number in work.group:
        seed = seed_for(spec, number, attempt=attempt)
        about = {"number": number, "made_from": None, "model": model, "seed": seed}
        teachers.append(about | (member(number) if number in work.wanted else {}))
    return Task(
        key=work.name,
        function=f"pate.stages.worker:{function}",
        payload=payload
        | {
            "plugins": None if plugins is None else code(plugins),
            "batched": spec.batched,
            "teachers": teachers,
        },
        weight=weight,
        cpus=spec.cpus,
        gpus=spec.gpus,
    )


class WorkResult(NamedTuple):
    """Work that has ended: the teachers that succeeded, and those that failed, with reasons."""

    work: Work
    succeeded: list[int]
    failed: dict[int, str]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """Runs the work of one stage on an engine."""

    engine: Engine
    timeout: float | None  # seconds, for each teacher
    abstaining: bool  # whether a failed teacher casts no vote; then no failure is reported
    task: Callable[[Work], Task]
    weight: Callable[[Work], float]
    missing: Callable[[Work], list[int]]  # the members of a lost group that must be tried again
    failures: Callable[[Work, Outcome], dict[int, str]]
    progress: Progress

    def run(self, todo: Iterable[Work]) -> Iterator[WorkResult]:
        """Yield every wanted teacher once, as succeeded or failed.

        The members of a lost group are tried each in its place. One that is lost there too, or
        would abstain for any reason, is tried again when all others have ended.
        """
        doubtful: list[Work] = []
        for work, outcome in self._run_together(todo):
            failed = self.failures(work, outcome)
            succeeded = [number for number in work.wanted if number not in failed]
            if self.abstaining or (outcome.error is not None and len(work.group) > 1):
                doubtful += [Work(work.group, [number]) for number in failed]
                failed = {}
            yield self._result(work, succeeded, failed)
        for work, outcome in self._run_singly(doubtful):
            failed = self.failures(work, outcome)
            yield self._result(work, [n for n in work.wanted if n not in failed], failed)

    def _result(self, work: Work, succeeded: list[int], failed: dict[int, str]) -> WorkResult:
        self.progress.advance(len(succeeded))
        return WorkResult(work, succeeded, failed)

    def _run_together(self, todo: Iterable[Work]) -> Iterator[tuple[Work, Outcome]]:
        pieces = list(todo)
        while pieces:
            if self.engine.slots > 1:
                # The longest of all first: an engine by itself sorts no more than a window.
                pieces.sort(key=self.weight, reverse=True)
            again: list[Work] = []
            limits: dict[float | None, list[Work]] = {}
            for work in pieces:
                limits.setdefault(self._limit(work), []).append(work)
            for limit, batch in limits.items():
                by_name = {work.name: work for work in batch}
                tasks = map(self.task, batch)
                for outcome in self.engine.run(tasks, rescues=RESCUES, timeout=limit):
                    work = by_name[outcome.key]
                    self._retried(outcome.attempts - 1)
                    if outcome.error is None or len(work.wanted) == 1:
                        yield work, outcome
                        continue
                    lost = self.missing(work)
                    self._retried(len(lost))
                    self.progress.advance(len(work.wanted) - len(lost))
                    again += work.after_loss(lost)
            pieces = again

    def _run_singly(self, todo: Iterable[Work]) -> Iterator[tuple[Work, Outcome]]:
        """Run each in its place, then by itself, while the engine has no other task."""
        pieces = list(todo)
        while pieces:
            work = pieces.pop(0)
            limit = self._limit(work)
            (outcome,) = self.engine.run([self.task(work)], rescues=RESCUES, timeout=limit)
            self._retried(outcome.attempts)
            if outcome.error is not None and len(work.group) > 1:
                pieces[:0] = work.after_loss(work.wanted)
                continue
            if self.abstaining and outcome.kind == "NodeLost":
                # A failure of the machine, or of its other users, is no reason to abstain.
                raise PateError(f"teacher {work.wanted[0]} was lost: {outcome.error}")
            yield work, outcome

    def _limit(self, work: Work) -> float | None:
        """Return the seconds for a group: the time limit of each member together."""
        return None if self.timeout is None else self.timeout * len(work.group)

    def _retried(self, count: int) -> None:
        if not self.abstaining:
            self.progress.retried(count)


def read_failures(outcome: Outcome, wanted: list[int]) -> dict[int, str]:
    """Return the teachers of a task that failed, with reasons; raise what no teacher caused."""
    if outcome.result is None:
        return dict.fromkeys(wanted, outcome.why)
    if outcome.result["stop"]:
        raise PateError(outcome.result["stop"])
    return {int(number): reason for number, reason in outcome.result["failed"].items()}
