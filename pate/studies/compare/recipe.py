"""The recipe of ``pate compare``, and its points: all methods at each ε, once a repetition.

All of it is public. Each method keeps its own sections, under its name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dpsgd.recipe import (
    Accountant,
    ClippingSpec,
    DpsgdRecipe,
    FeaturesSpec,
    NetworkSpec,
    Positive,
    Section,
    TrainingSpec,
)
from dpsgd.runs import RunPlan, plan_run
from pate._format import format_epsilon
from pate.datasets.spec import DataSpec
from pate.encoders.spec import EncoderSpec
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms import OpenAggregateSpec, Plan
from pate.partition import PartitionSpec
from pate.pipeline.recipe import EvaluateSpec
from pate.pipeline.recipe import Recipe as PateRecipe
from pate.recipes.paths import PluginsSpec
from pate.recipes.read import DataRoot, Notes, Plugins
from pate.record_votes import VotesSpec
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

    epsilons: list[float] = Field(
        description="ε at which the methods are compared.",
        json_schema_extra={"also": ["epsilon"]},
    )
    seeds: int = Field(
        default=3, ge=1, le=MOST_SEEDS, description="Repetitions of each method at each ε."
    )
    delta: float = Field(
        default=1e-5,
        gt=0,
        lt=1,
        description="δ of every run; that of record votes by laplace-counts is 0, which is less.",
    )
    reference: bool = Field(
        default=True,
        description="Also train the student's model on the private records, that of record votes "
        "where there are no teachers; never published.",
    )
    public_labels: bool = Field(
        default=True, description="Also train each student on the true labels of its public inputs."
    )

    @field_validator("epsilons")
    @classmethod
    def _targets(cls, values: list[float]) -> list[float]:
        return checked_epsilons(values)


class PateSections(BaseModel):
    """``[pate.…]``: the sections of a recipe for ``pate run`` in which teachers vote."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    least_epsilon: float = Field(
        default=0.0,
        ge=0,
        description="Least ε at which teachers are compared: at a smaller one their answers may be "
        "all noise.",
    )
    encoder: EncoderSpec | None = None  # None: the shared one
    partition: PartitionSpec = PartitionSpec()
    teachers: TeachersSpec
    aggregate: OpenAggregateSpec
    student: StudentSpec


