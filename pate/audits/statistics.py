"""Statistical lower bounds on ε from what a mechanism does, whatever its documentation claims.

From two samples of scores (:func:`epsilon_at_least`): two neighbouring data sets are given to the
mechanism many times. Half of the outcomes choose an event, the other half bound its probability
under either data set (Clopper & Pearson 1934). (ε, δ)-differential privacy implies
Pr[event | one] ≤ e^ε Pr[event | other] + δ, so

    ε ≥ log((lower(p₁) − δ) / upper(p₀))

holds with probability 1 − ``error`` whatever the mechanism does.

From one run (:func:`audit_one_run`): each of many canaries is in the data or not by a fair coin of
its own; the attacker ranks them by a score and guesses the coins of the most extreme ones. Too many
right guesses contradict a small ε (Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri
2024). A lower bound that is small proves nothing: :func:`largest_epsilon` is the most that so many
canaries could have shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from pate._format import format_number
from pate._validate import (
    check_choice,
    check_delta,
    check_not_negative,
    check_probability,
    check_whole,
)
from pate.accounting.composition import SMALLEST_EPSILON, gaussian_epsilon, group
from pate.audits.findings import FIRM
from pate.errors import InvalidInput

_QUANTILES = np.arange(1, 400) / 400  # of the scores, tried as thresholds
_MOST = 64.0  # no audit shows more: e^64 exceeds any number of runs
_PRECISION = 1e-9  # of an ε that is searched for
_UNFAIR = 1e-9  # the probability that fair coins are refused as unfair

FAMILIES = ("approximate", "gaussian")


# --- two samples of scores ----------------------------------------------------------------------


def clopper_pearson(hits: Any, trials: int, *, error: float) -> tuple[Any, Any]:
    """Return bounds on a probability, each wrong with probability at most ``error``.

    Parameters
    ----------
    hits : int or array of int
        The number of trials in which the event happened.
    trials : int
        The number of independent trials.
    error : float
        The probability that the lower bound is too large, and that the upper one is too small.

    Returns
    -------
    tuple of arrays
        The lower and the upper bound.

    Guarantees:
        Clopper & Pearson 1934: exact for every probability and every number of trials.

    >>> lower, upper = clopper_pearson(0, 100, error=0.05)
    >>> float(lower), round(float(upper), 4), round(1 - 0.05 ** (1 / 100), 4)
    (0.0, 0.0295, 0.0295)
    """
    hits = np.asarray(hits, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        lower = np.where(hits > 0, beta.ppf(error, hits, trials - hits + 1), 0.0)
        upper = np.where(hits < trials, beta.ppf(1 - error, hits + 1, trials - hits), 1.0)
    return lower, upper


def event_epsilon(hits: Any, misses: Any, trials: int, *, delta: float, error: float) -> Any:
    """Return the bound on ε from an event that was chosen before it was counted.

    Parameters
    ----------
    hits, misses : int or array of int
        How often the event happened on the one data set and on the other.
    trials : int
        The number of runs on either data set.
    delta : float
        δ of the privacy that is tested.
    error : float
        The probability that the bound is too large.

    Guarantees:
        Either probability is bounded with half of the error (:func:`clopper_pearson`), so both
        bounds hold with probability 1 − ``error``; then so does the bound on ε, by the definition
        of differential privacy (Jagielski, Ullman & Oprea 2020). −∞ is no bound.

    >>> round(float(event_epsilon(990, 10, 1000, delta=1e-5, error=0.05)), 2)
    3.98
    """
    lower, _ = clopper_pearson(hits, trials, error=error / 2)
    _, upper = clopper_pearson(misses, trials, error=error / 2)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(lower - delta, 0.0)) - np.log(upper)


def epsilon_at_least(
    one: ArrayLike, other: ArrayLike, *, delta: float, error: float = 1e-6, copies: int = 1
) -> float:
    """Return a lower bound on ε from scores of independent runs, as many on either data set.

    The event is "the score is at least t" or "less than t", under either data set; which of them,
    and t, the first half of the runs decides.

    Parameters
    ----------
    one, other : array of float, shape (runs,)
        A score of each run on the one data set and on its neighbour.
    delta : float
        δ of the privacy that is tested.
    error : float, default=1e-6
        The probability that the bound is too large.
    copies : int, default=1
        By how many records the data sets differ: the bound is for one of them (group privacy;
        Vadhan 2017, Lemma 2.2).

    Returns
    -------
    float
        The bound; 0 where nothing is shown.

    Guarantees:
        The event is chosen by runs other than those that count it, so :func:`event_epsilon` holds.
        For several records, ε is contradicted if the bounds on the event's probabilities contradict
        the privacy of the group.

    >>> rng = np.random.default_rng(1)
    >>> one, other = rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000)  # ε = 4.38 at δ = 1e-5
    >>> round(epsilon_at_least(one, other, delta=1e-5, error=0.05), 1)
    2.1
    """
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 1 or len(one) < 4:
        raise InvalidInput(
            f"scores have the shapes {one.shape} and {other.shape}; give as many runs on either "
            "data set, four at least"
        )
    _require_numbers(one, other)
    half = len(one) // 2
    levels = np.unique(np.quantile(np.concatenate([one[:half], other[:half]]), _QUANTILES))
    tails = [np.array([(scores[:half] >= t).sum() for t in levels]) for scores in (one, other)]
    best, event = -math.inf, (0, 0, True)
    for first in (0, 1):
        for above in (True, False):
            here, there = (tails[i] if above else half - tails[i] for i in (first, 1 - first))
            bounds = event_epsilon(here, there, half, delta=delta, error=error)
            equal = np.flatnonzero(bounds == bounds.max())
            place = int(equal[len(equal) // 2])  # between the two samples where nothing lies
            if bounds[place] > best:
                best, event = float(bounds[place]), (first, place, above)
    first, place, above = event
    judged = [int(((scores[half:] >= levels[place]) == above).sum()) for scores in (one, other)]
    trials = len(one) - half
    lower, _ = clopper_pearson(judged[first], trials, error=error / 2)
    _, upper = clopper_pearson(judged[1 - first], trials, error=error / 2)

    def contradicted(epsilon: float) -> bool:
        of_group, delta_of_group = group(epsilon, delta, size=copies)
        return bool(lower > math.exp(of_group) * upper + delta_of_group)

    check_whole("copies", copies, least=1)
    return _end_of(contradicted, step=1.0 / copies)


def likelihood_scores(
    one: np.ndarray, other: np.ndarray, *, kinds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a score for each run of several answers: how much likelier they are under ``one``.

    The likelihood of each kind is estimated from the half of the runs that
    :func:`epsilon_at_least` chooses its event by.

    Parameters
    ----------
    one, other : array of int, shape (runs, answers)
        The answers of each run, of kinds 0 … ``kinds`` − 1.
    kinds : int
        The number of kinds.

    >>> one, other = np.array([[0, 0], [0, 1]]), np.array([[1, 1], [1, 1]])
    >>> [scores.round(2).tolist() for scores in likelihood_scores(one, other, kinds=2)]
    [[3.22, 0.0], [-3.22, -3.22]]
    """
    half = len(one) // 2
    seen = [np.bincount(runs[:half].ravel(), minlength=kinds) + 0.5 for runs in (one, other)]
    weights = np.log(seen[0] / seen[1])
    return weights[one].sum(axis=1), weights[other].sum(axis=1)


