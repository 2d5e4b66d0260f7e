"""The facts of a finished run that the public page shows, read from what may be shown."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pate._format import format_epsilon, format_percent, in_units, strength
from pate.accounting import Accountant, Analysis, Conversion, Event, Ledger, Neighbours
from pate.accounting.events import tally
from pate.accounting.ledger.running_total import states_records
from pate.artifacts import Artifact, Level
from pate.artifacts.results import (
    Costs,
    Evaluation,
    Labels,
    StatedGuarantee,
    named_classes,
    without_recall,
)
from pate.dpsgd_runs import DpsgdRecipe
from pate.errors import InvalidInput
from pate.mechanisms import make_mechanism, voting_mechanism
from pate.metrics import Share, no_better
from pate.pipeline.ledger import key_path, ledger_path
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun
from pate.pipeline.stage import producer
from pate.recipes.read import to_toml
from pate.report.curves import CostCurves, MomentProfile, cost_curves, moment_profile
from pate.stages.caveats import tuning_caveats

if TYPE_CHECKING:
    from pate.report.private import PrivateFacts

AnyRecipe = TypeVar("AnyRecipe", Recipe, DpsgdRecipe)

_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "dp-accounting", "randomgen")
_DIGESTS = {
    "data-public": "public inputs",
    "encoder": "encoder",
    "aggregate": "released labels",
    "account": "guarantees",
    "distill": "student",
    "evaluate": "evaluation",
}
# The methods compared that use private records.
_WITH_EPSILON = ("pate", "record-votes", "dpsgd", "least-squares")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One (ε, δ), how it was reached, and at which λ."""

    epsilon: float
    delta: float
    moment: float | None
    conversion: str | None
    accountant: str = Accountant.MOMENTS.value

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the cost in a record of ``guarantees.json`` or ``guarantee.json``."""
        return cls(**{key: record[key] for key in cls.__slots__ if key in record})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """One class: its released labels, and the student's predictions on test records."""

    name: str
    labels: int
    records: int
    correct: int
    predicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The hash of an artifact that the page was made from."""

    what: str
    level: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The content of a page. All of it is PUBLIC or RELEASED, but for ``private``."""

    recipe: Recipe
    recipe_text: str  # TOML, without paths, columns and keys
    protects: str
    guarantee: Cost
    plan: Mapping[str, Cost]  # of the labels alone, by conversion
    sanitised: Cost | None
    confidence: float | None  # that the sanitised ε is an upper bound
    price: float | None  # RDP that was paid for the sanitised ε
    why_not: str | None  # there is no sanitised ε
    queries: int
    answers: int
    asked: int
    answered: int
    kept: int
    curves: CostCurves | None  # None of a table, which is one release
    profile: MomentProfile | None  # None where no log-moment is involved
    classes: tuple[ClassRow, ...]
    confusion: tuple[tuple[int, ...], ...]  # empty: of people who are not public
    majority: float  # share of the majority class among test records
    student: Share
    labels: Share | None  # that are right, where the true labels of public inputs are known
    agreement: Share | None  # of the student with the released labels
    all_releases: Cost | None  # of the data set, as its ledger publishes it
    covers: str | None  # the unit that all releases protect, in words
    seeded: bool
    extended: bool
    notes: tuple[str, ...]  # caveats that the settings alone do not show
    digests: tuple[Digest, ...]
    versions: Mapping[str, str]
    written: date
    comparison: tuple[ComparedMethod, ...] = ()
    stated_apart: bool = False  # record votes are among all releases: each states its relation
    warns_of_unlearnt: bool = True  # of classes without labels; releases of format 3 did not
    private: PrivateFacts | None = None
    unseen: tuple[str, ...] = ()  # classes without recall, not to be named; empty in a release

    @property
    def cells(self) -> int:
        """The number of cells at which records voted, or of components, where they did."""
        votes = self.recipe.resolved_votes(inputs=self.queries, classes=len(self.classes))
        return votes.rows(inputs=self.queries)

    @property
    def conversion(self) -> Conversion:
        """The conversion of the guarantee."""
        return Conversion(self.recipe.privacy.conversion)

    @property
    def mechanism(self) -> str:
        """The name of the mechanism."""
        return make_mechanism(self.recipe.aggregate).title

    @property
    def formula(self) -> str:
        """The answer of the mechanism, in symbols."""
        return make_mechanism(self.recipe.aggregate).formula()

    @property
    def checked(self) -> bool:
        """Whether a noised check decides which queries are answered."""
        return self.recipe.aggregate.kind.checks

    @property
    def teacher_models(self) -> list[str]:
        """The models of the teachers."""
        teachers = self.recipe.teachers
        return [teachers.model] if teachers.model else [entry.model for entry in teachers.mix]

    @property
    def relations(self) -> dict[str, str | None]:
        """The neighbouring relation of each method of the comparison that has one."""
        found = {row.method: row.neighbours for row in self.comparison if row.neighbours}
        return {"pate": found.get("record-votes"), "dpsgd": None} | found

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences to read first, beside the notes: what the numbers below could be taken for."""
        return tuple(self._warnings())

    def _warnings(self) -> Iterator[str]:
        word, verdict = strength(self.guarantee.epsilon)
        if word == "weak" and not self.seeded:
            yield weak_guarantee(self.guarantee, in_units(verdict, self.recipe.unit))
        unseen = [row.name for row in self.classes if row.records and not row.correct]
        yield from poor_accuracy(
            "student",
            self.student,
            majority=self.majority,
            unseen=unseen or self.unseen,
            named=bool(self.confusion),
        )
        unlearnt = [row.name for row in self.classes if not row.labels and row.name not in unseen]
        # The released labels tell it, also where errors by class are left out.
        if unlearnt and self.warns_of_unlearnt:
            yield (
                f"No released label is of {named_classes(unlearnt)}: the student cannot find "
                f"records of {'it' if len(unlearnt) == 1 else 'them'}."
            )

    @property
    def no_better(self) -> tuple[ComparedMethod, ...]:
        """The methods compared, and charged, that do not beat the majority class."""
        most = [row.accuracy for row in self.comparison if row.method == "majority"]
        return tuple(
            row
            for row in self.comparison
            if most and row.method in _WITH_EPSILON and no_better(row.low, most[0])
        )

    def shares(self, *, majority: str) -> list[tuple[str, Share]]:
        """Return the accuracies to plot under each other; the last one is named ``majority``."""
        rows: list[tuple[str, Share | None]] = [
            ("student", self.student),
            ("without privacy", None if self.private is None else self.private.reference),
            ("released labels", self.labels),
            ("agrees with labels", self.agreement),
        ]
        records = self.student.records
        most = self.majority
        rows.append((majority, Share(accuracy=most, low=most, high=most, records=records)))
        return [(name, share) for name, share in rows if share is not None]

    def confusions(self, limit: int) -> list[tuple[int, str, str]]:
        """Return the most frequent confusions: records, their class, the predicted class."""
        names = [row.name for row in self.classes]
        found = [
            (count, names[i], names[j])
            for i, row in enumerate(self.confusion)
            for j, count in enumerate(row)
            if i != j and count
        ]
        return sorted(found, reverse=True)[:limit]


def weak_guarantee(guarantee: Cost, verdict: str) -> str:
    """Return a warning that ε is large."""
    return f"ε = {format_epsilon(guarantee.epsilon)} is a weak guarantee. {verdict}"


def poor_accuracy(
    what: str, share: Share, *, majority: float, unseen: Sequence[str], named: bool
) -> Iterator[str]:
    """Yield warnings that a model is no better than the majority class, or misses a class whole.

    ``named`` where errors by class are shown, so that ``unseen`` may be, too.
    """
    if no_better(share.low, majority):
        yield (
            f"The {what} is no better than a guess: it is right on "
            f"{format_percent(share.accuracy)} of the test records, and always predicting the "
            f"majority class is right on {format_percent(majority)}."
        )
    if (unfound := without_recall(what, unseen, named=named)) is not None:
        yield unfound


class ShownArtifacts:
    """The artifacts of a finished run that a page may show.

    Guarantees:
        Everything is opened through a store cleared to RELEASED: it refuses whatever is PRIVATE or
        reserved for a stage, by its manifest and wherever it lies.
    """

    def __init__(self, run: PipelineRun) -> None:
        self._store = run.store.cleared("report", Level.RELEASED)
        self._made_from = finished_stages(run)

    def open(self, name: str) -> Artifact:
        """Open an artifact by its name; raise :class:`StoreError` for what may not be shown."""
        return self._store.open(name, self._made_from[producer(name)])


def finished_stages(run: PipelineRun) -> dict[str, str]:
    """Return the fingerprint of every stage of a complete run.

    The key of the data set is never created here: without it nothing of the run could be found.
    """
    if not key_path(run.recipe, run.options.data_root).is_file():
        raise InvalidInput(
            f"{run.folder} was not run with the data root {run.options.data_root}: the data set's "
            "key is not in it; give the run's own --data-root"
        )
    made_from = {}
    for state in run.states():
        if not state.done or state.made_from is None:
            raise InvalidInput(
                f"{run.folder} is not finished: {state.stage} is {state.why}; {_remedy(state.why)}"
            )
        made_from[state.stage] = state.made_from
    return made_from


def _remedy(why: str) -> str:
    for setting, option in (("insecure_seed", "--insecure-seed"), ("plugin", "--plugin-path")):
        if setting in why:
            return f"give the {option} it was run with, or run the recipe again"
    return "run the recipe again, or the sweep or comparison, to resume it"


def gather_facts(run: PipelineRun, *, confusion: bool = False) -> Facts:
    """Return the facts of a finished run, for anybody to see.

    Of test records of the user's own, errors by class are shown with ``confusion`` only.

    Guarantees:
        Reads RELEASED and PUBLIC artifacts (:class:`ShownArtifacts`), the recipe, and what the data
        set's ledger publishes. The ε of what happened to be answered, the data-dependent ε, and
        the reference trained on private records are not among them.
    """
    shown = ShownArtifacts(run)
    recipe = run.recipe
    released = Labels.load(shown.open("aggregate"))
    costs, evaluation = Costs.load(shown.open("account")), Evaluation.load(shown.open("evaluate"))
    sanitised = costs.sanitised
    labels = np.bincount(released.labels, minlength=len(evaluation.classes))
    total, covers, notes, apart = _of_the_ledger(run)
    tested = confusion or not recipe.data.own
    return Facts(
        recipe=recipe,
        recipe_text=recipe_text(recipe),
        protects=costs.protects,
        guarantee=publishable_cost(costs.guarantee),
        plan={name: publishable_cost(each) for name, each in costs.plan.items()},
        sanitised=None if sanitised is None else publishable_cost(sanitised),
        confidence=None if sanitised is None else sanitised.confidence,
        price=None if sanitised is None else sanitised.price,
        why_not=without_paths(costs.why_not),
        queries=released.plan.queries,
        answers=released.plan.answers,
        asked=len(released.asked),
        answered=len(released.answered),
        kept=len(released.kept),
        **plan_curves(
            recipe,
            released.plan.events,
            queries=released.plan.queries,
            answers=released.plan.answers,
            analysis=Analysis(costs.guarantee.analysis),
        ),
        classes=tuple(
            ClassRow(
                name=row.name,
                labels=int(count),
                records=row.records * tested,
                correct=row.right * tested,
                predicted=row.predicted * tested,
            )
            for row, count in zip(evaluation.classes, labels, strict=True)
        ),
        confusion=evaluation.confusion if tested else (),
        unseen=tuple(evaluation.unseen),
        majority=max(row.records for row in evaluation.classes) / evaluation.student.records,
        student=evaluation.student,
        labels=evaluation.labels,
        agreement=evaluation.agreement,
        all_releases=total,
        covers=covers,
        seeded=released.seeded,
        extended=released.extended,
        notes=tuple(notes),
        digests=tuple(
            Digest(what=title, level=artifact.level.name.lower(), sha256=artifact.digest)
            for title, artifact in ((title, shown.open(name)) for name, title in _DIGESTS.items())
        ),
        versions=package_versions(),
        written=datetime.now(UTC).date(),
        comparison=read_comparison(run.folder),
        stated_apart=apart,
    )


def plan_curves(
    recipe: Recipe, events: Sequence[Event], *, queries: int, answers: int, analysis: Analysis
) -> dict[str, Any]:
    """Return the curves of a plan: over its queries, and over λ where there is one to choose."""
    delta, conversion = recipe.privacy.delta, Conversion(recipe.privacy.conversion)
    curves = profile = None
    if recipe.aggregate.asks:
        curves = cost_curves(
            voting_mechanism(recipe.aggregate),
            queries=queries,
            answers=answers,
            delta=delta,
            conversion=conversion,
            analysis=analysis,
        )
    if delta:
        profile = moment_profile(events, delta=delta, conversion=conversion, analysis=analysis)
    return {"curves": curves, "profile": profile}


def publishable_cost(stated: StatedGuarantee) -> Cost:
    """Return a cost of the public report; one that is marked otherwise never gets on the page."""
    if not stated.publishable:
        raise InvalidInput("a released value may not be published; run the recipe again")
    return Cost.of(stated.as_json())


def _of_the_ledger(run: PipelineRun) -> tuple[Cost | None, str | None, list[str], bool]:
    """Return what may be published of all releases of the data set, what it covers, and caveats.

    The last value is whether record votes are among them (:attr:`Facts.stated_apart`).
    """
    seeded = run.options.insecure_seed is not None
    place = ledger_path(run.recipe, run.options.data_root, seeded=seeded)
    if not place.is_file():
        unknown = (
            "The ledger of this data set was not found: whether other releases were made from the "
            "same data is not known."
        )
        return None, None, [unknown], False
    with Ledger.open(place) as ledger:
        whole = None if seeded else publishable_cost(StatedGuarantee.of(ledger.guarantee()))
        events = [event for charge in ledger.charges() for event in charge.events]
        apart = any(map(states_records, tally(events)))
        relation = ledger.guarantee().neighbours if apart else None
        return whole, ledger.coverage().describe(relation), tuning_caveats(run, ledger), apart


def without_paths(reason: str | None) -> str | None:
    """Return why there is no sanitised ε, without a sentence that names a file."""
    if reason is not None and ("/" in reason or "\\" in reason):
        return "its price was not paid again"
    return reason


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that compute what a page shows."""
    from pate import __version__

    found = {"pate": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # of something this run did without
            continue
    return found


def best_guess(epsilon: float, delta: float) -> float:
    """Return how often the best guesser is right about which of two neighbours was used.

    Guarantees:
        Both equally likely beforehand. A test with false alarms p and hits h has h ≤ e^ε p + δ and
        1 − p ≤ e^ε (1 − h) + δ (Kairouz, Oh & Viswanath 2015, Theorem 2.1); (1 + h − p)/2 is at
        most (e^ε + δ)/(e^ε + 1).

    >>> best_guess(0.0, 0.0), round(best_guess(1.0, 1e-5), 4), best_guess(800.0, 1e-5)
    (0.5, 0.7311, 1.0)
    """
    if epsilon > 700:
        return 1.0
    odds = math.exp(epsilon)
    return min(1.0, (odds + delta) / (odds + 1))


# --- the recipe -----------------------------------------------------------------------------------


def recipe_text(recipe: AnyRecipe, *, like: Mapping[str, Any] | None = None) -> str:
    """Return a recipe as TOML: every setting that has a value; of a path, its last part.

    Folders reveal a machine and its user, and nothing of the guarantee. So do the files and columns
    of private data, and the key of their shards (:func:`without_places`). With ``like``, a recipe
    that was written before, settings that it does not name are left out: they are newer.
    """
    # How it was chosen, if it was, is no part of a recipe that runs.
    sections = without_places(recipe).model_dump(mode="json", exclude={"selection"})
    parts: list[str] = [f"kind = {to_toml(sections['kind'])}"] if "kind" in sections else []
    for name, settings in sections.items():
        if not isinstance(settings, Mapping):
            continue
        known = settings.keys() if like is None else like.get(name, {}).keys()
        lines: list[str] = [
            f"{key} = {to_toml(without_folders(each))}"
            for key, each in settings.items()
            if each is not None and key in known
        ]
        if lines:
            parts.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(parts) + "\n"


def without_places(recipe: AnyRecipe) -> AnyRecipe:
    """Return a recipe without the files and columns of the data, and the key of the shards."""
    places: tuple[str, ...] = ("source", "private_path", "public_path", "test_path")
    gone = dict.fromkeys((*places, "id", "group", "label", "features", "categorical"))
    update: dict[str, BaseModel] = {"data": recipe.data.model_copy(update=gone)}
    if isinstance(recipe, Recipe):
        update["partition"] = recipe.partition.model_copy(update={"key": None})
    elif recipe.by_user:  # the column of users goes; that they are protected stays
        update["training"] = recipe.training.model_copy(update={"by": "group"})
    return recipe.model_copy(update=update)


def without_folders(value: Any) -> Any:
    """Return a plain value with the last part of each path in it.

    >>> without_folders({"files": ["/home/ann/records.csv", "C:\\\\a\\\\b.csv", 3]})
    {'files': ['records.csv', 'b.csv', 3]}
    """
    if isinstance(value, Mapping):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(each) for each in value]
    if isinstance(value, str) and ("/" in value or "\\" in value):
        return Path(value.replace("\\", "/")).name
    return value


