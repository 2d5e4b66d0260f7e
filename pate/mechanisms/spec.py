"""The mechanisms that a recipe can name, and its [aggregate] section, which names one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticKnownError

from pate._validate import LEAST_NOISE, MOST_NOISE
from pate.errors import InvalidInput
from pate.mechanisms.checked import ConfidentGnmax, InteractiveGnmax
from pate.mechanisms.mechanism import Mechanism
from pate.mechanisms.noisy_max import GaussianNoisyMax, LaplaceNoisyMax

# A new mechanism is a new file and one entry here.
MECHANISMS: Final[dict[str, type[Mechanism]]] = {
    kind.name: kind
    for kind in (LaplaceNoisyMax, GaussianNoisyMax, ConfidentGnmax, InteractiveGnmax)
}


def _keys(kind: type[Mechanism]) -> tuple[str, ...]:
    return kind.required_keys() + kind.optional_keys()


def _registered_keys() -> tuple[str, ...]:
    """Return the recipe keys of all mechanisms, each once."""
    return tuple(dict.fromkeys(key for kind in MECHANISMS.values() for key in _keys(kind)))


def _registered(name: Any) -> Any:
    if not isinstance(name, str) or name not in MECHANISMS:
        *others, last = (f"'{each}'" for each in MECHANISMS)
        expected = f"{', '.join(others)} or {last}"
        raise PydanticKnownError("literal_error", {"expected": expected})
    return name


Name = Annotated[str, BeforeValidator(_registered)]
Noise = Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE)]
AtLeastOne = Annotated[int, Field(ge=1)]
Choice = Literal["first", "random", "diverse", "uncertain"]


class AggregateSpec(BaseModel):
    """``[aggregate]``: the mechanism that turns votes into labels. All of it is public.

    The keys of a mechanism are the fields of its class; those of the mechanisms that come with
    pate are listed here, and those of others are checked by their own class.
    """

    # Extra keys are those of registered mechanisms; all others are refused below.
    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    mechanism: Name = Field(
        default="lnmax",
        description="lnmax (Laplace), gnmax (Gaussian), confident, interactive or a registered one",
    )
    scale: Noise | None = Field(None, description="Laplace b, in votes (lnmax)")
    sigma: Noise | None = Field(None, description="standard deviation, in votes (gnmax)")
    threshold: Annotated[float, Field(gt=0, le=MOST_NOISE)] | None = Field(
        None, description="votes (confident) or lead in votes (interactive) that the check requires"
    )
    sigma1: Noise | None = Field(None, description="noise of the check, in votes")
    sigma2: Noise | None = Field(None, description="noise of the answer, in votes")
    queries: AtLeastOne | None = Field(
        None,
        description="most queries; default: as many as the cap on ε and the public inputs allow",
    )
    answers: AtLeastOne | None = Field(None, description="most answers")
    choose: Choice = Field(
        "first",
        description="choice of public inputs to query: the first, random ones, diverse ones, or in "
        "rounds the most uncertain ones given the answers so far",
    )
    choose_seed: Annotated[int, Field(ge=0)] = Field(
        0, description="seed of the random order; public (choose = random)"
    )
    rounds: AtLeastOne = Field(
        2, description="rounds of queries and training (interactive, or choose = uncertain)"
    )
    keep: Annotated[float, Field(ge=0, le=1)] = Field(
        0.9, description="confidence above which a student keeps its own label (interactive)"
    )

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, given: Any) -> Any:
        known = {*cls.model_fields, *_registered_keys()}
        unknown = [
            InitErrorDetails(type="extra_forbidden", loc=(key,), input=value)
            for key, value in (given.items() if isinstance(given, dict) else ())
            if key not in known
        ]
        if unknown:
            raise ValidationError.from_exception_data(cls.__name__, unknown)
        return given

    @model_validator(mode="after")
    def _takes_what_it_needs(self) -> Self:
        needs = self.kind.required_keys()
        missing = [key for key in needs if getattr(self, key, None) is None]
        unneeded = self._foreign_keys() + self._unused_keys()
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
        make_mechanism(self)  # checks its own parameters
        return self

    @property
    def kind(self) -> type[Mechanism]:
        """The class of the mechanism that ``mechanism`` names."""
        return MECHANISMS[self.mechanism]

    @property
    def in_rounds(self) -> bool:
        """True if answers are looked at before all queries were asked."""
        return self.kind.uses_student or self.choose == "uncertain"

    @property
    def cost_follows_answers(self) -> bool:
        """True if answers decide what the rest costs, on given votes: no λ may be chosen by it.

        A check that lets a query through, or not, decides whether an answer is paid for; rounds
        decide what is asked next.
        """
        return self.in_rounds or self.kind.checks

    def _foreign_keys(self) -> list[str]:
        """Return required keys of other mechanisms that were set, and any extra key of theirs."""
        fields = type(self).model_fields
        return [
            key
            for key in _registered_keys()
            if key not in _keys(self.kind)
            and getattr(self, key, None) is not None
            and (key not in fields or fields[key].default is None)
        ]

    def _unused_keys(self) -> list[str]:
        """Return keys that nothing reads and that differ from their defaults.

        A resolved recipe spells all defaults out, so a default is no mistake.
        """
        used = {
            "rounds": self.in_rounds,
            "keep": "keep" in self.kind.optional_keys(),
            "choose_seed": self.choose == "random",
        }
        fields = type(self).model_fields
        return [k for k, read in used.items() if not read and getattr(self, k) != fields[k].default]

    def _own_keys(self) -> str:
        more = ["queries", "answers", "choose"]
        more += ["choose_seed"] if self.choose == "random" else []
        more += ["rounds"] if self.in_rounds else []
        more += self.kind.optional_keys()
        return f" and, if you wish, {', '.join(more[:-1])} and {more[-1]}"


def make_mechanism(spec: AggregateSpec) -> Mechanism:
    """Return the mechanism that a recipe asks for."""
    given = {key: getattr(spec, key, None) for key in _keys(spec.kind)}
    return spec.kind.from_keys({k: value for k, value in given.items() if value is not None})
