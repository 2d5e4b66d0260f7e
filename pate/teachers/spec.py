"""The ``[teachers]`` section of a recipe: which models, how many, and what to do on failure."""

from __future__ import annotations

import functools
import hashlib
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
    model_validator,
)

# Where and how long, not what: none of it is part of a fingerprint.
NOT_IN_FINGERPRINT = {"timeout", "retries", "cpus", "gpus"}
ENTRY_POINTS = "pate.teachers"  # the entry-point group in which packages offer teachers


def _named(entry: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+|[\w.-]+", entry):
        raise ValueError(f"{entry!r} is not 'module:attr' or the name of an installed teacher")
    return entry


ModelName = Annotated[str, AfterValidator(_named)]


class Training(BaseModel):
    """How one model is built and trained; all but ``params`` matter to torch modules only."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    params: dict[str, JsonValue] = {}  # arguments of the class or factory
    epochs: PositiveInt = 10
    batch_size: PositiveInt = 32
    lr: PositiveFloat = 1e-2
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    weight_decay: NonNegativeFloat = 0.0


class ModelSpec(Training):
    """One model: a built-in name, ``"module:attr"`` or an entry point, and its share in a mix."""

    model: ModelName
    weight: PositiveFloat = 1.0


class TeachersSpec(Training):
    """An ensemble of ``count`` teachers of one model, or of a weighted mix of several.

    Guarantees:
        Which model and seed a teacher gets depends on this public section and its number alone,
        never on data: one record still reaches one teacher.
    """

    count: int = Field(ge=2)
    model: ModelName | None = None
    mix: list[ModelSpec] = []
    on_error: Literal["fail", "retry", "abstain"] = "fail"
    retries: int = Field(default=1, ge=0)
    seed: int = Field(default=0, ge=0)
    timeout: PositiveFloat | None = None  # seconds for one teacher
    cpus: PositiveFloat = 1.0  # of a cluster, for one group; also how many threads it may use
    gpus: NonNegativeFloat = 0.0
    batched: bool = True  # torch modules of one architecture train as one program

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> TeachersSpec:
        if not self.mix:
            if self.model is None:
                raise ValueError("teachers need 'model', or 'mix' for several models")
            return self
        if self.model is not None:
            raise ValueError("give 'model' or 'mix', not both")
        for name, field in Training.model_fields.items():
            if getattr(self, name) != field.default:
                raise ValueError(f"with 'mix', {name!r} belongs into the entries of the mix")
        counts = shares(tuple(entry.weight for entry in self.mix), self.count)
        if 0 in counts:
            raise ValueError(
                f"entry {counts.index(0) + 1} of the mix gets none of the {self.count} teachers; "
                "raise its weight or 'count'"
            )
        return self


def model_for(spec: TeachersSpec, teacher: int) -> ModelSpec:
    """The model of teacher number ``teacher``, counted from 0.

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
    """The seed of one teacher's training, below 2³²; each attempt after a failure has another.

    Guarantees:
        None is needed: a teacher's own randomness is not the noise that privacy rests on.
    """
    text = f"teacher {teacher} attempt {attempt} seed {spec.seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def shares(weights: tuple[float, ...], count: int) -> list[int]:
    """``count`` divided in proportion to weights, by largest remainder.

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
    """The entry each teacher uses: every entry is spread evenly over the teachers."""
    counts = shares(weights, count)
    places = [
        ((i + 0.5) / total, entry) for entry, total in enumerate(counts) for i in range(total)
    ]
    return tuple(entry for _, entry in sorted(places))
