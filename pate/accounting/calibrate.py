"""Accountants of DP-SGD, and searches with any accountant: noise for a target, and counts.

Both searches rest on one fact, tested for every event: more noise never costs more, and more
answers never cost less. They return the side on which the target is met.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from numpy.typing import ArrayLike

from pate.accounting.events import (
    Event,
    Repeated,
    SampledGaussian,
    tally,
)
from pate.accounting.guarantee import Analysis, Conversion, Guarantee
from pate.accounting.loss_distributions import pld_guarantee
from pate.accounting.moments import FloatArray, LogMoments, compose, integer_moments
from pate.accounting.plan_guarantee import guarantee_of_plan
from pate.accounting.sampled_gaussian import ABADI_LARGEST_MOMENT, abadi_log_moments
from pate.errors import InvalidInput, UnsupportedEvent

Epsilon = Callable[[list[Event]], float]

_LARGEST_NOISE = 1e9
_MOST = 1 << 40


class Method(StrEnum):
    """The accountants of DP-SGD."""

    TIGHTEST = "tightest"  # the smaller of moments and pld
    ABADI = "abadi"  # log max(E₁, E₂) by integration, whole λ ≤ 32, classic tail bound
    MOMENTS = "moments"  # exact moments at whole and fractional λ, either conversion
    PLD = "pld"  # privacy loss distributions


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
        if self.method is Method.TIGHTEST:
            return guarantee_of_plan(events, delta=self.delta)
        if self.method is Method.PLD:
            return pld_guarantee(events, delta=self.delta)
        return self._abadi(events).guarantee(delta=self.delta, conversion=Conversion.CLASSIC)

    def epsilon(self, events: list[Event]) -> float:
        """Return the ε alone, to search with; of the tightest accountant a little more than that.

        Its loss distributions are then discretised four times as coarsely, which saves time. Every
        point of the coarse grid is one of the fine grid, so its ε is no smaller.
        """
        if self.method is not Method.TIGHTEST:
            return self.guarantee(events).epsilon
        best = compose(events).guarantee(delta=self.delta).epsilon
        with contextlib.suppress(InvalidInput, UnsupportedEvent):  # outside their range
            coarse = pld_guarantee(events, delta=self.delta, discretisation=4e-4)
            best = min(best, coarse.epsilon)
        return best

    @property
    def rough(self) -> Epsilon | None:
        """A quicker accountant to start a search with, where this one is slow."""
        slow = self.method in (Method.TIGHTEST, Method.PLD)
        return moments_epsilon(delta=self.delta) if slow else None

    @property
    def tolerance(self) -> float:
        """The relative precision of noise that is found with it; less where it is slow."""
        return 1e-7 if self.rough is None else 1e-4

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
    analysis: Analysis = Analysis.TIGHT,
) -> Epsilon:
    """Return the moments accountant as a function from events to ε, to calibrate with."""

    def epsilon(events: list[Event]) -> float:
        total = compose(events, moments, analysis=analysis)
        return total.guarantee(delta=delta, conversion=conversion).epsilon

    return epsilon


# --- searches -----------------------------------------------------------------------------------


def smallest_noise(
    event_with: Callable[[float], Event],
    *,
    count: int,
    target: float,
    epsilon: Epsilon,
    tolerance: float = 1e-7,
    rough: Epsilon | None = None,
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
    rough
        A quick accountant whose ε is a little larger: the search starts from what it finds, which
        saves time where ``epsilon`` is slow.

    >>> from pate.accounting import GaussianNoisyMaxAnswer
    >>> answers = smallest_noise(lambda sigma: GaussianNoisyMaxAnswer(sigma=sigma),
    ...                          count=100, target=1.0, epsilon=moments_epsilon(delta=1e-5))
    >>> round(answers, 2)
    45.93
    """
    if not target > 0:
        raise InvalidInput(f"the target epsilon is {target}; it must be above zero")

    def cost(noise: float, account: Epsilon = epsilon) -> float:
        return account([Repeated(event_with(noise), count)])

    if rough is None:
        found = least_noise(lambda noise: cost(noise) <= target, tolerance=tolerance)
    else:
        found = least_noise(lambda noise: cost(noise, rough) <= target, tolerance=1e-3)
        if found is not None:
            found = _noise_near(found, lambda noise: cost(noise) / target, tolerance)
    if found is None:
        raise InvalidInput(f"no noise reaches epsilon {target:g}; raise the target or delta")
    return found


