"""The Rényi divergence of an index: bounds for noisy-max answers and threshold checks.

Only the index of the largest noised count leaves, or one bit. Published bounds charge for the whole
noised histogram. Here is the supremum, over all histograms of real counts, of what the index alone
reveals (``docs/proofs/noisy-argmax.md``):

    α(λ) ≤ λ(λ+1) h² · mean of ψ(κ)/κ² over κ in [λh, (λ+1)h],        h = one vote over the noise,
    ψ(κ) = sup over histograms of log E exp(κ · score of the answer along a moved vote).

ψ depends on the noise alone and is convex. ``argmax_divergence.json`` holds certified upper bounds
of it on a grid (``benchmarks/certify_argmax.py`` writes it); between two of them ψ lies below the
chord.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_ROUNDING = 1e-9  # relative, added: far above that of doubles, far below the margin of the table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreBound:
    """An upper bound of ψ(κ)/κ² for every κ > 0: pieces of the form a/κ² + b/κ + c."""

    starts: FloatArray  # of the pieces; the first is 0
    inverse_square: FloatArray  # a
    inverse: FloatArray  # b
    constant: FloatArray  # c

    def mean(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Return the mean over each [low, high], 0 < low < high."""
        ends = np.append(self.starts[1:], np.inf)
        left = np.clip(low[:, None], self.starts, ends)
        right = np.clip(high[:, None], self.starts, ends)
        width = right - left
        # No width, no part: the ends of pieces that lie outside are 0 or ∞.
        left, right = (np.where(width > 0, each, 1.0) for each in (left, right))
        logs = np.log1p(np.where(width > 0, width, 0.0) / left)
        parts = self.inverse_square * width / (left * right) + self.inverse * logs
        parts += self.constant * width
        return np.asarray(np.where(width > 0, parts, 0.0).sum(axis=1) / width.sum(axis=1))


def laplace_index(scale: float, moments: FloatArray, *, two_classes: bool = False) -> FloatArray:
    """Return a bound on the log-moments of one answer with Lap(scale) on every count.

    Parameters
    ----------
    scale
        The Laplace b, in votes.
    moments
        The values of λ.
    two_classes
        There are two classes, which makes it a little smaller; otherwise any number.

    Guarantees:
        Theorems 1 and 3 of docs/proofs/noisy-argmax.md: for one vote that is moved, cast or
        withdrawn, in both directions.

    >>> float(laplace_index(20.0, np.array([30.0]))[0].round(3))  # published: ½ (2/20)² · 30 · 31
    0.944
    """
    return _log_moments("laplace_two_classes" if two_classes else "laplace", 1 / scale, moments)


def gaussian_index(sigma: float, moments: FloatArray, *, two_classes: bool = False) -> FloatArray:
    """Return a bound on the log-moments of one answer with N(0, sigma²) on every count.

    Parameters
    ----------
    sigma
        The standard deviation, in votes.
    moments
        The values of λ.
    two_classes
        There are two classes, which makes it a little smaller; otherwise any number.

    Guarantees:
        Theorems 1 and 2 of docs/proofs/noisy-argmax.md: for one vote that is moved, cast or
        withdrawn, in both directions.
    """
    if two_classes:  # the noise of the difference is √2 sigma, and a moved vote shifts it by two
        return _log_moments("gaussian_bit", math.sqrt(2) / sigma, moments)
    return _log_moments("gaussian", 1 / sigma, moments)


def threshold_bit(sigma: float, moments: FloatArray) -> FloatArray:
    """Return a bound on the log-moments of whether a count plus N(0, sigma²) reaches a threshold.

    Guarantees:
        Theorems 1 and 2 of docs/proofs/noisy-argmax.md, for a count that moves by one at most.
    """
    return _log_moments("gaussian_bit", 1 / sigma, moments)


def _log_moments(noise: str, shift: float, moments: FloatArray) -> FloatArray:
    mean = _bounds()[noise].mean(moments * shift, (moments + 1) * shift)
    return np.asarray(moments * (moments + 1) * shift**2 * mean * (1 + _ROUNDING))


@cache
def _bounds() -> dict[str, ScoreBound]:
    """Return the bounds of every noise, from the certified table."""
    text = files("pate.accounting").joinpath("argmax_divergence.json").read_text(encoding="utf-8")
    table = json.loads(text)
    # Beyond the table: scores along a moved vote are below 2/b (Laplace), so ψ grows at most so
    # fast; a noised count that left would give κ²/2, two of them κ² (Gaussian).
    return {
        "laplace": _pieces(table["laplace"], slope=2.0),
        "laplace_two_classes": _pieces(table["laplace_two_classes"], slope=2.0),
        "gaussian": _pieces(table["gaussian"], ratio=1.0),
        "gaussian_bit": _pieces(table["gaussian_bit"], ratio=0.5),
    }


def _pieces(
    record: dict[str, object], *, slope: float | None = None, ratio: float = 0.0
) -> ScoreBound:
    kappa = np.array(record["kappa"], dtype=np.float64)
    psi = np.array(record["psi"], dtype=np.float64)
    # The bound for all κ below the table holds at its start, too: so cost never falls with noise.
    psi[0] = max(psi[0], float(str(record["ratio"])) * kappa[0] ** 2)
    slopes = np.append(np.diff(psi) / np.diff(kappa), slope or 0.0)
    offsets = psi - slopes * kappa
    if slope is None:
        offsets[-1] = 0.0
    return ScoreBound(
        starts=np.concatenate([[0.0], kappa]),
        inverse_square=np.concatenate([[0.0], offsets]),
        inverse=np.concatenate([[0.0], slopes]),
        constant=np.array([float(str(record["ratio"])), *np.zeros(len(kappa) - 1), ratio]),
    )
