"""Inputs that stand for all the others: greedy facility location on a graph of near inputs.

An input covers another as far as the two are alike, and a choice of inputs is worth how well every
input is covered by the one most like it. Taking the input that adds most, again and again, comes
within 1 − 1/e of the best choice (Nemhauser, Wolsey & Fisher 1978), and the first m taken are the
same however many are wanted. Typical inputs come first, of every kind there is; odd ones, which
stand for nobody else, come last. Teachers tend to agree on the typical.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput
from pate.nearest_neighbours import directions, nearest

NEIGHBOURS = 100  # that an input can stand for, besides those it is a neighbour of
_SAME = 1e-6  # a squared distance below this is rounding
_GRAIN = 2.0**-20  # of a likeness; sums of whole grains are exact, in whatever order


def near_inputs(features: ArrayLike, *, neighbours: int = NEIGHBOURS) -> Any:
    """How alike near inputs are, from 0 to 1: a symmetric sparse (n, n) matrix, 1 with oneself.

    exp(−d²/(s_i s_j)) with d the distance of directions (2 − 2 cos for its square) and s_i how far
    an input's last neighbour is (Zelnik-Manor & Perona 2004): where inputs lie dense it takes a
    smaller distance to be different. Inputs that are not neighbours are not alike at all.

    >>> near_inputs([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], neighbours=1).toarray()
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    from scipy import sparse

    points = _directions(features)
    count = len(points)
    near, squares = nearest(points, points, min(neighbours + 1, count), own="first")
    reach = np.sqrt(np.maximum(squares.max(axis=1), _SAME))
    alike = np.exp(-squares / (reach[:, None] * reach[near]))
    alike = np.round(alike / _GRAIN) * _GRAIN
    heads = np.repeat(np.arange(count), near.shape[1])
    graph = sparse.csr_matrix((alike.ravel(), (heads, near.ravel())), shape=(count, count))
    return graph.maximum(graph.T).tocsr()


def cover(
    graph: Any,
    count: int,
    *,
    weights: NDArray[np.float64] | None = None,
    already: ArrayLike = (),
) -> NDArray[np.int64]:
    """The next ``count`` inputs to take, best first; fewer where no more are left.

    An input counts with its weight (one, if none are given), and as covered by what was taken
    ``already``. Lazy: what an input adds only shrinks as others are taken (Minoux 1978), so few
    are looked at again. Of inputs that add the same the first comes first.

    >>> graph = near_inputs([[1, 0.1], [1, 0.0], [1, -0.1], [0.1, 1], [0, 1]], neighbours=2)
    >>> cover(graph, 2), cover(graph, 1, already=[1])
    (array([1, 3]), array([3]))
    """
    inputs = graph.shape[0]
    value = np.ones(inputs) if weights is None else np.asarray(weights, dtype=np.float64)
    covered = np.zeros(inputs)
    starts, others, likeness = graph.indptr, graph.indices, graph.data

    def take(number: int) -> None:
        part = slice(starts[number], starts[number + 1])
        near = others[part]
        covered[near] = np.maximum(covered[near], likeness[part])

    def adds(number: int) -> float:
        part = slice(starts[number], starts[number + 1])
        near = others[part]
        return float(value[near] @ np.maximum(likeness[part] - covered[near], 0.0))

    left = np.ones(inputs, dtype=bool)
    for number in np.asarray(already, dtype=np.int64):
        take(int(number))
        left[number] = False
    queue = [(-adds(number), number) for number in np.flatnonzero(left).tolist()]
    heapq.heapify(queue)
    taken: list[int] = []
    while queue and len(taken) < count:
        _, number = heapq.heappop(queue)
        now = (-adds(number), number)
        if queue and now > queue[0]:
            heapq.heappush(queue, now)
            continue
        take(number)
        taken.append(number)
    return np.array(taken, dtype=np.int64)


def _directions(features: ArrayLike) -> NDArray[np.float32]:
    """Features as vectors of length one, or the rule they break."""
    points = np.asarray(features, dtype=np.float32)
    if not np.isfinite(points).all():
        raise InvalidInput(
            "features of public inputs are NaN or infinite, so none is near another; mend the "
            "encoder or the inputs, or choose in another way than by nearness"
        )
    return directions(points)
