"""The cost of several releases together: as guarantees that add up, or as one plan.

A *study* is a set of releases made to be looked at together (a sweep, a comparison). Each costs its
own (ε, δ) if it was fixed before any result was seen. Publishing all of them, or choosing one by
its result, costs as much as all of them together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from pate._format import describe_neighbours, format_epsilon
from pate.accounting.composition import group
from pate.accounting.events import Event
from pate.accounting.guarantee import Guarantee, Neighbours
from pate.accounting.ledger import Ledger
from pate.accounting.ledger.data_set import NOT_PRIVATE, LedgerShare, sibling_ledger, total_of
from pate.accounting.ledger.studies import StudyPlan
from pate.accounting.moments import compose
from pate.errors import InvalidInput

_LATER = sys.maxsize  # the number of a charge that is still to come


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
        'ε = 1.235 at δ = 1e-05 for 3 releases together, 2 of them not made yet'
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

    def describe(self) -> str:
        """Return the cost in words, to follow "cost".

        >>> cost = StudyCost(name="a", releases=2, unpaid=0, in_advance=False,
        ...                  guarantee=Guarantee(epsilon=1.0, delta=1e-5))
        >>> TotalStudyCost(here=cost, other=None, together=cost.guarantee).describe()[:34]
        'ε = 1 at δ = 1e-05 together (the l'
        """
        why = "" if self.in_advance else f" ({NOT_PLANNED})"
        weaker = self.together is not None and self.together.neighbours is Neighbours.ZERO_OUT
        relation = f" for {describe_neighbours(Neighbours.ZERO_OUT)}" if weaker else ""
        return f"{_figure(self.together)} together{relation}{why}"


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
    by_plan: bool = True,
) -> StudyCost:
    """Return the cost of one study in a ledger.

    ``more`` are releases that are not charged yet, and are counted as if they were. Without
    ``by_plan`` it is the ledger's cost of all its releases, whatever was planned.

    Votes are charged for data sets in which one teacher is replaced. ``one_teacher`` is the
    relation between records that causes this (``recipe.partition.neighbours``), if it is the same
    for all of them: costs of votes are then stated for that relation.

    Guarantees:
        * Where the plan in the ledger covers all of its charges
          (:meth:`~pate.accounting.ledger.studies.StudyPlan.covers`), the log-moments of the whole
          plan, added up (Abadi et al. 2016, Theorem 2.1) and converted to ε at the best λ. That
          includes what is not paid for yet: results may have decided when to stop.
        * Where it does not, :meth:`~pate.accounting.Ledger.guarantee` of the ledger, which holds
          however charges were chosen; where some were charged under another relation than
          ``one_teacher``, restated for one record replaced.
        * Releases whose noise was seeded are not private; their guarantee has a caveat.
    """
    paid = [each for each in ledger.charges() if study in each.studies]
    plan = ledger.study_plans().get(study) if by_plan else None
    listed = [(each.number, each.events) for each in paid]
    if plan is not None and not plan.covers([*listed, *((_LATER, events) for events in more)]):
        plan = None
    if plan is None:
        guarantee = ledger.guarantee(more=(event for events in more for event in events))
        unpaid = len(more)
    else:
        guarantee = _of_plan(ledger, plan)
        unpaid = max(0, len(plan.releases) - len(paid))
    if guarantee.neighbours is Neighbours.REPLACE_ONE and one_teacher is not None:
        guarantee = replace(guarantee, neighbours=one_teacher)
    running = _running(ledger, guarantee, one_teacher) if plan is None else None
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


def _running(ledger: Ledger, guarantee: Guarantee, one_teacher: Neighbours | None) -> LedgerShare:
    """Return the cost of all releases of a ledger, with the relations of its charges."""
    assert guarantee.moment is not None
    noted = {each.records for each in ledger.charges() if one_teacher is not None} - {None}
    return LedgerShare(
        ledger=ledger.path.name,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        moment=guarantee.moment,
        records=frozenset({guarantee.neighbours, *noted}),
    )


def _of_plan(ledger: Ledger, plan: StudyPlan) -> Guarantee:
    terms = ledger.terms.budget
    assert terms.conversion is not None
    whole = compose(plan.events).guarantee(delta=terms.delta, conversion=terms.conversion)
    return replace(whole, neighbours=whole.neighbours.combine(terms.neighbours))


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
    by_plan: bool = True,
) -> TotalStudyCost:
    """Return the cost of one study in this ledger and in the ``other`` of the same data, together.

    ``more`` and ``more_there`` are releases that are not charged yet. Without ``by_plan`` it is the
    ledgers' cost of all their releases, whatever was planned.

    Guarantees:
        The costs of both add up (:func:`combined_guarantee`); if votes were charged for one record
        replaced, both are stated for that. If either ledger was charged for anything unplanned,
        results of one method may have led to releases of the other: then both count with the cost
        that holds however charges were chosen.
    """
    for planned in (True, False) if by_plan else (False,):
        here = study_cost(ledger, study, more=more, one_teacher=one_teacher, by_plan=planned)
        there = None
        if other is not None:
            there = study_cost(
                other, study, more=more_there, one_teacher=one_teacher, by_plan=planned
            )
            if not there.releases + there.unpaid:
                there = None
        if here.in_advance and (there is None or there.in_advance):
            break
    parts = [here] if there is None else [here, there]
    return TotalStudyCost(here=here, other=there, together=_added(parts))


def _added(parts: list[StudyCost]) -> Guarantee | None:
    """Return the guarantee of all parts together; None if δ reaches one."""
    costs = [each.guarantee for each in parts]
    running = [each.running for each in parts if each.running is not None]
    relations = {each.neighbours for each in costs}
    mixed = len(relations) > 1 and Neighbours.REPLACE_ONE in relations
    try:
        if mixed and len(running) == len(parts):
            return _total_running(running, costs)
        return combined_guarantee(costs, replace_one=mixed)
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
    return f"ε = {format_epsilon(guarantee.epsilon)} at δ = {format_epsilon(guarantee.delta)}"


def _probability(delta: float) -> float:
    if not delta < 1:
        raise InvalidInput("δ adds up to 1, which guarantees nothing; choose a smaller δ")
    return delta
