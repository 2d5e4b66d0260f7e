"""account: what the release cost, in every way one may ask; what may be published, and what not.

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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import (
    Conversion,
    Event,
    LaplaceNoisyMaxAnswer,
    Ledger,
    LogMoments,
    Neighbours,
    PureDP,
    ReleasePlan,
    Repeated,
    compose,
    event_from_json,
    sanitise,
)
from pate.accounting.composition import advanced, basic
from pate.accounting.events import tally
from pate.accounting.smooth import SensitiveCost
from pate.artifacts import Artifact, Draft, Level
from pate.errors import BudgetExceeded, ConditionsFail, InvalidInput, SpendNeeded
from pate.mechanisms import Mechanism, Plan, Randomness, make_mechanism, student_baseline
from pate.pipeline.recipe import Recipe
from pate.pipeline.spending import open_ledger
from pate.pipeline.stage import Context, Options, Stage
from pate.stages.releasing import charges_behind, release_once

_CHOSEN = (
    "the settings were chosen privately among several: what holds is the cost of the choice, "
    "which the votes behind the winner do not tell"
)


def _settings(recipe: Recipe, options: Options) -> Any:
    chosen = {} if recipe.selection is None else {"selection": recipe.selection.model_dump()}
    return chosen | {
        "aggregate": recipe.aggregate.model_dump(mode="json"),
        "privacy": recipe.privacy.model_dump(mode="json", exclude={"budget"}),
        "insecure_seed": options.insecure_seed,
    }


def _run(context: Context) -> None:
    recipe = context.recipe
    released = context.inputs["aggregate"]
    report = _public_report(released, recipe)
    if recipe.selection is not None:
        _chosen(context, report)
        return
    votes = _Votes.of(context)
    with open_ledger(recipe, context.options) as ledger:
        order = order_of(ledger)
        # What was paid for may depend on answers: then the best λ does, too.
        moments = [order - 1] if recipe.aggregate.cost_follows_answers else None
        dependent = votes.total(make_mechanism(recipe.aggregate), moments)
        with context.draft(Level.PRIVATE, part="private") as draft:
            draft.save_json(
                "guarantees.json",
                {c.value: _json(dependent, recipe.privacy.delta, c) for c in Conversion},
            )
        cost, why = _sensitive(votes, recipe, order)
        if cost is not None:
            plan = ReleasePlan.default(order=order, doubt=recipe.privacy.doubt)
            try:
                _release(context, report, cost, plan, ledger)
                return
            except BudgetExceeded:
                why = "the budget of the data set does not cover its price"
            except SpendNeeded:  # its words name the ledger's place
                why = "it was paid for before, and to draw it again needs --spend"
    with context.draft(Level.RELEASED) as draft:
        _save(draft, report | {"sanitised": None, "why_not": why}, recipe)


def order_of(ledger: Ledger) -> float:
    """The Rényi order at which the ledger adds up: fixed when it was made, before these votes."""
    return _set(ledger.terms.budget.moment) + 1


def rehearse(recipe: Recipe, plan: Plan, *, classes: int, order: float) -> None:
    """Works out on made-up votes whatever is worked out once the labels are paid for.

    So settings at which some figure cannot be computed are refused while nothing is charged yet.
    """
    teachers = recipe.teachers.count
    made_up = np.zeros((3, classes), dtype=np.int64)  # all agree, two classes are level, none votes
    made_up[0, 0], made_up[1, :2] = teachers, (teachers - teachers // 2, teachers // 2)
    baseline = np.zeros(made_up.shape) if recipe.aggregate.kind.uses_student else None
    votes = _Votes(made_up, np.ones(len(made_up), dtype=bool), baseline, teachers)
    try:
        _figures_of_plan(list(plan.events), recipe.privacy.delta)
        for moments in ([order - 1], None):
            total = votes.total(make_mechanism(recipe.aggregate), moments)
            for conversion in Conversion:
                _json(total, recipe.privacy.delta, conversion)
        _sensitive(votes, recipe, order)
    except (ArithmeticError, ValueError) as error:
        raise InvalidInput(
            f"what {recipe.asked} cost cannot be computed ({type(error).__name__}); nothing was "
            "charged: choose other noise in [aggregate]"
        ) from error


def _chosen(context: Context, report: dict[str, Any]) -> None:
    """Of a private selection there is one figure.

    Guarantees:
        No data-dependent figure is worked out, nor sanitised: the cost of a choice rests on all
        tries, of which only the winner is known, and its bound (Papernot & Steinke 2022, Theorem 2)
        needs the cost of every try at worst.
    """
    with context.draft(Level.PRIVATE, part="private") as draft:
        draft.save_json("guarantees.json", {"why_not": _CHOSEN})
    with context.draft(Level.RELEASED) as draft:
        _save(draft, report | {"sanitised": None, "why_not": _CHOSEN}, context.recipe)


def _sensitive(
    votes: _Votes, recipe: Recipe, order: float
) -> tuple[SensitiveCost | None, str | None]:
    """The cost to sanitise, or why there is none. The reasons depend on public settings alone."""
    if not recipe.privacy.sanitise:
        return None, "not asked for"
    if recipe.privacy.epsilon is not None:
        return None, "its price would come on top of privacy.epsilon"
    try:
        return votes.sensitive(make_mechanism(recipe.aggregate), order), None
    except (ConditionsFail, InvalidInput) as error:
        return None, str(error)


def _release(
    context: Context,
    report: dict[str, Any],
    cost: SensitiveCost,
    plan: ReleasePlan,
    ledger: Ledger,
) -> None:
    """Publishes the sanitised ε, exactly once, and charges its price.

    A cost that is the same for all votes is published as it is: nothing is charged, and the
    guarantee stays that of the labels.
    """
    recipe, released = context.recipe, context.inputs["aggregate"]
    randomness = Randomness.open(insecure_seed=context.options.insecure_seed)
    price: tuple[Event, ...] = (plan.event,) if cost.local_sensitivity.any() else ()

    def prepare(draft: Draft, name: str) -> None:
        result = sanitise(
            cost,
            plan=plan,
            delta=recipe.privacy.delta,
            rng=randomness.generator,
            conversion=Conversion(recipe.privacy.conversion),
        )
        draft.save_json("sanitised.json", stated(result.as_json(), recipe.partition.neighbours))

    def publish(answer: Artifact, draft: Draft) -> None:
        told = report | {"sanitised": answer.json("sanitised.json")}
        if released.facts["extended"]:  # then the ledger's figure covers it all
            told["guarantee"] = ledger.guarantee().as_json()
        elif price:
            caps = [event_from_json(text) for text in released.json("plan.json")["events"]]
            conversion = Conversion(recipe.privacy.conversion)
            told["guarantee"] = _json(compose([*caps, *price]), recipe.privacy.delta, conversion)
        _save(draft, told, recipe)

    release_once(
        context,
        kind="sanitised",
        source="aggregate",
        ledger=ledger,
        events=price,
        prepare=prepare,
        publish=publish,
        builds_on=charges_behind(context.store, "labels", str(released.facts["drawn"])),
    )


def _save(draft: Draft, report: dict[str, Any], recipe: Recipe) -> None:
    """Writes the report; every figure in it speaks of the data sets that the partition covers."""
    draft.save_json("guarantees.json", stated(report, recipe.partition.neighbours))


def stated(value: Any, neighbours: Neighbours) -> Any:
    """Figures that hold where one teacher changes, said of the records behind the teachers."""
    if not isinstance(value, dict):
        return value
    told = {key: stated(each, neighbours) for key, each in value.items()}
    return told | {"neighbours": neighbours.value} if "neighbours" in value else told


def _json(total: LogMoments, delta: float, conversion: Conversion) -> dict[str, Any]:
    return total.guarantee(delta=delta, conversion=conversion).as_json()


def _public_report(released: Artifact, recipe: Recipe) -> dict[str, Any]:
    """Everything that follows from public events: the plan's guarantee, and its neighbours."""
    delta = recipe.privacy.delta
    plan = released.json("plan.json")
    caps = [event_from_json(text) for text in plan["events"]]
    happened = [event_from_json(text) for text in released.json("events.json")]
    return {
        "guarantee": plan["guarantee"],
        "protects": released.facts["protects"],
        "randomness": released.facts["randomness"],
        # How much was answered was not fixed in advance: a reading, which covers nothing.
        "odometer": {
            c.value: _json(compose(happened), delta, c) | {"publishable": False} for c in Conversion
        },
    } | _figures_of_plan(caps, delta)


