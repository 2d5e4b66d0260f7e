"""The guarantee of a release, from the events that are recorded in it.

The same functions write ``guarantee.json`` and check it, on any machine: they read events, and
neither votes nor a ledger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from pate.accounting import (
    Conversion,
    Event,
    Guarantee,
    Neighbours,
    Repeated,
    SmoothRelease,
    compose,
    event_from_json,
    event_to_json,
    log_moments,
)
from pate.accounting.events import tally
from pate.accounting.ledger.terms import Basis, Mode, Terms, agree
from pate.accounting.moments import epsilon_at, odometer_epsilon
from pate.errors import BudgetExceeded, InvalidInput, PateError

_ROUNDING = 1e-9  # relative: what another machine's arithmetic may differ by
_KEYS = ("epsilon", "delta", "moment", "conversion")


def guarantee_of_plan(
    events: Iterable[Event], *, delta: float, conversion: Conversion
) -> Guarantee:
    """Return the cost of events fixed before any vote was opened; the best λ may be used."""
    return compose(list(events)).guarantee(delta=delta, conversion=conversion)


def guarantee_of_ledger(events: Iterable[Event], terms: Terms) -> Guarantee:
    """Return what may be published of charges together, under the terms of their ledger.

    Refuses events that the terms do not allow, and terms with which no ledger could be opened.

    Guarantees:
        As :meth:`pate.accounting.Ledger.guarantee`, for a ledger of these terms that was charged
        for these events and no others.
    """
    counts = tally(events)
    if not counts:
        raise InvalidInput("a charge needs at least one event")
    terms = agree(terms.budget, terms.mode, terms.plan or None)
    budget = terms.budget
    assert budget.moment is not None
    assert budget.conversion is not None
    spent = _log_moment(counts, budget.moment)
    neighbours = Neighbours.AS_STATED
    for event in counts:
        neighbours = neighbours.combine(event.neighbours)
    neighbours = budget.neighbours.combine(neighbours)

    def epsilon_of(log_moment: float) -> float:
        at, total = np.array([budget.moment]), np.array([log_moment])
        assert budget.conversion is not None
        return float(epsilon_at(at, total, delta=budget.delta, conversion=budget.conversion)[0])

    if terms.basis is Basis.PLAN:
        caps = tally(terms.plan)
        for event, count in counts.items():
            if count > caps.get(event, 0):
                raise BudgetExceeded(needed=epsilon_of(spent), spent=0.0, budget=budget.epsilon)
        planned = compose(terms.plan, [budget.moment])
        neighbours = budget.neighbours.combine(planned.neighbours)
        epsilon = epsilon_of(float(planned.values[0]))
    elif epsilon_of(spent) > budget.epsilon:
        raise BudgetExceeded(needed=epsilon_of(spent), spent=0.0, budget=budget.epsilon)
    elif terms.mode is Mode.FILTER:
        epsilon = budget.epsilon
    else:
        epsilon = odometer_epsilon(
            spent, moment=budget.moment, delta=budget.delta, conversion=budget.conversion
        )
    return Guarantee(
        epsilon=epsilon,
        delta=budget.delta,
        moment=budget.moment,
        neighbours=neighbours,
        conversion=budget.conversion,
    )


def _log_moment(counts: Mapping[Event, int], moment: float) -> float:
    """Return the sum of all events at one λ, exact but for its last rounding, as a ledger does."""
    parts = [float(compose([event], [moment]).values[0]) * count for event, count in counts.items()]
    if not all(map(math.isfinite, parts)):
        return math.inf
    return float(sum(map(Fraction, parts), Fraction(0)))


def write_events(events: Iterable[Event]) -> list[str]:
    """Return events as they are in ``guarantee.json``: counted, in a fixed order."""
    return [event_to_json(Repeated(event, count)) for event, count in tally(events).items()]


def read_events(texts: Sequence[str]) -> list[Event]:
    """Return the events of a list in ``guarantee.json``."""
    return [event_from_json(text) for text in texts]


def guarantee_record(guarantee: Guarantee, neighbours: str) -> dict[str, Any]:
    """Return a guarantee as it is in ``guarantee.json``."""
    record = guarantee.as_json()
    return {key: record[key] for key in _KEYS} | {"neighbours": neighbours}


def agrees(stated: Any, computed: Any) -> bool:
    """Return whether two values are equal, but for rounding.

    >>> agrees(4.0, 4.0 + 1e-12), agrees(3.9, 4.0), agrees(None, 4.0)
    (True, False, False)
    """
    if isinstance(stated, (int, float)) and isinstance(computed, (int, float)):
        return math.isclose(stated, computed, rel_tol=_ROUNDING)
    return type(stated) is type(computed) and bool(stated == computed)


def difference(stated: Mapping[str, Any], computed: Guarantee) -> str | None:
    """Return how a stated guarantee differs from the computed one; None if it does not."""
    record = computed.as_json()
    for key in _KEYS:
        if not agrees(stated.get(key), record[key]):
            return f"{key} is {_short(stated.get(key))}, and the events come to {record[key]}"
    return None


def _short(value: Any) -> str:
    return str(value)[:40]


def covers(many: Iterable[Event], few: Iterable[Event]) -> bool:
    """Return whether the first events include all of the others, as often."""
    there = tally(many)
    return all(there.get(event, 0) >= count for event, count in tally(few).items())


def sanitised_problem(sanitised: Mapping[str, Any], labels: Sequence[Event]) -> str | None:
    """Return what is impossible in a sanitised ε, from public numbers alone; None if nothing is.

    Guarantees:
        The published value is min(noised cost, data-independent cost) + price at one order. So it
        lies between the price alone and the caps with the price, and states that price. One that
        was published without a price must follow from the events, which reveals nothing of votes.
    """
    moment, delta = float(sanitised["moment"]), float(sanitised["delta"])
    conversion = Conversion(sanitised["conversion"])
    event = event_from_json(sanitised["event"])
    if not isinstance(event, SmoothRelease):
        return "its event is not the publication of a sanitised ε"
    at = np.array([moment])
    caps = float(compose(list(labels), at).values[0])
    price = float(log_moments(event, at)[0]) if sanitised["charged"] else 0.0

    def epsilon(log_moment: float) -> float:
        one = epsilon_at(at, np.array([log_moment]), delta=delta, conversion=conversion)
        return float(one[0])

    if not agrees(float(sanitised["price"]), price / moment):
        return f"its price is {sanitised['price']}, and the event comes to {price / moment}"
    least = epsilon(price) if sanitised["charged"] else 0.0
    most = epsilon(caps + price)
    stated = float(sanitised["epsilon"])
    if not (least * (1 - _ROUNDING) <= stated <= most * (1 + _ROUNDING)):
        return f"its ε is {stated}, and can lie between {least} and {most} only"
    return None


def statement_problems(statement: Mapping[str, Any]) -> list[str]:
    """Return everything in a ``guarantee.json`` that does not follow from the events in it."""
    try:
        return list(_problems(statement))
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        MemoryError,
        PateError,
    ) as error:
        return [f"it cannot be computed ({type(error).__name__}: {_short(error)})"]


def _problems(statement: Mapping[str, Any]) -> Iterator[str]:
    labels = read_events(statement["labels"])
    sanitised, stated, data = (statement[key] for key in ("sanitised", "guarantee", "data_set"))
    terms = Terms.from_json(json.dumps(data["terms"]))
    everything = read_events(data["events"])
    paid = list(labels)
    if sanitised is not None:
        event = event_from_json(sanitised["event"])
        paid += [event] if sanitised["charged"] else []
        problem = sanitised_problem(sanitised, labels)
        if problem is not None:
            yield f"sanitised: {problem}"
    if statement["counted"] == "plan":
        conversion = Conversion(stated["conversion"])
        computed = guarantee_of_plan(paid, delta=stated["delta"], conversion=conversion)
    elif statement["counted"] == "ledger":
        until = read_events(statement["events"])
        if not covers(until, paid) or not covers(everything, until):
            yield "its events are not among those of the ledger"
        computed = guarantee_of_ledger(until, terms)
    else:
        yield f"it is counted by {_short(statement['counted'])}, which is unknown"
        return
    problem = difference(stated, computed)
    if problem is not None:
        yield problem
    if not covers(everything, paid):
        yield "the data set's events do not cover the release"
    problem = difference(data["guarantee"], guarantee_of_ledger(everything, terms))
    if problem is not None:
        yield f"data_set: {problem}"
