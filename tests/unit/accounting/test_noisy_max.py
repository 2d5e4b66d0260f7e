"""Extremes: q of 1e-300, gaps of 1e5, 2 to 10 000 classes, ties, unanimity."""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import pytest

from pate.accounting import (
    Analysis,
    LaplaceNoisyMaxAnswer,
    confident_total,
    gaussian_total,
    laplace_total,
    log_moments,
)
from pate.accounting.noisy_max import (
    _sorted_columns,
    as_counts,
    checked_statistic,
    gaussian_from_log_q,
    gaussian_log_q,
    laplace_from_log_q,
    laplace_log_q,
)
from pate.errors import InvalidInput


@functools.cache  # seconds, for thousands of classes
@mpmath.workdps(700)  # log(1 + 1e-300) must not be zero
def exact_laplace_q(votes, scale):
    """The formula of the 2017 paper at 700 digits, straight from the text."""
    b = mpmath.mpf(scale)
    winner = int(np.argmax(votes))
    q = mpmath.mpf(0)
    for j, count in enumerate(votes):
        if j != winner:
            gap = mpmath.mpf(int(votes[winner]) - int(count)) / b
            q += (2 + gap) / (4 * mpmath.exp(gap))
    return min(q, 1 - mpmath.mpf(1) / len(votes))


@mpmath.workdps(700)
def exact_laplace(votes, scale, moment):
    q = exact_laplace_q(tuple(votes), scale)
    e, m = 2 / mpmath.mpf(scale), mpmath.mpf(moment)
    cost = min(e * m, e**2 * m * (m + 1) / 2)
    if q < 1 / (mpmath.exp(e) + 1):
        ratio = (1 - q) / (1 - mpmath.exp(e) * q)
        cost = min(cost, mpmath.log((1 - q) * ratio**m + q * mpmath.exp(e * m)))
    return q, cost


@pytest.mark.parametrize(
    ("votes", "scale"),
    [
        ([100_000, 0], 150.0),  # q about 1e-287
        ([100_000, 0, 0], 145.0),  # q about 1e-297
        ([100_000, 0], 20.0),  # q far below the smallest double
        ([100_000, 99_999, 5], 1000.0),
        ([125, 125], 20.0),  # a tie
        ([50, 50, 50, 50, 50], 1.0),  # a tie of all
        ([250] + [0] * 9, 20.0),  # unanimity
        ([250] + [0] * 9999, 10.0),  # many classes
        ([7, 1], 0.01),  # hardly any noise: ε₀ = 200
        ([1, 0], 1e6),  # nothing but noise
    ],
)
def test_extremes_to_twelve_digits(votes, scale):
    moments = np.array([0.5, 1.0, 8.0, 32.0, 300.0])
    log_q = laplace_log_q([votes], scale=scale)
    found = laplace_from_log_q(log_q, scale=scale, moments=moments)[0]
    for moment, value in zip(moments, found, strict=True):
        q, cost = exact_laplace(votes, scale, moment)
        assert float(mpmath.log(q)) == pytest.approx(log_q[0], rel=1e-12)
        if cost > mpmath.mpf(10) ** -300:
            assert value == pytest.approx(float(cost), rel=1e-11)
        else:
            assert value <= 1e-300


def test_gaussian_extremes_are_finite_and_ordered():
    votes = [[100_000, 0], [100_000, 99_000], [50_000, 50_000], [99_999, 1]]
    moments = np.array([0.5, 4.0, 64.0])
    log_q = gaussian_log_q(votes, sigma=400.0)
    assert np.isfinite(log_q).all()
    costs = gaussian_from_log_q(log_q, sigma=400.0, moments=moments)
    assert np.isfinite(costs).all()
    assert np.all(costs[0] <= costs[3])
    assert np.all(costs[3] <= costs[1])
    assert np.all(costs[1] <= costs[2])


