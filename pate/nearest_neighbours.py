"""Nearest neighbours of points, and rows scaled to directions."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

_NUMBERS = 1 << 22  # distances in memory at a time
_ROUNDING = 1e-6  # a squared distance below this share of the points' squares is none


def directions(features: ArrayLike) -> NDArray[np.float32]:
    """Return features as rows of length one; a row of zeros stays as it is.

    >>> directions([[3.0, 4.0], [0.0, 0.0]])
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    table = np.asarray(features)
    points = table.reshape(len(table), -1).astype(np.float32)
    # By the largest number first: the square of a huge or tiny one is out of range.
    points /= np.maximum(np.abs(points).max(axis=1, initial=0), np.finfo(np.float32).tiny)[:, None]
    length = np.sqrt(np.einsum("ij,ij->i", points, points))
    points /= np.where(length > 0, length, 1.0)[:, None]
    return points


def nearest(
    points: NDArray[np.float32],
    among: NDArray[np.float32],
    count: int,
    *,
    rows: int | None = None,
    own: Literal["first", "never"] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ``count`` nearest of ``among`` for each point, and their squared distances.

    Both are (points, count), nearest first. ``rows`` is the number of points in one matrix product,
    the last one padded with zeros: a fixed number keeps other points from changing even the
    rounding of a point's distances. For points among themselves ``own`` makes each its own first
    neighbour, also where it has duplicates, or never one.

    >>> line = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], dtype=np.float32)
    >>> near, squares = nearest(line, line, 2)
    >>> near.tolist(), squares.round(2).tolist()
    ([[0, 1], [1, 0], [2, 1]], [[0.0, 0.4], [0.0, 0.4], [0.0, 0.8]])
    >>> nearest(line, line, 1, own="never")[0].ravel().tolist()
    [1, 0, 1]
    """
    near = np.empty((len(points), count), dtype=np.int64)
    squares = np.empty((len(points), count))
    norms = np.einsum("ij,ij->i", among, among)
    step = rows or max(1, _NUMBERS // max(len(among), 1))
    block = np.zeros((step, points.shape[1]), dtype=np.float32)
    room = np.empty((3, min(step, len(points)), len(among)), dtype=np.float32)
    for start in range(0, len(points), step):
        part = points[start : start + step]
        if rows is not None:
            block[: len(part)], block[len(part) :] = part, 0.0
        product = (part if rows is None else block) @ among.T
        # In memory allocated before: new pages would take longer than the arithmetic.
        sizes, gaps, least = (each[: len(part)] for each in room)
        np.add(np.einsum("ij,ij->i", part, part)[:, None], norms, out=sizes)
        np.multiply(product[: len(part)], 2.0, out=gaps)
        np.subtract(sizes, gaps, out=gaps)
        np.multiply(sizes, np.float32(_ROUNDING / 2), out=least)
        gaps[gaps < least] = 0.0
        if own is not None:
            place = np.arange(len(part))
            gaps[place, start + place] = -1.0 if own == "first" else np.inf
        some = _smallest(gaps, count)
        found = np.take_along_axis(gaps, some, axis=1)
        order = np.lexsort((some, found), axis=1)
        near[start : start + step] = np.take_along_axis(some, order, axis=1)
        squares[start : start + step] = np.take_along_axis(found, order, axis=1)
    return near, np.maximum(squares, 0.0)


def _smallest(gaps: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the indices of the ``count`` smallest numbers of each row, as ``np.argpartition``.

    The count-th smallest of some columns is a bound: few numbers lie below it, and only these are
    examined. Ties at the last rank are resolved as ``np.argpartition`` does.

    >>> np.sort(_smallest(np.array([[3.0, 0.0, 2.0, 1.0]], dtype=np.float32), 2)).tolist()
    [[1, 3]]
    """
    columns = gaps.shape[1]
    some = math.isqrt(2 * count * columns)  # where the bound costs as much as what lies below it
    if not count or 2 * some > columns:
        return np.argpartition(gaps, count - 1, axis=1)[:, :count]
    bound = np.partition(gaps[:, :: columns // some], count - 1, axis=1)[:, count - 1]
    heads, places = np.nonzero(gaps <= bound[:, None])
    each = np.bincount(heads, minlength=len(gaps))
    if each.min() < count:  # NaN
        return np.argpartition(gaps, count - 1, axis=1)[:, :count]
    turn = np.arange(len(heads)) - np.repeat(np.cumsum(each) - each, each)
    small = np.full((len(gaps), int(each.max())), np.inf, dtype=np.float32)
    small[heads, turn] = gaps[heads, places]
    where = np.zeros(small.shape, dtype=np.int64)
    where[heads, turn] = places
    first = np.argpartition(small, count - 1, axis=1)[:, :count]
    last = np.take_along_axis(small, first, axis=1).max(axis=1, keepdims=True)
    found: NDArray[np.int64] = np.take_along_axis(where, first, axis=1)
    alike = np.flatnonzero((small <= last).sum(axis=1) > count)
    found[alike] = np.argpartition(gaps[alike], count - 1, axis=1)[:, :count]
    return found
