"""Accountants as functions of events, and searches with them: noise for a target, and counts.

Both searches rest on one fact, tested for every event: more noise never costs more, and more
answers never cost less. They return the side on which the target is met.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from numpy.typing import ArrayLike

from pate._validate import check_delta
from pate.accounting.events import (
    Event,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Laplace,
    LaplaceNoisyMaxAnswer,
    Repeated,
    SampledGaussian,
    ThresholdCheck,
    relation_of,
    tally,
)
from pate.accounting.guarantee import Conversion, Guarantee
from pate.accounting.moments import FloatArray, LogMoments, compose, integer_moments
from pate.accounting.sampled_gaussian import ABADI_LARGEST_MOMENT, abadi_log_moments
from pate.errors import InvalidInput, UnsupportedEvent

Epsilon = Callable[[list[Event]], float]

PLD_MARGIN = 2e-4
"""Added to every ε of :func:`pld_guarantee`: processors differ by up to 1e-4 in their sums."""

_ROUNDING = sys.float_info.epsilon  # of one convolution of probabilities
_LEAST_PLD_NOISE = 0.05  # below it a loss distribution would not fit in memory
_LARGEST_NOISE = 1e9
_MOST = 1 << 40


class Method(StrEnum):
    """The accountants of DP-SGD."""

    ABADI = "abadi"  # log max(E₁, E₂) by integration, whole λ ≤ 32, classic tail bound
    MOMENTS = "moments"  # exact moments at whole and fractional λ, either conversion
    PLD = "pld"  # privacy loss distributions, the tightest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DpsgdAccountant:
    """An accountant of DP-SGD steps; equal steps are evaluated once, whatever their number."""

    delta: float
    method: Method = Method.MOMENTS
    conversion: Conversion = Conversion.IMPROVED  # of Method.MOMENTS
    moments: FloatArray | None = None  # of Method.MOMENTS

    def guarantee(self, events: list[Event]) -> Guarantee:
        """Return the (ε, δ) of events that were fixed in advance."""
        if self.method is Method.MOMENTS:
            total = compose(events, self.moments)
            return total.guarantee(delta=self.delta, conversion=self.conversion)
        if self.method is Method.PLD:
            return pld_guarantee(events, delta=self.delta)
        return self._abadi(events).guarantee(delta=self.delta, conversion=Conversion.CLASSIC)

    def epsilon(self, events: list[Event]) -> float:
        """Return the ε alone: the function that calibration searches with."""
        return self.guarantee(events).epsilon

    @staticmethod
    def _abadi(events: list[Event]) -> LogMoments:
        grid = integer_moments(ABADI_LARGEST_MOMENT)
        total = compose([], grid)
        for step, count in tally(events).items():
            if not isinstance(step, SampledGaussian):
                raise UnsupportedEvent(f"{type(step).__name__} is not a DP-SGD step")
            total += LogMoments(
                moments=grid,
                values=count * abadi_log_moments(step, grid),
                neighbours=step.neighbours,
            )
        return total


def moments_epsilon(
    *,
    delta: float,
    conversion: Conversion = Conversion.IMPROVED,
    moments: ArrayLike | None = None,
) -> Epsilon:
    """Return the moments accountant as a function from events to ε, to calibrate with."""
    return lambda events: (
        compose(events, moments).guarantee(delta=delta, conversion=conversion).epsilon
    )


# --- searches -----------------------------------------------------------------------------------


def smallest_noise(
    event_with: Callable[[float], Event],
    *,
    count: int,
    target: float,
    epsilon: Epsilon,
    tolerance: float = 1e-7,
) -> float:
    """Return the smallest noise with which ``count`` events cost no more than ``target``.

    It is at most ``tolerance`` above the exact solution, never below it.

    Parameters
    ----------
    event_with
        The event as a function of its noise.
    count
        The number of times it happens.
    target
        The largest ε allowed.
    epsilon
        The accountant, as a function from a list of events to ε.
    tolerance
        The relative precision of the search.

    >>> answers = smallest_noise(lambda sigma: GaussianNoisyMaxAnswer(sigma=sigma),
    ...                          count=100, target=1.0, epsilon=moments_epsilon(delta=1e-5))
    >>> round(answers, 2)
    57.21
    """
    if not target > 0:
        raise InvalidInput(f"the target epsilon is {target}; it must be above zero")

    def meets(noise: float) -> bool:
        return epsilon([Repeated(event_with(noise), count)]) <= target

    low = high = 1.0
    while not meets(high):
        low, high = high, high * 2
        if high > _LARGEST_NOISE:
            raise InvalidInput(f"no noise reaches epsilon {target:g}; raise the target or delta")
    while low == high or meets(low):
        high, low = low, low / 2
        if low < 1 / _LARGEST_NOISE:
            return high
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def most(event: Event, *, target: float, epsilon: Epsilon) -> int:
    """Return how often an event can happen at a cost of no more than ``target``; 0 if not once.

    Parameters
    ----------
    event
        The event, with its noise.
    target
        The largest ε allowed.
    epsilon
        The accountant, as a function from a list of events to ε.

    >>> answer = LaplaceNoisyMaxAnswer(scale=20.0)
    >>> most(answer, target=5.0, epsilon=moments_epsilon(delta=1e-5))
    110
    """

    def meets(count: int) -> bool:
        return epsilon([Repeated(event, count)]) <= target

    if not meets(1):
        return 0
    low, high = 1, 2
    while meets(high):
        low, high = high, high * 2
        if high > _MOST:
            raise InvalidInput(f"more than {_MOST} repetitions stay within epsilon {target:g}")
    return _bisect(meets, low, high)


def largest_count(fits: Callable[[int], bool], *, most: int) -> int:
    """Return the largest n in 1 … most that fits, where 1 does and more never costs less."""
    return most if fits(most) else _bisect(fits, 1, most)


def _bisect(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest count that fits; ``low`` does and ``high`` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def dpsgd_step(sample_rate: float, *, public_rate: bool = False) -> Callable[[float], Event]:
    """Return DP-SGD steps at one sampling rate as a function of their noise multiplier."""
    return lambda noise_multiplier: SampledGaussian(
        sample_rate=sample_rate, noise_multiplier=noise_multiplier, public_rate=public_rate
    )


# --- privacy loss distributions -----------------------------------------------------------------


def pld_guarantee(
    events: Iterable[Event], *, delta: float, discretisation: float = 1e-4
) -> Guarantee:
    """Return the guarantee of events that were fixed in advance, by privacy loss distributions.

    Tighter than moments, and data-independent only. The ε is rounded up by the discretisation and a
    margin, never down.

    Parameters
    ----------
    events
        Gaussian, Laplace, sampled Gaussian, noisy-max and threshold events.
    delta
        The δ of the guarantee.
    discretisation
        The width of the grid of losses; rounding to it is upwards.

    Guarantees:
        * Koskela et al. 2020 and Doroshenko et al. 2022 (connect-the-dots, pessimistic), as
          implemented in dp-accounting. Not for costs chosen as answers come in.
        * That library convolves in floats and does not count their rounding. ε is taken at δ less
          ``_ROUNDING`` for every event, and ``PLD_MARGIN`` is added: what one processor prints is
          at most that margin below what another does. Where the rounding is more than half of δ,
          no value is given. (Measured, the noise moved by 1e-12: δ moves by up to 1e-16 for each
          event. ε moves by 1e-9 for 10 000 steps at δ = 1e-5, by 1e-4 for 100 000 at δ = 1e-8.)

    >>> steps = [Repeated(SampledGaussian(sample_rate=0.01, noise_multiplier=1.0), 100)]
    >>> round(pld_guarantee(steps, delta=1e-5).epsilon, 2)
    0.72
    """
    check_delta(delta)
    counts = tally(events)
    for event in counts:
        _require_noise(event)
    neighbours = relation_of(counts)
    if not counts:
        return Guarantee(epsilon=0.0, delta=delta, neighbours=neighbours)
    rounding = _ROUNDING * sum(counts.values())
    if rounding > delta / 2:
        raise InvalidInput(
            f"delta is {delta:g}; over {sum(counts.values())} events privacy loss distributions "
            f"need {2 * rounding:.2g} or more, because they are added up in floats: use the "
            "moments accountant"
        )
    import dp_accounting  # slow to load
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=discretisation,
    )
    for event, count in counts.items():
        accountant.compose(_as_dp_event(event), count)
    epsilon = max(0.0, float(accountant.get_epsilon(delta - rounding)))
    return Guarantee(epsilon=epsilon + PLD_MARGIN, delta=delta, neighbours=neighbours)


def _require_noise(event: Event) -> None:
    if isinstance(event, ForReplacement):
        event = event.event
    for name in ("noise_multiplier", "sigma", "scale"):
        noise = getattr(event, name, math.inf)
        if noise < _LEAST_PLD_NOISE:
            raise InvalidInput(
                f"{name} is {noise:g}; below {_LEAST_PLD_NOISE:g} use the moments accountant"
            )


def _as_dp_event(event: Event) -> Any:
    """Return the dp-accounting event that an event of ours is, or is a post-processing of."""
    import dp_accounting as dp

    match event:
        case ForReplacement(event=inner):  # the same distributions, under another relation
            return _as_dp_event(inner)
        case Gaussian(noise_multiplier=multiplier) | ThresholdCheck(sigma=multiplier):
            return dp.GaussianDpEvent(multiplier)
        case GaussianNoisyMaxAnswer(sigma=sigma):  # the argmax of counts that move by √2 in L2
            return dp.GaussianDpEvent(sigma / math.sqrt(2))
        case SampledGaussian(sample_rate=rate, noise_multiplier=multiplier):
            return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier))
        case Laplace(noise_multiplier=multiplier):
            return dp.LaplaceDpEvent(multiplier)
        case LaplaceNoisyMaxAnswer(scale=scale):  # the argmax of counts of which two move by one
            return dp.SelfComposedDpEvent(dp.LaplaceDpEvent(scale), 2)
    raise UnsupportedEvent(
        f"{type(event).__name__} has no privacy loss distribution here; use the moments accountant"
    )
