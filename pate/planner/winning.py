"""How likely the right class wins, once noise is on the counts.

The noised count of the truth is n_t + s·z; it wins if it is above every other, so

    Pr[right] = E_z Π_{j≠t} F((n_t − n_j)/s + z),

with z and F the standard noise and its distribution function: an integral over one number.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from pate.accounting.moments import FloatArray
from pate.planner.profile import Profile

_GAUSSIAN, _LAPLACE = 24, 16  # points: more change no mean by 1e-4


def right_with_gaussian(profile: Profile, sigma: float) -> FloatArray:
    """Pr[GNMax answers with the truth], for each input.

    >>> profile = Profile(counts=np.array([[70, 30]]), truth=np.array([0]))
    >>> round(float(right_with_gaussian(profile, 40.0)[0]), 4)  # Φ(40 / (40·√2))
    0.7602
    """
    points, weights = _gaussian_rule()
    return _expected(leads(profile) / sigma, points, weights, ndtr)


def right_with_laplace(profile: Profile, scale: float) -> FloatArray:
    """Pr[LNMax answers with the truth], for each input."""
    points, weights = _laplace_rule()
    return _expected(leads(profile) / scale, points, weights, _laplace_below)


def leads(profile: Profile) -> FloatArray:
    """How many votes the truth is ahead of every other class, (inputs, classes − 1)."""
    others = np.ones(profile.counts.shape, dtype=bool)
    rows = np.arange(profile.inputs)
    others[rows, profile.truth] = False
    ahead = profile.counts[rows, profile.truth][:, None] - profile.counts
    return ahead[others].reshape(profile.inputs, -1).astype(np.float64)


def _expected(ahead: FloatArray, points: FloatArray, weights: FloatArray, below) -> FloatArray:  # type: ignore[no-untyped-def]
    total = np.zeros(len(ahead))
    for point, weight in zip(points, weights, strict=True):
        total += weight * np.prod(below(ahead + point), axis=1)
    return np.minimum(total, 1.0)


def _laplace_below(x: FloatArray) -> FloatArray:
    tail = np.exp(-np.abs(x)) / 2
    return np.where(x < 0, tail, 1 - tail)


@cache
def _gaussian_rule() -> tuple[FloatArray, FloatArray]:
    points, weights = np.polynomial.hermite_e.hermegauss(_GAUSSIAN)
    return points, weights / weights.sum()


@cache
def _laplace_rule() -> tuple[FloatArray, FloatArray]:
    """Gauss's rule on either half of the probabilities, where the density has no kink."""
    points, weights = np.polynomial.legendre.leggauss(_LAPLACE)
    below = (points + 1) / 4  # in 0 … ½
    at: NDArray[np.float64] = np.log(2 * below)
    return np.concatenate([at, -at]), np.concatenate([weights, weights]) / 4
