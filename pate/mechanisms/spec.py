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

from pate._format import format_cost
from pate._validate import LEAST_NOISE, MOST_NOISE, check_whole
from pate.accounting import Analysis, Conversion, Event, Guarantee, Repeated, compose
from pate.accounting.calibrate import largest_count, least_noise
from pate.accounting.plan_guarantee import guarantee_of_plan, plan_fits
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms.checked import ConfidentGnmax, InteractiveGnmax
from pate.mechanisms.counts import CountMechanism, GaussianCounts, LaplaceCounts
from pate.mechanisms.gumbel import GumbelNoisyMax
from pate.mechanisms.mechanism import BaseMechanism, Mechanism
from pate.mechanisms.noisy_max import GaussianNoisyMax, LaplaceNoisyMax

# A new mechanism is a new file and one entry here.
MECHANISMS: Final[dict[str, type[Mechanism]]] = {
    kind.name: kind
    for kind in (
        LaplaceNoisyMax,
        GaussianNoisyMax,
        GumbelNoisyMax,
        ConfidentGnmax,
        InteractiveGnmax,
    )
}
COUNT_MECHANISMS: Final[dict[str, type[CountMechanism]]] = {
    kind.name: kind for kind in (LaplaceCounts, GaussianCounts)
}


def known_mechanisms() -> dict[str, type[BaseMechanism]]:
    """Return all mechanisms by name, those of teachers' votes first."""
    return {**MECHANISMS, **COUNT_MECHANISMS}


def _keys(kind: type[BaseMechanism]) -> tuple[str, ...]:
    return kind.required_keys() + kind.optional_keys()


def _registered_keys() -> tuple[str, ...]:
    """Return the recipe keys of all mechanisms, each once."""
    return tuple(dict.fromkeys(key for kind in known_mechanisms().values() for key in _keys(kind)))


def _registered(name: Any) -> Any:
    if not isinstance(name, str) or name not in known_mechanisms():
        *others, last = (f"'{each}'" for each in known_mechanisms())
        expected = f"{', '.join(others)} or {last}"
        raise PydanticKnownError("literal_error", {"expected": expected})
    return name


def _closed(schema: dict[str, Any]) -> None:
    """Refuse in the JSON schema, too, what is no key of any registered mechanism."""
    schema["additionalProperties"] = False
    for key in _registered_keys():
        schema["properties"].setdefault(key, {"description": "of a registered mechanism"})


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
    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, allow_inf_nan=False, json_schema_extra=_closed
    )

    mechanism: Name = Field(
        default="lnmax",
        description="lnmax (Laplace), gnmax (Gaussian), gumbel, confident, interactive or a "
        "registered one; of record votes laplace-counts or gaussian-counts",
    )
    scale: Noise | None = Field(
        None, description="Laplace or Gumbel b, in votes (lnmax, gumbel, laplace-counts)"
    )
    sigma: Noise | None = Field(
        None, description="standard deviation, in votes (gnmax, gaussian-counts)"
    )
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
                f"its keys are {', '.join(needs)}{self._own_keys()}{self._remedy(missing)}"
            )
        make_mechanism(self)  # checks its own parameters
        return self

    @property
    def kind(self) -> type[BaseMechanism]:
        """The class of the mechanism that ``mechanism`` names."""
        return known_mechanisms()[self.mechanism]

    @property
    def asks(self) -> bool:
        """True if labels of single inputs are asked for; a table is released as a whole."""
        return self.kind.takes == "teachers"

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
            **dict.fromkeys(("queries", "answers", "choose"), self.asks),
        }
        fields = type(self).model_fields
        return [k for k, read in used.items() if not read and getattr(self, k) != fields[k].default]

    def _own_keys(self) -> str:
        if not self.asks:
            return ""
        more = ["queries", "answers", "choose"]
        more += ["choose_seed"] if self.choose == "random" else []
        more += ["rounds"] if self.in_rounds else []
        more += self.kind.optional_keys()
        return f" and, if you wish, {', '.join(more[:-1])} and {more[-1]}"

    def _remedy(self, missing: list[str]) -> str:
        """Return how missing noise is found, if it is all that is missing."""
        if missing and missing == [self.kind.calibrated]:
            given = "and queries are given" if self.asks else "is given"
            return f"; {missing[0]} is found if epsilon in [privacy] {given}"
        if missing and self.kind.calibrated is None:
            return "; no ε decides them: `pate plan` proposes them"
        return ""


