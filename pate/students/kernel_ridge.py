"""``kernel-ridge``: a student for features, fitted in one step to labels or to soft labels."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate._validate import check_positive, check_whole
from pate.errors import TeacherError

_MOST = 20_000  # inputs: their kernel is a matrix of that many squared
_LEAST_WEIGHT = 1e-3  # an input that counts less is as good as left out
_ROWS = 1024  # of the kernel with new records in memory at a time


@final
class KernelRidge:
    """Ridge regression from a Gaussian kernel of the features to probabilities of the classes.

    The kernel of two records is exp(−distance² / (``width`` · d²)), with d² the mean squared
    distance of two inputs that it learns from. With K the kernel of these inputs and w their
    weights, the coefficients solve (K + ``alpha`` diag(1/w)) c = targets − mean of the targets. So
    both settings mean the same in any unit of the features. Nothing in it is random. It keeps the
    inputs that it learned from, which for a student are public.

    Parameters
    ----------
    classes : int
        The number of classes; labels are 0 … classes − 1.
    width : float
        The reach of the kernel, relative to the spread of the inputs; positive.
    alpha : float
        The penalty: the larger, the less a single label counts; positive.

    >>> X = np.array([[0.0, 1.0], [0.2, 0.9], [1.0, 0.1], [0.8, 0.0]])
    >>> KernelRidge(classes=3).fit(X, [2, 2, 0, 0]).predict([[0.1, 1.0], [1.0, 0.0]])
    array([2, 0])
    """

    def __init__(self, *, classes: int, width: float = 1.0, alpha: float = 0.1) -> None:
        self.classes = check_whole("classes", classes, least=1)
        self.width, self.alpha = check_positive("width", width), check_positive("alpha", alpha)
        self.unit = 1.0
        self.inputs: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self.coefficients: NDArray[np.float32] = np.zeros((0, classes), np.float32)
        self.shares: NDArray[np.float32] = np.full(classes, 1 / classes, np.float32)

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> KernelRidge:
        """Learn labels (n,) of inputs (n, …); ``sample_weight`` (n,) is from 0 to 1."""
        labels = np.asarray(y)
        if not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise TeacherError(f"a label does not exist; labels are 0 … {self.classes - 1}")
        return self.fit_soft(X, np.eye(self.classes)[labels], sample_weight)

    def fit_soft(
        self, X: ArrayLike, probabilities: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> KernelRidge:
        """Learn probabilities (n, classes) of inputs (n, …)."""
        from scipy.linalg import solve

        inputs, targets = _flat(X), np.asarray(probabilities, dtype=np.float32)
        if len(inputs) > _MOST:
            raise TeacherError(
                f"kernel-ridge learns from at most {_MOST} inputs, not {len(inputs)}; choose "
                '"ridge" or a network'
            )
        weights = np.ones(len(inputs)) if sample_weight is None else np.asarray(sample_weight)
        apart = inputs - inputs.mean(axis=0)
        unit = 2 * float(np.einsum("ij,ij->i", apart, apart).mean())
        self.inputs, self.unit = inputs, unit if unit > 0 else 1.0
        self.shares = targets.mean(axis=0)
        kernel = self._kernel(inputs)
        kernel[np.diag_indices_from(kernel)] += self.alpha / np.maximum(weights, _LEAST_WEIGHT)
        self.coefficients = solve(
            kernel, targets - self.shares, assume_a="pos", overwrite_a=True, check_finite=False
        )
        if not np.isfinite(self.coefficients).all():
            raise TeacherError("its coefficients are not finite; features must be finite numbers")
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the scores as probabilities, (n, classes): negative ones are zero."""
        records = _flat(X)
        scores = np.empty((len(records), self.classes))
        for start in range(0, len(records), _ROWS):
            kernel = self._kernel(records[start : start + _ROWS])
            scores[start : start + _ROWS] = kernel @ self.coefficients + self.shares
        scores = np.maximum(scores, np.finfo(np.float32).tiny)
        table: NDArray[np.float64] = scores / scores.sum(axis=1, keepdims=True)
        return table

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the class of the largest score; the first of equals."""
        return np.asarray(self.predict_proba(X).argmax(axis=1), dtype=np.int64)

    def _kernel(self, records: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the kernel of records with the inputs, (n, inputs)."""
        squares = np.einsum("ij,ij->i", records, records)[:, None] - 2 * records @ self.inputs.T
        squares += np.einsum("ij,ij->i", self.inputs, self.inputs)
        kernel: NDArray[np.float32] = np.exp(-np.maximum(squares, 0) / (self.width * self.unit))
        return kernel


def _flat(X: Any) -> NDArray[np.float32]:
    records = np.asarray(X, dtype=np.float32)
    return records.reshape(len(records), -1)
