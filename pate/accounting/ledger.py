"""Durable spending: one SQLite file for each private data set.

The ledger belongs to the data, not to a run: deleting a run refunds nothing. It holds events
(public parameters and counts), never a vote.

Two ways to compose, and no mixing of them:

* **fixed moment** (default): charges may be chosen as answers come in. They are added up at one λ
  that was fixed when the ledger was opened. Feldman & Zrnic 2021, Theorem 4.3: stopping before the
  sum at a fixed Rényi order passes a bound keeps that bound, however adaptively charges come.
* **plan**: the most that will ever be asked was fixed in advance, as caps on events. The best λ for
  the caps may then be used, because it does not depend on any answer. Charges draw the caps down.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from pate.accounting import ledger_file
from pate.accounting.events import Event, Repeated, event_from_json, event_to_json, tally
from pate.accounting.guarantee import Guarantee
from pate.accounting.moments import LogMoments, compose, epsilon_at
from pate.accounting.odometer import odometer_epsilon
from pate.accounting.study_book import StudyBook, StudyPlan
from pate.accounting.terms import Basis, Mode, Terms, agree
from pate.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
    MixedComposition,
    PateError,
    ReleaseConflict,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One thing that was paid for."""

    number: int
    release: str
    basis: Basis
    events: tuple[Event, ...]
    charged_at: str
    studies: tuple[str, ...] = ()  # the sets of releases it is looked at with
    settings: frozenset[str] = frozenset()  # digests of what was, or could have been, asked for


