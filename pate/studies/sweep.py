"""Sweeps: every point of a grid as a run in one folder, and what looking at all of them costs.

Each point alone costs its own ε, if it was fixed before any result was seen. Whoever chooses the
best of them by its result, or publishes them all, has spent the cost of the study
(:mod:`pate.studies.study`). A sweep that was killed resumes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pate.accounting import Conversion, Event, Ledger, compose
from pate.accounting.ledger.study_costs import StudyCost, study_cost
from pate.artifacts import fingerprint
from pate.artifacts.results import Answers
from pate.errors import BudgetExceeded
from pate.mechanisms import Plan
from pate.pipeline.ledger import open_ledger
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Options, producer
from pate.recipes.read import as_settings
from pate.stages.catalogue import STAGES
from pate.stages.exactly_once import require_paid
from pate.stages.selection import require_made
from pate.studies.grid import Grid, Point, read_grid
from pate.studies.plots import plot_sweep
from pate.studies.study import is_paid, require_own_labels, tag_of
from pate.studies.tables import SweepRow, require_same_noise, write_sweep_table

_BETWEEN_PLOTS = 20.0  # seconds: a plot takes a second, a small point less than that
_REST = 20  # times as long as a plot took: most of the time goes into points
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The finished points of a sweep in the order given, and what they cost together."""

    grid: Grid
    folder: Path
    rows: tuple[SweepRow, ...]
    cost: StudyCost
    seeded: bool

    @property
    def complete(self) -> bool:
        return len(self.rows) == len(self.grid.points)

    @property
    def deltas(self) -> str:
        """The δ of the points: one, unless it was varied."""
        return ", ".join(f"{delta:g}" for delta in dict.fromkeys(row.delta for row in self.rows))

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``sweep.json``."""
        cost = self.cost
        return {
            "format": _FORMAT,
            "name": self.grid.name,
            "data": self.grid.points[0].recipe.data.name,
            "study": cost.name,
            "over": {axis.key: list(axis.values) for axis in self.grid.axes},
            "points": len(self.grid.points),
            "complete": self.complete,
            "seeded": self.seeded,
            "rows": [row.as_json(self.grid) for row in self.rows],
            "together": {
                "releases": cost.releases,
                "unpaid": cost.unpaid,
                "epsilon": cost.guarantee.epsilon,
                "delta": cost.guarantee.delta,
                "planned_in_advance": cost.in_advance,
            },
        }


def sweep(
    recipe: str,
    *,
    over: Mapping[str, Sequence[Any]] | Sequence[str],
    set: Mapping[str, Any] | Sequence[str] | None = None,
    out: Path | str | None = None,
    options: Options,
) -> Sweep:
    """Run every combination of some settings in one folder; what points share is made once.

    The arguments are those of :func:`pate.sweep`, with ready ``options``. The folder, by default
    ``runs/NAME-sweep``, is the sweep's own; in the end it holds ``sweep.json``, ``.csv``, ``.png``
    and ``.svg``, and is the run folder of the first point.

    Guarantees:
        Nothing is charged before all points are planned, the ledger has recorded the plan, and the
        budget has room for all of it. Every charge carries the study's tag; a point that is done is
        never charged again.
    """
    grid = read_grid(recipe, over, as_settings(set))
    folder = Path("runs") / f"{grid.name}-sweep" if out is None else Path(out)
    return PointRuns.of(grid, folder, options).execute()


@dataclass(frozen=True, kw_only=True)
class PointRuns:
    """The points of a sweep as runs in one folder: what two of them share is made once."""

    grid: Grid
    folder: Path
    options: Options  # one object for all points: the user's own data are then read once

    @classmethod
    def of(cls, grid: Grid, folder: Path, options: Options) -> PointRuns:
        """Return the runs of a sweep whose charges carry the tag of its folder."""
        return cls(
            grid=grid, folder=folder, options=replace(options, study=tag_of("sweep", folder))
        )

    @property
    def tag(self) -> str:
        assert self.options.study is not None
        return self.options.study

    @property
    def seeded(self) -> bool:
        return self.options.insecure_seed is not None

    def run(self, point: Point) -> PipelineRun:
        return PipelineRun(
            folder=self.folder, recipe=point.recipe, stages=STAGES, options=self.options
        )

    # --- what points share ------------------------------------------------------------------------

    @cached_property
    def _origins(self) -> Mapping[int, Mapping[str, str]]:
        """What the stages of each point follow from, by its number and the stage's name."""
        return {point.number: self._origins_of(point.recipe) for point in self.grid.points}

    def _origins_of(self, recipe: Recipe) -> dict[str, str]:
        """Return a digest of what each stage's result follows from, by settings alone.

        Two points with one origin of a stage share its result, and its cost. Two origins may still
        lead to one result (another way to the same public features): then there is less to pay than
        these suggest, never more.
        """
        known: dict[str, str] = {}
        for stage in STAGES:
            above = [known[producer(need)] for need in stage.needs]
            known[stage.name] = fingerprint(stage.name, stage.settings(recipe, self.options), above)
        return known

    @cached_property
    def in_order(self) -> list[Point]:
        """The points, so that those which share a stage are adjacent, early stages first."""
        ranks: list[dict[str, int]] = [{} for _ in STAGES]

        def rank(point: Point) -> tuple[int, ...]:
            return tuple(
                seen.setdefault(self._origins[point.number][stage.name], len(seen))
                for seen, stage in zip(ranks, STAGES, strict=True)
            )

        return sorted(self.grid.points, key=rank)

    def one_of_each(self, stage: str) -> list[Point]:
        """Return the first point, in the order of running, for each result of a stage."""
        found: dict[str, Point] = {}
        for point in self.in_order:
            found.setdefault(self._origins[point.number][stage], point)
        return list(found.values())

    # --- running ----------------------------------------------------------------------------------

    def execute(self) -> Sweep:
        """Run what is not done, and return all of it.

        After every point the tables in the folder hold all that is finished, and the plot not much
        less.
        """
        report, points = self.options.report, self.grid.points
        require_made(points[0].recipe, self.run(points[0]).store)
        require_paid(self.run(points[0]))
        require_same_noise(self.folder, "sweep", seeded=self.seeded)
        for line in self._plan():
            report(line)
        rows = [_row(self.run(point), point) for point in points if _finished(self.run(point))]
        result = self._record(rows, new=rows)
        next_plot = 0.0
        finished = {row.point.number for row in rows}
        for point in self.in_order:
            if point.number in finished:
                continue
            report(f"point {point.number} of {len(points)}: {point}")
            rows.append(_run_point(self.run(point), point))
            result = self._record(rows, new=rows[-1:])
            if time.monotonic() > next_plot:
                start = time.monotonic()
                plot_sweep(result)
                rest = max(_BETWEEN_PLOTS, _REST * (time.monotonic() - start))
                next_plot = time.monotonic() + rest
        first = self.run(points[0])  # the folder's recipe is the first point's, whoever was last
        first.execute(until=None if _enough_labels(first) else "account")
        plot_sweep(result)
        return result

    def _plan(self) -> Iterator[str]:
        """Plan every release, and require that the budget has room for all of them.

        The data are read first, because a plan asks for no more than there are public inputs.
        Everything that can be wrong with a point's shards is found here, too: nothing is paid yet.
        """
        for point in self.one_of_each("partition"):
            self.run(point).execute(until="partition")
        points = self.one_of_each("aggregate")
        runs = [self.run(point) for point in points]
        plans = [_planned(run, point) for run, point in zip(runs, points, strict=True)]
        require_paid(runs[0])
        first, privacy = points[0].recipe, points[0].recipe.privacy
        # The λ of a ledger that this sweep is the first to use: the best one for all of its plans.
        whole = compose(event for plan in plans for event in plan.events)
        best = whole.guarantee(delta=privacy.delta, conversion=Conversion(privacy.conversion))
        named = bool(runs[0].artifact("data").facts["named"])
        with open_ledger(first, self.options, moment=best.moment) as ledger:
            require_own_labels(runs, ledger, tag=self.tag)
            pairs = zip(runs, plans, strict=True)
            unpaid = [plan.events for run, plan in pairs if not is_paid(run, ledger)]
            _require_room(ledger, unpaid, first)
            ledger.plan_study(
                self.tag,
                [plan.events for plan in plans],
                protects=first.partition.protects(named=named),
            )
            cost = study_cost(ledger, self.tag, more=unpaid)
        return self._announced(cost, releases=len(plans), unpaid=len(unpaid))

    def _announced(self, cost: StudyCost, *, releases: int, unpaid: int) -> Iterator[str]:
        points, paid = len(self.grid.points), releases - unpaid
        what = f"{points} point{'s' * (points > 1)}"
        if cost.in_advance:
            text = f"{what}: the study costs at most {cost.describe()}"
            yield f"{text}; {paid} of these points' releases are paid for" if paid else text
            return
        yield (
            f"{what}, {unpaid or 'none'} to be paid for; not all of the study “{cost.name}” was "
            f"planned before its first result. To look at it costs "
            f"{cost.describe(why=False)}, what the ledger states for all its releases"
            + ("; for a study of its own, choose another --out." if unpaid else ".")
        )

    def _record(self, rows: Sequence[SweepRow], *, new: Sequence[SweepRow]) -> Sweep:
        """Return all rows in order with the cost of the study so far; write the tables."""
        with open_ledger(self.grid.points[0].recipe, self.options) as ledger:
            require_own_labels([self.run(row.point) for row in new], ledger, tag=self.tag)
            cost = study_cost(ledger, self.tag)
        ordered = tuple(sorted(rows, key=lambda row: row.point.number))
        result = Sweep(
            grid=self.grid, folder=self.folder, rows=ordered, cost=cost, seeded=self.seeded
        )
        write_sweep_table(self.folder, result.as_json())
        return result


