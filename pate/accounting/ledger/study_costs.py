"""The cost of several releases together: as guarantees that add up, or as one plan.

A *study* is a set of releases made to be looked at together (a sweep, a comparison). Each costs its
own (ε, δ) if it was fixed before any result was seen. Publishing all of them, or choosing one by
its result, costs as much as all of them together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from pate._format import describe_neighbours, format_cost
from pate.accounting.composition import group, rounded_up
from pate.accounting.events import Event, ForReplacement, Repeated, tally
from pate.accounting.guarantee import Accountant, Guarantee, Neighbours
from pate.accounting.ledger import Charge, Ledger
from pate.accounting.ledger.data_set import (
    NOT_PRIVATE,
    Coverage,
    LedgerShare,
    coverage_of,
    of_one_column,
    sibling_ledger,
    total_of,
)
from pate.accounting.ledger.running_total import pure_sum, states_records
from pate.accounting.ledger.studies import StudyPlan
from pate.accounting.moments import LogMoments, compose
from pate.errors import InvalidInput

_LATER = sys.maxsize  # the number of a charge that is still to come
_USUAL = (Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE, Neighbours.AS_STATED)

NOT_PLANNED = (
    "the ledger's cost of all its releases, because not all of these were planned before the first "
    "result"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """The cost of a study in one ledger."""

    name: str
    releases: int  # that were paid for
    unpaid: int  # that are planned in addition
    guarantee: Guarantee  # of all of them together
    in_advance: bool  # all costs were fixed before the first result
    earlier: int = 0  # other releases of the data set that came before the plan
    running: LedgerShare | None = None  # the ledger's total, with its relations

    def describe(self, *, why: bool = True) -> str:
        """Return the cost in words; without ``why``, omit the reason for a cost beyond the plan.

        >>> whole = Guarantee(epsilon=1.2345, delta=1e-5)
        >>> StudyCost(name="a", releases=1, unpaid=2, guarantee=whole, in_advance=True).describe()
        'ε = 1.24 at δ = 1e-5 for 3 releases together, 2 of them not made yet'
        """
        number, both = self.releases + self.unpaid, _figure(self.guarantee)
        left = f", {self.unpaid} of them not made yet" if self.releases else ""
        reason = f" ({NOT_PLANNED})" if why and not self.in_advance else ""
        if number == 1:
            return f"{both} for 1 release{reason}"
        return f"{both} for {number} releases together{left if self.unpaid else ''}{reason}"


def earlier_releases_caveat(*costs: StudyCost) -> str | None:
    """Return a caveat on the plan of a study if anything was released before it, else None.

    >>> whole = Guarantee(epsilon=1.0, delta=1e-5)
    >>> cost = StudyCost(name="a", releases=1, unpaid=0, guarantee=whole, in_advance=True)
    >>> earlier_releases_caveat(cost) is None
    True
    """
    earlier = sum(cost.earlier for cost in costs)
    if not earlier:
        return None
    were = "1 other release" if earlier == 1 else f"{earlier} other releases"
    return (
        f"{were} of this data set came before: if their results led to this study, only the "
        "ledger's publishable ε of all releases covers that."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalStudyCost:
    """The cost of a study by both methods: in one ledger and in the data set's other one."""

    here: StudyCost
    other: StudyCost | None  # in the other ledger
    together: Guarantee | None  # None: nothing is guaranteed

    @property
    def parts(self) -> tuple[StudyCost, ...]:
        return (self.here,) if self.other is None else (self.here, self.other)

    @property
    def releases(self) -> int:
        return sum(each.releases for each in self.parts)

    @property
    def in_advance(self) -> bool:
        return all(each.in_advance for each in self.parts)

    @property
    def coverage(self) -> Coverage:
        """The unit that is protected, where the ledgers' cost of all their releases counts."""
        running = [each.running for each in self.parts if each.running is not None]
        return coverage_of(set().union(*(each.groups for each in running)))

    def describe(self) -> str:
        """Return the cost in words, to follow "cost".

        >>> cost = StudyCost(name="a", releases=2, unpaid=0, in_advance=False,
        ...                  guarantee=Guarantee(epsilon=1.0, delta=1e-5))
        >>> TotalStudyCost(here=cost, other=None, together=cost.guarantee).describe()[:34]
        'ε = 1 at δ = 1e-5 together (the le'
        """
        why = "" if self.in_advance else f" ({NOT_PLANNED})"
        relation = ""
        if self.together is not None and self.together.neighbours not in _USUAL:
            relation = f" for {describe_neighbours(self.together.neighbours)}"
        whole = None if self.together is None else self.together.neighbours
        mixed = f"; {self.coverage.describe(whole)}" if self.coverage is Coverage.MIXED else ""
        return f"{_figure(self.together)} together{relation}{why}{mixed}"


