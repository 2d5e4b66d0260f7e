"""The running total of a ledger: its log-moment at the fixed λ, kept with every charge.

Adding up all charges for each new one takes seconds once there are thousands. So the file also
holds each distinct event with its count and cost, and their exact sum. The charges remain the
record: on opening, counts and sum are checked against them.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from importlib.resources import files

from pate.accounting.composition import pure_epsilon, rounded_up
from pate.accounting.events import (
    Event,
    ForAddRemove,
    Repeated,
    event_from_json,
    event_to_json,
    tally,
)
from pate.accounting.guarantee import Neighbours
from pate.accounting.ledger.terms import Terms
from pate.accounting.moments import compose
from pate.errors import InvalidInput

_OF_RECORDS = (Neighbours.ADD_REMOVE, Neighbours.USER_ADD_REMOVE)

TABLES = """
CREATE TABLE totals (
    event TEXT PRIMARY KEY,
    count INTEGER NOT NULL,
    cost REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE running (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    formulas TEXT NOT NULL,
    total TEXT NOT NULL,
    neighbours TEXT NOT NULL,
    records TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The sum of all charges at the ledger's λ."""

    exact: Fraction | None = Fraction(0)  # None: unbounded
    neighbours: Neighbours = Neighbours.AS_STATED  # of the events
    records: frozenset[Neighbours | None] = frozenset()  # of the charges; None: not recorded
    pure: Fraction | None = Fraction(0)  # Σε where all are pure tables; None: there are others
    tables: bool = False  # releases about records are among them, in a ledger of votes

    @property
    def log_moment(self) -> float:
        return math.inf if self.exact is None else float(self.exact)

    def least(self, epsilon: float) -> float:
        """Return the ε of the log-moment, or the sum of pure costs where that is smaller.

        Guarantees:
            Whatever was chosen by answers, the privacy loss of (ε_i, 0)-DP releases is at most Σε_i
            (Dwork et al. 2006; Rogers et al. 2016 for a filter). So wherever the sum is taken, the
            loss does not exceed it at all, and elsewhere the log-moment's bound holds.
        """
        return epsilon if self.pure is None else min(epsilon, rounded_up(self.pure))


def pure_cost(event: Event) -> Fraction | None:
    """Return the ε of a table that is (ε, 0)-DP; None of other events.

    Answers of teachers are added up by log-moments alone, as in ledgers of earlier versions.
    """
    epsilon = pure_epsilon(event) if isinstance(event, ForAddRemove) else None
    return None if epsilon is None else Fraction(epsilon)


def pure_sum(counts: Mapping[Event, int]) -> Fraction | None:
    """Return Σε of tables; None if there are other events."""
    parts = [(pure_cost(event), count) for event, count in counts.items()]
    if any(cost is None for cost, _ in parts):
        return None
    return sum((cost * count for cost, count in parts if cost is not None), Fraction(0))


def states_records(event: Event) -> bool:
    """Return whether an event states a relation between records: one, or a user's, more or less."""
    return event.neighbours in _OF_RECORDS


@cache
def formulas() -> str:
    """Return a digest of the code that computes costs: sums of other code are not reused."""
    digest = hashlib.sha256()
    for package in ("pate.accounting", "pate.accounting.ledger"):
        for file in sorted(files(package).iterdir(), key=lambda each: each.name):
            if file.name.endswith((".py", ".json")):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


class RunningTotal:
    """The tables of the total, on one connection; writers hold a transaction."""

    def __init__(self, connection: sqlite3.Connection, terms: Terms) -> None:
        self._connection, self._moment = connection, terms.moment
        self._of_votes = terms.budget.neighbours is Neighbours.REPLACE_ONE

    # --- reading ------------------------------------------------------------------------------

    def read(self) -> Total:
        """Return the total of all charges; added up afresh if other code recorded it."""
        counts = self.counts()
        tables = any(map(self._states_records, counts))
        return replace(self._row() or self._added_up()[0], pure=pure_sum(counts), tables=tables)

    def counts(self) -> dict[Event, int]:
        """Return how often each event was charged."""
        rows = self._connection.execute("SELECT event, SUM(count) FROM entries GROUP BY event")
        return tally(Repeated(event_from_json(text), count) for text, count in rows.fetchall())

    def has_votes(self) -> bool:
        """Return whether answers or checks of votes were charged."""
        where = "event LIKE ? OR event LIKE ?"  # also those inside of other events
        ask = f"SELECT EXISTS (SELECT 1 FROM entries WHERE {where})"
        kinds = ("%NoisyMaxAnswer%", "%ThresholdCheck%")
        return bool(self._connection.execute(ask, kinds).fetchone()[0])

    def plus(
        self, before: Total, counts: Mapping[Event, int], *, records: Neighbours | None = None
    ) -> Total:
        """Return the total with these events added; write nothing."""
        exact, neighbours = before.exact, before.neighbours
        for event, count in counts.items():
            known, cost = self._known(event)
            if self._states_records(event) and records is not event.neighbours:
                raise InvalidInput(
                    f"{event_to_json(event)} holds for {event.neighbours.value} neighbours: charge "
                    f"it to a ledger of votes with records={str(event.neighbours)!r}"
                )
            neighbours = neighbours.combine(self._relation(event))
            exact = _sum(exact, cost * (known + count), -cost * known if known else 0.0)
        more = pure_sum(counts)
        return Total(
            exact=exact,
            neighbours=neighbours,
            records=before.records | frozenset([records]),
            pure=None if before.pure is None or more is None else before.pure + more,
            tables=before.tables or any(map(self._states_records, counts)),
        )

    def by_relation(
        self, counts: Mapping[Event, int], records: Neighbours | None
    ) -> dict[Neighbours | None, dict[Event, int]]:
        """Return the events of several charges by the relation that each is charged with.

        ``records`` is that of events that state none: votes of teachers, or steps.
        """
        parts: dict[Neighbours | None, dict[Event, int]] = {}
        for event, count in counts.items():
            relation = event.neighbours if self._states_records(event) else records
            parts.setdefault(relation, {})[event] = count
        return parts

    def is_current(self) -> bool:
        """Return whether this version of the code recorded the sum."""
        return self._row() is not None

    def agrees(self) -> bool:
        """Return whether counts and sum match the charges; costs are not computed again."""
        ask = self._connection.execute
        rows = ask(
            "SELECT charged.count, totals.count, cost FROM "
            "(SELECT event, SUM(count) AS count FROM entries GROUP BY event) AS charged "
            "LEFT JOIN totals USING (event)"
        ).fetchall()
        (kinds,) = ask("SELECT COUNT(*) FROM totals").fetchone()
        noted = {text for (text,) in ask("SELECT DISTINCT records FROM charges")}
        kept = self._row()
        return (
            kept is not None
            and kinds == len(rows)
            and all(charged == count for charged, count, _ in rows)
            and noted == {None if each is None else each.value for each in kept.records}
            and math.fsum(count * cost for count, _, cost in rows) == kept.log_moment
        )

    # --- writing ------------------------------------------------------------------------------

    def add(self, counts: Mapping[Event, int], after: Total) -> None:
        """Record the events of a new charge, and ``after``, the total with it."""
        rows = [(event_to_json(event), count, self._known(event)[1])
                for event, count in counts.items()]  # fmt: skip
        self._connection.executemany(
            "INSERT INTO totals VALUES (?, ?, ?) "
            "ON CONFLICT (event) DO UPDATE SET count = count + excluded.count",
            rows,
        )
        self._keep(after)

    def rebuild(self) -> None:
        """Add everything up again, from the charges."""
        total, rows = self._added_up()
        self._connection.execute("DELETE FROM totals")
        self._connection.executemany("INSERT INTO totals VALUES (?, ?, ?)", rows)
        self._keep(total)

    # --- inside -------------------------------------------------------------------------------

    def _row(self) -> Total | None:
        row = self._connection.execute(
            "SELECT formulas, total, neighbours, records FROM running"
        ).fetchone()
        if row is None or row[0] != formulas():
            return None
        noted = json.loads(row[3])
        return Total(
            exact=None if row[1] == "inf" else Fraction(row[1]),
            neighbours=Neighbours(row[2]),
            records=frozenset(None if each is None else Neighbours(each) for each in noted),
        )

    def _keep(self, total: Total) -> None:
        text = "inf" if total.exact is None else str(total.exact)
        noted = sorted((each for each in total.records), key=lambda each: each or "")
        self._connection.execute(
            "INSERT OR REPLACE INTO running VALUES (1, ?, ?, ?, ?)",
            (formulas(), text, total.neighbours, json.dumps(noted)),
        )

    def _states_records(self, event: Event) -> bool:
        """Return whether an event of a ledger of votes is about records, not about teachers."""
        return self._of_votes and states_records(event)

    def _relation(self, event: Event) -> Neighbours:
        """Return the relation that an event adds to that of the ledger.

        Votes of teachers hold where one teacher changes, and their charge states between which data
        sets one does. A charge of record votes states the same of itself: it adds no other.
        """
        return Neighbours.AS_STATED if self._states_records(event) else event.neighbours

    def _known(self, event: Event) -> tuple[int, float]:
        """Return how often an event was charged before, and what it costs once."""
        row = self._connection.execute(
            "SELECT count, cost FROM totals WHERE event = ?", (event_to_json(event),)
        ).fetchone()
        return (0, self._cost(event)) if row is None else row

    def _cost(self, event: Event) -> float:
        return float(compose([event], [self._moment]).values[0])

    def _added_up(self) -> tuple[Total, list[tuple[str, int, float]]]:
        found = self._connection.execute(
            "SELECT event, SUM(count) FROM entries GROUP BY event"
        ).fetchall()
        exact, neighbours, rows = Total().exact, Neighbours.AS_STATED, []
        for text, count in found:
            event = event_from_json(text)
            cost = self._cost(event)
            neighbours = neighbours.combine(self._relation(event))
            exact = _sum(exact, cost * count)
            rows.append((text, count, cost))
        noted = self._connection.execute("SELECT DISTINCT records FROM charges").fetchall()
        records = frozenset(None if text is None else Neighbours(text) for (text,) in noted)
        return Total(exact=exact, neighbours=neighbours, records=records), rows


def _sum(exact: Fraction | None, *parts: float) -> Fraction | None:
    if exact is None or not all(map(math.isfinite, parts)):
        return None
    return exact + sum(map(Fraction, parts))
