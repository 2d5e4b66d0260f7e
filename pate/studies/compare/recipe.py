"""The recipe of ``pate compare``, and its points: both methods at each ε, once a repetition.

All of it is public. Each method keeps its own sections, under its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dpsgd.recipe import (
    Accountant,
    ClippingSpec,
    DpsgdRecipe,
    FeaturesSpec,
    NetworkSpec,
    Section,
    TrainingSpec,
)
from dpsgd.runs import RunPlan, plan_run
from pate._validate import LEAST_NOISE
from pate.accounting.calibrate import moments_epsilon, smallest_noise
from pate.datasets.spec import DataSpec
from pate.encoders.spec import EncoderSpec
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms import Plan, make_mechanism
from pate.mechanisms.spec import AggregateSpec
from pate.partition import PartitionSpec
from pate.pipeline.recipe import EvaluateSpec
from pate.pipeline.recipe import Recipe as PateRecipe
from pate.recipes.read import DataRoot, Notes
from pate.students.spec import StudentSpec
from pate.teachers.spec import TeachersSpec

MOST_SEEDS = 100

_SEED_LIMIT = 2**32  # a student's seed is below it


def checked_epsilons(values: Sequence[float]) -> list[float]:
    """Return targets in rising order; refuse one that is invalid or named twice.

    >>> checked_epsilons([2, 0.5])
    [0.5, 2.0]
    """
    if not values:
        raise InvalidInput("there is no ε to compare at; give one or more, such as 1,2,4")
    for value in values:
        if not 0 < value < math.inf:
            raise InvalidInput(f"ε = {value:g} is no target; give finite numbers above zero")
    repeated = [value for place, value in enumerate(values) if value in values[:place]]
    if repeated:
        raise InvalidInput(f"ε = {repeated[0]:g} is named twice; name each once")
    return sorted(map(float, values))


class CompareSpec(Section):
    """``[compare]``: the (ε, δ), the number of repetitions, and the baselines."""

    epsilons: list[float] = Field(description="ε at which the methods are compared.")
    seeds: int = Field(
        default=3, ge=1, le=MOST_SEEDS, description="Repetitions of each method at each ε."
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ of every run.")
    reference: bool = Field(
        default=True,
        description="Also train the student's model on the private records; never published.",
    )
    public_labels: bool = Field(
        default=True, description="Also train the student on the true labels of PATE's queries."
    )

    @field_validator("epsilons")
    @classmethod
    def _targets(cls, values: list[float]) -> list[float]:
        return checked_epsilons(values)


class OpenAggregateSpec(AggregateSpec):
    """``[pate.aggregate]``: as in any recipe, but noise may be left out of lnmax and gnmax.

    Then the least noise is found with which ``queries`` answers stay within each ε. Where noise is
    given, as many queries are asked as fit.
    """

    @property
    def finds_noise(self) -> bool:
        noise = self.kind.calibrated
        return noise is not None and getattr(self, noise, None) is None

    @model_validator(mode="after")
    def _takes_what_it_needs(self) -> Self:
        if self.finds_noise and self.queries is None:
            noise = self.kind.calibrated
            raise InvalidInput(
                f'mechanism "{self.mechanism}" has neither {noise} nor queries; give queries, and '
                f"the least {noise} for them is found, or give {noise}"
            )
        self.with_noise(1.0)  # whatever the noise, the rest must go together
        return self

    def with_noise(self, noise: float) -> AggregateSpec:
        """Return the section with this noise, where the recipe leaves it open."""
        given: dict[str, Any] = self.model_dump()
        if self.finds_noise:
            given[str(self.kind.calibrated)] = noise
        return AggregateSpec(**given)


class PateSections(BaseModel):
    """``[pate.…]``: the sections of a recipe for ``pate run`` that are PATE's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    encoder: EncoderSpec | None = None  # None: the shared one
    partition: PartitionSpec = PartitionSpec()
    teachers: TeachersSpec
    aggregate: OpenAggregateSpec
    student: StudentSpec


