"""Comparisons: PATE and DP-SGD on one split, at the same (ε, δ), over several repetitions.

    FOLDER/              all of PATE's points, by teachers and by record votes, in one store:
                         teachers are trained, and records counted, once a repetition
    FOLDER/dpsgd/POINT/  a folder for each model of DP-SGD, and of least squares
    FOLDER/private/      what was measured

PATE and DP-SGD have ledgers of their own. Each row of the table alone costs its ε, if it was fixed
before any result was seen; a table that rests on all of them costs all of them together
(:mod:`pate.studies.study`). In the end ``recipe.json`` is that of the largest ε of the recipe's own
seed, by teachers where they are compared, so that the folder is a run folder whose report shows the
comparison.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsgd.recipe import DpsgdRecipe
from dpsgd.runs import CHECKPOINT, STAGE, TrainingOutcome, find_outcome, name_of_run, private_folder
from dpsgd.runs import ledger_path as dpsgd_ledger_path
from pate import _html
from pate._format import format_delta, format_percent, in_nouns
from pate._plots import render_figure
from pate.accounting import Event, Guarantee, Ledger, Neighbours
from pate.accounting.events import tally
from pate.accounting.ledger.data_ledger import Preview
from pate.accounting.ledger.study_costs import NOT_PLANNED, TotalStudyCost
from pate.artifacts import Level
from pate.artifacts.manifest import MANIFEST
from pate.datasets.loading import load
from pate.datasets.roles import equal_rows_notes
from pate.errors import InvalidInput, LedgerError, SpendNeeded, TeacherError
from pate.pipeline.ledger import key_path, ledger_path
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import Options
from pate.recipes.paths import set_file
from pate.recipes.read import as_settings, read_recipe, remarks
from pate.stages.catalogue import stages_of
from pate.stages.data import equal_rows, require_own_ledger
from pate.stages.exactly_once import releases_in_ledger, require_paid
from pate.stages.preflight import require_cost, require_models, require_ready
from pate.stages.preview import SAME_SETTINGS, charged_elsewhere, other_ledgers, read_data
from pate.studies.compare.recipe import (
    MOST_SEEDS,
    ComparedLabels,
    ComparedModel,
    ComparePoint,
    CompareRecipe,
    checked_epsilons,
    make_points,
)
from pate.studies.measure import Measures, warm_up
from pate.studies.plots import plot_comparison, save_figure
from pate.studies.study import (
    TwoLedgers,
    budget_in_words,
    enough_labels,
    is_paid,
    require_own_labels,
    tag_of,
)
from pate.studies.tables import (
    COMPARISON_COLUMNS,
    METHODS,
    ComparisonRow,
    FinishedPoint,
    comparison_notes,
    comparison_rows,
    cost_in_words,
    require_same_noise,
    write_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT = 2
_UNTIMED = ("account", "evaluate")  # a time is that from data to student


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of a comparison, what they cost together, and notes for its readers.

    A notebook shows it as a table, without what may not be published.

    Parameters
    ----------
    name : str
        The name of the recipe.
    recipe : CompareRecipe
        The recipe, with every default spelt out.
    folder : Path
        The folder, which is also that of a run.
    rows : tuple of ComparisonRow
        A method at one ε, or a baseline, each: ``name``, ``target``, ``epsilon``, ``accuracy``,
        ``low``, ``high``, ``publishable`` and more.
    runs : mapping
        Of each method at the largest ε: its recipe or its folder.
    cost : TotalStudyCost
        The cost of all rows together; ``cost.together`` is a :class:`pate.Guarantee`.
    notes : tuple of str
        What a reader of the table needs to know.
    seeded : bool
        The noise was seeded: nothing here is private.
    """

    name: str
    recipe: CompareRecipe
    folder: Path
    rows: tuple[ComparisonRow, ...]
    runs: Mapping[str, Mapping[str, Any]]
    cost: TotalStudyCost
    notes: tuple[str, ...]
    seeded: bool

    def __repr__(self) -> str:
        private = ", NOT PRIVATE" if self.seeded else ""
        return f"<Comparison {self.name} of {len(self.rows)} rows in {self.folder}{private}>"

    def _repr_html_(self) -> str:
        shown = self._publishable
        hidden = [row.name for row in self.rows if row not in shown]
        notes = [f"Not shown, because it may not be published: {', '.join(hidden)}."]
        whole = in_nouns(self.cost.describe(), **self.recipe.any_pate.nouns)
        cost = f"All rows together, and whoever chooses by them: {whole}."
        return _html.table(
            self._title,
            ("method", "ε at most", "accuracy", "95 % interval"),
            [
                (
                    row.name,
                    "–" if row.target is None else f"{row.target:g}",
                    format_percent(row.accuracy),
                    f"{format_percent(row.low)} to {format_percent(row.high)}",
                )
                for row in shown
            ],
            verdict=("NOT PRIVATE", False) if self.seeded else None,
            notes=[*(notes if hidden else []), *([] if self.seeded else [cost])],
            more=self.notes,
        )

    @property
    def _publishable(self) -> tuple[ComparisonRow, ...]:
        """The rows that a notebook may show; all of them where nothing is private anyway."""
        return tuple(row for row in self.rows if row.publishable or self.seeded)

    @property
    def _title(self) -> str:
        delta = format_delta(self.recipe.compare.delta)
        most = "=" if self.recipe.record_votes is None else "≤"
        return f"PATE and DP-SGD on {self.recipe.data.name}, δ {most} {delta}"

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as plain values, for a DataFrame: the content of ``compare.csv``.

        Times, memory and rows that are not ``publishable`` are for the owner of the data alone.
        """
        rows = (row.as_json() | {"delta": row.runs[0].delta} for row in self.rows)
        return [{key: row[key] for key in COMPARISON_COLUMNS} for row in rows]

    def plot(self, *, private: bool = False) -> Figure:
        """Return a plot of accuracy over ε.

        Parameters
        ----------
        private : bool
            Add what may not be published: the plot of ``compare.png``.
        """
        shown = self.rows if private else self._publishable
        figure = plot_comparison(shown, title=self._title, private=not self.seeded)
        # Notebooks show figures by themselves only where pyplot was imported.
        setattr(figure, "_repr_png_", lambda: render_figure(figure, "png"))  # noqa: B010
        return figure

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
            "runs": self.runs,
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
        whole = self.as_json()
        write_table(self.folder, "compare", whole, rows=self.table(), columns=COMPARISON_COLUMNS)
        save_figure(self.plot(private=True), self.folder, "compare")


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
    """Compare PATE with DP-SGD on the same data within the same ε; what is done is skipped.

    The arguments are those of :func:`pate.compare`, with ready ``options``. The folder, by default
    ``runs/NAME``, is the comparison's own; in the end it holds ``compare.json``, ``.csv``, ``.png``
    and ``.svg``.

    Guarantees:
        Nothing is charged before all points are planned, both ledgers have recorded the plan, and
        both budgets have room for what is not paid yet. Every charge carries the study's tag. What
        is done is never charged again.
    """
    name, runs = prepare_comparison(
        recipe, epsilons=epsilons, seeds=seeds, set=set, out=out, options=options
    )
    checked, folder, options = runs.recipe, runs.folder, runs.options
    seeded = options.insecure_seed is not None
    require_same_noise(folder, "compare", seeded=seeded)
    finished, cost, opened = runs.execute()
    rows = comparison_rows(finished, seeded=seeded)
    notes = comparison_notes(
        rows,
        cost,
        accountant=checked.dpsgd.privacy.accountant,
        delta=checked.compare.delta,
        tuning=remarks(checked.notes),
        seeded=seeded,
        per_user=runs.any_recipe.per_user,
        unit=runs.any_recipe.unit,
        votes=None if checked.record_votes is None else checked.record_votes.votes,
    )
    comparison = Comparison(
        name=name,
        recipe=checked,
        folder=folder,
        rows=rows,
        runs=opened,
        cost=cost,
        notes=notes,
        seeded=seeded,
    )
    comparison.write()
    return comparison


def prepare_comparison(
    recipe: str,
    *,
    epsilons: Sequence[float] | None = None,
    seeds: int | None = None,
    set: Mapping[str, Any] | Sequence[str] | None = None,
    out: Path | str | None = None,
    options: Options,
) -> tuple[str, CompareRuns]:
    """Return the name and the points of a comparison, to be run or previewed."""
    changes = as_settings(set)
    if epsilons is not None:
        changes.append(f"compare.epsilons={checked_epsilons(epsilons)}")
    if seeds is not None:
        if not 1 <= seeds <= MOST_SEEDS:
            raise InvalidInput(f"--seeds {seeds}: give a whole number from 1 to {MOST_SEEDS}")
        changes.append(f"compare.seeds={seeds}")
    name, checked = read_recipe(recipe, changes, CompareRecipe)
    options = options.with_recipe(data_root=checked.data_root, plugins=checked.plugins)
    folder = Path("runs") / name if out is None else Path(out)
    return name, CompareRuns.of(checked, folder, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRuns:
    """The points of a comparison as runs of all methods in one folder."""

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

    def execute(self) -> tuple[list[FinishedPoint], TotalStudyCost, dict[str, dict[str, Any]]]:
        """Run what is not done; return all points, their cost by the ledgers, and the last runs.

        These are of each method at the largest ε, once, as :func:`open_comparison` reads them.
        """
        report, seeds = self.options.report, self.recipe.compare.seeds
        points, protects = self._planned()
        ledgers = self._ledgers(points)
        self._agree(points, ledgers, protects)
        for point in points:
            what = f"ε = {point.epsilon:g}, repetition {point.seed + 1} of {seeds}"
            for run, labels in zip(self._label_runs([point]), point.labels, strict=True):
                done = ": done before" if _is_finished(run) else ""
                report(f"{METHODS[labels.method]}, {what}{done}")
                _execute(run)
            for model in point.models:
                trained = self._trained(point, model) is not None
                report(f"{METHODS[model.method]}, {what}{': done before' if trained else ''}")
                if not trained:
                    self._train(point, model)
        last = max(points, key=lambda point: (point.epsilon, -point.seed))
        _execute(self._label_runs([last])[0])  # nothing is left to do; the folder's recipe is this
        finished = [self._finished(point) for point in points]
        with ledgers.opened() as (pate, dpsgd):
            require_own_labels(self._label_runs(points), pate, tag=self.tag)
            require_own_models(self._homes(points), dpsgd, tag=self.tag)
            cost = ledgers.cost(pate, dpsgd)
        if not cost.here.releases or cost.other is None or not cost.other.releases:
            raise LedgerError(
                f"the ledgers of {self.recipe.data.name} hold no charge of this comparison, which "
                "is finished; restore them from a backup"
            )
        opened: dict[str, dict[str, Any]] = {
            each.method: {"recipe": each.recipe.model_dump(mode="json")} for each in last.labels
        }
        for model in last.models:
            home = self._home(last, model).relative_to(self.folder)
            opened[model.method] = {"folder": home.as_posix()}
        return finished, cost, opened

    def preview(self) -> Preview:
        """Return the charges that the comparison would make in all; nothing is written."""
        root = self.options.data_root
        data, notes = read_data(self.recipe.data, self.options)
        points = make_points(
            self.recipe,
            public=len(data.public.features),
            private=len(data.private.features),
            groups=data.private.groups,
        )
        ledgers, votes = self._ledgers(points), _votes(points)
        for labels in {each.method: each for each in _labels(points)}.values():
            with _of_section(labels.method):
                require_models(labels.recipe, data, self.quiet)
        notes += other_ledgers(self.any_recipe, self.quiet)
        untrained = [model for each in points for model in each.models]
        if ledgers.pate.exists() and key_path(self.any_recipe, root).exists():
            with Ledger.open(ledgers.pate) as ledger:
                votes = self._unpaid(points, ledger)
                runs = [each for each in self._label_runs(points) if not is_paid(each, ledger)]
                if any(charged_elsewhere(each, ledger) for each in runs):
                    notes.append(SAME_SETTINGS)
            untrained = self._untrained(points, ledgers)
        self._check_models(untrained)
        steps = [each.plan.events for each in untrained]
        ledgers.require_room(votes, steps)
        charges = tuple(ledgers.preview(votes, steps))
        if not charges:
            notes.append(f"nothing to charge: all releases in {self.folder} are paid for")
        return Preview(charges=charges, notes=tuple(notes))

    def _untrained(
        self, points: Sequence[ComparePoint], ledgers: TwoLedgers
    ) -> list[ComparedModel]:
        """Return the models that are not paid for."""
        return [
            model
            for each in points
            for model in each.models
            if not is_paid_model(
                model.recipe,
                self._home(each, model),
                ledger=ledgers.dpsgd,
                data_root=self.options.data_root,
                seed=self._seed(each.seed),
            )
        ]

    def _planned(self) -> tuple[list[ComparePoint], str]:
        """Return all points, and whom PATE protects; data are read first, for their counts."""
        data = self._run(self.any_recipe, seed=0)
        data.execute(until="data")
        for note in equal_rows_notes(equal_rows(data.artifact("data"))):
            self.options.report(note)
        points = make_points(
            self.recipe,
            public=len(data.artifact("data-public").array("features.npy")),
            private=len(data.artifact("data").array("features.npy")),
            groups=data.artifact("data").json("groups.json"),
        )
        for point in {each.seed: each for each in points}.values():  # the largest ε: all methods
            # What can be wrong with shards is found while no ledger has its terms.
            for run in self._label_runs([point]):
                run.execute(until="partition")
        # That of record votes where there are any: it does not cover a record that is replaced.
        named = bool(data.artifact("data").facts["named"])
        return points, self.any_recipe.protects(named=named)

    def _agree(self, points: Sequence[ComparePoint], ledgers: TwoLedgers, protects: str) -> None:
        """Refuse what must be refused, and record the plan: all before the first charge."""
        runs, root = self._label_runs(points), self.options.data_root
        require_paid(runs[0])
        steps_of = points[0].models[0].recipe
        secure, seeded = (dpsgd_ledger_path(steps_of, root, seed) for seed in (None, 0))
        require_charged_models(self.folder.glob("dpsgd/*"), secure, seeded=seeded)
        untrained = self._untrained(points, ledgers)
        self._check_models(untrained)
        for run, labels in zip(runs, _labels(points), strict=True):
            if not _is_finished(run):
                with _of_section(labels.method):
                    require_ready(run, answers=labels.plan.answers)
        if not self.options.spend:
            here = models_in(self.folder.glob("dpsgd/*"))
            plans = [each.plan.events for each in untrained]
            require_no_lost_model(plans, ledgers.dpsgd, here=here, tag=self.tag)
        votes = _votes(points)
        if ledgers.pate.exists():
            with Ledger.open(ledgers.pate) as ledger:
                require_own_labels(runs, ledger, tag=self.tag)
                votes = self._unpaid(points, ledger)
        if ledgers.dpsgd.exists():
            with Ledger.open(ledgers.dpsgd) as ledger:
                require_own_models(self._homes(points), ledger, tag=self.tag)
        steps = [each.plan.events for each in untrained]
        ledgers.require_room(votes, steps)
        if votes or steps:  # a finished comparison needs no records
            require_own_ledger(self.any_recipe, self.quiet, report=self.options.report)
        with ledgers.opened() as (pate, dpsgd):
            for run, labels in zip(runs, _labels(points), strict=True):
                with _of_section(labels.method):
                    require_cost(run, labels.plan, pate)
            ledgers.plan(pate, dpsgd, protects=protects)
            cost = ledgers.cost(pate, dpsgd, unpaid=votes, untrained=steps)
            self._announce(cost, budget_in_words(pate), budget_in_words(dpsgd))

    def _ledgers(self, points: Sequence[ComparePoint]) -> TwoLedgers:
        steps, options, ours = points[0].models[0].recipe, self.options, self.any_recipe
        seed = options.insecure_seed
        # Teachers of users hold for one user, too: so they are stated beside what is about users.
        by_user = steps.by_user or self.recipe.record_votes is not None
        return TwoLedgers(
            tag=self.tag,
            pate=ledger_path(ours, options.data_root, seeded=seed is not None),
            dpsgd=dpsgd_ledger_path(steps, options.data_root, seed),
            delta=self.recipe.compare.delta,
            relation=(
                Neighbours.USER_ADD_REMOVE
                if by_user and ours.protected_group is not None
                else ours.neighbours
            ),
            votes=_votes(points),
            steps=[model.plan.events for point in points for model in point.models],
            group=ours.data.group or "groups",
        )

    def _announce(self, cost: TotalStudyCost, for_pate: str, for_dpsgd: str) -> None:
        report = self.options.report
        report(f"PATE: at most {cost.here.describe(why=False)} ({for_pate})")
        if cost.other is not None:
            report(f"DP-SGD: at most {cost.other.describe(why=False)} ({for_dpsgd})")
        whole = in_nouns(cost_in_words(cost.together), **self.any_recipe.nouns)
        report(f"both, which a table of all of them costs: at most {whole}")
        if not cost.in_advance:
            report(
                f"These are {NOT_PLANNED} (study “{self.tag}”); for a study of its own, give an "
                "--out of another name, and --spend for what was paid for before."
            )

    # --- PATE -------------------------------------------------------------------------------------

    @property
    def any_recipe(self) -> Recipe:
        """A recipe of PATE in this comparison."""
        return self.recipe.any_pate

    def _label_runs(self, points: Iterable[ComparePoint]) -> list[PipelineRun]:
        return [
            self._run(labels.recipe, seed=point.seed) for point in points for labels in point.labels
        ]

    def _unpaid(self, points: Sequence[ComparePoint], ledger: Ledger) -> list[Sequence[Event]]:
        """Return the events of labels that are not paid for."""
        pairs = zip(_votes(points), self._label_runs(points), strict=True)
        return [events for events, run in pairs if not is_paid(run, ledger)]

    def _run(self, recipe: Recipe, *, seed: int) -> PipelineRun:
        options, seeded = self.quiet, self._seed(seed)
        if seeded != options.insecure_seed:
            options = replace(options, insecure_seed=seeded)
        stages = [Measures(self.folder).timed(stage) for stage in stages_of(recipe)]
        return PipelineRun(folder=self.folder, recipe=recipe, stages=stages, options=options)

    def _seed(self, repetition: int) -> int | None:
        """Return the insecure seed of a repetition: seeded noise, too, differs between them."""
        insecure = self.options.insecure_seed
        return None if insecure is None else insecure + repetition

    # --- DP-SGD and least squares -----------------------------------------------------------------

    def _home(self, point: ComparePoint, model: ComparedModel) -> Path:
        """Return the folder of a model: other settings have another one, and another charge."""
        name = name_of_run(model.recipe, self._seed(point.seed))[:8]
        return self.folder / "dpsgd" / f"epsilon-{point.epsilon:g}-seed-{point.seed}-{name}"

    def _homes(self, points: Sequence[ComparePoint]) -> list[Path]:
        return [self._home(point, model) for point in points for model in point.models]

    def _trained(self, point: ComparePoint, model: ComparedModel) -> TrainingOutcome | None:
        return find_outcome(
            model.recipe,
            self._home(point, model),
            data_root=self.options.data_root,
            insecure_seed=self._seed(point.seed),
        )

    def _check_models(self, models: list[ComparedModel]) -> None:
        """Refuse a model that cannot be trained privately, one of each method."""
        from dpsgd.training import check_model

        if not models:
            return
        path = self.options.plugin_path
        splits = load(self.recipe.data, root=self.options.data_root, plugin_path=path)
        for model in {each.method: each for each in models}.values():
            try:
                check_model(model.recipe, splits, model.plan, plugin_path=path)
            except InvalidInput as error:
                section = model.method.replace("-", "_")
                raise InvalidInput(
                    f"[{section}] of this comparison, whose encoder is steps in "
                    f"[{section}.features]: {error}"
                ) from error

    def _train(self, point: ComparePoint, model: ComparedModel) -> None:
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
        with Measures(self.folder).measured("dpsgd", name_of_run(model.recipe, seed)):
            train(model.recipe, self._home(point, model), options)

    # --- all of them ------------------------------------------------------------------------------

    def _finished(self, point: ComparePoint) -> FinishedPoint:
        measures, labels, models = Measures(self.folder), {}, {}
        for run, each in zip(self._label_runs([point]), point.labels, strict=True):
            parts = [
                measures.find(state.stage, state.made_from or "")
                for state in run.states()
                if state.stage not in _UNTIMED
            ]
            known = [part for part in parts if part is not None]
            whole = sum(known[1:], known[0]) if len(known) == len(parts) else None
            labels[each.method] = run, whole
        for model in point.models:
            trained = self._trained(point, model)
            assert trained is not None
            name = name_of_run(model.recipe, self._seed(point.seed))
            models[model.method] = trained.report, measures.find("dpsgd", name)
        return FinishedPoint(
            epsilon=point.epsilon,
            seed=point.seed,
            baselines=point.baselines,
            labels=labels,
            models=models,
        )


def open_comparison(run: PipelineRun) -> dict[str, PipelineRun | Path]:
    """Return the run of each method at the largest ε: of PATE, or the folder of a model.

    ``run`` is the one that the folder of the comparison is opened as; there is nothing in it of a
    folder without ``compare.json``.
    """
    path = run.folder / "compare.json"
    if not path.is_file():
        return {}
    try:
        given = json.loads(path.read_text())["runs"]
        found: dict[str, PipelineRun | Path] = {}
        for method, each in given.items():
            if "folder" in each:
                found[method] = run.folder / each["folder"]
                continue
            recipe = Recipe.model_validate(each["recipe"])
            set_file(recipe, run.recipe.data.file)
            found[method] = replace(run, recipe=recipe, stages=stages_of(recipe))
    except KeyError:
        raise InvalidInput(
            f"{path} is of an earlier version, which did not record the runs behind it; repeat "
            "`pate compare`, which pays for nothing twice"
        ) from None
    except (OSError, ValueError, AttributeError, TypeError):
        raise InvalidInput(f"{path} is damaged; repeat `pate compare` to restore it") from None
    return found


def _execute(run: PipelineRun) -> None:
    """Run a point to its end; one whose labels are too few for a student ends without one."""
    run.execute(until="account")
    if enough_labels(run):
        run.execute()


def _is_finished(run: PipelineRun) -> bool:
    done = {state.stage for state in run.states() if state.done}
    return "evaluate" in done or ("account" in done and not enough_labels(run))


def _labels(points: Iterable[ComparePoint]) -> list[ComparedLabels]:
    """Return all labels to release."""
    return [labels for point in points for labels in point.labels]


def _votes(points: Iterable[ComparePoint]) -> list[Sequence[Event]]:
    """Return the events of all labels to release."""
    return [labels.plan.events for labels in _labels(points)]


@contextlib.contextmanager
def _of_section(method: str) -> Iterator[None]:
    """Let a refusal name the section of a comparison that it is about."""
    try:
        yield
    except (TeacherError, InvalidInput) as error:
        name = method.replace("-", "_")
        raise type(error)(f"[{name}] of this comparison: {error}") from None


# --- models of dpsgd ------------------------------------------------------------------------------


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
    recipe: DpsgdRecipe, folder: Path, *, ledger: Path, data_root: Path, seed: int | None
) -> bool:
    """Return whether a model is released, or begun and charged.

    A checkpoint is written just before its charge: a kill in between leaves it unpaid.
    """
    if find_outcome(recipe, folder, data_root=data_root, insecure_seed=seed) is not None:
        return True
    from dpsgd.checkpoint import releases

    begun = private_folder(folder, name_of_run(recipe, seed)) / CHECKPOINT
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
                    "study uses only what was released for it; give another --out and --spend, "
                    "which pays for releases of its own"
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
            f"it is not in this folder; resume in its own folder, named “{tag.partition(' ')[2]}”, "
            "or, to train a new one and pay again, add --spend"
        )