# --- one run ------------------------------------------------------------------------------------


def one_run_p_value(
    *, canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """Return the probability of so many right guesses, or more, under (ε, δ)-privacy.

    Parameters
    ----------
    canaries : int
        The number of canaries, each in or out by a fair coin of its own.
    guesses : int
        How many of the coins were guessed.
    right : int
        How many of the guesses were right.
    epsilon, delta : float
        The privacy that is tested, for one canary added or removed.

    Returns
    -------
    float
        An upper bound on the probability.

    Guarantees:
        Steinke, Nasr & Jagielski 2023, Theorem 5.2 in the form of their appendix D. With W the
        right answers of ``guesses`` randomised responses, Pr ≤ Pr[W ≥ right] +
        2 · canaries · δ · max_i Pr[right > W ≥ right − i]/i.

    >>> round(one_run_p_value(canaries=1000, guesses=100, right=75, epsilon=1.0, delta=1e-4), 4)
    0.4006
    """
    _check_counts(canaries, guesses, right)
    truthful = 1 / (1 + math.exp(-check_not_negative("epsilon", epsilon)))
    tail = float(binom.sf(right - 1, guesses, truthful))
    if check_delta(delta, allow_zero=True) == 0 or right == 0:
        return min(1.0, tail)
    below = np.arange(1, right + 1)
    windows = np.cumsum(binom.pmf(right - below, guesses, truthful))
    return min(1.0, tail + 2 * canaries * delta * float((windows / below).max()))


def contradicts_trade_off(
    trade_off: Callable[[float], float],
    *,
    canaries: int,
    guesses: int,
    right: int,
    error: float,
) -> bool:
    """Return whether so many right guesses contradict f-differential privacy.

    Parameters
    ----------
    trade_off : callable
        f: the least probability of a miss among tests with a given probability of a false alarm.
        It must be symmetric (its own inverse), as that of a neighbour relation is.
    canaries, guesses, right : int
        As in :func:`one_run_p_value`.
    error : float
        The probability that f-privacy is contradicted although it holds.

    Guarantees:
        Mahloujifar, Melis & Chaudhuri 2024, their recursion over right guesses. With p_j the
        probability of j right guesses, r_i = Σ_{j≥i} j p_j/m and h_i = Σ_{j≥i} (guesses − j) p_j/m:
        privacy gives h_i ≥ f(1 − r_{i+1}), and r_0 + h_0 = guesses/m. If ``right`` or more guesses
        had the probability ``error``, the recursion downwards must not pass guesses/m.
    """
    _check_counts(canaries, guesses, right)
    total = guesses / canaries
    hit, missed = error * right / canaries, error * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        least = max(missed, float(trade_off(1 - hit)))
        if least <= missed:  # then neither changes any more
            break
        hit, missed = hit + i / (guesses - i) * (least - missed), least
        if hit + missed > total:
            return True
    return hit + missed > total


@lru_cache(maxsize=4096)
def one_run_epsilon(
    *,
    canaries: int,
    guesses: int,
    right: int,
    delta: float,
    confidence: float,
    family: str = "approximate",
    copies: int = 1,
) -> float:
    """Return the lower bound on ε from one number of guesses, fixed before the run.

    Parameters
    ----------
    canaries, guesses, right : int
        As in :func:`one_run_p_value`.
    delta : float
        δ of the bound.
    confidence : float
        The probability with which the bound holds.
    family : {"approximate", "gaussian"}, default="approximate"
        The privacy that is tested: all (ε, δ)-private mechanisms, or those that hide a record as
        well as a Gaussian mechanism of that ε at this δ, at every other δ too. The second gives
        larger bounds. They contradict a claim of μ-Gaussian privacy (DP-SGD on all records,
        Gaussian noise on votes), but not a claim of (ε, δ) alone.
    copies : int, default=1
        How many records a canary is: the bound is for one of them (group privacy; Vadhan 2017,
        Lemma 2.2).

    Returns
    -------
    float
        The bound; 0 where nothing is shown.

    Guarantees:
        :func:`one_run_p_value` or :func:`contradicts_trade_off` with error 1 − ``confidence``; the
        bound is the end of the contradicted values from 0 on.

    >>> known = {"canaries": 1000, "guesses": 100, "right": 75, "delta": 1e-4, "confidence": 0.95}
    >>> round(one_run_epsilon(**known), 3), round(one_run_epsilon(**known, family="gaussian"), 3)
    (0.673, 0.842)
    """
    _check_counts(canaries, guesses, right)
    check_whole("copies", copies, least=1)
    error = 1 - _check_confidence(confidence)
    if check_choice("family", family, FAMILIES) == "gaussian":
        return _gaussian_bound(canaries, guesses, right, check_delta(delta), error, copies)

    def contradicted(epsilon: float) -> bool:
        of_copies, delta_of_copies = group(epsilon, delta, size=copies)
        if delta_of_copies >= 1:
            return False
        found = one_run_p_value(
            canaries=canaries,
            guesses=guesses,
            right=right,
            epsilon=of_copies,
            delta=delta_of_copies,
        )
        return found < error

    check_delta(delta, allow_zero=True)
    return _end_of(contradicted, step=0.25)


def _gaussian_bound(
    canaries: int, guesses: int, right: int, delta: float, error: float, copies: int
) -> float:
    """Return ε of the largest μ for which μ-Gaussian privacy is contradicted."""

    def contradicted(mu: float) -> bool:
        return contradicts_trade_off(
            lambda alarm: float(ndtr(-ndtri(alarm) - mu)),
            canaries=canaries,
            guesses=guesses,
            right=right,
            error=error,
        )

    mu = _end_of(contradicted, step=1.0) / copies  # a group: Dong, Roth & Su 2019, Theorem 2.14
    epsilon = 0.0 if mu == 0 else gaussian_epsilon(1 / mu, delta=delta)
    return epsilon if epsilon > SMALLEST_EPSILON else 0.0  # which smaller ones are rounded up to


def _end_of(contradicted: Callable[[float], bool], *, step: float) -> float:
    """Return the last contradicted value from 0 on, rounded down; 0 if 0 is not."""
    if not contradicted(0.0):
        return 0.0
    low = 0.0
    while low < _MOST and contradicted(low + step):
        low += step
    high = low + step
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if contradicted(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRunBound:
    """The lower bound on ε that one run of an attack shows.

    Parameters
    ----------
    epsilon, delta : float
        The bound, and its δ.
    confidence : float
        The probability with which it holds.
    firm_epsilon : float
        The bound at a confidence of ``firm``, by default :data:`~pate.audits.findings.FIRM`.
    largest_possible : float
        The bound if every guess had been right.
    canaries, guesses, right : int
        The numbers of canaries, of guesses behind the bound, and of right ones.
    """

    epsilon: float
    delta: float
    confidence: float
    firm_epsilon: float
    largest_possible: float
    canaries: int
    guesses: int
    right: int


def audit_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | Sequence[int] | None = None,
    threshold: float | None = None,
    outs: float = 0.5,
    family: str = "approximate",
    copies: int = 1,
    firm: float = FIRM,
) -> OneRunBound:
    """Return the lower bound on ε from the scores of canaries in one run.

    The attacker guesses the canaries with the most extreme scores and abstains from the others.

    Parameters
    ----------
    scores : array of float, shape (canaries,)
        A score of each canary, larger if it was rather in. Nothing but the run's output, and what
        the attacker knew before, may go into them.
    included : array of bool, shape (canaries,)
        Whether each canary was in: independent fair coins.
    delta : float
        δ of the bound.
    confidence : float, default=0.95
        The probability with which the bound holds.
    guesses : int or sequence of int, optional
        Numbers of guesses, fixed before the run. Of several the best counts, and the error is
        shared among them (Bonferroni). By default all canaries, half of them, a quarter …, at
        least eight, at most six numbers.
    threshold : float, optional
        A score fixed before the run: a canary beyond it is guessed "in", one below "out", those
        farthest from it first.
    outs : float, default=0.5
        Without a threshold, the share of the guesses that are "out", for the smallest scores; the
        others are "in", for the largest.
    family, copies
        As in :func:`one_run_epsilon`.
    firm : float
        The confidence of ``firm_epsilon``.

    Returns
    -------
    OneRunBound
        The bound, with the most that could have been shown.

    Raises
    ------
    InvalidInput
        If the scores are not numbers, if the coins are not plausibly fair, or if so few canaries
        can show nothing.

    Guarantees:
        The number of guesses is fixed before the run, or its choice corrected for, so
        :func:`one_run_epsilon` holds. Equal scores are ordered by a fixed permutation that knows
        nothing of the coins.

    >>> rng = np.random.default_rng(1)
    >>> coins = rng.random(10_000) < 0.5
    >>> truthful = rng.random(10_000) < np.e**2 / (1 + np.e**2)  # randomised response with ε = 2
    >>> bound = audit_one_run(coins == truthful, coins, delta=0.0, guesses=10_000, threshold=0.5)
    >>> round(bound.epsilon, 2), round(bound.largest_possible, 1)
    (1.96, 8.1)
    """
    counted = right_guesses(scores, included, guesses=guesses, threshold=threshold, outs=outs)
    canaries = len(np.asarray(included))
    numbers = [number for number, _ in counted]
    largest = largest_epsilon(
        canaries, delta=delta, confidence=confidence, guesses=numbers, family=family, copies=copies
    )
    if largest == 0:
        raise InvalidInput(
            f"{canaries} canaries can show no ε with a confidence of {confidence:g} and "
            f"δ = {delta:g}; use more, or a smaller δ"
        )

    def best(confidence: float) -> tuple[float, int, int]:
        shared = 1 - (1 - confidence) / len(numbers)
        return max(
            (
                one_run_epsilon(
                    canaries=canaries,
                    guesses=number,
                    right=right,
                    delta=delta,
                    confidence=shared,
                    family=family,
                    copies=copies,
                ),
                number,
                right,
            )
            for number, right in counted
        )

    epsilon, number, right = best(confidence)
    return OneRunBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        firm_epsilon=best(max(confidence, firm))[0],
        largest_possible=largest,
        canaries=canaries,
        guesses=number,
        right=right,
    )


