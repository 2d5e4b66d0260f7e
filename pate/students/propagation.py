"""Label propagation over the graph of nearest neighbours (Zhou et al. 2004).

It starts from a few labelled inputs among many: near inputs tend to share their class. No label is
fixed, so neighbours can overrule a wrong one.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.nearest_neighbours import directions, nearest


def propagate(
    features: ArrayLike,
    rows: ArrayLike,
    labels: ArrayLike,
    *,
    classes: int,
    neighbours: int = 5,
    alpha: float = 0.99,
    metric: Literal["cosine", "euclidean"] = "cosine",
    balance: bool = False,
    graph: Any = None,
) -> NDArray[np.float64]:
    """Return the probability of each class for every input, (n, classes).

    Solves (I − α S) F = Y, with S the normalised graph: the labels that a walk collects which stops
    with probability 1 − α at each step. With ``balance`` the classes are scaled to their shares
    among the released labels (class mass normalisation, Zhu et al. 2003). ``graph`` is that of
    :func:`neighbour_graph` for these features, if it is known.

    >>> line = np.array([[1, 0.0], [1, 0.1], [1, 0.2], [0, 1], [0.1, 1], [0.2, 1]])
    >>> propagate(line, [0, 3], [1, 0], classes=2, neighbours=2).argmax(axis=1)
    array([1, 1, 1, 0, 0, 0])
    """
    records = np.asarray(features, dtype=np.float32).reshape(len(np.asarray(features)), -1)
    rows, labels = np.asarray(rows), np.asarray(labels)
    if graph is None:
        graph = neighbour_graph(records, neighbours=neighbours, metric=metric)
    known = np.zeros((len(records), classes))
    np.add.at(known, (rows, labels), 1.0)
    # Each class starts with the same mass: a walk finds the near class, not the frequent one.
    known /= np.maximum(known.sum(axis=0), 1.0)
    spread = np.maximum(_solve(graph, known, alpha=alpha), 0.0)
    if balance:
        shares = np.bincount(labels, minlength=classes) / len(labels)
        spread *= shares / np.maximum(spread.sum(axis=0), np.finfo(float).tiny)
    return _rows_to_one(spread, labels, classes)


def neighbour_graph(
    records: NDArray[np.float32],
    *,
    neighbours: int,
    metric: Literal["cosine", "euclidean"] = "cosine",
) -> Any:
    """Return the symmetric, degree-normalised graph of neighbours, a sparse (n, n) matrix."""
    from scipy import sparse

    count = len(records)
    near, weights = _nearest(records, neighbours=min(neighbours, count - 1), metric=metric)
    heads = np.repeat(np.arange(count), near.shape[1])
    graph = sparse.csr_matrix((weights.ravel(), (heads, near.ravel())), shape=(count, count))
    graph = graph.maximum(graph.T)
    degrees = np.asarray(graph.sum(axis=1)).ravel()
    scale = sparse.diags(1.0 / np.sqrt(np.maximum(degrees, np.finfo(float).tiny)))
    return (scale @ graph @ scale).tocsr()


def _nearest(
    records: NDArray[np.float32], *, neighbours: int, metric: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return, for every record, the nearest others and a weight from 0 to 1 for each."""
    if metric == "cosine":
        points = directions(records)
        empty = ~points.any(axis=1, keepdims=True)
        if empty.any():  # a separate direction: a record of zeros is similar to no other
            points = np.hstack([points, empty.astype(np.float32)])
    else:
        points = records - records.mean(axis=0)
    near, apart = nearest(points, points, neighbours, own="never")
    if metric == "cosine":
        # Squared gap of unit vectors is 2 − 2 cos. The cube favours the very near (Iscen 2019).
        return near, np.maximum(1.0 - apart / 2, 1e-6) ** 3
    # Each record's own scale: the distance to its last neighbour.
    width = np.maximum(apart.max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return near, np.exp(-apart / width)


def _solve(graph: Any, known: NDArray[np.float64], *, alpha: float) -> NDArray[np.float64]:
    """Solve (I − α S) F = Y by conjugate gradients, all classes at once."""
    found = known.copy()
    rest = alpha * (graph @ found)  # Y − (I − α S) Y
    along = rest.copy()
    size = (rest * rest).sum(axis=0)
    enough = 1e-16 * np.maximum((known * known).sum(axis=0), np.finfo(float).tiny)
    for _ in range(2000):
        if (size <= enough).all():
            break
        image = along - alpha * (graph @ along)
        step = size / np.maximum((along * image).sum(axis=0), np.finfo(float).tiny)
        found += step * along
        rest -= step * image
        before, size = size, (rest * rest).sum(axis=0)
        along = rest + size / np.maximum(before, np.finfo(float).tiny) * along
    return found


def _rows_to_one(
    table: NDArray[np.float64], labels: NDArray[np.int64], classes: int
) -> NDArray[np.float64]:
    """Return rows that sum to one; the shares of released labels where no label arrived."""
    total = table.sum(axis=1, keepdims=True)
    shares = np.bincount(labels, minlength=classes) / len(labels)
    reached = total > np.finfo(float).tiny
    return np.where(reached, table / np.where(reached, total, 1.0), shares)
