"""Callbacks for experiment trackers: what may be known of a run, once it is over.

A tracker is often shared with people who may not see private records. So no value reaches one that
is not a :class:`Metric`, and a metric is PUBLIC or RELEASED by its type and by the artifact that it
is read from.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, Self, final, runtime_checkable

from pate.artifacts import Artifact, Level, StoreError
from pate.artifacts.results import Costs, Evaluation, Labels
from pate.errors import InvalidInput, PateError
from pate.pipeline.runner import PipelineRun
from pate.untrusted import run_untrusted

StageState = Literal["done", "left out"]


@runtime_checkable
class Callback(Protocol):
    """A tracker of runs: ``pate.run(..., callbacks=[tracker])``.

    Guarantees:
        * Both methods are called when the run is over: the moment of a call within it would tell
          how long private stages took. A run that fails calls nothing, since that may depend on
          private records too.
        * Which calls come, and in which order, follows from the recipe alone. A result that was
          kept is reported as one that was made anew: whether a stage ran, and so how long it took,
          depends on whether private records changed. Only released values can show such a change:
          labels that are drawn again, and paid for again, differ from those before.
    """

    def on_stage(self, name: str, state: StageState) -> None:
        """Take the state of a stage.

        Parameters
        ----------
        name : str
            The name of the stage.
        state : {"done", "left out"}
            ``"done"``, in this run or before; ``"left out"`` after ``until``.
        """

    def on_metric(self, name: str, value: float) -> None:
        """Take a number that may be published.

        Parameters
        ----------
        name : str
            The name of the metric, such as ``"epsilon"`` or ``"student_accuracy"``.
        value : float
            Its value.
        """


@final
@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a tracker may be given.

    Guarantees:
        Its level is PUBLIC or RELEASED; another one is an error to a type checker, and when it is
        made.

    >>> Metric("teachers", 250, Level.PUBLIC).value
    250
    """

    name: str
    value: float
    level: Literal[Level.PUBLIC, Level.RELEASED]

    def __post_init__(self) -> None:
        if self.level not in (Level.PUBLIC, Level.RELEASED):
            raise StoreError(f"{self.name} is {self.level.name}; no tracker may be given it")
        if not math.isfinite(self.value):
            raise InvalidInput(f"{self.name} is {self.value}, which is not a number to track")

    @classmethod
    def of(cls, artifact: Artifact, name: str, value: float) -> Self:
        """Return a metric that was read from an artifact; refuse what is PRIVATE."""
        # Any level: only here, since it is checked when made. Were it allowed, mypy would complain.
        return cls(name, value, artifact.level)  # type: ignore[arg-type]


def require_trackers(callbacks: Sequence[Callback]) -> None:
    """Refuse what is no tracker, before anything is run or paid for."""
    if not isinstance(callbacks, Sequence):
        raise InvalidInput(f"callbacks is a {type(callbacks).__name__}; give a list of trackers")
    for callback in callbacks:
        for method, values in (("on_stage", ("name", "state")), ("on_metric", ("name", "value"))):
            try:
                inspect.signature(getattr(callback, method, None)).bind(*values)  # type: ignore[arg-type]
            except ValueError:  # one of C has none to check
                continue
            except TypeError:
                raise InvalidInput(
                    f"callbacks has a {type(callback).__name__}, which is no pate.Callback: give "
                    f"an object with {method}({', '.join(values)})"
                ) from None


def call_back(run: PipelineRun, callbacks: Sequence[Callback], *, until: str | None = None) -> None:
    """Give trackers what may be known of a run that was executed.

    One that raises does not keep the others from being called; the first error is raised then.
    """
    names = [stage.name for stage in run.stages]
    last = len(names) if until is None else names.index(until) + 1
    metrics = list(_metrics(run, set(names[:last])))

    def give(callback: Callback) -> None:
        for at, name in enumerate(names):
            callback.on_stage(name, "done" if at < last else "left out")
        for metric in metrics:
            callback.on_metric(metric.name, float(metric.value))

    problems = []
    for callback in callbacks:
        try:
            run_untrusted(
                f"tracker {type(callback).__name__}",
                partial(give, callback),
                private=True,
                error=PateError,
                advice=f"; the run is done: pate.open_run({str(run.folder)!r})",
                silent=False,
            )
        except PateError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]


def _metrics(run: PipelineRun, done: set[str]) -> Iterator[Metric]:
    """Yield what is public or released of the stages that are done."""
    recipe = run.recipe
    if not recipe.by_records:
        yield Metric("teachers", recipe.teachers.count, Level.PUBLIC)
    if "aggregate" in done:
        artifact = _released(run, "aggregate")
        labels = Labels.load(artifact)
        yield Metric.of(artifact, "planned_queries", labels.plan.queries)
        yield Metric.of(artifact, "planned_answers", labels.plan.answers)
        for name in ("asked", "answered", "kept"):
            yield Metric.of(artifact, name, len(getattr(labels, name)))
        yield Metric.of(artifact, "not_private", labels.seeded)
    if "account" in done:
        artifact = _released(run, "account")
        costs = Costs.load(artifact)
        if costs.guarantee.publishable and not costs.seeded:
            yield Metric.of(artifact, "epsilon", costs.guarantee.epsilon)
            yield Metric.of(artifact, "delta", costs.guarantee.delta)
    if "evaluate" in done:
        artifact = _released(run, "evaluate")
        evaluation = Evaluation.load(artifact)
        for name in ("student", "labels", "agreement"):
            if (share := getattr(evaluation, name)) is not None:
                yield Metric.of(artifact, f"{name}_accuracy", share.accuracy)


def _released(run: PipelineRun, name: str) -> Artifact:
    """Open an artifact as somebody who may read what is RELEASED, and nothing above."""
    found = run.find(name)
    if found is None:
        raise InvalidInput(f"{name} of {run.folder} is not there; run the recipe again")
    return run.store.cleared("tracker", Level.RELEASED).open(name, found.manifest["made_from"])