class AccountantSpec(Section):
    """``[dpsgd.privacy]``: ε and δ are those of ``[compare]``, the noise follows from them."""

    accountant: Accountant = Field(
        default="moments", description="Accountant; pld is the tightest."
    )


class DpsgdSections(BaseModel):
    """``[dpsgd.…]``: the sections of a recipe for ``dpsgd train`` that are DP-SGD's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fix: bool = Field(default=False, description="The same as `fix` of `[dpsgd.model]`.")
    features: FeaturesSpec = FeaturesSpec()
    model: NetworkSpec = NetworkSpec()
    training: TrainingSpec
    clipping: ClippingSpec = ClippingSpec()
    privacy: AccountantSpec = AccountantSpec()

    @model_validator(mode="after")
    def _has_a_guarantee(self) -> Self:
        if self.training.sampling != "poisson":
            raise ValueError(
                f'training.sampling is "{self.training.sampling}", whose ε is no guarantee; a '
                'comparison needs "poisson"'
            )
        return self


class CompareRecipe(BaseModel):
    """The complete recipe of a comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["compare"] = Field(description="Marks a recipe for `pate compare`.")
    notes: Notes = ""
    data_root: DataRoot = None
    data: DataSpec
    encoder: EncoderSpec = EncoderSpec()  # of both, unless one of them has its own
    compare: CompareSpec
    pate: PateSections
    dpsgd: DpsgdSections

    @model_validator(mode="after")
    def _both_hold(self) -> Self:
        """Apply the rules between sections, which the recipe of either method knows."""
        try:
            self.for_pate(1.0, noise=1.0)
            self.for_dpsgd(1.0)
        except ValidationError as error:
            message = str(error.errors(include_url=False)[0]["msg"])
            raise ValueError(message.removeprefix("Value error, ")) from error
        return self

    def for_pate(self, epsilon: float, *, noise: float) -> PateRecipe:
        """Return PATE's recipe at this ε; ``noise`` is used where the recipe leaves it open.

        Such a run releases its labels alone: no sanitised ε.
        """
        return PateRecipe.model_validate(
            {
                "data": self.data,
                "encoder": self.encoder if self.pate.encoder is None else self.pate.encoder,
                "partition": self.pate.partition,
                "teachers": self.pate.teachers,
                "aggregate": self.pate.aggregate.with_noise(noise),
                "privacy": {"epsilon": epsilon, "delta": self.compare.delta, "sanitise": False},
                "student": self.pate.student,
            }
        )

    def for_dpsgd(self, epsilon: float) -> DpsgdRecipe:
        """Return DP-SGD's recipe at this ε; tested at the end alone, to time training alone."""
        return DpsgdRecipe.model_validate(
            {
                "kind": "dpsgd",
                "data": self.data,
                "features": self._features(),
                "model": self.dpsgd.model.model_copy(
                    update={"fix": self.dpsgd.fix or self.dpsgd.model.fix}
                ),
                "training": self.dpsgd.training,
                "clipping": self.dpsgd.clipping,
                "privacy": {
                    "epsilon": float(epsilon),
                    "delta": self.compare.delta,
                    "accountant": self.dpsgd.privacy.accountant,
                },
                "evaluate": {"each_epoch": False},
            }
        )

    def _features(self) -> FeaturesSpec:
        own = self.dpsgd.features
        if own.model_fields_set & {"steps", "encoder"}:
            return own
        return own.model_copy(update={"steps": self.encoder.steps})


# --- points ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoint:
    """Both methods at one ε, once."""

    epsilon: float  # that neither may exceed
    seed: int  # 0: the recipe's own
    pate: PateRecipe
    pate_plan: Plan
    dpsgd: DpsgdRecipe
    dpsgd_plan: RunPlan
    baselines: bool  # whether what needs no ε is evaluated beside it


