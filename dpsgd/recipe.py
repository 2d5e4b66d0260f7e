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
from pate.recipes.paths import PluginsSpec
from pate.recipes.read import DataRoot, Notes, Plugins

Positive = Annotated[float, Field(gt=0)]
Norm = Annotated[float, Field(gt=0, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1e30)]  # beyond it steps leave what a float32 can hold
AtLeastOne = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]

Optimizer = Literal["sgd", "adam"]
Rule = Literal["flat", "per-layer", "automatic", "adaptive"]
Accountant = Literal["tightest", "moments", "abadi", "pld"]
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

    dimension: AtLeastOne = Field(description="Number of components.")
    noise_multiplier: Positive = Field(
        description="Noise of the matrix of products, whose sensitivity is 1."
    )
    sample_rate: Share = Field(default=1.0, description="Probability of each record to be used.")
    whiten: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="From 0 (projections as they are) to 1 (components of about one size), by the "
        "noised eigenvalues: free.",
    )


class FeaturesSpec(Section):
    """``[features]``: what is done to each record before training, in this order."""

    scale: Positive = Field(default=1.0, description="Factor of every input.")
    steps: list[StepSpec] = Field(
        default=[],
        description="Encoder steps, as in `[encoder]` of pate; fitted on public inputs: free.",
    )
    encoder: Entry | None = Field(
        default=None,
        description="Your own encoder as `module:attr`; made without private records: free.",
    )
    params: dict[str, JsonValue] = Field(
        default={}, description="Arguments of the encoder, if it is a class or a function."
    )
    pca: PcaSpec | None = Field(default=None, description="Principal components, found with noise.")

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


_MODEL_KEYS: dict[str, Any] = {"also": ["model", "name", "module", "network"]}  # in PATE's sections


class NetworkSpec(Section):
    """``[model]``: a multilayer perceptron, a small convolutional network, or your own module."""

    kind: Literal["mlp", "cnn"] = Field(
        default="mlp",
        description="Multilayer perceptron, or small convolutional network for images.",
        json_schema_extra=_MODEL_KEYS,
    )
    hidden: list[AtLeastOne] | None = Field(
        default=None,
        max_length=100,
        description="Units of each hidden layer (mlp), 100 at most; default: [1000].",
    )
    activation: Activation | None = Field(
        default=None, description="Activation; default: relu (mlp) or tanh (cnn)."
    )
    entry: Entry | None = Field(
        default=None,
        description="Your own torch module, or what makes one, as `module:attr`.",
        json_schema_extra=_MODEL_KEYS,
    )
    params: dict[str, JsonValue] = Field(default={}, description="Arguments of `entry`.")
    init: int = Field(default=0, ge=0, lt=2**63, description="Seed of the initial weights; public.")
    fix: bool = Field(
        default=False,
        description="Replace modules that cannot be trained privately where possible, such as "
        "BatchNorm by GroupNorm (`dpsgd.fix`).",
    )

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

    start: Rate = Field(description="First value.")
    end: Rate | None = Field(default=None, description="Last value; default: constant.")
    epochs: Positive | None = Field(
        default=None, description="Epochs from the first to the last value."
    )

    @model_validator(mode="after")
    def _a_line_has_an_end(self) -> Self:
        if (self.end is None) != (self.epochs is None):
            raise ValueError("a rate that changes needs start, end and epochs")
        return self


