"""Log-moments: of one event, added up, and turned into (ε, δ).

The log-moment of a mechanism M at λ > 0 is

    α(λ) = max over neighbours d, d′ of  log E_{o∼M(d)} [ (P_d(o) / P_d′(o))^λ ],

so that α(λ) = λ · RDP(λ + 1). λ is a *moment*; λ + 1 is a *Rényi order*. They never share a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np
from numpy.typing import ArrayLike

from pate._validate import check_delta
from pate.accounting.events import (
    Event,
    ForReplacement,
    Gaussian,
    Laplace,
    PureDP,
    Repeated,
    SmoothRelease,
    ZeroConcentrated,
    relation_of,
    tally,
)
from pate.accounting.guarantee import Conversion, Guarantee, Neighbours
from pate.accounting.numerics import FloatArray, exp_excess
from pate.errors import InvalidInput, UnsupportedEvent


def _default_moments() -> FloatArray:
    fine = np.arange(1, 100) / 10  # λ < 10: where large ε are decided
    half = np.arange(20, 257) / 2  # 10 … 128
    wide = np.round(np.geomspace(128, 1024, 44))
    vast = np.round(np.geomspace(1024, 65536, 20))  # so that no small ε is floored by the grid
    peers = np.array([255.0, 511.0, 1023.0])
    return np.unique(np.concatenate([fine, half, wide, vast, peers]))


DEFAULT_MOMENTS: FloatArray = _default_moments()
DEFAULT_MOMENTS.setflags(write=False)


def integer_moments(largest: int) -> FloatArray:
    """λ = 1, 2, …, largest: the grid of the papers.

    >>> integer_moments(3)
    array([1., 2., 3.])
    """
    if not 1 <= largest <= 1_000_000:
        raise InvalidInput(f"the largest moment is {largest}; it must lie between 1 and 1000000")
    return np.arange(1, largest + 1, dtype=np.float64)


def as_moments(moments: ArrayLike | None) -> FloatArray:
    """A checked λ grid; the default one if None."""
    if moments is None:
        return DEFAULT_MOMENTS
    grid = np.atleast_1d(np.asarray(moments, dtype=np.float64))
    if grid.ndim != 1 or not grid.size or not np.all(np.isfinite(grid) & (grid > 0)):
        raise InvalidInput("moments must be a list of finite numbers above zero")
    return grid


def log_moments(event: Event, moments: ArrayLike) -> FloatArray:
    """α(λ) of one event at every λ; data-independent. An event without a theorem raises.

    >>> log_moments(Gaussian(noise_multiplier=2.0), [1, 3])
    array([0.25, 1.5 ])
    """
    return moments_of(event, as_moments(moments))


@singledispatch
def moments_of(event: Event, moments: FloatArray) -> FloatArray:
    """One pure function for each event, registered beside its theorem; call :func:`log_moments`.

    Whole-number arrays must not get here: NumPy would round the results down to whole numbers.
    """
    raise UnsupportedEvent(
        f"{type(event).__name__} has no log-moment bound; compose it by other means"
    )


@moments_of.register
def _(event: Repeated, moments: FloatArray) -> FloatArray:
    return event.count * moments_of(event.event, moments)


@moments_of.register
def _(event: ForReplacement, moments: FloatArray) -> FloatArray:
    """The bounds of the event inside hold between any two data sets its sensitivity covers."""
    return moments_of(event.event, moments)


@moments_of.register
def _(event: Gaussian, moments: FloatArray) -> FloatArray:
    """Mironov 2017, Proposition 7: RDP(α) = α / 2z²."""
    return moments * (moments + 1) / (2 * event.noise_multiplier**2)


@moments_of.register
def _(event: Laplace, moments: FloatArray) -> FloatArray:
    """Mironov 2017, Proposition 6, at order λ + 1: log[p e^{λt} + (1−p) e^{−(λ+1)t}]."""
    t = 1 / event.noise_multiplier
    p = (moments + 1) / (2 * moments + 1)
    up, down = moments * t, -(moments + 1) * t
    large = np.logaddexp(np.log(p) + up, np.log1p(-p) + down)
    small = np.log1p(p * exp_excess(np.minimum(up, 1.0)) + (1 - p) * exp_excess(down))
    return np.where(up > 1.0, large, small)  # the terms linear in t cancel exactly


@moments_of.register
def _(event: PureDP, moments: FloatArray) -> FloatArray:
    return pure_log_moments(event.epsilon, moments)


@moments_of.register
def _(event: ZeroConcentrated, moments: FloatArray) -> FloatArray:
    """Bun & Steinke 2016, Definition 1.1: RDP(α) ≤ ρα."""
    return event.rho * moments * (moments + 1)


@moments_of.register
def _(event: SmoothRelease, moments: FloatArray) -> FloatArray:
    """The exact worst case over neighbours; infinite where (α−1)(e^{2β}−1) ≥ 1.

    Guarantees:
        Neighbours publish N(f, (σS)²) and N(f′, (σS′)²) with |f − f′| ≤ min(S, S′) and
        e^{−β} ≤ S′/S ≤ e^β. The Rényi divergence of two Gaussians (Gil et al. 2013, Table 2) is
        h(S′/S) plus a term in (f − f′)²; h grows away from one, and the other term is largest at
        S′ = e^{−β}S. Theorem 23 of Papernot et al. 2018 (α e^{2β}/σ² + …, for α < 1/(2β)) is not
        used: it is up to several times smaller than this exact value towards its upper end.
    """
    orders = moments + 1
    narrow = 1 - moments * math.expm1(2 * event.beta)  # α − (α−1)e^{2β}
    values = np.full_like(moments, np.inf)
    ok = narrow > 0
    m, a, n = moments[ok], orders[ok], narrow[ok]
    wide = math.exp(2 * event.beta) + m * math.expm1(2 * event.beta)  # α e^{2β} + 1 − α
    shrinking = -m * event.beta - np.log(n) / 2 + m * a / (2 * event.sigma**2 * n)
    growing = a * event.beta - np.log(wide) / 2 + m * a / (2 * event.sigma**2)
    values[ok] = np.maximum(np.maximum(shrinking, growing), 0.0)
    return values


def pure_log_moments(epsilon: float, moments: FloatArray) -> FloatArray:
    """min(λε, ½ε²λ(λ+1)), which holds for every (ε, 0)-DP mechanism.

    Guarantees:
        The first term is the definition of ε-DP; the second is Bun & Steinke 2016,
        Proposition 3.3. Both hold for every real λ > 0 and in both directions.
    """
    return np.minimum(epsilon * moments, 0.5 * epsilon**2 * moments * (moments + 1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogMoments:
    """Total log-moments on a grid of λ; what composition adds up.

    >>> answers = compose([Repeated(Gaussian(noise_multiplier=10.0), 25)])
    >>> round(answers.guarantee(delta=1e-5).epsilon, 3)
    2.166
    """

    moments: FloatArray
    values: FloatArray
    data_dependent: bool = False
    neighbours: Neighbours = Neighbours.AS_STATED

    def __post_init__(self) -> None:
        if self.values.shape != self.moments.shape:
            raise InvalidInput("log-moments and their grid differ in length")
        if not np.all(self.values >= 0):  # also false for NaN: fails closed
            raise InvalidInput("a log-moment came out negative or undefined; refusing to use it")

    def __add__(self, other: LogMoments) -> LogMoments:
        if not np.array_equal(self.moments, other.moments):
            raise InvalidInput("log-moments on different grids of λ cannot be added")
        return LogMoments(
            moments=self.moments,
            values=self.values + other.values,
            data_dependent=self.data_dependent or other.data_dependent,
            neighbours=self.neighbours.combine(other.neighbours),
        )

    def guarantee(self, *, delta: float, conversion: Conversion = Conversion.IMPROVED) -> Guarantee:
        """The smallest ε over the grid.

        Guarantees:
            Holds where the events were fixed in advance; costs that were chosen as answers
            came in need a λ fixed in advance (a grid of one).
        """
        epsilons = epsilon_at(self.moments, self.values, delta=delta, conversion=conversion)
        best = int(np.argmin(epsilons))
        return Guarantee(
            epsilon=float(epsilons[best]),
            delta=delta,
            moment=float(self.moments[best]),
            data_dependent=self.data_dependent,
            neighbours=self.neighbours,
            conversion=conversion,
        )


def compose(events: Iterable[Event], moments: ArrayLike | None = None) -> LogMoments:
    """Adds up data-independent costs; neither order nor grouping of the events matters.

    Guarantees:
        Abadi et al. 2016, Theorem 2.1 (log-moments of adaptively chosen mechanisms add up).
    """
    grid = as_moments(moments)
    total = np.zeros_like(grid)
    counts = tally(events)
    for event, count in counts.items():
        total += count * _one(event, grid.tobytes())
    return LogMoments(moments=grid, values=total, neighbours=relation_of(counts))


@lru_cache(maxsize=512)
def _one(event: Event, grid: bytes) -> FloatArray:
    """The cost of one event, remembered: searches and ledgers ask for the same ones again."""
    values = moments_of(event, np.frombuffer(grid))
    values.setflags(write=False)
    return values


def epsilon_at(
    moments: FloatArray, values: FloatArray, *, delta: float, conversion: Conversion
) -> FloatArray:
    """ε at every λ, from total log-moments.

    Guarantees:
        * classic: (α(λ) + log 1/δ) / λ; Abadi et al. 2016, Theorem 2.2.
        * improved: Canonne, Kamath & Steinke 2020, Proposition 12, and ε = 0 where the total
          variation is at most δ (Bretagnolle & Huber 1979, with KL ≤ RDP).
    """
    epsilons = tail_epsilon_at(moments, values, delta=delta, conversion=conversion)
    if conversion is Conversion.CLASSIC:
        return epsilons
    never_told_apart = -np.expm1(-values / moments) <= delta**2
    return np.where(never_told_apart, 0.0, np.maximum(epsilons, 0.0))


def tail_epsilon_at(
    moments: FloatArray, values: FloatArray, *, delta: float, conversion: Conversion
) -> FloatArray:
    """ε at every λ by E[exp(λ loss − α(λ))] ≤ 1 alone; it may come out below zero."""
    check_delta(delta)
    if conversion is Conversion.CLASSIC:
        return (values - math.log(delta)) / moments
    orders = moments + 1
    return (
        values / moments + np.log(moments / orders) - (math.log(delta) + np.log(orders)) / moments
    )


def log_moment_at(
    moments: FloatArray, epsilon: float, *, delta: float, conversion: Conversion
) -> FloatArray:
    """The total log-moment that becomes ``epsilon`` at each λ: :func:`epsilon_at` turned round."""
    check_delta(delta)
    if conversion is Conversion.CLASSIC:
        return moments * epsilon + math.log(delta)
    orders = moments + 1
    return moments * (epsilon - np.log(moments / orders)) + math.log(delta) + np.log(orders)
