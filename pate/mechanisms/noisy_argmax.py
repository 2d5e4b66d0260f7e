"""The class whose noised count is largest, for many queries in little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pate._validate import check_whole
from pate.accounting.plurality import as_counts
from pate.errors import InvalidInput
from pate.mechanisms.release import HasCounts, IntArray

Noise = Callable[[tuple[int, ...]], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]

BLOCK = 1 << 17  # counts noised at a time: one megabyte of doubles


def blocks(queries: int, *, classes: int) -> Iterator[slice]:
    """Consecutive runs of queries, about :data:`BLOCK` counts each.

    >>> [(part.start, part.stop) for part in blocks(5, classes=BLOCK // 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    rows = max(1, BLOCK // classes)
    for start in range(0, queries, rows):
        yield slice(start, min(start + rows, queries))


def noisy_argmax(counts: IntArray, *, noise: Noise) -> IntArray:
    """argmax_j (n_j + noise) of each query; every count gets a draw of its own."""
    labels = np.empty(len(counts), dtype=np.int64)
    for part in blocks(len(counts), classes=counts.shape[1]):
        noised = noise(counts[part].shape)
        noised += counts[part]
        np.argmax(noised, axis=1, out=labels[part])
    return labels


def checked_counts(votes: HasCounts) -> IntArray:
    """The counts of votes, checked block by block before any noise is drawn; may be no queries."""
    counts = votes.counts
    if counts.ndim != 2 or counts.shape[1] < 2 or counts.dtype.kind not in "iu":
        raise InvalidInput(
            f"votes of shape {counts.shape} and kind {counts.dtype} are not whole counts, "
            "(queries, classes ≥ 2)"
        )
    for part in blocks(len(counts), classes=counts.shape[1]):
        as_counts(counts[part])
    return counts


def most_of(queries: int, most_answers: int | None) -> int:
    """How many of the queries may be answered."""
    if most_answers is None:
        return queries
    check_whole("most_answers", most_answers)
    return min(queries, most_answers)
