"""The public inputs to ask about: in order, at random, diverse, or where a student is unsure.

Diverse inputs are those that stand for all the others: greedy facility location on a graph of near
inputs. An input covers another as far as the two are alike, and a choice of inputs is worth how
well every input is covered by the one most like it. Taking the input that adds most, again and
again, comes within 1 − 1/e of the best choice (Nemhauser, Wolsey & Fisher 1978), and the first m
taken are the same however many are wanted. Typical inputs come first, of every kind there is; odd
ones, which stand for nobody else, come last. Teachers tend to agree on the typical.

Guarantees:
    * A choice reads public features and what was released so far (which inputs were asked, which
      were answered, and the labels); there is no way for a vote to come in. ``first``, ``random``
      and ``diverse`` read public things alone, and are fixed before the votes are opened.
    * ``uncertain`` looks at earlier answers, so each query is chosen by the outcome of those
      before it. That is adaptive composition: an answer (and a check) has one data-independent
      cost for whichever input it is asked, so the costs add up as if the inputs had been fixed
      (log-moments: Abadi et al. 2016, Theorem 2.1; RDP: Mironov 2017, Proposition 1). The choice
      itself is made from outputs: post-processing (Dwork & Roth 2014, Proposition 2.1). So asking
      about better inputs costs nothing, and the plan's guarantee stands as it is.
    * An input is chosen at most once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput

IntArray = NDArray[np.int64]

NEIGHBOURS = 100  # that an input can stand for, besides those it is a neighbour of
_SAME = 1e-6  # a squared distance below this is rounding
_GRAIN = 2.0**-20  # of a likeness; sums of whole grains are exact, in whatever order
_SPREADING = 5  # neighbours to which labels spread
_LEAST = 0.05  # what an input counts whose class is beyond doubt


@dataclass(frozen=True, kw_only=True, eq=False)
class Chooser:
    """A way to choose, and all that it may look at.

    >>> corners = np.array([[1, 0.1], [1, 0.0], [1, -0.1], [0.1, 1], [0, 1]])
    >>> chooser = Chooser(how="diverse", inputs=5, features=lambda: corners)
    >>> chooser.first(2), chooser.next(3, asked=chooser.first(2))
    (array([0, 3]), array([1, 2, 4]))
    """

    how: Literal["first", "random", "diverse", "uncertain"]  # the order of asking
    inputs: int  # the number of public inputs
    features: Callable[[], NDArray[Any]]  # of all public inputs; called when first needed
    seed: int = 0  # of the random order; public

    def first(self, count: int) -> IntArray:
        """Return what is asked first; the first m are the same for every count."""
        if not 0 <= count <= self.inputs:
            raise InvalidInput(f"{count} queries are more than the {self.inputs} public inputs")
        if self.how == "first":
            return np.arange(count, dtype=np.int64)
        if self.how == "random":
            order = np.random.default_rng(self.seed).permutation(self.inputs)
            return order[:count].astype(np.int64)
        return cover(self._graph, count)

    def next(
        self,
        count: int,
        *,
        asked: IntArray,
        rows: IntArray | None = None,
        labels: IntArray | None = None,
        classes: int = 0,
    ) -> IntArray:
        """Return what is asked after ``asked``, where ``rows`` were released with ``labels``.

        ``uncertain`` weighs every input by how unsure labels are that spread from the released
        ones along the graph, and covers these weights: unsure inputs, but those that stand for
        many, and different ones. What was asked counts as covered, also where no answer came.
        """
        if self.how != "uncertain":
            return self.first(len(asked) + count)[len(asked) :]
        weights = None
        if rows is not None and labels is not None and len(rows):
            weights = self._unsure(rows, labels, classes)
        return cover(self._graph, count, weights=weights, already=asked)

    @cached_property
    def _graph(self) -> Any:
        return near_inputs(self._table)

    @cached_property
    def _spreading(self) -> Any:
        """The graph along which labels spread, the same in every round."""
        from pate.students.propagation import neighbour_graph

        table = np.asarray(self._table, dtype=np.float32).reshape(self.inputs, -1)
        return neighbour_graph(table, neighbours=_SPREADING)

    @cached_property
    def _table(self) -> NDArray[Any]:
        table = np.asarray(self.features())
        if len(table) != self.inputs:
            raise InvalidInput(f"{len(table)} features do not go with {self.inputs} public inputs")
        return table

    def _unsure(self, rows: IntArray, labels: IntArray, classes: int) -> NDArray[np.float64]:
        """Return the entropy of spread labels, from near 0 (sure) to 1 (every class alike).

        Where all are sure all count alike, a little: then the choice is a diverse one.
        """
        from pate.students.propagation import propagate

        if self.inputs < 2:
            return np.ones(self.inputs)
        table = propagate(self._table, rows, labels, classes=classes, graph=self._spreading)
        logs = np.log(np.maximum(table, np.finfo(float).tiny))
        entropy = np.asarray(-(table * logs).sum(axis=1) / np.log(classes))
        return _LEAST + (1 - _LEAST) * entropy


def near_inputs(features: ArrayLike, *, neighbours: int = NEIGHBOURS) -> Any:
    """Return how alike near inputs are, from 0 to 1: a symmetric sparse matrix, 1 with oneself.

    exp(−d²/(s_i s_j)) with d the distance of directions (2 − 2 cos for its square) and s_i how far
    an input's last neighbour is (Zelnik-Manor & Perona 2004): where inputs lie dense it takes a
    smaller distance to be different. Inputs that are not neighbours are not alike at all.

    >>> near_inputs([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], neighbours=1).toarray()
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    from scipy import sparse

    from pate.nearest_neighbours import nearest

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
    """Return the next ``count`` inputs to take, best first; fewer where no more are left.

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
    """Return features as vectors of length one."""
    from pate.nearest_neighbours import directions

    points = np.asarray(features, dtype=np.float32)
    if not np.isfinite(points).all():
        raise InvalidInput(
            "features of public inputs are NaN or infinite, so none is near another; correct the "
            "encoder or the inputs, or choose in another way than by nearness"
        )
    return directions(points)
