"""``ridge``: least squares on the labels with a penalty, in closed form."""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

import numpy as np
from scipy.linalg.lapack import dposv  # here: threads are counted once it is loaded

from pate.teachers.linear import Array, LinearTeacher, positive


@final
class RidgeTeacher(LinearTeacher):
    """Ridge regression from features to indicators of the classes.

    Minimises, over weights W and a free intercept, the sum over the shard's n records of
    |indicator − prediction|², plus λ|W|². λ is ``alpha`` times the mean squared distance of a
    record from the mean of its shard, so ``alpha`` means the same in any unit of the features.
    There is nothing random in it. The default suits features of some hundred dimensions and shards
    of 60 to 240 records. With fewer records than features the equations are solved
    between records (n × n), else between features.

    >>> X = np.array([[0.0, 1.0], [0.2, 0.9], [1.0, 0.1], [0.8, 0.0]])
    >>> RidgeTeacher(classes=3).fit(X, [2, 2, 0, 0]).predict([[0.1, 1.0], [1.0, 0.0]])
    array([2, 0])

    Guarantees:
        λ, like the weights, follows from the teacher's own shard alone.
    """

    def __init__(self, *, classes: int, alpha: float = 0.1) -> None:
        super().__init__(classes=classes)
        self.alpha = positive("alpha", alpha)

    def _settings(self) -> Hashable:
        return self.alpha

    def _solve(self, X: Array, targets: Array) -> tuple[Array, Array]:
        shares = targets.mean(axis=1)
        centred = targets - shares[:, None]
        across = X.swapaxes(1, 2)
        between_records = X.shape[1] <= X.shape[2]
        gram = X @ across if between_records else across @ X
        unit = np.trace(gram, axis1=1, axis2=2) / X.shape[1]
        diagonal = np.arange(gram.shape[1])
        # Where all records are alike there is nothing to learn but the shares.
        gram[:, diagonal, diagonal] += (self.alpha * np.where(unit > 0, unit, 1.0))[:, None]
        if between_records:
            return across @ _solved(gram, centred), shares
        return _solved(gram, across @ centred), shares


def _solved(matrices: Array, right: Array) -> Array:
    """The solutions for symmetric positive matrices, by Cholesky; NaN where one is not."""
    answers = np.empty_like(right)
    for matrix, side, answer in zip(matrices, right, answers, strict=True):
        # Transposed, a symmetric matrix is in the order LAPACK wants, and is not copied.
        _, found, info = dposv(matrix.T, side, lower=1, overwrite_a=1)
        answer[:] = found if info == 0 else np.nan
    return answers
