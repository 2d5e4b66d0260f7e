"""Log-moments of events, their sum, and its conversion to (ε, δ).

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
from numpy.typing import ArrayLike, NDArray

from pate._validate import check_delta
from pate.accounting.events import (
    Event,
    ForAddRemove,
    ForReplacement,
    Gaussian,
    Laplace,
    PureDP,
    Repeated,
    SmoothRelease,
    ZeroConcentrated,
    is_of_votes,
    relation_of,
    tally,
)
from pate.accounting.guarantee import Analysis, Conversion, Guarantee, Neighbours
from pate.errors import InvalidInput, UnsupportedEvent

FloatArray = NDArray[np.float64]

_LOG_2 = float(np.log(2.0))


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
    """Return the grid λ = 1, 2, …, ``largest`` that the papers use.

    Parameters
    ----------
    largest
        The largest λ, from 1 to 1 000 000.

    >>> integer_moments(3)
    array([1., 2., 3.])
    """
    if not 1 <= largest <= 1_000_000:
        raise InvalidInput(f"the largest moment is {largest}; it must lie between 1 and 1000000")
    return np.arange(1, largest + 1, dtype=np.float64)


def as_moments(moments: ArrayLike | None) -> FloatArray:
    """Return a checked grid of λ; the default one for None."""
    if moments is None:
        return DEFAULT_MOMENTS
    grid = np.atleast_1d(np.asarray(moments, dtype=np.float64))
    if grid.ndim != 1 or not grid.size or not np.all(np.isfinite(grid) & (grid > 0)):
        raise InvalidInput("moments must be a list of finite numbers above zero")
    return grid


def log_moments(
    event: Event, moments: ArrayLike, *, analysis: Analysis = Analysis.TIGHT
) -> FloatArray:
    """Return the data-independent log-moments α(λ) of one event.

    Parameters
    ----------
    event
        Any event with a reviewed bound.
    moments
        The values of λ, above zero, whole or not.
    analysis
        The bounds of noisy-max answers and threshold checks.

    >>> log_moments(Gaussian(noise_multiplier=2.0), [1, 3])
    array([0.25, 1.5 ])
    """
    return moments_of(event, as_moments(moments), Analysis(analysis))


@singledispatch
def moments_of(event: Event, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Return α(λ) of an event: one pure function for each kind, registered beside its theorem.

    The grid is one of :func:`as_moments`: with integers NumPy would round the results down.
    """
    raise UnsupportedEvent(
        f"{type(event).__name__} has no log-moment bound; compose it by other means"
    )


@moments_of.register
def _(event: Repeated, moments: FloatArray, analysis: Analysis) -> FloatArray:
    return event.count * moments_of(event.event, moments, analysis)


