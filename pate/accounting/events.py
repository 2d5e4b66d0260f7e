"""Events: frozen descriptions of releases. The meaning and the JSON of an event never change.

An event holds public parameters only (scales, rates, counts), never a vote. Its cost is computed
elsewhere, by one pure function for each kind (:mod:`pate.accounting.moments`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from typing import Any, ClassVar, final

from pate._validate import check_positive, check_whole
from pate.accounting.guarantee import Neighbours
from pate.errors import InvalidInput, UnsupportedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base class of all events. Every parameter is a finite number above zero."""

    neighbours: ClassVar[Neighbours] = Neighbours.AS_STATED

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(field.default, bool):
                continue
            # As a float: 20 and 20.0 are one event.
            number = check_positive(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, number)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoisyMaxAnswer(Event):
    """One label: the class whose count plus Lap(scale) is largest, where one vote changes.

    Nothing else of the noised counts may leave: for a noised count charge :class:`Laplace`.

    Parameters
    ----------
    scale
        The Laplace b, in votes.

    >>> from pate.accounting import compose
    >>> answers = compose([Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 100)])
    >>> round(answers.guarantee(delta=1e-5).epsilon, 3)
    2.137
    """

    neighbours: ClassVar[Neighbours] = Neighbours.REPLACE_ONE
    scale: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoisyMaxAnswer(Event):
    """One label: the class whose count plus N(0, sigma²) is largest, where one vote changes.

    Nothing else of the noised counts may leave: for a noised count charge :class:`Gaussian`.

    Parameters
    ----------
    sigma
        The standard deviation of the noise, in votes.
    """

    neighbours: ClassVar[Neighbours] = Neighbours.REPLACE_ONE
    sigma: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GumbelNoisyMaxAnswer(Event):
    """One label, drawn with chances in proportion to e^(count/scale), where one vote changes.

    That is the class whose count plus Gumbel(scale) is largest: the exponential mechanism.

    Parameters
    ----------
    scale
        The Gumbel b, in votes.

    >>> from pate.accounting import compose
    >>> answers = compose([Repeated(GumbelNoisyMaxAnswer(scale=20.0), 100)])
    >>> round(answers.guarantee(delta=1e-5).epsilon, 3)
    2.152
    """

    neighbours: ClassVar[Neighbours] = Neighbours.REPLACE_ONE
    scale: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdCheck(Event):
    """One bit: whether the largest count (or lead over a student) plus N(0, sigma²) reaches T.

    Nothing else of the noised count may leave: for the count itself charge :class:`Gaussian`.

    Parameters
    ----------
    sigma
        The standard deviation of the noise, in votes.
    """

    neighbours: ClassVar[Neighbours] = Neighbours.REPLACE_ONE
    sigma: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothRelease(Event):
    """A number plus N(0, (sigma · its beta-smooth sensitivity)²).

    Parameters
    ----------
    beta
        The smoothness of the sensitivity.
    sigma
        The standard deviation of the noise, as a multiple of the smooth sensitivity.
    """

    neighbours: ClassVar[Neighbours] = Neighbours.REPLACE_ONE
    beta: float
    sigma: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussian(Event):
    """One DP-SGD step: Poisson sampling at ``sample_rate``, then a noised sum.

    Parameters
    ----------
    sample_rate
        The probability with which each record is in the step, at most 1.
    noise_multiplier
        The standard deviation of the noise over the bound on one record's contribution.
    public_rate
        The rate and the number of steps do not depend on the number of records.
    per_user
        Users are sampled, not records, and the bound is on all records of a user together.

    Guarantees:
        * With ``public_rate`` the cost holds for one record added or removed (Mironov, Talwar &
          Zhang 2019, Theorem 4).
        * Without it, the rate may be a lot size over the number of records, which one record more
          changes for all others. The cost then holds where one record's contribution is removed
          and their number, which is public, stays (zero-out: Kairouz et al. 2021, Definition 1.1):
          the same two distributions, so the same cost.
        * With ``per_user`` the same theorems are about users: a user is in the step or not, and
          adds a vector of bounded length (McMahan, Ramage, Talwar & Zhang 2018). The cost holds for
          all records of one user added or removed, or zeroed out.
        * Events recorded before ``public_rate`` existed are read as without it.

    >>> SampledGaussian(sample_rate=0.01, noise_multiplier=1.0).neighbours.value
    'zero-out'
    """

    sample_rate: float
    noise_multiplier: float
    public_rate: bool = False
    per_user: bool = False

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        if self.sample_rate > 1:
            raise InvalidInput(f"sample_rate is {self.sample_rate!r}; it must lie in (0, 1]")
        for name in ("public_rate", "per_user"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; it must be True or False")

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        if self.per_user:
            return Neighbours.USER_ADD_REMOVE if self.public_rate else Neighbours.USER_ZERO_OUT
        return Neighbours.ADD_REMOVE if self.public_rate else Neighbours.ZERO_OUT


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Event):
    """A value plus N(0, σ²).

    Parameters
    ----------
    noise_multiplier
        σ over the L2 sensitivity of the value.
    """

    noise_multiplier: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(Event):
    """A value plus Lap(b).

    Parameters
    ----------
    noise_multiplier
        b over the L1 sensitivity of the value.
    """

    noise_multiplier: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PureDP(Event):
    """Any mechanism that is (ε, 0)-DP.

    Parameters
    ----------
    epsilon
        Its ε.
    """

    epsilon: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDP(Event):
    """Any mechanism that is (ε, δ)-DP; it has no log-moments.

    Parameters
    ----------
    epsilon
        Its ε.
    delta
        Its δ, below 1. :mod:`pate.accounting.composition` composes such events.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        if self.delta >= 1:
            raise InvalidInput(f"delta is {self.delta!r}; it must lie strictly between 0 and 1")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroConcentrated(Event):
    """Any mechanism that is ρ-zCDP (zero-concentrated; Bun & Steinke 2016).

    Parameters
    ----------
    rho
        Its ρ.
    """

    rho: float


@final
@dataclass(frozen=True, slots=True)
class Repeated(Event):
    """The same event several times.

    Parameters
    ----------
    event
        The event.
    count
        The number of times it happened, 0 or more.
    """

    event: Event
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check_whole("count", self.count))


@final
@dataclass(frozen=True, slots=True)
class ForReplacement(Event):
    """An event whose sensitivity was measured between data sets that differ in one replaced record.

    The inner event leaves the relation open ("as stated"). This one states it, so that it cannot be
    added to costs for one record more or less.

    Parameters
    ----------
    event
        A Gaussian, Laplace, PureDP, ApproximateDP or ZeroConcentrated event.

    >>> ForReplacement(PureDP(epsilon=0.5)).neighbours.value
    'replace-one'
    """

    neighbours: ClassVar[Neighbours] = Neighbours.REPLACE_ONE
    event: Event

    def __post_init__(self) -> None:
        _require_open(self.event)


@final
@dataclass(frozen=True, slots=True)
class ForAddRemove(Event):
    """An event whose sensitivity was measured between data sets of which one has a record more.

    The counterpart of :class:`ForReplacement`: the inner event leaves the relation open, and this
    one states it. A replaced record is one removed and one added, which costs twice.

    Parameters
    ----------
    event
        A Gaussian, Laplace, PureDP, ApproximateDP or ZeroConcentrated event.
    per_user
        The sensitivity is that of all records of one user, added or removed together.

    >>> ForAddRemove(PureDP(epsilon=0.5)).neighbours.value
    'add-remove'
    >>> ForAddRemove(PureDP(epsilon=0.5), per_user=True).neighbours.value
    'user-add-remove'
    >>> print(ForAddRemove(PureDP(epsilon=0.5)))
    PureDP(epsilon=0.5), one record added or removed
    """

    event: Event
    per_user: bool = False

    def __post_init__(self) -> None:
        _require_open(self.event)
        if not isinstance(self.per_user, bool):
            raise InvalidInput(f"per_user is {self.per_user!r}; it must be True or False")

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        return Neighbours.USER_ADD_REMOVE if self.per_user else Neighbours.ADD_REMOVE

    def __str__(self) -> str:
        unit = "all records of one user" if self.per_user else "one record"
        return f"{self.event}, {unit} added or removed"


_OF_VOTES = (
    LaplaceNoisyMaxAnswer,
    GaussianNoisyMaxAnswer,
    GumbelNoisyMaxAnswer,
    ThresholdCheck,
)
_RESTATABLE = (Gaussian, Laplace, PureDP, ApproximateDP, ZeroConcentrated)


def _require_open(event: Event) -> None:
    if type(event) not in _RESTATABLE:
        names = ", ".join(kind.__name__ for kind in _RESTATABLE)
        raise InvalidInput(
            f"the event is a {type(event).__name__}; only {names} leave the relation open"
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfTries(Event):
    """The best outcome of a random number of tries, each of a candidate picked at random.

    A try picks one of the candidates uniformly and runs it with fresh noise. The number of tries is
    drawn beforehand from a truncated negative binomial distribution. The best try is released, and
    with it which candidate it was; the others and their number never are
    (:mod:`pate.accounting.selection`).

    Parameters
    ----------
    candidates
        For each candidate the events that it may cause at most; kept in an order of their own.
    mean_tries
        The mean number of tries, above 1 and at most 10 000.
    shape
        The shape η of the distribution: 0 is the logarithmic, 1 the geometric one.

    >>> tried = BestOfTries(candidates=[[PureDP(epsilon=0.2)], [PureDP(epsilon=0.1)]], mean_tries=8)
    >>> print(tried)
    the best of 8 tries (on average; shape 0) among 2 candidates
    >>> event_from_json(event_to_json(tried)) == tried
    True
    """

    candidates: tuple[tuple[Event, ...], ...]
    mean_tries: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        _check_number("mean_tries", self.mean_tries, above=1, most=MOST_TRIES)
        _check_number("shape", self.shape, least=0, most=_MOST_SHAPE)
        object.__setattr__(self, "mean_tries", float(self.mean_tries))
        object.__setattr__(self, "shape", float(self.shape))
        plans = [tally(candidate) for candidate in self.candidates]
        if not plans or not all(plans):
            raise InvalidInput("candidates lack events; give one or more, each with events")
        if any(isinstance(event, BestOfTries) for plan in plans for event in plan):
            raise InvalidInput("a candidate cannot itself be a choice among candidates")
        ordered = sorted(
            (tuple(Repeated(event, count) for event, count in plan.items()) for plan in plans),
            key=lambda plan: [event_to_json(event) for event in plan],
        )
        object.__setattr__(self, "candidates", tuple(ordered))
        _ = self.neighbours  # candidates under different relations are refused

    @property
    def neighbours(self) -> Neighbours:  # type: ignore[override]
        """The relation under which all candidates hold."""
        return relation_of(each for plan in self.candidates for each in plan)

    def __str__(self) -> str:
        count = len(self.candidates)
        return (
            f"the best of {self.mean_tries:g} tries (on average; shape {self.shape:g}) among "
            f"{count} candidate{'s' if count > 1 else ''}"
        )


MOST_TRIES, _MOST_SHAPE = 10_000, 10  # on average; far beyond any use


def _check_number(
    name: str, value: Any, *, most: float, above: float = -math.inf, least: float = -math.inf
) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and above < value <= most and value >= least):
        rule = f"above {above:g}" if above > least else f"at least {least:g}"
        raise InvalidInput(f"{name} is {value!r}; it must be a number {rule}, at most {most:g}")


_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        LaplaceNoisyMaxAnswer,
        GaussianNoisyMaxAnswer,
        GumbelNoisyMaxAnswer,
        ThresholdCheck,
        SmoothRelease,
        SampledGaussian,
        Gaussian,
        Laplace,
        PureDP,
        ApproximateDP,
        ZeroConcentrated,
    )
}


def tally(events: Iterable[Event]) -> dict[Event, int]:
    """Count each single event, in an order that does not depend on the caller's."""
    counts: dict[Event, int] = {}
    for event in events:
        for single, count in _unfold(event, 1):
            counts[single] = counts.get(single, 0) + count
    return {event: counts[event] for event in sorted(counts, key=event_to_json) if counts[event]}


