"""Every ε of a run, and when it matters: the one to quote, and the others behind ``--details``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pate.accounting import Accountant, Conversion
from pate.accounting.ledger.data_set import DataSetTotal
from pate.artifacts.results import Costs, PrivateCosts
from pate.pipeline.recipe import Recipe
from pate.stages.caveats import sanitised_caveat

WHEN = {
    "guarantee": "Quote this one: it follows from the plan alone, and holds whatever the data are.",
    "moments": "Matters beside other releases: ledgers add up log-moments, at one λ.",
    "ledger": "Matters for the budget: all releases so far, added up at the one λ that the ledger "
    "fixed before the first of them, at which one release may count more than its guarantee.",
    "labels": "Matters where the sanitised ε is kept back: the labels and the student alone.",
    "conversion": "Matters beside work that converts log-moments by this rule.",
    "advanced": "Matters beside work that composes by Dwork, Rothblum & Vadhan 2010.",
    "naive": "Matters beside work that adds up the ε of single answers.",
    "answered": "Matters for planning the next run: a reading of what happened to be answered, no "
    "guarantee, not to be published.",
    "sanitised": "Matters to whoever asks what this data set really lost: computed from the votes "
    "and published with noise.",
    "dependent": "Matters to the owner alone, to see how far the guarantee overstates: computed "
    "from private votes, not to be published.",
}
"""One sentence for each ε on when it matters; the screen and the page share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon:
    """One ε of a run."""

    name: str
    epsilon: float | None  # None: there is none, and ``when`` has the reason
    when: str


def every_epsilon(
    costs: Costs, private: PrivateCosts, recipe: Recipe, *, total: DataSetTotal
) -> Iterator[Epsilon]:
    """Yield every ε of a run, the guarantee first; some are PRIVATE, for the owner's screen.

    ``total`` is what the data set has spent; left out if its δ is another one, or noise was seeded.
    """
    conversion = Conversion(recipe.privacy.conversion).value
    own, plan = costs.guarantee.epsilon, costs.plan[conversion].epsilon
    yield Epsilon(name="the guarantee", epsilon=own, when=WHEN["guarantee"])
    if total.delta == costs.guarantee.delta and not costs.seeded:
        yield Epsilon(name="whole data set", epsilon=total.epsilon, when=WHEN["ledger"])
    if costs.guarantee.accountant != Accountant.MOMENTS:
        yield Epsilon(name="log-moments", epsilon=plan, when=WHEN["moments"])
    if costs.sanitised is not None and costs.sanitised.price:
        yield Epsilon(name="labels alone", epsilon=plan, when=WHEN["labels"])
    for name, each in costs.plan.items():
        if name != conversion and each.conversion is not None:  # at δ = 0 nothing is converted
            yield Epsilon(name=f"{name} conversion", epsilon=each.epsilon, when=WHEN["conversion"])
    for name, epsilon in (costs.composition or {}).items():
        yield Epsilon(name=f"{name} composition", epsilon=epsilon, when=WHEN[name])
    happened = costs.odometer[conversion].epsilon
    if happened != plan:
        yield Epsilon(name="what was answered", epsilon=happened, when=WHEN["answered"])
    yield _sanitised(costs, recipe)
    if private.why_not is not None:
        yield Epsilon(name="data-dependent", epsilon=None, when=f"None: {private.why_not}.")
    else:
        dependent = private.guarantees[conversion]
        why = why_above(
            dependent.epsilon, own, moment=dependent.moment, accountant=costs.guarantee.accountant
        )
        yield Epsilon(
            name="data-dependent", epsilon=dependent.epsilon, when=f"{WHEN['dependent']}{why}"
        )


def _sanitised(costs: Costs, recipe: Recipe) -> Epsilon:
    found = costs.sanitised
    if found is None:
        why = costs.why_not or "not asked for"
        return Epsilon(name="sanitised", epsilon=None, when=f"None: {why}.")
    sentences = [WHEN["sanitised"], sanitised_caveat(recipe.aggregate)]
    if found.epsilon >= costs.guarantee.epsilon:
        sentences.append("Here it is not below the guarantee: quote that.")
    return Epsilon(name="sanitised", epsilon=found.epsilon, when=" ".join(sentences))


def why_above(
    dependent: float,
    guarantee: float,
    *,
    moment: float | None,
    accountant: str = Accountant.MOMENTS.value,
) -> str:
    """Return why a data-dependent ε lies above the guarantee, after a space; empty if it does not.

    At every λ the data-dependent cost is at most the plan's. Only where answers decide what is
    paid for is it taken at one λ that was fixed in advance, and the guarantee at the best one; or
    the guarantee rests on a tighter accountant.

    >>> why_above(1.0, 2.0, moment=5.0)
    ''
    >>> why_above(2.5, 2.0, moment=5.0)[:63]
    ' It is above the guarantee because it is taken at one λ (λ = 5)'
    """
    if dependent <= guarantee:
        return ""
    if accountant != Accountant.MOMENTS:
        return (
            " It is above the guarantee because it adds up log-moments, and the guarantee rests on "
            "a tighter rule of composition."
        )
    at = "" if moment is None else f" (λ = {moment:g})"
    return (
        f" It is above the guarantee because it is taken at one λ{at} that was fixed before the "
        "answers, which decide what is paid for; the guarantee is taken at the best λ."
    )