class RecordSections(BaseModel):
    """``[record_votes.…]``: the sections of a recipe for ``pate run`` in which records vote."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    encoder: EncoderSpec | None = None  # None: the shared one
    partition: PartitionSpec = PartitionSpec()
    votes: VotesSpec = VotesSpec(by="records")
    aggregate: OpenAggregateSpec = OpenAggregateSpec.model_validate({"mechanism": "laplace-counts"})
    student: StudentSpec

    @field_validator("votes", mode="before")
    @classmethod
    def _by_records(cls, given: Any) -> Any:
        return {"by": "records"} | given if isinstance(given, dict) else given


class AccountantSpec(Section):
    """``[dpsgd.privacy]``: ε and δ are those of ``[compare]``, the noise follows from them."""

    accountant: Accountant = Field(
        default="tightest",
        description="Accountant: the smaller of moments and pld, or one of them, or abadi.",
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


class SquaresSpec(Section):
    """``[least_squares]``: a linear model from noised sums, as a third method where this is there.

    Whom it protects, and ``per_user``, are those of ``[dpsgd.training]``.
    """

    features: FeaturesSpec | None = Field(
        default=None, description="Features of the linear model; default: those of DP-SGD."
    )
    intercept: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="Constant beside the features, over `max_norm`; 0 where classes are about as "
        "frequent. Default: 0.3.",
    )
    max_norm: Positive = Field(
        default=1.0, description="Norm of a row of features; longer rows are scaled to it."
    )
    accountant: Accountant = Field(
        default="tightest",
        description="Accountant: the exact one of Gaussian noise, or moments, abadi or pld.",
    )


class CompareRecipe(BaseModel):
    """The complete recipe of a comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["compare"] = Field(description="Marks a recipe for `pate compare`.")
    notes: Notes = ""
    data_root: DataRoot = None
    data: DataSpec
    encoder: EncoderSpec = EncoderSpec()  # of all methods, unless one of them has its own
    compare: CompareSpec
    pate: PateSections | None = None
    record_votes: RecordSections | None = None
    dpsgd: DpsgdSections
    least_squares: SquaresSpec | None = None
    plugins: Plugins = PluginsSpec()

    @model_validator(mode="after")
    def _all_hold(self) -> Self:
        """Apply the rules between sections, which the recipe of each method knows."""
        try:
            teachers, records = self.for_pate(1.0, noise=1.0), self.for_record_votes(1.0)
            self.for_dpsgd(1.0)
            self.for_least_squares(1.0)
        except ValidationError as error:
            message = str(error.errors(include_url=False)[0]["msg"])
            raise ValueError(message.removeprefix("Value error, ")) from error
        if records is None and not self.with_teachers(max(self.compare.epsilons)):
            raise ValueError(
                "there is nothing to compare DP-SGD with"
                + (
                    "; add a section [pate] or [record_votes]"
                    if self.pate is None
                    else " below pate.least_epsilon; lower it, or compare at a larger ε"
                )
            )
        if teachers is not None and records is not None:
            ours = teachers.partition
            if (ours.method, ours.by) != (records.partition.method, records.partition.by):
                raise ValueError(
                    f'[pate.partition] has method = "{ours.method}" and by = "{ours.by}", record '
                    f'votes "{records.partition.method}" and "{records.partition.by}": their ε '
                    "would be about other data sets; write the same in both"
                )
        return self

    def with_teachers(self, epsilon: float) -> bool:
        """Return whether teachers are compared at this ε."""
        return self.pate is not None and epsilon >= self.pate.least_epsilon

    def for_pate(self, epsilon: float, *, noise: float) -> PateRecipe | None:
        """Return PATE's recipe at this ε; None where teachers are not compared.

        ``noise`` is used where the recipe leaves it open. Such a run releases its labels alone: no
        sanitised ε.
        """
        given = self.pate
        if given is None:
            return None
        return PateRecipe.model_validate(
            {
                "data": self.data,
                "encoder": self.encoder if given.encoder is None else given.encoder,
                "partition": given.partition,
                "teachers": given.teachers,
                "aggregate": given.aggregate.with_noise(noise),
                "privacy": {"epsilon": epsilon, "delta": self.compare.delta, "sanitise": False},
                "student": given.student,
            }
        )

    @property
    def any_pate(self) -> PateRecipe:
        """A recipe of PATE in this comparison: all have the same data, and protect the same."""
        largest = max(self.compare.epsilons)
        found = self.for_record_votes(largest) or self.for_pate(largest, noise=1.0)
        assert found is not None  # which the recipe has checked
        return found

    def for_record_votes(self, epsilon: float) -> PateRecipe | None:
        """Return the recipe of record votes at this ε; None where they are not compared.

        A pure table is released at δ = 0, which is within the δ of the comparison.
        """
        given = self.record_votes
        if given is None:
            return None
        pure = getattr(given.aggregate.kind, "pure", False)
        return PateRecipe.model_validate(
            {
                "data": self.data,
                "encoder": self.encoder if given.encoder is None else given.encoder,
                "partition": given.partition,
                "votes": given.votes,
                "aggregate": given.aggregate.model_dump(),  # noise that is left open is found
                "privacy": {"epsilon": epsilon, "delta": 0.0 if pure else self.compare.delta},
                "student": given.student,
            }
        ).settled()

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

    def for_least_squares(self, epsilon: float) -> DpsgdRecipe | None:
        """Return the recipe of least squares at this ε; None where it is not compared."""
        given, training = self.least_squares, self.dpsgd.training
        if given is None:
            return None
        return DpsgdRecipe.model_validate(
            {
                "kind": "dpsgd",
                "data": self.data,
                "features": self._features() if given.features is None else given.features,
                "training": {
                    "method": "least-squares",
                    "intercept": given.intercept,
                    "by": training.by,
                    "per_user": training.per_user,
                },
                "clipping": {"max_norm": given.max_norm},
                "privacy": {
                    "epsilon": float(epsilon),
                    "delta": self.compare.delta,
                    "accountant": given.accountant,
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
class ComparedModel:
    """A model of ``dpsgd`` to train: by DP-SGD, or by least squares."""

    method: str  # a key of pate.studies.tables.METHODS
    recipe: DpsgdRecipe
    plan: RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLabels:
    """Labels of public inputs to release, by votes of teachers or of records, and a student."""

    method: str  # a key of pate.studies.tables.METHODS
    recipe: PateRecipe
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoint:
    """All methods at one ε, once."""

    epsilon: float  # that none may exceed
    seed: int  # 0: the recipe's own
    labels: tuple[ComparedLabels, ...]  # of teachers, of records; charged to PATE's ledger
    models: tuple[ComparedModel, ...]  # of DP-SGD, of least squares; charged to DP-SGD's ledger
    baselines: bool  # whether what needs no ε is evaluated beside it


def make_points(
    recipe: CompareRecipe, *, public: int, private: int, groups: Collection[str] | None = None
) -> list[ComparePoint]:
    """Return all points, one ε after the other within each repetition.

    ``public`` inputs can be asked about. ``private`` records are there, of the users ``groups``,
    which matters only where ``dpsgd.training.records`` (or ``users``) is not stated: their number
    is then public (zero-out). No record is read. The baselines go with the largest ε.
    """
    points, given = [], recipe.compare
    for epsilon in given.epsilons:
        baselines = epsilon == max(given.epsilons)
        labels = _compared_labels(recipe, epsilon, public=public, baselines=baselines)
        dpsgd, sums = recipe.for_dpsgd(epsilon), recipe.for_least_squares(epsilon)
        models = [
            ComparedModel(
                method=method, recipe=each, plan=plan_run(each, records=private, groups=groups)
            )
            for method, each in (("dpsgd", dpsgd), ("least-squares", sums))
            if each is not None
        ]
        points += [
            ComparePoint(
                epsilon=epsilon,
                seed=seed,
                labels=tuple(replace(each, recipe=with_seed(each.recipe, seed)) for each in labels),
                models=tuple(replace(each, recipe=_begun(each.recipe, seed)) for each in models),
                baselines=baselines,
            )
            for seed in range(given.seeds)
        ]
    return sorted(points, key=lambda point: (point.seed, point.epsilon))


def _compared_labels(
    recipe: CompareRecipe, epsilon: float, *, public: int, baselines: bool
) -> list[ComparedLabels]:
    """Return the labels to release at one ε; a reference goes with the first student alone."""
    found = []
    if recipe.pate is not None and recipe.with_teachers(epsilon):
        spec, noise = recipe.pate.aggregate, 1.0  # which counts only where it is left open
        if spec.finds_noise:
            delta = recipe.compare.delta
            noise = spec.least_noise(epsilon=epsilon, delta=delta, inputs=public)
        found.append(("pate", recipe.for_pate(epsilon, noise=noise)))
    found.append(("record-votes", recipe.for_record_votes(epsilon)))
    compared: list[ComparedLabels] = []
    for method, made in found:
        if made is None:
            continue
        plan = _planned(made, method, public=public)
        if baselines:
            beside = EvaluateSpec(
                reference=recipe.compare.reference and not compared,
                public_labels=recipe.compare.public_labels,
            )
            made = made.model_copy(update={"evaluate": beside})
        compared.append(ComparedLabels(method=method, recipe=made, plan=plan))
    return compared


def _begun(recipe: DpsgdRecipe, seed: int) -> DpsgdRecipe:
    """Return a repetition: other first weights; lots and noise are drawn anew in any case.

    That of least squares decides nothing, but names the repetition.
    """
    first = recipe.model.model_copy(update={"init": recipe.model.init + seed})
    return recipe.model_copy(update={"model": first})


def _planned(recipe: PateRecipe, method: str, *, public: int) -> Plan:
    try:
        return recipe.plan(inputs=public)
    except BudgetExceeded as error:
        section, remedy = method.replace("-", "_"), "or leave out this ε"
        noise = f"raise the noise in [{section}.aggregate]"
        if recipe.aggregate.kind.calibrated is not None:
            noise += ", leave it out"
        what = "a table of record votes" if recipe.by_records else "one answer of PATE alone"
        if not recipe.by_records:
            remedy = "leave out this ε, or set pate.least_epsilon"
        raise error.with_reason(
            f"at ε = {recipe.privacy.epsilon:g} {what} costs "
            f"{format_epsilon(error.needed)}; {noise}, {remedy}"
        ) from error


def with_seed(recipe: PateRecipe, number: int) -> PateRecipe:
    """Return the recipe's repetition ``number``; 0 is the recipe as it is.

    Records go to other shards, teachers and student start elsewhere, random inputs to ask about are
    others; and since the settings differ, noise is drawn anew. Of record votes that is all that
    changes, but for which records of a user vote. The split into private, public and test records
    stays: accuracies of all repetitions are on the same test records.

    Guarantees:
        A repetition is a run of its own with a charge of its own: within each, one record still
        reaches one teacher, or votes once. The key of the hash and all seeds are public.
    """
    if number == 0:
        return recipe
    partition, aggregate = recipe.partition, recipe.aggregate
    changed: dict[str, Any] = {
        "partition": partition.model_copy(update={"key": f"{partition.key}, again {number}"}),
        "student": recipe.student.model_copy(
            update={"seed": (recipe.student.seed + number) % _SEED_LIMIT}
        ),
    }
    if not recipe.by_records:
        teachers = recipe.teachers
        changed["teachers"] = teachers.model_copy(update={"seed": teachers.seed + number})
    if aggregate.choose == "random":
        order = {"choose_seed": aggregate.choose_seed + number}
        changed["aggregate"] = aggregate.model_copy(update=order)
    return recipe.model_copy(update=changed)
