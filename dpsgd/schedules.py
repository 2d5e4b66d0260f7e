"""Schedules: numbers by step, for learning rates, clipping norms and noise multipliers.

A schedule is fixed before training and depends on the step alone, never on data: it is public, and
so is every value it takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from pate._validate import check_positive, check_whole
from pate.errors import InvalidInput


@runtime_checkable
class Schedule(Protocol):
    """A function of the step, with a short description."""

    def __call__(self, step: int) -> float: ...

    def describe(self) -> str: ...


@final
@dataclass(frozen=True, slots=True)
class Constant:
    """The same value at every step.

    Parameters
    ----------
    value : float
        The value, above zero.

    >>> Constant(0.1)(7)
    0.1
    """

    value: float

    def __post_init__(self) -> None:
        check_positive("the value of a schedule", self.value)

    def __call__(self, step: int) -> float:
        return self.value

    def describe(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True, slots=True)
class _Transition(ABC):
    """From ``start`` to ``end`` over ``steps``, then constant."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        check_positive("the first value of a schedule", self.start)
        check_positive("the last value of a schedule", self.end)
        check_whole("the number of steps of a schedule", self.steps, least=1)

    def __call__(self, step: int) -> float:
        return self.end if step >= self.steps else self.at(step / self.steps)

    @abstractmethod
    def at(self, share: float) -> float:
        """Return the value after this share of the steps."""

    def describe(self) -> str:
        return f"{self.start:g} to {self.end:g} over {self.steps} steps"


@final
@dataclass(frozen=True, slots=True)
class Linear(_Transition):
    """A straight line from ``start`` to ``end`` over ``steps``, then constant.

    Abadi et al. 2016, Section 5.2, lower the learning rate from 0.1 to 0.052 in this way.

    Parameters
    ----------
    start, end : float
        The first and the last value, above zero.
    steps : int
        The number of steps between them.

    >>> rate = Linear(0.5, 0.25, steps=10)
    >>> rate(0), rate(5), rate(10), rate(99)
    (0.5, 0.375, 0.25, 0.25)
    """

    def at(self, share: float) -> float:
        return self.start + share * (self.end - self.start)


@final
@dataclass(frozen=True, slots=True)
class Exponential(_Transition):
    """From ``start`` to ``end`` by equal factors over ``steps``, then constant.

    Parameters
    ----------
    start, end : float
        The first and the last value, above zero.
    steps : int
        The number of steps between them.

    >>> Exponential(4.0, 1.0, steps=2)(1)
    2.0
    """

    def at(self, share: float) -> float:
        return self.start * math.exp(share * math.log(self.end / self.start))

    def describe(self) -> str:
        return f"{self.start:g} to {self.end:g} by equal factors over {self.steps} steps"


@final
@dataclass(frozen=True, slots=True)
class Piecewise:
    """Constant pieces.

    Parameters
    ----------
    pieces : tuple of (int, float)
        Pairs of a first step and the value from there on; the first starts at step 0.

    >>> Piecewise(((0, 1.0), (100, 0.5)))(99), Piecewise(((0, 1.0), (100, 0.5)))(100)
    (1.0, 0.5)
    """

    pieces: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        firsts = [first for first, _ in self.pieces]
        if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
            raise InvalidInput("the pieces of a schedule start at step 0, each later than the last")
        for _, value in self.pieces:
            check_positive("a value of a schedule", value)

    def __call__(self, step: int) -> float:
        return next(value for first, value in reversed(self.pieces) if step >= first)

    def describe(self) -> str:
        return ", ".join(f"{value:g} from step {first}" for first, value in self.pieces)


def as_schedule(value: float | Schedule) -> Schedule:
    """Return a number as a constant schedule; a schedule as it is."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Constant(float(value))
    if isinstance(value, Schedule):
        return value
    raise InvalidInput(f"{type(value).__name__} is neither a number nor a schedule")