@moments_of.register
def _(event: ForReplacement | ForAddRemove, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """The bounds of the inner event hold between any two data sets its sensitivity covers."""
    return moments_of(event.event, moments, analysis)


@moments_of.register
def _(event: Gaussian, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Mironov 2017, Proposition 7: RDP(α) = α / 2z²."""
    return moments * (moments + 1) / (2 * event.noise_multiplier**2)


@moments_of.register
def _(event: Laplace, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Mironov 2017, Proposition 6, at order λ + 1: log[p e^{λt} + (1−p) e^{−(λ+1)t}]."""
    t = 1 / event.noise_multiplier
    p = (moments + 1) / (2 * moments + 1)
    up, down = moments * t, -(moments + 1) * t
    large = np.logaddexp(np.log(p) + up, np.log1p(-p) + down)
    small = np.log1p(p * exp_excess(np.minimum(up, 1.0)) + (1 - p) * exp_excess(down))
    return np.where(up > 1.0, large, small)  # the terms linear in t cancel exactly


@moments_of.register
def _(event: PureDP, moments: FloatArray, analysis: Analysis) -> FloatArray:
    return pure_log_moments(event.epsilon, moments)


@moments_of.register
def _(event: ZeroConcentrated, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Bun & Steinke 2016, Definition 1.1: RDP(α) ≤ ρα."""
    return event.rho * moments * (moments + 1)


@moments_of.register
def _(event: SmoothRelease, moments: FloatArray, analysis: Analysis) -> FloatArray:
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
    """Return min(λε, ½ε²λ(λ+1)), which holds for every (ε, 0)-DP mechanism.

    Guarantees:
        The first term is the definition of ε-DP; the second is Bun & Steinke 2016,
        Proposition 3.3. Both hold for every real λ > 0 and in both directions.
    """
    return np.minimum(epsilon * moments, 0.5 * epsilon**2 * moments * (moments + 1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogMoments:
    """Total log-moments on a grid of λ.

    Parameters
    ----------
    moments
        The grid of λ.
    values
        The total log-moment at each λ.
    data_dependent
        The values follow from private votes, and are private themselves.
    neighbours
        The relation between data sets under which they hold.
    analysis
        The bounds behind the log-moments of votes; published ones where there are no votes.

    >>> answers = compose([Repeated(Gaussian(noise_multiplier=10.0), 25)])
    >>> round(answers.guarantee(delta=1e-5).epsilon, 3)
    2.166
    """

    moments: FloatArray
    values: FloatArray
    data_dependent: bool = False
    neighbours: Neighbours = Neighbours.AS_STATED
    analysis: Analysis = Analysis.PUBLISHED

    def __post_init__(self) -> None:
        if self.values.shape != self.moments.shape:
            raise InvalidInput("log-moments and their grid differ in length")
        if not np.all(self.values >= 0):  # also false for NaN: fails closed
            raise InvalidInput("a log-moment came out negative or undefined; refusing to use it")

    def __add__(self, other: LogMoments) -> LogMoments:
        """Compose two costs on the same grid."""
        if not np.array_equal(self.moments, other.moments):
            raise InvalidInput("log-moments on different grids of λ cannot be added")
        return LogMoments(
            moments=self.moments,
            values=self.values + other.values,
            data_dependent=self.data_dependent or other.data_dependent,
            neighbours=self.neighbours.combine(other.neighbours),
            analysis=max(self.analysis, other.analysis),  # tight, if one of them is
        )

    def guarantee(self, *, delta: float, conversion: Conversion = Conversion.IMPROVED) -> Guarantee:
        """Return the guarantee with the smallest ε over the grid.

        Parameters
        ----------
        delta
            The δ of the guarantee, strictly between 0 and 1.
        conversion
            The bound that converts log-moments to ε.

        Returns
        -------
        Guarantee

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
            analysis=self.analysis,
        )


def compose(
    events: Iterable[Event],
    moments: ArrayLike | None = None,
    *,
    analysis: Analysis = Analysis.TIGHT,
) -> LogMoments:
    """Add up the data-independent costs of events.

    Parameters
    ----------
    events
        What was, or will be, released. Neither order nor grouping matters.
    moments
        The grid of λ; a fine default grid up to 65 536 if None.
    analysis
        The bounds of noisy-max answers and threshold checks: tight, or as the papers published
        them, to reproduce their figures.

    Returns
    -------
    LogMoments
        The total; its ``guarantee(delta=…)`` converts it to (ε, δ).

    Raises
    ------
    UnsupportedEvent
        If no theorem bounds the log-moments of an event.
    InvalidInput
        If the events hold under relations that do not combine.

    Guarantees:
        Abadi et al. 2016, Theorem 2.1 (log-moments of adaptively chosen mechanisms add up).

    >>> round(compose([Gaussian(noise_multiplier=4.0)]).guarantee(delta=1e-5).epsilon, 3)
    1.012
    """
    grid, analysis = as_moments(moments), Analysis(analysis)
    total = np.zeros_like(grid)
    counts = tally(events)
    for event, count in counts.items():
        total += count * _one(event, grid.tobytes(), analysis)
    return LogMoments(
        moments=grid,
        values=total,
        neighbours=relation_of(counts),
        analysis=analysis if any(map(is_of_votes, counts)) else Analysis.PUBLISHED,
    )


@lru_cache(maxsize=512)
def _one(event: Event, grid: bytes, analysis: Analysis) -> FloatArray:
    """Return the cost of one event, cached: searches and ledgers ask for the same ones again."""
    values = moments_of(event, np.frombuffer(grid), analysis)
    values.setflags(write=False)
    return values


def epsilon_at(
    moments: FloatArray, values: FloatArray, *, delta: float, conversion: Conversion
) -> FloatArray:
    """Return the ε at every λ, from total log-moments.

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
    """Return the ε at every λ by E[exp(λ loss − α(λ))] ≤ 1 alone; it may be below zero."""
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
    """Return the log-moment that converts to ``epsilon`` at each λ; inverts :func:`epsilon_at`."""
    check_delta(delta)
    if conversion is Conversion.CLASSIC:
        return moments * epsilon + math.log(delta)
    orders = moments + 1
    return moments * (epsilon - np.log(moments / orders)) + math.log(delta) + np.log(orders)


def odometer_epsilon(
    log_moment: float, *, moment: float, delta: float, conversion: Conversion
) -> float:
    """Return the ε of a running total at a λ fixed before the first charge.

    It holds whenever one stops, also if the answers decide when to stop. The best λ for all charges
    so far is chosen by them, and so by the answers that led to them: it covers a plan that was
    fixed in advance, not a series of charges that was decided on as answers came in. At one λ fixed
    in advance the running sum does.

    Parameters
    ----------
    log_moment
        The sum of the log-moments of all charges so far, at ``moment``.
    moment
        The λ that was fixed in advance.
    delta
        The δ of the guarantee.
    conversion
        The bound that converts the log-moment; see below for what each covers.

    Guarantees:
        Let L_t be the privacy loss log P(o)/P′(o) of the first t outputs o, drawn from P, and A_t
        the sum of their log-moments a_i(λ). The i-th mechanism may be chosen by the outputs before
        it, and a_i with it; whatever these were, E[e^{λ loss_i} | past] ≤ e^{a_i}. So
        M_t = exp(λL_t − A_t) is a non-negative supermartingale with M_0 = 1, and E[M_τ] ≤ 1 at
        every stopping time τ, i.e. whenever stopping is decided by outputs alone (Feldman & Zrnic
        2021, Theorem 4.3; Whitehouse, Ramdas, Rogers & Wu 2023).

        With A = A_τ and ε(o) = (A + log 1/δ)/λ + (log c)/λ:

        * **improved**, c = (1/(λ+1))(λ/(λ+1))^λ: (1 − e^{−x})₊ ≤ c e^{λx} for all x, hence
          E[(1 − e^{ε(o) − L_τ})₊] ≤ δ E[M_τ] ≤ δ. That is
          Pr[o ∈ S] ≤ Σ_{o ∈ S} e^{ε(o)} P′(o) + δ for every set S of what may have been published
          when one stopped: (ε, δ)-DP with the ε that is read then. It holds at **any one stopping
          time**, not for all times at once: whoever looks back over a finished series for the
          moment at which the reading was exceeded most has not stopped there.
        * **classic**, c = 1: moreover Pr[L_t > ε_t for some t] ≤ δ (Ville 1939), for **all times
          at once**: several readings of one series then hold together.

        Neither needs a union bound over a ladder of filters. Several λ need one: each gets its
        share of δ, fixed in advance; the best of them afterwards, at the whole δ, is no guarantee.

    >>> once = odometer_epsilon(2.0, moment=8.0, delta=1e-5, conversion=Conversion.IMPROVED)
    >>> later = odometer_epsilon(4.0, moment=8.0, delta=1e-5, conversion=Conversion.IMPROVED)
    >>> round(once, 3), round(later, 3)
    (1.297, 1.547)
    """
    if not (0 < moment < math.inf and log_moment >= 0):  # also false for NaN: fails closed
        raise InvalidInput(f"a log-moment of {log_moment} at λ {moment} cannot be turned into ε")
    # Not epsilon_at: its ε = 0 rests on a bound of the whole divergence that is fixed in advance.
    epsilon = tail_epsilon_at(
        np.array([moment]), np.array([log_moment]), delta=delta, conversion=conversion
    )
    return max(0.0, float(epsilon[0]))


# --- elementary functions where the textbook form cancels or overflows ---------------------------


def log1mexp(x: FloatArray) -> FloatArray:
    """Return log(1 − eˣ) for x < 0, to full relative accuracy (Mächler 2012).

    >>> bool(log1mexp(np.array([-1e-20]))[0] == np.log(1e-20))
    True
    """
    with np.errstate(divide="ignore"):
        near = np.log(-np.expm1(np.maximum(x, -_LOG_2)))
        far = np.log1p(-np.exp(np.minimum(x, -_LOG_2)))
    return np.where(x > -_LOG_2, near, far)


def exp_excess(x: FloatArray) -> FloatArray:
    """Return eˣ − 1 − x, which is never negative, to full relative accuracy for |x| ≤ 1 too.

    >>> bool(np.isclose(exp_excess(np.array([1e-9]))[0], 5e-19, rtol=1e-8))
    True
    """
    small = np.clip(x, -1.0, 1.0)
    series = np.zeros_like(small)
    for n in range(20, 2, -1):  # Horner on x²/2! + x³/3! + …; the tail is below 1e-19
        series = (series + 1.0) * small / n
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) <= 1.0, (series + 1.0) * small**2 / 2, np.expm1(x) - x)
