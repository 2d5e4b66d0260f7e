"""Laplace noisy-max against 60-digit values and against composed totals of independent code."""

from __future__ import annotations

import numpy as np
import pytest

from pate.accounting import (
    Analysis,
    Conversion,
    LaplaceNoisyMaxAnswer,
    PureDP,
    Repeated,
    ZeroConcentrated,
    compose,
    integer_moments,
    laplace_total,
    log_moments,
)
from pate.accounting.composition import AdvancedRule, advanced, basic
from pate.accounting.moments import LogMoments
from pate.accounting.noisy_max import laplace_from_log_q, laplace_log_q

PUBLISHED = {"analysis": Analysis.PUBLISHED}


@pytest.mark.golden("lnmax_per_query")
def test_one_query_to_the_last_digits(case, reference):
    moments = np.array(reference("lnmax_per_query")["l"], dtype=float)
    scale = 1 / case["gamma"]
    log_q = laplace_log_q([case["votes"]], scale=scale)
    np.testing.assert_allclose(log_q, case["logq_formula"], rtol=1e-12, atol=1e-13)

    independent = log_moments(LaplaceNoisyMaxAnswer(scale=scale), moments, **PUBLISHED)
    np.testing.assert_allclose(
        independent, case["log_moments_data_independent"], rtol=1e-12, atol=1e-13
    )
    costs = laplace_from_log_q(log_q, scale=scale, moments=moments)[0]
    np.testing.assert_allclose(costs, case["log_moments_formula"], rtol=1e-12, atol=1e-13)
    if not case["theorem3_condition_holds"]:
        np.testing.assert_array_equal(costs, independent)


@pytest.mark.golden("lnmax_composed", "composed")
def test_composed_totals_and_epsilons(case, recipe_votes):
    votes, scale = recipe_votes(case), 1 / case["gamma"]
    dependent = laplace_total(votes, scale=scale, moments=integer_moments(100), **PUBLISHED)
    answers = [Repeated(LaplaceNoisyMaxAnswer(scale=scale), case["T"])]
    independent = compose(answers, integer_moments(100), **PUBLISHED)
    for total, name in (
        (dependent, "2018"),
        (dependent, "2017"),
        (independent, "data_independent"),
    ):
        expected = case[f"total_log_moments_{name}_l1_32"]
        # 1e-13 a query: what double-precision peers lose to cancellation for a tiny q.
        np.testing.assert_allclose(total.values[:32], expected, rtol=1e-12, atol=1e-13 * case["T"])

    for text, delta in (("delta_1e-5", 1e-5), ("delta_1e-6", 1e-6)):
        for total, name in (
            (dependent, "data_dependent_2018"),
            (independent, "data_independent"),
        ):
            for largest in (8, 32, 100):
                cut = LogMoments(moments=total.moments[:largest], values=total.values[:largest])
                found = cut.guarantee(delta=delta, conversion=Conversion.CLASSIC)
                expected = case[text][name][f"l_1_{largest}"]
                assert found.epsilon == pytest.approx(expected["eps"], rel=1e-10)
                assert found.moment == expected["l"]


@pytest.mark.golden("lnmax_composed", "data_independent_closed_form")
def test_closed_forms(case):
    gamma, count, delta = case["gamma"], case["T"], case["delta"]
    answers = [Repeated(LaplaceNoisyMaxAnswer(scale=1 / gamma), count)]
    for largest in (8, 1000):
        found = compose(answers, integer_moments(largest), **PUBLISHED).guarantee(
            delta=delta, conversion=Conversion.CLASSIC
        )
        assert found.epsilon == pytest.approx(case[f"eps_integer_l_1_{largest}"], rel=1e-12)
        assert found.moment == case[f"l_integer_1_{largest}"]

    square_only = compose(
        [Repeated(ZeroConcentrated(rho=2 * gamma**2), count)], [case["l_real_minimiser"]]
    )
    found = square_only.guarantee(delta=delta, conversion=Conversion.CLASSIC)
    assert found.epsilon == pytest.approx(case["eps_real_l"], rel=1e-12)

    assert basic([Repeated(PureDP(epsilon=2 * gamma), count)])[0] == pytest.approx(
        case["eps_pure_composition"], rel=1e-12
    )
    for rule, name in (
        (AdvancedRule.SQUARE, "Teps2"),
        (AdvancedRule.DOUBLE_SQUARE, "DRV_2Teps2"),
        (AdvancedRule.DRV, "expm1"),
        (AdvancedRule.TANH, "tanh"),
    ):
        found = advanced(2 * gamma, count=count, slack=delta, rule=rule)
        assert found == pytest.approx(case[f"eps_strong_composition_{name}"], rel=1e-12)
