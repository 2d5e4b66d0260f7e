"""ROC curves against scikit-learn, and the region of (ε, δ) against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score, roc_curve

from pate.audits.roc import most_advantage, most_tpr, roc
from pate.errors import InvalidInput


@pytest.mark.parametrize("ties", [False, True])
def test_the_curve_is_that_of_scikit_learn(ties):
    rng = np.random.default_rng(3)
    inside, outside = rng.normal(0.7, 1, 700), rng.normal(0, 1.3, 1900)
    if ties:
        inside, outside = inside.round(1), outside.round(1)
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    scores = np.concatenate([inside, outside])
    fpr, tpr, thresholds = roc_curve(truth, scores, drop_intermediate=False)
    curve = roc(inside, outside)
    np.testing.assert_allclose(curve.fpr, fpr, atol=1e-15)
    np.testing.assert_allclose(curve.tpr, tpr, atol=1e-15)
    np.testing.assert_array_equal(curve.thresholds, thresholds)
    assert curve.auc == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert curve.advantage == pytest.approx(np.max(tpr - fpr), abs=1e-15)
    for low in (0.001, 0.01, 0.3):
        rate = curve.tpr_at(low)
        assert rate.value == tpr[fpr <= low][-1]
        hits = int((inside >= thresholds[fpr <= low][-1]).sum())
        exact = binomtest(hits, len(inside)).proportion_ci(0.95, method="exact")
        assert (rate.low, rate.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_infinite_scores_tie():
    curve = roc([math.inf, math.inf, 0.0], [math.inf, -math.inf])
    assert curve.fpr.tolist() == [0, 0.5, 0.5, 1]
    assert curve.tpr.tolist() == [0, 2 / 3, 1, 1]


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
def test_the_region_is_reached_and_never_passed(epsilon, delta):
    """The extreme mechanism of Kairouz, Oh & Viswanath: every test of it, one by one."""
    share = (1 - delta) / (1 + math.exp(epsilon))
    out = np.array([0.0, share, (1 - delta) - share, delta])  # probabilities of the four outputs
    into = out[[3, 2, 1, 0]]
    events = [np.array([bits >> k & 1 for k in range(4)]) for bits in range(16)]
    points = np.array([[event @ out, event @ into] for event in events])
    allowed = most_tpr(np.clip(points[:, 0], 0, 1), epsilon=epsilon, delta=delta)
    assert (points[:, 1] <= allowed + 1e-12).all()
    for bits in (0b0001, 0b0011, 0b0111):  # the likeliest outputs under a member, one after another
        assert points[bits, 1] == pytest.approx(allowed[bits], abs=1e-12)
    grid = np.linspace(0, 1, 2001)
    gain = (most_tpr(grid, epsilon=epsilon, delta=delta) - grid).max()
    most = most_advantage(epsilon=epsilon, delta=delta)
    assert gain <= most + 1e-12
    assert most == pytest.approx((points[:, 1] - points[:, 0]).max(), abs=1e-12)


@pytest.mark.parametrize(
    ("members", "others", "words"),
    [
        ([], [1.0], "one for each record"),
        ([1.0], [[1.0]], "one for each record"),
        ([float("nan")], [1.0], "NaN"),
    ],
)
def test_scores_that_are_none(members, others, words):
    with pytest.raises(InvalidInput, match=words):
        roc(members, others)


def test_rates_in_percent_are_refused():
    with pytest.raises(InvalidInput, match="not percent"):
        most_tpr([0, 50], epsilon=1, delta=0)


def test_agrees_with_other_libraries():
    """Values printed by other libraries for these scores.

    TPR at each FPR: ``get_roc_for_fpr`` of adversarial-robustness-toolbox 1.20.1; balanced
    accuracy: ``CanaryScoreAuditor.max_accuracy(prevalence=0.5)`` of jax-privacy 2.0.0.
    """
    rng = np.random.default_rng(19)
    curve = roc(rng.normal(0.8, 1.5, 3000), rng.normal(0, 1, 5000))
    for fpr, tpr in ((0.001, 0.056666666666666664), (0.01, 0.13866666666666666), (0.1, 0.3713333)):
        assert curve.tpr_at(fpr).value == pytest.approx(tpr, abs=1e-6)
    assert curve.balanced_accuracy == pytest.approx(0.6417333333333333, abs=1e-6)


def test_a_curve_exceeds_what_is_allowed_only_if_it_does():
    """Randomised response at ε = 1: allowed under 1, not under 0.7; 1e-3 of false alarms."""
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(200):
        truthful = rng.random((2, 20_000)) < math.e / (1 + math.e)
        curve = roc(truthful[0] + 0.0, 1.0 - truthful[1])
        wrong += curve.exceeds(epsilon=1.0, delta=0.0, error=1e-3)
        assert curve.exceeds(epsilon=0.7, delta=0.0, error=1e-3)
    assert wrong <= 2
    certain = roc(np.r_[np.full(50, 9.0), rng.normal(size=2000)], rng.normal(size=2000))
    assert certain.exceeds(epsilon=0.5, delta=1e-5, error=1e-3)  # 50 named with certainty
