"""Caps: as large as the budget allows and not one larger, from public numbers alone."""

from __future__ import annotations

import pytest

from pate.accounting import Analysis, Conversion, Guarantee, Ledger, compose
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms import AggregateSpec, make_mechanism, plan_caps

DELTA = 1e-5
CHECKED = {"threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0}


def spec_of(mechanism, **caps):
    noise = {"lnmax": {"scale": 20.0}, "gnmax": {"sigma": 40.0}}.get(mechanism, CHECKED)
    return AggregateSpec(mechanism=mechanism, **noise, **caps)


def plan(mechanism, *, epsilon=2.0, available=9000, caps=None, **options):
    options.setdefault("analysis", Analysis.PUBLISHED)
    spec = spec_of(mechanism, **(caps or {}))
    return plan_caps(
        make_mechanism(spec),
        spec,
        epsilon=epsilon,
        delta=DELTA,
        available_queries=available,
        **options,
    )


def cost(mechanism, queries, answers, **options):
    events = make_mechanism(spec_of(mechanism)).caps(queries=queries, answers=answers)
    analysis = options.pop("analysis", Analysis.PUBLISHED)
    total = compose(events, options.pop("moments", None), analysis=analysis)
    return total.guarantee(delta=DELTA, **options).epsilon


every = pytest.mark.parametrize("mechanism", ["lnmax", "gnmax", "confident", "interactive"])
checking = pytest.mark.parametrize("mechanism", ["confident", "interactive"])
single = pytest.mark.parametrize("mechanism", ["lnmax", "gnmax"])


@every
@pytest.mark.parametrize("analysis", Analysis)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_with_no_caps_every_query_may_be_answered_and_one_more_would_not_fit(
    mechanism, epsilon, analysis
):
    found = plan(mechanism, epsilon=epsilon, analysis=analysis)
    n = found.queries
    assert n == found.answers < 90_000
    here, beyond = (cost(mechanism, k, k, analysis=analysis) for k in (n, n + 1))
    assert found.guarantee.epsilon == here <= epsilon
    assert beyond > epsilon or n == 9000
    assert found.guarantee.analysis is analysis
    assert found.guarantee.publishable
    assert found.guarantee.delta == DELTA


@every
def test_tight_bounds_leave_room_for_more_answers(mechanism):
    published, tight = plan(mechanism), plan(mechanism, analysis=Analysis.TIGHT)
    assert tight.answers > 1.2 * published.answers
    assert tight.guarantee.analysis is Analysis.TIGHT
    assert 1.9 < tight.guarantee.epsilon <= 2


@checking
def test_with_answers_the_most_queries(mechanism):
    found = plan(mechanism, caps={"answers": 100})
    assert found.answers == 100 < found.queries < 9000
    assert cost(mechanism, found.queries, 100) <= 2 < cost(mechanism, found.queries + 1, 100)


@checking
def test_with_queries_the_most_answers(mechanism):
    found = plan(mechanism, caps={"queries": 1500})
    assert found.queries == 1500
    assert 1 <= found.answers < 1500
    assert cost(mechanism, 1500, found.answers) <= 2 < cost(mechanism, 1500, found.answers + 1)


@checking
def test_with_both_given_answers_give_way(mechanism):
    assert plan(mechanism, caps={"queries": 1500, "answers": 20}).answers == 20
    tight = plan(mechanism, caps={"queries": 1500, "answers": 1400})
    assert tight.queries == 1500
    assert tight.answers == plan(mechanism, caps={"queries": 1500}).answers


@checking
def test_queries_that_leave_no_room_for_an_answer_give_way(mechanism):
    assert cost(mechanism, 9000, 1) > 2
    assert plan(mechanism, caps={"queries": 9000}) == plan(mechanism)
    fewer = plan(mechanism, caps={"queries": 9000, "answers": 50})
    assert fewer == plan(mechanism, caps={"answers": 50})


@checking
def test_more_answers_than_fit_means_fewer_of_both(mechanism):
    assert plan(mechanism, caps={"answers": 9000}) == plan(mechanism)


@single
def test_for_a_mechanism_that_always_answers_both_caps_mean_the_same(mechanism):
    assert plan(mechanism, caps={"queries": 10}) == plan(mechanism, caps={"answers": 10})
    assert plan(mechanism, caps={"queries": 10}).answers == 10
    assert plan(mechanism, caps={"queries": 10, "answers": 5}).queries == 5


@every
def test_the_inputs_there_are_bound_everything(mechanism):
    for caps in ({}, {"queries": 500}, {"answers": 500}, {"queries": 500, "answers": 400}):
        found = plan(mechanism, epsilon=100.0, available=7, caps=caps)
        assert (found.queries, found.answers) == (7, 7)
        assert plan(mechanism, epsilon=None, available=7, caps=caps) == found


@every
def test_without_a_budget_the_recipes_caps_stand_and_are_priced(mechanism):
    found = plan(mechanism, epsilon=None, caps={"queries": 4000, "answers": 3000})
    assert found.answers == 3000
    assert found.queries == (4000 if mechanism in ("confident", "interactive") else 3000)
    assert found.guarantee.epsilon == cost(mechanism, 4000, 3000)
    everything = plan(mechanism, epsilon=None)
    assert (everything.queries, everything.answers) == (9000, 9000)


@every
def test_not_even_one_answer_is_a_refusal_that_says_so(mechanism):
    one = cost(mechanism, 1, 1)
    with pytest.raises(BudgetExceeded, match="one answer alone costs") as caught:
        plan(mechanism, epsilon=one * 0.999)
    assert caught.value.needed == one
    assert caught.value.spent == 0
    assert plan(mechanism, epsilon=one).answers == 1


@every
def test_conversion_and_moments_are_the_ones_asked_for(mechanism):
    classic = plan(mechanism, conversion=Conversion.CLASSIC)
    assert classic.guarantee.conversion is Conversion.CLASSIC
    assert classic.answers < plan(mechanism).answers
    n = classic.answers
    assert cost(mechanism, n + 1, n + 1, conversion=Conversion.CLASSIC) > 2
    fixed = plan(mechanism, moments=[20.0])
    assert fixed.guarantee.moment == 20.0
    assert fixed.answers < plan(mechanism).answers
    assert cost(mechanism, fixed.answers + 1, fixed.answers + 1, moments=[20.0]) > 2


@every
def test_a_ledger_opens_with_the_plan(mechanism, tmp_path):
    found = plan(mechanism, analysis=Analysis.TIGHT)
    budget = Guarantee(epsilon=2.0, delta=DELTA)
    with Ledger.open(tmp_path / "ledger.db", budget=budget, plan=found.events) as ledger:
        assert ledger.guarantee().epsilon == found.guarantee.epsilon
        ledger.charge(found.events, release="all of it")
        with pytest.raises(BudgetExceeded):
            ledger.charge(found.events[:1], release="more")


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_is_a_finite_number_above_zero(epsilon):
    with pytest.raises(InvalidInput, match="epsilon is"):
        plan("lnmax", epsilon=epsilon)


@pytest.mark.parametrize("available", [0, -1, 2.5])
def test_there_must_be_inputs(available):
    with pytest.raises(InvalidInput, match="public inputs"):
        plan("lnmax", available=available)
