"""Bounds against exact log-moments of the output distribution: never below the truth."""

from __future__ import annotations

import numpy as np
import pytest

from pate.accounting import (
    Analysis,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    log_moments,
)
from pate.accounting.noisy_max import (
    gaussian_from_log_q,
    gaussian_log_q,
    laplace_from_log_q,
    laplace_log_q,
)


def bounds(case, moments, analysis):
    given = {"moments": moments, "analysis": analysis}
    if case["kind"] == "lnmax":
        scale = 1 / case["gamma"]
        log_q = laplace_log_q([case["votes"]], scale=scale)
        dependent = laplace_from_log_q(log_q, scale=scale, **given)[0]
        return log_q[0], dependent, log_moments(LaplaceNoisyMaxAnswer(scale=scale), **given)
    sigma = case["sigma"]
    log_q = gaussian_log_q([case["votes"]], sigma=sigma)
    dependent = gaussian_from_log_q(log_q, sigma=sigma, **given)[0]
    return log_q[0], dependent, log_moments(GaussianNoisyMaxAnswer(sigma=sigma), **given)


@pytest.mark.parametrize("analysis", Analysis)
@pytest.mark.golden("exact_renyi")
def test_bounds_are_at_least_the_truth(case, analysis):
    log_q, dependent, independent = bounds(case, np.array(case["l"], dtype=float), analysis)
    forward, reverse = np.array(case["log_moment_forward"]), np.array(case["log_moment_reverse"])
    assert np.exp(log_q) >= case["q_exact"] * (1 - 1e-12)
    assert np.all(dependent >= forward - 1e-13)
    assert np.all(independent >= np.maximum(forward, reverse) - 1e-13)
    assert np.all(dependent <= independent)
    # Where the 2017 code is below the truth, the test must be able to tell.
    for moment in case.get("l_where_peer_2017_below_forward_exact", []):
        assert case["peer_bound_2017"][moment - 1] < forward[moment - 1] <= dependent[moment - 1]


def laplace_win_probabilities(votes, scale):
    """Pr[class j wins] by quadrature over the noise of j; no bound involved.

    Votes are whole, so the integrand is smooth between whole numbers: Gauss-Legendre there is exact
    to rounding.
    """
    node, weight = np.polynomial.legendre.leggauss(16)
    reach = int(40 * scale) + 30
    z = (np.arange(-reach, reach)[:, None] + (node + 1) / 2).ravel()
    density = np.exp(-np.abs(z) / scale) / (2 * scale) * np.tile(weight / 2, 2 * reach)
    at = votes[:, None, None] + z - votes[None, :, None]  # (winner, rival, z)
    fall = 0.5 * np.exp(-np.abs(at) / scale)
    below = np.where(at < 0, fall, 1 - fall)
    below[np.eye(len(votes), dtype=bool)] = 1.0
    return (density * below.prod(axis=1)).sum(axis=1)


def log_moment(p, q, moment):
    return np.log(np.sum(p * (p / q) ** moment))


@pytest.mark.parametrize("scale", [0.7, 2.0, 8.0])
@pytest.mark.parametrize(
    "votes", [[6, 0], [9, 1, 0], [5, 5, 1], [12, 3, 2, 0], [4, 3, 3], [20, 0, 0]]
)
def test_laplace_bound_against_our_own_brute_force(votes, scale):
    """Every neighbour, by an integration that shares nothing with the code under test."""
    votes = np.array(votes, dtype=float)
    here = laplace_win_probabilities(votes, scale)
    assert here.sum() == pytest.approx(1, abs=1e-13)
    moments = np.array([0.5, 1.0, 3.0, 7.5, 20.0])
    log_q = laplace_log_q([votes], scale=scale)
    tight = Analysis.TIGHT
    bound = laplace_from_log_q(log_q, scale=scale, moments=moments, analysis=tight)[0]
    independent = log_moments(LaplaceNoisyMaxAnswer(scale=scale), moments, analysis=tight)
    for source in range(len(votes)):
        for target in range(len(votes)):
            if source == target or votes[source] == 0:
                continue
            moved = votes.copy()
            moved[source] -= 1
            moved[target] += 1
            there = laplace_win_probabilities(moved, scale)
            for i, moment in enumerate(moments):
                assert bound[i] >= log_moment(here, there, moment) - 1e-10
                assert independent[i] >= log_moment(there, here, moment) - 1e-10
