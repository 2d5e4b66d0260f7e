"""Closed forms of the noise agree with the accountant's own searches."""

from __future__ import annotations

import math

import pytest
from oracles import gnmax, lnmax

from pate.accounting import Conversion, Repeated, ThresholdCheck, compose
from pate.accounting.calibrate import moments_epsilon, smallest_noise
from pate.errors import InvalidInput
from pate.mechanisms import GaussianNoisyMax, LaplaceNoisyMax
from pate.planner.forecast import Budget, rounded_up

CASES = [
    (epsilon, delta, conversion)
    for epsilon in (0.2, 0.5, 1.0, 3.0, 8.0)
    for delta in (1e-3, 1e-6)
    for conversion in Conversion
]


@pytest.mark.parametrize(("epsilon", "delta", "conversion"), CASES)
@pytest.mark.parametrize("answers", [1, 37, 4000])
def test_least_noise_is_the_accountants(
    epsilon: float, delta: float, conversion: Conversion, answers: int
) -> None:
    budget = Budget(epsilon=epsilon, delta=delta, conversion=conversion)
    search = moments_epsilon(delta=delta, conversion=conversion)
    assert budget.least_noise(GaussianNoisyMax, answers) == budget.gaussian(answers)
    scale = budget.least_noise(LaplaceNoisyMax, answers)
    for event, found in ((gnmax, budget.gaussian(answers)), (lnmax, scale)):
        expected = smallest_noise(event, count=answers, target=epsilon, epsilon=search)
        assert found == pytest.approx(expected, rel=1e-6)
        safe = rounded_up(found)
        assert found < safe <= found * 1.0011
        assert search([Repeated(event(safe), answers)]) <= epsilon


def test_shares_of_a_budget_add_up_to_it() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    sigma1, sigma2 = budget.checks(900, share=0.3), budget.gaussian(250, share=0.7)
    events = [Repeated(ThresholdCheck(sigma=sigma1), 900), Repeated(gnmax(sigma2), 250)]
    assert compose(events).guarantee(delta=1e-5).epsilon == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_is_a_finite_number_above_zero(epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="must be finite and above zero"):
        Budget(epsilon=epsilon, delta=1e-5)


def test_delta_is_a_probability() -> None:
    with pytest.raises(InvalidInput, match="strictly between 0 and 1"):
        Budget(epsilon=1.0, delta=1.0)
