"""Runs a comparison: every point of both methods, or what is left of them.

    FOLDER/              all of PATE's points, in one store: teachers are trained once a repetition
    FOLDER/dpsgd/POINT/  a folder for each model of DP-SGD
    FOLDER/private/      what was measured

In the end ``recipe.json`` is that of the largest ε of the recipe's own seed, so that the folder is
a run's folder whose report shows the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpsgd.ledgers import ledger_path as dpsgd_ledger_path
from dpsgd.outcome import Outcome, find_outcome, name_of_run
from dpsgd.training import Options as DpsgdOptions
from dpsgd.training import train
from pate.accounting import Ledger
from pate.accounting.ledger.study_costs import NOT_PLANNED, WholeStudy
from pate.compare.answers import Models, models_in, require_charged
from pate.compare.costs import Ledgers, budget_told, paid_for_dpsgd, told
from pate.compare.measuring import Measure, Measures, warm_up
from pate.compare.points import Point, make_points
from pate.compare.recipe import CompareRecipe
from pate.errors import InvalidInput, LedgerError
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import Run
from pate.pipeline.stage import Options, Stage
from pate.stages.paid import require_paid
from pate.studies.charges import (
    claim,
    claim_labels,
    drawn_for,
    is_paid,
    releases_in,
)

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

    def run(self) -> tuple[list[Ran], WholeStudy]:
        """Runs what is not done; returns all points, and what they cost by the ledgers.

        Guarantees:
            Nothing is charged before all points are planned, both ledgers know the plan, and both
            budgets have room for what is not paid yet. Every charge is marked with the study. What
            is done is never charged again.
        """
        points, protects = self._planned()
        ledgers = self._ledgers(points[0])
        self._agree(points, ledgers, protects)
        seeds = self.recipe.compare.seeds
        for point in points:
            what = f"ε = {point.epsilon:g}, repetition {point.seed + 1} of {seeds}"
            run = self._pate(point)
            self._say(f"PATE, {what}", done=all(state.done for state in run.states()))
            run.execute()
            trained = self._trained(point) is not None
            self._say(f"DP-SGD, {what}", done=trained)
            if not trained:
                self._train(point)
        last = max(points, key=lambda point: (point.epsilon, -point.seed))
        self._pate(last).execute()  # nothing is left to do; the folder's recipe is now this one
        ran_all = [self._ran(point) for point in points]
        with ledgers.opened(points) as (pate, dpsgd):
            # Whoever made what the table rests on, and when: it is of the study.
            claim_labels(pate, [each.pate for each in ran_all], study=self.study)
            self._models(points).claim(dpsgd)
            cost = ledgers.cost(pate, dpsgd, points=points)
        if not cost.here.releases or cost.other is None or not cost.other.releases:
            raise LedgerError(
                f"the ledgers of {self.recipe.data.name} know nothing of this comparison, which is "
                "finished; restore them from a backup"
            )
        return ran_all, cost

    def _say(self, what: str, *, done: bool) -> None:
        self.options.say(f"{what}: done before" if done else what)

    def _planned(self) -> tuple[list[Point], str]:
        """All points, and whom PATE protects; the data are read first, since plans need counts."""
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
        named = bool(data.artifact("data").facts["named"])
        return points, first.partition.protects(named=named)

    def _agree(self, points: Sequence[Point], ledgers: Ledgers, protects: str) -> None:
        """Everything before the first charge: what may be refused is refused, the plan is kept.

        What was charged by itself bears the mark of the study from here on.
        """
        runs, models = [self._pate(each) for each in points], self._models(points)
        require_paid(runs[0])
        first, homes = points[0].dpsgd, self.folder.glob("dpsgd/*")
        secure, seeded = (
            dpsgd_ledger_path(first, self.options.data_root, seed) for seed in (None, 0)
        )
        require_charged(homes, secure, seeded=seeded)
        root = self.options.data_root
        untrained = [
            each
            for each in points
            if not paid_for_dpsgd(
                each,
                self._home(each),
                ledger=ledgers.dpsgd,
                data_root=root,
                seed=self._seeded(each.seed),
            )
        ]
        if not self.options.spend:
            models.require_consent(ledgers.dpsgd, [each.dpsgd_plan.events for each in untrained])
        unpaid = list(points)
        if ledgers.pate.exists():
            with Ledger.open(ledgers.pate) as ledger:
                pairs = zip(points, runs, strict=True)
                unpaid = [each for each, run in pairs if not is_paid(run, ledger)]
        ledgers.require_room(pate=unpaid, dpsgd=untrained)
        with ledgers.opened(points) as (pate, dpsgd):
            ledgers.plan(points, pate, dpsgd, protects=protects)
            claim(pate, releases_in(runs[0].store, drawn_for(runs)), study=self.study)
            models.claim(dpsgd)
            cost = ledgers.cost(pate, dpsgd, points=points, unpaid=unpaid, untrained=untrained)
            self._announce(cost, budget_told(pate), budget_told(dpsgd))

    def _announce(self, cost: WholeStudy, for_pate: str, for_dpsgd: str) -> None:
        say = self.options.say
        say(f"PATE: at most {cost.here.told(why=False)} ({for_pate})")
        if cost.other is not None:
            say(f"DP-SGD: at most {cost.other.told(why=False)} ({for_dpsgd})")
        say(f"both, which a table of all of them costs: at most {told(cost.together)}")
        if not cost.in_advance:
            say(
                f"These are {NOT_PLANNED} (study “{self.study}”); for a study of its own, choose "
                "an --out of another name."
            )

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

    # --- DP-SGD -----------------------------------------------------------------------------------

    def _home(self, point: Point) -> Path:
        """Of this point alone: other settings have another folder, and another charge."""
        name = name_of_run(point.dpsgd, self._seeded(point.seed))[:8]
        return self.folder / "dpsgd" / f"epsilon-{point.epsilon:g}-seed-{point.seed}-{name}"

    def _models(self, points: Sequence[Point]) -> Models:
        return Models(
            study=self.study,
            here=models_in(self.folder.glob("dpsgd/*")),
            own=models_in(self._home(each) for each in points),
        )

    def _trained(self, point: Point) -> Outcome | None:
        return find_outcome(
            point.dpsgd,
            self._home(point),
            data_root=self.options.data_root,
            insecure_seed=self._seeded(point.seed),
        )

    def _train(self, point: Point) -> Outcome:
        seed = self._seeded(point.seed)
        options = DpsgdOptions(
            data_root=self.options.data_root,
            plugin_path=self.options.plugin_path,
            insecure_seed=seed,
            spend=self.options.spend,
            say=_silent,
            study=self.study,
        )
        warm_up()
        with self.measures.measured("dpsgd", name_of_run(point.dpsgd, seed)):
            return train(point.dpsgd, self._home(point), options)

    # --- both -------------------------------------------------------------------------------------

    def _ran(self, point: Point) -> Ran:
        run = self._pate(point)
        made_from = {each.stage: each.made_from for each in run.states()}
        parts = [self.measures.find(name, made_from[name] or "") for name in _MAKES_THE_STUDENT]
        took = [part for part in parts if part is not None]
        complete = len(took) == len(parts)
        trained = self._trained(point)
        assert trained is not None
        return Ran(
            point=point,
            pate=run,
            dpsgd=trained,
            pate_took=sum(took[1:], took[0]) if complete else None,
            dpsgd_took=self.measures.find(
                "dpsgd", name_of_run(point.dpsgd, self._seeded(point.seed))
            ),
        )


def _silent(text: str) -> None:
    """Says nothing."""
