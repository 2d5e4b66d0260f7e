"""The ``[teachers]`` section of a recipe: models, their number, and what to do on failure."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

# Where and how long a teacher trains, not what it learns: not part of a fingerprint.
NOT_IN_FINGERPRINT = {"timeout", "retries", "cpus", "gpus"}
ENTRY_POINTS = "pate.teachers"  # the entry-point group in which packages offer teachers


def _named(entry: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+|[\w.-]+", entry):
        raise ValueError(f"{entry!r} is not 'module:attr' or the name of an installed teacher")
    return entry


ModelName = Annotated[str, AfterValidator(_named)]


class Training(BaseModel):
    """The construction and training of one model; all keys but ``params`` are for torch modules."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    params: dict[str, JsonValue] = Field(
        default={}, description="Arguments of the model's class or factory."
    )
    epochs: PositiveInt = Field(default=10, description="Passes over the records (torch modules).")
    batch_size: PositiveInt = Field(default=32, description="Records in a step (torch modules).")
    lr: PositiveFloat = Field(default=1e-2, description="Learning rate (torch modules).")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        default="adam", description="Optimizer (torch modules); sgd has momentum 0.9."
    )
    weight_decay: NonNegativeFloat = Field(
        default=0.0, description="Weight decay of the optimizer (torch modules)."
    )
    channels: Literal["first"] | None = Field(
        default=None,
        description='"first": images (n, height, width, channels) reach the model as (n, channels, '
        "height, width), and grey ones with one channel (torch modules).",
    )

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Fingerprints of recipes without these keys are as before there were any.
        written: dict[str, Any] = handler(self)
        for key, default in (("channels", None), ("slices", 1)):
            if written.get(key) == default:
                written.pop(key, None)
        return written


class ModelSpec(Training):
    """One entry of ``[[teachers.mix]]``: a model, its settings, and its share of the teachers."""

    model: ModelName = Field(
        description='"ridge", "logistic", "module:attr", or the name of an installed teacher.'
    )
    weight: PositiveFloat = Field(
        default=1.0, description="Share of the teachers, relative to the other entries."
    )


class TeachersSpec(Training):
    """``[teachers]``: an ensemble of ``count`` teachers of one model, or of a mix of several.

    Guarantees:
        The model and the seed of a teacher depend on this public section and its number alone,
        never on data: one record still reaches one teacher, with slices as without, so that the
        sensitivity of votes is the same.
    """

    count: int = Field(
        ge=2, le=1_000_000, description="Number of teachers, and of disjoint shards."
    )
    model: ModelName | None = Field(
        default=None,
        description='"ridge", "logistic", "module:attr" (scikit-learn, torch or your own), or the '
        "name of an installed teacher; or give `mix`.",
    )
    mix: list[ModelSpec] = Field(
        default=[], description="Several models, each for a share of the teachers."
    )
    on_error: Literal["fail", "retry", "abstain"] = Field(
        default="fail",
        description="What follows a teacher's failure: the run stops, the teacher is trained again "
        "with another seed, or it abstains from every vote.",
    )
    retries: int = Field(default=1, ge=0, description="Further attempts, with on_error = retry.")
    seed: int = Field(default=0, ge=0, description="Seed of the teachers' own randomness; public.")
    timeout: PositiveFloat | None = Field(
        default=None, description="Seconds that one teacher may train; without it, no limit."
    )
    cpus: PositiveFloat = Field(
        default=1.0, description="Processors of a cluster, and threads, for one group of teachers."
    )
    gpus: NonNegativeFloat = Field(
        default=0.0, description="GPUs of a cluster for one group of teachers."
    )
    batched: bool = Field(
        default=True, description="Train torch modules of one architecture as one program."
    )
    slices: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Parts of a shard that a teacher learns one after the other, with a private "
        "checkpoint after each: `pate forget` then trains from the part of the forgotten record on "
        "(torch modules). Step s learns from parts 1 … s, 2 epochs / (slices + 1) times.",
    )

    @model_validator(mode="after")
    def _models_take_slices(self) -> TeachersSpec:
        for model in (self.model, *(entry.model for entry in self.mix)):
            if self.slices > 1 and model in ("ridge", "logistic"):
                raise ValueError(no_slices(model))
        return self

    @model_validator(mode="after")
    def _model_or_mix(self) -> TeachersSpec:
        if not self.mix:
            if self.model is None:
                raise ValueError("teachers need 'model', or 'mix' for several models")
            return self
        if self.model is not None:
            raise ValueError("give 'model' or 'mix', not both")
        for name, field in Training.model_fields.items():
            if getattr(self, name) != field.default:
                raise ValueError(f"with 'mix', {name!r} belongs to the entries of the mix")
        counts = shares(tuple(entry.weight for entry in self.mix), self.count)
        if 0 in counts:
            raise ValueError(
                f"entry {counts.index(0) + 1} of the mix gets none of the {self.count} teachers; "
                "raise its weight or 'count'"
            )
        return self


