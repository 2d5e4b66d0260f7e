"""The least noise with which so many answers stay within ε: closed forms of the accountant.

With room(λ) the total log-moment that becomes ε at λ, answers fit if their log-moments do at *some*
λ of the accountant's grid. Gaussian costs are all ρ·λ(λ+1), so one number, the largest ρ, says what
fits. The noise of a single kind of answer is found by its mechanism.

Guarantees:
    Every noise is rounded up, and a plan is measured again by the accountant before it is shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pate._validate import check_delta
from pate.accounting import Conversion
from pate.accounting.moments import DEFAULT_MOMENTS, FloatArray, log_moment_at
from pate.errors import InvalidInput
from pate.mechanisms import Mechanism

_DIGITS = 4  # of a noise, in a recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """(ε, δ), and how it is worked out."""

    epsilon: float
    delta: float
    conversion: Conversion = Conversion.IMPROVED

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InvalidInput(f"epsilon is {self.epsilon:g}; it must be finite and above zero")
        check_delta(self.delta)
        if not self.rho > 0:
            raise InvalidInput(
                f"epsilon {self.epsilon:g} at delta {self.delta:g} pays for nothing; raise one"
            )

    @property
    def rho(self) -> float:
        """The largest ρ for which a cost of ρ·λ(λ+1) is within the budget.

        >>> budget = Budget(epsilon=1.0, delta=1e-5)
        >>> answers = 100
        >>> round(math.sqrt(answers / budget.rho), 1)  # σ of GNMax, in votes
        57.2
        """
        moments, room = self._room()
        return float(np.max(room / (moments * (moments + 1))))

    def least_noise(self, kind: type[Mechanism], answers: int) -> float:
        """The least noise of a mechanism with which so many answers fit."""
        moments, room = self._room()
        return kind.least_noise(answers, moments=moments, room=room)

    def gaussian(self, answers: float, *, share: float = 1.0) -> float:
        """The least σ with which so many answers fit into a share of the budget."""
        return math.sqrt(answers / (share * self.rho))

    def checks(self, queries: int, *, share: float) -> float:
        """The least σ₁ with which so many threshold checks fit into a share of the budget."""
        return math.sqrt(queries / (2 * share * self.rho))

    def _room(self) -> tuple[FloatArray, FloatArray]:
        moments = DEFAULT_MOMENTS
        return moments, log_moment_at(
            moments, self.epsilon, delta=self.delta, conversion=self.conversion
        )


def rounded_up(noise: float) -> float:
    """A noise with few digits that hides no less.

    >>> rounded_up(67.4812), rounded_up(123456.0)
    (67.49, 123500.0)
    """
    unit = 10.0 ** (math.floor(math.log10(noise)) - _DIGITS + 1)
    return float(f"{math.ceil(noise * (1 + 1e-9) / unit) * unit:.{_DIGITS + 8}g}")
