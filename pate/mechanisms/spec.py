"""The mechanisms that a recipe can name, its [aggregate] section, and the caps it leads to.

A guarantee that is worked out from how many answers happened to be given is not covered by plain
composition. So the caps (most queries, most answers) come first, from public numbers alone, and
the guarantee is the one of the caps, whatever is answered in the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, final

from numpy.typing import ArrayLike
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticKnownError

from pate._format import format_epsilon
from pate._validate import LEAST_NOISE, MOST_NOISE, check_whole
from pate.accounting import Conversion, Event, Guarantee, compose
from pate.accounting.calibrate import largest_count
from pate.errors import BudgetExceeded, InvalidInput
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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The most that will be asked and answered, and its cost at worst.

    Guarantees:
        ``guarantee`` is data-independent and holds for every course of events within the caps
        (log-moments of adaptively chosen mechanisms add up: Abadi et al. 2016, Theorem 2.1).
    """

    queries: int  # most queries asked: the first so many of the public inputs
    answers: int  # most answers given
    events: tuple[Event, ...]  # the caps, as the ledger takes them
    guarantee: Guarantee


def plan_caps(
    mechanism: Mechanism,
    spec: AggregateSpec,
    *,
    epsilon: float | None,
    delta: float,
    available_queries: int,
    moments: ArrayLike | None = None,
    conversion: Conversion = Conversion.IMPROVED,
) -> Plan:
    """Return the largest caps within those of ``spec``, the public inputs, and ``epsilon``.

    Without ``epsilon`` the recipe's caps stand as they are. With it, for a mechanism that checks:

    * ``queries`` given: the most answers that fit beside checking all of them;
    * only ``answers`` given: the most queries, with that many answered;
    * neither given: the most queries, where every one may be answered. This is also done where
      checking all the ``queries`` would leave no room for a single answer.

    If not even one answer fits, BudgetExceeded is raised.

    Guarantees:
        Reads public numbers only: no vote, and no number of answers given so far.

    >>> spec = AggregateSpec(
    ...     mechanism="confident", threshold=200.0, sigma1=150.0, sigma2=40.0, answers=100
    ... )
    >>> plan = plan_caps(
    ...     make_mechanism(spec), spec, epsilon=2.0, delta=1e-5, available_queries=9000
    ... )
    >>> plan.queries, plan.answers, plan.guarantee.epsilon <= 2
    (2059, 100, True)
    """
    check_whole("the number of public inputs", available_queries, least=1)
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise InvalidInput(
            f"epsilon is {epsilon!r}; it must be a finite number above zero, or left out to ask "
            "without a budget"
        )

    def plan(queries: int, answers: int) -> Plan:
        events = mechanism.caps(queries=queries, answers=answers)
        guarantee = compose(events, moments).guarantee(delta=delta, conversion=conversion)
        return Plan(
            queries=queries, answers=min(queries, answers), events=events, guarantee=guarantee
        )

    most_queries = min(spec.queries or available_queries, available_queries)
    most_answers = min(spec.answers or most_queries, most_queries)
    checks = mechanism.checks
    if not checks:  # every query asked is an answer
        most_queries = most_answers
    if epsilon is None:
        return plan(most_queries, most_answers)

    def fits(queries: int, answers: int) -> bool:
        return plan(queries, answers).guarantee.epsilon <= epsilon

    if not fits(1, 1):
        needed = plan(1, 1).guarantee.epsilon
        raise BudgetExceeded(
            needed=needed,
            spent=0.0,
            budget=epsilon,
            why=f"one answer alone costs ε {format_epsilon(needed, 6)} at δ {delta:g}, past the "
            f"budget of {epsilon:.6g}; raise the noise in [aggregate] or epsilon in [privacy]",
        )
    if checks and spec.queries is not None and fits(most_queries, 1):
        return plan(most_queries, largest_count(lambda n: fits(most_queries, n), most=most_answers))
    queries = largest_count(lambda n: fits(n, most_answers), most=most_queries)
    return plan(queries, most_answers)