def model_for(spec: TeachersSpec, teacher: int) -> ModelSpec:
    """Return the model of teacher number ``teacher``, counted from 0.

    The shares of a mix follow its weights as closely as whole numbers can, and alternate.

    >>> mix = [{"model": "a:A", "weight": 2}, {"model": "b:B"}]
    >>> spec = TeachersSpec.model_validate({"count": 6, "mix": mix})
    >>> "".join(model_for(spec, teacher).model[0] for teacher in range(6))
    'abaaba'
    """
    if not 0 <= teacher < spec.count:
        raise IndexError(f"there is no teacher {teacher} among {spec.count}")
    if spec.mix:
        return spec.mix[_order(tuple(entry.weight for entry in spec.mix), spec.count)[teacher]]
    settings: dict[str, Any] = {name: getattr(spec, name) for name in Training.model_fields}
    return ModelSpec(model=str(spec.model), **settings)


def seed_for(spec: TeachersSpec, teacher: int, *, attempt: int = 0) -> int:
    """Return the seed of one teacher's training, below 2³²; each attempt has another.

    Privacy does not depend on it: a teacher's own randomness is not the noise of the mechanism.
    """
    text = f"teacher {teacher} attempt {attempt} seed {spec.seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def no_slices(model: str) -> str:
    """Return why a model is refused with slices."""
    return (
        f"slices are for models that go on with their training from a checkpoint, which {model!r} "
        'cannot; torch modules can, model = "module:attr" or one of a mix; leave slices out'
    )


def seed_of_step(seed: int, step: int) -> int:
    """Return the seed of a training step, counted from 1, by the teacher's own, which is the first.

    >>> seed_of_step(7, 1), seed_of_step(7, 2)
    (7, 749145707)
    """
    if step == 1:
        return seed
    return int.from_bytes(
        hashlib.sha256(f"seed {seed} step {step}".encode()).digest()[:4], "little"
    )


def epochs_of_step(epochs: int, slices: int) -> int:
    """Return the epochs of each training step, rounded up (Bourtoule et al. 2021, section V).

    Step s sees s of S equal slices, so e epochs each are e (S + 1) / 2 epochs of all records: with
    e = 2 epochs / (S + 1) the work is that of one training.

    >>> [epochs_of_step(10, slices) for slices in (1, 3, 4)]
    [10, 5, 4]
    """
    return math.ceil(2 * epochs / (slices + 1))


def shares(weights: tuple[float, ...], count: int) -> list[int]:
    """Divide ``count`` in proportion to weights, by largest remainder.

    >>> shares((2, 1, 1), 10)
    [5, 3, 2]
    """
    total = sum(weights)
    quotas = [weight / total * count for weight in weights]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))
    for entry in by_remainder[: count - sum(counts)]:
        counts[entry] += 1
    return counts


@functools.lru_cache(maxsize=16)
def _order(weights: tuple[float, ...], count: int) -> tuple[int, ...]:
    """Return the entry of each teacher; every entry is spread evenly over the teachers."""
    counts = shares(weights, count)
    places = [
        ((i + 0.5) / total, entry) for entry, total in enumerate(counts) for i in range(total)
    ]
    return tuple(entry for _, entry in sorted(places))
