"""A recipe for ``pate compare``: one split, both methods, and the ε to compare them at.

All of it is public. Each method keeps its own sections, under its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dpsgd.recipe import Accountant, ClippingSpec, FeaturesSpec, ModelSpec, Section, TrainingSpec
from dpsgd.recipe import Recipe as DpsgdRecipe
from pate.datasets.spec import DataSpec
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.mechanisms.spec import AggregateSpec
from pate.partition import PartitionSpec
from pate.pipeline.recipe import Recipe as PateRecipe
from pate.recipes.schema import Notes
from pate.students.spec import StudentSpec
from pate.teachers.spec import TeachersSpec

NOISE = {"lnmax": "scale", "gnmax": "sigma"}  # of mechanisms whose noise can be found for an ε
MOST_SEEDS = 100


def checked_epsilons(values: Sequence[float]) -> list[float]:
    """Targets in rising order; refuses what is no target, and one that is named twice.

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
    """``[compare]``: at which (ε, δ), how often, and beside what."""

    epsilons: list[float]
    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS)] = 3  # repetitions of either method
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    reference: bool = True  # the student's model on the private records; never published
    public_labels: bool = True  # the student on the true labels of what PATE asked about

    @field_validator("epsilons")
    @classmethod
    def _targets(cls, values: list[float]) -> list[float]:
        return checked_epsilons(values)


class OpenAggregateSpec(AggregateSpec):
    """``[pate.aggregate]``: as in any recipe, but noise may be left out of lnmax and gnmax.

    Then the least noise is found with which ``queries`` answers stay within each ε. Where it is
    given, so many queries are asked as fit.

    >>> OpenAggregateSpec(mechanism="gnmax", queries=100).finds_noise
    True
    """

    @property
    def finds_noise(self) -> bool:
        noise = NOISE.get(self.mechanism)
        return noise is not None and getattr(self, noise) is None

    @model_validator(mode="after")
    def _takes_what_it_needs(self) -> Self:
        if self.finds_noise and self.queries is None:
            noise = NOISE[self.mechanism]
            raise InvalidInput(
                f'mechanism "{self.mechanism}" has neither {noise} nor queries; give queries, and '
                f"the least {noise} for them is found, or give {noise}"
            )
        self.with_noise(1.0)  # whatever the noise, the rest must go together
        return self

    def with_noise(self, noise: float) -> AggregateSpec:
        """The section with this noise in the place that was left open."""
        given: dict[str, Any] = self.model_dump()
        if self.finds_noise:
            given[NOISE[self.mechanism]] = noise
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
    """``[dpsgd.privacy]``: ε and δ are those of ``[compare]``, the noise is worked out."""

    accountant: Accountant = "moments"


class DpsgdSections(BaseModel):
    """``[dpsgd.…]``: the sections of a recipe for ``dpsgd train`` that are DP-SGD's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: FeaturesSpec = FeaturesSpec()
    model: ModelSpec = ModelSpec()
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
    """The whole of it.

    >>> recipe = CompareRecipe.model_validate(
    ...     {
    ...         "kind": "compare",
    ...         "data": {"name": "digits"},
    ...         "compare": {"epsilons": [4, 1]},
    ...         "pate": {
    ...             "teachers": {"count": 20, "model": "ridge"},
    ...             "aggregate": {"mechanism": "gnmax", "queries": 50},
    ...             "student": {"model": "ridge"},
    ...         },
    ...         "dpsgd": {"training": {"epochs": 3, "learning_rate": 0.1}},
    ...     }
    ... )
    >>> recipe.compare.epsilons, recipe.for_dpsgd(4.0).privacy.epsilon
    ([1.0, 4.0], 4.0)
    >>> recipe.for_pate(4.0, noise=30.0).aggregate.sigma
    30.0
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["compare"]
    notes: Notes = ""
    data: DataSpec
    encoder: EncoderSpec = EncoderSpec()  # of both, unless one of them has its own
    compare: CompareSpec
    pate: PateSections
    dpsgd: DpsgdSections

    @model_validator(mode="after")
    def _both_hold(self) -> Self:
        """Rules between sections, which the recipe of either method knows."""
        try:
            self.for_pate(1.0, noise=1.0)
            self.for_dpsgd(1.0)
        except ValidationError as error:
            message = str(error.errors(include_url=False)[0]["msg"])
            raise ValueError(message.removeprefix("Value error, ")) from error
        return self

    def for_pate(self, epsilon: float, *, noise: float) -> PateRecipe:
        """PATE's recipe at this ε; ``noise`` fills the place that the recipe leaves open.

        Nothing else is released of such a run than its labels: no sanitised figure.
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
        """DP-SGD's recipe at this ε; tested at the end alone, so that its time is training's."""
        return DpsgdRecipe.model_validate(
            {
                "kind": "dpsgd",
                "data": self.data,
                "features": self._features(),
                "model": self.dpsgd.model,
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
