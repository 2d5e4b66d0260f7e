"""Sums of noise shares against their exact distributions, by convolution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import nbinom

from pate.accounting import PureDP, Repeated, ZeroConcentrated
from pate.errors import InvalidInput
from pate.mechanisms.noise_shares import GaussianShare, LaplaceShare, Sensitivity

ORDERS = np.array([1.01, 1.5, 2.0, 4.0, 16.0, 64.0])


def gaussian_sum(variance: float, shares: int) -> np.ndarray:
    """The chances of a sum of discrete Gaussian draws on −R … R, all of which are normal floats."""
    reached = math.ceil(36 * math.sqrt(variance))
    values = np.arange(-reached, reached + 1)
    one = np.exp(-(values**2) / (2 * variance))
    total = one = one / one.sum()
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    middle = (len(total) - 1) // 2
    kept = math.ceil(20 * math.sqrt(shares * variance))
    return total[middle - kept : middle + kept + 1]


def renyi(chances: np.ndarray, shift: int, order: float) -> float:
    here, there = np.log(chances[shift:]), np.log(chances[: len(chances) - shift])
    return float(logsumexp(order * here + (1 - order) * there) / (order - 1))


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
@pytest.mark.parametrize("variance", [0.25, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("shift", [1, 2])
def test_no_divergence_of_a_sum_of_gaussian_shares_exceeds_what_is_charged(shares, variance, shift):
    share = GaussianShare(sigma=math.sqrt(variance * shares), shares=shares)
    drawn = float(share.variance)
    assert drawn == pytest.approx(variance)
    assert drawn >= variance * (1 - 1e-12)
    (event,) = share.events(Sensitivity(l1=shift, l2_squared=shift**2, entries=1, largest=shift))
    assert isinstance(event, ZeroConcentrated)
    chances = gaussian_sum(drawn, shares)
    # The orders whose mass lies well within what was added up.
    for order in ORDERS[ORDERS * shift < 10 * math.sqrt(shares * drawn)]:
        assert renyi(chances, shift, order) <= event.rho * order * (1 + 1e-9)


def test_the_charge_of_gaussian_shares_is_that_of_one_gaussian_where_shares_are_not_tiny():
    change = Sensitivity.of_teachers(queries=200, classes=10)
    (event,) = GaussianShare(sigma=40.0, shares=4).events(change)
    assert isinstance(event, ZeroConcentrated)
    assert 200 / 40**2 <= event.rho <= 200 / 40**2 * (1 + 1e-9)  # α/σ² for each query


@pytest.mark.parametrize("shares", [1, 2, 5, 20])
@pytest.mark.parametrize("scale", [0.5, 3.0, 40.0])
def test_differences_of_negative_binomials_add_up_to_discrete_laplace_noise(shares, scale):
    share = LaplaceShare(scale=scale, shares=shares)
    p = math.exp(-1 / float(share.drawn_scale))
    z = np.arange(math.ceil(80 * scale))
    one = nbinom.pmf(z, 1 / shares, 1 - p)
    difference = np.convolve(one, one[::-1])
    total = difference
    for _ in range(shares - 1):
        whole = np.convolve(total, difference)
        middle = (len(whole) - 1) // 2
        total = whole[middle - len(z) + 1 : middle + len(z)]
    middle = (len(total) - 1) // 2
    near = np.arange(-math.ceil(8 * scale), math.ceil(8 * scale) + 1)
    expected = (1 - p) / (1 + p) * p ** np.abs(near)
    np.testing.assert_allclose(total[middle + near], expected, rtol=1e-9)


def test_laplace_shares_cost_their_l1_sensitivity_once():
    share = LaplaceShare(scale=8.0, shares=3)
    votes = share.events(Sensitivity.of_teachers(queries=5, classes=3))
    assert votes == (Repeated(PureDP(epsilon=1 / 8), 10),)
    change = Sensitivity.of_records(cells=9, classes=3, reach=4, records=2)
    assert share.events(change) == (PureDP(epsilon=1.0),)  # of one entry's two units, not of two


def test_a_share_that_the_bound_does_not_cover_is_refused():
    with pytest.raises(InvalidInput, match=r"a variance of 0.2, .*raise sigma"):
        GaussianShare(sigma=1.0, shares=5)
