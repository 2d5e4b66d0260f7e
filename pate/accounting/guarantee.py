"""The result of accounting: an (ε, δ) guarantee and the relation under which it holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pate._format import describe_neighbours, format_cost, strength
from pate._html import block
from pate._validate import check_delta, check_positive
from pate.errors import InvalidInput


class Neighbours(StrEnum):
    """The relation between two data sets that a guarantee is about."""

    REPLACE_ONE = "replace-one"  # one record (so one teacher's vote) is another
    ADD_REMOVE = "add-remove"  # one record more or less
    ZERO_OUT = "zero-out"  # one record's contribution replaced by nothing; their number is public
    USER_ADD_REMOVE = "user-add-remove"  # one user more or less, with all of their records
    USER_ZERO_OUT = "user-zero-out"  # one user contributes nothing; the number of users is public
    LONE_RECORD = "lone-record"  # a user with one record contributes nothing; so costs of both hold
    AS_STATED = "as-stated"  # the relation under which the caller measured the sensitivity

    @property
    def of_users(self) -> bool:
        """Whether it is about users and all of their records, or about costs that are."""
        return self in (
            Neighbours.USER_ADD_REMOVE,
            Neighbours.USER_ZERO_OUT,
            Neighbours.LONE_RECORD,
        )

    def combine(self, other: Neighbours) -> Neighbours:
        """Return the relation under which two costs hold together.

        Raises :class:`InvalidInput` for relations without one that both imply.

        A record that contributes nothing is a record that is not there, so whatever holds for one
        record added or removed holds where one is zeroed out. The same is true of users. A cost for
        one user does not bound that of *one* record among several of a user: without it, their
        clipped gradient may point the other way. Where a user has one record, both are the same.

        >>> Neighbours.ADD_REMOVE.combine(Neighbours.ZERO_OUT)
        <Neighbours.ZERO_OUT: 'zero-out'>
        >>> Neighbours.ADD_REMOVE.combine(Neighbours.USER_ADD_REMOVE)
        <Neighbours.LONE_RECORD: 'lone-record'>
        """
        if self is other or other is Neighbours.AS_STATED:
            return self
        if self is Neighbours.AS_STATED:
            return other
        implied = (self, *_IMPLIED.get(self, ()))
        for each in implied:  # the strongest first
            if each is other or each in _IMPLIED.get(other, ()):
                return each
        raise InvalidInput(
            f"costs under {self.value} and {other.value} neighbours do not add up; "
            "account for them apart, or restate one of them"
        )


_IMPLIED = {  # by each relation, the strongest first
    Neighbours.ADD_REMOVE: (Neighbours.ZERO_OUT, Neighbours.LONE_RECORD),
    Neighbours.ZERO_OUT: (Neighbours.LONE_RECORD,),
    Neighbours.USER_ADD_REMOVE: (Neighbours.USER_ZERO_OUT, Neighbours.LONE_RECORD),
    Neighbours.USER_ZERO_OUT: (Neighbours.LONE_RECORD,),
}


class Conversion(StrEnum):
    """The bound that converts log-moments to (ε, δ)."""

    CLASSIC = "classic"  # the tail bound of Abadi et al. 2016, Theorem 2.2
    IMPROVED = "improved"  # Canonne, Kamath & Steinke 2020, Proposition 12


class Analysis(StrEnum):
    """The bounds that give the data-independent cost of votes."""

    PUBLISHED = "published"  # as in the papers: as if the noised counts left
    TIGHT = "tight"  # of what leaves, an index or a bit (docs/proofs/noisy-argmax.md)


class Accountant(StrEnum):
    """The rule of composition behind an ε."""

    MOMENTS = "moments"  # log-moments, converted
    GAUSSIAN = "gaussian"  # the exact composition of Gaussian mechanisms
    BOUNDED_RANGE = "bounded-range"  # the optimal one of exponential mechanisms, fixed in advance
    ADAPTIVE_RANGE = "adaptive-bounded-range"  # the same, where answers decide what is asked next
    PURE = "pure"  # the sum of ε of (ε, 0)-DP mechanisms
    PLD = "pld"  # privacy loss distributions


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """An (ε, δ) differential privacy guarantee, with what is needed to read it.

    Parameters
    ----------
    epsilon
        The ε; infinite where nothing is guaranteed.
    delta
        The δ: at least 0 and below 1.
    moment
        The λ at which the ε was reached; None where no log-moment is involved.
    data_dependent
        The ε was computed from private votes.
    neighbours
        The relation between data sets under which the guarantee holds.
    conversion
        The bound that converted log-moments to ε; None where no log-moment is involved.
    analysis
        The bounds behind the log-moments of votes; published ones where there are no votes.
    accountant
        The rule of composition that gave the ε.
    caveats
        Conditions of the theorem that the run did not meet (another sampler, predictable noise).
    notes
        Remarks to read with the guarantee, which do not limit it.

    Guarantees:
        A data-dependent ε is itself private, and an ε with a caveat is for comparison only:
        ``publishable`` is False for both.

    >>> Guarantee(epsilon=1.0, delta=1e-5).publishable
    True
    """

    epsilon: float
    delta: float
    moment: float | None = None
    data_dependent: bool = False
    neighbours: Neighbours = Neighbours.AS_STATED
    conversion: Conversion | None = None
    analysis: Analysis = Analysis.PUBLISHED
    accountant: Accountant = Accountant.MOMENTS
    caveats: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise InvalidInput(f"epsilon is {self.epsilon}; it must be zero or more")
        if self.moment is not None:
            check_positive("moment", self.moment)
        check_delta(self.delta, allow_zero=True)

    @property
    def publishable(self) -> bool:
        """True if the ε reveals nothing private and every condition of its theorem is met."""
        return not (self.data_dependent or self.caveats)

    def _repr_html_(self) -> str:
        return self.html("Guarantee")

    def html(
        self, title: str, rows: Iterable[tuple[str, str]] = (), *, protects: str | None = None
    ) -> str:
        """Return the guarantee of something released, and more of it in ``rows``, for a notebook.

        ``protects`` is between whom it holds, in the words of a run. An ε that was computed from
        private votes is not shown: notebooks are shared.
        """
        cost = format_cost(self.epsilon, self.delta)
        if self.data_dependent:
            cost = "not shown: this ε was computed from private votes, and is private itself"
        elif self.publishable:
            cost += f" ({strength(self.epsilon)[0]})"
        verdict = "may be published" if self.publishable else "do not publish"
        if any("not private" in caveat for caveat in self.caveats):
            verdict = "NOT PRIVATE"
        if protects is None:
            protects = describe_neighbours(self.neighbours.value)
        return block(
            title,
            [("cost", cost), ("protects", protects), *rows],
            verdict=(verdict, self.publishable),
            notes=[f"{text[:1].upper()}{text[1:]}." for text in (*self.caveats, *self.notes)],
        )

    def as_json(self) -> dict[str, Any]:
        """Return the guarantee as plain values for a JSON file.

        The published analysis and the moments accountant go unsaid: files that were written before
        there were others are then read as they were meant.
        """
        said = {"analysis": self.analysis.value} if self.analysis is Analysis.TIGHT else {}
        if self.accountant is not Accountant.MOMENTS:
            said["accountant"] = self.accountant.value
        return said | {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "moment": self.moment,
            "publishable": self.publishable,
            "neighbours": self.neighbours.value,
            "conversion": self.conversion.value if self.conversion else None,
            "caveats": list(self.caveats),
        }
