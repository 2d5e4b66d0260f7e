"""Scaling steps: by the statistics of public inputs, or of each record by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.step import Step, batches, flat
from pate.errors import InvalidInput


class Standardise(Step):
    """Subtraction of the public mean and division by the public standard deviation.

    Missing values are left out, and stay missing.

    Where all public inputs agree the scale is one. ``floor`` is the least scale as a share of the
    median scale: a number that hardly varies in public could otherwise grow without bounds on
    private records. It compares scales, so use it where all numbers have the same unit. With
    ``groups``, consecutive numbers in so many groups of equal length share one scale: 81 for the
    paths of a scattering of grey images.

    >>> step = Standardise()
    >>> step.fit(np.array([[0.0, 5.0], [2.0, 5.0]]))
    >>> step.transform(np.array([[4.0, 6.0]]))
    array([[3., 1.]], dtype=float32)

    Guarantees:
        Mean and scale come from PUBLIC inputs; a record's features depend on it alone, bit for bit.
    """

    fitted = takes_missing = True
    arrays = ("mean", "scale")
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]

    def __init__(self, *, floor: float = 0.0, groups: int | None = None) -> None:
        self.floor, self.groups = floor, groups

    def fit(self, X: NDArray[Any]) -> None:
        mean, known = mean_of(X)
        total = np.zeros(X.shape[1:])
        for part in batches(X):
            squares = (np.asarray(X[part], dtype=np.float64) - mean) ** 2
            total += np.where(np.isnan(squares), 0.0, squares).sum(axis=0)
        if self.groups is not None:  # the mean of each group in place of its squares
            parts = total.reshape(_cut(total.size, self.groups))
            parts = np.broadcast_to(parts.mean(axis=1, keepdims=True), parts.shape)
            total = parts.reshape(total.shape)
        scale = np.sqrt(total / known)
        # The mean of equal numbers is rounded: what is left is below float32's own resolution.
        constant = scale <= np.finfo(np.float32).eps * np.abs(mean)
        if not constant.all():
            scale = np.maximum(scale, self.floor * np.median(scale[~constant]))
        scale[constant] = 1.0
        self.mean = mean.astype(np.float32)
        self.scale = np.maximum(scale.astype(np.float32), np.finfo(np.float32).tiny)

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        features: NDArray[np.float32] = np.asarray(X, dtype=np.float32) - self.mean
        features /= self.scale
        return features


class Root(Step):
    """The square root of each number, with its sign; it shortens long tails.

    Missing values stay missing.

    >>> Root().transform(np.array([[4.0, -9.0]]))
    array([[ 2., -3.]], dtype=float32)

    Guarantees:
        A record's features depend on it alone, bit for bit.
    """

    takes_missing = True

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        values = np.asarray(X, dtype=np.float32)
        roots: NDArray[np.float32] = np.copysign(np.sqrt(np.abs(values)), values)
        return roots


class Normalise(Step):
    """Scaling of each record to Euclidean length one; a record of zeros does not change.

    >>> Normalise().transform(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)

    Guarantees:
        A record's features depend on it alone, bit for bit, and their norm is at most 1 but for
        rounding: what clips a gradient or bounds a cosine still has to enforce its own bound.
    """

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        values = np.array(X, dtype=np.float32)
        axes = tuple(range(1, values.ndim))
        largest = np.abs(values).max(axis=axes, keepdims=True, initial=0.0)
        values /= np.where(largest > 0, largest, 1.0)  # squares of tiny numbers would vanish
        norms = np.sqrt(np.square(values, dtype=np.float64).sum(axis=axes, keepdims=True))
        values /= np.where(norms > 0, norms, 1.0).astype(np.float32)
        return values


class GroupNorm(Step):
    """Group normalisation: ``groups`` parts of equal length, each of mean 0 and variance 1.

    Wu & He 2018, without the learned scale and shift. Parts are consecutive numbers; scattering
    puts a path's pixels one after another, so 27 groups of its 81 paths hold 3 paths each. A record
    of d numbers is then about √d long, whatever its contrast, which suits clipped gradients
    (Tramèr & Boneh 2021, Section 2.2).

    >>> GroupNorm(groups=2).transform(np.array([[1.0, 3.0, 10.0, 50.0]])).round(3)
    array([[-1.,  1., -1.,  1.]], dtype=float32)

    Guarantees:
        Nothing is fitted: a record's features depend on it alone, bit for bit.
    """

    def __init__(self, *, groups: int) -> None:
        self.groups = groups

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        shape = _cut(math.prod(X.shape[1:]), self.groups)
        parts = flat(np.asarray(X, dtype=np.float64)).reshape(len(X), *shape)
        parts = parts - parts.mean(axis=2, keepdims=True)
        # The constant keeps the noise of a flat part from being amplified.
        parts /= np.sqrt(np.square(parts).mean(axis=2, keepdims=True) + 1e-5)
        features: NDArray[np.float32] = parts.reshape(X.shape).astype(np.float32)
        return features


def _cut(numbers: int, groups: int) -> tuple[int, int]:
    """Return the shape of a record in groups of equal length."""
    if numbers == 0 or numbers % groups:
        raise InvalidInput(
            f"records of {numbers} numbers cannot be cut into {groups} groups of equal length; "
            "choose groups that divide their number"
        )
    return groups, numbers // groups


def mean_of(X: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean record, in double precision, and of how many records each number is known.

    Reads one part after another. A number that no record has is taken as 0, once.
    """
    total, known = np.zeros(X.shape[1:]), np.zeros(X.shape[1:])
    for part in batches(X):
        values = np.asarray(X[part], dtype=np.float64)
        missing = np.isnan(values)
        total += np.where(missing, 0.0, values).sum(axis=0)
        known += len(values) - missing.sum(axis=0)
    known = np.maximum(known, 1)
    return total / known, known
