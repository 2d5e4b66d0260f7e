"""The privacy of a release in the terms that conventions ask for, and what only its owner knows.

Model card, page, the record for a registry of deployments and the metadata of hubs are all written
from one :class:`Disclosure`, which follows from the facts of a page: no number is typed twice.

The topics follow NIST SP 800-226, *Guidelines for Evaluating Differential Privacy
Guarantees* (March 2025, doi:10.6028/NIST.SP.800-226): what is promised, what could undermine it in
an implementation, and what it rests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pate._format import (
    COMPOSITION_RULES,
    TRAINING_RULES,
    format_delta,
    format_epsilon,
    format_percent,
    in_units,
    plural,
    strength,
)
from pate.accounting.events import relation_of
from pate.errors import InvalidInput
from pate.metrics import Share
from pate.pipeline.recipe import Recipe
from pate.recipes.read import load_toml
from pate.report.facts import Cost, Facts

if TYPE_CHECKING:
    from pate.report.training import TrainingFacts

SOURCE = "NIST SP 800-226 (March 2025)"


# --- the owner's answers --------------------------------------------------------------------------


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("it must be a line of printable text")
    return text.strip()


Line = Annotated[str, Field(max_length=2000), AfterValidator(_one_line)]


class TopicAnswers(BaseModel):
    """``[answers]``: the owner's answers to what no run can know, by topic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parameters: Line | None = None
    unit: Line | None = None
    tuning: Line | None = None
    utility: Line | None = None
    trust: Line | None = None
    side_channels: Line | None = None
    access_control: Line | None = None
    data_collection: Line | None = None
    further_releases: Line | None = None


class OwnerAnswers(BaseModel):
    """What only the owner of a release can state: ``--owner FILE``, a TOML file. All is optional.

    Words with a fixed choice are those of the OpenDP deployments registry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    license: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$", max_length=100)] | None = None
    publisher: Line | None = None
    publisher_type: Literal["Government", "Industry", "Nonprofit"] | None = None
    intended_use: Line | None = None
    region: Line | None = None
    sector: (
        Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None
    ) = None
    authors: Annotated[tuple[Line, ...], Field(max_length=100)] = ()
    answers: TopicAnswers = TopicAnswers()

    @classmethod
    def read(cls, given: str | Path | Mapping[str, Any]) -> Self:
        """Return the answers in a TOML file or a mapping; raise the key that breaks a rule."""
        where = "owner" if isinstance(given, Mapping) else str(given)
        try:
            return cls.model_validate(
                given if isinstance(given, Mapping) else load_toml(Path(given))[1]
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            key = ".".join(map(str, first["loc"]))
            raise InvalidInput(
                f"{where}: {key} is wrong: {first['msg']}; it takes "
                f"{', '.join(cls.model_fields)}, and [answers] takes "
                f"{', '.join(TopicAnswers.model_fields)}"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One topic: what the run knows of it, and what its owner states or has still to state."""

    topic: str
    known: str
    open: str  # the question to the owner; empty: there is none
    stated: str | None  # the owner's answer


