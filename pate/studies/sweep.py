"""Sweeps: every combination of some settings as runs in one folder, and what looking at them costs.

All points are read and checked before anything runs, so that a mistake in the last one costs
nothing. Each point alone costs its own ε, if it was fixed before any result was seen. Whoever
chooses the best of them by its result, or publishes them all, has spent the cost of the study
(:mod:`pate.studies.study`). A sweep that was killed resumes.
"""

from __future__ import annotations

import itertools
import math
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pate.accounting import Conversion, Event, Ledger, compose
from pate.accounting.ledger.data_ledger import PlannedCharge, Preview, trial_ledger
from pate.accounting.ledger.study_costs import StudyCost, study_cost
from pate.artifacts import fingerprint
from pate.errors import BudgetExceeded, InvalidInput, TeacherError
from pate.mechanisms import Plan
from pate.pipeline.ledger import key_path, ledger_of, open_ledger
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun, with_recorded_noise
from pate.pipeline.stage import Options, producer
from pate.recipes.read import as_setting, as_settings, read_recipe, read_value
from pate.stages.catalogue import stages_of
from pate.stages.data import require_own_ledger
from pate.stages.exactly_once import require_paid
from pate.stages.preflight import require_cost, require_models, require_ready
from pate.stages.preview import other_ledgers, read_data
from pate.stages.selection import require_made
from pate.studies.plots import plot_sweep
from pate.studies.study import (
    enough_labels,
    is_paid,
    releases_in_words,
    require_own_labels,
    tag_of,
    uncharged,
)
from pate.studies.tables import SweepRow, require_same_noise, write_sweep_table

MOST_POINTS = 1000

_BETWEEN_PLOTS = 20.0  # seconds: a plot takes a second, a small point less than that
_FORMAT = 1

# --- the grid -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting that is varied, and its values in the order given."""

    key: str  # "section.key"
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination: the recipe that ``pate run`` with these settings would use."""

    number: int  # from 1, in the order given: the last setting varies fastest
    values: tuple[Any, ...]  # one of each axis
    settings: tuple[str, ...]  # "section.key=value", as --set takes them
    recipe: Recipe

    def __str__(self) -> str:
        return " ".join(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The settings that are varied, and every combination of their values."""

    name: str  # of the recipe
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]


def read_grid(
    recipe: str,
    over: Mapping[str, Sequence[Any]] | Sequence[str],
    settings: Sequence[str] = (),
) -> Grid:
    """Return every combination of the values in ``over``, on top of ``settings``.

    ``over`` maps "section.key" to its values, or lists texts "section.key=value,value". Every point
    is without a sanitised ε, which has a price of its own.

    >>> grid = read_grid("digits-teachers", ["teachers.count=50,100", "aggregate.scale=8,16"])
    >>> [str(point) for point in grid.points][:2]
    ['teachers.count=50 aggregate.scale=8', 'teachers.count=50 aggregate.scale=16']
    """
    axes = _read_axes(over, settings)
    name, points = recipe, list[Point]()
    for number, values in enumerate(itertools.product(*(axis.values for axis in axes)), start=1):
        pairs = zip(axes, values, strict=True)
        own = tuple(f"{axis.key}={as_setting(value)}" for axis, value in pairs)
        name, checked = _read_point(recipe, settings, own)
        points.append(Point(number=number, values=values, settings=own, recipe=checked))
    first, seen = points[0], dict[str, Point]()
    for point in points:
        other = seen.setdefault(point.recipe.model_dump_json(), point)
        if other is not point:
            raise InvalidInput(f"--over: {other} and {point} mean the same; name each value once")
        one, each = first.recipe.partition, point.recipe.partition
        if (one.method, one.by) != (each.method, each.by):
            raise InvalidInput(
                f"--over: {first} and {point} protect records in different ways, and their "
                "costs do not add up; make a sweep for each"
            )
    return Grid(name=name, axes=axes, points=tuple(points))


def _read_point(recipe: str, settings: Sequence[str], own: Sequence[str]) -> tuple[str, Recipe]:
    try:
        name, checked = read_recipe(recipe, [*settings, *own], Recipe)
    except InvalidInput as error:
        text = str(error)
        for setting in own:  # it was typed as another option
            text = text.replace(f"--set {setting}", f"--over {setting}")
        raise InvalidInput(text) from error
    plain = checked.privacy.model_copy(update={"sanitise": False})
    return name, checked.model_copy(update={"privacy": plain})


