"""Accountants as functions of events, and searches with them: noise for a target, and counts.

Both searches rest on one fact, tested for every event: more noise never costs more, and more
answers never cost less. They return the side on which the target is met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from numpy.typing import ArrayLike

from pate.accounting.events import (
    Event,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    SampledGaussian,
    tally,
)
from pate.accounting.guarantee import Conversion, Guarantee
from pate.accounting.moments import FloatArray, LogMoments, compose, integer_moments
from pate.accounting.pld import pld_guarantee
from pate.accounting.sampled_gaussian import ABADI_LARGEST_MOMENT, abadi_log_moments
from pate.errors import InvalidInput, UnsupportedEvent

Epsilon = Callable[[list[Event]], float]

_LARGEST_NOISE = 1e9
_MOST = 1 << 40


class Method(StrEnum):
    """The accountants of DP-SGD."""

    ABADI = "abadi"  # log max(E₁, E₂) by integration, whole λ ≤ 32, classic tail bound
    MOMENTS = "moments"  # exact moments at whole and fractional λ, either conversion
    PLD = "pld"  # privacy loss distributions, the tightest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DpsgdAccountant:
    """An accountant of DP-SGD steps; equal steps are evaluated once, whatever their number.

    Parameters
    ----------
    delta
        The δ of the guarantee.
    method
        How the cost of a step is computed and composed.
    conversion
        The bound that converts log-moments to ε; for :attr:`Method.MOMENTS` only.
    moments
        The grid of λ; for :attr:`Method.MOMENTS` only.

    >>> from pate.accounting import Repeated
    >>> step = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0)
    >>> abadi = DpsgdAccountant(delta=1e-5, method=Method.ABADI)
    >>> round(abadi.guarantee([Repeated(step, 10_000)]).epsilon, 4)
    1.2586
    """

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


def smallest_noise(
    event_with: Callable[[float], Event],
    *,
    count: int,
    target: float,
    epsilon: Epsilon,
    tolerance: float = 1e-7,
) -> float:
    """Return the smallest noise with which ``count`` events cost no more than ``target``.

    Parameters
    ----------
    event_with
        The event as a function of its noise, such as ``lambda b: LaplaceNoisyMaxAnswer(scale=b)``.
    count
        The number of times it happens.
    target
        The largest ε allowed.
    epsilon
        The accountant, as a function from a list of events to ε.
    tolerance
        The relative precision of the search.

    Returns
    -------
    float
        At most ``tolerance`` above the exact solution, never below it.

    Raises
    ------
    InvalidInput
        If no noise meets the target.

    >>> answers = smallest_noise(gnmax, count=100, target=1.0, epsilon=moments_epsilon(delta=1e-5))
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
    """Return how often an event can happen at a cost of no more than ``target``.

    Parameters
    ----------
    event
        The event, with its noise.
    target
        The largest ε allowed.
    epsilon
        The accountant, as a function from a list of events to ε.

    Returns
    -------
    int
        0 if one event already costs more.

    >>> most(lnmax(20.0), target=5.0, epsilon=moments_epsilon(delta=1e-5))
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
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def lnmax(scale: float) -> Event:
    """Return a Laplace noisy-max answer with this noise."""
    return LaplaceNoisyMaxAnswer(scale=scale)


def gnmax(sigma: float) -> Event:
    """Return a Gaussian noisy-max answer with this noise."""
    return GaussianNoisyMaxAnswer(sigma=sigma)


def dpsgd_step(sample_rate: float, *, public_rate: bool = False) -> Callable[[float], Event]:
    """Return DP-SGD steps at one sampling rate as a function of their noise multiplier."""
    return lambda noise_multiplier: SampledGaussian(
        sample_rate=sample_rate, noise_multiplier=noise_multiplier, public_rate=public_rate
    )