def combined_guarantee(guarantees: Iterable[Guarantee], *, replace_one: bool = False) -> Guarantee:
    """Return the guarantee of several together: their ε add up, and so do their δ.

    For the results of different accountants (PATE and DP-SGD); the charges of one ledger cost less
    as one plan (:func:`study_cost`). Where relations differ, all are stated for the weakest
    (:meth:`Neighbours.combine`). With ``replace_one`` those for one record added, removed or
    zeroed out are first restated for one record replaced.

    Guarantees:
        Dwork & Roth 2014, Theorem 3.16: mechanisms that are (εᵢ, δᵢ)-DP for the same neighbours are
        (Σεᵢ, Σδᵢ)-DP together, also if later ones see the results of earlier ones.

    >>> one, other = Guarantee(epsilon=2.0, delta=1e-5), Guarantee(epsilon=1.0, delta=1e-5)
    >>> combined_guarantee([one, other]).epsilon
    3.0
    """
    parts = [restate_for_replacement(each) if replace_one else each for each in guarantees]
    if len(parts) == 1:
        return parts[0]
    neighbours = Neighbours.AS_STATED
    for each in parts:
        neighbours = neighbours.combine(each.neighbours)
    return Guarantee(
        epsilon=math.fsum(each.epsilon for each in parts),
        delta=_probability(math.fsum(each.delta for each in parts)),
        data_dependent=any(each.data_dependent for each in parts),
        neighbours=neighbours,
        caveats=tuple(dict.fromkeys(caveat for each in parts for caveat in each.caveats)),
    )


def restate_for_replacement(guarantee: Guarantee) -> Guarantee:
    """Restate a guarantee for one record added, removed or zeroed out for one replaced.

    Guarantees:
        Vadhan 2017, Lemma 2.2, for a group of two: a replaced record is one removed and one added
        (or one contribution removed and another put in its place), so (ε, δ) becomes
        (2ε, (1 + e^ε)δ). Other guarantees are returned unchanged.

    >>> stated = Guarantee(epsilon=1.0, delta=1e-5, neighbours=Neighbours.ADD_REMOVE)
    >>> restate_for_replacement(stated).epsilon, round(restate_for_replacement(stated).delta, 8)
    (2.0, 3.718e-05)
    """
    if guarantee.neighbours not in (Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT):
        return guarantee
    if not math.isfinite(guarantee.epsilon):
        return replace(guarantee, neighbours=Neighbours.REPLACE_ONE)
    epsilon, delta = group(guarantee.epsilon, guarantee.delta, size=2)
    return replace(
        guarantee,
        epsilon=epsilon,
        delta=_probability(delta),
        moment=None,
        neighbours=Neighbours.REPLACE_ONE,
    )


