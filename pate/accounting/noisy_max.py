"""The cost of noisy-max answers: Laplace, Gaussian, and the threshold check before them.

Data-independent costs follow from the noise alone. Data-dependent ones follow from the votes: where
the teachers agree, the answer hardly depends on any one of them. Both kinds rest on the same
shape: with q ≥ Pr[the answer is not the plurality],

    α(λ) = log[ (1−q) e^{λa} + q e^{λb} ]

where (a, b) come from the theorem. A data-dependent cost is **itself private**.

Everything is vectorised over a (queries, classes) matrix of counts and computed in log space.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp

from pate._validate import check_whole
from pate.accounting.argmax_divergence import gaussian_index, laplace_index, threshold_bit
from pate.accounting.events import (
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    ThresholdCheck,
)
from pate.accounting.guarantee import Analysis, Neighbours
from pate.accounting.moments import (
    FloatArray,
    LogMoments,
    as_moments,
    log1mexp,
    log_moments,
    moments_of,
    pure_log_moments,
)
from pate.errors import InvalidInput

Counts = NDArray[np.int64]
FromLogQ = Callable[[FloatArray], FloatArray]  # log q of n queries → their costs, (n, moments)

_CHUNK = 1 << 16  # costs worked on at a time: stays in cache, bounds memory
_COUNTS_CHUNK = 1 << 18  # counts worked on at a time
_FAINT = 1e-290  # a sum of probabilities above this has lost nothing to underflow
_LARGEST_COUNT = 1 << 24
_NETWORK_CLASSES = 32


# --- votes --------------------------------------------------------------------------------------


def as_counts(votes: ArrayLike) -> Counts:
    """Return a checked (queries, classes) matrix of whole, non-negative counts."""
    counts = np.asarray(votes)
    if counts.ndim == 1:
        counts = counts[np.newaxis]
    if counts.ndim != 2 or counts.shape[0] < 1 or counts.shape[1] < 2:
        raise InvalidInput(f"votes have shape {counts.shape}; they must be (queries, classes ≥ 2)")
    if counts.dtype.kind == "u" and counts.max() > _LARGEST_COUNT:
        raise InvalidInput(f"counts above {_LARGEST_COUNT} are not supported")
    if counts.dtype.kind not in "iu":
        whole = counts.astype(np.int64) if np.all(np.isfinite(counts)) else None
        if whole is None or not np.array_equal(whole, counts):
            raise InvalidInput("votes must be whole numbers; found a fraction, NaN or infinity")
        counts = whole
    if counts.min() < 0:
        raise InvalidInput("votes must not be negative")
    return counts.astype(np.int64, copy=False)


def count_teachers(counts: Counts, teachers: int | None = None) -> int:
    """Return the public number of teachers, from the votes only where they settle it."""
    totals = counts.sum(axis=1)
    if teachers is None:
        if totals.min() != totals.max():
            raise InvalidInput(
                "some teachers abstained, so the votes do not show how many there are; "
                "give the number of teachers"
            )
        teachers = int(totals[0])
    check_whole("teachers", teachers, least=1)
    if totals.max() > teachers:
        raise InvalidInput(
            f"a query holds more votes than the {teachers} teachers given; give the number trained"
        )
    return teachers


def _union_log_q(counts: Counts, log_beaten: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return log Σ_{j≠j*} Pr[j beats j*], clamped at log(1 − 1/classes).

    Counts are whole numbers, so the chance of being beaten is a table over gaps. Each query is
    sorted first: the sum is then, to the last bit, a function of the histogram alone, so that
    equal histograms are evaluated once.
    """
    queries, classes = counts.shape
    widest = int(counts.max())
    if widest > _LARGEST_COUNT:
        raise InvalidInput(f"counts above {_LARGEST_COUNT} are not supported")
    log_table = log_beaten(np.arange(widest + 1, dtype=np.float64))
    table = np.exp(log_table)
    narrow = np.uint16 if widest < 1 << 16 else np.int64
    result = np.empty(queries)
    rows = max(1, _COUNTS_CHUNK // classes)
    for start in range(0, queries, rows):
        block = counts[start : start + rows].astype(narrow)
        ascending = _sorted_columns(block)
        gaps = ascending[-1] - ascending[:-1]
        q = np.zeros(block.shape[0])
        for gap in gaps:
            q += table.take(gap)
        with np.errstate(divide="ignore"):
            log_q = np.log(q)
        faint = np.flatnonzero(q < _FAINT)  # too small a sum to have kept every digit
        if faint.size:
            log_q[faint] = logsumexp(log_table[gaps[:, faint].astype(np.intp)], axis=0)
        result[start : start + rows] = log_q
    return np.minimum(result, math.log1p(-1 / classes))


def _sorted_columns(block: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of ``block``, sorted, as columns: result[0] has the smallest of every row.

    Sorting many short rows one by one is slow; a sorting network does all of them together, a
    comparison of two columns at a time.
    """
    classes = block.shape[1]
    if classes > _NETWORK_CLASSES:
        return np.sort(block, axis=1).T
    columns = np.ascontiguousarray(block.T)
    for low, high in _sorting_network(classes):
        smaller = np.minimum(columns[low], columns[high])
        np.maximum(columns[low], columns[high], out=columns[high])
        columns[low] = smaller
    return columns


@cache
def _sorting_network(width: int) -> tuple[tuple[int, int], ...]:
    """Return the comparisons of Batcher's odd-even mergesort of ``width`` values (Knuth, 5.2.2)."""
    pairs = []
    p = 1
    while p < width:
        k = p
        while k >= 1:
            for j in range(k % p, width - k, 2 * k):
                for i in range(j, j + min(k, width - j - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        pairs.append((i, i + k))
            k //= 2
        p *= 2
    return tuple(pairs)


# --- Laplace ----------------------------------------------------------------------------------


@moments_of.register
def _(event: LaplaceNoisyMaxAnswer, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """min(λε₀, ½ε₀²λ(λ+1)) with ε₀ = 2/scale, or what the index reveals where that is less."""
    published = pure_log_moments(2 / event.scale, moments)
    if analysis is Analysis.PUBLISHED:
        return published
    return np.minimum(published, laplace_index(event.scale, moments))


def laplace_log_q(votes: ArrayLike, *, scale: float) -> FloatArray:
    """Return the log of a bound on Pr[answer ≠ plurality]; Papernot et al. 2017, Lemma 4.

    q ≤ Σ_{j≠j*} (2 + gap_j/b) / (4 exp(gap_j/b)), and never more than 1 − 1/classes.
    """

    def log_beaten(gap: FloatArray) -> FloatArray:
        return np.log(2 + gap / scale) - math.log(4) - gap / scale

    return _union_log_q(as_counts(votes), log_beaten)


def laplace_from_log_q(
    log_q: FloatArray,
    *,
    scale: float,
    moments: FloatArray,
    analysis: Analysis = Analysis.PUBLISHED,
) -> FloatArray:
    """Return the data-dependent cost of Laplace noisy-max answers, (queries, moments).

    It is never more than the data-independent cost by ``analysis``. The sensitivity of a cost
    (:mod:`pate.accounting.smooth`) is proved for the published one.

    Guarantees:
        Papernot et al. 2017, Theorems 2 and 3. The data-dependent term is used only where
        q < 1/(e^{ε₀}+1); there it grows with q, so an upper bound on q gives an upper bound.
        It bounds the divergence from the data at hand to its neighbours.
    """
    data_independent = log_moments(LaplaceNoisyMaxAnswer(scale=scale), moments, analysis=analysis)
    epsilon = 2 / scale
    valid = (log_q < -np.logaddexp(0.0, epsilon)) & (log_q + epsilon < -1e-9)
    grown = log_q[valid] + epsilon  # log of e^ε q, clear of 0 by more than rounding
    # (1−q)/(1−e^ε q) = 1 + e^ε q (1−e^{−ε})/(1−e^ε q): nothing cancels for a tiny q or ε.
    a = np.log1p(np.exp(grown) * -np.expm1(-epsilon) / -np.expm1(grown))
    dependent = _two_outcomes(log_q[valid], a, epsilon, moments)
    return _where_valid(
        valid, np.minimum(dependent, data_independent, out=dependent), data_independent
    )


# --- Gaussian ---------------------------------------------------------------------------------


@moments_of.register
def _(event: GaussianNoisyMaxAnswer, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """Papernot et al. 2018, Proposition 8: RDP(α) = α/σ²; or what the index reveals."""
    published = moments * (moments + 1) / event.sigma**2
    if analysis is Analysis.PUBLISHED:
        return published
    return np.minimum(published, gaussian_index(event.sigma, moments))


def gaussian_log_q(votes: ArrayLike, *, sigma: float) -> FloatArray:
    """Return the log of a bound on Pr[answer ≠ plurality]; Papernot et al. 2018, Proposition 7."""

    def log_beaten(gap: FloatArray) -> FloatArray:
        return np.asarray(log_ndtr(-gap / (math.sqrt(2) * sigma)))

    return _union_log_q(as_counts(votes), log_beaten)


def gaussian_from_log_q(
    log_q: FloatArray,
    *,
    sigma: float,
    moments: FloatArray,
    analysis: Analysis = Analysis.PUBLISHED,
) -> FloatArray:
    """Return the data-dependent cost of Gaussian noisy-max answers, (queries, moments).

    It is never more than the data-independent cost by ``analysis``, as with Laplace noise.

    Guarantees:
        Papernot et al. 2018, Theorem 6 with μ₂ = σ√(log 1/q), μ₁ = μ₂ + 1 (Proposition 10).
        Used only where its conditions hold: μ₁ > α, μ₂ > 1, q e^{ε₂} < 1, and q in the range
        where the bound grows with q. It bounds the divergence from the data at hand to its
        neighbours.
    """
    cap = log_moments(GaussianNoisyMaxAnswer(sigma=sigma), moments, analysis=analysis)
    return _capped_gaussian(log_q, sigma=sigma, moments=moments, data_independent=cap)


def _capped_gaussian(
    log_q: FloatArray, *, sigma: float, moments: FloatArray, data_independent: FloatArray
) -> FloatArray:
    """Return the bound of Theorem 6, or the data-independent one where that is less."""
    mu2 = sigma * np.sqrt(-log_q)
    epsilon2 = mu2 / sigma**2
    with np.errstate(divide="ignore", invalid="ignore"):
        valid = (mu2 > 1) & np.isfinite(mu2) & (-log_q > epsilon2)
        valid &= log_q <= (mu2 - 1) * epsilon2 - mu2 * (np.log1p(1 / mu2) + np.log1p(1 / (mu2 - 1)))
    log_qv, mu2, epsilon2 = log_q[valid], mu2[valid], epsilon2[valid]
    a = np.log1p(-np.exp(log_qv)) - log1mexp((log_qv + epsilon2) * (1 - 1 / mu2))
    b = (mu2 + 1) / sigma**2 - log_qv / mu2  # ε₁ − log q/(μ₁ − 1)
    dependent = _two_outcomes(log_qv, a, b, moments)
    np.copyto(dependent, np.inf, where=moments >= mu2[:, None])  # μ₁ > α, with α = λ + 1
    return _where_valid(
        valid, np.minimum(dependent, data_independent, out=dependent), data_independent
    )


# --- the threshold check of Confident- and Interactive-GNMax ------------------------------------


@moments_of.register
def _(event: ThresholdCheck, moments: FloatArray, analysis: Analysis) -> FloatArray:
    """A Gaussian mechanism on a value that one vote moves by at most one; or what a bit reveals."""
    published = moments * (moments + 1) / (2 * event.sigma**2)
    if analysis is Analysis.PUBLISHED:
        return published
    return np.minimum(published, threshold_bit(event.sigma, moments))


def checked_statistic(votes: ArrayLike, *, baseline: ArrayLike | None = None) -> FloatArray:
    """Return the statistic compared with the threshold: the largest count, or the largest lead.

    With a ``baseline`` (Interactive-GNMax: teachers × the student's probabilities) it is
    max(0, max_j ⌊n_j − baseline_j⌋). The floor keeps it on whole numbers *and* keeps its
    sensitivity at one; rounding to even would not (0.5 → 0 but 1.5 → 2). It is taken as
    n_j − ⌈baseline_j⌉, which no rounding of a difference can disturb.
    """
    counts = as_counts(votes)
    if baseline is None:
        return np.asarray(np.max(counts, axis=1), dtype=np.float64)
    base = np.asarray(baseline, dtype=np.float64)
    if base.shape != counts.shape or not np.all((base >= 0) & np.isfinite(base)):
        raise InvalidInput(
            f"the baseline must have the votes' shape {counts.shape}, be finite and not negative"
        )
    return np.asarray(np.maximum(np.max(counts - np.ceil(base), axis=1), 0.0))


def log_answered(statistic: FloatArray, *, threshold: float, sigma: float) -> FloatArray:
    """Return log Pr[statistic + N(0, σ²) ≥ threshold]."""
    _check_threshold(threshold)
    with np.errstate(over="ignore"):
        return np.asarray(log_ndtr((statistic - threshold) / sigma))


def threshold_log_q(statistic: FloatArray, *, threshold: float, sigma: float) -> FloatArray:
    """Return the log-probability of the check's less likely outcome."""
    _check_threshold(threshold)
    with np.errstate(over="ignore"):
        return np.asarray(log_ndtr(-np.abs(statistic - threshold) / sigma))


def _check_threshold(threshold: float) -> None:
    if not math.isfinite(threshold):
        raise InvalidInput(f"threshold is {threshold}; it must be a finite number of votes")


def threshold_from_log_q(
    log_q: FloatArray,
    *,
    sigma: float,
    moments: FloatArray,
    analysis: Analysis = Analysis.PUBLISHED,
) -> FloatArray:
    """Return the data-dependent cost of threshold checks, (queries, moments).

    Guarantees:
        Papernot et al. 2018, Theorem 6, which covers any mechanism with a likely outcome and an
        RDP of α/s². Here sensitivity one gives α/(2σ²), so s = √2 σ.
    """
    cap = log_moments(ThresholdCheck(sigma=sigma), moments, analysis=analysis)
    return _capped_gaussian(
        log_q, sigma=math.sqrt(2) * sigma, moments=moments, data_independent=cap
    )


# --- totals over a vote matrix ------------------------------------------------------------------


def laplace_total(
    votes: ArrayLike,
    *,
    scale: float,
    moments: ArrayLike | None = None,
    analysis: Analysis = Analysis.TIGHT,
) -> LogMoments:
    """Return the data-dependent cost of answering every query by Laplace noisy-max.

    Parameters
    ----------
    votes
        Counts of votes, (queries, classes). PRIVATE, and so is the result.
    scale
        The Laplace b, in votes.
    moments
        The grid of λ; a fine default grid if None.
    analysis
        The bounds of the data-independent cost, which no answer exceeds.

    >>> votes = np.array([[240, 5, 5], [130, 100, 20]])
    >>> total = laplace_total(votes, scale=20.0, moments=[1, 8])
    >>> total.data_dependent, bool(total.values[0] < 2 * 0.01)
    (True, True)
    """
    grid = as_moments(moments)
    return _total(
        laplace_log_q(votes, scale=scale),
        lambda log_q: laplace_from_log_q(log_q, scale=scale, moments=grid, analysis=analysis),
        grid,
        analysis,
    )


def gaussian_total(
    votes: ArrayLike,
    *,
    sigma: float,
    moments: ArrayLike | None = None,
    analysis: Analysis = Analysis.TIGHT,
) -> LogMoments:
    """Return the data-dependent cost of answering every query by Gaussian noisy-max.

    Parameters
    ----------
    votes
        Counts of votes, (queries, classes). PRIVATE, and so is the result.
    sigma
        The standard deviation of the noise, in votes.
    moments
        The grid of λ; a fine default grid if None.
    analysis
        The bounds of the data-independent cost, which no answer exceeds.

    >>> votes = np.array([[240, 5, 5], [130, 100, 20]])
    >>> gaussian_total(votes, sigma=20.0).guarantee(delta=1e-5).publishable
    False
    """
    grid = as_moments(moments)
    return _total(
        gaussian_log_q(votes, sigma=sigma),
        lambda log_q: gaussian_from_log_q(log_q, sigma=sigma, moments=grid, analysis=analysis),
        grid,
        analysis,
    )


def confident_total(
    votes: ArrayLike,
    *,
    threshold: float,
    sigma1: float,
    sigma2: float,
    moments: ArrayLike | None = None,
    answered: ArrayLike | None = None,
    baseline: ArrayLike | None = None,
    data_dependent: bool = True,
    analysis: Analysis = Analysis.TIGHT,
) -> LogMoments:
    """Return the cost of Confident-GNMax, or Interactive-GNMax, over a matrix of votes.

    Every query pays for its check, and every answered one for its answer. How many were answered
    was not known in advance, so publish the guarantee of the plan's caps, or of a λ fixed in
    advance, not the best λ of this total.

    Parameters
    ----------
    votes
        Counts of votes, (queries, classes). PRIVATE.
    threshold
        The number of votes that the noised largest count must reach.
    sigma1
        The standard deviation of the noise of the check, in votes.
    sigma2
        The standard deviation of the noise of the answer, in votes.
    moments
        The grid of λ; a fine default grid if None.
    answered
        A mask of the queries that were answered. Without it every query pays for its answer in
        expectation, which is for planning only. The expectation is marked as data-dependent also
        with ``data_dependent=False``: the probability of an answer follows from the votes.
    baseline
        For Interactive-GNMax: teachers × the student's probabilities, (queries, classes).
    data_dependent
        Use the votes to bound the cost of checks and answers. If False, only the noise counts.
    analysis
        The bounds of the data-independent cost, which no check and no answer exceeds.

    >>> votes = np.array([[240, 5, 5], [130, 100, 20]])
    >>> total = confident_total(
    ...     votes, threshold=150, sigma1=100.0, sigma2=40.0, answered=[True, False]
    ... )
    >>> total.data_dependent, round(total.guarantee(delta=1e-5).epsilon, 3)
    (True, 0.112)
    """
    grid = as_moments(moments)
    counts = as_counts(votes)
    statistic = checked_statistic(counts, baseline=baseline)
    weights = answer_weights(statistic, threshold=threshold, sigma=sigma1, answered=answered)
    private = data_dependent or answered is None
    if data_dependent:
        check = _total(
            threshold_log_q(statistic, threshold=threshold, sigma=sigma1),
            lambda log_q: threshold_from_log_q(
                log_q, sigma=sigma1, moments=grid, analysis=analysis
            ),
            grid,
            analysis,
        )
        answer = _total(
            gaussian_log_q(counts, sigma=sigma2),
            lambda log_q: gaussian_from_log_q(log_q, sigma=sigma2, moments=grid, analysis=analysis),
            grid,
            analysis,
            weights,
        )
        return check + answer
    check_cost = log_moments(ThresholdCheck(sigma=sigma1), grid, analysis=analysis)
    answer_cost = log_moments(GaussianNoisyMaxAnswer(sigma=sigma2), grid, analysis=analysis)
    return LogMoments(
        moments=grid,
        values=len(counts) * check_cost + weights.sum() * answer_cost,
        data_dependent=private,
        neighbours=Neighbours.REPLACE_ONE,
        analysis=analysis,
    )


def answer_weights(
    statistic: FloatArray, *, threshold: float, sigma: float, answered: ArrayLike | None
) -> FloatArray:
    """Return the share of an answer each query pays for: 0 or 1 if known, else its probability."""
    if answered is None:
        return np.exp(log_answered(statistic, threshold=threshold, sigma=sigma))
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != statistic.shape:
        raise InvalidInput(f"answered must be {len(statistic)} booleans, one for each query")
    return mask.astype(np.float64)


# --- shared machinery ---------------------------------------------------------------------------


def _where_valid(
    valid: NDArray[np.bool_], dependent: FloatArray, data_independent: FloatArray
) -> FloatArray:
    """Return the costs of all queries, from those of the ``valid`` ones."""
    if valid.all():
        return dependent
    costs = np.empty((len(valid), len(data_independent)))
    costs[:] = data_independent
    costs[valid] = dependent
    return costs


def _two_outcomes(
    log_q: FloatArray, a: FloatArray, b: FloatArray | float, moments: FloatArray
) -> FloatArray:
    """Return log[ (1−q) e^{λa} + q e^{λb} ], (queries, moments).

    As log1p of (1−q)(e^{λa} − 1) + q(e^{λb} − 1): both terms are positive, so a tiny cost keeps
    its digits. Computed with one row per moment, for the sake of the cache.
    """
    q = np.exp(log_q)
    with np.errstate(over="ignore"):
        excess = _expm1_multiples(a, moments)
        excess *= 1 - q
        if isinstance(b, float) and b * moments.max() < 600 and log_q.min(initial=0) > -600:
            excess += np.multiply.outer(np.expm1(b * moments), q)
        else:  # e^{λb} or q alone may leave the range of doubles
            excess += np.exp(log_q + np.multiply.outer(moments, b).reshape(len(moments), -1)) - q
        np.log1p(excess, out=excess)
    if max(np.max(a, initial=0.0), np.max(b, initial=0.0)) * moments.max() > 700:
        row, query = np.nonzero(np.isinf(excess))  # beyond e^709 ones do not matter any more
        slope = np.broadcast_to(b, a.shape)[query]
        excess[row, query] = np.logaddexp(
            np.log1p(-q[query]) + a[query] * moments[row], log_q[query] + slope * moments[row]
        )
    return excess.T


def _expm1_multiples(a: FloatArray, moments: FloatArray) -> FloatArray:
    """Return e^{λa} − 1, (moments, queries).

    For λ = s, 2s, 3s, … each row follows from the one before by (1+x)(1+y) − 1 = xy + x + y, which
    keeps every digit of a small x and saves most of the exponentials.
    """
    step, count = moments[0], len(moments)
    if count > 128 or not np.array_equal(moments, step * np.arange(1, count + 1)):
        return np.expm1(np.multiply.outer(moments, a))
    powers = np.empty((count, len(a)))
    np.expm1(step * a, out=powers[0])
    for i in range(1, count):
        np.multiply(powers[i - 1], powers[0], out=powers[i])
        powers[i] += powers[i - 1]
        powers[i] += powers[0]
    return powers


def _total(
    log_q: FloatArray,
    from_log_q: FromLogQ,
    moments: FloatArray,
    analysis: Analysis,
    weights: FloatArray | None = None,
) -> LogMoments:
    """Return the sum over queries; equal values of q (many, in practice) are evaluated once."""
    if weights is None:
        distinct, times = np.unique(log_q, return_counts=True)
    else:
        distinct, inverse = np.unique(log_q, return_inverse=True)
        times = np.bincount(inverse, weights=weights, minlength=len(distinct))
    values = np.zeros_like(moments)
    rows = max(1, _CHUNK // len(moments))
    for start in range(0, len(distinct), rows):
        part = slice(start, start + rows)
        values += times[part] @ from_log_q(distinct[part])
    return LogMoments(
        moments=moments,
        values=values,
        data_dependent=True,
        neighbours=Neighbours.REPLACE_ONE,
        analysis=analysis,
    )
