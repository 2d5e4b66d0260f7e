"""The recipe of ``dpsgd train``: data, model and noise, checked before anything runs.

All of it is public: nothing in a recipe may be chosen by looking at private records.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from pate.datasets.spec import DataSpec
from pate.encoders.spec import StepSpec
from pate.recipes.schema import Notes

Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, le=1e30)]  # beyond it steps leave what a float32 can hold
AtLeastOne = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]

Optimizer = Literal["sgd", "adam"]
Rule = Literal["flat", "per-layer", "automatic", "adaptive"]
Accountant = Literal["moments", "abadi", "pld"]
Activation = Literal[
    "relu", "leaky-relu", "elu", "selu", "gelu", "silu", "softplus", "sigmoid", "tanh",
    "tempered-sigmoid",
]  # fmt: skip


def _entry(name: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", name):
        raise ValueError(f"{name!r} is not an import name; write it as 'module:attr'")
    return name


Entry = Annotated[str, AfterValidator(_entry)]


class Section(BaseModel):
    """The base of all sections, which refuses unknown keys and values of the wrong type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PcaSpec(Section):
    """``[features.pca]``: principal components found with noise (Abadi et al. 2016, Section 4)."""

    dimension: AtLeastOne
    noise_multiplier: Positive
    sample_rate: Share = 1.0
    whiten: Annotated[float, Field(ge=0, le=1)] = 0.0  # from the noised eigenvalues: free


class FeaturesSpec(Section):
    """``[features]``: what is done to each record before training, in this order."""

    scale: Positive = 1.0  # every input is multiplied by it
    steps: list[StepSpec] = []  # as in [encoder] of pate; fitted on public inputs: free
    encoder: Entry | None = None  # made without private records: free
    params: dict[str, JsonValue] = {}  # of the encoder, where it is a class or a factory
    pca: PcaSpec | None = None

    @model_validator(mode="after")
    def _one_encoder(self) -> Self:
        if self.steps and self.encoder is not None:
            raise ValueError(
                "steps and encoder are both set; keep one of them (a step may be 'module:attr' too)"
            )
        return self

    @model_validator(mode="after")
    def _params_of_something(self) -> Self:
        if self.params and self.encoder is None:
            raise ValueError("params are for the encoder, and there is none; set encoder")
        return self


class ModelSpec(Section):
    """``[model]``: a multilayer perceptron, a small convolutional network, or your own module."""

    kind: Literal["mlp", "cnn"] = "mlp"
    hidden: list[AtLeastOne] | None = None  # units of each hidden layer (mlp); None: 1000
    activation: Activation | None = None  # None: relu for layers of units, tanh for the network
    entry: Entry | None = None  # a torch module, or what makes one
    params: dict[str, JsonValue] = {}
    init: Annotated[int, Field(ge=0)] = 0  # the seed of the first weights; public

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        given = [key for key in ("hidden", "activation") if getattr(self, key) is not None]
        if self.entry is not None and (given or self.kind != "mlp"):
            what = given[0] if given else "kind"
            raise ValueError(f"entry and {what} are both set; keep one of them")
        if self.entry is None and self.params:
            raise ValueError("params are for a model of your own; set entry")
        if self.kind == "cnn" and self.hidden is not None:
            raise ValueError('kind "cnn" has layers of its own; remove hidden')
        return self