class OpenAggregateSpec(AggregateSpec):
    """``[pate.aggregate]``: as in any recipe, but noise may be left out of lnmax and gnmax.

    Then the least noise is found with which ``queries`` answers stay within each ε. Where noise is
    given, as many queries are asked as fit.
    """

    @property
    def finds_noise(self) -> bool:
        noise = self.kind.calibrated
        return noise is not None and getattr(self, noise, None) is None

    @model_validator(mode="after")
    def _takes_what_it_needs(self) -> Self:
        if self.finds_noise and self.asks and self.queries is None:
            noise = self.kind.calibrated
            raise InvalidInput(
                f'mechanism "{self.mechanism}" has neither {noise} nor queries; give queries, and '
                f"the least {noise} for them is found, or give {noise}"
            )
        self.with_noise(1.0)  # whatever the noise, the rest must go together
        return self

    def with_noise(self, noise: float) -> AggregateSpec:
        """Return the section with this noise, where the recipe leaves it open."""
        given: dict[str, Any] = self.model_dump()
        if self.finds_noise:
            given[str(self.kind.calibrated)] = noise
        return AggregateSpec(**given)

    def least_noise(
        self,
        *,
        epsilon: float,
        delta: float,
        conversion: Conversion = Conversion.IMPROVED,
        inputs: int | None = None,
        analysis: Analysis = Analysis.TIGHT,
        by_moments: bool = False,
        reach: int = 1,
        per_user: int | None = None,
    ) -> float:
        """Return the least noise with which all answers stay within ε, where it is left open.

        ``inputs`` is the number of public inputs: no more can be asked about. ``by_moments``
        searches with log-moments alone, as :func:`plan_caps` does. ``reach`` and ``per_user`` are
        those of record votes.

        Guarantees:
            The search ends on the side on which the target is met; the plan is measured again by
            the accountant (:func:`plan_caps`), and ε caps it besides. All of it is public.
        """
        kind = self.kind
        if issubclass(kind, CountMechanism):
            return kind.least_noise(
                epsilon=epsilon,
                delta=delta,
                reach=reach,
                per_user=per_user,
                conversion=conversion,
            )
        assert self.queries is not None  # checked above
        most = self.queries if inputs is None else min(self.queries, inputs)
        count = min(most, self.answers or most)

        def meets(noise: float) -> bool:
            answer = voting_mechanism(self.with_noise(noise)).answer_event
            return plan_fits(
                [Repeated(answer, count)],
                epsilon=epsilon,
                delta=delta,
                conversion=conversion,
                analysis=analysis,
                adaptive=self.in_rounds,
                by_moments=by_moments,
            )

        found = least_noise(meets)
        if found is None:
            raise InvalidInput(f"no noise reaches epsilon {epsilon:g}; raise it, or delta")
        return max(found, LEAST_NOISE)


def make_mechanism(spec: AggregateSpec) -> BaseMechanism:
    """Return the mechanism that a recipe asks for."""
    given = {key: getattr(spec, key, None) for key in _keys(spec.kind)}
    return spec.kind.from_keys({k: value for k, value in given.items() if value is not None})


def voting_mechanism(spec: AggregateSpec) -> Mechanism:
    """Return the mechanism of a recipe that answers from the votes of teachers."""
    made = make_mechanism(spec)
    if not isinstance(made, Mechanism):
        raise InvalidInput(f"{made.title} release a table of record votes and answer no query")
    return made


