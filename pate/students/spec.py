"""The ``[student]`` section of a recipe."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from pate.teachers.spec import ModelName, ModelSpec, Training

# Networks that come with the package, by short names.
NETWORKS = {
    "small-cnn": "pate.students.networks:SmallCNN",
    "mlp": "pate.students.networks:Mlp",
}

AUGMENTATIONS = ("auto", "none", "shift", "affine", "randaugment")

# What a method takes where the recipe leaves it out: `Training` is made for small teachers.
_SEMI_SUPERVISED = {
    "epochs": 14,
    "batch_size": 128,
    "lr": 3e-3,
    "optimizer": "adamw",
    "weight_decay": 1e-2,
    "augment": "auto",
}
_OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "fixmatch": {"epochs": 30, "average": 0.99},
    "mixmatch": {"epochs": 15, "average": 0.99},
    "gan": {"epochs": 20, "average": 0.99},
}

# Which keys belong to some methods only; all others hold for every method.
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "start": ("self-training",),
    "rounds": ("self-training",),
    "confidence": ("self-training",),
    "fractions": ("self-training",),
    "first_epochs": ("self-training",),
    "folds": ("self-training",),
    "agreement": ("self-training",),
    "overrule": ("self-training",),
    "propagation": ("self-training",),
    "fixmatch": ("fixmatch",),
    "mixmatch": ("mixmatch",),
    "gan": ("gan",),
}


def _augmentation(name: str) -> str:
    if name not in AUGMENTATIONS and ":" not in name:
        raise ValueError(f"{name!r} is none of {', '.join(AUGMENTATIONS)}, and no 'module:attr'")
    return name


Share = Annotated[float, Field(gt=0, le=1)]


class PropagationSpec(BaseModel):
    """``[student.propagation]``: how released labels spread over the graph of public inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    neighbours: PositiveInt = 5
    alpha: float = Field(default=0.99, gt=0, lt=1)  # how far a label spreads
    metric: Literal["cosine", "euclidean"] = "cosine"
    balance: bool = False  # classes get the mass that the released labels give them


class FixMatchSpec(BaseModel):
    """``[student.fixmatch]``: a strong change of an input gets the class of a weak one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    confidence: Share = 0.95  # a guess needs this probability to be learnt from
    weight: NonNegativeFloat = 1.0  # of what has no label
    labelled: PositiveInt = 32  # labels in a step, beside `batch_size` inputs without
    strong: Annotated[str, AfterValidator(_augmentation)] = "auto"
    noise: NonNegativeFloat = 0.5  # of "auto" where records are no images, in deviations
    align: bool = True  # guesses keep to the shares of classes among released labels
    trust: NonNegativeFloat = 100.0  # shares are drawn towards equal as by so many more labels


class MixMatchSpec(BaseModel):
    """``[student.mixmatch]``: guessed labels, sharpened and mixed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    guesses: PositiveInt = 2  # changes of an input that a guess is the mean over
    temperature: Share = 0.5  # below one: guesses are sharpened
    alpha: PositiveFloat = 0.75  # of the Beta distribution of the parts in a mix
    weight: NonNegativeFloat = 75.0  # of what has no label
    ramp: float = Field(default=0.5, ge=0, le=1)  # share of training in which the weight rises
    labelled: PositiveInt = 32  # labels in a step, beside `batch_size` inputs without
    noise: NonNegativeFloat = 0.2  # of augment = "auto" where records are no images


class GanSpec(BaseModel):
    """``[student.gan]``: a discriminator of real and made inputs that knows classes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    weight: NonNegativeFloat = 0.1  # of telling real from made
    labelled: PositiveInt = 32  # labels in a step, beside `batch_size` real and made inputs
    latent: PositiveInt = 100  # numbers the generator starts from
    hidden: tuple[PositiveInt, ...] = (500, 500)  # widths of the generator's layers


class StudentSpec(Training):
    """Which model learns from the released labels, and how.

    >>> StudentSpec(model="sklearn.linear_model:LogisticRegression").method
    'supervised'
    >>> StudentSpec(model="small-cnn", method="self-training").as_model().model
    'pate.students.networks:SmallCNN'
    """

    method: Literal["supervised", "self-training", "fixmatch", "mixmatch", "gan"] = "supervised"
    model: ModelName
    inputs: Literal["raw", "features"] = "raw"  # what the model sees: public inputs, or encoded
    seed: int = Field(default=0, ge=0, lt=2**32)

    # Training of torch modules, with every method.
    augment: Annotated[str, AfterValidator(_augmentation)] = "none"  # "auto": affine for images
    smoothing: float = Field(default=0.0, ge=0, lt=1)  # of labels
    average: float = Field(default=0.0, ge=0, lt=1)  # of weights: decay of the moving average
    validation: float = Field(default=0.0, ge=0, le=0.5)  # share of released labels held out
    patience: PositiveInt = 3  # rounds or epochs without a better score before it stops

    # Self-training.
    start: Literal["propagation", "model"] | None = None  # None: propagation for torch modules
    fractions: tuple[Share, ...] = ()  # of pseudo-labels used, a round each; or:
    rounds: PositiveInt | None = None  # with a threshold, after the first fit; None: 3
    confidence: Share | None = None  # a pseudo-label needs this probability; None: 0.9
    first_epochs: PositiveInt = 6  # of the first round; the last has `epochs`
    folds: PositiveInt = 1  # more: a round labels each part by what the others taught
    agreement: Share = (
        1.0  # of torch modules: what is so probable of the rest is learnt; 1: nothing
    )
    overrule: Share = 1.0  # another class so probable drops a released label; 1: never
    propagation: PropagationSpec = PropagationSpec()

    # Methods with labelled and unlabelled inputs in every step, of torch modules only.
    fixmatch: FixMatchSpec = FixMatchSpec()
    mixmatch: MixMatchSpec = MixMatchSpec()
    gan: GanSpec = GanSpec()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_method(cls, section: Any) -> Any:
        if isinstance(section, dict) and section.get("method", "supervised") != "supervised":
            return _SEMI_SUPERVISED | _OWN_DEFAULTS.get(str(section["method"]), {}) | section
        return section

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        fields = type(self).model_fields
        for key, methods in _ONLY_FOR.items():
            # A resolved recipe spells defaults out: another value counts.
            if self.method not in methods and getattr(self, key) != fields[key].default:
                raise ValueError(
                    f"{key!r} belongs to method = {' or '.join(map(repr, methods))}, and the "
                    f"method is {self.method!r}; leave it out"
                )
        if self.fractions and (self.rounds is not None or self.confidence is not None):
            raise ValueError(
                "give 'fractions', which has one for each round, or 'rounds' and 'confidence'"
            )
        return self

    def as_model(self) -> ModelSpec:
        """The student's model on its own, as :func:`pate.teachers.load` wants it."""
        settings = {name: getattr(self, name) for name in Training.model_fields}
        return ModelSpec(model=NETWORKS.get(self.model, self.model), **settings)


def sub_seed(seed: int, *names: object) -> int:
    """A seed of its own for every use, below 2³².

    >>> sub_seed(0, "round", 1) == sub_seed(0, "round", 2)
    False
    """
    text = " ".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
