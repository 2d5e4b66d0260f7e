"""Noise for a budget is the least by the published figure, and shares of a budget add up."""

from __future__ import annotations

import math
from typing import Any

import pytest
from oracles import gnmax

from pate.accounting import (
    Analysis,
    Conversion,
    Repeated,
    ThresholdCheck,
    compose,
    guarantee_of_plan,
)
from pate.errors import InvalidInput
from pate.mechanisms import GaussianNoisyMax, GumbelNoisyMax, LaplaceNoisyMax
from pate.planner.forecast import Budget, rounded_up

CASES = [
    (epsilon, delta, conversion)
    for epsilon in (0.2, 0.5, 1.0, 3.0, 8.0)
    for delta in (1e-3, 1e-6)
    for conversion in Conversion
]


@pytest.mark.parametrize(("epsilon", "delta", "conversion"), CASES)
@pytest.mark.parametrize("answers", [1, 37, 4000])
@pytest.mark.sample(15)
def test_least_noise_is_the_accountants(
    epsilon: float, delta: float, conversion: Conversion, answers: int
) -> None:
    for analysis in Analysis:
        budget = Budget(epsilon=epsilon, delta=delta, conversion=conversion, analysis=analysis)
        for kind in (GaussianNoisyMax, LaplaceNoisyMax, GumbelNoisyMax):

            def cost(noise: float, kind: Any = kind, analysis: Analysis = analysis) -> float:
                answer = kind.from_keys({kind.calibrated: noise}).answer_event
                return guarantee_of_plan(
                    [Repeated(answer, answers)],
                    delta=delta,
                    conversion=conversion,
                    analysis=analysis,
                    adaptive=False,
                ).epsilon

            found = budget.least_noise(kind, answers)
            safe = rounded_up(found)
            assert found < safe <= found * 1.0011
            assert cost(safe) <= cost(found) <= epsilon < cost(found * (1 - 1e-4))


@pytest.mark.parametrize("analysis", Analysis)
def test_shares_of_a_budget_add_up_to_it(analysis: Analysis) -> None:
    budget = Budget(epsilon=1.0, delta=1e-5, analysis=analysis)
    sigma1, sigma2 = budget.checks(900, share=0.3), budget.gaussian(250, share=0.7)
    events = [Repeated(ThresholdCheck(sigma=sigma1), 900), Repeated(gnmax(sigma2), 250)]
    total = compose(events, analysis=analysis)
    assert 0.98 < total.guarantee(delta=1e-5).epsilon <= 1.0 + 1e-9


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_is_a_finite_number_above_zero(epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="must be finite and above zero"):
        Budget(epsilon=epsilon, delta=1e-5)


def test_delta_is_a_probability() -> None:
    with pytest.raises(InvalidInput, match="strictly between 0 and 1"):
        Budget(epsilon=1.0, delta=1.0)