# --- the disclosure -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosure:
    """The privacy of a release in words and numbers; all of it is PUBLIC or RELEASED.

    Guarantees:
        It follows from a page's facts, which hold no number of private records, no size of a shard
        and no data-dependent ε. ε and δ are rounded up, as everywhere else.
    """

    epsilon: float
    delta: float
    verdict: str  # of ε, by common practice
    target: str  # the origin of ε
    method: str
    tag: str  # of the method, for hubs
    unit: str  # the noun for whoever is protected
    of_users: bool  # all records of one user, and not one record
    neighbours: str
    protects: str
    mechanism: str
    accountant: str
    composition: str
    sampling: str
    preparation: str
    tuning: str
    post_processing: str
    floating_point: str
    unprotected: str
    whole: str  # on all releases of the data set
    utility: str

    @classmethod
    def of(cls, facts: Facts | TrainingFacts) -> Self:
        """Return the disclosure of a run or a release by the facts of its page."""
        if isinstance(facts, Facts):
            return cls(**_of_votes(facts), **_of_both(facts))
        return cls(**_of_training(facts), **_of_both(facts))

    @property
    def variant(self) -> str:
        """The definition of differential privacy that is met."""
        return "Approximate DP" if self.delta else "Pure DP"

    def summary(self) -> dict[str, Any]:
        """Return the guarantee as a few values for the metadata of hubs."""
        return {
            "definition": self.variant,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "level": "user" if self.of_users else "record",
            "neighbours": self.neighbours,
            "protects": self.protects,
            "method": self.method,
            "mechanism": self.mechanism,
            "accountant": self.accountant,
        }

    def answers(self, owner: OwnerAnswers) -> tuple[Answer, ...]:
        """Return the topics of NIST SP 800-226 with what is known, and what the owner states."""
        return tuple(
            Answer(
                topic=title, known=known, open=asked, stated=getattr(owner.answers, key or "", None)
            )
            for key, title, known, asked in self._topics()
        )

    def _topics(self) -> tuple[tuple[str | None, str, str, str], ...]:
        people = plural(self.unit)
        several = (
            f"Whether a person can be behind several {people}."
            if self.of_users
            else f"Whether one person can have several records: ε is for one {self.unit}; "
            "for several of one person together it is several times as large, and δ grows with it."
        )
        owed = ""
        if self.delta:
            owed = f", and that δ is far below one over the number of {people}"
        relation = "" if self.neighbours in self.protects else f" ({self.neighbours})"
        return (
            (
                "parameters",
                "ε, δ and their justification",
                f"ε = {format_epsilon(self.epsilon)}, δ = {format_delta(self.delta)} "
                f"({self.variant}). {self.target} {self.verdict}",
                f"Why this ε is acceptable{owed}.",
            ),
            (
                "unit",
                "Unit of privacy",
                f"One {self.unit}: the guarantee is for {self.protects}{relation}.",
                several,
            ),
            (
                None,
                "Algorithm",
                f"{self.method}. {self.mechanism}. Composition: {self.composition}.",
                "",
            ),
            (None, "Sampling", self.sampling, ""),
            (
                "tuning",
                "Choice of settings",
                self.tuning,
                "How settings were chosen, and whether private records were looked at for that.",
            ),
            (
                "utility",
                "Utility and bias",
                f"{self.utility} Noise weighs most on rare classes and small groups of people; "
                "accuracy by groups was not measured.",
                "Whether errors fall on some people more than on others.",
            ),
            (
                "trust",
                "Trust model",
                TRUST,
                "Who runs it and has access, and why they are trusted.",
            ),
            (
                "side_channels",
                "Implementation and side channels",
                f"{self.floating_point} How long a run took, what it printed and whether it "
                "finished may depend on private records and are not covered.",
                "Who could observe the computer, its logs and its load while it ran.",
            ),
            (
                "access_control",
                "Security and access control",
                "Private artifacts, the ledger and its key are written to folders that their owner "
                "alone may read, and are refused in a release.",
                "Who can read the private records, the run's folder, the ledger and their backups.",
            ),
            (
                "data_collection",
                "Data collection",
                f"The run starts from files and knows nothing of how they came about. "
                f"{self.unprotected}",
                "How the records were collected, by what consent, and who else holds them.",
            ),
            (
                "further_releases",
                "Further releases",
                self.whole,
                "What else was or will be published of the same people, also without pate.",
            ),
        )


TRUST = (
    "Central: one trusted party holds the private records and everything computed from them before "
    "noise, and adds the noise. Whoever gets the release need not be trusted, whatever they know."
)


def _of_both(facts: Facts | TrainingFacts) -> dict[str, Any]:
    guarantee, unit = facts.guarantee, facts.recipe.unit
    target = facts.recipe.privacy.epsilon
    return {
        "epsilon": float(format_epsilon(guarantee.epsilon)),
        "delta": float(format_delta(guarantee.delta)),
        "target": "It follows from the noise that the recipe states."
        if target is None
        else f"The recipe set a limit of {target:g} in advance.",
        "unit": unit,
        "protects": in_units(facts.protects, unit),
        "utility": _utility(facts.student),
    }


def _utility(student: Share) -> str:
    return (
        f"{format_percent(student.accuracy)} of {student.records} test records are classified "
        f"correctly (95 % interval: {format_percent(student.low)} to "
        f"{format_percent(student.high)})."
    )


def _composed(rule: str, cost: Cost) -> str:
    if cost.moment is None:
        return rule
    return f"{rule}, at λ = {cost.moment:g}, by the {cost.conversion} conversion"


def _labelled(recipe: Recipe) -> str:
    if recipe.votes.components is not None:
        return "Labels were predicted by least squares from the noised sums. "
    return "Labels were smoothed from the noised counts. "


