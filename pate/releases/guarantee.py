"""The guarantee of a release, from the events that are recorded in it.

The same functions write ``guarantee.json`` and check it, on any machine: they read events, and
neither votes nor a ledger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from pate._format import describe_neighbours
from pate.accounting import (
    Accountant,
    Analysis,
    Conversion,
    Event,
    Guarantee,
    GumbelNoisyMaxAnswer,
    Neighbours,
    Repeated,
    SmoothRelease,
    compose,
    event_from_json,
    event_to_json,
    guarantee_of_plan,
    log_moments,
)
from pate.accounting.bounded_range import bounded_range_epsilon
from pate.accounting.calibrate import DpsgdAccountant, Method
from pate.accounting.events import is_of_votes, relation_of, tally
from pate.accounting.ledger.data_set import Coverage, between_records
from pate.accounting.ledger.running_total import Total, pure_sum, states_records
from pate.accounting.ledger.terms import Basis, Mode, Terms, agree
from pate.accounting.loss_distributions import PLD_SPREAD
from pate.accounting.moments import epsilon_at, odometer_epsilon
from pate.errors import BudgetExceeded, InvalidInput, PateError

_ROUNDING = 1e-9  # relative: what another machine's arithmetic may differ by
_OTHER_GRIDS = 0.02  # relative: by how much recursions on other grids were above this one
# A distribution of losses takes memory and time in proportion to these.
_LARGEST_LOSS, _MOST_STEPS = 1000.0, 10_000_000
_OF_USERS = (Neighbours.USER_ADD_REMOVE, Neighbours.USER_ZERO_OUT)
_KEYS = ("epsilon", "delta", "moment", "conversion")


def restated(record: Mapping[str, Any], events: Iterable[Event]) -> Guarantee:
    """Return the guarantee of a plan, by the accountant, bounds and conversion of a record.

    Guarantees:
        The recursion for Gumbel answers was once done on other grids. An ε of one is kept if a
        finer grid than any of them proves a smaller one of these events.
    """
    found = guarantee_of_plan(
        events := list(events),
        delta=record["delta"],
        conversion=Conversion(record["conversion"] or Conversion.IMPROVED),
        analysis=analysis_of(record),
        accountant=accountant_of(record),
    )
    stated = record.get("epsilon")
    if found.accountant is not Accountant.ADAPTIVE_RANGE or agrees(stated, found.epsilon):
        return found
    if isinstance(stated, float) and abs(stated - found.epsilon) < _OTHER_GRIDS * found.epsilon:
        ((event, count),) = tally(events).items()
        assert isinstance(event, GumbelNoisyMaxAnswer)  # the accountant covers nothing else
        least = bounded_range_epsilon(2 / event.scale, count=count, delta=found.delta, fineness=4.0)
        found = replace(found, epsilon=stated) if least <= stated else found
    return found


def accountant_of(record: Mapping[str, Any]) -> Accountant:
    """Return the accountant behind a recorded guarantee: log-moments if it does not say."""
    return Accountant(record.get("accountant") or Accountant.MOMENTS)


def analysis_of(record: Mapping[str, Any]) -> Analysis:
    """Return the bounds behind a recorded guarantee: the published ones if it does not say."""
    return Analysis(record.get("analysis") or Analysis.PUBLISHED)


def guarantee_of_ledger(
    events: Iterable[Event], terms: Terms, *, analysis: Analysis = Analysis.TIGHT
) -> Guarantee:
    """Return what may be published of charges together, under the terms of their ledger.

    Refuses events that the terms do not allow, and terms with which no ledger could be opened.

    Guarantees:
        As :meth:`pate.accounting.Ledger.guarantee`, for a ledger of these terms that was charged
        for these events and no others.
    """
    counts = tally(events)
    if not counts:
        raise InvalidInput("a charge needs at least one event")
    terms = agree(terms.budget, terms.mode, terms.plan or None, analysis=analysis)
    budget = terms.budget
    assert budget.moment is not None
    assert budget.conversion is not None
    spent = _log_moment(counts, budget.moment, analysis)
    neighbours = Neighbours.AS_STATED
    for event in counts:
        if not (budget.neighbours is Neighbours.REPLACE_ONE and states_records(event)):
            neighbours = neighbours.combine(event.neighbours)
    neighbours = budget.neighbours.combine(neighbours)

    least = Total(pure=pure_sum(counts)).least

    def epsilon_of(log_moment: float) -> float:
        at, total = np.array([budget.moment]), np.array([log_moment])
        assert budget.conversion is not None
        return float(epsilon_at(at, total, delta=budget.delta, conversion=budget.conversion)[0])

    if terms.basis is Basis.PLAN:
        caps = tally(terms.plan)
        for event, count in counts.items():
            if count > caps.get(event, 0):
                raise BudgetExceeded(needed=epsilon_of(spent), spent=0.0, budget=budget.epsilon)
        planned = compose(terms.plan, [budget.moment], analysis=analysis)
        neighbours = budget.neighbours.combine(planned.neighbours)
        epsilon = epsilon_of(float(planned.values[0]))
    elif least(epsilon_of(spent)) > budget.epsilon:
        raise BudgetExceeded(needed=epsilon_of(spent), spent=0.0, budget=budget.epsilon)
    elif terms.mode is Mode.FILTER:
        epsilon = budget.epsilon
    else:
        epsilon = least(
            odometer_epsilon(
                spent, moment=budget.moment, delta=budget.delta, conversion=budget.conversion
            )
        )
    return Guarantee(
        epsilon=epsilon,
        delta=budget.delta,
        moment=budget.moment,
        neighbours=neighbours,
        conversion=budget.conversion,
        analysis=analysis if any(map(is_of_votes, counts)) else Analysis.PUBLISHED,
    )


def data_set_relation(
    events: Sequence[Event],
    terms: Terms,
    *,
    records: Collection[Neighbours | None],
    covers: Coverage | None,
) -> Neighbours:
    """Return the relation between data sets under which the charges of a ledger of votes hold.

    ``records`` are the relations noted with the charges; they count where record votes are among
    these, as in :meth:`pate.accounting.Ledger.guarantee`.
    """
    if not any(map(states_records, tally(events))):
        return terms.budget.neighbours
    relation = terms.budget.neighbours
    if relation is Neighbours.REPLACE_ONE:
        relation = between_records(records)
    else:
        relation = relation.combine(relation_of(events))
    mixed = covers is Coverage.MIXED and relation.of_users  # users of two columns
    return relation.combine(Neighbours.LONE_RECORD) if mixed else relation


def _log_moment(counts: Mapping[Event, int], moment: float, analysis: Analysis) -> float:
    """Return the sum of all events at one λ, exact but for its last rounding, as a ledger does."""
    parts = [
        float(compose([event], [moment], analysis=analysis).values[0]) * count
        for event, count in counts.items()
    ]
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
    return {key: record[key] for key in (*_KEYS, "analysis", "accountant") if key in record} | {
        "neighbours": neighbours
    }


def agrees(stated: Any, computed: Any) -> bool:
    """Return whether two values are equal, but for rounding.

    >>> agrees(4.0, 4.0 + 1e-12), agrees(3.9, 4.0), agrees(None, 4.0)
    (True, False, False)
    """
    if isinstance(stated, (int, float)) and isinstance(computed, (int, float)):
        return math.isclose(stated, computed, rel_tol=_ROUNDING)
    return type(stated) is type(computed) and bool(stated == computed)


def difference(
    stated: Mapping[str, Any], computed: Guarantee, *, margin: float = 0.0
) -> str | None:
    """Return how a stated guarantee differs from the computed one; None if it does not.

    ``margin`` is what two machines' ε may differ by (:func:`accounting_margin`).
    """
    record = computed.as_json()
    for key in _KEYS:
        near = agrees(stated.get(key), record[key])
        if key == "epsilon" and isinstance(stated.get(key), float):
            near = near or abs(stated[key] - computed.epsilon) <= margin
        if not near:
            return f"{key} is {_short(stated.get(key))}, and the events come to {record[key]}"
    return None


def accounting_margin(accountant: Accountant) -> float:
    """Return what the ε of an accountant may differ by from one processor to another.

    It is half of what was added to the ε for that: one that is accepted still covers the exact ε.
    """
    return PLD_SPREAD if accountant is Accountant.PLD else 0.0


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
    # What is sanitised is capped by the published bounds, for which its sensitivity is proved.
    caps = float(compose(list(labels), at, analysis=Analysis.PUBLISHED).values[0])
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
    if statement.get("method") == "dpsgd":
        yield from _training_problems(statement)
        return
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
    margin = 0.0
    if statement["counted"] == "plan":
        computed, margin = restated(stated, paid), accounting_margin(accountant_of(stated))
    elif statement["counted"] == "ledger":
        until = read_events(statement["events"])
        if not covers(until, paid) or not covers(everything, until):
            yield "its events are not among those of the ledger"
        computed = guarantee_of_ledger(until, terms, analysis=analysis_of(stated))
    else:
        yield f"it is counted by {_short(statement['counted'])}, which is unknown"
        return
    problem = difference(stated, computed, margin=margin)
    if problem is not None:
        yield problem
    yield from _data_set_problems(data, paid)
    yield from _relation_problems(data, everything, terms)


def _relation_problems(
    data: Mapping[str, Any], events: Sequence[Event], terms: Terms
) -> Iterator[str]:
    """Check the relation under which the total of a data set with record votes holds."""
    tables = {event.neighbours for event in tally(events) if states_records(event)}
    if not tables:
        return  # earlier versions state the ledger's own
    noted = {None if each is None else Neighbours(each) for each in data.get("records") or ()}
    if not tables <= noted or (noted != tables and all(map(states_records, tally(events)))):
        yield "data_set: its charges are stated for other data sets than its events"
    covers = None if data.get("covers") is None else Coverage(data["covers"])
    if Neighbours.USER_ADD_REMOVE not in tables and covers is Coverage.USER:
        yield "data_set: it covers users, and its events do not"
    whole = data_set_relation(events, terms, records=noted, covers=covers)
    if data["guarantee"]["neighbours"] != whole.value:
        yield f"data_set: it is not for {whole.value}"


def _training_problems(statement: Mapping[str, Any]) -> Iterator[str]:
    """Check the statement of a model trained by DP-SGD."""
    events = read_events(statement["events"])
    stated, data = statement["guarantee"], statement["data_set"]
    method = Method(statement["accountant"])
    rough = compose(events).guarantee(delta=stated["delta"])
    if rough.epsilon > _LARGEST_LOSS or sum(tally(events).values()) > _MOST_STEPS:
        yield "it has more steps, or less noise, than any release of DP-SGD"
        return
    computed, margin = trained_guarantee(stated, events, method=method)
    problem = difference(stated, computed, margin=margin)
    if problem is not None:
        yield problem
    relation = relation_of(events)
    if stated["neighbours"] != relation.value:
        yield f"it is for {_short(stated['neighbours'])}, and its events are for {relation.value}"
    if statement["protects"] != describe_neighbours(relation):
        yield "it protects something else than its events do"
    yield from _data_set_problems(data, events)
    terms = Terms.from_json(json.dumps(data["terms"]))
    whole = guarantee_of_ledger(read_events(data["events"]), terms).neighbours
    covered = None if data.get("covers") is None else Coverage(data["covers"])
    if covered is Coverage.USER and whole not in _OF_USERS:
        yield "data_set: it covers users, and its events do not"
    elif covered is Coverage.MIXED and whole in _OF_USERS:  # those of two columns
        whole = whole.combine(Neighbours.LONE_RECORD)
    if data["guarantee"]["neighbours"] != whole.value:
        yield f"data_set: it is not for {whole.value}"


def trained_guarantee(
    stated: Mapping[str, Any], events: Sequence[Event], *, method: Method
) -> tuple[Guarantee, float]:
    """Return the guarantee of a training as its method gives it, and what processors differ by.

    Of several accountants the one that is stated is used: another processor may find another one
    to be the smaller by a hair.
    """
    if method is Method.TIGHTEST:
        return restated(stated, events), accounting_margin(accountant_of(stated))
    computed = DpsgdAccountant(delta=stated["delta"], method=method).guarantee(list(events))
    return computed, accounting_margin(computed.accountant)


def _data_set_problems(data: Mapping[str, Any], paid: Sequence[Event]) -> Iterator[str]:
    """Check the total of a data set, which covers what was paid for a release."""
    everything, terms = read_events(data["events"]), Terms.from_json(json.dumps(data["terms"]))
    if not covers(everything, paid):
        yield "the data set's events do not cover the release"
    whole = guarantee_of_ledger(everything, terms, analysis=analysis_of(data["guarantee"]))
    problem = difference(data["guarantee"], whole)
    if problem is not None:
        yield f"data_set: {problem}"