class Ledger:
    """Opens with :meth:`open`; a context manager; one connection, used by one thread.

    >>> import tempfile
    >>> from pate.accounting import Guarantee, LaplaceNoisyMaxAnswer, Repeated
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Ledger.open(folder.name + "/ledger.db", budget=Guarantee(epsilon=4, delta=1e-5)) as it:
    ...     charge = it.charge([Repeated(LaplaceNoisyMaxAnswer(scale=50.0), 100)], release="first")
    ...     round(it.spent().epsilon, 2)
    2.21
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, terms: Terms) -> None:
        self.path = path
        self.terms = terms
        self._database = connection
        self._process = os.getpid()

    @property
    def _connection(self) -> sqlite3.Connection:
        """The connection, in the process that opened it: SQLite's locks do not survive a fork."""
        if os.getpid() != self._process:
            raise LedgerError(
                f"the ledger at {self.path} was opened by another process; open it anew"
            )
        return self._database

    @property
    def _book(self) -> StudyBook:
        return StudyBook(self._connection)

    # --- opening ------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        budget: Guarantee | None = None,
        mode: Mode = Mode.FILTER,
        plan: Iterable[Event] | None = None,
    ) -> Ledger:
        """Opens a ledger, or creates it where there is none and a ``budget`` is given.

        ``budget.moment`` is the λ charges are added up at; None picks the one that lets most
        Gaussian noise through at the whole budget. With a ``plan`` (caps on events) λ is the best
        one for the caps. An existing ledger is never replaced, and its terms never change.
        """
        place = Path(path)
        if budget is None and (plan is not None or mode is not Mode.FILTER):
            raise InvalidInput("a plan or a mode is agreed on together with a budget")
        wanted = None if budget is None else agree(budget, mode, plan)
        if not os.path.lexists(place):
            if wanted is None:
                raise LedgerError(f"there is no ledger at {place}; give a budget to create one")
            ledger_file.create(place, wanted.to_json())
        connection = ledger_file.connect(place)
        try:
            terms = Terms.from_json(connection.execute("SELECT json FROM terms").fetchone()[0])
            if wanted is not None and terms != wanted:
                raise LedgerError(
                    f"the ledger at {place} was opened with other terms ({terms}); "
                    "they cannot be changed"
                )
        except PateError:
            connection.close()
            raise
        except (sqlite3.Error, TypeError, KeyError, ValueError) as error:
            connection.close()
            raise ledger_file.damaged(place, error) from error
        return cls(place, connection, terms)

    def close(self) -> None:
        if os.getpid() == self._process:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- spending -----------------------------------------------------------------------------

    def charge(
        self,
        events: Iterable[Event],
        *,
        release: str,
        relies_on: Basis | None = None,
        study: str | None = None,
        settings: Iterable[str] = (),
    ) -> Charge:
        """Pays for a release, durably, or raises and leaves the ledger as it was.

        Charging the same ``release`` again for the same events is one charge, so that a crashed
        run can be resumed. ``study`` marks it as one of a set of releases made to be looked at
        together (:meth:`plan_study`); it counts like any other, and so does one that was charged
        before. ``settings`` are digests by which another draw with the same settings can be told.

        Guarantees:
            One ``BEGIN IMMEDIATE`` transaction reads all that was spent, decides, and writes;
            ``synchronous=FULL`` puts it on disk before this returns. Call it **before** anything
            is published.
        """
        counts = tally(events)
        basis = relies_on or self.terms.basis
        if basis is not self.terms.basis:
            raise MixedComposition(
                f"this ledger composes by {self.terms.basis}, the charge relies on {basis}; "
                "the two cannot share a ledger"
            )
        if not release or not release.isprintable():
            raise InvalidInput("a release needs an id of printable characters")
        if study is not None:
            _require_name(study)
        if not counts:
            raise InvalidInput("a charge needs at least one event")
        with self._transaction():
            earlier = self._find(release)
            if earlier is not None:
                if tally(earlier.events) != counts:
                    raise ReleaseConflict(
                        f"release {release!r} was already charged for other events"
                    )
                if study is None or study in earlier.studies:
                    return earlier
                self._book.mark(earlier.number, study)
                return replace(earlier, studies=(*earlier.studies, study))
            self._require_room(counts)
            number = self._connection.execute(
                "INSERT INTO charges (release, basis) VALUES (?, ?)", (release, basis)
            ).lastrowid
            self._connection.executemany(
                "INSERT INTO entries (charge, event, count) VALUES (?, ?, ?)",
                [(number, event_to_json(event), count) for event, count in counts.items()],
            )
            assert number is not None
            if study is not None:
                self._book.mark(number, study)
            noted = list(settings)
            if noted:
                self._book.note_settings(number, noted)
            charged = self._find(release)
            assert charged is not None
            return charged

    def mark(self, release: str, *, study: str) -> None:
        """Says of a charge that a study uses its release; marks that are there stay.

        For what was paid for by itself, or for another study, and is then looked at with this one.

        Guarantees:
            Nothing but the mark is written: what was spent stays the same. Marking twice is
            marking once.
        """
        _require_name(study)
        with self._transaction():
            charge = self._find(release)
            if charge is None:
                raise LedgerError(
                    f"the ledger at {self.path} holds no charge {release!r}; only what was paid "
                    "for can be marked as part of a study"
                )
            self._book.mark(charge.number, study)

    def plan_study(
        self,
        study: str,
        releases: Iterable[Sequence[Event]],
        *,
        protects: str,
        begun: bool = False,
    ) -> StudyPlan | None:
        """Fixes what a study will release at most, before its first charge.

        ``protects`` says between which data sets its costs hold. Once something was charged for the
        study its plan stays as it is, and is returned (None if there never was one): what goes
        beyond it is then known not to have been planned. ``begun`` says that results of the study
        are there already, by another ledger.

        Guarantees:
            One transaction looks for charges of the study and writes the plan, so that no charge
            can come in between.
        """
        _require_name(study)
        with self._transaction():
            plan = self._book.plan(study, releases, protects=protects, begun=begun)
            if plan is not None and plan.protects != protects:
                raise InvalidInput(
                    f"the study “{study}” of this data set protects {plan.protects}, and what is "
                    f"asked for now {protects}: such costs do not add up; choose another --out"
                )
            return plan

    def study_plans(self) -> dict[str, StudyPlan]:
        """What each study set out to release, by its name."""
        return self._read(self._book.plans)

    def require_room(self, events: Iterable[Event]) -> None:
        """Raises as :meth:`charge` would if these were charged now; writes nothing.

        A whole study is asked about at once, before its first charge. Costs only add up, so what
        fits together fits one by one, in any order. An odometer has room for everything.

        Guarantees:
            It promises nothing: another process may charge in between. :meth:`charge` decides.
        """
        counts = tally(events)
        if counts:
            self._read(lambda: self._require_room(counts))

    def _require_room(self, new: dict[Event, int]) -> None:
        before = self._tally()
        after = {event: before.get(event, 0) + new.get(event, 0) for event in {**before, **new}}
        # Composing also refuses events without a theorem and mixed neighbouring relations.
        needed = self._epsilon(after)
        if self.terms.mode is Mode.ODOMETER:
            return
        spent, budget = self._epsilon(before), self.terms.budget.epsilon
        if self.terms.basis is Basis.PLAN:
            caps = tally(self.terms.plan)
            beyond = [event for event, count in after.items() if count > caps.get(event, 0)]
            if beyond:
                event = beyond[0]
                raise BudgetExceeded(
                    needed=needed,
                    spent=spent,
                    budget=budget,
                    why=f"the plan allows {caps.get(event, 0)} of {event_to_json(event)}, and this "
                    f"charge would make it {after[event]}; nothing was charged",
                )
        elif needed > budget:
            raise BudgetExceeded(needed=needed, spent=spent, budget=budget)

    # --- reading ------------------------------------------------------------------------------

    def spent(self) -> Guarantee:
        """The running figure at the ledger's λ; zero while nothing was charged."""
        return self._guarantee(self._epsilon(self._read(self._tally)))

    def guarantee(self, *, more: Iterable[Event] = ()) -> Guarantee:
        """What may be published about everything charged so far; with ``more``, if that were, too.

        Guarantees:
            * filter at a fixed moment: the budget (a lower running figure is not covered, because
              when to stop may have depended on answers);
            * plan: the ε of its caps;
            * odometer: a reading valid at all times at once (:mod:`pate.accounting.odometer`).
        """
        if self.terms.basis is Basis.PLAN:
            return self._guarantee(self._epsilon(tally(self.terms.plan)))
        if self.terms.mode is Mode.FILTER:
            return self.terms.budget
        before, new = self._read(self._tally), tally(more)
        counts = {event: before.get(event, 0) + new.get(event, 0) for event in {**before, **new}}
        if not counts:
            return self._guarantee(0.0)
        budget = self.terms.budget
        assert budget.moment is not None
        assert budget.conversion is not None
        reading = odometer_epsilon(
            float(self._compose(counts).values[0]),
            moment=budget.moment,
            delta=budget.delta,
            conversion=budget.conversion,
        )
        return self._guarantee(reading)

    def charges(self) -> list[Charge]:
        """Everything that was paid for, in order."""

        return self._read(self._charges)

    # --- inside -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise ledger_file.failed(self.path, error) from error

    def _read(self, query: Callable[[], T]) -> T:
        try:
            return query()
        except sqlite3.Error as error:
            raise ledger_file.failed(self.path, error) from error

    def _find(self, release: str) -> Charge | None:
        found = self._charges("WHERE release = ?", release)
        return found[0] if found else None

    def _charges(self, where: str = "", *values: str) -> list[Charge]:
        rows = self._connection.execute(
            "SELECT number, release, basis, charged_at, event, count FROM charges "
            f"JOIN entries ON charge = number {where} ORDER BY number, event",
            values,
        ).fetchall()
        # After the charges: whatever charge was seen, its marks, of its transaction, are too.
        studies, settings = (self._book.marks(), self._book.settings()) if rows else ({}, {})
        return [
            Charge(
                number=number,
                release=release,
                basis=Basis(basis),
                events=tuple(Repeated(event_from_json(row[4]), row[5]) for row in entries),
                charged_at=at,
                studies=studies.get(number, ()),
                settings=settings.get(number, frozenset()),
            )
            for (number, release, basis, at), entries in groupby(rows, key=lambda row: row[:4])
        ]

    def _tally(self) -> dict[Event, int]:
        rows = self._connection.execute("SELECT event, SUM(count) FROM entries GROUP BY event")
        return tally(Repeated(event_from_json(event), count) for event, count in rows.fetchall())

    def _compose(self, counts: dict[Event, int]) -> LogMoments:
        moment = self.terms.budget.moment
        assert moment is not None
        total = compose([Repeated(event, count) for event, count in counts.items()], [moment])
        total.neighbours.combine(self.terms.budget.neighbours)
        return total

    def _epsilon(self, counts: dict[Event, int]) -> float:
        if not counts:
            return 0.0
        return self._convert(float(self._compose(counts).values[0]), self.terms.budget.delta)

    def _convert(self, log_moment: float, delta: float) -> float:
        budget = self.terms.budget
        assert budget.conversion is not None
        moment = np.array([budget.moment])
        epsilon = epsilon_at(
            moment, np.array([log_moment]), delta=delta, conversion=budget.conversion
        )
        return float(epsilon[0])

    def _guarantee(self, epsilon: float) -> Guarantee:
        budget = self.terms.budget
        return Guarantee(
            epsilon=epsilon,
            delta=budget.delta,
            moment=budget.moment,
            neighbours=budget.neighbours,
            conversion=budget.conversion,
        )


def _require_name(study: str) -> None:
    if not (study and study.isprintable()):
        raise InvalidInput("a study needs a name of printable characters")