def _of_votes(facts: Facts) -> dict[str, Any]:
    recipe, records = facts.recipe, facts.recipe.by_records
    rule = COMPOSITION_RULES.get(
        facts.guarantee.accountant, "log-moments add up (Abadi et al. 2016)"
    )
    composition = _composed(rule, facts.guarantee)
    if recipe.selection is not None:
        composition = (
            f"the choice among candidates (Papernot & Steinke 2022, Theorem 2): {composition}"
        )
    elif facts.extended:
        composition = f"all charges to the ledger up to this release: {composition}"
    whole = _whole(facts.all_releases, "PATE releases")
    if facts.covers:
        whole = f"{whole} {in_units(facts.covers, recipe.unit).capitalize()}."
    return {
        "verdict": in_units(strength(facts.guarantee.epsilon)[1], recipe.unit),
        "tag": "pate",
        "method": "PATE with record votes" if records else "PATE with votes of teachers",
        "of_users": recipe.partition.by == "group",
        "neighbours": recipe.neighbours.value,
        "mechanism": f"{facts.mechanism}: {facts.formula}",
        "accountant": facts.guarantee.accountant,
        "composition": composition,
        "sampling": f"ε counts on none: every private {recipe.unit} votes."
        if records
        else f"ε counts on none: every private {recipe.unit} belongs to one teacher, by "
        f"{recipe.partition.method}.",
        "preparation": "The encoder is fixed, or was fitted on public inputs alone.",
        "tuning": f"The choice among {len(recipe.selection.candidates)} candidates is part of ε."
        if recipe.selection is not None
        else "ε covers no choice of settings by results.",
        "post_processing": (_labelled(recipe) if records else "")
        + "The student was trained on released labels and public inputs alone.",
        "floating_point": "Noise comes from the operating system's secure randomness, drawn once. "
        + (
            "Published counts have noise of whole numbers, without the low-order bits of "
            "floating-point numbers (Mironov 2012)."
            if records
            else "Only the winner of a noised vote leaves and no noised number, so that low-order "
            "bits of floating-point noise (Mironov 2012) are not published."
        ),
        "unprotected": "Public inputs, test records and their people are not protected; names of "
        "classes and the form of a record count as public.",
        "whole": whole,
    }


def _of_training(facts: TrainingFacts) -> dict[str, Any]:
    recipe, plan = facts.recipe, facts.plan
    stated = recipe.privacy.accountant
    accountant = facts.guarantee.accountant if stated == "tightest" else stated
    relation = "" if facts.all_relation is None else in_units(facts.all_relation, recipe.unit)
    public = (
        ""
        if plan.public_rate or plan.one_sum
        else (f" The number of {plural(recipe.unit)} counts as public: sampling follows from it.")
    )
    noise = f"noise multiplier {plan.noise_multiplier:.6g}"
    return {
        "verdict": facts.verdict,
        "tag": "least-squares" if plan.one_sum else "dp-sgd",
        "method": "least squares from noised sums" if plan.one_sum else "DP-SGD",
        "of_users": plan.by_user,
        "neighbours": relation_of(plan.events).value,
        "mechanism": f"Gaussian mechanism on sums of products, {noise}"
        if plan.one_sum
        else f"Gaussian mechanism on clipped gradients of lots, {noise}, {plan.steps} steps",
        "accountant": accountant,
        "composition": _composed(TRAINING_RULES[accountant], facts.guarantee),
        "sampling": "ε counts on none: every record is in the one sum."
        if plan.one_sum
        else f"Poisson: each {recipe.unit} is in each lot with probability {plan.sample_rate:.6g}, "
        "independently, as the accountant assumes; lots are neither shuffled nor of fixed size.",
        "preparation": "Scaling and encoder are fixed, or were fitted on public inputs alone"
        + (
            "; principal components were found with noise, as part of ε."
            if recipe.features.pca
            else "."
        ),
        "tuning": "ε covers no choice of settings by results.",
        "post_processing": "The model is exported as it was trained.",
        "floating_point": "Noise comes from the operating system's secure randomness, drawn once, "
        "in floating point: the last bits of sums are not covered (Mironov 2012).",
        "unprotected": "Test records and their people are not protected; names of classes and the "
        f"form of a record count as public.{public}",
        "whole": _whole(facts.all_releases, "DP-SGD releases", relation),
    }


def _whole(cost: Cost | None, what: str, relation: str = "") -> str:
    if cost is None:
        return "The total of the data set is not known."
    known = f", for {relation}" if relation else ""
    return (
        f"All {what} of the data set so far come to ε = {format_epsilon(cost.epsilon)} at "
        f"δ = {format_delta(cost.delta)}{known}, by the ledger."
    )
