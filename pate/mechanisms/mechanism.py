"""The protocol of a mechanism: everything that is particular to one way of answering from votes."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import Analysis, Event, Ledger, LogMoments, Repeated
from pate.accounting.smooth import SensitiveCost
from pate.errors import ConditionsFail
from pate.votes import Votes

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def no_queries() -> IntArray:
    """Return an empty list of queries."""
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """The output of a mechanism, to be published once its events are paid for.

    Attributes
    ----------
    labels : ndarray of int64
        One label per answered query.
    answered : ndarray of int64
        The ascending indices of the answered queries into the votes given.
    events : tuple of Event
        What happened, as :func:`pate.compose` and a ledger take it.
    asked : int
        Queries looked at, from the first on: answered, or checked and left.
    kept, kept_labels : ndarray of int64
        Queries on which the student keeps its own label, and these labels (Interactive-GNMax).

    Guarantees:
        * Labels, which queries they belong to and how many were looked at are the mechanism's
          output, covered by ``events``. Counts, noise and noised counts are not in here.
        * ``events`` hold public parameters and counts only. Nothing that happened is missing from
          them; kinds that did not happen are left out, so nothing asked is no events.
        * Before it is paid for a release is private, so its ``repr`` shows no label.
    """

    labels: IntArray = field(repr=False)
    answered: IntArray = field(repr=False)
    events: tuple[Event, ...]
    asked: int
    kept: IntArray = field(default_factory=no_queries, repr=False)
    kept_labels: IntArray = field(default_factory=no_queries, repr=False)


class BaseMechanism(ABC):
    """The keys and the names of a mechanism, whatever it releases.

    A mechanism is a frozen dataclass whose fields are its public parameters; they are also its
    keys in ``[aggregate]`` of a recipe. Fields without a default are required there.

    Attributes
    ----------
    name : str
        The value of ``aggregate.mechanism`` in a recipe.
    title : str
        The name as the literature writes it.
    takes : str
        The votes that it takes, as ``by`` in ``[votes]`` names them.
    calibrated : str or None
        The key whose value can be found for a target ε: more of it never costs more, and with it
        every answer causes one and the same event. None if there is no such key.
    checks : bool
        Whether a noisy check precedes each answer, so that a query may cost and not be answered.
    uses_student : bool
        Whether queries are asked in rounds and compared with the predictions of a student.
    """

    __slots__ = ()

    name: ClassVar[str]
    title: ClassVar[str]
    takes: ClassVar[str]
    calibrated: ClassVar[str | None] = None
    checks: ClassVar[bool] = False
    uses_student: ClassVar[bool] = False

    @classmethod
    def required_keys(cls) -> tuple[str, ...]:
        """Return the recipe keys without a default, in the order they are written."""
        return tuple(each.name for each in _parameters(cls) if not _has_default(each))

    @classmethod
    def optional_keys(cls) -> tuple[str, ...]:
        """Return the recipe keys with a default."""
        return tuple(each.name for each in _parameters(cls) if _has_default(each))

    @classmethod
    def from_keys(cls, values: dict[str, Any]) -> Self:
        """Return the mechanism with these recipe keys; a whole number may stand for a float."""
        decimal = {each.name for each in _parameters(cls) if each.type in ("float", float)}
        return cls(
            **{
                key: float(value) if key in decimal and type(value) is int else value
                for key, value in values.items()
            }
        )

    @abstractmethod
    def formula(self) -> str:
        """Return the answer in symbols, with its parameters."""

    @abstractmethod
    def settings(self) -> str:
        """Return the parameters in a few characters, such as ``σ 40``."""


class Mechanism(BaseMechanism):
    """One way to answer queries from votes, and all that other code needs to know about it.

    To add a mechanism, write one frozen dataclass and add it to
    :data:`pate.mechanisms.MECHANISMS`: recipes, plans, releases, accounting, reports and cards take
    it from there. The attributes are those of :class:`BaseMechanism`.
    """

    __slots__ = ()

    takes: ClassVar[str] = "teachers"

    @abstractmethod
    def release(
        self,
        votes: Votes,
        *,
        rng: np.random.Generator,
        most_answers: int | None = None,
        student: FloatArray | None = None,
        teachers: int | None = None,
    ) -> Release:
        """Answer queries in their order until all were asked or ``most_answers`` were given.

        Parameters
        ----------
        votes : Votes
            The teachers' counts, (queries, classes). Private; left as they are.
        rng : numpy.random.Generator
            The source of the noise: :func:`pate.secure_generator` outside tests.
        most_answers : int, optional
            The most answers to give; all queries are asked if it is left out.
        student : ndarray of float, optional
            A student's probabilities, of the votes' shape, where the mechanism ``uses_student``.
        teachers : int, optional
            The number of teachers trained; needed with ``student`` where some abstained.

        Returns
        -------
        Release
            Labels, the queries they answer, and the events to pay for.

        Raises
        ------
        InvalidInput
            If the votes are not whole counts of two or more classes, or an argument breaks a rule.
        """

    def release_once(
        self, votes: Votes, *, ledger: Ledger, name: str, most_answers: int | None = None
    ) -> Release:
        """Draw, charge and store answers in one operation: :meth:`pate.Ledger.release`."""
        from pate.mechanisms.charged import release_once

        return release_once(self, votes, ledger=ledger, name=name, most_answers=most_answers)

    @abstractmethod
    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        """Return all that asking ``queries`` and answering ``answers`` at most can cause."""

    @abstractmethod
    def data_dependent_cost(
        self,
        counts: IntArray,
        *,
        moments: ArrayLike | None = None,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
        analysis: Analysis = Analysis.TIGHT,
    ) -> LogMoments:
        """Return the log-moments of a release, worked out from its votes. PRIVATE.

        Parameters
        ----------
        counts : ndarray of int64
            Votes on the queries that were asked, (queries, classes); not empty.
        moments : array_like, optional
            The λ to compute at; the accountant's grid if left out.
        answered : array_like of bool, optional
            Which of the queries were answered. Left out, each pays in expectation: for planning.
        baseline : ndarray of float, optional
            What checks took off the counts (:func:`~pate.mechanisms.student_baseline`).
        analysis : Analysis, default tight
            The bounds of the data-independent cost, which no answer exceeds.
        """

    @abstractmethod
    def sensitive_cost(
        self,
        counts: IntArray,
        *,
        order: float,
        teachers: int,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> SensitiveCost:
        """Return the data-dependent cost at one Rényi order with its local sensitivity. PRIVATE.

        ``teachers`` is their public number and ``answered`` the mask of what was answered, all if
        left out. Chances of an answer in its place are for planning on public votes only: how they
        change with a vote is not covered.

        Raises
        ------
        ConditionsFail, InvalidInput
            If no bound of the sensitivity is known at these settings. Whether one is depends on
            public settings alone, and so does the message.
        """

    @abstractmethod
    def win_chances(self, leads: FloatArray) -> FloatArray:
        """Return for each query the chance that its answer, if there is one, is a given class.

        ``leads`` holds how many votes that class is ahead of every other, (queries, classes − 1).
        """

    def answer_chances(self, counts: IntArray) -> FloatArray:
        """Return for each query the chance to be answered: one, unless a check comes first."""
        return np.ones(len(counts))

    def neighbour_chances(
        self, counts: IntArray, source: IntArray, target: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the chances of every outcome for votes, and for one neighbour of each. PRIVATE.

        ``source`` and ``target`` hold, for each row of ``counts``, the class that a teacher votes
        for and the one that it votes for in the neighbour; −1 is an abstention. Both results are
        (queries, outcomes): the classes, and a last column for no answer where a check comes first.

        Raises
        ------
        ConditionsFail
            If the chances are not known in closed form or by quadrature.
        """
        raise ConditionsFail(f"the exact chances of the outcomes of {self.title} are not known")

    def check_reachable(self, *, teachers: int) -> None:
        """Raise InvalidInput if so many teachers can never cause an answer."""

    @property
    def answer_event(self) -> Event:
        """The event of one answer, of a mechanism with a ``calibrated`` key."""
        (event,) = self.caps(queries=1, answers=1)
        return event.event if isinstance(event, Repeated) else event


def moved_counts(counts: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """Return votes after one teacher's vote went from ``source`` to ``target``; −1 abstains.

    >>> moved_counts(np.array([[5, 5], [5, 5]]), np.array([0, 1]), np.array([1, -1])).tolist()
    [[4, 6], [5, 4]]
    """
    moved = np.array(counts, dtype=np.int64)
    for classes, change in ((source, -1), (target, 1)):
        rows = np.flatnonzero(np.asarray(classes) >= 0)
        moved[rows, np.asarray(classes)[rows]] += change
    return moved


def happened(*events: tuple[Event, int]) -> tuple[Event, ...]:
    """Return events with how often they happened, without those that did not."""
    return tuple(Repeated(event, count) for event, count in events if count)


def _parameters(kind: type[BaseMechanism]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]


def _has_default(parameter: dataclasses.Field[Any]) -> bool:
    return parameter.default is not dataclasses.MISSING
