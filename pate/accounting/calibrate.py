"""Noise for a target (ε, δ), and how far a given noise goes.

Both searches rest on one fact, tested for every event: more noise never costs more, and more
answers never cost less. They return the side on which the target is met.
"""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike

from pate.accounting.events import (
    Event,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    SampledGaussian,
)
from pate.accounting.guarantee import Conversion
from pate.accounting.moments import compose
from pate.accounting.pld import pld_guarantee
from pate.errors import InvalidInput

Epsilon = Callable[[list[Event]], float]

_LARGEST_NOISE = 1e9
_MOST = 1 << 40


def moments_epsilon(
    *,
    delta: float,
    conversion: Conversion = Conversion.IMPROVED,
    moments: ArrayLike | None = None,
) -> Epsilon:
    """ε of events by the moments accountant, as a function to calibrate with."""
    return lambda events: (
        compose(events, moments).guarantee(delta=delta, conversion=conversion).epsilon
    )


def pld_epsilon(*, delta: float) -> Epsilon:
    """ε of events by privacy loss distributions, as a function to calibrate with."""
    return lambda events: pld_guarantee(events, delta=delta).epsilon


def smallest_noise(
    event_with: Callable[[float], Event],
    *,
    count: int,
    target: float,
    epsilon: Epsilon,
    tolerance: float = 1e-7,
) -> float:
    """The smallest noise with which ``count`` events stay within ``target``.

    Relative to the accountant's own root the result is at most ``tolerance`` too large, never too
    small.

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
    """The largest number of times an event may happen within ``target``; 0 if not even once.

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
    """A Laplace noisy-max answer, by its noise."""
    return LaplaceNoisyMaxAnswer(scale=scale)


def gnmax(sigma: float) -> Event:
    """A Gaussian noisy-max answer, by its noise."""
    return GaussianNoisyMaxAnswer(sigma=sigma)


def dpsgd_step(sample_rate: float, *, public_rate: bool = False) -> Callable[[float], Event]:
    """A DP-SGD step at a sampling rate, by its noise multiplier."""
    return lambda noise_multiplier: SampledGaussian(
        sample_rate=sample_rate, noise_multiplier=noise_multiplier, public_rate=public_rate
    )
