"""The total cost of a data set over its two ledgers, of PATE (votes) and of DP-SGD (steps).

Costs of votes hold where one teacher changes, costs of steps where one record is present or absent.
So they have separate ledgers, and each adds up at its own λ. The budget belongs to the data set: it
is compared with the total of both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pate._format import describe_neighbours, format_delta, format_epsilon
from pate.accounting.guarantee import Neighbours
from pate.accounting.ledger.running_total import Total
from pate.accounting.ledger.terms import Terms
from pate.accounting.moments import odometer_epsilon
from pate.errors import InvalidInput

NOT_PRIVATE = "not-private.ledger"  # the end of the name of a ledger whose releases are not
_LEDGER = ".ledger"
_DPSGD = ".dpsgd"  # after the name of a data set, in that of its second ledger


def sibling_ledger(path: Path) -> Path:
    """Return the other ledger of the same data: DP-SGD's for that of PATE, and vice versa.

    >>> [sibling_ledger(Path(name)).name for name in ("mnist.ledger", "mnist.dpsgd.ledger")]
    ['mnist.dpsgd.ledger', 'mnist.ledger']
    """
    kind = NOT_PRIVATE if path.name.endswith(f".{NOT_PRIVATE}") else "ledger"
    name = path.name.removesuffix(f".{kind}")
    other = name.removesuffix(_DPSGD) if name.endswith(_DPSGD) else f"{name}{_DPSGD}"
    return path.with_name(f"{other}.{kind}")


def shares_budget(path: Path) -> bool:
    """Return whether a file is one of the two ledgers of a data set with private releases."""
    return path.name.endswith(_LEDGER) and not path.name.endswith(f".{NOT_PRIVATE}")


class Coverage(StrEnum):
    """The unit that releases protect together.

    Votes that protect all records of a user protect each of them; not the other way round. So
    releases of both kinds, or by different group columns, together protect single records and no
    more; with DP-SGD or record votes for users among them, those of users who have one record
    (:attr:`Neighbours.LONE_RECORD`): without one of several, another one votes in its place.
    """

    RECORD = "record"  # every release protects single records
    USER = "user"  # every release protects all records of one user
    MIXED = "mixed"  # together they protect single records, though some of them protect users

    def describe(self, relation: Neighbours | None) -> str:
        """Return what the total of such releases is about, as a sentence without its full stop.

        ``relation`` is the one under which their total holds; None for votes of teachers alone.

        >>> Coverage.USER.describe(None)
        'it covers all records of one user'
        >>> Coverage.MIXED.describe(Neighbours.LONE_RECORD)[:58]
        'it covers single records of users who have no other: only '
        """
        lone = relation is not None and (relation.of_users or relation is Neighbours.AS_STATED)
        single = "single records of users who have no other" if lone else "single records"
        return {
            Coverage.RECORD: "it covers single records",
            Coverage.USER: "it covers all records of one user",
            Coverage.MIXED: f"it covers {single}: only some of these releases protect all "
            "records of one user, so nothing is claimed of users",
        }[self]


def between_records(noted: Collection[Neighbours | None]) -> Neighbours:
    """Return the relation between data sets under which charges hold, by those noted with each.

    Where one holds for a replaced record and another for one added or removed, or it is unknown,
    each holds as its own charge states, and :func:`total_of` restates them.

    >>> between_records({Neighbours.ADD_REMOVE}), between_records({Neighbours.ADD_REMOVE, None})
    (<Neighbours.ADD_REMOVE: 'add-remove'>, <Neighbours.AS_STATED: 'as-stated'>)
    """
    relation = Neighbours.AS_STATED
    for each in sorted(noted, key=str):
        if each in (None, Neighbours.REPLACE_ONE):
            return Neighbours.AS_STATED
        relation = relation.combine(each)
    return relation


def of_one_column(relation: Neighbours, groups: Collection[str | None]) -> Neighbours:
    """Return the relation of a total over users; they must be those of one column."""
    if relation.of_users and coverage_of(groups) is Coverage.MIXED:
        return relation.combine(Neighbours.LONE_RECORD)
    return relation


def coverage_of(groups: Collection[str | None]) -> Coverage:
    """Return what charges cover together, by the columns whose groups they protect.

    >>> coverage_of({None}), coverage_of({"patient"}), coverage_of({"patient", "ward"})
    (<Coverage.RECORD: 'record'>, <Coverage.USER: 'user'>, <Coverage.MIXED: 'mixed'>)
    """
    if set(groups) <= {None}:
        return Coverage.RECORD
    return Coverage.USER if len(groups) == 1 else Coverage.MIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerShare:
    """The spending of one ledger of a data set, at its own λ and δ."""

    ledger: str  # its file's name
    epsilon: float
    delta: float
    moment: float
    records: frozenset[Neighbours | None]  # relations of the charges; None: of an unknown partition
    groups: frozenset[str | None] = frozenset()  # columns of protected groups; None: single records
    tables: bool = False  # record votes are among the charges

    @classmethod
    def of(
        cls, ledger: str, terms: Terms, total: Total, *, groups: frozenset[str | None]
    ) -> LedgerShare:
        """Return the running total, valid whenever one stops (:func:`odometer_epsilon`).

        Votes are charged with the relation between records under which one teacher changes. Charges
        that state none hold under the ledger's own; where that is a replaced teacher, it is unknown
        how records were assigned to teachers.
        """
        moment, delta = terms.moment, terms.budget.delta
        own = terms.budget.neighbours.combine(total.neighbours)
        stated = None if own is Neighbours.REPLACE_ONE else own
        epsilon = 0.0
        if total.records:
            epsilon = odometer_epsilon(
                total.log_moment, moment=moment, delta=delta, conversion=terms.conversion
            )
            epsilon = total.least(epsilon)
        return cls(
            ledger=ledger,
            epsilon=epsilon,
            delta=delta,
            moment=moment,
            records=frozenset(stated if each is None else each for each in total.records),
            groups=groups,
            tables=total.tables,
        )

    @property
    def method(self) -> str:
        return "DP-SGD" if self.ledger.removesuffix(_LEDGER).endswith(_DPSGD) else "PATE"

    def __str__(self) -> str:
        return f"{self.method} ε {format_epsilon(self.epsilon)} ({self.ledger})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSetTotal:
    """The total spending of a data set."""

    shares: tuple[LedgerShare, ...]  # of the ledgers with charges
    epsilon: float
    delta: float
    neighbours: Neighbours | None  # None: data sets that differ in what one teacher was given

    @property
    def coverage(self) -> Coverage:
        """The unit that all releases protect together."""
        return coverage_of(set().union(*(each.groups for each in self.shares)))

    @property
    def restated(self) -> bool:
        """Whether shares count more than they cost under their own relation."""
        return self.epsilon > math.fsum(each.epsilon for each in self.shares) * (1 + 1e-12)

    @property
    def relation(self) -> str:
        """How neighbouring data sets differ, as a phrase after "for"."""
        if self.neighbours is None:
            return "data sets that differ in the records of one teacher"
        if self.neighbours is Neighbours.AS_STATED and any(each.tables for each in self.shares):
            return "the data sets that each charge is stated for, and no one relation covers all"
        users = self.coverage is Coverage.USER
        relation = describe_neighbours(self.neighbours, "user" if users else "record", users=users)
        if self.coverage is Coverage.MIXED and not self.neighbours.of_users:
            relation += f"; {self.coverage.describe(self.neighbours)}"
        return relation

    def __str__(self) -> str:
        text = (
            f"ε {format_epsilon(self.epsilon)} at δ {format_delta(self.delta)}, for {self.relation}"
        )
        if len(self.shares) < 2:
            return text
        parts = " + ".join(map(str, self.shares))
        why = "; costs for one record more or less are restated" if self.restated else ""
        return f"{text} ({parts}{why})"


def total_of(shares: Sequence[LedgerShare]) -> DataSetTotal:
    """Return the total of both ledgers, however charges were chosen, whenever one stops.

    Guarantees:
        Let o be everything released, L_j the privacy loss of ledger j's part, A_j its running sum
        and ε_j(o) = (A_j + log(c_j/δ_j))/λ_j its value (:func:`odometer_epsilon`). Charges to
        either may be chosen by all outputs so far: each M_j = exp(λ_j L_j − A_j) remains a
        supermartingale, as steps of the other ledger leave it as it is. Write (x)₊ = max(x, 0).

        * **One relation for both.** (1 − e^{−x−y})₊ ≤ (1 − e^{−x})₊ + (1 − e^{−y})₊, so
          E[(1 − e^{Σε_j(o) − ΣL_j})₊] ≤ Σδ_j: together (Σε_j, Σδ_j). What holds for one record
          added or removed holds for one zeroed out, and votes of a hashed partition, where one
          record changes one teacher, hold for both.
        * **One record replaced** (votes of a shuffled partition have no other relation): for what
          holds for one record more or less, a replaced one is one removed, then one added. Let
          Q be the law of o on the data set in between; ledgers F take the first step, ledgers G
          the second, and E(o) = Σ_F ε_j(o). The first step gives
          P(S) ≤ Σ_S e^{E} Q(o) + Σ_F δ_j. In the second, with η_j = ε_j + E/λ_j,
          E_Q[e^{E}(1 − e^{Σ(η_j − L_j)})₊] ≤ Σ_G E_Q[e^{E} c_j e^{λ_j(L_j − η_j)}]
          = Σ_G δ_j E_Q[M_j] ≤ Σ_G δ_j. So (Σ_F ε_j + Σ_G (ε_j + E/λ_j), Σ_F δ_j + Σ_G δ_j)
          holds together. Unlike Vadhan 2017, Lemma 2.2, δ is not multiplied by e^ε, and ε may
          depend on o. Where relations are mixed in one ledger or not known, it takes both steps.
        * **Users.** Votes of a hashed partition by users hold for one user added or removed, and
          for each of their records. DP-SGD's costs for one user add up with those of votes by users
          of the same column, and with costs for one record where that user has one record
          (:meth:`Neighbours.combine`). One record replaced may change the records of two users, so
          costs for one user are not added to those of a shuffled partition: refused.
        * **One teacher**: votes alone, some of a partition that was not noted, have no relation
          between records; whatever the partition, they hold where one teacher was given others.
          Record votes have no teachers: beside them, no relation holds for all.
    """
    paid = [each for each in shares if each.records]
    known: set[Neighbours | None] = set().union(*(each.records for each in paid))
    if len(paid) == 1 and None in known:  # a ledger by itself, under its own relation
        nothing = Neighbours.AS_STATED if paid[0].tables else None
        return _chained(paid, first=paid, second=[], neighbours=nothing)
    if not known & {None, Neighbours.REPLACE_ONE}:
        relation, columns = Neighbours.AS_STATED, set().union(*(each.groups for each in paid))
        users = any(each is not None and each.of_users for each in known)
        for share in paid:
            by_user = users and bool(share.groups) and coverage_of(columns) is Coverage.USER
            for each in share.records:
                assert each is not None
                votes = by_user and each is Neighbours.ADD_REMOVE
                relation = relation.combine(Neighbours.USER_ADD_REMOVE if votes else each)
        relation = of_one_column(relation, columns)
        return _chained(paid, first=paid, second=[], neighbours=relation)
    if any(each is not None and each.of_users for each in known):
        raise InvalidInput(
            "costs for one user (DP-SGD by group) and for one record replaced (votes of a shuffled "
            'partition) do not add up; choose by = "record" in [training], or method = "hash" in '
            "[partition] of data that no shuffled partition was charged for"
        )
    replaced = Neighbours.REPLACE_ONE
    at_once = [each for each in paid if each.records == {replaced}]
    in_two = [each for each in paid if each.records != {replaced}]
    return _chained(paid, first=in_two, second=[*at_once, *in_two], neighbours=replaced)


def _chained(
    shares: Sequence[LedgerShare],
    *,
    first: Collection[LedgerShare],
    second: Collection[LedgerShare],
    neighbours: Neighbours | None,
) -> DataSetTotal:
    before = math.fsum(each.epsilon for each in first)
    after = [each.epsilon + before / each.moment for each in second]
    return DataSetTotal(
        shares=tuple(shares),
        epsilon=math.fsum([before, *after]),
        delta=math.fsum(each.delta for each in (*first, *second)),
        neighbours=neighbours,
    )
