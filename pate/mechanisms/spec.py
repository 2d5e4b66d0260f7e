"""The recipe's [aggregate] section, and the mechanism it stands for."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pate._validate import LEAST_NOISE, MOST_NOISE
from pate.errors import InvalidInput
from pate.mechanisms.confident import ConfidentGnmax
from pate.mechanisms.gaussian import GaussianNoisyMax
from pate.mechanisms.interactive import InteractiveGnmax
from pate.mechanisms.laplace import LaplaceNoisyMax
from pate.mechanisms.release import Mechanism

Name = Literal["lnmax", "gnmax", "confident", "interactive"]
Noise = Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE)]
AtLeastOne = Annotated[int, Field(ge=1)]
Choice = Literal["first", "random", "diverse", "uncertain"]

# What each mechanism needs, in the order it is written; no mechanism takes what is not its own.
_NEEDS: dict[Name, tuple[str, ...]] = {
    "lnmax": ("scale",),
    "gnmax": ("sigma",),
    "confident": ("threshold", "sigma1", "sigma2"),
    "interactive": ("threshold", "sigma1", "sigma2"),
}
_NOISES = ("scale", "sigma", "threshold", "sigma1", "sigma2")


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
    threshold: Annotated[float, Field(gt=0, le=MOST_NOISE)] | None = Field(
        None, description="votes (confident) or votes of lead (interactive) that a check asks for"
    )
    sigma1: Noise | None = Field(None, description="noise of the check, in votes")
    sigma2: Noise | None = Field(None, description="noise of the answer, in votes")
    queries: AtLeastOne | None = Field(None, description="most queries")
    answers: AtLeastOne | None = Field(None, description="most answers")
    choose: Choice = Field(
        "first",
        description="which public inputs to ask about: the first ones, random ones, diverse ones, "
        "or in rounds those where the answers so far leave most doubt (uncertain)",
    )
    choose_seed: Annotated[int, Field(ge=0)] = Field(
        0, description="of the random order; public (random)"
    )
    rounds: AtLeastOne = Field(
        2, description="rounds of asking and learning (interactive, or choose = uncertain)"
    )
    keep: Annotated[float, Field(ge=0, le=1)] = Field(
        0.9, description="confidence above which a student keeps its own label (interactive)"
    )

    @model_validator(mode="after")
    def _takes_what_it_needs(self) -> Self:
        needs = _NEEDS[self.mechanism]
        missing = [key for key in needs if getattr(self, key) is None]
        unneeded = [key for key in _NOISES if key not in needs and getattr(self, key) is not None]
        unneeded += self._set_in_vain()
        problems = []
        if missing:
            problems.append(f"needs {' and '.join(missing)}")
        if unneeded:
            problems.append(f"takes no {' and no '.join(unneeded)}")
        chosen = "" if self.choose == "first" else f' with choose = "{self.choose}"'
        if problems:
            raise InvalidInput(
                f'mechanism "{self.mechanism}"{chosen} {", and ".join(problems)}; '
                f"its keys are {', '.join(needs)}" + self._own_keys()
            )
        return self

    @property
    def in_rounds(self) -> bool:
        """Whether answers are looked at before all queries were asked."""
        return self.mechanism == "interactive" or self.choose == "uncertain"

    @property
    def cost_follows_answers(self) -> bool:
        """Whether answers decide what the rest costs, on given votes: no λ may be chosen by it.

        A check that lets a query through, or not, decides whether an answer is paid for; rounds
        decide what is asked next.
        """
        return self.in_rounds or self.mechanism == "confident"

    def _set_in_vain(self) -> list[str]:
        """Keys that nothing reads. A resolved recipe spells defaults out: another value counts."""
        used = {
            "rounds": self.in_rounds,
            "keep": self.mechanism == "interactive",
            "choose_seed": self.choose == "random",
        }
        fields = type(self).model_fields
        return [k for k, read in used.items() if not read and getattr(self, k) != fields[k].default]

    def _own_keys(self) -> str:
        more = ["queries", "answers", "choose"]
        more += ["choose_seed"] if self.choose == "random" else []
        more += ["rounds"] if self.in_rounds else []
        more += ["keep"] if self.mechanism == "interactive" else []
        return f" and, if you wish, {', '.join(more[:-1])} and {more[-1]}"


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