def right_guesses(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    guesses: int | Sequence[int] | None = None,
    threshold: float | None = None,
    outs: float = 0.5,
) -> tuple[tuple[int, int], ...]:
    """Return each number of guesses with the number of right ones among them.

    Parameters
    ----------
    scores, included, guesses, threshold, outs
        As in :func:`audit_one_run`.

    >>> right_guesses([3.0, 2.0, 1.0, 0.0], np.array([True, False, True, False]), guesses=[4, 2])
    ((4, 2), (2, 2))
    """
    points, coins = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if points.ndim != 1 or points.shape != coins.shape or coins.dtype != np.bool_:
        raise InvalidInput(
            f"scores have the shape {points.shape} and coins the shape {coins.shape}; give one "
            "number and one boolean for each canary"
        )
    _require_numbers(points)
    fewer = min(int(coins.sum()), int((~coins).sum()))
    if binom.cdf(fewer, len(coins), 0.5) < _UNFAIR:
        raise InvalidInput(
            f"{int(coins.sum())} of {len(coins)} canaries were in, which fair coins do not give; "
            "toss a coin for each canary"
        )
    shuffled = np.random.default_rng(0).permutation(len(coins))  # orders equal scores
    points, coins = points[shuffled], coins[shuffled]
    numbers = _numbers_of_guesses(len(coins), guesses)
    if threshold is not None:
        farthest = np.argsort(-np.abs(points - threshold), kind="stable")
        hits = ((points > threshold) == coins)[farthest]
        return tuple((number, int(hits[:number].sum())) for number in numbers)
    ranked = coins[np.argsort(points, kind="stable")]
    counted = []
    for number in numbers:
        low = int(check_probability("outs", outs) * number)
        right = (~ranked[:low]).sum() + ranked[len(ranked) - (number - low) :].sum()
        counted.append((number, int(right)))
    return tuple(counted)


