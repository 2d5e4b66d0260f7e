"""What an accountant hands out: a guarantee, and between whom it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pate._validate import check_delta
from pate.errors import InvalidInput


class Neighbours(StrEnum):
    """Which two data sets the guarantee tells apart."""

    REPLACE_ONE = "replace-one"  # one record (so one teacher's vote) is another
    ADD_REMOVE = "add-remove"  # one record more or less
    ZERO_OUT = "zero-out"  # one record's contribution replaced by nothing; their number is public
    AS_STATED = "as-stated"  # the relation under which the caller measured the sensitivity

    def combine(self, other: Neighbours) -> Neighbours:
        """The relation of two costs together; mixing relations that do not nest is refused.

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
    """How log-moments become (ε, δ)."""

    CLASSIC = "classic"  # the tail bound of Abadi et al. 2016, Theorem 2.2
    IMPROVED = "improved"  # Canonne, Kamath & Steinke 2020, Proposition 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """(ε, δ), and what one must know to read it.

    Guarantees:
        * ``data_dependent`` marks an ε that was worked out from private votes. It is itself
          private: ``publishable`` is then False.
        * ``caveats`` say what the theorem needs and the run did not do (another sampler, noise that
          can be guessed). A figure with a caveat is for comparison, and not publishable.

    >>> Guarantee(epsilon=1.0, delta=1e-5).publishable
    True
    """

    epsilon: float
    delta: float
    moment: float | None = None  # the λ that won; None where no moment is involved
    data_dependent: bool = False
    neighbours: Neighbours = Neighbours.AS_STATED
    conversion: Conversion | None = None
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise InvalidInput(f"epsilon is {self.epsilon}; it must be zero or more")
        if self.moment is not None and not 0 < self.moment < math.inf:
            raise InvalidInput(f"moment is {self.moment}; it must be a finite number above zero")
        check_delta(self.delta, allow_zero=True)

    @property
    def publishable(self) -> bool:
        return not (self.data_dependent or self.caveats)

    def as_json(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "moment": self.moment,
            "publishable": self.publishable,
            "neighbours": self.neighbours.value,
            "conversion": self.conversion.value if self.conversion else None,
            "caveats": list(self.caveats),
        }