def count_mechanism(spec: AggregateSpec) -> CountMechanism:
    """Return the mechanism of a recipe that releases a table of record votes."""
    made = make_mechanism(spec)
    if not isinstance(made, CountMechanism):
        raise InvalidInput(f"{made.title} answers from votes of teachers and releases no table")
    return made


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The most that will be asked and answered, and its cost at worst.

    Guarantees:
        ``guarantee`` is data-independent and holds for every course of events within the caps
        (:func:`pate.accounting.guarantee_of_plan`).
    """

    queries: int  # most queries asked: the first so many of the public inputs
    answers: int  # most answers given
    events: tuple[Event, ...]  # the caps, as the ledger takes them
    guarantee: Guarantee

    @property
    def moment(self) -> float | None:
        """The best λ for the caps, at which a ledger that is made for them adds up."""
        if self.guarantee.moment is not None or not self.guarantee.delta:
            return self.guarantee.moment
        return compose(self.events).guarantee(delta=self.guarantee.delta).moment


def plan_table(
    mechanism: CountMechanism,
    *,
    epsilon: float | None,
    delta: float,
    inputs: int,
    reach: int = 1,
    per_user: int | None = None,
    components: bool = False,
    conversion: Conversion = Conversion.IMPROVED,
) -> Plan:
    """Return the plan of a table of record votes: one release, which labels all public inputs.

    Raises BudgetExceeded if it costs more than ``epsilon``.

    Guarantees:
        Reads public numbers only; at ``delta`` 0 the guarantee is that of pure differential
        privacy.

    >>> plan_table(LaplaceCounts(scale=2.0), epsilon=1.0, delta=0.0, inputs=300).guarantee.epsilon
    0.5
    """
    mechanism.require_norm(components=components)
    events = mechanism.events(reach=reach, per_user=per_user)
    guarantee = guarantee_of_plan(events, delta=delta, conversion=conversion)
    if epsilon is not None and guarantee.epsilon > epsilon:
        raise BudgetExceeded(
            needed=guarantee.epsilon,
            spent=0.0,
            budget=epsilon,
            why=f"the table costs {format_cost(guarantee.epsilon, delta)}, past "
            f"the budget of {epsilon:.6g}; raise the noise in [aggregate] or epsilon in [privacy]",
        )
    return Plan(queries=inputs, answers=inputs, events=events, guarantee=guarantee)


def plan_caps(
    mechanism: Mechanism,
    spec: AggregateSpec,
    *,
    epsilon: float | None,
    delta: float,
    available_queries: int,
    moments: ArrayLike | None = None,
    conversion: Conversion = Conversion.IMPROVED,
    analysis: Analysis = Analysis.TIGHT,
    by_moments: bool = False,
) -> Plan:
    """Return the largest caps within those of ``spec``, the public inputs, and ``epsilon``.

    Without ``epsilon`` the recipe's caps stand as they are. With it, for a mechanism that checks:

    * ``queries`` given: the most answers that fit beside checking all of them;
    * only ``answers`` given: the most queries, with that many answered;
    * neither given: the most queries, where every one may be answered. This is also done where
      checking all the ``queries`` would leave no room for a single answer.

    If not even one answer fits, BudgetExceeded is raised.

    ``analysis`` gives the bounds of the guarantee, and those by which the caps are found; with
    ``by_moments`` they are found by log-moments alone, which a ledger with a budget adds up.

    Guarantees:
        Reads public numbers only: no vote, and no number of answers given so far.

    >>> spec = AggregateSpec(
    ...     mechanism="confident", threshold=200.0, sigma1=150.0, sigma2=40.0, answers=100
    ... )
    >>> plan = plan_caps(
    ...     voting_mechanism(spec), spec, epsilon=2.0, delta=1e-5, available_queries=9000
    ... )
    >>> plan.queries, plan.answers, plan.guarantee.epsilon <= 2
    (4799, 100, True)
    """
    check_whole("the number of public inputs", available_queries, least=1)
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise InvalidInput(
            f"epsilon is {epsilon!r}; it must be a finite number above zero, or left out to ask "
            "without a budget"
        )

    def plan(queries: int, answers: int) -> Plan:
        events = mechanism.caps(queries=queries, answers=answers)
        return Plan(
            queries=queries,
            answers=min(queries, answers),
            events=events,
            guarantee=guarantee_of_plan(
                events,
                delta=delta,
                conversion=conversion,
                analysis=analysis,
                moments=moments,
                adaptive=spec.in_rounds,
            ),
        )

    most_queries = min(spec.queries or available_queries, available_queries)
    most_answers = min(spec.answers or most_queries, most_queries)
    checks = mechanism.checks
    if not checks:  # every query asked is an answer
        most_queries = most_answers
    if epsilon is None:
        return plan(most_queries, most_answers)

    def fits(queries: int, answers: int) -> bool:
        return plan_fits(
            mechanism.caps(queries=queries, answers=answers),
            epsilon=epsilon,
            delta=delta,
            conversion=conversion,
            analysis=analysis,
            moments=moments,
            adaptive=spec.in_rounds,
            by_moments=by_moments,
        )

    if not fits(1, 1):
        one = plan(1, 1).guarantee.epsilon
        raise BudgetExceeded(
            needed=one,
            spent=0.0,
            budget=epsilon,
            why=f"one answer alone costs {format_cost(one, delta)}, past the "
            f"budget of {epsilon:.6g}; raise the noise in [aggregate] or epsilon in [privacy]",
        )
    if checks and spec.queries is not None and fits(most_queries, 1):
        return plan(most_queries, largest_count(lambda n: fits(most_queries, n), most=most_answers))
    queries = largest_count(lambda n: fits(n, most_answers), most=most_queries)
    return plan(queries, most_answers)
