"""The published ε: above the exact one as often as it says, and hidden by the noise it claims."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from oracles import expected_release

from pate.accounting import Conversion, Neighbours, ReleasePlan, sanitise
from pate.accounting.moments import log_moments
from pate.accounting.sanitise import on_grid
from pate.accounting.smooth import SensitiveCost, gnmax_cost
from pate.errors import InvalidInput

ORDER, DELTA = 20.0, 1e-5
PLAN = ReleasePlan.default(order=ORDER, doubt=0.05)


@pytest.fixture(scope="module")
def cost():
    rng = np.random.default_rng(3)
    right = rng.binomial(250, rng.uniform(0.7, 1.0, size=60))
    wrong = rng.multinomial(250 - right, [1 / 9] * 9)
    return gnmax_cost(np.column_stack([right, wrong]), sigma=40.0, order=ORDER)


def roomy(cost):
    """The same cost under a high ceiling, so that every draw shows."""
    return dataclasses.replace(cost, ceiling=100.0)


def published(cost, plan, draws, seed=0):
    rng = np.random.default_rng(seed)
    out = [sanitise(cost, plan=plan, delta=DELTA, rng=rng) for _ in range(draws)]
    return np.array([each.guarantee.epsilon for each in out])


def test_the_figure_is_too_small_no_more_often_than_it_says(cost):
    """4000 draws at 5 %: the count of misses is 200 ± 14, so 5 standard deviations tell."""
    exact = expected_release(cost, plan=PLAN, delta=DELTA).with_price.epsilon
    draws = published(roomy(cost), PLAN, 4000)
    misses = int((draws < exact).sum())
    assert abs(misses - 200) < 5 * math.sqrt(4000 * 0.05 * 0.95)


def test_the_noise_has_the_size_that_the_theorem_asks_for(cost):
    """Right noise passes; noise two thirds or three halves as large would fail by far."""
    rehearsal = expected_release(cost, plan=PLAN, delta=DELTA)
    draws = published(roomy(cost), PLAN, 4000, seed=1)
    assert draws.std() == pytest.approx(rehearsal.spread, rel=5 / math.sqrt(2 * 4000))
    assert draws.mean() == pytest.approx(
        rehearsal.mean.epsilon, abs=5 * rehearsal.spread / math.sqrt(4000)
    )
    needed = PLAN.sigma * cost.smooth_sensitivity(PLAN.beta)
    assert rehearsal.spread >= needed * (1 + PLAN.margin * math.expm1(PLAN.beta)) * (1 - 1e-12)


def test_margin_and_noise_cover_each_other():
    quantile = 1.6448536269514722  # of 95 %
    assert PLAN.margin == pytest.approx(quantile * PLAN.noise, rel=1e-9)
    assert PLAN.noise == pytest.approx(PLAN.sigma * (1 + PLAN.margin * math.expm1(PLAN.beta)))


def test_the_price_is_in_the_figure(cost):
    moment = np.array([ORDER - 1])
    assert PLAN.rdp == pytest.approx(float(log_moments(PLAN.event, moment)[0] / moment[0]))
    result = sanitise(cost, plan=PLAN, delta=DELTA, rng=np.random.default_rng(0))
    assert result.price == PLAN.rdp
    assert result.confidence == 0.95
    assert result.guarantee.publishable
    assert result.guarantee.neighbours is Neighbours.REPLACE_ONE
    assert result.guarantee.moment == ORDER - 1
    assert result.as_json()["confidence"] == 0.95


def test_never_more_than_the_data_independent_cost_with_the_price(cost):
    tail = math.log(1 / DELTA) / (ORDER - 1)
    rng = np.random.default_rng(5)
    for _ in range(200):
        found = sanitise(cost, plan=PLAN, delta=DELTA, rng=rng, conversion=Conversion.CLASSIC)
        assert PLAN.rdp + tail <= found.guarantee.epsilon * (1 + 1e-12)
        assert found.guarantee.epsilon <= cost.ceiling + PLAN.rdp + tail + 1e-12


def test_a_public_cost_needs_no_noise_and_no_price():
    constant = SensitiveCost(order=ORDER, value=0.1, ceiling=0.1, local_sensitivity=np.zeros(251))
    result = sanitise(constant, plan=PLAN, delta=DELTA, rng=np.random.default_rng(0))
    assert result.price == 0.0


def test_a_sensitivity_too_small_to_see_still_gets_noise_and_price():
    """e^{−βd} underflows for many teachers; that must not look like a public cost."""
    cost = gnmax_cost([[100_000, 0]], sigma=200.0, order=ORDER)
    assert cost.local_sensitivity.any()
    assert expected_release(cost, plan=PLAN, delta=DELTA).spread > 0
    rng = np.random.default_rng(0)
    assert sanitise(cost, plan=PLAN, delta=DELTA, rng=rng).price == PLAN.rdp
    assert rng.standard_normal() != np.random.default_rng(0).standard_normal()  # one was drawn


def test_every_figure_lies_on_the_public_grid(cost):
    """No digit beyond thousandths leaves, but for the public ceiling; and it is rounded up."""
    draws = published(roomy(cost), PLAN, 300)
    assert len(set(draws)) > 20
    assert all(len(f"{each!r}".partition(".")[2]) <= 3 for each in draws.tolist())
    most = expected_release(dataclasses.replace(cost, value=cost.ceiling), plan=PLAN, delta=DELTA)
    capped = published(cost, PLAN, 300)
    assert max(capped) == pytest.approx(most.with_price.epsilon, rel=1e-12)
    below = capped[capped < max(capped)]
    assert all(len(f"{each!r}".partition(".")[2]) <= 3 for each in below.tolist())
    rng = np.random.default_rng(2)
    for exact in [*rng.uniform(0, 5, 2000), *np.arange(2000) / 1000, 1e-300, 0.0, 1e9, math.inf]:
        up = on_grid(exact)
        assert exact <= up < exact + 0.001001 or up == exact
        assert on_grid(up) == up


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta": 0.03},  # (order − 1)(e^{2β} − 1) ≥ 1
        {"beta": 0.0},
        {"sigma": 0.0},
        {"sigma": 60.0},  # no margin can keep up with that noise
        {"doubt": 0.5},
        {"order": 1.0},
    ],
)
def test_plans_are_checked(wrong):
    values = {"order": 20.0, "beta": 0.02, "sigma": 8.0, "doubt": 0.05} | wrong
    with pytest.raises(InvalidInput):
        ReleasePlan(**values)


def test_plan_and_cost_must_speak_of_one_order(cost):
    with pytest.raises(InvalidInput, match="order"):
        sanitise(
            cost, plan=ReleasePlan.default(order=10.0), delta=DELTA, rng=np.random.default_rng(0)
        )
