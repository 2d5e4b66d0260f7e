"""account: the cost of the release by every rule; what may be published of it, and what not.

Guarantees, where the cost follows from what was answered: inputs chosen by earlier answers
(``choose = "uncertain"``), and checks that let a query through or not (``confident``,
``interactive``):
    * **Data-independent.** An answer costs the same whatever it is asked about: nothing changes.
    * **Data-dependent.** Let o be what was released, x_i(o) what was done in the i-th step (a check
      or an answer, and on which input), fixed by the outcomes before it, and c_i(o) the bound of
      its cost at Rényi order α, worked out from the votes on x_i. Whatever came before,
      E[e^{(α−1) loss_i}] ≤ e^{(α−1) c_i}, the mean over the i-th outcome for the data at hand.
      Multiplied up, step by step, E[e^{(α−1)(loss(o) − c(o))}] ≤ 1 with c = Σ c_i, at a fixed α.
      With ε(o) = c(o) plus what a conversion adds at α and δ, Markov's inequality gives
      Pr[loss > ε(o)] ≤ δ (classic), and
      (1 − e^{−x})₊ ≤ (1/α)(1 − 1/α)^{α−1} e^{(α−1)x} gives E[(1 − e^{ε(o) − loss})₊] ≤ δ
      (improved): for every set S of outcomes, Pr[S] ≤ Σ_{o ∈ S} e^{ε(o)} Pr'[o] + δ. So the figure
      holds for the answers that came, at one order fixed in advance (a filter's argument: Feldman &
      Zrnic 2021); the best of many orders would be chosen by the answers too, and is not taken.
    * **Sanitised.** For every o the queries are fixed, and the cost is a function of the votes on
      them, of which one teacher changes at most one for each query: the premise of its smooth
      sensitivity (:mod:`pate.accounting.smooth`), which reads nothing else. So given o publishing
      costs the plan's price, the same for all o, and the two add up (adaptive composition,
      Mironov 2017, Proposition 1). The price adds to c(o) in the bound above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pate.accounting import (
    Analysis,
    Conversion,
    Event,
    Ledger,
    LogMoments,
    Neighbours,
    PureDP,
    ReleasePlan,
    Repeated,
    compose,
    guarantee_of_plan,
    sanitise,
)
from pate.accounting.composition import advanced, basic, pure_epsilon
from pate.accounting.events import tally
from pate.accounting.smooth import SensitiveCost
from pate.artifacts import Artifact, Draft, Level
from pate.artifacts.results import (
    LABELS,
    SANITISED,
    Costs,
    Labels,
    PrivateCosts,
    SanitisedGuarantee,
    StatedGuarantee,
    charge_name,
    drawn_for,
)
from pate.errors import BudgetExceeded, ConditionsFail, InvalidInput, SpendNeeded
from pate.mechanisms import Mechanism, Plan, Randomness, student_baseline, voting_mechanism
from pate.pipeline.ledger import open_ledger
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.exactly_once import (
    charges_behind,
    covers_unit,
    guarantee_of_all,
    release_once,
)

_CHOSEN = (
    "the settings were chosen privately among several: what holds is the cost of the choice, "
    "which does not follow from the votes behind the winner"
)


FORGOTTEN = "records were forgotten, and with them the votes that these labels were drawn from"
_NOT_ASKED = "not asked for"
_PAID_BEFORE = "to draw it now needs --spend"
_TABLE = "the cost of a noised table is the same for all votes"


def _settings(recipe: Recipe, options: Options) -> Any:
    chosen = {} if recipe.selection is None else {"selection": recipe.selection.model_dump()}
    privacy = recipe.privacy.model_dump(mode="json", exclude={"budget"})
    return chosen | {
        "aggregate": recipe.aggregate.model_dump(mode="json"),
        "privacy": privacy | {"sanitise": bool(recipe.privacy.sanitise)},
        "insecure_seed": options.insecure_seed,
    }


def _run(context: Context) -> None:
    """Write all figures, and publish a sanitised one where that is asked for and possible."""
    recipe = context.recipe
    labels = Labels.load(context.inputs["aggregate"])
    costs = _public_costs(labels, recipe)
    if recipe.selection is not None:
        _write_independent(context, costs, why=_CHOSEN)
        return
    if recipe.by_records:
        _write_independent(context, costs, why=_TABLE)
        return
    exclusions = context.options.exclusions
    if exclusions is not None and context.inputs["vote"].key in exclusions.stands_for:
        # In the open the reason is one that other runs have, too.
        _write_independent(
            context,
            costs,
            why=_PAID_BEFORE if recipe.privacy.sanitise else _NOT_ASKED,
            private=FORGOTTEN,
        )
        return
    mechanism, votes = voting_mechanism(recipe.aggregate), _Votes.of(context, labels)
    with open_ledger(recipe, context.options) as ledger:
        order = order_of(ledger)
        # What was paid for may depend on answers: then the best λ does, too.
        moments = [order - 1] if recipe.aggregate.cost_follows_answers else None
        dependent = votes.total(mechanism, moments, recipe.privacy.bounds)
        with context.draft(Level.PRIVATE, part="private") as draft:
            PrivateCosts(guarantees=_by_conversion(dependent, recipe.privacy.delta)).save(draft)
        cost, why = _sensitive(votes, recipe, order)
        if labels.extended and not covers_unit(recipe, ledger):
            cost, why = None, "other releases protect single records only"
        if cost is not None:
            plan = ReleasePlan.default(order=order, doubt=recipe.privacy.doubt)
            try:
                _release(context, labels, costs, cost, plan, ledger)
                return
            except BudgetExceeded:
                why = "the budget of the data set does not cover its price"
            except SpendNeeded:  # its message names the ledger's place
                why = _PAID_BEFORE
    with context.draft(Level.RELEASED) as draft:
        replace(costs, why_not=why).save(draft)


def order_of(ledger: Ledger) -> float:
    """Return the Rényi order at which the ledger adds up: fixed when it was made, before votes."""
    moment = ledger.terms.budget.moment
    assert moment is not None  # a ledger of events has one
    return moment + 1


def require_computable(recipe: Recipe, plan: Plan, *, classes: int, order: float) -> None:
    """Refuse settings at which some figure cannot be computed, while nothing is charged yet.

    All that is computed once the labels are paid for is computed on made-up votes.
    """
    mechanism, votes = voting_mechanism(recipe.aggregate), _Votes.made_up(recipe, classes=classes)
    try:
        _by_conversion(_composed(plan.events, recipe), recipe.privacy.delta)
        _older_rules(plan.events, recipe.privacy.delta)
        for moments in ([order - 1], None):
            total = votes.total(mechanism, moments, recipe.privacy.bounds)
            _by_conversion(total, recipe.privacy.delta)
        _sensitive(votes, recipe, order)
    except (ArithmeticError, ValueError) as error:
        raise InvalidInput(
            f"what {recipe.asked} cost cannot be computed ({type(error).__name__}); nothing was "
            "charged: choose other noise in [aggregate]"
        ) from error


def sanitised_price(recipe: Recipe, *, classes: int, order: float) -> tuple[Event, ...]:
    """Return what publishing a sanitised ε will be charged with; public settings decide that."""
    if recipe.by_records:
        return ()
    cost, _ = _sensitive(_Votes.made_up(recipe, classes=classes), recipe, order)
    if recipe.selection is not None or cost is None or not cost.local_sensitivity.any():
        return ()
    return (ReleasePlan.default(order=order, doubt=recipe.privacy.doubt).event,)


def _write_independent(
    context: Context, costs: Costs, *, why: str, private: str | None = None
) -> None:
    """Write the one figure that there is of a selection, a table, or votes that are forgotten.

    Guarantees:
        Of a selection no data-dependent figure is worked out, nor sanitised: the cost of a choice
        rests on all tries, of which only the winner is known, and its bound (Papernot & Steinke
        2022, Theorem 2) needs the cost of every try at worst. Nor is one worked out from votes that
        labels were not drawn from.
    """
    with context.draft(Level.PRIVATE, part="private") as draft:
        PrivateCosts(guarantees={}, why_not=private or why).save(draft)
    with context.draft(Level.RELEASED) as draft:
        replace(costs, why_not=why).save(draft)


def _sensitive(
    votes: _Votes, recipe: Recipe, order: float
) -> tuple[SensitiveCost | None, str | None]:
    """Return the cost to sanitise, or why there is none; that depends on public settings alone."""
    if not recipe.privacy.sanitise:
        return None, _NOT_ASKED
    if recipe.privacy.epsilon is not None:
        return None, "its price would come on top of privacy.epsilon"
    try:
        return votes.sensitive(voting_mechanism(recipe.aggregate), order), None
    except (ConditionsFail, InvalidInput) as error:
        return None, str(error)


def _release(
    context: Context,
    labels: Labels,
    costs: Costs,
    cost: SensitiveCost,
    plan: ReleasePlan,
    ledger: Ledger,
) -> None:
    """Publish the sanitised ε, exactly once, and charge its price.

    A cost that is the same for all votes is published as it is: nothing is charged, and the
    guarantee stays that of the labels.
    """
    recipe, neighbours = context.recipe, context.recipe.neighbours
    conversion = Conversion(recipe.privacy.conversion)
    randomness = Randomness.open(insecure_seed=context.options.insecure_seed)
    price: tuple[Event, ...] = (plan.event,) if cost.local_sensitivity.any() else ()

    def prepare(draft: Draft, name: str) -> None:
        result = sanitise(
            cost,
            plan=plan,
            delta=recipe.privacy.delta,
            rng=randomness.generator,
            conversion=conversion,
        )
        figure = SanitisedGuarantee.from_json(result.as_json())
        replace(figure, neighbours=neighbours.value).save(draft)

    def publish(answer: Artifact, draft: Draft) -> None:
        stated = replace(costs, sanitised=SanitisedGuarantee.load(answer))
        if labels.extended:  # then the ledger's figure covers it all
            whole = StatedGuarantee.of(guarantee_of_all(recipe, ledger), neighbours=neighbours)
            stated = replace(stated, guarantee=whole)
        elif price:
            total = _composed([*labels.plan.events, *price], recipe)
            whole = _stated(total, recipe.privacy.delta, conversion, neighbours)
            stated = replace(stated, guarantee=whole)
        stated.save(draft)

    drawn = str(drawn_for(context.inputs["aggregate"]))
    release_once(
        context,
        kind=SANITISED,
        source="aggregate",
        ledger=ledger,
        events=price,
        prepare=prepare,
        publish=publish,
        # Of a draw that is gone, what is known of its name: its studies must not miss this price.
        builds_on=charges_behind(context.store, LABELS, drawn) or [charge_name(LABELS, drawn)],
    )


def _public_costs(labels: Labels, recipe: Recipe) -> Costs:
    """Return all that follows from public events, stated of the data sets the partition covers."""
    delta, neighbours = recipe.privacy.delta, recipe.neighbours
    reading = _planned(labels.events, recipe)
    return Costs(
        guarantee=replace(labels.plan.guarantee, neighbours=neighbours.value),
        protects=labels.protects,
        randomness=labels.randomness,
        # How much was answered was not fixed in advance: a reading, which covers nothing.
        odometer={name: replace(each, publishable=False) for name, each in reading.items()},
        plan=_planned(labels.plan.events, recipe),
        composition=_older_rules(labels.plan.events, delta) if delta else None,
    )


def _planned(events: Sequence[Event], recipe: Recipe) -> dict[str, StatedGuarantee]:
    """Return the cost of events by each conversion; without a δ there is none to do."""
    if not recipe.privacy.delta:
        pure = StatedGuarantee.of(
            guarantee_of_plan(events, delta=0.0), neighbours=recipe.neighbours
        )
        return {each.value: pure for each in Conversion}
    return _by_conversion(_composed(events, recipe), recipe.privacy.delta, recipe.neighbours)


def _composed(events: Sequence[Event], recipe: Recipe) -> LogMoments:
    return compose(events, analysis=recipe.privacy.bounds)


def _by_conversion(
    total: LogMoments, delta: float, neighbours: Neighbours | None = None
) -> dict[str, StatedGuarantee]:
    return {each.value: _stated(total, delta, each, neighbours) for each in Conversion}


def _stated(
    total: LogMoments, delta: float, conversion: Conversion, neighbours: Neighbours | None
) -> StatedGuarantee:
    guarantee = total.guarantee(delta=delta, conversion=conversion)
    return StatedGuarantee.of(guarantee, neighbours=neighbours)


def _older_rules(events: Sequence[Event], delta: float) -> Mapping[str, float] | None:
    """Return naive and advanced composition, where every answer is (ε, 0)-DP."""
    counts = tally(events)
    if len(counts) != 1:
        return None
    ((event, count),) = counts.items()
    each = pure_epsilon(event)
    if each is None:
        return None
    return {
        "naive": basic([Repeated(PureDP(epsilon=each), count)])[0],
        "advanced": advanced(each, count=count, slack=delta),
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Votes:
    """The votes behind a release, and how to cost them. PRIVATE."""

    counts: NDArray[np.int64]
    answered: NDArray[np.bool_]
    baseline: NDArray[np.float64] | None
    teachers: int

    @classmethod
    def of(cls, context: Context, labels: Labels) -> Self:
        votes = context.inputs["vote"]
        counts = votes.array("counts.npy")[np.array(labels.asked)].astype(np.int64)
        teachers = int(votes.facts["teachers"])
        return cls(
            counts=counts,
            answered=np.isin(labels.asked, labels.answered),
            baseline=_baseline(context, counts, teachers),
            teachers=teachers,
        )

    @classmethod
    def made_up(cls, recipe: Recipe, *, classes: int) -> Self:
        """Return votes of which all agree, two classes are level, and nobody votes. PUBLIC."""
        teachers = recipe.teachers.count
        counts = np.zeros((3, classes), dtype=np.int64)
        counts[0, 0], counts[1, :2] = teachers, (teachers - teachers // 2, teachers // 2)
        return cls(
            counts=counts,
            answered=np.ones(len(counts), dtype=bool),
            baseline=np.zeros(counts.shape) if recipe.aggregate.kind.uses_student else None,
            teachers=teachers,
        )

    def total(self, mechanism: Mechanism, moments: Any, analysis: Analysis) -> LogMoments:
        """Return the data-dependent cost."""
        if not len(self.counts):
            return compose([], moments)
        # A registered mechanism may know of one analysis only, its own.
        given = {} if analysis is Analysis.TIGHT else {"analysis": analysis}
        return mechanism.data_dependent_cost(
            self.counts,
            moments=moments,
            answered=self.answered,
            baseline=self.baseline,
            **given,
        )

    def sensitive(self, mechanism: Mechanism, order: float) -> SensitiveCost:
        """Return the data-dependent cost with its sensitivity."""
        if not len(self.counts):
            raise InvalidInput("nothing was asked, so there is nothing to sanitise")
        return mechanism.sensitive_cost(
            self.counts,
            order=order,
            teachers=self.teachers,
            answered=self.answered,
            baseline=self.baseline,
        )


def _baseline(
    context: Context, counts: NDArray[np.int64], teachers: int
) -> NDArray[np.float64] | None:
    """Return what checks took off the counts: each round's student, zero in the first."""
    if not context.recipe.aggregate.kind.uses_student:
        return None
    baseline = np.zeros(counts.shape)
    drawn = str(drawn_for(context.inputs["aggregate"]))
    pending = context.store.open(f"pending-{LABELS}", drawn)
    for file in sorted(pending.path.glob("student-*.npy")):
        start = int(file.stem.split("-")[2])
        shown = np.load(file)[: len(counts) - start]
        baseline[start : start + len(shown)] = student_baseline(shown, teachers=teachers)
    return baseline


ACCOUNT = Stage(
    name="account",
    version=3,
    needs=("vote", "aggregate"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
