"""Comparisons: PATE and DP-SGD on one split, at the same (ε, δ), over several repetitions.

    FOLDER/              all of PATE's points, in one store: teachers are trained once a repetition
    FOLDER/dpsgd/POINT/  a folder for each model of DP-SGD
    FOLDER/private/      what was measured

PATE and DP-SGD have ledgers of their own. Each row of the table alone costs its ε, if it was fixed
before any result was seen; a table that rests on all of them costs all of them together
(:mod:`pate.studies.study`). In the end ``recipe.json`` is that of the largest ε of the recipe's own
seed, so that the folder is a run folder whose report shows the comparison.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpsgd.runs import CHECKPOINT, STAGE, TrainingOutcome, find_outcome, name_of_run, private_folder
from dpsgd.runs import ledger_path as dpsgd_ledger_path
from pate.accounting import Event, Guarantee, Ledger
from pate.accounting.events import tally
from pate.accounting.ledger.study_costs import NOT_PLANNED, TotalStudyCost
from pate.artifacts import Level
from pate.artifacts.manifest import MANIFEST
from pate.datasets.loading import load
from pate.errors import InvalidInput, LedgerError, SpendNeeded
from pate.pipeline.ledger import ledger_path
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Options
from pate.recipes.read import as_settings, read_recipe, remarks
from pate.stages.catalogue import STAGES
from pate.stages.exactly_once import releases_in_ledger, require_paid
from pate.studies.compare.recipe import (
    MOST_SEEDS,
    ComparePoint,
    CompareRecipe,
    checked_epsilons,
    make_points,
)
from pate.studies.measure import Measures, warm_up
from pate.studies.plots import plot_comparison
from pate.studies.study import (
    TwoLedgers,
    budget_in_words,
    is_paid,
    require_own_labels,
    tag_of,
)
from pate.studies.tables import (
    COMPARISON_COLUMNS,
    ComparisonRow,
    FinishedPoint,
    comparison_notes,
    comparison_rows,
    cost_in_words,
    require_same_noise,
    write_table,
)

_FORMAT = 2
_TIMED = (  # from data to student, without the account and the test
    "data", "partition", "encoder", "encode", "teach", "vote", "aggregate", "distill",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of a comparison, what they cost together, and notes for its readers."""

    name: str
    recipe: CompareRecipe
    folder: Path
    rows: tuple[ComparisonRow, ...]
    cost: TotalStudyCost
    notes: tuple[str, ...]
    seeded: bool

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``compare.json``."""
        cost = self.cost
        return {
            "format": _FORMAT,
            "name": self.name,
            "data": self.recipe.data.name,
            "delta": self.recipe.compare.delta,
            "seeds": self.recipe.compare.seeds,
            "seeded": self.seeded,
            "rows": [row.as_json() for row in self.rows],
            "cost": {
                "pate": _cost_as_json(cost.here.guarantee),
                "dpsgd": None if cost.other is None else _cost_as_json(cost.other.guarantee),
                "together": None if cost.together is None else _cost_as_json(cost.together),
                "planned_in_advance": cost.in_advance,
            },
            "notes": list(self.notes),
        }

    def write(self) -> None:
        """Write ``compare.json``, ``.csv``, ``.png`` and ``.svg`` into the folder, mode 0600."""
        cells = [row.as_json() | {"delta": row.runs[0].delta} for row in self.rows]
        write_table(self.folder, "compare", self.as_json(), rows=cells, columns=COMPARISON_COLUMNS)
        title = f"PATE and DP-SGD on {self.recipe.data.name}, δ = {self.recipe.compare.delta:g}"
        plot_comparison(self.rows, self.folder, title=title, private=not self.seeded)


def _cost_as_json(guarantee: Guarantee) -> dict[str, Any]:
    return {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "neighbours": guarantee.neighbours.value,
    }


def compare(
    recipe: str,
    *,
    epsilons: Sequence[float] | None = None,
    seeds: int | None = None,
    set: Mapping[str, Any] | Sequence[str] | None = None,
    out: Path | str | None = None,
    options: Options,
) -> Comparison:
    """Compare PATE with DP-SGD on the same data at the same ε; what is done is skipped.

    The arguments are those of :func:`pate.compare`, with ready ``options``. The folder, by default
    ``runs/NAME``, is the comparison's own; in the end it holds ``compare.json``, ``.csv``, ``.png``
    and ``.svg``.

    Guarantees:
        Nothing is charged before all points are planned, both ledgers have recorded the plan, and
        both budgets have room for what is not paid yet. Every charge carries the study's tag. What
        is done is never charged again.
    """
    changes = as_settings(set)
    if epsilons is not None:
        changes.append(f"compare.epsilons={checked_epsilons(epsilons)}")
    if seeds is not None:
        if not 1 <= seeds <= MOST_SEEDS:
            raise InvalidInput(f"--seeds {seeds}: give a whole number from 1 to {MOST_SEEDS}")
        changes.append(f"compare.seeds={seeds}")
    name, checked = read_recipe(recipe, changes, CompareRecipe)
    options = options.at_root(checked.data_root)
    folder = Path("runs") / name if out is None else Path(out)
    seeded = options.insecure_seed is not None
    require_same_noise(folder, "compare", seeded=seeded)
    finished, cost = CompareRuns.of(checked, folder, options).execute()
    rows = comparison_rows(finished, seeded=seeded)
    notes = comparison_notes(
        rows,
        cost,
        accountant=checked.dpsgd.privacy.accountant,
        delta=checked.compare.delta,
        tuning=remarks(checked.notes),
        seeded=seeded,
    )
    comparison = Comparison(
        name=name, recipe=checked, folder=folder, rows=rows, cost=cost, notes=notes, seeded=seeded
    )
    comparison.write()
    return comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRuns:
    """The points of a comparison as runs of both methods in one folder."""

    recipe: CompareRecipe
    folder: Path
    options: Options
    quiet: Options  # the same, silent: one object for all points, so that own data are read once

    @classmethod
    def of(cls, recipe: CompareRecipe, folder: Path, options: Options) -> CompareRuns:
        """Return the runs of a comparison whose charges carry the tag of its folder."""
        tagged = replace(options, study=tag_of("compare", folder))
        return cls(
            recipe=recipe,
            folder=folder,
            options=tagged,
            quiet=replace(tagged, report=lambda text: None),
        )

    @property
    def tag(self) -> str:
        assert self.options.study is not None
        return self.options.study

    def execute(self) -> tuple[list[FinishedPoint], TotalStudyCost]:
        """Run what is not done; return all points, and what they cost by the ledgers."""
        report, seeds = self.options.report, self.recipe.compare.seeds
        points, protects = self._planned()
        ledgers = self._ledgers(points)
        self._agree(points, ledgers, protects)
        for point in points:
            what = f"ε = {point.epsilon:g}, repetition {point.seed + 1} of {seeds}"
            run = self._pate(point)
            done = ": done before" if all(state.done for state in run.states()) else ""
            report(f"PATE, {what}{done}")
            run.execute()
            trained = self._trained(point) is not None
            report(f"DP-SGD, {what}{': done before' if trained else ''}")
            if not trained:
                self._train(point)
        last = max(points, key=lambda point: (point.epsilon, -point.seed))
        self._pate(last).execute()  # nothing is left to do; the folder's recipe is now this one
        finished = [self._finished(point) for point in points]
        with ledgers.opened() as (pate, dpsgd):
            require_own_labels([each.pate for each in finished], pate, tag=self.tag)
            require_own_models(map(self._home, points), dpsgd, tag=self.tag)
            cost = ledgers.cost(pate, dpsgd)
        if not cost.here.releases or cost.other is None or not cost.other.releases:
            raise LedgerError(
                f"the ledgers of {self.recipe.data.name} hold no charge of this comparison, which "
                "is finished; restore them from a backup"
            )
        return finished, cost

    def _planned(self) -> tuple[list[ComparePoint], str]:
        """Return all points, and whom PATE protects; data are read first, for their counts."""
        first = self.recipe.for_pate(max(self.recipe.compare.epsilons), noise=1.0)
        data = self._run(first, seed=0)
        data.execute(until="data")
        points = make_points(
            self.recipe,
            public=len(data.artifact("data-public").array("features.npy")),
            private=len(data.artifact("data").array("features.npy")),
        )
        for point in {each.seed: each for each in points}.values():
            # What can be wrong with shards is found while no ledger has its terms.
            self._pate(point).execute(until="partition")
        named = bool(data.artifact("data").facts["named"])
        return points, first.partition.protects(named=named)

    def _agree(self, points: Sequence[ComparePoint], ledgers: TwoLedgers, protects: str) -> None:
        """Refuse what must be refused, and record the plan: all before the first charge."""
        runs, root = [self._pate(each) for each in points], self.options.data_root
        require_paid(runs[0])
        secure, seeded = (dpsgd_ledger_path(points[0].dpsgd, root, seed) for seed in (None, 0))
        require_charged_models(self.folder.glob("dpsgd/*"), secure, seeded=seeded)
        untrained = [
            each
            for each in points
            if not is_paid_model(
                each,
                self._home(each),
                ledger=ledgers.dpsgd,
                data_root=root,
                seed=self._seed(each.seed),
            )
        ]
        if untrained:
            self._check_model(untrained[0])
        if not self.options.spend:
            here = models_in(self.folder.glob("dpsgd/*"))
            plans = [each.dpsgd_plan.events for each in untrained]
            require_no_lost_model(plans, ledgers.dpsgd, here=here, tag=self.tag)
        unpaid = list(points)
        if ledgers.pate.exists():
            with Ledger.open(ledgers.pate) as ledger:
                require_own_labels(runs, ledger, tag=self.tag)
                pairs = zip(points, runs, strict=True)
                unpaid = [each for each, run in pairs if not is_paid(run, ledger)]
        if ledgers.dpsgd.exists():
            with Ledger.open(ledgers.dpsgd) as ledger:
                require_own_models(map(self._home, points), ledger, tag=self.tag)
        votes = [each.pate_plan.events for each in unpaid]
        steps = [each.dpsgd_plan.events for each in untrained]
        ledgers.require_room(votes, steps)
        with ledgers.opened() as (pate, dpsgd):
            ledgers.plan(pate, dpsgd, protects=protects)
            cost = ledgers.cost(pate, dpsgd, unpaid=votes, untrained=steps)
            self._announce(cost, budget_in_words(pate), budget_in_words(dpsgd))

    def _ledgers(self, points: Sequence[ComparePoint]) -> TwoLedgers:
        first, options = points[0], self.options
        seed = options.insecure_seed
        return TwoLedgers(
            tag=self.tag,
            pate=ledger_path(first.pate, options.data_root, seeded=seed is not None),
            dpsgd=dpsgd_ledger_path(first.dpsgd, options.data_root, seed),
            delta=first.pate.privacy.delta,
            relation=first.pate.partition.neighbours,
            votes=[point.pate_plan.events for point in points],
            steps=[point.dpsgd_plan.events for point in points],
        )

    def _announce(self, cost: TotalStudyCost, for_pate: str, for_dpsgd: str) -> None:
        report = self.options.report
        report(f"PATE: at most {cost.here.describe(why=False)} ({for_pate})")
        if cost.other is not None:
            report(f"DP-SGD: at most {cost.other.describe(why=False)} ({for_dpsgd})")
        report(f"both, which a table of all of them costs: at most {cost_in_words(cost.together)}")
        if not cost.in_advance:
            report(
                f"These are {NOT_PLANNED} (study “{self.tag}”); for a study of its own, choose an "
                "--out of another name."
            )

    # --- PATE -------------------------------------------------------------------------------------

    def _pate(self, point: ComparePoint) -> PipelineRun:
        return self._run(point.pate, seed=point.seed)

    def _run(self, recipe: Recipe, *, seed: int) -> PipelineRun:
        options, seeded = self.quiet, self._seed(seed)
        if seeded != options.insecure_seed:
            options = replace(options, insecure_seed=seeded)
        stages = [Measures(self.folder).timed(stage) for stage in STAGES]
        return PipelineRun(folder=self.folder, recipe=recipe, stages=stages, options=options)

    def _seed(self, repetition: int) -> int | None:
        """Return the insecure seed of a repetition: seeded noise, too, differs between them."""
        insecure = self.options.insecure_seed
        return None if insecure is None else insecure + repetition

    # --- DP-SGD -----------------------------------------------------------------------------------

    def _home(self, point: ComparePoint) -> Path:
        """Return the folder of a model: other settings have another one, and another charge."""
        name = name_of_run(point.dpsgd, self._seed(point.seed))[:8]
        return self.folder / "dpsgd" / f"epsilon-{point.epsilon:g}-seed-{point.seed}-{name}"

    def _trained(self, point: ComparePoint) -> TrainingOutcome | None:
        return find_outcome(
            point.dpsgd,
            self._home(point),
            data_root=self.options.data_root,
            insecure_seed=self._seed(point.seed),
        )

    def _check_model(self, point: ComparePoint) -> None:
        """Refuse a model that cannot be trained privately."""
        from dpsgd.training import check_model

        path = self.options.plugin_path
        splits = load(self.recipe.data, root=self.options.data_root, plugin_path=path)
        check_model(point.dpsgd, splits, point.dpsgd_plan, plugin_path=path)

    def _train(self, point: ComparePoint) -> None:
        from dpsgd.training import TrainingOptions, train

        seed = self._seed(point.seed)
        options = TrainingOptions(
            data_root=self.options.data_root,
            plugin_path=self.options.plugin_path,
            insecure_seed=seed,
            spend=self.options.spend,
            report=lambda text: None,
            study=self.tag,
        )
        warm_up()
        with Measures(self.folder).measured("dpsgd", name_of_run(point.dpsgd, seed)):
            train(point.dpsgd, self._home(point), options)

    # --- both -------------------------------------------------------------------------------------

    def _finished(self, point: ComparePoint) -> FinishedPoint:
        run, measures = self._pate(point), Measures(self.folder)
        made_from = {each.stage: each.made_from for each in run.states()}
        parts = [measures.find(name, made_from[name] or "") for name in _TIMED]
        known = [part for part in parts if part is not None]
        trained = self._trained(point)
        assert trained is not None
        return FinishedPoint(
            epsilon=point.epsilon,
            seed=point.seed,
            baselines=point.baselines,
            pate=run,
            pate_measure=sum(known[1:], known[0]) if len(known) == len(parts) else None,
            dpsgd=trained.report,
            dpsgd_measure=measures.find("dpsgd", name_of_run(point.dpsgd, self._seed(point.seed))),
        )


# --- models of DP-SGD -----------------------------------------------------------------------------


def models_in(folders: Iterable[Path]) -> frozenset[str]:
    """Return the names under which models in some folders are charged; a damaged one is lost."""
    from dpsgd.checkpoint import releases

    found: set[str] = set()
    for folder in folders:
        for file in folder.glob(f"{Level.PRIVATE.folder}/*/{CHECKPOINT}"):
            with contextlib.suppress(InvalidInput):
                found |= releases(file)
    return frozenset(found)


def is_paid_model(
    point: ComparePoint, folder: Path, *, ledger: Path, data_root: Path, seed: int | None
) -> bool:
    """Return whether a model is released, or begun and charged.

    A checkpoint is written just before its charge: a kill in between leaves it unpaid.
    """
    if find_outcome(point.dpsgd, folder, data_root=data_root, insecure_seed=seed) is not None:
        return True
    from dpsgd.checkpoint import releases

    begun = private_folder(folder, name_of_run(point.dpsgd, seed)) / CHECKPOINT
    return begun.exists() and releases(begun) <= releases_in_ledger(ledger)


def require_own_models(homes: Iterable[Path], ledger: Ledger, *, tag: str) -> None:
    """Refuse to use models that were not released for the study.

    Guarantees:
        As :func:`pate.studies.study.require_own_labels`.
    """
    charges = {each.release: each.studies for each in ledger.charges()}
    for home in homes:
        for name in sorted(models_in([home])):
            if tag not in charges.get(name, (tag,)):
                raise InvalidInput(
                    f"{home} holds a model that was not released for the study “{tag}”, and a "
                    "study uses only what was released for it; choose another --out"
                )


def require_charged_models(homes: Iterable[Path], ledger: Path, *, seeded: Path) -> None:
    """Refuse to continue with released models that no ledger knows.

    ``homes`` are their folders, ``ledger`` and ``seeded`` the files for secure and seeded noise.
    A model whose names are not found counts as one that was not charged.
    """
    paid = releases_in_ledger(ledger) | releases_in_ledger(seeded)
    for home in homes:
        if not any(home.glob(f"{Level.RELEASED.folder}/{STAGE}/*/{MANIFEST}")):
            continue  # begun at most
        names = models_in([home])
        if not names:
            raise LedgerError(
                f"{home} holds a model without its {CHECKPOINT}, by which the ledger knows it; "
                "restore that from a backup"
            )
        if not names <= paid:
            raise LedgerError(
                f"the ledger at {ledger} lacks the charge of the model that is released in {home}; "
                "restore the ledger from a backup"
            )


def require_no_lost_model(
    plans: Iterable[Sequence[Event]], ledger: Path, *, here: frozenset[str], tag: str
) -> None:
    """Refuse to pay again for a model that the study paid for and that is not ``here``.

    Names of models are random, so a lost one is recognised by its cost.
    """
    if not ledger.exists():
        return
    with Ledger.open(ledger) as opened:
        of_study = [each for each in opened.charges() if tag in each.studies]
    lost = [tally(each.events) for each in of_study if each.release not in here]
    if any(tally(plan) in lost for plan in plans):
        raise SpendNeeded(
            f"the ledger at {ledger} has already paid for such a model of the study “{tag}”, and "
            "it is not in this folder; resume in the folder where it is, or choose an --out of "
            "another name, or, to train a new one and pay again, add --spend"
        )
