"""The page of a model trained by DP-SGD: ``training.html.j2``, filled with released facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pate._files import write_atomically
from pate._format import describe_neighbours, in_units, strength
from pate.accounting import Event, Guarantee, Ledger, Repeated, compose
from pate.artifacts.results import ClassCount, StatedGuarantee
from pate.dpsgd_runs import DpsgdRecipe, FinishedTraining, RunPlan
from pate.metrics import Share
from pate.report.curves import shown_queries
from pate.report.disclosure import OwnerAnswers
from pate.report.facts import (
    Cost,
    Digest,
    package_versions,
    poor_accuracy,
    publishable_cost,
    recipe_text,
    weak_guarantee,
)
from pate.report.page import fill_page

_NAME = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """The content of a page. All of it is PUBLIC or RELEASED."""

    recipe: DpsgdRecipe
    recipe_text: str  # TOML, without paths and columns
    plan: RunPlan
    protects: str
    guarantee: Cost
    curve: tuple[tuple[int, float], ...]  # ε by steps, by log-moments
    epochs: tuple[tuple[int, float], ...]  # accuracy by epochs, where it was measured
    classes: tuple[ClassCount, ...]  # empty: of people who are not public
    majority: float  # share of the majority class among the test records
    student: Share
    all_releases: Cost | None  # of the data set by DP-SGD, as its ledger publishes it
    all_relation: str | None  # the relation under which that holds, in words
    not_private: str | None  # the reason why nothing here is a guarantee
    notes: tuple[str, ...]  # caveats that the settings alone do not show
    digests: tuple[Digest, ...]
    versions: Mapping[str, str]
    written: date
    unseen: tuple[str, ...] = ()  # classes without recall, not to be named; empty in a release

    @property
    def verdict(self) -> str:
        """The strength of the guarantee in a sentence, with what makes it stronger here."""
        _, verdict = strength(self.guarantee.epsilon)
        verdict = in_units(verdict, self.recipe.unit)
        return verdict.replace(
            "More teachers, more noise or fewer queries", "More noise or fewer steps"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences to read first, beside the notes, as on the page of a student."""
        weak = strength(self.guarantee.epsilon)[0] == "weak" and not self.not_private
        unseen = [row.name for row in self.classes if row.records and not row.right]
        poor = poor_accuracy(
            "model",
            self.student,
            majority=self.majority,
            unseen=unseen or self.unseen,
            named=bool(self.classes),
        )
        return (*([weak_guarantee(self.guarantee, self.verdict)] if weak else ()), *poor)

    @property
    def layers(self) -> str:
        """The network in a few words."""
        model = self.recipe.model
        if self.recipe.least_squares:
            return "one linear layer, by least squares"
        if model.entry is not None:
            return model.entry
        if model.kind == "cnn":
            return f"a small convolutional network ({model.activation or 'tanh'})"
        hidden = [1000] if model.hidden is None else model.hidden
        if not hidden:
            return "one linear layer"
        return f"hidden layers of {', '.join(map(str, hidden))} ({model.activation or 'relu'})"

    @property
    def prepared(self) -> list[str]:
        """The names of what is done to records before they are learnt from; fitted in public."""
        features = self.recipe.features
        scaled = [f"scale {features.scale:g}"] if features.scale != 1 else []
        own = [features.encoder] if features.encoder is not None else []
        return [*scaled, *(step.name for step in features.steps), *own]

    def shares(self, *, majority: str) -> list[tuple[str, Share]]:
        """Return the accuracies to plot under each other; the last one is named ``majority``."""
        most = self.majority
        flat = Share(accuracy=most, low=most, high=most, records=self.student.records)
        return [("model", self.student), (majority, flat)]


def class_counts(names: Sequence[str], confusion: Sequence[Sequence[int]]) -> list[ClassCount]:
    """Return the classes of a table of test records by class (rows) and prediction (columns)."""
    return [
        ClassCount(
            name=name,
            records=sum(confusion[at]),
            right=confusion[at][at],
            predicted=sum(row[at] for row in confusion),
        )
        for at, name in enumerate(names)
    ]


def majority_of(classes: Sequence[ClassCount]) -> float:
    """Return the share of the majority class."""
    return max(row.records for row in classes) / sum(row.records for row in classes)


def cost_by_steps(
    plan: RunPlan, events: Sequence[Event], *, delta: float
) -> tuple[tuple[int, float], ...]:
    """Return ε after some of the steps, by log-moments; what comes before them is included.

    Guarantees:
        Abadi et al. 2016, Theorem 2.1, for a number of steps that is fixed in advance.
    """
    *prior, last = events
    step = last.event if isinstance(last, Repeated) else last
    return tuple(
        (steps, compose([*prior, Repeated(step, steps)]).guarantee(delta=delta).epsilon)
        for steps in shown_queries(plan.steps)
    )


def measured_epochs(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, float], ...]:
    """Return epoch and accuracy of those epochs after which the model was tested."""
    return tuple((row["epoch"], row["accuracy"]) for row in rows if row["accuracy"] is not None)


def gather_training_facts(run: FinishedTraining, *, confusion: bool = False) -> TrainingFacts:
    """Return the facts of a finished run, for anybody to see.

    Of test records of the user's own, errors by class are shown with ``confusion`` only.

    Guarantees:
        Reads the RELEASED artifact of the run, and what the data set's ledger publishes.
    """
    evaluation, guarantee = run.evaluation, run.guarantee
    not_private, whole = None, None
    if run.is_private:
        with Ledger.open(run.ledger_path) as ledger:
            whole = ledger.guarantee()
    else:
        not_private = run.why_not_private
    return TrainingFacts(
        recipe=run.recipe,
        recipe_text=recipe_text(run.recipe),
        plan=run.plan,
        protects=run.protects,
        guarantee=Cost.of(guarantee.as_json()) if not_private else _publishable(guarantee),
        curve=cost_by_steps(run.plan, run.plan.events, delta=guarantee.delta),
        epochs=measured_epochs(run.stated["epochs"]),
        classes=evaluation.classes if confusion or not run.recipe.data.own else (),
        unseen=tuple(evaluation.unseen),
        majority=majority_of(evaluation.classes),
        student=evaluation.student,
        all_releases=None if whole is None else _publishable(whole),
        all_relation=None if whole is None else describe_neighbours(whole.neighbours),
        not_private=not_private,
        notes=guarantee.notes,
        digests=(Digest(what="model", level="released", sha256=run.artifact.digest),),
        versions=package_versions(),
        written=datetime.now(UTC).date(),
    )


def _publishable(guarantee: Guarantee) -> Cost:
    return publishable_cost(StatedGuarantee.of(guarantee))


def render_training_page(facts: TrainingFacts, *, owner: OwnerAnswers | None = None) -> str:
    """Return the page as HTML; the same facts give the same page, byte for byte."""
    return fill_page(facts, name="training.html.j2", owner=owner)


def write_training_report(
    run: FinishedTraining, file: Path | None = None, *, with_confusion: bool = False
) -> Path:
    """Write the page of a finished run and return its path: ``report.html`` by default."""
    place = file or run.folder / _NAME
    facts = gather_training_facts(run, confusion=with_confusion)
    page = render_training_page(facts, owner=None if facts.not_private else OwnerAnswers())
    write_atomically(place, page.encode(), mode=0o644)
    return place