def _rate(value: Any) -> Any:
    if value is None or isinstance(value, (dict, RateSpec)):
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

    Where ``data.group`` names the person of each record, all of this is about people: lots are
    drawn of them, and the summed gradient of all records of one is clipped. ``by = "record"``
    protects single records even so.

    ``method = "least-squares"`` takes no steps: sums of products of features and classes are
    released once, with noise, and a linear model follows from them. Rows of features are scaled to
    ``clipping.max_norm`` at most; of a user, the mean over their records counts. Nothing follows
    from the number of records, and ε is for one record (or user) added or removed.
    """

    method: Literal["sgd", "least-squares"] = Field(
        default="sgd",
        description="DP-SGD, or a linear model by least squares from noised sums, which takes no "
        "other keys but `intercept`, `by` and `per_user`: better at small ε.",
    )
    intercept: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="Constant beside the features (least-squares), over `clipping.max_norm`; 0 "
        "where classes are about as frequent. Default: 0.3.",
    )
    epochs: AtLeastOne | None = Field(
        default=None, description="Length in epochs; or give `steps`."
    )
    steps: AtLeastOne | None = Field(default=None, description="Length in steps.")
    lot_size: AtLeastOne | None = Field(
        default=None,
        description="Expected number of records (or users) in a lot; default: the root of their "
        "number.",
    )
    by: Literal["record", "group"] | None = Field(
        default=None,
        description="Protect single records, or all records of a user together. Default: users "
        "where `data.group` names them, else records.",
    )
    per_user: AtLeastOne | None = Field(
        default=None,
        description="Most records of a user; the others are not used. Default: all.",
    )
    users: AtLeastOne | None = Field(
        default=None,
        description="Agreed, public number of users, in place of `records` where users are "
        "protected: ε is then for one user added or removed.",
    )
    records: AtLeastOne | None = Field(
        default=None,
        description="Agreed, public number of private records: ε is then for one record added or "
        "removed. Default: the true number, which counts as public (zero-out).",
    )
    batch_size: AtLeastOne | None = Field(
        default=None, description="Records in memory at once; default: the whole lot."
    )
    optimizer: Optimizer = Field(default="sgd", description="Optimiser.")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Momentum of sgd.")
    learning_rate: Annotated[
        RateSpec | None, BeforeValidator(_rate, json_schema_input_type=float | RateSpec)
    ] = Field(
        default=None,
        description="A number, or a line: `{ start = 0.1, end = 0.05, epochs = 10 }`; `sgd` needs "
        "one.",
    )
    sampling: Literal["poisson", "shuffle"] = Field(
        default="poisson",
        description="Poisson sampling, or shuffled lots: for comparisons, not private.",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.method == "least-squares":
            return self._without_steps()
        if self.intercept is not None:
            raise ValueError('intercept is for method = "least-squares"; remove it')
        if self.learning_rate is None:
            raise ValueError("learning_rate is missing; set it")
        if (self.epochs is None) == (self.steps is None):
            both = "are both set; keep one of them" if self.epochs else "are both missing; set one"
            raise ValueError(f"epochs and steps {both}")
        for key in ("per_user", "users"):
            if self.by == "record" and getattr(self, key) is not None:
                raise ValueError(f'{key} is for users, and by is "record"; remove one of them')
        if self.momentum and self.optimizer != "sgd":
            raise ValueError('momentum is for optimizer = "sgd"; remove it')
        return self

    def _without_steps(self) -> Self:
        for key, field in type(self).model_fields.items():
            used = key in ("method", "intercept", "by", "per_user")
            if not used and getattr(self, key) != field.default:
                raise ValueError(
                    f'{key} is for steps, and method = "least-squares" takes none; remove it'
                )
        if self.by == "record" and self.per_user is not None:
            raise ValueError('per_user is for users, and by is "record"; remove one of them')
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

    rule: Rule = Field(default="flat", description="Clipping rule.")
    max_norm: Annotated[
        list[Norm],
        Field(min_length=1),
        BeforeValidator(_norms, json_schema_input_type=Norm | list[Norm]),
    ] = Field(
        default=[1.0], description="Clipping norm; a list with one for each layer for `per-layer`."
    )
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="Quantile of the norms that `adaptive` follows; default: 0.5."
    )

    @model_validator(mode="after")
    def _fits_the_rule(self) -> Self:
        if len(self.max_norm) > 1 and self.rule != "per-layer":
            raise ValueError(f'rule "{self.rule}" takes one max_norm; give a number')
        if self.quantile is not None and self.rule != "adaptive":
            raise ValueError(f'rule "{self.rule}" takes no quantile; it is for "adaptive"')
        return self


class DpsgdPrivacySpec(Section):
    """``[privacy]``: the cost of this run, and the budget of the data set.

    ``epsilon`` covers everything the run releases, PCA and training together: PCA's noise is given,
    and that of the steps is computed before training. ``budget`` is the data set's own limit over
    all runs of ``dpsgd``; it is fixed when its ledger is created, and never changes.
    """

    epsilon: Positive | None = Field(
        default=None, description="ε of everything the run releases; or give `noise_multiplier`."
    )
    noise_multiplier: Positive | None = Field(
        default=None, description="Noise of a step over the clipping norm."
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="δ of the run and of the ledger.")
    accountant: Accountant = Field(
        default="tightest",
        description="Accountant: the smaller of moments and pld, or one of them, or abadi.",
    )
    budget: Positive | None = Field(
        default=None,
        description="Limit of the data set over all runs; fixed when its ledger is created.",
    )
    noise: Literal["secure", "fast"] = Field(
        default="secure",
        description="Cryptographic noise, or fast noise: for comparisons, not private.",
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            both = "both set; keep one" if self.epsilon else "both missing; set one"
            raise ValueError(f"epsilon and noise_multiplier are {both} of them")
        return self


class DpsgdEvaluateSpec(Section):
    """``[evaluate]``: accuracy on the test records, which are public."""

    each_epoch: bool = Field(
        default=True, description="Test after every epoch, not only at the end."
    )


class DpsgdRecipe(BaseModel):
    """A whole recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["dpsgd"] = Field(description="The program: dpsgd.")
    notes: Notes = ""
    data_root: DataRoot = None
    data: DataSpec
    features: FeaturesSpec = FeaturesSpec()
    model: NetworkSpec = NetworkSpec()
    training: TrainingSpec
    clipping: ClippingSpec = ClippingSpec()
    privacy: DpsgdPrivacySpec
    evaluate: DpsgdEvaluateSpec = DpsgdEvaluateSpec()
    plugins: Plugins = PluginsSpec()

    @model_validator(mode="after")
    def _the_guarantee_holds(self) -> Self:
        """It is about one record or one user, whatever else is in the data."""
        if isinstance(self.data.private, int):
            raise ValueError(
                "data.private is a number of records, and one that leaves would pull another one "
                "in; give a share between 0 and 1, or leave it out"
            )
        training = self.training
        if self.least_squares:
            self._require_sums()
        if training.by == "group" and not self.data.own:
            raise ValueError(
                f'training.by is "group", and {self.data.name} is a named set without groups; '
                "remove it"
            )
        if self.data.unit and self.data.group and not self.by_user:
            raise ValueError(
                f'data.unit is "{self.data.unit}", and training.by = "record" protects single '
                "records, of which one group may have several; leave unit out, or protect groups: "
                'training.by = "group"'
            )
        if self.by_user:
            if training.records is not None:
                raise ValueError(
                    "training.records counts records, and all records of a user are protected "
                    'together; give training.users, or by = "record"'
                )
            if self.features.pca is not None:
                raise ValueError(
                    "features.pca protects single records, and training all records of a user; "
                    'remove it, or set by = "record" in [training]'
                )
            return self
        for key in ("per_user", "users"):
            if getattr(training, key) is not None:
                raise ValueError(
                    f"training.{key} is for users, and no column names them; set data.group"
                )
        return self

    def _require_sums(self) -> None:
        """Refuse what only steps have."""
        if self.model != NetworkSpec(init=self.model.init):
            raise ValueError(
                '[model] is for steps, and training.method = "least-squares" has a linear model of '
                "its own; remove it"
            )
        if self.clipping.rule != "flat":
            raise ValueError(
                f'clipping.rule "{self.clipping.rule}" is for gradients, and training.method = '
                '"least-squares" scales rows to one max_norm; remove it'
            )
        if self.privacy.noise != "secure":
            raise ValueError(
                'privacy.noise "fast" is for steps, and training.method = "least-squares" draws '
                "once; remove it"
            )

    @property
    def least_squares(self) -> bool:
        """Whether a linear model follows from noised sums, without steps."""
        return self.training.method == "least-squares"

    @property
    def unit(self) -> str:
        """The noun of the guarantee: what one record is, or one user where those are protected."""
        return self.data.unit or ("user" if self.by_user else "record")

    @property
    def record_unit(self) -> str:
        """The noun for one record."""
        return "record" if self.by_user else self.unit

    @property
    def nouns(self) -> dict[str, str]:
        """The nouns for one record and for one user: of :func:`pate._format.in_nouns`."""
        return {"record": self.record_unit, "user": self.unit if self.by_user else "user"}

    @property
    def by_user(self) -> bool:
        """Whether all records of a user are protected together."""
        return (self.training.by or ("group" if self.data.group else "record")) == "group"
