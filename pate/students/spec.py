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

# Models that come with the package for students, by short names.
NETWORKS = {
    "kernel-ridge": "pate.students.kernel_ridge:KernelRidge",
    "small-cnn": "pate.students.networks:SmallCNN",
    "mlp": "pate.students.networks:Mlp",
}

AUGMENTATIONS = ("auto", "none", "shift", "affine", "randaugment")

# Defaults of methods where the recipe leaves a key out: those of `Training` suit small teachers.
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

# Keys that belong to one method only; all others apply to every method.
_ONLY_FOR = dict.fromkeys(
    (
        "start", "rounds", "confidence", "fractions", "first_epochs", "folds", "agreement",
        "overrule", "propagation",
    ),
    "self-training",
) | {method: method for method in ("fixmatch", "mixmatch", "gan")}  # fmt: skip


def _augmentation(name: str) -> str:
    if name not in AUGMENTATIONS and ":" not in name:
        raise ValueError(f"{name!r} is neither one of {', '.join(AUGMENTATIONS)} nor 'module:attr'")
    return name


Share = Annotated[float, Field(gt=0, le=1)]
Augmentation = Annotated[str, AfterValidator(_augmentation)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PropagationSpec(_Section):
    """``[student.propagation]``: how released labels spread over the graph of public inputs."""

    neighbours: PositiveInt = Field(default=5, description="Neighbours of an input in the graph.")
    alpha: float = Field(
        default=0.99, gt=0, lt=1, description="How far a label spreads; close to 1 is far."
    )
    metric: Literal["cosine", "euclidean"] = Field(
        default="cosine", description="Distance by which neighbours are found."
    )
    balance: bool = Field(
        default=False, description="Scale classes to their shares among the released labels."
    )


class FixMatchSpec(_Section):
    """``[student.fixmatch]``: a strongly changed input gets the class of a weakly changed one."""

    confidence: Share = Field(
        default=0.95, description="Least probability of a guess that is learned from."
    )
    weight: NonNegativeFloat = Field(default=1.0, description="Weight of unlabelled inputs.")
    labelled: PositiveInt = Field(
        default=32, description="Labels in a step, besides `batch_size` unlabelled inputs."
    )
    strong: Augmentation = Field(
        default="auto", description="Strong change of an input, named as in `augment`."
    )
    noise: NonNegativeFloat = Field(
        default=0.5,
        description="Noise of strong = auto on records that are no images, in standard deviations.",
    )
    align: bool = Field(
        default=True, description="Align guesses with the shares of classes among released labels."
    )
    trust: NonNegativeFloat = Field(
        default=100.0, description="Imagined labels, equally many of each class, in those shares."
    )


class MixMatchSpec(_Section):
    """``[student.mixmatch]``: guessed labels, sharpened and mixed."""

    guesses: PositiveInt = Field(
        default=2, description="Changed copies of an input whose mean is the guess."
    )
    temperature: Share = Field(default=0.5, description="Sharpening of guesses; 1 is none.")
    alpha: PositiveFloat = Field(
        default=0.75, description="Parameter of the Beta distribution of shares in a mix."
    )
    weight: NonNegativeFloat = Field(default=75.0, description="Weight of unlabelled inputs.")
    ramp: float = Field(
        default=0.5, ge=0, le=1, description="Share of training in which that weight rises."
    )
    labelled: PositiveInt = Field(
        default=32, description="Labels in a step, besides `batch_size` unlabelled inputs."
    )
    noise: NonNegativeFloat = Field(
        default=0.2,
        description="Noise of augment = auto on records that are no images, in deviations.",
    )


class GanSpec(_Section):
    """``[student.gan]``: a discriminator of real and generated inputs that knows classes."""

    weight: NonNegativeFloat = Field(
        default=0.1, description="Weight of the loss that separates real from generated inputs."
    )
    labelled: PositiveInt = Field(
        default=32, description="Labels in a step, besides `batch_size` real and generated inputs."
    )
    latent: PositiveInt = Field(default=100, description="Dimension of the generator's noise.")
    hidden: tuple[PositiveInt, ...] = Field(
        default=(500, 500),
        max_length=100,
        description="Widths of the generator's hidden layers, 100 at most.",
    )


class StudentSpec(Training):
    """``[student]``: the model that learns from the released labels, and its method.

    >>> StudentSpec(model="sklearn.linear_model:LogisticRegression").method
    'supervised'
    >>> StudentSpec(model="small-cnn", method="self-training").as_model().model
    'pate.students.networks:SmallCNN'
    """

    method: Literal["supervised", "self-training", "fixmatch", "mixmatch", "gan"] = Field(
        default="supervised",
        description="Method of training; all but supervised also learn from unlabelled public "
        "inputs, and have other defaults for epochs, batch_size, lr, optimizer, weight_decay and "
        "augment.",
    )
    model: ModelName = Field(
        description='"small-cnn", "mlp", "kernel-ridge", "ridge", "logistic", "module:attr", or '
        "the name of an installed teacher."
    )
    inputs: Literal["raw", "features"] = Field(
        default="raw", description="Inputs of the model: public inputs as they are, or encoded."
    )
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="Seed of the student's randomness; public."
    )

    # Training of torch modules, with every method.
    augment: Augmentation = Field(
        default="none",
        description="Random changes of images: auto, none, shift, affine, randaugment or "
        '"module:attr" (torch modules).',
    )
    smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="Label smoothing (torch modules)."
    )
    average: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Decay of the moving average of weights; 0 is none (torch modules).",
    )
    validation: float = Field(
        default=0.0, ge=0, le=0.5, description="Share of released labels held out for stopping."
    )
    patience: PositiveInt = Field(
        default=3, description="Rounds or epochs without a better score before training stops."
    )

    # Self-training.
    start: Literal["propagation", "model"] | None = Field(
        default=None,
        description="First pseudo-labels: spread over the graph of public inputs, or by a model "
        "fitted to the released labels; default: propagation for torch modules.",
    )
    fractions: tuple[Share, ...] = Field(
        default=(), description="Share of pseudo-labels used in each round; one for each round."
    )
    rounds: PositiveInt | None = Field(
        default=None, description="Rounds with a threshold; default 3. Not with `fractions`."
    )
    confidence: Share | None = Field(
        default=None, description="Least probability of a pseudo-label; default 0.9."
    )
    first_epochs: PositiveInt = Field(
        default=6, description="Epochs of the first round; the last has `epochs`."
    )
    folds: PositiveInt = Field(
        default=1,
        description="With more than 1, models label the parts they were not trained on.",
    )
    agreement: Share = Field(
        default=1.0,
        description="Inputs without a pseudo-label are learned if the model is this sure of them; "
        "1 is never (torch modules).",
    )
    overrule: Share = Field(
        default=1.0,
        description="A released label is dropped if another class is this probable; 1 is never.",
    )
    propagation: PropagationSpec = Field(
        default=PropagationSpec(), description="Label propagation of self-training."
    )

    # Methods with labelled and unlabelled inputs in every step, of torch modules only.
    fixmatch: FixMatchSpec = Field(
        default=FixMatchSpec(), description="Settings of method = fixmatch."
    )
    mixmatch: MixMatchSpec = Field(
        default=MixMatchSpec(), description="Settings of method = mixmatch."
    )
    gan: GanSpec = Field(default=GanSpec(), description="Settings of method = gan.")

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_method(cls, section: Any) -> Any:
        if isinstance(section, dict) and section.get("method", "supervised") != "supervised":
            return _SEMI_SUPERVISED | _OWN_DEFAULTS.get(str(section["method"]), {}) | section
        return section

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        fields = type(self).model_fields
        for key, method in _ONLY_FOR.items():
            # A resolved recipe spells defaults out: another value counts.
            if self.method != method and getattr(self, key) != fields[key].default:
                raise ValueError(
                    f"{key!r} belongs to method = {method!r}, and the method is {self.method!r}; "
                    "leave it out"
                )
        if self.fractions and (self.rounds is not None or self.confidence is not None):
            raise ValueError(
                "give 'fractions', which has one for each round, or 'rounds' and 'confidence'"
            )
        return self

    def as_model(self) -> ModelSpec:
        """Return the student's model as :func:`pate.teachers.persist.load` takes it."""
        settings = {name: getattr(self, name) for name in Training.model_fields}
        return ModelSpec(model=NETWORKS.get(self.model, self.model), **settings)


def derived_seed(seed: int, *names: object) -> int:
    """Return a seed for one use of a seed, below 2³².

    >>> derived_seed(0, "round", 1) == derived_seed(0, "round", 2)
    False
    """
    text = " ".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