def _positive(value: Any) -> float | None:
    """Return a number above zero as a float; None for anything that is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not value > 0:
        raise ValueError(f"{value} is not above zero")
    return float(value)


class RateSpec(Section):
    """A learning rate: one number, or a straight line from ``start`` to ``end`` over ``epochs``."""

    start: Rate
    end: Rate | None = None
    epochs: Positive | None = None

    @model_validator(mode="after")
    def _a_line_has_an_end(self) -> Self:
        if (self.end is None) != (self.epochs is None):
            raise ValueError("a rate that changes needs start, end and epochs")
        return self


def _rate(value: Any) -> Any:
    if isinstance(value, (dict, RateSpec)):
        return value
    number = _positive(value)
    if number is None:
        raise ValueError(f"{value!r} is no learning rate; give a number, or start, end and epochs")
    return {"start": number}


class TrainingSpec(Section):
    """``[training]``: length, lots and optimiser.

    With ``records``, a public number such as a rounded one, the sampling rate and the steps of an
    epoch follow from it, and ε is for one record added or removed. Without, they follow from the
    true number, which then counts as public, and ε is for one record's contribution removed.
    """

    epochs: AtLeastOne | None = None
    steps: AtLeastOne | None = None
    lot_size: AtLeastOne | None = None  # records in a lot, on average; None: √records
    records: AtLeastOne | None = None  # agreed number of private records; None: the true one
    batch_size: AtLeastOne | None = None  # records in memory at once; None: the whole lot
    optimizer: Optimizer = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    learning_rate: Annotated[RateSpec, BeforeValidator(_rate)]  # a number, or a line
    sampling: Literal["poisson", "shuffle"] = "poisson"

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            both = "are both set; keep one of them" if self.epochs else "are both missing; set one"
            raise ValueError(f"epochs and steps {both}")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError('momentum is for optimizer = "sgd"; remove it')
        return self


def _norms(value: Any) -> Any:
    if isinstance(value, list):
        return value
    number = _positive(value)
    if number is None:
        raise ValueError(f"{value!r} is no norm; give a number, or a list with one for each layer")
    return [number]


class ClippingSpec(Section):
    """``[clipping]``: the bound on the influence of one record."""

    rule: Rule = "flat"
    max_norm: Annotated[list[Positive], Field(min_length=1), BeforeValidator(_norms)] = [1.0]
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None  # adaptive; None: 0.5

    @model_validator(mode="after")
    def _fits_the_rule(self) -> Self:
        if len(self.max_norm) > 1 and self.rule != "per-layer":
            raise ValueError(f'rule "{self.rule}" takes one max_norm; give a number')
        if self.quantile is not None and self.rule != "adaptive":
            raise ValueError(f'rule "{self.rule}" takes no quantile; it is for "adaptive"')
        return self


class PrivacySpec(Section):
    """``[privacy]``: the cost of this run, and the budget of the data set.

    ``epsilon`` covers everything the run releases, PCA and training together: PCA's noise is given,
    and that of the steps is computed before training. ``budget`` is the data set's own limit over
    all runs of ``dpsgd``; it is fixed when its ledger is created, and never changes.
    """

    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    accountant: Accountant = "moments"
    budget: Positive | None = None
    noise: Literal["secure", "fast"] = "secure"

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            both = "both set; keep one" if self.epsilon else "both missing; set one"
            raise ValueError(f"epsilon and noise_multiplier are {both} of them")
        return self


class EvaluateSpec(Section):
    """``[evaluate]``: accuracy on the test records, which are public."""

    each_epoch: bool = True  # False: at the end alone


class Recipe(BaseModel):
    """A whole recipe.

    >>> recipe = Recipe.model_validate(
    ...     {
    ...         "kind": "dpsgd",
    ...         "data": {"name": "digits"},
    ...         "training": {"epochs": 3, "learning_rate": 0.1},
    ...         "privacy": {"epsilon": 4.0},
    ...     }
    ... )
    >>> recipe.clipping.rule, recipe.privacy.delta
    ('flat', 1e-05)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["dpsgd"]
    notes: Notes = ""
    data: DataSpec
    features: FeaturesSpec = FeaturesSpec()
    model: ModelSpec = ModelSpec()
    training: TrainingSpec
    clipping: ClippingSpec = ClippingSpec()
    privacy: PrivacySpec
    evaluate: EvaluateSpec = EvaluateSpec()

    @model_validator(mode="after")
    def _the_guarantee_holds(self) -> Self:
        """It is about one record, whatever else is in the data."""
        if isinstance(self.data.private, int):
            raise ValueError(
                "data.private is a number of records, and one that leaves would pull another one "
                "in; give a share between 0 and 1, or leave it out"
            )
        if self.data.group is not None:
            raise ValueError(
                "data.group is set, and DP-SGD protects single records, not all of a group; "
                "leave it out"
            )
        return self
