"""Principal components of public inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.scaling import mean_of
from pate.encoders.step import batches, flat, read_arrays, write_arrays
from pate.errors import InvalidInput

_BLOCK = 64  # rows of one product
_NOTHING = 1e-12  # a variance below this share of the largest is rounding


class PCA:
    """The ``dimension`` directions in which public inputs vary most; records are flattened.

    ``whiten`` w divides each component by its standard deviation to the power w: 0 keeps the
    variances, 1 makes all of them one on the public inputs. The components are exact: eigenvectors,
    in double precision, of the covariance matrix, or of the products of inputs where those are
    fewer than numbers. The largest entry of each component is positive.

    >>> step = PCA(dimension=1)
    >>> step.fit(np.array([[0.0, 0.0], [3.0, 4.0]]))
    >>> step.transform(np.array([[3.0, 4.0]]))
    array([[2.5]], dtype=float32)

    Guarantees:
        Fitted on PUBLIC inputs alone. Products always have the same shape, so other records cannot
        even change the rounding of a record's features; its place in the product may.
    """

    def __init__(self, *, dimension: int, whiten: float = 0.0) -> None:
        self.dimension, self.whiten = dimension, whiten
        self.mean: NDArray[np.float32] | None = None
        self.components: NDArray[np.float32] | None = None  # (numbers, dimension)
        self.variances: NDArray[np.float64] | None = None

    def fit(self, X: NDArray[Any]) -> None:
        X = flat(X)
        records, numbers = X.shape
        if self.dimension > min(records, numbers):
            raise InvalidInput(
                f"pca.dimension is {self.dimension}, and {records} public inputs of {numbers} "
                f"numbers have at most {min(records, numbers)} components; lower dimension"
            )
        mean = mean_of(X)
        few = records < numbers
        variances, vectors = _largest(_gram(X, mean) if few else _covariance(X, mean), self)
        if self.whiten > 0 and variances[-1] <= _NOTHING * variances[0]:
            varying = int((variances > _NOTHING * variances[0]).sum())
            raise InvalidInput(
                f"pca.dimension is {self.dimension}, and public inputs vary in {varying} "
                "directions only, so the others cannot be whitened; lower dimension"
            )
        if few:
            vectors = _back(X, mean, vectors)
        heaviest = np.abs(vectors).argmax(axis=0)
        vectors *= np.where(vectors[heaviest, np.arange(self.dimension)] < 0, -1.0, 1.0)
        if self.whiten > 0:
            vectors /= variances ** (self.whiten / 2)
        self.mean = mean.astype(np.float32)
        self.components = np.ascontiguousarray(vectors, dtype=np.float32)
        self.variances = variances

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        assert self.components is not None
        X = flat(X)
        out = np.empty((len(X), self.dimension), dtype=np.float32)
        block = np.zeros((_BLOCK, X.shape[1]), dtype=np.float32)
        for part in batches(X, rows=_BLOCK):
            rows = part.stop - part.start
            block[:rows] = X[part] - self.mean
            block[rows:] = 0
            out[part] = (block @ self.components)[:rows]
        return out

    def save(self, folder: Path) -> None:
        assert self.mean is not None
        assert self.components is not None
        assert self.variances is not None
        write_arrays(
            folder,
            {"mean": self.mean, "components": self.components, "variances": self.variances},
        )

    def load(self, folder: Path) -> None:
        arrays = read_arrays(folder)
        self.mean, self.components = arrays["mean"], arrays["components"]
        self.variances = arrays["variances"]


def _covariance(X: NDArray[Any], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    total = np.zeros((X.shape[1], X.shape[1]))
    for part in batches(X):
        rows = np.asarray(X[part], dtype=np.float64) - mean
        total += rows.T @ rows
    return total / len(X)


def _gram(X: NDArray[Any], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return products of all pairs of records; its eigenvalues are those of the covariance."""
    total = np.zeros((len(X), len(X)))
    for columns in range(0, X.shape[1], 1024):
        some = slice(columns, columns + 1024)
        part = np.asarray(X[:, some], dtype=np.float64) - mean[some]
        total += part @ part.T
    return total / len(X)


def _largest(
    matrix: NDArray[np.float64], pca: PCA
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the largest eigenvalues, decreasing, and their vectors as columns."""
    from scipy.linalg import eigh

    size = len(matrix)
    values, vectors = eigh(matrix, subset_by_index=[size - pca.dimension, size - 1])
    return np.maximum(values[::-1], 0.0), np.ascontiguousarray(vectors[:, ::-1])


def _back(
    X: NDArray[Any], mean: NDArray[np.float64], vectors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Turn weights of records into directions of length one."""
    total = np.zeros((X.shape[1], vectors.shape[1]))
    for part in batches(X):
        total += (np.asarray(X[part], dtype=np.float64) - mean).T @ vectors[part]
    # Orthogonal already, but for directions in which nothing varies: those have no length.
    directions, sizes = np.linalg.qr(total)
    turned: NDArray[np.float64] = directions * np.where(np.diag(sizes) < 0, -1.0, 1.0)
    return turned
