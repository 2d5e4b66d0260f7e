"""Noise for a vector with a bounded L2 sensitivity, and the rounding of what is released.

The noised numbers themselves are published here, unlike in voting. The low bits of a noised double
can give away the number under the noise (Mironov 2012), so what is released is first rounded to a
public grid, about a millionth of the noise: coarse beside the steps of doubles, fine beside the
noise. That closes the known attack; it is a precaution and not a proof about floating point.
"""

from __future__ import annotations

import math

import numpy as np

from dpsgd.convex.losses import FloatArray
from pate.errors import InvalidInput

_GRID_BITS = 20
_WHOLE = 2.0**53  # from here on doubles are whole numbers


def spherical_noise(size: int, *, rate: float, rng: np.random.Generator) -> FloatArray:
    """A vector with density ∝ exp(−rate·‖b‖): a uniform direction, a Gamma(size) length.

    Guarantees:
        With rate = ε/Δ it makes a vector of L2 sensitivity Δ ε-DP, since ‖b‖ moves by at most Δ
        (Chaudhuri, Monteleoni & Sarwate 2011, Algorithm 1).
    """
    direction = rng.standard_normal(size)
    return direction * (rng.gamma(size) / (rate * np.linalg.norm(direction)))


def gaussian_noise_vector(size: int, *, sigma: float, rng: np.random.Generator) -> FloatArray:
    """Independent N(0, sigma²)."""
    return rng.normal(scale=sigma, size=size)


def rounded(weights: FloatArray, *, spread: float) -> FloatArray:
    """The weights on a public grid: multiples of the power of two just below 2⁻²⁰·``spread``.

    >>> rounded(np.array([0.1234567891234]), spread=1.0) * 2**20
    array([129454.])
    """
    grid = 2.0 ** (math.floor(math.log2(spread)) - _GRID_BITS) if 0 < spread < math.inf else 0.0
    if grid == 0:
        raise InvalidInput(
            f"the noise comes out as {spread:g} on the weights, which no number can hold; choose "
            "parameters that are less extreme"
        )
    with np.errstate(over="ignore"):  # so far out every number is a multiple of the grid
        places = weights / grid
    return np.where(np.abs(places) < _WHOLE, np.round(places) * grid, weights)
