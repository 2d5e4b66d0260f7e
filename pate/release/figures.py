"""The figures of a release, from the events that are written down with it.

The same functions make ``guarantee.json`` and check it, on any machine: they read events, and
neither votes nor a ledger.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pate.accounting import (
    Conversion,
    Event,
    Guarantee,
    Ledger,
    Repeated,
    SmoothRelease,
    compose,
    event_from_json,
    event_to_json,
    log_moments,
)
from pate.accounting.events import tally
from pate.accounting.ledger.terms import Terms
from pate.accounting.moments import epsilon_at
from pate.errors import InvalidInput, PateError
from pate.metrics import wilson

_ROUNDING = 1e-9  # relative: what another machine's arithmetic may differ by
_KEYS = ("epsilon", "delta", "moment", "conversion")


def of_plan(events: Iterable[Event], *, delta: float, conversion: Conversion) -> Guarantee:
    """What events cost that were fixed before any vote was opened; the best λ may be used."""
    return compose(list(events)).guarantee(delta=delta, conversion=conversion)


def of_ledger(events: Iterable[Event], terms: Terms) -> Guarantee:
    """What may be published of all these charges together, under a ledger's terms.

    They are charged to a new ledger of these terms, and it is asked: no second way to add up.
    """
    budget = terms.budget
    with (
        tempfile.TemporaryDirectory(prefix="pate-ledger-") as folder,
        Ledger.open(
            Path(folder) / "ledger",
            budget=budget,
            mode=terms.mode,
            plan=terms.plan or None,
        ) as ledger,
    ):
        ledger.charge(events, release="all")
        return ledger.guarantee()


@contextmanager
def undamaged(file: Path) -> Iterator[None]:
    """What is not found in a file where it belongs is said of the file, in one sentence."""
    try:
        yield
    except PateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        raise InvalidInput(
            f"{file} is damaged; remove its folder and run the recipe again"
        ) from None


def written(events: Iterable[Event]) -> list[str]:
    """Events as they stand in ``guarantee.json``: counted, in an order of their own."""
    return [event_to_json(Repeated(event, count)) for event, count in tally(events).items()]


def read_events(texts: Sequence[str]) -> list[Event]:
    return [event_from_json(text) for text in texts]


def told(guarantee: Guarantee, neighbours: str) -> dict[str, Any]:
    """A guarantee as ``guarantee.json`` says it."""
    figures = guarantee.as_json()
    return {key: figures[key] for key in _KEYS} | {"neighbours": neighbours}


def terms_told(terms: Terms) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(terms.to_json())
    return record


def same(stated: Any, computed: Any) -> bool:
    """Whether two figures agree, but for rounding.

    >>> same(4.0, 4.0 + 1e-12), same(3.9, 4.0), same(None, 4.0)
    (True, False, False)
    """
    if isinstance(stated, (int, float)) and isinstance(computed, (int, float)):
        return math.isclose(stated, computed, rel_tol=_ROUNDING)
    return type(stated) is type(computed) and bool(stated == computed)


def differs(stated: Mapping[str, Any], computed: Guarantee) -> str | None:
    """How a stated guarantee differs from the one worked out; None where it does not."""
    figures = computed.as_json()
    for key in _KEYS:
        if not same(stated.get(key), figures[key]):
            return f"{key} is {_short(stated.get(key))}, and the events come to {figures[key]}"
    return None


def _short(value: Any) -> str:
    return str(value)[:40]


def covers(many: Iterable[Event], few: Iterable[Event]) -> bool:
    """Whether the first events hold all of the others, as often."""
    there = tally(many)
    return all(there.get(event, 0) >= count for event, count in tally(few).items())


def wrong_with_sanitised(figure: Mapping[str, Any], labels: Sequence[Event]) -> str | None:
    """What cannot be of a sanitised figure, from public numbers alone; None where all may be.

    Guarantees:
        The figure is min(noised cost, data-independent cost) + price at one order. So it lies
        between the price alone and the caps with the price, and says that price. One that was
        published without a price must be the events' own, which tells nothing of votes.
    """
    moment, delta = float(figure["moment"]), float(figure["delta"])
    conversion = Conversion(figure["conversion"])
    event = event_from_json(figure["event"])
    if not isinstance(event, SmoothRelease):
        return "its event is not the publication of a figure"
    at = np.array([moment])
    caps = float(compose(list(labels), at).values[0])
    price = float(log_moments(event, at)[0]) if figure["charged"] else 0.0

    def epsilon(log_moment: float) -> float:
        one = epsilon_at(at, np.array([log_moment]), delta=delta, conversion=conversion)
        return float(one[0])

    if not same(float(figure["price"]), price / moment):
        return f"its price is {figure['price']}, and the event comes to {price / moment}"
    least = epsilon(price) if figure["charged"] else 0.0
    most = epsilon(caps + price)
    stated = float(figure["epsilon"])
    if not (least * (1 - _ROUNDING) <= stated <= most * (1 + _ROUNDING)):
        return f"its ε is {stated}, and can lie between {least} and {most} only"
    return None


def wrong_with_share(share: Mapping[str, Any]) -> str | None:
    """What does not go together in a share of records with its 95 % interval; None where all does.

    Guarantees:
        The interval is that of Wilson 1927 for the share and the number of records.
    """
    records, accuracy = share["records"], share["accuracy"]
    if type(records) is not int or records < 1:
        return f"its number of records is {_short(records)}"
    right = round(accuracy * records)
    if not (0 <= right <= records and same(accuracy, right / records)):
        return f"its accuracy is {_short(accuracy)}, which is no share of {records} records"
    for name, bound in zip(("low", "high"), wilson(right, records), strict=True):
        if not same(share[name], bound):
            return f"its {name} is {_short(share[name])}, and the records come to {bound}"
    return None


def problems_of(statement: Mapping[str, Any]) -> list[str]:
    """Everything in a ``guarantee.json`` that does not follow from the events in it."""
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
        return [f"it cannot be worked out ({type(error).__name__}: {_short(error)})"]


def _problems(statement: Mapping[str, Any]) -> Iterable[str]:
    labels = read_events(statement["labels"])
    figure, stated, data = statement["sanitised"], statement["guarantee"], statement["data_set"]
    terms = Terms.from_json(json.dumps(data["terms"]))
    everything = read_events(data["events"])
    paid = list(labels)
    if figure is not None:
        event = event_from_json(figure["event"])
        paid += [event] if figure["charged"] else []
        wrong = wrong_with_sanitised(figure, labels)
        if wrong is not None:
            yield f"sanitised: {wrong}"
    if statement["counted"] == "plan":
        computed = of_plan(paid, delta=stated["delta"], conversion=Conversion(stated["conversion"]))
    elif statement["counted"] == "ledger":
        until = read_events(statement["events"])
        if not covers(until, paid) or not covers(everything, until):
            yield "its events are not among those of the ledger"
        computed = of_ledger(until, terms)
    else:
        yield f"it is counted by {_short(statement['counted'])}, which is not known"
        return
    wrong = differs(stated, computed)
    if wrong is not None:
        yield wrong
    if not covers(everything, paid):
        yield "the data set's events do not cover the release"
    wrong = differs(data["guarantee"], of_ledger(everything, terms))
    if wrong is not None:
        yield f"data_set: {wrong}"
