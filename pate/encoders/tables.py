"""Steps for tables: missing values filled in, and categories as numbers.

A table comes with categories as codes: 0, 1, … by their list, −1 for one outside the list, NaN for
a missing one. ``categories`` has their number for each column, 0 for a column of numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.step import Step
from pate.errors import InvalidInput

_WIDEST = 2**20  # numbers of one record


class Impute(Step):
    """Missing values replaced by a value from public inputs, or by a constant.

    In columns of numbers that is the ``strategy``: "mean", "median", "most_frequent", or "constant"
    for ``value``. In columns of categories it is the most frequent category.

    >>> step = Impute(strategy="median")
    >>> step.fit(np.array([[1.0], [np.nan], [5.0], [2.0]]))
    >>> step.transform(np.array([[np.nan], [7.0]])).ravel()
    array([2., 7.], dtype=float32)

    Guarantees:
        The values come from PUBLIC inputs; a record's features depend on it alone, bit for bit.
    """

    fitted = takes_missing = takes_categories = True
    arrays = ("fill",)
    fill: NDArray[np.float32]

    def __init__(self, *, strategy: str = "mean", value: float = 0.0) -> None:
        self.strategy, self.value = strategy, value

    def fit(self, X: NDArray[Any]) -> None:
        _require_table(X, "impute")
        counts = self.categories or (0,) * X.shape[1]
        self.fill = np.array(
            [self._value(X[:, at], categories=counts[at], at=at) for at in range(X.shape[1])],
            dtype=np.float32,
        )

    def _value(self, column: NDArray[Any], *, categories: int, at: int) -> float:
        if self.strategy == "constant" and not categories:
            return self.value
        known = np.asarray(column, dtype=np.float64)
        known = known[~np.isnan(known)]
        if not len(known):
            raise InvalidInput(
                f"column {at + 1} has no value in any public input, and impute has none to fill "
                'in; leave the column out, or set strategy = "constant"'
            )
        if categories or self.strategy == "most_frequent":
            values, counts = np.unique(known, return_counts=True)
            return float(values[counts.argmax()])
        return float(known.mean() if self.strategy == "mean" else np.median(known))

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        values = np.asarray(X, dtype=np.float32)
        _require_width(values, self.fill, "impute")
        return np.where(np.isnan(values), self.fill, values)


class OneHot(Step):
    """A column of categories replaced by a 0 or 1 for each category; numbers do not change.

    A category outside the list is all zeros. A missing one has a place of its own where public
    inputs have missing values in that column; otherwise it is all zeros too.

    >>> step = OneHot()
    >>> step.categories = (2, 0)
    >>> step.fit(np.array([[0.0, 7.0], [1.0, 8.0]]))
    >>> step.transform(np.array([[1.0, 9.0], [-1.0, 9.0]]))
    array([[0., 1., 9.],
           [0., 0., 9.]], dtype=float32)

    Guarantees:
        A record's features depend on it alone, bit for bit.
    """

    fitted = takes_missing = takes_categories = True
    arrays = ("counts", "missing")
    counts: NDArray[np.int64]
    missing: NDArray[np.bool_]

    def fit(self, X: NDArray[Any]) -> None:
        _require_table(X, "one-hot")
        _require_categories(self.categories, "one-hot")
        self.counts = np.array(self.categories, dtype=np.int64)
        self.missing = np.array(
            [
                bool(count) and bool(np.isnan(np.asarray(X[:, at], dtype=np.float64)).any())
                for at, count in enumerate(self.categories)
            ]
        )

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        values = np.asarray(X, dtype=np.float32)
        for kept in (self.counts, self.missing):
            _require_width(values, kept, "one-hot")
        if self.counts.min() < 0 or int(self.counts.max()) + self.counts.sum() > _WIDEST:
            raise InvalidInput("one-hot would make more numbers of a record than any table has")
        parts = []
        for at, count in enumerate(self.counts.tolist()):
            column = values[:, at : at + 1]
            parts.append(column == np.arange(count) if count else column)
            if count and self.missing[at]:
                parts.append(np.isnan(column))
        return np.concatenate(parts, axis=1, dtype=np.float32)


class Ordinal(Step):
    """Codes of categories taken as numbers: 0, 1, … in the order of their list.

    A category outside the list stays −1, a missing one NaN. For trees, and for categories in an
    order: ``categorical = { size = ["S", "M", "L"] }`` of ``[data]`` sets it.

    Guarantees:
        A record's features depend on it alone, bit for bit.
    """

    fitted = takes_missing = takes_categories = True

    def fit(self, X: NDArray[Any]) -> None:
        _require_table(X, "ordinal")
        _require_categories(self.categories, "ordinal")

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        return np.asarray(X, dtype=np.float32)


def _require_table(X: NDArray[Any], step: str) -> None:
    if X.ndim != 2:
        raise InvalidInput(
            f"step {step} is for tables, and these records have shape {X.shape[1:]}; leave it out"
        )


def _require_categories(categories: tuple[int, ...], step: str) -> None:
    if not any(categories):
        raise InvalidInput(
            f"step {step} finds no column of categories: all are numbers, or an earlier step made "
            "them so; list columns in categorical of [data], or leave the step out"
        )


def _require_width(X: NDArray[Any], kept: NDArray[Any], step: str) -> None:
    if X.ndim != 2 or kept.shape != X.shape[1:] or kept.dtype.kind not in "iufb":
        raise InvalidInput(f"step {step} was fitted on other columns than these; fit it again")