def relation_of(events: Iterable[Event]) -> Neighbours:
    """Return the relation under which the costs of all events hold; refuse mixed ones."""
    relations = (single.neighbours for event in events for single, _ in _unfold(event, 1))
    return reduce(Neighbours.combine, relations, Neighbours.AS_STATED)


def is_of_votes(event: Event) -> bool:
    """Return whether the cost of an event depends on how answers from votes are analysed."""
    if isinstance(event, Repeated):
        return is_of_votes(event.event)
    if isinstance(event, BestOfTries):
        return any(is_of_votes(each) for plan in event.candidates for each in plan)
    return isinstance(event, _OF_VOTES)


def as_zero_out(event: Event) -> Event:
    """Return a DP-SGD step without its public rate; other events as they are."""
    if isinstance(event, Repeated):
        return Repeated(as_zero_out(event.event), event.count)
    return replace(event, public_rate=False) if isinstance(event, SampledGaussian) else event


def _unfold(event: Event, times: int) -> Iterable[tuple[Event, int]]:
    if isinstance(event, Repeated):
        yield from _unfold(event.event, times * event.count)
    elif isinstance(event, Event):
        yield event, times
    else:
        raise UnsupportedEvent(f"{type(event).__name__} is not an accounting event")


def event_to_json(event: Event) -> str:
    """Return an event as one line of JSON; floats keep every bit.

    Parameters
    ----------
    event
        An event of this package.

    >>> event_to_json(PureDP(epsilon=0.1))
    '{"epsilon": 0.1, "event": "PureDP"}'
    """
    return json.dumps(_to_dict(event), sort_keys=True, allow_nan=False)