def test_an_answer_that_looks_certain_is_not_free():
    """With next to no noise a neighbour may be as certain of the opposite."""
    moments = np.array([1.0, 9.0])
    found = gaussian_from_log_q(np.array([-np.inf]), sigma=1.0, moments=moments)
    np.testing.assert_array_equal(found[0], moments * (moments + 1))
    assert gaussian_total([[26, 25]], sigma=1e-90).guarantee(delta=1e-5).epsilon > 1e6
    answered = {"answered": np.array([False]), "sigma2": 1e6}
    total = confident_total([[30, 20]], threshold=30.5, sigma1=1e-90, **answered)
    assert total.guarantee(delta=1e-5).epsilon > 1e6
    with pytest.raises(InvalidInput, match="threshold"):
        confident_total([[30, 20]], threshold=np.inf, sigma1=1.0, **answered)


def test_beyond_its_condition_the_bound_of_2017_is_not_used():
    """At γ = 1 and q between e^{−2} and ½ a well-known implementation is below the truth."""
    moments = np.arange(1.0, 11.0)
    scale = 1.0
    for analysis in Analysis:
        given = {"moments": moments, "analysis": analysis}
        independent = log_moments(LaplaceNoisyMaxAnswer(scale=scale), **given)
        for q in (0.12, 0.2, 0.3, 0.49):
            found = laplace_from_log_q(np.array([np.log(q)]), scale=scale, **given)[0]
            np.testing.assert_array_equal(found, independent)


def test_costs_grow_with_q():
    log_q = np.linspace(-50, -0.01, 4000)
    moments = np.array([1.0, 4.0, 16.0])
    laplace = laplace_from_log_q(log_q, scale=10.0, moments=moments)
    assert np.all(np.diff(laplace, axis=0) >= -1e-15)
    gaussian = gaussian_from_log_q(log_q, sigma=30.0, moments=moments)
    assert np.all(np.diff(gaussian, axis=0) >= -1e-15)


@pytest.mark.parametrize("classes", [2, 3, 7, 10, 31, 32, 33, 100])
def test_rows_are_sorted(classes):
    rng = np.random.default_rng(classes)
    block = rng.integers(0, 50, size=(300, classes)).astype(np.uint16)
    np.testing.assert_array_equal(_sorted_columns(block), np.sort(block, axis=1).T)


def test_chunks_do_not_show():
    rng = np.random.default_rng(0)
    votes = rng.multinomial(250, [0.6] + [0.4 / 299] * 299, size=3000)  # several chunks
    moments = np.array([1.0, 10.0])
    for total, parameter in ((laplace_total, "scale"), (gaussian_total, "sigma")):
        whole = total(votes, **{parameter: 25.0}, moments=moments).values
        parts = sum(
            total(part, **{parameter: 25.0}, moments=moments).values
            for part in np.array_split(votes, 7)
        )
        np.testing.assert_allclose(whole, parts, rtol=1e-12)


@pytest.mark.parametrize(
    "bad",
    [
        [[1.5, 2.0]],
        [[np.nan, 1.0]],
        [[-1, 3]],
        [[5]],
        np.zeros((0, 3), int),
        np.zeros((2, 2, 2)),
        np.array([[2**64 - 65533, 1]], dtype=np.uint64),
    ],
)
def test_votes_are_checked(bad):
    with pytest.raises(InvalidInput):
        as_counts(bad)


def test_the_checked_lead_moves_by_at_most_one():
    """Over every neighbour, with awkward baselines; rounding to even would fail here."""
    tiny = [[0.0, 1e-16, 50.0]]  # 2 − 1e-16 rounds to 2, and 1 − 1e-16 does not round to 1
    assert checked_statistic([[0, 1, 49]], baseline=tiny).tolist() == [0.0]
    assert checked_statistic([[0, 2, 48]], baseline=tiny).tolist() == [1.0]
    rng = np.random.default_rng(1)
    for _ in range(200):
        votes = rng.multinomial(6, [1 / 3] * 3)
        baseline = 6 * rng.dirichlet([1, 1, 1])
        if rng.random() < 0.5:
            baseline = np.round(baseline * 2) / 2
        here = checked_statistic([votes], baseline=[baseline])[0]
        for source in np.flatnonzero(votes):
            for target in range(3):
                moved = votes.copy()
                moved[source] -= 1
                moved[target] += 1
                assert abs(checked_statistic([moved], baseline=[baseline])[0] - here) <= 1
