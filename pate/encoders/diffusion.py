"""Diffusion maps: coordinates of random walks over the public inputs.

Labels are few in a shard, and public inputs are many. A walk that steps from an input to similar
ones stays within a class for long. Coordinates of its position after some steps bring records of
one class close together, so that a small shard suffices to train a teacher.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.encoders.step import flat, read_arrays, write_arrays
from pate.errors import InvalidInput
from pate.nearest_neighbours import directions, nearest

_BLOCK = 64  # records of one product
_CLOSEST = 1e-6  # lower bound on an input's reach


class Diffusion:
    """The ``dimension`` slowest coordinates of a walk over public inputs, after ``time`` steps.

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

    def __init__(self, *, dimension: int, neighbours: int = 10, time: float = 16.0) -> None:
        self.dimension, self.neighbours, self.time = dimension, neighbours, time
        self.inputs: NDArray[np.float32] | None = None  # of length one
        self.reach: NDArray[np.float64] | None = None
        self.coordinates: NDArray[np.float32] | None = None  # (inputs, dimension)

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
        assert self.inputs is not None
        assert self.coordinates is not None
        near, squares = nearest(directions(flat(X)), self.inputs, self.neighbours, rows=_BLOCK)
        weights = self._weights(near, squares, np.sqrt(np.maximum(squares[:, -1], _CLOSEST)))
        weights /= weights.sum(axis=1, keepdims=True)
        steps = self.coordinates[near]  # (records, neighbours, dimension)
        features: NDArray[np.float32] = np.einsum("ij,ijk->ik", weights, steps).astype(np.float32)
        return features

    def _weights(
        self, near: NDArray[np.int64], squares: NDArray[np.float64], reach: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        assert self.reach is not None
        weights: NDArray[np.float64] = np.exp(-squares / (reach[:, None] * self.reach[near]))
        return np.maximum(weights, np.finfo(np.float32).tiny)  # one step must be possible

    def save(self, folder: Path) -> None:
        assert self.inputs is not None
        assert self.reach is not None
        assert self.coordinates is not None
        write_arrays(
            folder,
            {"inputs": self.inputs, "reach": self.reach, "coordinates": self.coordinates},
        )

    def load(self, folder: Path) -> None:
        arrays = read_arrays(folder)
        self.inputs, self.reach = arrays["inputs"], arrays["reach"]
        self.coordinates = arrays["coordinates"]


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