def _figures_of_plan(caps: list[Event], delta: float) -> dict[str, Any]:
    """What the plan costs, by every rule."""
    return {
        "plan": {c.value: _json(compose(caps), delta, c) for c in Conversion},
        "composition": _older_rules(caps, delta),
    }


def _older_rules(events: list[Event], delta: float) -> dict[str, float] | None:
    """Naive and advanced composition, where every answer is (ε, 0)-DP."""
    counts = tally(events)
    if not counts or not all(isinstance(event, LaplaceNoisyMaxAnswer) for event in counts):
        return None
    ((event, count),) = counts.items()
    assert isinstance(event, LaplaceNoisyMaxAnswer)
    each = 2 / event.scale
    return {
        "naive": basic([Repeated(PureDP(epsilon=each), count)])[0],
        "advanced": advanced(each, count=count, slack=delta),
    }


class _Votes:
    """The votes behind a release, and how to cost them. PRIVATE."""

    def __init__(
        self,
        counts: NDArray[np.int64],
        answered: NDArray[np.bool_],
        baseline: NDArray[np.float64] | None,
        teachers: int,
    ) -> None:
        self.counts, self.answered = counts, answered
        self.baseline, self.teachers = baseline, teachers

    @classmethod
    def of(cls, context: Context) -> _Votes:
        votes, released = context.inputs["vote"], context.inputs["aggregate"]
        asked = np.array(released.array("asked.npy"))
        counts = votes.array("counts.npy")[asked].astype(np.int64)
        answered = np.isin(asked, released.array("answered.npy"))
        teachers = int(votes.facts["teachers"])
        return cls(counts, answered, _baseline(context, counts, teachers), teachers)

    def total(self, mechanism: Mechanism, moments: Any) -> LogMoments:
        if not len(self.counts):
            return compose([], moments)
        return mechanism.data_dependent_cost(
            self.counts, moments=moments, answered=self.answered, baseline=self.baseline
        )

    def sensitive(self, mechanism: Mechanism, order: float) -> SensitiveCost:
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
    """What an interactive release checked against: each round's student, zero in the first."""
    if not context.recipe.aggregate.kind.uses_student:
        return None
    baseline = np.zeros(counts.shape)
    pending = context.store.open("pending-labels", context.inputs["aggregate"].facts["drawn"])
    for file in sorted(pending.path.glob("student-*.npy")):
        start = int(file.stem.split("-")[2])
        shown = np.load(file)[: len(counts) - start]
        baseline[start : start + len(shown)] = student_baseline(shown, teachers=teachers)
    return baseline


def _set(value: float | None) -> float:
    assert value is not None  # the recipe was checked
    return value


ACCOUNT = Stage(
    name="account",
    version=3,
    needs=("vote", "aggregate"),
    clearance=Level.PRIVATE,
    settings=_settings,
    run=_run,
)
