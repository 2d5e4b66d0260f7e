"""Counts of votes, and the probability that noise overturns their plurality."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from pate.accounting.moments import FloatArray
from pate.errors import InvalidInput

Counts = NDArray[np.int64]

_CHUNK = 1 << 18  # counts worked on at a time
_FAINT = 1e-290  # a sum of probabilities above this has lost nothing to underflow
_LARGEST_COUNT = 1 << 24
_NETWORK_CLASSES = 32


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


def union_log_q(counts: Counts, log_beaten: Callable[[FloatArray], FloatArray]) -> FloatArray:
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
    rows = max(1, _CHUNK // classes)
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