def largest_epsilon(
    canaries: int,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | Sequence[int] | None = None,
    family: str = "approximate",
    copies: int = 1,
) -> float:
    """Return the bound on ε that :func:`audit_one_run` shows if every guess is right.

    Parameters
    ----------
    canaries : int
        The number of canaries.
    delta, confidence, guesses, family, copies
        As in :func:`audit_one_run`.

    >>> [round(largest_epsilon(m, delta=1e-5), 2) for m in (10, 100, 1000, 10_000)]
    [1.05, 3.1, 5.27, 6.39]
    """
    check_whole("canaries", canaries, least=1)
    numbers = _numbers_of_guesses(canaries, guesses)
    shared = 1 - (1 - _check_confidence(confidence)) / len(numbers)
    return max(
        one_run_epsilon(
            canaries=canaries,
            guesses=number,
            right=number,
            delta=delta,
            confidence=shared,
            family=family,
            copies=copies,
        )
        for number in numbers
    )


def _numbers_of_guesses(canaries: int, guesses: int | Sequence[int] | None) -> tuple[int, ...]:
    if guesses is None:
        halves = (canaries >> times for times in range(6))
        return tuple(number for number in halves if number >= min(8, canaries))
    numbers = (guesses,) if isinstance(guesses, int) else tuple(guesses)
    if not numbers:
        raise InvalidInput("guesses is empty; give a number of guesses")
    return tuple(check_whole("guesses", each, least=1, most=canaries) for each in numbers)


def _check_counts(canaries: int, guesses: int, right: int) -> None:
    check_whole("canaries", canaries, least=1)
    check_whole("guesses", guesses, least=1, most=canaries)
    check_whole("right", right, least=0, most=guesses)


def _check_confidence(confidence: float) -> float:
    if not 0.5 <= confidence < 1:
        raise InvalidInput(
            f"confidence is {format_number(confidence)}; it must be at least 0.5 and below 1"
        )
    return confidence


def _require_numbers(*samples: np.ndarray) -> None:
    if not all(np.isfinite(scores).all() for scores in samples):
        raise InvalidInput("some scores are not finite numbers; give one number for each")
