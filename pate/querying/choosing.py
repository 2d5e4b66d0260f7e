"""The next inputs to ask about: in order, at random, diverse, or where a student is unsure.

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput
from pate.querying.coverage import cover, near_inputs

IntArray = NDArray[np.int64]

_SPREADING = 5  # neighbours to which labels spread
_LEAST = 0.05  # what an input counts whose class is beyond doubt


@dataclass(frozen=True, kw_only=True, eq=False)
class Chooser:
    """A way to choose, and all that it may look at. ``features`` are read when first needed.

    >>> corners = np.array([[1, 0.1], [1, 0.0], [1, -0.1], [0.1, 1], [0, 1]])
    >>> chooser = Chooser(how="diverse", inputs=5, features=lambda: corners)
    >>> chooser.first(2), chooser.next(3, asked=chooser.first(2))
    (array([0, 3]), array([1, 2, 4]))
    """

    how: Literal["first", "random", "diverse", "uncertain"]
    inputs: int  # how many public inputs there are
    features: Callable[[], NDArray[Any]]  # of the public inputs, one row for each
    seed: int = 0  # of the random order; public

    def first(self, count: int) -> IntArray:
        """What is asked before anything is known; the first m are the same for every count."""
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
        """What is asked after ``asked``, where ``rows`` were released with ``labels``.

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
        """From near 0 (sure) to 1 (every class alike): the entropy of spread labels.

        Where all are sure all count alike, a little: then the choice is a diverse one.
        """
        from pate.students.propagation import propagate

        if self.inputs < 2:
            return np.ones(self.inputs)
        table = propagate(self._table, rows, labels, classes=classes, graph=self._spreading)
        logs = np.log(np.maximum(table, np.finfo(float).tiny))
        entropy = np.asarray(-(table * logs).sum(axis=1) / np.log(classes))
        return _LEAST + (1 - _LEAST) * entropy
