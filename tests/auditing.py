"""Statistical lower bounds on ε from what a mechanism does, whatever its documentation claims.

Two neighbouring data sets are given to the real mechanism many times. Half of the outcomes choose
an event, the other half bound its probability under either data set (Clopper & Pearson 1934).
(ε, δ)-differential privacy says Pr[event | one] ≤ e^ε Pr[event | other] + δ, so

    ε ≥ log((lower(p₁) − δ) / upper(p₀))

holds with probability 1 − ``ERROR`` whatever the mechanism does. A sound claim is therefore never
contradicted but once in a million audits, whatever the seed. How often a planted fault is caught
is measured where the audits are (``tests/privacy/test_audits.py``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import beta

SHARES = np.arange(1, 400) / 400  # of the scores below a threshold that is tried
ERROR = 1e-6  # the probability that a sound claim is contradicted


def clopper_pearson(hits: Any, trials: int, *, error: float) -> tuple[Any, Any]:
    """Bounds on a probability, each wrong with probability at most ``error``.

    >>> lower, upper = clopper_pearson(0, 100, error=0.05)
    >>> float(lower), round(float(upper), 4), round(1 - 0.05 ** (1 / 100), 4)
    (0.0, 0.0295, 0.0295)
    """
    hits = np.asarray(hits, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        lower = np.where(hits > 0, beta.ppf(error, hits, trials - hits + 1), 0.0)
        upper = np.where(hits < trials, beta.ppf(1 - error, hits + 1, trials - hits), 1.0)
    return lower, upper


def bound(hits: Any, misses: Any, trials: int, *, delta: float) -> Any:
    """The bound on ε from ``hits`` under one data set and ``misses`` under the other."""
    lower, _ = clopper_pearson(hits, trials, error=ERROR / 2)
    _, upper = clopper_pearson(misses, trials, error=ERROR / 2)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(lower - delta, 0.0)) - np.log(upper)


def epsilon_at_least(one: np.ndarray, other: np.ndarray, *, delta: float) -> float:
    """A lower bound on ε from scores of independent runs, as many on either data set.

    The event is "the score is at least t" or "less than t", under either data set; which of them,
    and t, the first half of the runs decides.
    """
    half = len(one) // 2
    assert len(one) == len(other) >= 200
    levels = np.unique(np.quantile(np.concatenate([one[:half], other[:half]]), SHARES))
    tails = [np.array([(scores[:half] >= t).sum() for t in levels]) for scores in (one, other)]
    best, event = -math.inf, (0, 0, True)
    for first in (0, 1):
        for above in (True, False):
            here, there = (tails[i] if above else half - tails[i] for i in (first, 1 - first))
            bounds = bound(here, there, half, delta=delta)
            place = int(np.argmax(bounds))
            if bounds[place] > best:
                best, event = float(bounds[place]), (first, place, above)
    first, place, above = event
    judged = [int(((scores[half:] >= levels[place]) == above).sum()) for scores in (one, other)]
    trials = len(one) - half
    return max(0.0, float(bound(judged[first], judged[1 - first], trials, delta=delta)))


def scores(one: np.ndarray, other: np.ndarray, *, kinds: int) -> tuple[np.ndarray, np.ndarray]:
    """One number for each run of several answers: how much likelier they are under ``one``.

    Runs are rows, answers are kinds 0 … ``kinds`` − 1. The likelihood of each kind is estimated
    from the half of the runs that :func:`epsilon_at_least` chooses its event by.
    """
    half = len(one) // 2
    seen = [np.bincount(runs[:half].ravel(), minlength=kinds) + 0.5 for runs in (one, other)]
    weights = np.log(seen[0] / seen[1])
    return weights[one].sum(axis=1), weights[other].sum(axis=1)