def study_cost(
    ledger: Ledger,
    study: str,
    *,
    more: Sequence[Sequence[Event]] = (),
    one_teacher: Neighbours | None = None,
    group: str | None = None,
    by_plan: bool = True,
) -> StudyCost:
    """Return the cost of one study in a ledger.

    ``more`` are releases that are not charged yet, and are counted as if they were; ``group`` is
    the column of the users whom they protect. Without ``by_plan`` it is the ledger's cost of all
    its releases, whatever was planned.

    Votes are charged for data sets in which one teacher is replaced. ``one_teacher`` is the
    relation between records that causes this (``recipe.neighbours``), where the charges do not note
    it: costs of votes are then stated for that relation. By default it is the one that all of them
    note.

    Guarantees:
        * Where the plan in the ledger covers all of its charges
          (:meth:`~pate.accounting.ledger.studies.StudyPlan.covers`), the log-moments of the whole
          plan, added up (:func:`compose_votes`) and converted to ε at the best λ; where all of it
          is pure, the sum of its ε at δ = 0 (Dwork et al. 2006), unless some δ buys an ε that is
          smaller by more than 1 %. That includes what is not paid for yet: results may have
          decided when to stop.
        * Where it does not, :meth:`~pate.accounting.Ledger.guarantee` of the ledger, which holds
          however charges were chosen; where some were charged under another relation than
          ``one_teacher``, restated for one record replaced.
        * It is about users only where all releases protect those of one column
          (:func:`~pate.accounting.ledger.data_set.of_one_column`).
        * Releases whose noise was seeded are not private; their guarantee has a caveat.
    """
    charges = ledger.charges()
    paid = [each for each in charges if study in each.studies]
    if one_teacher is None:
        one_teacher = _noted(charges)
    plan = ledger.study_plans().get(study) if by_plan else None
    listed = [(each.number, each.events) for each in paid]
    if plan is not None and not plan.covers([*listed, *((_LATER, events) for events in more)]):
        plan = None
    planned = None if plan is None else _of_plan(ledger, plan, paid, one_teacher)
    if plan is None or planned is None:
        plan, unpaid = None, len(more)
        events = [event for each in more for event in each]
        guarantee = ledger.guarantee(more=events, records=one_teacher)
        if guarantee.neighbours is Neighbours.REPLACE_ONE and one_teacher is not None:
            guarantee = replace(guarantee, neighbours=one_teacher)
    else:
        guarantee = planned
        unpaid = max(0, len(plan.releases) - len(paid))
    columns = {each.group for each in (charges if plan is None else paid)}
    columns |= _columns_of(more, one_teacher, group)
    guarantee = replace(guarantee, neighbours=of_one_column(guarantee.neighbours, columns))
    running = None
    if plan is None:
        running = _running(ledger, guarantee, one_teacher, more=events, columns=columns)
    if running is not None and len(running.records) > 1:  # of several partitions
        guarantee = _total_running([running], [guarantee])
    if ledger.path.name.endswith(NOT_PRIVATE):
        guarantee = replace(guarantee, caveats=("none of these releases is private",))
    return StudyCost(
        name=study,
        releases=len(paid),
        unpaid=unpaid,
        guarantee=guarantee,
        in_advance=plan is not None,
        earlier=0 if plan is None else plan.after,
        running=running,
    )


def _noted(charges: Iterable[Charge]) -> Neighbours | None:
    """Return the relation noted with all charges of teachers' votes; None if it is not one."""
    noted = {each.records for each in charges if any(map(_is_of_teachers, tally(each.events)))}
    return noted.pop() if len(noted) == 1 else None


def _columns_of(
    more: Iterable[Sequence[Event]], one_teacher: Neighbours | None, group: str | None
) -> set[str | None]:
    """Return the columns whose groups releases will protect; None stands for single records."""
    later = {single.neighbours for each in more for single in tally(each)}
    if Neighbours.REPLACE_ONE in later and one_teacher is not None:
        later = later - {Neighbours.REPLACE_ONE} | {one_teacher}
    return {group if each.of_users else None for each in later}


def _running(
    ledger: Ledger,
    guarantee: Guarantee,
    one_teacher: Neighbours | None,
    *,
    more: Sequence[Event],
    columns: Collection[str | None],
) -> LedgerShare:
    """Return the cost of all releases of a ledger, with the relations of its charges."""
    assert guarantee.moment is not None
    charges, later = ledger.charges(), tally(more)
    events = tally(event for each in charges for event in each.events)
    of_votes = ledger.terms.budget.neighbours is Neighbours.REPLACE_ONE
    tables = of_votes and any(map(states_records, (*events, *later)))
    noted = {each.records for each in charges}
    if tables:
        noted |= {each.neighbours if states_records(each) else one_teacher for each in later}
    # Beside tables, votes of a partition that was not noted hold under no relation between records.
    kept = noted if tables and None in noted else {guarantee.neighbours, *noted} - {None}
    return LedgerShare(
        ledger=ledger.path.name,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        moment=guarantee.moment,
        records=frozenset(kept),
        groups=frozenset(columns),
        tables=tables,
    )