def make_points(recipe: CompareRecipe, *, public: int, private: int) -> list[ComparePoint]:
    """Return all points, one ε after the other within each repetition.

    ``public`` inputs can be asked about. ``private`` records are there, which matters only where
    ``dpsgd.training.records`` is not stated: their number is then public (zero-out). No record is
    read. The baselines go with the largest ε.
    """
    points, given = [], recipe.compare
    for epsilon in given.epsilons:
        pate = recipe.for_pate(epsilon, noise=_least_noise(recipe, epsilon, public=public))
        baselines = epsilon == max(given.epsilons)
        if baselines:
            beside = EvaluateSpec(reference=given.reference, public_labels=given.public_labels)
            pate = pate.model_copy(update={"evaluate": beside})
        plan = _planned(pate, public=public)
        dpsgd = recipe.for_dpsgd(epsilon)
        steps = plan_run(dpsgd, records=private)
        for seed in range(given.seeds):
            first = dpsgd.model.model_copy(update={"init": dpsgd.model.init + seed})
            points.append(
                ComparePoint(
                    epsilon=epsilon,
                    seed=seed,
                    pate=with_seed(pate, seed),
                    pate_plan=plan,
                    # Other first weights; lots and noise are drawn anew in any case.
                    dpsgd=dpsgd.model_copy(update={"model": first}),
                    dpsgd_plan=steps,
                    baselines=baselines,
                )
            )
    return sorted(points, key=lambda point: (point.seed, point.epsilon))


def _least_noise(recipe: CompareRecipe, epsilon: float, *, public: int) -> float:
    """Return the least noise with which PATE's answers stay within ε, where it is left open.

    Guarantees:
        The search ends on the side on which the target is met; the plan is measured again by the
        accountant (:func:`~pate.mechanisms.plan_caps`), and ε caps it besides.
    """
    spec = recipe.pate.aggregate
    if not spec.finds_noise:
        return 1.0  # nothing is open
    assert spec.queries is not None  # the recipe was checked
    found = smallest_noise(
        lambda noise: make_mechanism(spec.with_noise(noise)).answer_event,
        count=min(spec.queries, spec.answers or spec.queries, public),
        target=epsilon,
        epsilon=moments_epsilon(delta=recipe.compare.delta),
    )
    return max(found, LEAST_NOISE)


def _planned(recipe: PateRecipe, *, public: int) -> Plan:
    try:
        return recipe.plan(inputs=public)
    except BudgetExceeded as error:
        noise = "raise the noise in [pate.aggregate]"
        if recipe.aggregate.kind.calibrated is not None:
            noise += ", leave it out"
        raise error.with_reason(
            f"at ε = {recipe.privacy.epsilon:g} one answer of PATE alone costs "
            f"{error.needed:.6g}; {noise}, or leave out this ε"
        ) from error


def with_seed(recipe: PateRecipe, number: int) -> PateRecipe:
    """Return the recipe's repetition ``number``; 0 is the recipe as it is.

    Records go to other shards, teachers and student start elsewhere, random inputs to ask about are
    others; and since the settings differ, noise is drawn anew. The split into private, public and
    test records stays: accuracies of all repetitions are on the same test records.

    Guarantees:
        A repetition is a run of its own with a charge of its own: within each, one record still
        reaches one teacher. The key of the hash and all seeds are public.
    """
    if number == 0:
        return recipe
    partition, aggregate = recipe.partition, recipe.aggregate
    changed = {
        "partition": partition.model_copy(update={"key": f"{partition.key}, again {number}"}),
        "teachers": recipe.teachers.model_copy(update={"seed": recipe.teachers.seed + number}),
        "student": recipe.student.model_copy(
            update={"seed": (recipe.student.seed + number) % _SEED_LIMIT}
        ),
    }
    if aggregate.choose == "random":
        order = {"choose_seed": aggregate.choose_seed + number}
        changed["aggregate"] = aggregate.model_copy(update=order)
    return recipe.model_copy(update=changed)
