"""What several releases cost together: as figures that add up, or as one plan.

A *study* is a set of releases made to be looked at together (a sweep, a comparison). Each costs its
own (ε, δ) if it was fixed before any result was seen. Whoever publishes all of them, or chooses one
by its result, has spent what all of them cost together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pate.accounting.composition import group
from pate.accounting.data_ledger import NOT_PRIVATE
from pate.accounting.events import Event
from pate.accounting.guarantee import Guarantee, Neighbours
from pate.accounting.ledger import Ledger
from pate.accounting.moments import compose
from pate.accounting.shown import upwards
from pate.errors import InvalidInput

_DPSGD = ".dpsgd"  # after the name of a data set, in that of its second ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """What a ledger has paid for a study."""

    name: str
    releases: int
    guarantee: Guarantee  # of all of them together


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStudy:
    """What a study cost by both methods: in one ledger, and in that beside it."""

    here: StudyCost
    other: StudyCost | None  # in the ledger beside it
    together: Guarantee | None  # all asked for before any result was seen; None: no promise
    anyhow: Guarantee | None  # also where some was added later; it covers all in both ledgers

    @property
    def releases(self) -> int:
        return self.here.releases + (0 if self.other is None else self.other.releases)

    def told(self) -> str:
        """Both figures in words, after "cost".

        >>> cost = StudyCost(name="a", releases=2, guarantee=Guarantee(epsilon=1.0, delta=1e-5))
        >>> later = Guarantee(epsilon=2.0, delta=1e-5)
        >>> study = WholeStudy(here=cost, other=None, together=cost.guarantee, anyhow=later)
        >>> study.told().endswith("result was seen, and ε = 2 at δ = 1e-05 otherwise")
        True
        """
        return (
            f"{_figure(self.together)} together if all were asked for before any result was seen, "
            f"and {_figure(self.anyhow)} otherwise"
        )


def all_of(guarantees: Iterable[Guarantee], *, replace_one: bool = False) -> Guarantee:
    """Several guarantees at once: their ε add up, and so do their δ.

    For figures of different accountants (PATE and DP-SGD); what one ledger paid for costs less as
    one plan (:func:`study_costs`). Figures for different neighbours do not add up. With
    ``replace_one`` those for one record more or less are first restated for one record replaced.

    Guarantees:
        Dwork & Roth 2014, Theorem 3.16: mechanisms that are (εᵢ, δᵢ)-DP for the same neighbours are
        (Σεᵢ, Σδᵢ)-DP together, also if later ones see the results of earlier ones.

    >>> both = all_of([Guarantee(epsilon=2.0, delta=1e-5), Guarantee(epsilon=1.0, delta=1e-5)])
    >>> both.epsilon, both.delta
    (3.0, 2e-05)
    """
    parts = [for_replacement(each) if replace_one else each for each in guarantees]
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


def for_replacement(guarantee: Guarantee) -> Guarantee:
    """A guarantee for one record more or less, said of one record replaced; others stay.

    Guarantees:
        Vadhan 2017, Lemma 2.2, for a group of two: a replaced record is one removed and one added,
        so (ε, δ) becomes (2ε, (1 + e^ε)δ).

    >>> stated = Guarantee(epsilon=1.0, delta=1e-5, neighbours=Neighbours.ADD_REMOVE)
    >>> for_replacement(stated).epsilon, round(for_replacement(stated).delta, 8)
    (2.0, 3.718e-05)
    """
    if guarantee.neighbours is not Neighbours.ADD_REMOVE:
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


def study_costs(ledger: Ledger, *, one_teacher: Neighbours | None = None) -> tuple[StudyCost, ...]:
    """The studies in a ledger in the order of their first charge, each with what it cost in all.

    Votes are paid for between data sets for which one teacher is another one. ``one_teacher`` is
    the relation between records that does this (``recipe.partition.neighbours``), where all of them
    were dealt out alike: figures of votes are then for that relation.

    Guarantees:
        The log-moments of all its charges, added up (Abadi et al. 2016, Theorem 2.1) and turned
        into ε at the best λ: that holds where all of the study was fixed before its first result
        was seen, as one command does. For a study that was added to after a look at results,
        :meth:`~pate.accounting.Ledger.guarantee` of the ledger is what holds. Releases whose noise
        was seeded are not private; their figure says so in ``caveats``.
    """
    charges: dict[str, list[tuple[Event, ...]]] = {}
    for charge in ledger.charges():
        if charge.study is not None:
            charges.setdefault(charge.study, []).append(charge.events)
    terms = ledger.terms.budget
    assert terms.conversion is not None
    seeded = ledger.path.name.endswith(NOT_PRIVATE)
    costs = []
    for name, paid in charges.items():
        total = compose(event for events in paid for event in events)
        guarantee = total.guarantee(delta=terms.delta, conversion=terms.conversion)
        neighbours = guarantee.neighbours.combine(terms.neighbours)
        if neighbours is Neighbours.REPLACE_ONE and one_teacher is not None:
            neighbours = one_teacher
        guarantee = replace(
            guarantee,
            neighbours=neighbours,
            caveats=("none of these releases is private",) if seeded else (),
        )
        costs.append(StudyCost(name=name, releases=len(paid), guarantee=guarantee))
    return tuple(costs)


def whole_studies(
    ledger: Ledger, *, one_teacher: Neighbours | None = None
) -> tuple[WholeStudy, ...]:
    """The studies in a ledger, each with what it cost here and in the ledger beside it, together.

    Guarantees:
        What both cost adds up (:func:`all_of`); where figures of the two ledgers are for different
        neighbours, both are said of one record replaced. ``anyhow`` is what
        :meth:`~pate.accounting.Ledger.guarantee` says of the ledgers the study is in: it holds
        however charges were chosen, and is not below what the study alone cost.
    """
    others: dict[str, StudyCost] = {}
    second: Guarantee | None = None
    other = beside(ledger.path)
    if other.exists():
        with Ledger.open(other) as opened:
            others = {cost.name: cost for cost in study_costs(opened, one_teacher=one_teacher)}
            second = _of_all(opened, one_teacher)
    found = []
    for cost in study_costs(ledger, one_teacher=one_teacher):
        with_it = others.get(cost.name)
        parts, readings = [cost.guarantee], [_of_all(ledger, one_teacher)]
        if with_it is not None and second is not None:
            parts.append(with_it.guarantee)
            readings.append(second)
        found.append(
            WholeStudy(here=cost, other=with_it, together=_added(parts), anyhow=_added(readings))
        )
    return tuple(found)


def _of_all(ledger: Ledger, one_teacher: Neighbours | None) -> Guarantee:
    whole = ledger.guarantee()
    if whole.neighbours is Neighbours.REPLACE_ONE and one_teacher is not None:
        return replace(whole, neighbours=one_teacher)
    return whole


def _added(parts: list[Guarantee]) -> Guarantee | None:
    """All of them at once; None where δ came to one."""
    mixed = len({each.neighbours for each in parts}) > 1
    try:
        return all_of(parts, replace_one=mixed)
    except InvalidInput:
        return None


def _figure(guarantee: Guarantee | None) -> str:
    if guarantee is None:
        return "without any promise between data sets that differ in one record replaced"
    return f"ε = {upwards(guarantee.epsilon)} at δ = {upwards(guarantee.delta)}"


def beside(path: Path) -> Path:
    """The other ledger of the same data: DP-SGD's for that of PATE, and the other way round.

    >>> beside(Path("ledgers/mnist.ledger")).name, beside(Path("mnist.dpsgd.ledger")).name
    ('mnist.dpsgd.ledger', 'mnist.ledger')
    """
    kind = NOT_PRIVATE if path.name.endswith(f".{NOT_PRIVATE}") else "ledger"
    name = path.name.removesuffix(f".{kind}")
    other = name.removesuffix(_DPSGD) if name.endswith(_DPSGD) else f"{name}{_DPSGD}"
    return path.with_name(f"{other}.{kind}")


def _probability(delta: float) -> float:
    if not delta < 1:
        raise InvalidInput("δ comes to 1 in all, which promises nothing; choose a smaller δ")
    return delta
