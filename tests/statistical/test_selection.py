"""The number of tries, drawn many times, against the distribution of the theorem.

Chi-square over the values of K that are expected 20 times or more, the rest as one: right draws lie
below the 1 − 1e-6 quantile but for one seed in a million. Draws of half or twice the mean, or of
another shape, lie above it by far (asserted at five times the quantile).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from pate.accounting import draw_tries
from pate.accounting.selection import _spread
from pate.randomness import insecure_generator, secure_generator

DRAWS = 30_000


def law(mean, shape, most):
    """Pr[K = k] as the paper defines it, written apart from the package."""
    gamma = np.exp(-_spread(mean, shape)[0])
    tries = np.arange(1, most + 1)
    if shape == 0:
        return (1 - gamma) ** tries / tries / np.log(1 / gamma)
    steps = np.arange(most)
    products = np.cumprod((steps + shape) / (steps + 1))
    return (1 - gamma) ** tries * products / (gamma**-shape - 1)


def away(drawn, mean, shape):
    """(statistic, its quantile)."""
    expected = law(mean, shape, 2000) * len(drawn)
    kept = np.flatnonzero(expected >= 20)
    counts = np.bincount(drawn, minlength=2001)[1:2001]
    seen = np.append(counts[kept], len(drawn) - counts[kept].sum())
    wanted = np.append(expected[kept], len(drawn) - expected[kept].sum())
    use = wanted > 1
    statistic = float(((seen[use] - wanted[use]) ** 2 / wanted[use]).sum())
    return statistic, float(chi2.ppf(1 - 1e-6, use.sum() - 1))


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("mean", [5.0, 20.0])
def test_tries_follow_the_theorem(mean, shape):
    rng = insecure_generator(int(mean * 10 + shape * 2))
    drawn = np.array([draw_tries(mean, shape, rng=rng) for _ in range(DRAWS)])
    statistic, quantile = away(drawn, mean, shape)
    assert statistic < quantile
    for wrong in ((1 + (mean - 1) / 2, shape), (1 + (mean - 1) * 2, shape), (mean, shape + 1)):
        statistic, quantile = away(drawn, *wrong)
        assert statistic > 5 * quantile


def test_secure_draws_differ():
    drawn = [draw_tries(100.0, rng=secure_generator()) for _ in range(40)]
    assert len(set(drawn)) > 5
    assert min(drawn) >= 1
