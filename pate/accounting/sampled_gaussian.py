"""The DP-SGD step: log-moments of the Poisson-sampled Gaussian mechanism.

With μ₀ = N(0, σ²), μ₁ = N(1, σ²), μ = (1−q)μ₀ + qμ₁ and L = μ₁/μ₀, put u = q(L − 1). Then

    E₂(λ) = E_{z∼μ} [(μ/μ₀)^λ] = E_{z∼μ₀}[(1+u)^{λ+1}]
    E₁(λ) = E_{z∼μ₀}[(μ₀/μ)^λ] = E_{z∼μ₀}[(1+u)^{−λ}]

Since E u = 0, both are 1 + E h with h = (1+u)^p − 1 − pu ≥ 0: a sum of terms of one sign, with
nothing to cancel, however small the cost. Whole powers have a closed form; others are
integrated by the trapezoidal rule, which converges geometrically for a function analytic in a
strip around the real line (Trefethen & Weideman 2014, Theorem 5.1).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp

from pate.accounting.events import SampledGaussian
from pate.accounting.guarantee import Analysis
from pate.accounting.moments import (
    FloatArray,
    as_moments,
    exp_excess,
    integer_moments,
    log_moments,
    moments_of,
)
from pate.errors import InvalidInput

ABADI_LARGEST_MOMENT = 32
_CHUNK = 1 << 18  # integrand values held at a time
_SMALLEST_SIGMA = 0.05
_TAIL = 14.0  # standard deviations integrated beyond the outermost saddle; e^{−98} is left out


@moments_of.register
def _(event: SampledGaussian, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Return log E₂ at every λ, whole or not.

    Guarantees:
        Mironov, Talwar & Zhang 2019, Theorems 4 and 5: between data sets sampled at one rate, of
        which one has a record that the other lacks (or has without its contribution), E₂ ≥ E₁, so
        log E₂ bounds both directions. Relative error below 1e-9 (tested against 40 digits).
    """
    q, sigma = event.sample_rate, event.noise_multiplier
    if q == 1:
        return moments * (moments + 1) / (2 * sigma**2)
    whole = moments == np.round(moments)
    log_excess = np.zeros_like(moments)  # not empty: every entry is read below
    log_excess[whole] = [_log_excess_closed(int(m) + 1, q, sigma) for m in moments[whole]]
    if sigma < _SMALLEST_SIGMA:
        values = np.logaddexp(0.0, log_excess)
        values[~whole] = [_between_whole(float(m), q, sigma) for m in moments[~whole]]
        return values
    log_excess[~whole] = _log_excess_integral(moments[~whole] + 1, q, sigma)
    return np.logaddexp(0.0, log_excess)


def _between_whole(moment: float, q: float, sigma: float) -> float:
    """Return an upper bound: log E₂ is convex in λ and zero at 0, so it lies below its chords.

    For hardly any noise, where ε is in the thousands and the integrand too sharp to sum up.
    """
    below = math.floor(moment)
    left = np.logaddexp(0.0, _log_excess_closed(below + 1, q, sigma)) if below else 0.0
    right = np.logaddexp(0.0, _log_excess_closed(below + 2, q, sigma))
    return float(left + (moment - below) * (right - left))


def abadi_log_moments(event: SampledGaussian, moments: ArrayLike | None = None) -> FloatArray:
    """Return α(λ) = log max(E₁, E₂) by numerical integration, as Abadi et al. 2016 do.

    Parameters
    ----------
    event
        One DP-SGD step.
    moments
        Whole values of λ up to 32; all of them if None.

    Guarantees:
        Abadi et al. 2016, Theorem 2 and Section 3.2; whole λ up to 32.

    >>> step = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0)
    >>> abadi_log_moments(step, [1, 2]).round(8)
    array([6.450e-06, 1.936e-05])
    """
    grid = integer_moments(ABADI_LARGEST_MOMENT) if moments is None else as_moments(moments)
    if np.any(grid > ABADI_LARGEST_MOMENT) or np.any(grid != np.round(grid)):
        raise InvalidInput(
            f"the moments of Abadi et al. are whole and at most {ABADI_LARGEST_MOMENT}"
        )
    q, sigma = event.sample_rate, event.noise_multiplier
    if q == 1 or sigma < _SMALLEST_SIGMA:
        return log_moments(event, grid)  # E₂ ≥ E₁, in closed form
    log_e1 = _log_excess_integral(-grid, q, sigma)
    log_e2 = _log_excess_integral(grid + 1, q, sigma)
    return np.logaddexp(0.0, np.maximum(log_e1, log_e2))


