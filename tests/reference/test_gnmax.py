"""Gaussian noisy-max, the threshold check and Confident-GNMax against independent numbers."""

from __future__ import annotations

import numpy as np
import pytest

from pate.accounting import (
    Analysis,
    Conversion,
    GaussianNoisyMaxAnswer,
    Repeated,
    ThresholdCheck,
    compose,
    confident_total,
    gaussian_total,
    log_moments,
)
from pate.accounting.moments import LogMoments
from pate.accounting.noisy_max import (
    answer_weights,
    checked_statistic,
    gaussian_from_log_q,
    gaussian_log_q,
    log_answered,
    threshold_from_log_q,
    threshold_log_q,
)

LONG_ORDERS = np.concatenate(
    (np.arange(2, 101, 0.5), np.logspace(np.log10(100), np.log10(500), num=100))
)
CLOSE = {"rtol": 1e-11, "atol": 1e-13}
PUBLISHED = {"analysis": Analysis.PUBLISHED}


@pytest.mark.golden("gnmax", "gnmax_query")
def test_one_query(case):
    orders, sigma = np.array(case["orders"]), case["sigma"]
    moments = orders - 1
    log_q = gaussian_log_q([case["votes"]], sigma=sigma)
    np.testing.assert_allclose(log_q, case["logq_formula"], rtol=1e-12)
    costs = gaussian_from_log_q(log_q, sigma=sigma, moments=moments)[0] / moments
    np.testing.assert_allclose(costs, case["rdp_data_dependent_formula"], **CLOSE)
    independent = log_moments(GaussianNoisyMaxAnswer(sigma=sigma), moments, **PUBLISHED) / moments
    np.testing.assert_allclose(independent, case["rdp_data_independent"], **CLOSE)
    inapplicable = ~np.array(case["data_dependent_applicable"])
    np.testing.assert_array_equal(costs[inapplicable], independent[inapplicable])


@pytest.mark.golden("gnmax", "rdp_from_logq")
def test_from_log_q(case):
    moments = np.array(case["orders"]) - 1
    costs = gaussian_from_log_q(np.array(case["logq"]), sigma=case["sigma"], moments=moments)
    np.testing.assert_allclose(costs / moments, case["rdp_data_dependent_formula"], **CLOSE)


@pytest.mark.golden("gnmax", "threshold")
def test_threshold_check(case):
    sigma, threshold = case["sigma1"], case["threshold"]
    moments = np.array(case["orders"]) - 1
    statistic = np.array([row["max_count"] for row in case["rows"]], dtype=float)
    found = log_answered(statistic, threshold=threshold, sigma=sigma)
    np.testing.assert_allclose(found, [row["log_pr_answered"] for row in case["rows"]], rtol=1e-12)
    log_q = threshold_log_q(statistic, threshold=threshold, sigma=sigma)
    costs = threshold_from_log_q(log_q, sigma=sigma, moments=moments) / moments
    expected = [row["rdp_threshold_data_dependent"] for row in case["rows"]]
    np.testing.assert_allclose(costs, expected, rtol=1e-9, atol=1e-13)
    independent = log_moments(ThresholdCheck(sigma=sigma), moments, **PUBLISHED) / moments
    np.testing.assert_allclose(independent, case["rdp_threshold_data_independent"], **CLOSE)


@pytest.mark.golden("gnmax", "totals")
def test_totals(case, recipe_votes):
    votes, queries = recipe_votes(case), case["T"]
    parameters = {
        "threshold": case["threshold"],
        "sigma1": case["sigma1"],
        "sigma2": case["sigma2"],
    }
    plain = case["threshold"] is None
    statistic = checked_statistic(votes)

    def total(moments, *, dependent, answered):
        if plain and dependent:
            return gaussian_total(votes, sigma=case["sigma2"], moments=moments, **PUBLISHED)
        if plain:
            answers = [Repeated(GaussianNoisyMaxAnswer(sigma=case["sigma2"]), queries)]
            return compose(answers, moments, **PUBLISHED)
        return confident_total(
            votes,
            **parameters,
            **PUBLISHED,
            moments=moments,
            answered=answered,
            data_dependent=dependent,
        )

    masks = {"expected": None, "all_answered": np.ones(queries, dtype=bool)}
    if not plain:
        masks["threshold_only"] = np.zeros(queries, dtype=bool)
        masks["mask_max_ge_threshold"] = statistic >= case["threshold"]
        weights = answer_weights(
            statistic, threshold=case["threshold"], sigma=case["sigma1"], answered=None
        )
        assert weights.sum() == pytest.approx(
            case["data_dependent"]["expected"]["answered"], rel=1e-12
        )

    for dependent, name in ((True, "data_dependent"), (False, "data_independent")):
        golden = case[name]
        for which, answered in masks.items():
            if golden.get(which) is None:
                continue
            found = total(LONG_ORDERS - 1, dependent=dependent, answered=answered).guarantee(
                delta=case["delta"], conversion=Conversion.CLASSIC
            )
            assert found.epsilon == pytest.approx(golden[which]["eps"], rel=1e-9), (name, which)
            assert found.moment + 1 == pytest.approx(golden[which]["order"])
        at = golden["rdp_at_orders"]
        moments = np.array(at["orders"]) - 1
        found = total(moments, dependent=dependent, answered=None).values / moments
        np.testing.assert_allclose(found, at["expected"], rtol=1e-9, atol=1e-13)
        if not plain:
            check = total(moments, dependent=dependent, answered=masks["threshold_only"])
            np.testing.assert_allclose(
                check.values / moments, at["threshold_only"], rtol=1e-9, atol=1e-13
            )
            for key, mask in (
                ("step2_all", masks["all_answered"]),
                ("step2_masked", masks["mask_max_ge_threshold"]),
            ):
                both = total(moments, dependent=dependent, answered=mask)
                np.testing.assert_allclose(
                    (both.values - check.values) / moments, at[key], rtol=1e-8, atol=1e-12
                )


def test_an_expected_cost_is_private_even_with_data_independent_bounds():
    votes = np.array([[200, 50], [130, 120]])
    parameters = {"threshold": 150, "sigma1": 40, "sigma2": 20, "data_dependent": False}
    assert confident_total(votes, **parameters).data_dependent
    answered = confident_total(votes, **parameters, answered=np.array([True, False]))
    assert not answered.data_dependent
    events = [ThresholdCheck(sigma=40.0)] * 2 + [GaussianNoisyMaxAnswer(sigma=20.0)]
    np.testing.assert_allclose(answered.values, compose(events).values, rtol=1e-14)


def test_interactive_checks_the_lead_over_the_student():
    votes = np.array([[200, 50], [130, 120]])
    agreeing = 250 * np.array([[0.8, 0.2], [0.52, 0.48]])
    assert checked_statistic(votes, baseline=agreeing).tolist() == [0.0, 0.0]
    doubting = 250 * np.array([[0.5, 0.5], [0.0, 1.0]])
    assert checked_statistic(votes, baseline=doubting).tolist() == [75.0, 130.0]
    parameters = {"threshold": 60, "sigma1": 30, "sigma2": 20, "moments": [10.0]}
    surprised = confident_total(votes, **parameters, baseline=doubting)
    bored = confident_total(votes, **parameters, baseline=agreeing)
    assert isinstance(surprised, LogMoments)
    assert surprised.values > bored.values
