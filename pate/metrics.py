"""Accuracy as a share of records, with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from scipy.special import ndtri

from pate._format import format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of records with its 95 % interval."""

    accuracy: float
    low: float
    high: float
    records: int

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Self:
        """Return the share that the stage ``evaluate`` recorded."""
        return cls(**{name: recorded[name] for name in cls.__slots__})

    @classmethod
    def counted(cls, right: int, records: int) -> Self:
        """Return the share of right ones among records, with its interval (Wilson 1927).

        >>> Share.counted(90, 100).accuracy
        0.9
        """
        low, high = wilson(right, records)
        return cls(accuracy=right / records, low=low, high=high, records=records)

    def in_words(self) -> str:
        """Return the share with its interval.

        >>> Share.counted(90, 100).in_words().replace("\u202f", " ")
        '90.0 % of 100 test records right (95 % interval 82.6 % to 94.5 %)'
        """
        share, low, high = map(format_percent, (self.accuracy, self.low, self.high))
        return f"{share} of {self.records} test records right (95 % interval {low} to {high})"


def no_better(low: float, majority: float) -> bool:
    """Return whether an accuracy with this lower end does not beat always predicting one class."""
    return low <= majority


def wilson(right: float, records: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); ``right`` may be a mean of counts.

    >>> [round(end, 4) for end in wilson(90, 100)], wilson(0, 100)[0], wilson(100, 100)[1]
    ([0.8256, 0.9448], 0.0, 1.0)
    """
    z = float(ndtri(0.975))
    middle = (right + z * z / 2) / (records + z * z)
    half = z / (records + z * z) * math.sqrt(right * (records - right) / records + z * z / 4)
    return middle - half if right else 0.0, middle + half if right < records else 1.0
