"""Runs a comparison: every point of both methods, or what is left of them.

    FOLDER/              all of PATE's points, in one store: teachers are trained once a repetition
    FOLDER/dpsgd/POINT/  a folder for each model of DP-SGD
    FOLDER/private/      what was planned, and what was measured

In the end ``recipe.json`` is that of the largest ε of the recipe's own seed, so that the folder is
a run's folder whose report shows the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpsgd.outcome import Outcome, find_outcome, name_of_run
from dpsgd.training import Options as DpsgdOptions
from dpsgd.training import train
from pate.compare.answers import Answers, models_in
from pate.compare.costs import (
    Cost,
    Ledgers,
    paid_for_dpsgd,
    paid_for_pate,
    planned_cost,
    told,
)
from pate.compare.measuring import Measure, Measures, warm_up
from pate.compare.planned import Noted, note_plan
from pate.compare.points import Point, make_points
from pate.compare.recipe import CompareRecipe
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import Run
from pate.pipeline.stage import Options, Stage
from pate.studies.charges import releases_in

_MAKES_THE_STUDENT = (  # what is timed: from data to student, without the account and the test
    "data", "partition", "encoder", "encode", "teach", "vote", "aggregate", "distill",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A point that is done: both methods' results are in the folder."""

    point: Point
    pate: Run
    dpsgd: Outcome
    pate_took: Measure | None
    dpsgd_took: Measure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A recipe in a folder."""

    recipe: CompareRecipe
    folder: Path
    stages: Sequence[Stage]
    options: Options
    quiet: Options  # the same, silent: one object for all points, so that own data are read once

    @classmethod
    def of(
        cls, recipe: CompareRecipe, folder: Path, stages: Sequence[Stage], options: Options
    ) -> Comparison:
        """A comparison whose charges are marked with its folder's name."""
        name = folder.absolute().name
        if not name.isprintable():
            raise InvalidInput(f"--out {folder!s:.80} has unprintable characters; choose another")
        marked = replace(options, study=f"compare {name}")
        quiet = replace(marked, say=_silent)
        return cls(recipe=recipe, folder=folder, stages=stages, options=marked, quiet=quiet)

    @property
    def study(self) -> str:
        assert self.options.study is not None
        return self.options.study

    @property
    def measures(self) -> Measures:
        return Measures(self.folder)

    def run(self) -> tuple[list[Ran], Cost]:
        """Runs what is not done; returns all points, and what they cost by the ledgers.

        Guarantees:
            Nothing is charged before all points are planned and both budgets are known to have
            room for what is not paid yet. Every charge is marked with the study. What is done is
            never charged again.
        """
        points, cost = self._planned()
        ledgers = self._ledgers(points[0])
        self._announce(points, cost, ledgers)
        self._noted(points, ledgers)
        seeds = self.recipe.compare.seeds
        for point in points:
            what = f"ε = {point.epsilon:g}, repetition {point.seed + 1} of {seeds}"
            self.options.say(f"PATE, {what}")
            self._pate(point).execute()
            self.options.say(f"DP-SGD, {what}")
            self._train(point)
        last = max(points, key=lambda point: (point.epsilon, -point.seed))
        self._pate(last).execute()  # nothing is left to do; the folder's recipe is now this one
        ran = [self._ran(point) for point in points]
        return ran, ledgers.spent(cost, self._noted(points, ledgers))

    def _planned(self) -> tuple[list[Point], Cost]:
        """All points; the data are read first, since plans depend on how many there are."""
        first = self.recipe.for_pate(max(self.recipe.compare.epsilons), noise=1.0)
        data = self._run(first, seed=0)
        data.execute(until="data")
        points = make_points(
            self.recipe,
            public=len(data.artifact("data-public").array("features.npy")),
            private=len(data.artifact("data").array("features.npy")),
        )
        for point in {each.seed: each for each in points}.values():
            # What can be wrong with shards is found while no ledger has got its terms.
            self._pate(point).execute(until="partition")
        return points, planned_cost(points)

    def _noted(self, points: Sequence[Point], ledgers: Ledgers) -> Noted:
        """What is planned, and if it has grown; once that is on disk, all of it bears the mark."""
        answers = self._labels(points, ledgers), self._models(points, ledgers)
        grown = any(each.came_before() for each in answers)
        noted = note_plan(self.folder, points, charged=ledgers.charged(), grown=grown)
        for each in answers:
            each.claim()
        return noted

    def _announce(self, points: Sequence[Point], cost: Cost, ledgers: Ledgers) -> None:
        root, options = self.options.data_root, self.options
        untrained = [
            each
            for each in points
            if not paid_for_dpsgd(
                each, self._home(each), data_root=root, seed=self._seeded(each.seed)
            )
        ]
        if not options.spend:
            plans = [each.dpsgd_plan.events for each in untrained]
            self._models(points, ledgers).require_consent(plans)
        ledgers.require_room(
            pate=[each for each in points if not paid_for_pate(self._pate(each), ledgers.pate)],
            dpsgd=untrained,
        )
        for_pate, for_dpsgd = ledgers.make(cost)
        say: Callable[[str], None] = options.say
        number = f"{cost.releases} release{'s' * (cost.releases > 1)}"
        say(f"PATE: {number}, together at most {told(cost.pate)} ({for_pate})")
        say(f"DP-SGD: {number}, together at most {told(cost.dpsgd)} ({for_dpsgd})")
        say(f"both, which a table of all of them costs: at most {told(cost.together)}")

    def _ledgers(self, point: Point) -> Ledgers:
        options = self.options
        return Ledgers.of(
            point, data_root=options.data_root, seed=options.insecure_seed, study=self.study
        )

    # --- PATE -------------------------------------------------------------------------------------

    def _pate(self, point: Point) -> Run:
        return self._run(point.pate, seed=point.seed)

    def _run(self, recipe: Recipe, *, seed: int) -> Run:
        options, seeded = self.quiet, self._seeded(seed)
        if seeded != options.insecure_seed:
            options = replace(options, insecure_seed=seeded)
        stages = [self.measures.timed(stage) for stage in self.stages]
        return Run(folder=self.folder, recipe=recipe, stages=stages, options=options)

    def _seeded(self, seed: int) -> int | None:
        """Seeded noise, too, is another one in each repetition."""
        insecure = self.options.insecure_seed
        return None if insecure is None else insecure + seed

    def _labels(self, points: Sequence[Point], ledgers: Ledgers) -> Answers:
        runs = [self._pate(each) for each in points]
        states = [state for run in runs for state in run.states() if state.stage == "aggregate"]
        own = {state.made_from for state in states if state.made_from is not None}
        store = runs[0].store
        return Answers(
            ledger=ledgers.pate,
            study=self.study,
            here=frozenset(releases_in(store)),
            own=frozenset(releases_in(store, own)),
        )

    # --- DP-SGD -----------------------------------------------------------------------------------

    def _home(self, point: Point) -> Path:
        """Of this point alone: other settings have another folder, and another charge."""
        name = name_of_run(point.dpsgd, self._seeded(point.seed))[:8]
        return self.folder / "dpsgd" / f"epsilon-{point.epsilon:g}-seed-{point.seed}-{name}"

    def _models(self, points: Sequence[Point], ledgers: Ledgers) -> Answers:
        return Answers(
            ledger=ledgers.dpsgd,
            study=self.study,
            here=models_in(self.folder.glob("dpsgd/*")),
            own=models_in(self._home(each) for each in points),
        )

    def _train(self, point: Point) -> Outcome:
        seed, home = self._seeded(point.seed), self._home(point)
        root = self.options.data_root
        done = find_outcome(point.dpsgd, home, data_root=root, insecure_seed=seed)
        if done is not None:
            return done
        options = DpsgdOptions(
            data_root=root,
            plugin_path=self.options.plugin_path,
            insecure_seed=seed,
            spend=self.options.spend,
            say=_silent,
            study=self.study,
        )
        warm_up()
        with self.measures.measured("dpsgd", name_of_run(point.dpsgd, seed)):
            return train(point.dpsgd, home, options)

    # --- both -------------------------------------------------------------------------------------

    def _ran(self, point: Point) -> Ran:
        run = self._pate(point)
        made_from = {each.stage: each.made_from for each in run.states()}
        parts = [self.measures.find(name, made_from[name] or "") for name in _MAKES_THE_STUDENT]
        took = [part for part in parts if part is not None]
        complete = len(took) == len(parts)
        return Ran(
            point=point,
            pate=run,
            dpsgd=self._train(point),
            pate_took=sum(took[1:], took[0]) if complete else None,
            dpsgd_took=self.measures.find(
                "dpsgd", name_of_run(point.dpsgd, self._seeded(point.seed))
            ),
        )


def _silent(text: str) -> None:
    """Says nothing."""
