"""The minimiser of a regularised risk, to a gradient so small that the rest is accounted for.

    F(W) = (1/n) Σ loss(W xᵢ) + Λ/2 ‖W‖² + ⟨tilt, W⟩

The theorems are about exact minimisers, which no computer finds. F is Λ-strongly convex, so
‖∇F(W) − ∇F(W*)‖ ≥ Λ ‖W − W*‖: where ‖∇F(W)‖ ≤ τ, the minimiser is within τ/Λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from dpsgd.convex.inputs import FloatArray
from dpsgd.convex.losses import ScoreLoss
from pate.errors import ConditionsFail

RELATIVE_TOLERANCE = 1e-11  # τ over the largest gradient of one record (and the tilt)

_MOST_STEPS = 500
_MOST_TRIALS = 100


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegularisedRisk:
    """F, given by its gradient and its Hessian; weights are flat vectors."""

    rows: FloatArray
    loss: ScoreLoss
    regularisation: float
    tilt: FloatArray | None = None

    @property
    def size(self) -> int:
        return int(self.loss.outputs * self.rows.shape[1])

    def _scores(self, flat: FloatArray) -> FloatArray:
        return self.rows @ flat.reshape(self.loss.outputs, -1).T

    def gradient(self, flat: FloatArray) -> FloatArray:
        mean = self.loss.slopes(self._scores(flat)).T @ self.rows / len(self.rows)
        total = mean.ravel() + self.regularisation * flat
        return total if self.tilt is None else total + self.tilt

    def hessian(self, flat: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Return a function that multiplies by the Hessian at ``flat``, which is never formed."""
        bend = self.loss.bend(self._scores(flat))

        def product(vector: FloatArray) -> FloatArray:
            mean = bend(self._scores(vector)).T @ self.rows / len(self.rows)
            return mean.ravel() + self.regularisation * vector

        return product


def minimise(risk: RegularisedRisk, *, tolerance: float) -> FloatArray:
    """Return a flat W with ‖∇F(W)‖ ≤ ``tolerance``; raise ``ConditionsFail`` if none is found.

    Newton's method with conjugate gradients, and without values of F, which rounding blurs long
    before its gradient. A full step is taken where it halves the smallest gradient so far, which
    can happen only so often; else the step goes downhill, as far as the slope along it halves.

    Guarantees:
        The computed gradient must be below half the tolerance; the other half is for rounding in
        the gradient itself. Numbers that are not finite end in the error; no warning, which
        would reveal the data, comes before it.
    """
    with np.errstate(all="ignore"):
        return _newton(risk, tolerance=tolerance)


def _newton(risk: RegularisedRisk, *, tolerance: float) -> FloatArray:
    flat = np.zeros(risk.size)
    gradient = risk.gradient(flat)
    first = norm = smallest = float(np.linalg.norm(gradient))
    for _ in range(_MOST_STEPS):
        if norm <= tolerance / 2:
            return flat
        smallest = min(smallest, norm)
        forcing = min(0.1, float(np.sqrt(norm / first)))
        product = LinearOperator((risk.size, risk.size), matvec=risk.hessian(flat), dtype=float)
        direction, _ = cg(product, -gradient, rtol=forcing, maxiter=10 * risk.size + 100)
        trial = flat + direction
        there = risk.gradient(trial)
        if float(np.linalg.norm(there)) > smallest / 2:
            trial, there = _downhill(risk, flat, direction, slope=float(gradient @ direction))
        flat, gradient, norm = trial, there, float(np.linalg.norm(there))
    raise ConditionsFail(_STUCK)


def _downhill(
    risk: RegularisedRisk, flat: FloatArray, direction: FloatArray, *, slope: float
) -> tuple[FloatArray, FloatArray]:
    """Return the point along a direction with a slope between half the initial one and zero.

    F is convex, so its slope along a line only rises, and F falls all the way to that point.
    """
    low, high, step = 0.0, math.inf, 1.0
    for _ in range(_MOST_TRIALS):
        trial = flat + step * direction
        there = risk.gradient(trial)
        along = float(there @ direction)
        if slope / 2 <= along <= 0:
            return trial, there
        low, high = (step, high) if along < 0 else (low, step)
        step = 2 * step if high == math.inf else (low + high) / 2
    raise ConditionsFail(_STUCK)


_STUCK = (
    "the solver did not come close enough to the minimiser for the theorem to hold, and nothing "
    "was released; raise the regularisation"
)
