"""Studies in the file of a ledger: their charges and their plans.

A *study* is a set of releases whose results are looked at together (a sweep, a comparison). Its
cost at the best λ holds if all its costs were fixed before its first result. So its plan is
recorded in the ledger before the first of its charges: no file in a run's folder, and no second
process, can change later what was planned.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from pate._format import describe_neighbours, restate_protected
from pate.accounting.events import Event, event_from_json, event_to_json, relation_of, tally
from pate.accounting.guarantee import Neighbours

TABLES = """
CREATE TABLE IF NOT EXISTS studies (
    charge INTEGER NOT NULL REFERENCES charges (number),
    name TEXT NOT NULL,
    PRIMARY KEY (charge, name)
);
CREATE TABLE IF NOT EXISTS settings (
    charge INTEGER NOT NULL REFERENCES charges (number),
    digest TEXT NOT NULL,
    PRIMARY KEY (charge, digest)
);
CREATE TABLE IF NOT EXISTS plans (
    study TEXT PRIMARY KEY,
    protects TEXT NOT NULL,
    after INTEGER NOT NULL,
    releases TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """The most that a study will release, fixed before its first charge."""

    study: str
    protects: str  # the relation between data sets under which its costs hold, in words
    after: int  # the number of the last charge before the plan
    releases: tuple[tuple[Event, ...], ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of all planned releases."""
        return tuple(event for release in self.releases for event in release)

    def covers(self, charges: Iterable[tuple[int, Sequence[Event]]]) -> bool:
        """Return whether all these charges (number and events) were planned.

        Guarantees:
            The *costs* must have been fixed in advance: no charge is older than the plan, and
            together they are within its counts. What was computed under them may have been chosen
            as results came in (adaptive composition: Mironov 2017, Proposition 1; Abadi et al.
            2016, Theorem 2.1).
        """
        listed = list(charges)
        planned = tally(self.events)
        spent = tally(event for _, events in listed for event in events)
        return all(number > self.after for number, _ in listed) and all(
            count <= planned.get(event, 0) for event, count in spent.items()
        )


class StudyTables:
    """The tables of studies and settings, on one connection; writers hold a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    # --- writing ------------------------------------------------------------------------------

    def add(self, charge: int, study: str) -> None:
        """Record that a charge is part of a study."""
        self._connection.execute(
            "INSERT INTO studies VALUES (?, ?) ON CONFLICT (charge, name) DO NOTHING",
            (charge, study),
        )

    def add_settings(self, charge: int, digests: Iterable[str]) -> None:
        """Record the digests of the settings of a charge."""
        rows = [(charge, digest) for digest in sorted(set(digests))]
        self._connection.executemany("INSERT INTO settings VALUES (?, ?)", rows)

    def plan(
        self, study: str, releases: Iterable[Sequence[Event]], *, protects: str, begun: bool
    ) -> StudyPlan | None:
        """Record a plan, in place of an earlier one of which nothing was charged yet.

        Return the plan in force: the earlier one once something was charged; None without any.
        """
        charged = "SELECT 1 FROM studies WHERE name = ? LIMIT 1"
        if not begun and self._connection.execute(charged, (study,)).fetchone() is None:
            text = json.dumps([[event_to_json(event) for event in each] for each in releases])
            self._connection.execute(
                "INSERT OR REPLACE INTO plans "
                "SELECT ?, ?, COALESCE(MAX(number), 0), ? FROM charges",
                (study, protects, text),
            )
        return self.plans().get(study)

    # --- reading ------------------------------------------------------------------------------

    def by_charge(self, charge: int | None = None) -> dict[int, tuple[str, ...]]:
        """Return the studies of each charge (or of one), by its number, in order of entry."""
        found: dict[int, tuple[str, ...]] = {}
        for number, name in self._of("studies", "name", charge, order="rowid"):
            found[number] = (*found.get(number, ()), name)
        return found

    def settings(self, charge: int | None = None) -> dict[int, frozenset[str]]:
        """Return the digests of settings of each charge (or of one), by its number."""
        rows = self._of("settings", "digest", charge, order="charge")
        grouped = groupby(rows, key=lambda row: row[0])
        return {number: frozenset(digest for _, digest in each) for number, each in grouped}

    def with_settings(self, digests: Iterable[str], *, but: str) -> str | None:
        """Return a release other than ``but`` that was charged with one of these digests."""
        for digest in digests:
            row = self._connection.execute(
                "SELECT release FROM settings JOIN charges ON charge = number "
                "WHERE digest = ? AND release != ? LIMIT 1",
                (digest, but),
            ).fetchone()
            if row is not None:
                return str(row[0])
        return None

    def _of(
        self, table: str, column: str, charge: int | None, *, order: str
    ) -> list[tuple[int, str]]:
        where, values = ("", ()) if charge is None else ("WHERE charge = ?", (charge,))
        return self._connection.execute(
            f"SELECT charge, {column} FROM {table} {where} ORDER BY {order}", values
        ).fetchall()

    def plans(self) -> dict[str, StudyPlan]:
        """Return the plans, by the name of their study."""
        rows = self._connection.execute("SELECT study, protects, after, releases FROM plans")
        plans = {}
        for study, protects, after, text in rows.fetchall():
            releases = tuple(tuple(map(event_from_json, each)) for each in json.loads(text))
            events = tally(event for each in releases for event in each)
            votes = any(event.neighbours is Neighbours.REPLACE_ONE for event in events)
            if not votes and relation_of(events) is Neighbours.ZERO_OUT:  # early ones claimed more
                protects = describe_neighbours(Neighbours.ZERO_OUT)
            plans[study] = StudyPlan(
                study=study,
                protects=restate_protected(protects),
                after=after,
                releases=releases,
            )
        return plans