def _to_dict(event: Event) -> dict[str, Any]:
    if isinstance(event, Repeated):
        return {"event": "Repeated", "of": _to_dict(event.event), "count": event.count}
    if isinstance(event, ForReplacement):
        return {"event": "ForReplacement", "of": _to_dict(event.event)}
    if isinstance(event, ForAddRemove):
        users = {"per_user": True} if event.per_user else {}
        return {"event": "ForAddRemove", "of": _to_dict(event.event), **users}
    if isinstance(event, BestOfTries):
        plans = [[_to_dict(each) for each in plan] for plan in event.candidates]
        return {
            "event": "BestOfTries",
            "candidates": plans,
            "mean_tries": event.mean_tries,
            "shape": event.shape,
        }
    if _KINDS.get(type(event).__name__) is not type(event):
        raise UnsupportedEvent(f"{type(event).__name__} is not an event this version knows")
    given = {name: value for name, value in asdict(event).items() if value is not False}
    return {"event": type(event).__name__, **given}


def event_from_json(text: str) -> Event:
    """Return the event that :func:`event_to_json` wrote.

    Parameters
    ----------
    text
        One line of JSON.

    >>> event_from_json('{"epsilon": 0.1, "event": "PureDP"}')
    PureDP(epsilon=0.1)
    """
    try:
        return _from_dict(json.loads(text))
    except UnsupportedEvent:
        raise
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a recorded event ({type(error).__name__})") from error


def _from_dict(record: Any) -> Event:
    if not isinstance(record, dict):
        raise InvalidInput("not a recorded event: it is not a JSON object")
    fields = dict(record)
    kind = fields.pop("event")
    if kind == "Repeated":
        return Repeated(_from_dict(fields["of"]), fields["count"])
    if kind == "ForReplacement":
        return ForReplacement(_from_dict(fields["of"]))
    if kind == "ForAddRemove":
        return ForAddRemove(_from_dict(fields["of"]), fields.get("per_user", False))
    if kind == "BestOfTries":
        plans = fields.pop("candidates")
        candidates = tuple(tuple(_from_dict(each) for each in plan) for plan in plans)
        return BestOfTries(candidates=candidates, **fields)
    if kind not in _KINDS:
        raise UnsupportedEvent(f"{kind} is not an event this version knows")
    return _KINDS[kind](**fields)
