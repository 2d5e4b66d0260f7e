"""Durable spending: one SQLite file for each private data set.

The ledger belongs to the data, not to a run: deleting a run refunds nothing. It holds events
(public parameters and counts), never a vote.

Two ways to compose, and no mixing of them:

* **fixed moment** (default): charges may be chosen as answers come in. They are added up at one λ
  that was fixed when the ledger was opened. Feldman & Zrnic 2021, Theorem 4.3: stopping before the
  sum at a fixed Rényi order passes a bound keeps that bound, however adaptively charges come.
* **plan**: the most that will ever be asked was fixed in advance, as caps on events. The best λ for
  the caps may then be used, because it does not depend on any answer. Charges use up the caps.

A data set that is used by both PATE and DP-SGD has two ledgers in the same folder, and one budget:
a charge to either is compared with the total of both (:mod:`pate.accounting.ledger.data_set`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np

from pate.accounting.events import (
    Event,
    Repeated,
    event_from_json,
    event_to_json,
    is_of_votes,
    tally,
)
from pate.accounting.guarantee import Analysis, Guarantee, Neighbours
from pate.accounting.ledger import schema
from pate.accounting.ledger.data_set import (
    Coverage,
    DataSetTotal,
    LedgerShare,
    between_records,
    coverage_of,
    of_one_column,
    shares_budget,
    sibling_ledger,
    total_of,
)
from pate.accounting.ledger.running_total import RunningTotal, Total
from pate.accounting.ledger.studies import StudyPlan, StudyTables
from pate.accounting.ledger.terms import Basis, Mode, Terms, agree
from pate.accounting.moments import compose, epsilon_at
from pate.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
    MixedComposition,
    ReleaseConflict,
)

T = TypeVar("T")
V = TypeVar("V", contravariant=True)
R = TypeVar("R", covariant=True)


class SupportsRelease(Protocol[V, R]):
    """A mechanism, to the ledger."""

    def release_once(
        self, votes: V, *, ledger: Ledger, name: str, most_answers: int | None = None
    ) -> R: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One release that was paid for.

    Parameters
    ----------
    number
        Its number in the ledger, from 1.
    release
        The unique name of the release.
    basis
        The rule of composition that it relies on.
    events
        What was released, as events.
    charged_at
        The time of the charge, in UTC.
    studies
        The names of the studies that it is part of.
    settings
        Digests of the settings that were, or could have been, asked for.
    records
        The relation between data sets under which it holds; None for the ledger's own.
    group
        The column of whose groups it protects all records together; None if it protects single
        records.
    """

    number: int
    release: str
    basis: Basis
    events: tuple[Event, ...]
    charged_at: str
    studies: tuple[str, ...] = ()
    settings: frozenset[str] = frozenset()
    records: Neighbours | None = None
    group: str | None = None


