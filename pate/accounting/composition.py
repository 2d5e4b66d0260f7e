"""Composition, amplification and group privacy for (ε, δ), without log-moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from fractions import Fraction

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import erf, log_ndtr, logsumexp

from pate._validate import check_delta
from pate.accounting.events import (
    ApproximateDP,
    Event,
    ForAddRemove,
    ForReplacement,
    GumbelNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    PureDP,
    relation_of,
    tally,
)
from pate.accounting.guarantee import Accountant, Guarantee
from pate.errors import InvalidInput, UnsupportedEvent

SMALLEST_EPSILON = 1e-6  # above zero, of the exact Gaussian formulas; see gaussian_delta
_LARGEST_EXPONENT = 600.0  # e^600: far from the end of doubles


def basic(events: Iterable[Event]) -> tuple[float, float]:
    """Return (Σε, Σδ); Dwork et al. 2006. Also a valid privacy filter (Rogers et al. 2016)."""
    parts = [(*_as_approximate(event), count) for event, count in tally(events).items()]
    return (
        math.fsum(epsilon * count for epsilon, _, count in parts),
        min(1.0, math.fsum(delta * count for _, delta, count in parts)),
    )


def _as_approximate(event: Event) -> tuple[float, float]:
    if isinstance(event, (ForReplacement, ForAddRemove)):
        event = event.event
    if isinstance(event, PureDP):
        return event.epsilon, 0.0
    if isinstance(event, ApproximateDP):
        return event.epsilon, event.delta
    raise UnsupportedEvent(f"{type(event).__name__} is not stated as (ε, δ)")


def pure_epsilon(event: Event) -> float | None:
    """Return the ε of an event that is (ε, 0)-DP, or None.

    Guarantees:
        One vote moves two counts by one each: report-noisy-max with Lap(b) is (2/b)-DP (Dwork &
        Roth 2014, Claim 3.9), and so is the exponential mechanism at b (McSherry & Talwar 2007).

    >>> pure_epsilon(LaplaceNoisyMaxAnswer(scale=20.0))
    0.1
    """
    match event:
        case LaplaceNoisyMaxAnswer(scale=scale) | GumbelNoisyMaxAnswer(scale=scale):
            return 2 / scale
        case PureDP(epsilon=epsilon):
            return epsilon
        case ForReplacement(event=inner) | ForAddRemove(event=inner):
            return pure_epsilon(inner)
    return None


def pure_guarantee(events: Iterable[Event]) -> Guarantee | None:
    """Return the sum of all ε at δ = 0; None if an event is not (ε, 0)-DP.

    Guarantees:
        Basic composition (Dwork et al. 2006), which also holds where events were chosen by earlier
        answers within caps that were fixed. The sum is exact and rounded up.

    >>> pure_guarantee([PureDP(epsilon=0.25), PureDP(epsilon=0.5)]).epsilon
    0.75
    """
    counts, total = tally(events), Fraction(0)
    for event, count in counts.items():
        each = pure_epsilon(event)
        if each is None:
            return None
        total += count * Fraction(each)
    return Guarantee(
        epsilon=rounded_up(total),
        delta=0.0,
        neighbours=relation_of(counts),
        accountant=Accountant.PURE,
    )


def rounded_up(value: Fraction) -> float:
    """Return the least float that is not below an exact number.

    >>> rounded_up(Fraction(1, 10)), rounded_up(Fraction(1, 3)) > Fraction(1, 3)
    (0.1, True)
    """
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


class AdvancedRule(StrEnum):
    """The term added to √(2T log 1/δ) ε."""

    DRV = "drv"  # Tε(e^ε − 1): Dwork, Rothblum & Vadhan 2010
    SQUARE = "square"  # Tε²: as printed in Abadi et al. 2016; above the next but one for every ε
    DOUBLE_SQUARE = "double-square"  # 2Tε²: Dwork & Roth 2014, a looser corollary for ε ≤ 1
    TANH = "tanh"  # Tε tanh(ε/2): the exact mean of the privacy loss (Kairouz et al. 2015)


def advanced(
    epsilon: float, *, count: int, slack: float, rule: AdvancedRule = AdvancedRule.DRV
) -> float:
    """Return the ε of ``count`` mechanisms of ``epsilon`` each, when ``slack`` is added to Σδ.

    Guarantees:
        Dwork, Rothblum & Vadhan 2010, Theorem III.3 (default); the other rules are listed in
        :class:`AdvancedRule`. Where its e^ε leaves the range of doubles the plain sum is the
        smaller bound, and is returned (basic composition).

    >>> round(advanced(0.1, count=100, slack=1e-5), 4), advanced(2000.0, count=3, slack=1e-5)
    (5.8502, 6000.0)
    """
    _check(epsilon=epsilon, count=count)
    check_delta(slack)
    if rule is AdvancedRule.DRV and epsilon > _LARGEST_EXPONENT:
        return count * epsilon
    spread = math.sqrt(2 * count * math.log(1 / slack)) * epsilon
    drift = {
        AdvancedRule.SQUARE: lambda: count * epsilon**2,
        AdvancedRule.DOUBLE_SQUARE: lambda: 2 * count * epsilon**2,
        AdvancedRule.DRV: lambda: count * epsilon * math.expm1(epsilon),
        AdvancedRule.TANH: lambda: count * epsilon * math.tanh(epsilon / 2),
    }[rule]()
    return spread + drift


def kairouz_closed(epsilon: float, *, count: int, slack: float) -> float:
    """Return the least of three closed forms of Kairouz, Oh & Viswanath 2015, Theorem 3.4."""
    _check(epsilon=epsilon, count=count)
    check_delta(slack)
    mean = count * epsilon * math.tanh(epsilon / 2)
    variance = count * epsilon**2
    first = mean + epsilon * math.sqrt(2 * count * math.log(math.e + math.sqrt(variance) / slack))
    second = mean + epsilon * math.sqrt(2 * count * math.log(1 / slack))
    return min(count * epsilon, first, second)


def amplify(epsilon: float, delta: float, *, sample_rate: float) -> tuple[float, float]:
    """Return (ε, δ) on a Poisson sample; Balle, Barthe & Gaboardi 2018, Theorem 8."""
    _check(epsilon=epsilon, delta=delta)
    if not 0 < sample_rate <= 1:
        raise InvalidInput(f"sample_rate is {sample_rate}; it must lie in (0, 1]")
    if epsilon < 1:
        return math.log1p(sample_rate * math.expm1(epsilon)), sample_rate * delta
    stay = math.log1p(-sample_rate) if sample_rate < 1 else -math.inf
    return float(np.logaddexp(stay, epsilon + math.log(sample_rate))), sample_rate * delta


def group(epsilon: float, delta: float, *, size: int) -> tuple[float, float]:
    """Return (ε, δ) for a group of ``size`` records; Vadhan 2017, Lemma 2.2."""
    _check(epsilon=epsilon, delta=delta, count=size)
    if delta == 0:
        return size * epsilon, 0.0
    weights = logsumexp(epsilon * np.arange(size))
    return size * epsilon, float(np.exp(min(0.0, math.log(delta) + weights)))


# --- the Gaussian mechanism as (ε, δ) -----------------------------------------------------------


def gaussian_epsilon_classic(noise_multiplier: float, *, delta: float) -> float:
    """Return √(2 log 1.25/δ)/z; Dwork & Roth 2014, Theorem A.1, which holds for ε < 1 only."""
    check_delta(delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier


def gaussian_delta(noise_multiplier: float, *, epsilon: float) -> float:
    """Return the exact δ of the Gaussian mechanism; Balle & Wang 2018, Theorem 8.

    It is the difference of two numbers that agree in more and more digits as ε falls; below
    ``SMALLEST_EPSILON`` (but for ε = 0, which has a form of its own) what doubles leave of it may
    be too small, and it is refused. There it is off by 1 part in 10⁴ at most, for δ down to 1e-100.
    """
    noise_multiplier, epsilon = float(noise_multiplier), float(epsilon)
    if epsilon == 0:
        return float(erf(1 / (2 * math.sqrt(2) * noise_multiplier)))
    if not epsilon >= SMALLEST_EPSILON:
        raise InvalidInput(
            f"epsilon is {epsilon:g}; below {SMALLEST_EPSILON:g} rounding would make δ come out "
            "too small"
        )
    half, slope = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    first = log_ndtr(half - slope)
    second = epsilon + log_ndtr(-half - slope)
    return float(np.exp(first) * -np.expm1(min(second - first, 0.0)))


def gaussian_epsilon(noise_multiplier: float, *, delta: float) -> float:
    """Return the exact ε of the Gaussian mechanism (the analytic calibration, inverted).

    Between 0 and ``SMALLEST_EPSILON`` it is rounded up to the latter.
    """
    check_delta(delta)
    if gaussian_delta(noise_multiplier, epsilon=0.0) <= delta:
        return 0.0
    if gaussian_delta(noise_multiplier, epsilon=SMALLEST_EPSILON) <= delta:
        return SMALLEST_EPSILON
    upper = 1.0
    while gaussian_delta(noise_multiplier, epsilon=upper) > delta:
        upper *= 2
    return _least(
        lambda e: gaussian_delta(noise_multiplier, epsilon=e) <= delta, SMALLEST_EPSILON, upper
    )


def gaussian_noise(epsilon: float, *, delta: float) -> float:
    """Return the smallest noise multiplier for (ε, δ); Balle & Wang 2018, analytic calibration."""
    epsilon, delta = float(epsilon), float(delta)
    check_delta(delta)
    if not SMALLEST_EPSILON <= epsilon < math.inf:
        raise InvalidInput(
            f"epsilon is {epsilon:g}; it must be finite and at least {SMALLEST_EPSILON:g}: below, "
            "rounding would make the noise too small"
        )
    low = high = 1.0
    while gaussian_delta(high, epsilon=epsilon) > delta:
        high *= 2
    while gaussian_delta(low, epsilon=epsilon) <= delta:
        low /= 2
    return _least(lambda z: gaussian_delta(z, epsilon=epsilon) <= delta, low, high)


# --- strong composition of DP-SGD, for comparison with moments -----------------------------------


def sampled_gaussian_strong(
    *,
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    rule: AdvancedRule | None = AdvancedRule.SQUARE,
    exact_gaussian: bool = False,
    exact_amplification: bool = False,
    split: float | None = 0.5,
) -> float:
    """Return the ε of DP-SGD by strong composition, as compared with the moments accountant.

    ``split`` of δ pays for the steps and the rest for composition; None optimises it. ``rule``
    None takes :func:`kairouz_closed`. The defaults reproduce the published curve (9.34 at q = 0.01,
    σ = 4, T = 10 000) and are **not a guarantee**: they use the classic Gaussian formula beyond
    ε = 1 and amplification by qε. Both ``exact_*`` make it one.
    """

    def total(share: float) -> float:
        each = share * delta / (steps * sample_rate)
        gaussian = gaussian_epsilon if exact_gaussian else gaussian_epsilon_classic
        one = gaussian(noise_multiplier, delta=each)
        sampled = amplify(one, 0.0, sample_rate=sample_rate)[0] if exact_amplification else (
            sample_rate * one
        )  # fmt: skip
        slack = (1 - share) * delta
        if rule is None:
            return kairouz_closed(sampled, count=steps, slack=slack)
        return advanced(sampled, count=steps, slack=slack, rule=rule)

    if split is not None:
        return total(split)
    best = minimize_scalar(
        total, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-12}
    )
    return float(best.fun)


def _least(meets: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least number that meets a condition, never one that fails; ``high`` meets it."""
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _check(*, epsilon: float = 0.0, delta: float = 0.0, count: int = 1) -> None:
    if not 0 <= epsilon < math.inf:
        raise InvalidInput(f"epsilon is {epsilon}; it must be finite and not negative")
    if not 0 <= delta < 1:
        raise InvalidInput(f"delta is {delta}; it must be at least 0 and below 1")
    if count < 1 or int(count) != count:
        raise InvalidInput(f"the count is {count}; it must be a whole number, 1 or more")