def _of_plan(
    ledger: Ledger, plan: StudyPlan, paid: Iterable[Charge], one_teacher: Neighbours | None
) -> Guarantee | None:
    """Return the cost of a plan; None where no one relation between records covers all of it.

    What the charges of votes note of their partition comes before ``one_teacher``; that is one
    between users only where all of them protect users.
    """
    terms, counts = ledger.terms.budget, tally(plan.events)
    assert terms.conversion is not None
    votes = [each for each in paid if any(map(_is_of_teachers, tally(each.events)))]
    noted = {each.records for each in votes} - {None}
    if noted:
        by_user = one_teacher is not None and one_teacher.of_users
        by_user = by_user and all(each.group is not None for each in votes)
        if not (by_user and noted == {Neighbours.ADD_REMOVE}):
            if len(noted) > 1:
                return None
            (one_teacher,) = noted
    try:
        moments = compose_votes(counts, one_teacher=one_teacher)
    except InvalidInput:
        return None
    whole = moments.guarantee(delta=terms.delta, conversion=terms.conversion)
    pure = pure_sum(counts)
    if pure is not None and rounded_up(pure) <= 1.01 * whole.epsilon:
        whole = Guarantee(
            epsilon=rounded_up(pure),
            delta=0.0,
            neighbours=whole.neighbours,
            accountant=Accountant.PURE,
        )
    if any(map(states_records, counts)):
        return whole
    relation = whole.neighbours.combine(terms.neighbours)
    if relation is Neighbours.REPLACE_ONE and one_teacher is not None:
        relation = one_teacher
    return replace(whole, neighbours=relation)


def _is_of_teachers(event: Event) -> bool:
    """Return whether an event holds where one teacher changes, and not one record."""
    return event.neighbours is Neighbours.REPLACE_ONE and not isinstance(event, ForReplacement)


def compose_votes(
    events: Iterable[Event] | Mapping[Event, int], *, one_teacher: Neighbours | None
) -> LogMoments:
    """Add up the costs of answers of teachers and of tables of record votes.

    ``one_teacher`` is the relation between records under which one teacher changes.

    Raises
    ------
    InvalidInput
        If there are both, and no relation between records covers both.

    Guarantees:
        The log-moment of an answer holds between any two data sets on which one teacher differs, so
        between those that ``one_teacher`` relates; that of a table holds for the relation that it
        states. Between data sets that both relate, log-moments of adaptively chosen mechanisms add
        up (Abadi et al. 2016, Theorem 2.1).

    >>> from pate.accounting import ForAddRemove, GaussianNoisyMaxAnswer, PureDP
    >>> both = [GaussianNoisyMaxAnswer(sigma=40.0), ForAddRemove(PureDP(epsilon=0.1))]
    >>> compose_votes(both, one_teacher=Neighbours.ADD_REMOVE).neighbours.value
    'add-remove'
    """
    counts = dict(events) if isinstance(events, Mapping) else tally(events)
    listed = [Repeated(event, count) for event, count in counts.items()]
    votes = [each for each in listed if _is_of_teachers(each.event)]
    others = [each for each in listed if each not in votes]
    if not votes or not others:
        return compose(listed)
    if one_teacher is None:
        raise InvalidInput(
            "votes of teachers and of records add up where one record is added or removed, and of "
            "the teachers' votes no relation between records is known"
        )
    return replace(compose(votes), neighbours=one_teacher) + compose(others)


def total_study_costs(
    ledger: Ledger,
    *,
    among: Collection[str] | None = None,
    one_teacher: Neighbours | None = None,
    by_plan: bool = True,
) -> tuple[TotalStudyCost, ...]:
    """Return the cost of each study in a ledger and in the data set's other one."""
    names = dict.fromkeys(study for charge in ledger.charges() for study in charge.studies)
    wanted = [name for name in names if among is None or name in among]
    place = sibling_ledger(ledger.path)
    with Ledger.open(place) if place.exists() else nullcontext() as other:
        return tuple(
            total_study_cost(ledger, other, name, one_teacher=one_teacher, by_plan=by_plan)
            for name in wanted
        )