def _planned(run: PipelineRun, point: Point) -> Plan:
    """Return the most that a point will ask, and its cost; no vote is read."""
    inputs = len(run.artifact("data-public").array("features.npy"))
    try:
        return run.recipe.plan(inputs=inputs)
    except BudgetExceeded as error:
        raise error.with_reason(f"{point}: {error}") from error


def _require_room(ledger: Ledger, unpaid: Sequence[Sequence[Event]], recipe: Recipe) -> None:
    try:
        ledger.require_room(
            (event for events in unpaid for event in events), records=recipe.partition.neighbours
        )
    except BudgetExceeded as error:
        what = "the release" if len(unpaid) == 1 else f"the {len(unpaid)} releases"
        raise error.with_reason(
            f"{what} of this sweep would {error.excess}; nothing was charged: sweep over fewer "
            "values, or with more noise"
        ) from error


def _finished(run: PipelineRun) -> bool:
    done = {state.stage for state in run.states() if state.done}
    return "evaluate" in done or ("account" in done and not _enough_labels(run))


def _run_point(run: PipelineRun, point: Point) -> SweepRow:
    """Run a point to its end; one whose labels are too few for a student ends without one."""
    run.execute(until="account")
    if _enough_labels(run):
        run.execute()
    else:
        run.options.report("its labels are of one class at most, too few for a student")
    return _row(run, point)


def _row(run: PipelineRun, point: Point) -> SweepRow:
    return SweepRow.of(point, run, student=_enough_labels(run))


def _enough_labels(run: PipelineRun) -> bool:
    """Return whether the released labels are of two classes or more: else no student learns."""
    return len(np.unique(Answers.load(run.artifact("aggregate")).row_labels)) > 1
