"""The recipe's [aggregate] section, and the mechanism it stands for."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pate.errors import InvalidInput
from pate.mechanisms.confident import ConfidentGnmax
from pate.mechanisms.gaussian import GaussianNoisyMax
from pate.mechanisms.interactive import InteractiveGnmax
from pate.mechanisms.laplace import LaplaceNoisyMax
from pate.mechanisms.parameters import LEAST_NOISE, MOST_NOISE
from pate.mechanisms.release import Mechanism

Name = Literal["lnmax", "gnmax", "confident", "interactive"]
Noise = Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE)]
AtLeastOne = Annotated[int, Field(ge=1)]

# What each mechanism needs, in the order it is written; no mechanism takes what is not its own.
_NEEDS: dict[Name, tuple[str, ...]] = {
    "lnmax": ("scale",),
    "gnmax": ("sigma",),
    "confident": ("threshold", "sigma1", "sigma2"),
    "interactive": ("threshold", "sigma1", "sigma2"),
}
_NOISES = ("scale", "sigma", "threshold", "sigma1", "sigma2")
_INTERACTIVE_ONLY = ("rounds", "keep")


class AggregateSpec(BaseModel):
    """How votes become labels. All of it is public.

    >>> AggregateSpec(mechanism="gnmax", sigma=40.0).sigma
    40.0
    >>> try:
    ...     AggregateSpec(mechanism="gnmax", scale=40.0)
    ... except ValueError as error:
    ...     "needs sigma, and takes no scale" in str(error)
    True
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    mechanism: Name = "lnmax"
    scale: Noise | None = Field(None, description="Laplace b, in votes (lnmax)")
    sigma: Noise | None = Field(None, description="standard deviation, in votes (gnmax)")
    threshold: Annotated[float, Field(gt=0)] | None = Field(
        None, description="votes (confident) or votes of lead (interactive) that a check asks for"
    )
    sigma1: Noise | None = Field(None, description="noise of the check, in votes")
    sigma2: Noise | None = Field(None, description="noise of the answer, in votes")
    queries: AtLeastOne | None = Field(None, description="most queries")
    answers: AtLeastOne | None = Field(None, description="most answers")
    rounds: AtLeastOne = Field(2, description="rounds of asking and learning (interactive)")
    keep: Annotated[float, Field(ge=0, le=1)] = Field(
        0.9, description="confidence above which a student keeps its own label (interactive)"
    )

    @model_validator(mode="after")
    def _takes_what_it_needs(self) -> Self:
        needs = _NEEDS[self.mechanism]
        missing = [key for key in needs if getattr(self, key) is None]
        unneeded = [key for key in _NOISES if key not in needs and getattr(self, key) is not None]
        if self.mechanism != "interactive":
            fields = type(self).model_fields
            # A resolved recipe spells defaults out; only another value was meant.
            unneeded += [k for k in _INTERACTIVE_ONLY if getattr(self, k) != fields[k].default]
        problems = []
        if missing:
            problems.append(f"needs {' and '.join(missing)}")
        if unneeded:
            problems.append(f"takes no {' and no '.join(unneeded)}")
        if problems:
            raise InvalidInput(
                f'mechanism "{self.mechanism}" {", and ".join(problems)}; '
                f"its keys are {', '.join(needs)}" + self._own_keys()
            )
        return self

    def _own_keys(self) -> str:
        if self.mechanism == "interactive":
            return " and, if you wish, queries, answers, rounds and keep"
        return " and, if you wish, queries and answers"


def make_mechanism(spec: AggregateSpec) -> Mechanism:
    """The mechanism a recipe asks for.

    >>> make_mechanism(AggregateSpec(scale=20.0))
    LaplaceNoisyMax(scale=20.0)
    """
    given = {key: float(getattr(spec, key)) for key in _NEEDS[spec.mechanism]}
    match spec.mechanism:
        case "lnmax":
            return LaplaceNoisyMax(**given)
        case "gnmax":
            return GaussianNoisyMax(**given)
        case "confident":
            return ConfidentGnmax(**given)
        case "interactive":
            return InteractiveGnmax(**given, keep=spec.keep)