def _log_excess_closed(power: int, q: float, sigma: float) -> float:
    """Return log(E₂ − 1) at a whole power: Σ_{k≥2} C(p,k) qᵏ(1−q)^{p−k} (e^{k(k−1)/2σ²} − 1)."""
    k = np.arange(2, power + 1, dtype=np.float64)
    gain = k * (k - 1) / (2 * sigma**2)
    factorials = _log_factorials(max(1024, power))
    log_choose = factorials[power] - factorials[2 : power + 1] - factorials[power - 2 :: -1]
    log_weight = log_choose + k * math.log(q) + (power - k) * math.log1p(-q)
    return float(logsumexp(log_weight + gain + np.log(-np.expm1(-gain))))


@lru_cache(maxsize=8)
def _log_factorials(largest: int) -> FloatArray:
    return np.asarray(gammaln(np.arange(largest + 1, dtype=np.float64) + 1))


def _log_excess_integral(powers: FloatArray, q: float, sigma: float) -> FloatArray:
    """Return log E_{z∼N(0,σ²)}[(1+u)^p − 1 − pu] for each p > 1 or p < 0.

    The integrand is Gaussian times a function whose nearest singularity (1 + u = 0) lies πσ²
    off the real line. A step of min(σ/5, σ²/2) puts both error terms below e^{−39}.
    """
    step = min(sigma / 5, sigma**2 / 2)
    values = np.empty_like(powers)
    start = 0
    while start < len(powers):
        # The mass sits between the saddle of the bare Gaussian and that of L² or L^p.
        reach = max(float(powers[start]), 2.0) + _TAIL * sigma
        rows = max(1, int(_CHUNK * step / (reach + _TAIL * sigma)))
        some = powers[start : start + rows, None]
        z = np.arange(-_TAIL * sigma, max(float(some.max()), 2.0) + _TAIL * sigma, step)
        log_density = -(z**2) / (2 * sigma**2) + math.log(step / (sigma * math.sqrt(2 * math.pi)))
        log_terms = _log_power_excess(some, _log_ratio(z, q, sigma)) + log_density
        values[start : start + rows] = logsumexp(log_terms, axis=1)
        start += rows
    return values


def _log_ratio(z: FloatArray, q: float, sigma: float) -> FloatArray:
    """Return log(1 + u) = log[(1−q) + q L(z)], exact near L = 1 too."""
    log_l = (2 * z - 1) / (2 * sigma**2)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + log_l)
    near = np.abs(log_l) < 0.5
    ratio[near] = np.log1p(q * np.expm1(log_l[near]))
    return ratio


def _log_power_excess(power: FloatArray, s: FloatArray) -> FloatArray:
    """Return log[e^{ps} − 1 − p(eˢ − 1)], from e^x − 1 − x so that small s keep every digit."""
    ps = power * s
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        moderate = np.log(exp_excess(ps) - power * exp_excess(s))
        # Where e^{ps} or eˢ would overflow, the larger exponential is factored out.
        grown = ps + np.log1p(-(np.exp(-ps) + power * (np.exp(s - ps) - np.exp(-ps))))
        rest = np.log(np.abs(power)) + s  # p < 0 and s → ∞: −p eˢ is all that is left
    return np.where(ps > 30, grown, np.where(s > 600, rest, moderate))
