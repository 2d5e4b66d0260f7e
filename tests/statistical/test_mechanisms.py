"""The noise has the size and the independence that the theorems ask for.

Every test compares a count of outcomes with its exact probability, and is run with noise that is
right, two thirds and three halves as large. Right noise fails a 5-standard-deviation test once in
1.7 million seeds (seeds are fixed, so never by chance). Under wrong noise the count lies 14 or more
standard deviations away on average, so being within 5 has a probability below 1e-9; that it is
beyond 10 is asserted.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import chi2, gumbel_r, kstest, laplace, norm

from pate.mechanisms import (
    ConfidentGnmax,
    GaussianNoisyMax,
    GumbelNoisyMax,
    InteractiveGnmax,
    LaplaceNoisyMax,
    insecure_generator,
    noisy_max,
    secure_generator,
)
from pate.votes import Votes

DRAWS = 6000
SIZES = pytest.mark.parametrize(
    "size", [1.0, pytest.param(2 / 3, id="too little"), pytest.param(3 / 2, id="too much")]
)


def repeated(row, times=DRAWS):
    return Votes(counts=np.tile(np.array(row, dtype=np.int64), (times, 1)))


def deviations(hits, times, probability):
    """How many standard deviations a count of hits is away from its mean."""
    spread = math.sqrt(times * probability * (1 - probability))
    return abs(hits - times * probability) / spread


def holds(away, size):
    """Right noise lies near, wrong noise far away."""
    return away < 5 if size == 1 else away > 10


# --- answers ------------------------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize(("gap", "scale"), [(20, 10.0), (60, 20.0), (3, 2.0)])
def test_laplace_overturns_two_classes_as_often_as_the_closed_form_says(gap, scale, size):
    given = LaplaceNoisyMax(scale=scale * size).release(
        repeated([gap, 0]), rng=insecure_generator(11)
    )
    flip = (2 + gap / scale) / (4 * math.exp(gap / scale))
    assert holds(deviations(int(given.labels.sum()), DRAWS, flip), size)


@SIZES
@pytest.mark.parametrize(("gap", "sigma"), [(20, 10.0), (60, 30.0), (4, 3.0)])
def test_gaussian_overturns_two_classes_as_often_as_the_closed_form_says(gap, sigma, size):
    given = GaussianNoisyMax(sigma=sigma * size).release(
        repeated([gap, 0]), rng=insecure_generator(12)
    )
    flip = float(ndtr(-gap / (math.sqrt(2) * sigma)))
    assert holds(deviations(int(given.labels.sum()), DRAWS, flip), size)


def wins(row, noise):
    """Exact Pr[each class wins]: ∫ density of its noised count × all others lie below."""

    def one(j):
        def integrand(x):
            below = [noise.cdf(x - n) for i, n in enumerate(row) if i != j]
            return noise.pdf(x - row[j]) * math.prod(below)

        return quad(integrand, -400, 400, points=sorted(row), limit=400)[0]

    chances = np.array([one(j) for j in range(len(row))])
    assert chances.sum() == pytest.approx(1, abs=1e-6)
    return chances


@SIZES
@pytest.mark.parametrize("kind", ["laplace", "gaussian", "gumbel", "confident"])
@pytest.mark.sample(4)
def test_four_classes_win_as_often_as_they_should(kind, size):
    """Chi-square with 3 degrees of freedom: rejects right noise once in a million."""
    row = [30, 22, 15, 0]
    rng = insecure_generator(13)
    if kind == "laplace":
        mechanism, noise = LaplaceNoisyMax(scale=8.0 * size), laplace(scale=8.0)
    elif kind == "gaussian":
        mechanism, noise = GaussianNoisyMax(sigma=12.0 * size), norm(scale=12.0)
    elif kind == "gumbel":
        mechanism, noise = GumbelNoisyMax(scale=9.0 * size), gumbel_r(scale=9.0)
    else:  # half of the checks pass; whether one did says nothing of the answer's noise
        mechanism = ConfidentGnmax(threshold=30.0, sigma1=20.0, sigma2=12.0 * size)
        noise = norm(scale=12.0)
    labels = mechanism.release(repeated(row, 2 * DRAWS), rng=rng).labels
    expected = wins(row, noise) * len(labels)
    distance = float(((np.bincount(labels, minlength=4) - expected) ** 2 / expected).sum())
    assert (chi2.sf(distance, df=3) > 1e-6) == (size == 1)


@pytest.mark.parametrize("block", [64, 1 << 17])
@pytest.mark.parametrize(
    "mechanism",
    [LaplaceNoisyMax(scale=10.0), GaussianNoisyMax(sigma=10.0), GumbelNoisyMax(scale=10.0)],
    ids=["lap", "gauss", "gumbel"],
)
def test_answers_do_not_depend_on_each_other(mechanism, block, monkeypatch):
    """Pairs of neighbouring answers, and of answers one block apart, flip independently.

    Under independence the agreement of a pair of fair answers is Binomial(n, ½).
    """
    monkeypatch.setattr(noisy_max, "BLOCK", block)
    labels = mechanism.release(repeated([5, 5]), rng=insecure_generator(14)).labels
    assert deviations(int(labels.sum()), DRAWS, 0.5) < 5
    for lag in (1, 2, 32, 64):
        agree = int((labels[lag:] == labels[:-lag]).sum())
        assert deviations(agree, DRAWS - lag, 0.5) < 5


# --- checks -------------------------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize(("top", "threshold", "sigma"), [(60, 80.0, 20.0), (90, 60.0, 30.0)])
def test_the_check_passes_as_often_as_it_should(top, threshold, sigma, size):
    mechanism = ConfidentGnmax(threshold=threshold, sigma1=sigma * size, sigma2=5.0)
    given = mechanism.release(repeated([top, 100 - top]), rng=insecure_generator(15))
    chance = float(ndtr((top - threshold) / sigma))
    assert holds(deviations(len(given.answered), DRAWS, chance), size)


@SIZES
def test_the_check_of_the_lead_passes_as_often_as_it_should(size):
    """Lead: max(60 − 100·0.355, 40 − 100·0.645) = 24.5, and its floor 24 is what is checked."""
    mechanism = InteractiveGnmax(threshold=40.0, sigma1=16.0 * size, sigma2=5.0)
    given = mechanism.release(
        repeated([60, 40]),
        rng=insecure_generator(16),
        student=np.tile([0.355, 0.645], (DRAWS, 1)),
    )
    assert holds(deviations(len(given.answered), DRAWS, float(ndtr(-1.0))), size)


def test_a_lead_below_zero_counts_as_zero():
    """With 80 of 100 teachers abstaining the lead is 10 − 50; unclamped, no check would pass."""
    mechanism = InteractiveGnmax(threshold=10.0, sigma1=10.0, sigma2=5.0)
    given = mechanism.release(
        repeated([10, 10]),
        rng=insecure_generator(17),
        student=np.tile([0.5, 0.5], (DRAWS, 1)),
        teachers=100,
    )
    assert deviations(len(given.answered), DRAWS, float(ndtr(-1.0))) < 5


def test_checks_do_not_depend_on_each_other_nor_on_answers():
    mechanism = ConfidentGnmax(threshold=50.0, sigma1=20.0, sigma2=20.0)
    given = mechanism.release(repeated([50, 50]), rng=insecure_generator(18))
    passed = np.zeros(DRAWS, dtype=bool)
    passed[given.answered] = True
    for lag in (1, 2, 3):
        agree = int((passed[lag:] == passed[:-lag]).sum())
        assert deviations(agree, DRAWS - lag, 0.5) < 5
    assert deviations(int(given.labels.sum()), len(given.labels), 0.5) < 5


# --- the generator ------------------------------------------------------------------------------


def test_secure_noise_has_the_right_law():
    """Kolmogorov–Smirnov, not seeded: each of the four rejects a good generator once in 1e9."""
    rng = secure_generator()
    for sample, law in (
        (rng.random(20_000), "uniform"),
        (rng.laplace(size=20_000), "laplace"),
        (rng.standard_normal(20_000), "norm"),
    ):
        assert kstest(sample, law).pvalue > 1e-9
    ones = np.unpackbits(np.frombuffer(rng.bytes(1 << 16), dtype=np.uint8))
    assert deviations(int(ones.sum()), len(ones), 0.5) < 6.2


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_the_law_test_can_fail(factor):
    rng = secure_generator()
    assert kstest(factor * rng.laplace(size=20_000), "laplace").pvalue < 1e-9
    assert kstest(factor * rng.standard_normal(20_000), "norm").pvalue < 1e-9


def test_secure_noise_drives_a_mechanism_as_a_seeded_one_does():
    """Not seeded: fails a good generator once in two billion runs (6.2 standard deviations)."""
    given = LaplaceNoisyMax(scale=10.0).release(repeated([20, 0]), rng=secure_generator())
    assert deviations(int(given.labels.sum()), DRAWS, 1 / math.e**2) < 6.2
