"""The cost of choosing the best of a random number of tries.

Choosing the best of a fixed number of tries by their results costs as much as publishing them all.
If their number K is random and stays private, the choice costs little more than a few of them:
Papernot & Steinke 2022, "Hyperparameter Tuning with Rényi Differential Privacy".

K ≥ 1 is drawn from the truncated negative binomial distribution of the shape η and γ in (0, 1):

    Pr[K = k] = (1 − γ)^k / (γ^{−η} − 1) · Π_{l<k} (l + η)/(l + 1)      (η ≠ 0)
    Pr[K = k] = (1 − γ)^k / (k log 1/γ)                                  (η = 0)

We write x = log 1/γ: it and E[K] are what the bound needs, and both keep their digits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from pate.accounting.events import BestOfTries
from pate.accounting.guarantee import Analysis
from pate.accounting.moments import DEFAULT_MOMENTS, FloatArray, compose, moments_of
from pate.errors import InvalidInput

_LEAST = 2.0**-80  # a chance far below the steps of the uniform number that K is read off
_TINY = 1e-12  # below it (1 − e^{−z})/z is one, but for bits that do not count


@moments_of.register
def _(event: BestOfTries, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Papernot & Steinke 2022, Theorem 2, in log-moments.

    Guarantees:
        * **The best of K tries.** If one try is (α, ε)- and (α̂, ε̂)-RDP for an α > 1 and an α̂ ≥ 1,
          the best of K is (α, ε′)-RDP with
          ε′ = ε + (1+η)(1 − 1/α̂) ε̂ + (1+η) log(1/γ)/α̂ + log E[K]/(α − 1).
          Multiplied by λ = α − 1, with α(λ) the log-moment of one try and λ̂ = α̂ − 1:
          α′(λ) = α(λ) + λ (1+η) (α(λ̂) + x)/(λ̂ + 1) + log E[K]. Every λ̂ ≥ 0 gives a bound that
          holds; none of them depends on data, so the least is taken. At λ̂ = 0 it is (1+η)x.
        * **One try** picks candidate i of n, each with chance 1/n, and gives out i and o ∼ Mᵢ. For
          neighbours d, d′ the chance 1/n cancels in the ratio, so its moment is
          Σᵢ (1/n) E_{o∼Mᵢ(d)}[(Pᵢ,d(o)/Pᵢ,d′(o))^λ] ≤ (1/n) Σᵢ e^{αᵢ(λ)}: the log of the mean of
          the exponentials. What is made of i and o (a student, its score on public records) is
          post-processing, and ties of the order are broken by chance: tries are exchangeable, so
          taking the first of the best is that.
        * The theorem needs K to stay private, tries that are independent, and one order of outcomes
          that does not depend on private data.
    """
    x, mean = _spread(event.mean_tries, event.shape)
    hats = np.concatenate([[0.0], DEFAULT_MOMENTS])
    others = np.concatenate([[0.0], _one_try(event, DEFAULT_MOMENTS, analysis)])
    chosen = (1 + event.shape) * float(np.min((others + x) / (hats + 1)))
    return _one_try(event, moments, analysis) + moments * chosen + math.log(mean)


def _one_try(event: BestOfTries, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Return the log of the mean over candidates of e^{αᵢ(λ)}; exact where all cost the same."""
    plans = [compose(each, moments, analysis=analysis) for each in event.candidates]
    costs = np.stack([plan.values for plan in plans])
    most = costs.max(axis=0)
    ended = np.isfinite(most)
    below = np.where(ended, costs, 0.0) - np.where(ended, most, 0.0)  # 0 or less
    return np.where(ended, most + np.log1p(np.expm1(below).mean(axis=0)), np.inf)


@lru_cache(maxsize=64)
def _spread(mean_tries: float, shape: float) -> tuple[float, float]:
    """Return (log 1/γ, E[K]) for a mean; E[K] belongs to the γ in use, to the last bits."""
    low, high = 0.0, 1.0
    while _mean(high, shape) < mean_tries:
        high *= 2
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _mean(middle, shape) < mean_tries else (low, middle)
    return high, max(_mean(high, shape), mean_tries)


def _mean(x: float, shape: float) -> float:
    """Return E[K] = η(1−γ)/(γ(1−γ^η)), which is (1/γ − 1)/log(1/γ) at η = 0; it grows with x."""
    if x == 0:
        return 1.0
    if shape * x < _TINY:
        return math.expm1(x) / x
    return math.expm1(x) * shape / -math.expm1(-shape * x)


def draw_tries(mean_tries: float, shape: float = 0.0, *, rng: np.random.Generator) -> int:
    """Draw K, the number of tries. It must stay private for ever: the bound rests on that.

    Parameters
    ----------
    mean_tries
        The mean of K, above 1.
    shape
        The shape η of its distribution; see :class:`BestOfTries`.
    rng
        The source of randomness; secure outside of tests.

    Guarantees:
        K has the distribution of the theorem, read off one uniform number of 53 bits. Tails that
        weigh less than that are not reached; beside any δ in use they vanish
        (:mod:`pate.randomness`).

    >>> draw_tries(10.0, rng=np.random.default_rng(3)) >= 1
    True
    """
    if not 1 < mean_tries < math.inf or not 0 <= shape < math.inf:
        raise InvalidInput(f"there is no number of tries with mean {mean_tries} and shape {shape}")
    left, drawn = float(rng.random()), 1
    for tries, chance in _chances(mean_tries, shape):
        left, drawn = left - chance, tries
        if left < 0:
            break
    return drawn


def _chances(mean_tries: float, shape: float) -> Iterator[tuple[int, float]]:
    """Yield (k, Pr[K = k]) for k = 1, 2, …, until the remaining mass is negligible."""
    x, _ = _spread(mean_tries, shape)
    stays = -math.expm1(-x)  # 1 − γ
    small = shape * x < _TINY
    chance = stays / x if small else stays * shape / math.expm1(shape * x)
    for tries in itertools.count(1):
        yield tries, chance
        grows = stays * (tries + shape) / (tries + 1)
        if chance < _LEAST and grows < 1:  # and from here on it only falls
            return
        chance *= grows