class Ledger:
    """The durable record of the spending of one data set.

    Open it with :meth:`open`, as a context manager. A ledger is one SQLite connection, for the
    process and the thread that opened it.

    Attributes
    ----------
    path
        The file.
    terms
        The budget and the rule of composition, which never change.

    >>> import numpy as np, pate, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> votes = pate.Votes.from_labels(np.zeros((250, 100), dtype=int), classes=2)
    >>> budget = pate.Guarantee(epsilon=4, delta=1e-5)
    >>> with pate.Ledger.open(folder.name + "/patients.ledger", budget=budget) as ledger:
    ...     first = ledger.release(pate.LaplaceNoisyMax(scale=50), votes, name="labels-1")
    ...     round(ledger.spent().epsilon, 2)
    1.85
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, terms: Terms) -> None:
        self.path = path
        self.terms = terms
        self._database = connection
        self._process = os.getpid()
        self._opened_sibling: Ledger | None = None
        self._alone = False  # in a transaction that began before there was a sibling

    @property
    def _connection(self) -> sqlite3.Connection:
        """The connection; refused after a fork, which SQLite's locks do not survive."""
        if os.getpid() != self._process:
            raise LedgerError(
                f"the ledger at {self.path} was opened by another process; open it anew"
            )
        return self._database

    @property
    def _studies(self) -> StudyTables:
        return StudyTables(self._connection)

    @property
    def _running(self) -> RunningTotal:
        return RunningTotal(self._connection, self.terms)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        budget: Guarantee | None = None,
        mode: Mode = Mode.FILTER,
        plan: Iterable[Event] | None = None,
    ) -> Ledger:
        """Open a ledger, or create it if there is none and a ``budget`` is given.

        An existing ledger is never replaced, and its terms never change.

        Parameters
        ----------
        path
            The file of the ledger; its folder must exist.
        budget
            The largest (ε, δ) of all charges together. ``budget.moment`` is the λ at which charges
            are added up; None picks the λ that lets the most Gaussian noise through.
        mode
            Refuse charges beyond the budget, or only keep the running total.
        plan
            Caps on events, fixed in advance; λ is then the best one for the caps.

        Returns
        -------
        Ledger

        Raises
        ------
        LedgerError
            If the file cannot be read or trusted, has other terms, or is missing while no budget
            is given.
        BudgetExceeded
            If the budget does not cover the plan.
        """
        place = Path(path).absolute()
        if place.exists():
            place = place.resolve()  # what lies beside it is found whatever links lead there
        if budget is None and (plan is not None or mode is not Mode.FILTER):
            raise InvalidInput("a plan or a mode is agreed on together with a budget")
        wanted = None if budget is None else agree(budget, mode, plan)
        if not os.path.lexists(place):
            if wanted is None:
                raise LedgerError(f"there is no ledger at {place}; give a budget to create one")
            schema.create(place, wanted.to_json())
        with _parsing(place):
            connection = schema.connect(
                place, totals=lambda each: RunningTotal(each, _terms(each)).rebuild()
            )
        try:
            with _parsing(place):
                terms = _terms(connection)
            if wanted is not None and terms != wanted:
                raise LedgerError(
                    f"the ledger at {place} was opened with other terms ({terms}); "
                    "they cannot be changed"
                )
            ledger = cls(place, connection, terms)
            ledger._check_totals()
        except BaseException:
            connection.close()
            raise
        return ledger

    def _check_totals(self) -> None:
        """Compare the running totals with the charges; rebuild those of another version."""
        with _parsing(self.path):
            if not self._read(self._running.is_current):
                with self._transaction():
                    self._running.rebuild()
                return
            self._connection.execute("BEGIN")  # one state of the file, whoever charges meanwhile
            try:
                agrees = self._read(self._running.agrees)
            finally:
                self._connection.execute("COMMIT")
        if not agrees:
            raise schema.damaged(
                self.path, LedgerError("its charges do not add up to the recorded total")
            )

    def close(self) -> None:
        """Close the connection."""
        if os.getpid() == self._process:
            self._database.close()
            if self._opened_sibling is not None:
                self._opened_sibling.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        again: bool = False,
        family: Iterable[str] = (),
        records: Neighbours | None = None,
        group: str | None = None,
    ) -> Charge:
        """Pay for a release, durably, or raise and leave the ledger unchanged.

        :meth:`release` draws, charges and keeps labels of votes in one step; this pays for what
        draws its own noise. Charging the same release again for the same events is one charge, so
        that a crashed run can be resumed.

        Parameters
        ----------
        events
            What will be released.
        release
            The unique name of the release.
        relies_on
            The rule of composition that the caller counts on; the ledger's own by default.
        study
            The study that the release is part of (:meth:`plan_study`). It costs the same.
        settings
            Digests of the settings of the release. If another release was charged with one of
            them, this one would pay twice for the same thing, and is refused.
        again
            Pay even so.
        family
            Digests that are recorded likewise, but that other releases may share.
        records
            The relation between data sets under which the events hold, if it is not the ledger's
            own. For votes it is that of the partition.
        group
            The column whose groups (users) the release protects, all records of one together; None
            if it protects single records.

        Returns
        -------
        Charge
            The new charge, or the earlier one of the same release.

        Raises
        ------
        BudgetExceeded
            If the charge would exceed the budget of the ledger or of the data set.
        ReleaseConflict
            If the name was charged for other events, or the settings for another release.
        MixedComposition
            If the ledger composes by another rule.

        Guarantees:
            One ``BEGIN IMMEDIATE`` transaction on both ledgers of the data set reads all that was
            spent, decides, and writes; ``synchronous=FULL`` puts it on disk before this returns. Of
            several processes that charge either ledger, or the same ``settings``, at once, each
            sees what the ones before it wrote. Call it **before** anything is published.
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
        noted = list(settings)
        with self._data_set_transaction():
            if not self._running.is_current():  # another version has charged since
                self._running.rebuild()
            earlier = self._find(release)
            if earlier is not None:
                if tally(earlier.events) != counts:
                    raise ReleaseConflict(
                        f"release {release!r} was already charged for other events"
                    )
                if study is None or study in earlier.studies:
                    return earlier
                self._studies.add(earlier.number, study)
                return replace(earlier, studies=(*earlier.studies, study))
            paid = None if again else self._studies.with_settings(noted, but=release)
            if paid is not None:
                raise ReleaseConflict(
                    f"the ledger at {self.path} has already paid for a release with the same "
                    f"settings ({paid[:60]}); nothing was charged: to release another one and pay "
                    "again, add --spend"
                )
            after = self._require_room({records: counts})
            number = self._connection.execute(
                "INSERT INTO charges (release, basis, records) VALUES (?, ?, ?)",
                (release, basis, records),
            ).lastrowid
            self._connection.executemany(
                "INSERT INTO entries (charge, event, count) VALUES (?, ?, ?)",
                [(number, event_to_json(event), count) for event, count in counts.items()],
            )
            self._running.add(counts, after)
            assert number is not None
            if group is not None:
                self._connection.execute("INSERT INTO groups VALUES (?, ?)", (number, group))
            if study is not None:
                self._studies.add(number, study)
            self._studies.add_settings(number, {*noted, *family})
            charged = self._find(release)
            assert charged is not None
            return charged

    def release(
        self,
        mechanism: SupportsRelease[V, R],
        votes: V,
        *,
        name: str,
        most_answers: int | None = None,
    ) -> R:
        """Draw answers to votes, charge them, and return them: one operation, done once.

        Parameters
        ----------
        mechanism
            A mechanism of :mod:`pate`, such as :class:`pate.GaussianNoisyMax`.
        votes
            The votes, such as ``pate.Votes.from_labels(…)``.
        name
            The unique name of the release in this ledger.
        most_answers
            The most answers to give; by default as many as there are queries. All of them are
            charged, whatever is answered.

        Returns
        -------
        Release
            The answers. A second call with the same name returns the same ones, at no cost.

        Raises
        ------
        BudgetExceeded
            If the budget does not cover the charge; nothing was released then.
        ReleaseConflict
            If the name was used for other votes or settings.
        LedgerError
            If the release was paid for and its answers are gone.

        Guarantees:
            The noise is drawn once for a charge: the answers are on disk, in a folder beside the
            ledger that only its owner can read, before they are charged, and are returned after
            that. A process that is killed in between is completed by the next call.

        >>> import numpy as np, pate, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> votes = pate.Votes.from_labels(np.zeros((100, 3), dtype=int), classes=2)
        >>> budget = Guarantee(epsilon=4, delta=1e-5)
        >>> with Ledger.open(folder.name + "/patients.ledger", budget=budget) as ledger:
        ...     first = ledger.release(pate.GaussianNoisyMax(sigma=20), votes, name="labels-1")
        ...     again = ledger.release(pate.GaussianNoisyMax(sigma=20), votes, name="labels-1")
        >>> first.labels, bool((first.labels == again.labels).all())
        (array([0, 0, 0]), True)
        >>> folder.cleanup()
        """
        return mechanism.release_once(votes, ledger=self, name=name, most_answers=most_answers)

    def plan_study(
        self,
        study: str,
        releases: Iterable[Sequence[Event]],
        *,
        protects: str,
        begun: bool = False,
    ) -> StudyPlan | None:
        """Record the most that a study will release, before its first charge; return the plan.

        ``releases`` are the events of each planned release, and ``protects`` is the relation under
        which their costs hold, in words. Once something was charged for the study (or it has
        ``begun`` in another ledger) its plan no longer changes: the earlier one is returned, or
        None if there is none.

        Guarantees:
            One transaction looks for charges of the study and writes the plan, so that no charge
            can come in between.
        """
        _require_name(study)
        with self._transaction():
            plan = self._studies.plan(study, releases, protects=protects, begun=begun)
            if plan is not None and plan.protects != protects:
                raise InvalidInput(
                    f"the study “{study}” of this data set protects {plan.protects}, the new plan "
                    f"{protects}: such costs do not add up; choose another --out"
                )
            return plan

    def study_plans(self) -> dict[str, StudyPlan]:
        """Return the plan of each study, by its name."""
        return self._read(self._studies.plans)

    def require_room(
        self,
        events: Iterable[Event],
        *,
        records: Neighbours | None = None,
        sibling_events: Iterable[Event] = (),
    ) -> None:
        """Raise as :meth:`charge` would if these events were charged now; write nothing.

        A whole study is checked at once, before its first charge, with its ``sibling_events`` for
        the data set's other ledger. Costs only add up, so what fits together fits one by one, in
        any order. An odometer without a budget has room for everything. Another process may still
        charge in between: :meth:`charge` decides. ``records`` is the relation of events that state
        none; tables of record votes beside them have their own.
        """
        counts, there = tally(events), tally(sibling_events)
        if counts:
            parts = self._running.by_relation(counts, records)
            self._read(lambda: self._require_room(parts, there=there))

    def _require_room(
        self,
        parts: Mapping[Neighbours | None, Mapping[Event, int]],
        *,
        there: dict[Event, int] | None = None,
    ) -> Total:
        """Return the total with new events, by relation; raise if the budgets have no room."""
        before = after = self._running.read()
        # Composing also refuses events without a theorem and mixed neighbouring relations.
        for relation, counts in parts.items():
            after = self._running.plus(after, counts, records=relation)
        new = {event: count for counts in parts.values() for event, count in counts.items()}
        after.neighbours.combine(self.terms.budget.neighbours)
        needed, spent = self._epsilon(after), self._epsilon(before)
        budget = self.terms.budget.epsilon
        if self.terms.basis is Basis.PLAN:
            caps, counts = tally(self.terms.plan), self._running.counts()
            for event, count in new.items():
                count += counts.get(event, 0)
                if count > caps.get(event, 0):
                    raise BudgetExceeded(
                        needed=needed,
                        spent=spent,
                        budget=budget,
                        why=f"the plan allows {caps.get(event, 0)} of {event_to_json(event)}, and "
                        f"this charge would make it {count}; nothing was charged",
                    )
        limit, whole = self.data_set_budget, self._data_set_total(after, there)
        alone = len(whole.shares) == 1 and not whole.restated and limit == budget
        if not alone and whole.epsilon > limit:
            now = self._data_set_total(before).epsilon
            raise BudgetExceeded(needed=whole.epsilon, spent=now, budget=limit, shares=str(whole))
        if self.terms.basis is not Basis.PLAN and needed > budget:
            raise BudgetExceeded(needed=needed, spent=spent, budget=budget)
        return after

    # --- reading ------------------------------------------------------------------------------

    def spent(self) -> Guarantee:
        """Return the running total at the ledger's λ as (ε, δ); ε is 0 before the first charge."""
        total = self._read(self._running.read)
        return self._guarantee(self._epsilon(total), total)

    def guarantee(
        self, *, more: Iterable[Event] = (), records: Neighbours | None = None
    ) -> Guarantee:
        """Return the guarantee that can be published of everything charged so far.

        Parameters
        ----------
        more
            Events to include as if they were charged, too.
        records
            The relation that those among them are charged with that state none (:meth:`charge`).

        Returns
        -------
        Guarantee

        Guarantees:
            * filter at a fixed moment: the budget (a lower running total is not covered, because
              answers may have decided when to stop);
            * plan: the ε of its caps;
            * odometer: a value valid whenever one stops
              (:func:`~pate.accounting.odometer_epsilon`).
        """
        if self.terms.basis is Basis.PLAN:
            caps = compose(self.terms.plan, [self.terms.moment])
            read = self._read(self._running.read)
            planned = Total(neighbours=caps.neighbours, records=read.records, tables=read.tables)
            return self._guarantee(self._convert(float(caps.values[0])), planned)
        total = self._read(self._running.read)
        for relation, counts in self._running.by_relation(tally(more), records).items():
            total = self._read(partial(self._running.plus, total, counts, records=relation))
        epsilon = self.terms.budget.epsilon
        if self.terms.mode is not Mode.FILTER:
            epsilon = self._share(total).epsilon
        return self._guarantee(epsilon, total)

    def data_set_total(
        self, *, more: Iterable[Event] = (), records: Neighbours | None = None
    ) -> DataSetTotal:
        """Return what the data set has spent in both of its ledgers together.

        ``more`` are events to include as if they were charged to this ledger, too; ``records`` is
        the relation of those that state none (:meth:`charge`).

        Guarantees:
            As :func:`pate.accounting.ledger.data_set.total_of`.
        """
        new = tally(more)

        def total() -> DataSetTotal:
            after = self._running.read()
            for relation, counts in self._running.by_relation(new, records).items():
                after = self._running.plus(after, counts, records=relation)
            return self._data_set_total(after)

        return self._read(total)

    @property
    def data_set_budget(self) -> float:
        """The budget of the data set, whichever ledger it was set with; infinite if none was."""
        own, other = self.terms.budget.epsilon, self._sibling()
        return own if other is None else min(own, other.terms.budget.epsilon)

    def _data_set_total(
        self, own: Total, more_there: dict[Event, int] | None = None
    ) -> DataSetTotal:
        shares, other = [self._share(own)], self._sibling()
        if other is not None:
            there = other._read(other._running.read)
            if more_there:
                there = other._running.plus(there, more_there)
            shares.append(other._share(there))
        return total_of(sorted(shares, key=lambda each: each.method, reverse=True))

    def _share(self, total: Total) -> LedgerShare:
        return LedgerShare.of(self.path.name, self.terms, total, groups=self._groups())

    def charges(self) -> list[Charge]:
        """Return all charges, in order."""
        return self._read(self._charges)

    def releases(self) -> set[str]:
        """Return the names of all releases that were paid for."""
        ask = "SELECT release FROM charges"
        return {str(name) for (name,) in self._read(lambda: self._connection.execute(ask))}

    def relations(self) -> frozenset[Neighbours | None]:
        """Return the relations recorded with charges; None stands for charges without one."""
        return self._read(self._running.read).records

    def coverage(self) -> Coverage:
        """Return whether the charges together protect all records of one user, or single ones."""
        return coverage_of(self._read(self._groups))

    # --- inside -------------------------------------------------------------------------------

    def _groups(self) -> frozenset[str | None]:
        """Return the columns whose groups charges protect; None stands for single records."""
        ask = "SELECT DISTINCT name FROM charges LEFT JOIN groups ON charge = number"
        return frozenset(name for (name,) in self._connection.execute(ask).fetchall())

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            schema.retry_while_busy(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise schema.failed(self.path, error) from error

    @contextlib.contextmanager
    def _data_set_transaction(self) -> Iterator[None]:
        """Hold a transaction on both ledgers of the data set.

        SQLite's locks end with the process that holds them, so a killed one leaves nothing behind.
        Everybody takes them in the same order, so there is no deadlock. Where there is no other
        ledger yet, one that is created from now on waits for this one before its first charge: it
        is not opened meanwhile, which could wait for its creator.
        """
        while True:
            other = self._sibling()
            held = [self] if other is None else [self, other]
            with contextlib.ExitStack() as stack:
                for ledger in sorted(held, key=lambda each: each.path.name):
                    stack.enter_context(ledger._transaction())
                if other is None and self._sibling_exists():
                    continue  # it was created in the meantime
                self._alone = other is None
                try:
                    yield
                finally:
                    self._alone = False
                return

    def _sibling(self) -> Ledger | None:
        """Return the other ledger of the data set, if there is one."""
        if self._opened_sibling is None and not self._alone and self._sibling_exists():
            self._opened_sibling = Ledger.open(sibling_ledger(self.path))
        return self._opened_sibling

    def _sibling_exists(self) -> bool:
        return shares_budget(self.path) and os.path.lexists(sibling_ledger(self.path))

    def _read(self, query: Callable[[], T]) -> T:
        try:
            return schema.retry_while_busy(query)
        except sqlite3.Error as error:
            raise schema.failed(self.path, error) from error

    def _find(self, release: str) -> Charge | None:
        row = self._connection.execute(
            "SELECT number FROM charges WHERE release = ?", (release,)
        ).fetchone()
        return None if row is None else self._charges(row[0])[0]

    def _charges(self, number: int | None = None) -> list[Charge]:
        where, values = ("", ()) if number is None else ("WHERE number = ?", (number,))
        rows = self._connection.execute(
            "SELECT number, release, basis, charged_at, records, name, event, count FROM charges "
            "JOIN entries ON entries.charge = number LEFT JOIN groups ON groups.charge = number "
            f"{where} ORDER BY number, event",
            values,
        ).fetchall()
        # After the charges: the studies of a charge are written in its transaction.
        studies, settings = self._studies.by_charge(number), self._studies.settings(number)
        parsed = cache(event_from_json)  # most charges are for the same few events
        with _parsing(self.path):
            return [
                Charge(
                    number=number,
                    release=release,
                    basis=Basis(basis),
                    events=tuple(Repeated(parsed(row[6]), row[7]) for row in entries),
                    charged_at=at,
                    studies=studies.get(number, ()),
                    settings=settings.get(number, frozenset()),
                    records=None if records is None else Neighbours(records),
                    group=group,
                )
                for (number, release, basis, at, records, group), entries in groupby(
                    rows, key=lambda row: row[:6]
                )
            ]

    def _epsilon(self, total: Total) -> float:
        return total.least(self._convert(total.log_moment)) if total.records else 0.0

    def _convert(self, log_moment: float) -> float:
        moment, delta = np.array([self.terms.moment]), self.terms.budget.delta
        values = np.array([log_moment])
        return float(epsilon_at(moment, values, delta=delta, conversion=self.terms.conversion)[0])

    def _guarantee(self, epsilon: float, total: Total) -> Guarantee:
        """Return ε under the relation of the charges, which may be weaker than the budget's."""
        budget = self.terms.budget
        relation = budget.neighbours.combine(total.neighbours)
        if total.tables:
            relation = between_records(total.records)
        return Guarantee(
            epsilon=epsilon,
            delta=budget.delta,
            moment=budget.moment,
            neighbours=of_one_column(relation, self._read(self._groups)),
            conversion=budget.conversion,
            analysis=self._analysis,
        )

    @property
    def _analysis(self) -> Analysis:
        """The bounds behind the total: tight, and the published ones where there are no votes."""
        tight = any(map(is_of_votes, self.terms.plan)) or self._read(self._running.has_votes)
        return Analysis.TIGHT if tight else Analysis.PUBLISHED


def _terms(connection: sqlite3.Connection) -> Terms:
    return Terms.from_json(connection.execute("SELECT json FROM terms").fetchone()[0])


@contextlib.contextmanager
def _parsing(place: Path) -> Iterator[None]:
    """Report content that cannot be parsed as a damaged file, in one line."""
    try:
        yield
    except LedgerError:
        raise
    except (sqlite3.Error, TypeError, KeyError, ValueError) as error:
        raise schema.damaged(place, error) from error


def _require_name(study: str) -> None:
    if not (study and study.isprintable()):
        raise InvalidInput("a study needs a name of printable characters")
