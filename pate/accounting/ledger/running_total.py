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
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files

from pate.accounting.events import Event, Repeated, event_from_json, event_to_json, tally
from pate.accounting.guarantee import Neighbours
from pate.accounting.moments import compose

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

    @property
    def log_moment(self) -> float:
        return math.inf if self.exact is None else float(self.exact)


@cache
def formulas() -> str:
    """Return a digest of the code that computes costs: sums of other code are not reused."""
    digest = hashlib.sha256()
    for package in ("pate.accounting", "pate.accounting.ledger"):
        for file in sorted(files(package).iterdir(), key=lambda each: each.name):
            if file.name.endswith(".py"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


class RunningTotal:
    """The tables of the total, on one connection; writers hold a transaction."""

    def __init__(self, connection: sqlite3.Connection, moment: float) -> None:
        self._connection, self._moment = connection, moment

    # --- reading ------------------------------------------------------------------------------

    def read(self) -> Total:
        """Return the total of all charges; added up afresh if other code recorded it."""
        return self._row() or self._added_up()[0]

    def counts(self) -> dict[Event, int]:
        """Return how often each event was charged."""
        rows = self._connection.execute("SELECT event, SUM(count) FROM entries GROUP BY event")
        return tally(Repeated(event_from_json(text), count) for text, count in rows.fetchall())

    def plus(
        self, before: Total, counts: Mapping[Event, int], *, records: Neighbours | None = None
    ) -> Total:
        """Return the total with these events added; write nothing."""
        exact, neighbours = before.exact, before.neighbours
        for event, count in counts.items():
            known, cost = self._known(event)
            neighbours = neighbours.combine(event.neighbours)
            exact = _sum(exact, cost * (known + count), -cost * known if known else 0.0)
        return Total(
            exact=exact, neighbours=neighbours, records=before.records | frozenset([records])
        )

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
            neighbours = neighbours.combine(event.neighbours)
            exact = _sum(exact, cost * count)
            rows.append((text, count, cost))
        noted = self._connection.execute("SELECT DISTINCT records FROM charges").fetchall()
        records = frozenset(None if text is None else Neighbours(text) for (text,) in noted)
        return Total(exact=exact, neighbours=neighbours, records=records), rows


def _sum(exact: Fraction | None, *parts: float) -> Fraction | None:
    if exact is None or not all(map(math.isfinite, parts)):
        return None
    return exact + sum(map(Fraction, parts))