def _read_axes(
    over: Mapping[str, Sequence[Any]] | Sequence[str], settings: Sequence[str]
) -> tuple[Axis, ...]:
    """Return the settings to vary; refuse those that a sweep cannot vary, and too many points."""
    if not over:
        raise InvalidInput(
            "there is nothing to sweep over; add --over section.key=value,value, such as "
            "--over aggregate.scale=10,20"
        )
    if isinstance(over, Mapping):
        axes = tuple(_axis(key, key, tuple(values)) for key, values in over.items())
    else:
        axes = tuple(map(_read_axis, over))
    for before, after in itertools.combinations(axes, 2):
        if before.key == after.key:
            raise InvalidInput(
                f"--over {after.key} is given twice; write all its values into one list"
            )
        if _inside(before.key, after.key) or _inside(after.key, before.key):
            raise InvalidInput(
                f"--over {before.key} and --over {after.key} set the same; keep one of them"
            )
    for axis, setting in itertools.product(axes, settings):
        key = setting.partition("=")[0].strip()
        if key == axis.key or _inside(key, axis.key):
            raise InvalidInput(f"--set {key} and --over {axis.key} set the same; keep one")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        shown = " × ".join(str(len(axis.values)) for axis in axes)
        raise InvalidInput(
            f"{shown} values are {count} points, and a sweep has at most {MOST_POINTS}; "
            "give fewer values"
        )
    return axes


def _inside(key: str, other: str) -> bool:
    """Return whether a key lies in the table that another one names."""
    return key.startswith(f"{other}.")


def _read_axis(over: str) -> Axis:
    key, equals, text = over.partition("=")
    if not equals:
        raise InvalidInput(f"--over {over} is not of the form section.key=value,value")
    try:
        values = read_values(text)
    except InvalidInput as error:
        raise InvalidInput(f"--over {over}: {error}") from None
    return _axis(key.strip(), over, values)


def _axis(key: str, over: str, values: tuple[Any, ...]) -> Axis:
    """Return a checked axis; ``over`` is what was typed."""
    parts = key.split(".")
    if len(parts) < 2 or not all(part.strip() for part in parts):
        raise InvalidInput(f"--over {over} is not of the form section.key=value,value")
    if parts[0] == "data":
        raise InvalidInput(
            f"--over {key}: a sweep keeps its data; make a sweep for each, or use --set {key}"
        )
    if key == "privacy.budget":
        raise InvalidInput(
            f"--over {key}: the budget belongs to the data set, and never changes; "
            "vary privacy.epsilon for what a point may cost"
        )
    if key == "privacy.sanitise":
        raise InvalidInput(
            f"--over {key}: no point of a sweep has a sanitised ε, which has a price of its own; "
            "leave it out"
        )
    written = [as_setting(value) for value in values]
    if not written:
        raise InvalidInput(f"--over {key}: there is no value; give one or more")
    twice = next((each for n, each in enumerate(written) if each in written[:n]), None)
    if twice is not None:
        raise InvalidInput(
            f"--over {key}={','.join(written)}: {twice} is given twice; name each value once"
        )
    return Axis(key=key, values=values)


def read_values(text: str) -> tuple[Any, ...]:
    """Return the values between commas: TOML values as in a list, or else plain words.

    >>> read_values("10, 2.5,true"), read_values("[1,2],[3]"), read_values("supervised,fixmatch")
    ((10, 2.5, True), ([1, 2], [3]), ('supervised', 'fixmatch'))
    """
    if not text.strip():
        raise InvalidInput("there is no value; write section.key=value,value")
    if text.rstrip().endswith(","):
        raise InvalidInput("there is no value after the last comma; remove it, or add one")
    try:
        content = tomllib.loads(f"values = [{text}]")
        if content.keys() == {"values"}:
            return tuple(content["values"])
    except (ValueError, RecursionError):
        pass  # words without quotation marks
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise InvalidInput("there is no value between two commas; remove one, or add a value")
    if any(word.startswith(("[", "{", '"', "'")) for word in words):
        raise InvalidInput("this is not TOML; close what is open, and put words into quotes")
    return tuple(map(read_value, words))


# --- the runs -------------------------------------------------------------------------------------


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
    return prepare_sweep(recipe, over=over, set=set, out=out, options=options).execute()


