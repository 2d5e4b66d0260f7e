"""The result of accounting: an (ε, δ) guarantee and the relation under which it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pate._validate import check_delta, check_positive
from pate.errors import InvalidInput


class Neighbours(StrEnum):
    """The relation between two data sets that a guarantee is about."""

    REPLACE_ONE = "replace-one"  # one record (so one teacher's vote) is another
    ADD_REMOVE = "add-remove"  # one record more or less
    ZERO_OUT = "zero-out"  # one record's contribution replaced by nothing; their number is public
    AS_STATED = "as-stated"  # the relation under which the caller measured the sensitivity

    def combine(self, other: Neighbours) -> Neighbours:
        """Return the relation under which two costs hold together.

        Raises :class:`InvalidInput` for relations of which neither implies the other.

        A record that contributes nothing is a record that is not there, so whatever holds for one
        record added or removed holds where one is zeroed out.

        >>> Neighbours.ADD_REMOVE.combine(Neighbours.ZERO_OUT)
        <Neighbours.ZERO_OUT: 'zero-out'>
        """
        if self is other or other is Neighbours.AS_STATED:
            return self
        if self is Neighbours.AS_STATED:
            return other
        if {self, other} == {Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT}:
            return Neighbours.ZERO_OUT
        raise InvalidInput(
            f"costs under {self.value} and {other.value} neighbours do not add up; "
            "account for them apart, or restate one of them"
        )


class Conversion(StrEnum):
    """The bound that converts log-moments to (ε, δ)."""

    CLASSIC = "classic"  # the tail bound of Abadi et al. 2016, Theorem 2.2
    IMPROVED = "improved"  # Canonne, Kamath & Steinke 2020, Proposition 12


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

    def as_json(self) -> dict[str, Any]:
        """Return the guarantee as plain values for a JSON file."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "moment": self.moment,
            "publishable": self.publishable,
            "neighbours": self.neighbours.value,
            "conversion": self.conversion.value if self.conversion else None,
            "caveats": list(self.caveats),
        }
