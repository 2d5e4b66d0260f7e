"""Noise of whole numbers: the right chances pass, noise 2/3 and 3/2 as large fails."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2

from pate.errors import InvalidInput
from pate.mechanisms import GaussianCounts, LaplaceCounts, insecure_generator
from pate.mechanisms.noise_shares import GaussianShare, LaplaceShare
from pate.randomness import (
    discrete_gaussian,
    discrete_laplace,
    representable_scale,
    representable_variance,
)
from pate.record_votes import RecordVotes

DRAWS = 40_000
SIZES = pytest.mark.parametrize(
    "size", [1.0, pytest.param(2 / 3, id="too little"), pytest.param(3 / 2, id="too much")]
)


def laplace_chances(scale):
    return lambda z: np.exp(-np.abs(z) / float(scale))


def gaussian_chances(variance):
    return lambda z: np.exp(-(z**2) / (2 * float(variance)))


def significance(draws, chances, width):
    """The p-value of Pearson's test against unscaled chances, in bins of at least 20 draws."""
    support = np.arange(-60 * width, 60 * width + 1)
    expected = chances(support.astype(float))
    expected *= len(draws) / expected.sum()
    seen = np.bincount(np.clip(draws, support[0], support[-1]) - support[0], minlength=len(support))
    edges, mass = [0], 0.0
    for place, each in enumerate(expected):
        mass += each
        if mass >= 20:
            edges.append(place + 1)
            mass = 0.0
    edges[-1] = len(support)
    sums = [np.add.reduceat(each, edges[:-1]) for each in (seen, expected)]
    statistic = float(((sums[0] - sums[1]) ** 2 / sums[1]).sum())
    return float(chi2.sf(statistic, len(sums[0]) - 1))


@SIZES
@pytest.mark.parametrize("scale", [0.4, 1.0, 3.7, 40.0])
def test_discrete_laplace_has_its_chances(scale, size):
    given = representable_scale(scale * size)
    draws = discrete_laplace(given, (DRAWS,), insecure_generator(5))
    p = significance(draws, laplace_chances(scale), width=max(1, round(scale)))
    assert p > 1e-4 if size == 1 else p < 1e-12


@SIZES
@pytest.mark.parametrize("sigma", [0.6, 1.0, 4.5, 30.0])
def test_discrete_gaussian_has_its_chances(sigma, size):
    given = representable_variance((sigma * size) ** 2)
    draws = discrete_gaussian(given, (DRAWS,), insecure_generator(6))
    p = significance(draws, gaussian_chances(sigma**2), width=max(1, round(sigma)))
    assert p > 1e-4 if size == 1 else p < 1e-12


@pytest.mark.parametrize("sigma", [2048.5, 1e6])
def test_a_large_gaussian_has_its_variance(sigma):
    variance = representable_variance(sigma**2)
    draws = discrete_gaussian(variance, (DRAWS,), insecure_generator(7))
    assert draws.var() == pytest.approx(float(variance), rel=0.05)
    assert abs(draws.mean()) < 5 * sigma / DRAWS**0.5


@pytest.mark.parametrize("reach", [1, 4])
@SIZES
def test_a_table_has_noise_of_its_scale_in_votes(reach, size):
    """The noise of a table of zeros: on every count, independent, in votes whatever the reach."""
    votes = RecordVotes(counts=np.zeros((DRAWS // 10, 10), dtype=np.int64), reach=reach)
    for mechanism, exact in (
        (LaplaceCounts(scale=3.0 * size), 2 * 3.0**2),
        (GaussianCounts(sigma=3.0 * size), 3.0**2),
    ):
        table = mechanism.release(votes, rng=insecure_generator(8)).table
        drawn = table.votes.ravel()
        away = abs(drawn.var() / exact - 1) / (3 / DRAWS**0.5)
        assert away < 5 if size == 1 else away > 10
        assert abs(np.corrcoef(table.votes.T)[0, 1]) < 0.1
        if size == 1:
            assert table.variance / reach**2 == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("value", [0.1, 0.3, 1.0, 1 / 3, 7.7, 1e9])
def test_scales_are_rounded_up_and_by_little(value):
    for exact, found in (
        (Fraction(value), representable_scale(value)),
        (Fraction(value) ** 2, representable_variance(Fraction(value) ** 2))
        if value < 1e7
        else (Fraction(1), Fraction(1)),
    ):
        assert exact <= found <= exact * (1 + Fraction(1, 10**4))


def test_ratios_that_would_overflow_are_refused():
    with pytest.raises(InvalidInput, match="2²⁵"):
        representable_variance(1e18)
    with pytest.raises(InvalidInput, match="representable_variance"):
        discrete_gaussian(Fraction(1, 3), (2,), insecure_generator(0))
    with pytest.raises(InvalidInput, match="above zero"):
        discrete_laplace(Fraction(0), (2,), insecure_generator(0))


@pytest.mark.parametrize("scale", [1e-9, 0.3, 1e6, 2.0**31 + 0.3, 1e12 + 0.37, 2.0**49])
def test_a_scale_of_any_size_is_a_ratio_that_can_be_drawn(scale):
    found = representable_scale(scale)
    assert found >= Fraction(scale)
    assert max(found.numerator, found.denominator) < 2**50
    assert found <= Fraction(scale) * (1 + Fraction(1, 2**18)) + Fraction(1, 2**38)
    discrete_laplace(found, (3,), insecure_generator(0))


def test_a_scale_past_what_can_be_drawn_is_refused():
    with pytest.raises(InvalidInput, match="below 2⁵⁰"):
        representable_scale(2.0**50)
    with pytest.raises(InvalidInput, match="representable_scale"):
        discrete_laplace(Fraction(2**50 + 1, 2), (3,), insecure_generator(0))


@SIZES
@pytest.mark.parametrize("shares", [1, 3])
def test_shares_of_laplace_noise_add_up_to_it(shares, size):
    share = LaplaceShare(scale=3.7 * size, shares=shares)
    parties = [share.noise((DRAWS,), insecure_generator(20 + number)) for number in range(shares)]
    p = significance(np.sum(parties, axis=0), laplace_chances(3.7), width=4)
    assert p > 1e-4 if size == 1 else p < 1e-12


@pytest.mark.parametrize("missing", [0, 1])
def test_shares_of_gaussian_noise_suffice_when_all_but_those_that_count_are_gone(missing):
    share = GaussianShare(sigma=4.5, shares=3)
    parties = [share.noise((DRAWS,), insecure_generator(30 + number)) for number in range(3)]
    total = np.sum(parties[missing:], axis=0)
    p = significance(total, gaussian_chances(4.5**2), width=4)
    assert p > 1e-4 if not missing else p < 1e-12  # two thirds of the variance are noticed