def prepare_sweep(
    recipe: str,
    *,
    over: Mapping[str, Sequence[Any]] | Sequence[str],
    set: Mapping[str, Any] | Sequence[str] | None = None,
    out: Path | str | None = None,
    options: Options,
) -> PointRuns:
    """Return the points of a sweep, to be run or previewed; the arguments are its own."""
    grid = read_grid(recipe, over, as_settings(set))
    folder = Path("runs") / f"{grid.name}-sweep" if out is None else Path(out)
    first = grid.points[0].recipe
    options = options.with_recipe(data_root=first.data_root, plugins=first.plugins)
    points = [replace(e, recipe=with_recorded_noise(e.recipe, folder)) for e in grid.points]
    return PointRuns.of(replace(grid, points=tuple(points)), folder, options)


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
            folder=self.folder,
            recipe=point.recipe,
            stages=stages_of(point.recipe),
            options=self.options,
        )

    @cached_property
    def _origins(self) -> Mapping[int, Mapping[str, str]]:
        """The origin of each stage of each point, by settings alone.

        Two points with one origin of a stage share its result, and its cost. Two origins may still
        lead to one result (another way to the same public features): then there is less to pay than
        these suggest, never more.
        """
        found = {}
        for point in self.grid.points:
            known: dict[str, str] = {}
            for stage in stages_of(point.recipe):
                above = [known[producer(need)] for need in stage.needs]
                settings = stage.settings(point.recipe, self.options)
                known[stage.name] = fingerprint(stage.name, settings, above)
            found[point.number] = known
        return found

    @cached_property
    def in_order(self) -> list[Point]:
        """The points, so that those which share a stage are adjacent, early stages first."""
        ranks: defaultdict[str, dict[str, int]] = defaultdict(dict)

        def rank(point: Point) -> tuple[int, ...]:
            return tuple(
                ranks[stage].setdefault(origin, len(ranks[stage]))
                for stage, origin in self._origins[point.number].items()
            )

        return sorted(self.grid.points, key=rank)

    def one_of_each(self, stage: str) -> list[Point]:
        """Return the first point, in the order of running, for each result of a stage."""
        found: dict[str, Point] = {}
        for point in self.in_order:
            found.setdefault(self._origins[point.number][stage], point)
        return list(found.values())

    def execute(self) -> Sweep:
        """Run what is not done, and return all of it; tables are written after every point."""
        report, points = self.options.report, self.grid.points
        first = self.run(points[0])
        require_made(first.recipe, first.store)
        require_paid(first)
        require_same_noise(self.folder, "sweep", seeded=self.seeded)
        report(self._plan())
        rows = [_row(self.run(point), point) for point in points if _finished(self.run(point))]
        result = self._record(rows, new=rows)
        finished = {row.point.number for row in rows}
        next_plot = 0.0
        for point in self.in_order:
            if point.number in finished:
                continue
            report(f"point {point.number} of {len(points)}: {point}")
            rows.append(_run_point(self.run(point), point))
            result = self._record(rows, new=rows[-1:])
            if time.monotonic() > next_plot:
                plot_sweep(result)
                next_plot = time.monotonic() + _BETWEEN_PLOTS
        # The folder's recipe is the first point's, whoever was last.
        first.execute(until=None if enough_labels(first) else "account")
        plot_sweep(result)
        return result

    def preview(self) -> Preview:
        """Return the charge that the sweep would make in all; nothing is written."""
        first, root = self.grid.points[0].recipe, self.options.data_root
        path = ledger_of(first, self.options)
        data, notes = read_data(first.data, self.options)
        for point in self.one_of_each("distill"):
            with _of_point(point):
                require_models(point.recipe, data, self.options)
        points = self.one_of_each("aggregate")
        plans = [p.recipe.plan(inputs=len(data.public.features)) for p in points]
        best = compose(itertools.chain(*(plan.events for plan in plans))).guarantee(
            delta=first.privacy.delta, conversion=Conversion(first.privacy.conversion)
        )
        known = path.exists() and key_path(first, root).exists()  # else nothing was made

        def open_at(place: Path) -> Ledger:
            return open_ledger(first, self.options, moment=best.moment, path=place)

        notes += other_ledgers(first, self.options)
        charges = list[PlannedCharge]()
        with trial_ledger(path, open_at) as ledger:
            unpaid = [
                plan.events
                for plan, point in zip(plans, points, strict=True)
                if not (known and is_paid(self.run(point), ledger))
            ]
            _require_room(ledger, unpaid, first, tag=self.tag)
            if unpaid:
                charge = PlannedCharge.make(
                    ledger,
                    list(itertools.chain(*unpaid)),
                    records=first.partition.neighbours,
                    path=path.absolute(),
                    of=releases_in_words(len(unpaid)),
                )
                charges.append(charge)
        if not charges:
            notes.append(f"nothing to charge: all releases in {self.folder} are paid for")
        return Preview(charges=tuple(charges), notes=tuple(notes))

    def _plan(self) -> str:
        """Plan every release, and require that the budget has room; return the cost in words.

        The data are read first, because a plan asks for no more than there are public inputs.
        Everything that can be wrong with a point's shards is found here, too: nothing is paid yet.
        """
        for point in self.one_of_each("partition"):
            self.run(point).execute(until="partition")
        points = self.one_of_each("aggregate")
        runs = [self.run(point) for point in points]
        planned = [_planned(run, point) for run, point in zip(runs, points, strict=True)]
        plans = [plan.events for plan in planned]
        require_paid(runs[0])
        first, privacy = points[0].recipe, points[0].recipe.privacy
        # The λ of a ledger that this sweep is the first to use: the best one for all of its plans.
        best = compose(itertools.chain(*plans)).guarantee(
            delta=privacy.ledger_delta, conversion=Conversion(privacy.conversion)
        )
        self._require_ready()
        named = bool(runs[0].artifact("data").facts["named"])
        states = itertools.chain(*(run.states() for run in runs))
        if not all(each.done for each in states if each.stage == "aggregate"):
            require_own_ledger(first, self.options)  # a finished sweep needs no records
        with open_ledger(first, self.options, moment=best.moment) as ledger:
            require_own_labels(runs, ledger, tag=self.tag)
            pairs = zip(runs, plans, strict=True)
            unpaid = [events for run, events in pairs if not is_paid(run, ledger)]
            _require_room(ledger, unpaid, first, tag=self.tag)
            for point, run, plan in zip(points, runs, planned, strict=True):
                with _of_point(point):
                    require_cost(run, plan, ledger)
            ledger.plan_study(self.tag, plans, protects=first.protects(named=named))
            cost = study_cost(ledger, self.tag, more=unpaid, group=first.protected_group)
        return self._announced(cost, unpaid=len(unpaid), paid=len(plans) - len(unpaid))

    def _require_ready(self) -> None:
        """Refuse the models and inputs of any point while none of them is paid for."""
        for point in self.one_of_each("distill"):
            run = self.run(point)
            if not _finished(run):
                answers = _planned(run, point).answers
                with _of_point(point):
                    require_ready(run, answers=answers)

    def _announced(self, cost: StudyCost, *, unpaid: int, paid: int) -> str:
        count = len(self.grid.points)
        what = f"{count} point{'s' * (count > 1)}"
        if cost.in_advance:
            text = f"{what}: the study costs at most {cost.describe()}"
            return f"{text}; {paid} of these points' releases are paid for" if paid else text
        return (
            f"{what}, {unpaid or 'none'} to be paid for; not all of the study “{cost.name}” was "
            f"planned before its first result. To look at it costs "
            f"{cost.describe(why=False)}, what the ledger states for all its releases"
            + (
                "; for a study of its own, give another --out, and --spend for what was paid."
                if unpaid
                else "."
            )
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


@contextmanager
def _of_point(point: Point) -> Iterator[None]:
    try:
        yield
    except (TeacherError, InvalidInput) as error:
        raise type(error)(f"{point}: {error}") from None


def _planned(run: PipelineRun, point: Point) -> Plan:
    """Return the most that a point will ask, and its cost; no vote is read."""
    inputs = len(run.artifact("data-public").array("features.npy"))
    try:
        return run.recipe.plan(inputs=inputs)
    except BudgetExceeded as error:
        raise error.with_reason(f"{point}: {error}") from error


def _require_room(
    ledger: Ledger, unpaid: Sequence[Sequence[Event]], recipe: Recipe, *, tag: str
) -> None:
    try:
        ledger.require_room(itertools.chain(*unpaid), records=recipe.neighbours)
    except BudgetExceeded as error:
        what = "the release" if len(unpaid) == 1 else f"the {len(unpaid)} releases"
        raise error.with_reason(
            f"{what} of this sweep would {error.excess}; {uncharged(tag, ledger)}: sweep over "
            "fewer values, or with more noise"
        ) from error


def _finished(run: PipelineRun) -> bool:
    done = {state.stage for state in run.states() if state.done}
    return "evaluate" in done or ("account" in done and not enough_labels(run))


def _run_point(run: PipelineRun, point: Point) -> SweepRow:
    """Run a point to its end; one whose labels are too few for a student ends without one."""
    run.execute(until="account")
    if enough_labels(run):
        run.execute()
    else:
        run.options.report("its labels are of one class at most, too few for a student")
    return _row(run, point)


def _row(run: PipelineRun, point: Point) -> SweepRow:
    return SweepRow.of(point, run, student=enough_labels(run))