# --- the comparison -------------------------------------------------------------------------------


class ComparisonTerms(BaseModel):
    """The terms that all rows of a comparison share."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    delta: float
    repetitions: int
    epsilon_together: float | None  # of all runs compared; None: no guarantee
    delta_together: float | None
    neighbours_together: str | None


Proportion = Annotated[float, Field(ge=0, le=1)]


class ComparedMethod(BaseModel):
    """One method at one ε, or one that needs none: it used no private record."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    method: str
    name: str
    epsilon: Annotated[float, Field(ge=0)] | None
    accuracy: Proportion
    spread: float | None  # standard deviation over repetitions
    low: Proportion
    high: Proportion
    neighbours: str | None
    terms: ComparisonTerms

    @model_validator(mode="after")
    def _has_its_cost(self) -> Self:
        if self.epsilon is None and self.method in _WITH_EPSILON:
            raise ValueError("it has no ε")
        return self


def read_comparison(folder: Path) -> tuple[ComparedMethod, ...]:
    """Return the methods in ``compare.json`` that may be shown; none where none has an ε.

    Guarantees:
        The file has no level of its own: a row without ``"publishable": true`` is left out. Format
        1 claimed DP-SGD's ε for one record added or removed although its sampling rate followed
        from the number of records: it holds for zero-out, and is read so.
    """
    path = folder / "compare.json"
    if not path.is_file():
        return ()
    try:
        content = json.loads(path.read_text())
        together = content["cost"]["together"]
        if content["format"] == 1:
            for row in (*content["rows"], *([] if together is None else [together])):
                ours = row.get("method", "dpsgd") == "dpsgd"  # the sum rests on them, too
                if ours and row["neighbours"] == Neighbours.ADD_REMOVE:
                    row["neighbours"] = Neighbours.ZERO_OUT.value
        elif content["format"] != 2:
            raise ValueError("it is of another format")
        terms = ComparisonTerms(
            delta=content["delta"],
            repetitions=content["seeds"],
            epsilon_together=together and together["epsilon"],
            delta_together=together and together["delta"],
            neighbours_together=together and together["neighbours"],
        )
        found = tuple(
            ComparedMethod.model_validate({**row, "terms": terms})
            for row in content["rows"]
            if row.get("publishable") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{path} is damaged, or holds an impossible value; compare again, or remove it"
        ) from error
    return found if any(each.method in _WITH_EPSILON for each in found) else ()