def total_study_cost(
    ledger: Ledger,
    other: Ledger | None,
    study: str,
    *,
    more: Sequence[Sequence[Event]] = (),
    more_there: Sequence[Sequence[Event]] = (),
    one_teacher: Neighbours | None = None,
    group: str | None = None,
    by_plan: bool = True,
) -> TotalStudyCost:
    """Return the cost of one study in this ledger and in the ``other`` of the same data, together.

    ``more`` and ``more_there`` are releases that are not charged yet, and ``group`` is the column
    of the users that they protect (:func:`study_cost`). Without ``by_plan`` it is the ledgers' cost
    of all their releases, whatever was planned.

    Guarantees:
        The costs of both add up (:func:`combined_guarantee`); if votes were charged for one record
        replaced, both are stated for that. If either ledger was charged for anything unplanned,
        results of one method may have led to releases of the other: then both count with the cost
        that holds however charges were chosen. It is about users only where the releases of both
        protect those of one column.
    """
    cost_in = partial(study_cost, one_teacher=one_teacher, group=group)
    for planned in (True, False) if by_plan else (False,):
        here = cost_in(ledger, study, more=more, by_plan=planned)
        there = None
        if other is not None:
            there = cost_in(other, study, more=more_there, by_plan=planned)
            if not there.releases + there.unpaid:
                there = None
        if here.in_advance and (there is None or there.in_advance):
            break
    parts = [here] if there is None else [here, there]
    paid = (each for book in (ledger, other) if book is not None for each in book.charges())
    columns = {each.group for each in paid if study in each.studies or not here.in_advance}
    columns |= _columns_of((*more, *more_there), one_teacher, group)
    return TotalStudyCost(here=here, other=there, together=_added(parts, columns))


def _added(parts: list[StudyCost], columns: Collection[str | None]) -> Guarantee | None:
    """Return the guarantee of all parts together; None if δ reaches one.

    ``columns`` are those whose groups the releases protect: votes by users hold for one user, too.
    """
    costs = [each.guarantee for each in parts]
    if coverage_of(columns) is Coverage.USER and any(each.neighbours.of_users for each in costs):
        of_user = {Neighbours.ADD_REMOVE: Neighbours.USER_ADD_REMOVE}
        renamed = [of_user.get(each.neighbours, each.neighbours) for each in costs]
        pairs = zip(costs, renamed, strict=True)
        costs = [replace(each, neighbours=relation) for each, relation in pairs]
    running = [each.running for each in parts if each.running is not None]
    relations = {each.neighbours for each in costs}
    mixed = len(relations) > 1 and Neighbours.REPLACE_ONE in relations
    mixed = mixed or (len(running) > 1 and any(None in each.records for each in running))
    try:
        if mixed and len(running) == len(parts):
            total = _total_running(running, costs)
        else:
            total = combined_guarantee(costs, replace_one=mixed)
        return replace(total, neighbours=of_one_column(total.neighbours, columns))
    except InvalidInput:
        return None


def _total_running(running: list[LedgerShare], costs: list[Guarantee]) -> Guarantee:
    """Return the running totals together, for one record replaced where relations differ.

    Guarantees:
        As :func:`pate.accounting.ledger.data_set.total_of`. A group of two needs an ε that was
        fixed in advance (:func:`restate_for_replacement`); a running one is not.
    """
    total = total_of(running)
    assert total.neighbours is not None
    return replace(
        combined_guarantee(replace(each, neighbours=Neighbours.AS_STATED) for each in costs),
        epsilon=total.epsilon,
        delta=_probability(total.delta),
        moment=None,
        neighbours=total.neighbours,
    )


def _figure(guarantee: Guarantee | None) -> str:
    if guarantee is None:
        return "without any guarantee for one record replaced by another"
    return format_cost(guarantee.epsilon, guarantee.delta)


def _probability(delta: float) -> float:
    if not delta < 1:
        raise InvalidInput("δ adds up to 1, which guarantees nothing; choose a smaller δ")
    return delta
