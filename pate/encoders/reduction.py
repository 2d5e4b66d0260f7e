"""Steps that reduce the dimension: principal components, and diffusion maps of public inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.scaling import mean_of
from pate.encoders.step import Step, batches, flat
from pate.errors import InvalidInput
from pate.nearest_neighbours import directions, nearest

_BLOCK = 64  # records of one product
_NOTHING = 1e-12  # a variance below this share of the largest is rounding
_CLOSEST = 1e-6  # lower bound on an input's reach


class PCA(Step):
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

    fitted = True
    arrays = ("mean", "components", "variances")
    mean: NDArray[np.float32]
    components: NDArray[np.float32]  # (numbers, dimension)
    variances: NDArray[np.float64]

    def __init__(self, *, dimension: int, whiten: float = 0.0) -> None:
        self.dimension, self.whiten = dimension, whiten

    def fit(self, X: NDArray[Any]) -> None:
        from scipy.linalg import eigh

        X = flat(X)
        records, numbers = X.shape
        if self.dimension > min(records, numbers):
            raise InvalidInput(
                f"pca.dimension is {self.dimension}, and {records} public inputs of {numbers} "
                f"numbers have at most {min(records, numbers)} components; lower dimension"
            )
        mean, _ = mean_of(X)
        few = records < numbers
        matrix = _gram(X, mean) if few else _covariance(X, mean)
        largest = [len(matrix) - self.dimension, len(matrix) - 1]
        variances, vectors = eigh(matrix, subset_by_index=largest)
        variances = np.maximum(variances[::-1], 0.0)
        vectors = np.ascontiguousarray(vectors[:, ::-1])
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
        X = flat(X)
        out = np.empty((len(X), self.dimension), dtype=np.float32)
        block = np.zeros((_BLOCK, X.shape[1]), dtype=np.float32)
        for part in batches(X, rows=_BLOCK):
            rows = part.stop - part.start
            block[:rows] = X[part] - self.mean
            block[rows:] = 0
            out[part] = (block @ self.components)[:rows]
        return out


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


class Diffusion(Step):
    """The ``dimension`` slowest coordinates of a walk over public inputs, after ``time`` steps.

    Labels are few in a shard, and public inputs are many. A walk that steps from an input to
    similar ones stays within a class for long, so its position after some steps brings records of
    one class close together, and a small shard suffices to train a teacher.

    The walk goes to one of the ``neighbours`` nearest public inputs by direction, with the
    self-tuning weights of Zelnik-Manor & Perona 2004. Its eigenvectors, times eigenvalue to the
    power ``time``, are the diffusion map of Coifman & Lafon 2006; another record takes its first
    step to public inputs and continues as they do (Nyström's extension). Reduce to a hundred
    numbers or so before (``pca``): all distances are between records and public inputs.

    >>> angles = np.array([0.0, 0.1, 0.2, 1.3, 1.4, 1.5])
    >>> step = Diffusion(dimension=2, neighbours=2, time=4)
    >>> step.fit(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    >>> two = step.transform(np.array([[1.0, 0.05], [0.05, 1.0]]))
    >>> bool(np.abs(two[0] - two[1]).max() > 0.5)
    True

    Guarantees:
        The walk is over PUBLIC inputs alone. A record's features are a function of that record and
        of public inputs. Products always have the same shape, so other records cannot even change
        the rounding; a record's place in a product may.
    """

    fitted = True
    arrays = ("inputs", "reach", "coordinates")
    inputs: NDArray[np.float32]  # of length one
    reach: NDArray[np.float64]
    coordinates: NDArray[np.float32]  # (inputs, dimension)

    def __init__(self, *, dimension: int, neighbours: int = 10, time: float = 16.0) -> None:
        self.dimension, self.neighbours, self.time = dimension, neighbours, time

    def fit(self, X: NDArray[Any]) -> None:
        points = directions(flat(X))
        if max(self.dimension, self.neighbours) + 2 > len(points):
            raise InvalidInput(
                f"diffusion with dimension {self.dimension} and {self.neighbours} neighbours needs "
                f"more than {len(points)} public inputs; lower them"
            )
        near, squares = nearest(points, points, self.neighbours + 1, rows=_BLOCK)
        near, squares = _others(near, squares)
        self.inputs = points
        self.reach = np.sqrt(np.maximum(squares[:, -1], _CLOSEST))
        values, vectors = _slowest(near, self._weights(near, squares, self.reach), self.dimension)
        # A record's first step is one of the walk's: what is left to do are time − 1.
        self.coordinates = (vectors * values ** (self.time - 1)).astype(np.float32)

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        near, squares = nearest(directions(flat(X)), self.inputs, self.neighbours, rows=_BLOCK)
        weights = self._weights(near, squares, np.sqrt(np.maximum(squares[:, -1], _CLOSEST)))
        weights /= weights.sum(axis=1, keepdims=True)
        steps = self.coordinates[near]  # (records, neighbours, dimension)
        features: NDArray[np.float32] = np.einsum("ij,ijk->ik", weights, steps).astype(np.float32)
        return features

    def _weights(
        self, near: NDArray[np.int64], squares: NDArray[np.float64], reach: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = np.exp(-squares / (reach[:, None] * self.reach[near]))
        return np.maximum(weights, np.finfo(np.float32).tiny)  # one step must be possible


def _others(
    near: NDArray[np.int64], squares: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return each input's neighbours without itself; without the last if a duplicate hides it."""
    own = near == np.arange(len(near))[:, None]
    own[~own.any(axis=1), -1] = True
    shape = (len(near), near.shape[1] - 1)
    return near[~own].reshape(shape), squares[~own].reshape(shape)


def _slowest(
    near: NDArray[np.int64], weights: NDArray[np.float64], dimension: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the walk's largest eigenvalues, and eigenvectors of mean square one by its weights.

    Each connected component of the graph has its own vectors, the first of which indicates it.
    """
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    count = len(near)
    heads = np.repeat(np.arange(count), near.shape[1])
    graph = sparse.csr_matrix((weights.ravel(), (heads, near.ravel())), shape=(count, count))
    graph = graph.maximum(graph.T)
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    scale = sparse.diags(1.0 / np.sqrt(degrees))
    symmetric = (scale @ graph @ scale).tocsr()
    values: list[NDArray[np.float64]] = []
    vectors: list[NDArray[np.float64]] = []
    parts, part_of = connected_components(graph, directed=False)
    for part in range(parts):
        rows = np.flatnonzero(part_of == part)
        found, inside = _largest(symmetric[rows][:, rows], min(dimension, len(rows)))
        whole = np.zeros((count, len(found)))
        whole[rows] = inside
        values.append(found)
        vectors.append(whole)
    every = np.concatenate(values)
    first = np.argsort(-every, kind="stable")[:dimension]
    chosen = np.concatenate(vectors, axis=1)[:, first]
    chosen *= np.sqrt(degrees.sum() / degrees)[:, None]
    heaviest = np.abs(chosen).argmax(axis=0)
    chosen *= np.where(chosen[heaviest, np.arange(dimension)] < 0, -1.0, 1.0)
    return np.clip(every[first], 0.0, 1.0), chosen


def _largest(matrix: Any, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return eigenvalues, decreasing, and vectors, deterministically."""
    size = matrix.shape[0]
    if size <= max(4 * count, 256):
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        from scipy.sparse.linalg import eigsh

        start = np.cos(np.arange(size))
        values, vectors = eigsh(matrix, k=count, which="LA", v0=start, tol=1e-6)
    order = np.argsort(-values, kind="stable")[:count]
    return values[order], vectors[:, order]