def _noise_near(start: float, cost: Callable[[float], float], tolerance: float) -> float | None:
    """Return the least noise whose cost is 1 or less, in few steps from a noise that is near.

    By secants of log-cost over log-noise; after six steps every other one bisects, so that it ends
    in any case. The last two steps aim at either side of the solution, a third of a tolerance away.
    """
    low, high = 0.0, math.inf  # the most noise that costs too much, the least that does not
    noise, step, last = start, 0, (0.0, 0.0)
    while high - low > tolerance * high or math.isinf(high):
        if not 1 / _LARGEST_NOISE < noise < _LARGEST_NOISE:
            return high if math.isfinite(high) else None
        price = min(max(math.log(max(cost(noise), 1e-9)), -1.0), 1.0)
        low, high = (low, noise) if price <= 0 else (noise, high)
        rise, run = price - last[0], math.log(noise) - last[1]
        slope = rise / run if step and rise * run < 0 else -1.0
        last, step = (price, math.log(noise)), step + 1
        root = noise * math.exp(min(max(-price / slope, -1.0), 1.0))
        noise = root * (1 + tolerance / 3 if root < high / (1 + tolerance) else 1 - tolerance / 3)
        if math.isinf(high) or not low:  # one side is open
            if step > 6 or not low < noise < high:
                noise = low * 1.5 if low else high / 1.5
        elif not low < noise < high or (step > 6 and step % 2):
            noise = (low + high) / 2
    return high


def least_noise(
    meets: Callable[[float], bool],
    *,
    tolerance: float = 1e-7,
    start: float = 1.0,
    stride: float = 2.0,
) -> float | None:
    """Return the least noise that meets a condition which more noise never fails; None if none.

    The search goes from ``start`` by factors of ``stride``, then bisects.
    """
    low = high = start
    while not meets(high):
        low, high = high, high * stride
        if high > _LARGEST_NOISE:
            return None
    while low == high or meets(low):
        high, low = low, low / stride
        if low < 1 / _LARGEST_NOISE:
            return high
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def most(event: Event, *, target: float, epsilon: Epsilon, rough: Epsilon | None = None) -> int:
    """Return how often an event can happen at a cost of no more than ``target``; 0 if not once.

    Parameters
    ----------
    event
        The event, with its noise.
    target
        The largest ε allowed.
    epsilon
        The accountant, as a function from a list of events to ε.
    rough
        A quick accountant whose ε is a little larger, as in :func:`smallest_noise`.

    >>> from pate.accounting import LaplaceNoisyMaxAnswer
    >>> answer = LaplaceNoisyMaxAnswer(scale=20.0)
    >>> most(answer, target=5.0, epsilon=moments_epsilon(delta=1e-5))
    442
    """

    def meets(count: int) -> bool:
        return epsilon([Repeated(event, count)]) <= target

    if not meets(1):
        return 0
    low, high = 1, 2
    if rough is not None and (near := most(event, target=target, epsilon=rough)) > 2:
        low, high = (near, near + near // 8 + 1) if meets(near) else (1, near)
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


def dpsgd_step(
    sample_rate: float, *, public_rate: bool = False, per_user: bool = False
) -> Callable[[float], Event]:
    """Return DP-SGD steps at one sampling rate as a function of their noise multiplier."""
    return lambda noise_multiplier: SampledGaussian(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        public_rate=public_rate,
        per_user=per_user,
    )
