"""What a mechanism is asked for, and what it hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pate.accounting import Event, Repeated

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def no_queries() -> IntArray:
    """An empty list of queries."""
    return np.empty(0, dtype=np.int64)


class HasCounts(Protocol):
    """What a mechanism reads of the votes (:class:`pate.votes.Votes` has it). PRIVATE."""

    @property
    def counts(self) -> IntArray: ...  # (queries, classes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """What leaves a mechanism, once its events are paid for.

    Guarantees:
        * Labels, which queries they belong to and how many were looked at are the mechanism's
          output, covered by ``events``. Counts, noise and noised counts are not in here.
        * ``events`` hold public parameters and counts only. Nothing that happened is missing from
          them; kinds that did not happen are left out, so nothing asked is no events.
        * Before it is paid for a release is private, so its ``repr`` shows no label.
    """

    labels: IntArray = field(repr=False)  # one per answered query
    answered: IntArray = field(repr=False)  # their ascending indices into the votes given
    events: tuple[Event, ...]
    asked: int  # queries looked at, from the first on: answered, or checked and left
    # Where the student keeps its own label (Interactive-GNMax), and which label that is.
    kept: IntArray = field(default_factory=no_queries, repr=False)
    kept_labels: IntArray = field(default_factory=no_queries, repr=False)


class Mechanism(Protocol):
    """A way to answer queries from votes. A closed, reviewed set: an answer carries its cost."""

    def release(
        self, votes: HasCounts, *, rng: np.random.Generator, most_answers: int | None = None
    ) -> Release:
        """Answers queries in their order until all were asked or ``most_answers`` were given."""
        ...

    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        """All that asking at most ``queries`` and answering at most ``answers`` can cause."""
        ...


def happened(*events: tuple[Event, int]) -> tuple[Event, ...]:
    """Events with how often they happened, without those that did not."""
    return tuple(Repeated(event, count) for event, count in events if count)
