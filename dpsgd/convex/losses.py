"""Losses of a margin, their gradients, and the minimiser of their regularised risk.

The margin of a record is m = y·wᵀx with y = ±1. A loss is given by its derivative alone: no learner
in this package needs its value. Weights W have one row for each output; the scores of a record are
Wx, and the gradient of its loss is (slope of the loss at its scores) xᵀ, of Frobenius norm at most
``lipschitz``·‖x‖.

    F(W) = (1/n) Σ loss(W xᵢ) + Λ/2 ‖W‖² + ⟨tilt, W⟩

The theorems are about exact minimisers of F, which no computer finds. F is Λ-strongly convex, so
‖∇F(W) − ∇F(W*)‖ ≥ Λ ‖W − W*‖: where ‖∇F(W)‖ ≤ τ, the minimiser is within τ/Λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit, softmax

from pate._validate import LARGEST, SMALLEST, check_positive
from pate.errors import ConditionsFail, InvalidInput

if TYPE_CHECKING:
    from dpsgd.convex.estimator import BoundedRecords

FloatArray = NDArray[np.float64]

RELATIVE_TOLERANCE = 1e-11  # τ over the largest gradient of one record (and the tilt)

_MOST_STEPS = 500
_MOST_TRIALS = 100
_STUCK = (
    "the solver did not come close enough to the minimiser for the theorem to hold, and nothing "
    "was released; raise the regularisation"
)
_SLACK = 1e-9  # of the checks: rounding of a derivative breaks no condition


class MarginLoss(Protocol):
    """A loss φ of the margin. Built in: :class:`Logistic`, :class:`Huber`, :class:`Hinge`.

    A user's own loss has the members below. Make it a plain value, since scikit-learn's ``clone``
    copies it.

    Attributes
    ----------
    convex : bool
        True for a convex φ; any other value is refused.
    lipschitz : float
        The largest |φ′|.
    smoothness : float
        A Lipschitz constant of φ′ (the largest φ″); infinite where φ′ jumps.
    """

    @property
    def convex(self) -> bool: ...
    @property
    def lipschitz(self) -> float: ...
    @property
    def smoothness(self) -> float: ...

    def derivative(self, margins: FloatArray) -> FloatArray:
        """φ′, never above zero: a larger margin is never worse."""

    def curvature(self, margins: FloatArray) -> FloatArray:
        """φ″, where it exists; either one-sided value at a kink of φ′."""


@final
@dataclass(frozen=True, slots=True)
class Logistic:
    """log(1 + e^−m): φ′ = −1/(1 + e^m), φ″ ≤ 1/4.

    >>> float(Logistic().derivative(np.zeros(1))[0])
    -0.5
    """

    convex = True
    lipschitz = 1.0
    smoothness = 0.25

    def derivative(self, margins: FloatArray) -> FloatArray:
        return -np.asarray(expit(-margins))

    def curvature(self, margins: FloatArray) -> FloatArray:
        return np.asarray(expit(margins) * expit(-margins))


@final
@dataclass(frozen=True, slots=True)
class Huber:
    """The hinge with its corner rounded over ``width``; Chaudhuri et al. 2011, Section 3.4.2.

    0 for m > 1 + h, 1 − m for m < 1 − h, and (1 + h − m)²/(4h) between: φ″ ≤ 1/(2h).

    Parameters
    ----------
    width : float, default=0.5
        h: half the width of the rounded corner, above zero.

    >>> Huber(width=0.25).smoothness
    2.0
    """

    width: float = 0.5
    convex = True
    lipschitz = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", check_positive("width", self.width))

    @property
    def smoothness(self) -> float:
        return 1 / (2 * self.width)

    def derivative(self, margins: FloatArray) -> FloatArray:
        return -np.clip((1 + self.width - margins) / (2 * self.width), 0.0, 1.0)

    def curvature(self, margins: FloatArray) -> FloatArray:
        return np.where(np.abs(margins - 1) <= self.width, self.smoothness, 0.0)


@final
@dataclass(frozen=True, slots=True)
class Hinge:
    """max(0, 1 − m): its derivative jumps at 1, so only gradient descent can use it.

    >>> Hinge().derivative(np.array([0.0, 2.0])).tolist()
    [-1.0, -0.0]
    """

    convex = True
    lipschitz = 1.0
    smoothness = math.inf

    def derivative(self, margins: FloatArray) -> FloatArray:
        return -(margins < 1).astype(np.float64)

    def curvature(self, margins: FloatArray) -> FloatArray:
        return np.zeros_like(margins)


_BUILT_IN: dict[str, type[Logistic] | type[Huber] | type[Hinge]] = {
    "logistic": Logistic,
    "huber": Huber,
    "hinge": Hinge,
}


def as_loss(loss: str | MarginLoss, *, smooth: bool) -> MarginLoss:
    """Return the loss of this name, or the given one, after checking what it declares.

    Guarantees:
        The theorems need a convex φ with |φ′| ≤ ``lipschitz``, and perturbation needs a φ′ that
        is Lipschitz (``smooth``). A declaration that fails at one of some thousand margins is
        refused; one that holds at all of them is trusted: no finite check can prove it.

    >>> as_loss("hinge", smooth=True)
    Traceback (most recent call last):
    ...
    pate.errors.ConditionsFail: the derivative of the loss jumps (its smoothness is infinite), ...
    """
    if isinstance(loss, str):
        if loss not in _BUILT_IN:
            names = ", ".join(_BUILT_IN)
            raise InvalidInput(f"the loss is {loss!r}; it must be one of {names}, or an object")
        chosen: MarginLoss = _BUILT_IN[loss]()
    else:
        chosen = loss
        missing = [
            name
            for name in ("convex", "lipschitz", "smoothness", "derivative", "curvature")
            if not hasattr(loss, name)
        ]
        if missing:
            raise InvalidInput(f"the loss declares no {', '.join(missing)}; see MarginLoss")
    _require(chosen, smooth=smooth)
    return chosen


def _require(loss: MarginLoss, *, smooth: bool) -> None:
    if loss.convex is not True:
        raise ConditionsFail(
            "the loss does not declare itself convex; private convex learning proves nothing for it"
        )
    lipschitz, smoothness = float(loss.lipschitz), float(loss.smoothness)
    if not SMALLEST <= lipschitz <= LARGEST:
        raise ConditionsFail(
            f"the loss has lipschitz {lipschitz}; one record's influence is bounded only by a "
            "finite number above zero, neither tiny nor huge"
        )
    if smooth and not 0 < smoothness < math.inf:
        raise ConditionsFail(
            "the derivative of the loss jumps (its smoothness is infinite), and the theorem needs "
            "a Lipschitz one; take 'huber' instead of 'hinge', or NoisyGradientDescent"
        )
    margins = np.unique(np.concatenate([np.linspace(-60, 60, 2401), np.linspace(-3, 3, 2401)]))
    slopes = np.asarray(loss.derivative(margins), dtype=np.float64)
    if slopes.shape != margins.shape or not np.isfinite(slopes).all():
        raise ConditionsFail("the derivative of the loss is not a finite number at every margin")
    room = _SLACK * lipschitz
    if slopes.max() > room or slopes.min() < -lipschitz - room:
        raise ConditionsFail(
            f"the derivative of the loss leaves [-{lipschitz:g}, 0]; declare a larger "
            "lipschitz, and let the loss fall with the margin"
        )
    rises = np.diff(slopes)
    if rises.min() < -room:
        raise ConditionsFail("the derivative of the loss falls somewhere: the loss is not convex")
    if smooth:
        bends = np.asarray(loss.curvature(margins), dtype=np.float64)
        most = smoothness * (1 + _SLACK)
        steep = (rises > most * np.diff(margins) + room).any()
        if bends.shape != margins.shape or steep or not ((bends >= 0) & (bends <= most)).all():
            raise ConditionsFail(
                f"the curvature of the loss leaves [0, {smoothness:g}]; declare a larger smoothness"
            )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Margins:
    """One margin for each output; ``signs`` (records, outputs) are the ±1 labels.

    One output is binary learning. One output per class is one-against-the-rest, learnt jointly: K
    slopes of at most L each have norm √K·L.
    """

    loss: MarginLoss
    signs: FloatArray

    @property
    def outputs(self) -> int:
        return int(self.signs.shape[1])

    @property
    def lipschitz(self) -> float:
        return float(self.loss.lipschitz) * math.sqrt(self.outputs)

    def slopes(self, scores: FloatArray) -> FloatArray:
        return self.signs * self.loss.derivative(self.signs * scores)

    def bend(self, scores: FloatArray) -> Callable[[FloatArray], FloatArray]:
        curvature = self.loss.curvature(self.signs * scores)
        return lambda change: curvature * change


@final
@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """Multinomial logistic loss: log Σ_k e^{s_k} − s_y.

    The slope is p − e_y with p = softmax(s). Its squared norm is
    (1 − p_y)² + Σ_{k≠y} p_k² ≤ 2 (1 − p_y)² ≤ 2, since Σ_{k≠y} p_k = 1 − p_y. So L = √2, which is
    approached as p settles on one wrong class.
    """

    labels: NDArray[np.intp]
    outputs: int
    lipschitz = math.sqrt(2)

    def slopes(self, scores: FloatArray) -> FloatArray:
        slopes = np.asarray(softmax(scores, axis=1))
        slopes[np.arange(len(slopes)), self.labels] -= 1
        return slopes

    def bend(self, scores: FloatArray) -> Callable[[FloatArray], FloatArray]:
        chances = np.asarray(softmax(scores, axis=1))

        def product(change: FloatArray) -> FloatArray:
            weighted = chances * change
            return np.asarray(weighted - chances * weighted.sum(axis=1, keepdims=True))

        return product


ScoreLoss = Margins | Softmax  # a loss of scores (records, outputs), labels included


def signs_of(records: BoundedRecords) -> FloatArray:
    """Return ±1 labels: one column for two classes, else one for each class."""
    classes = np.arange(len(records.classes))
    own = classes[1:] if len(classes) == 2 else classes
    return np.where(records.labels[:, None] == own, 1.0, -1.0)


def score_loss(records: BoundedRecords, loss: MarginLoss) -> ScoreLoss:
    """Return one margin for two classes; for more, softmax if logistic, else one against rest."""
    if len(records.classes) > 2 and isinstance(loss, Logistic):
        return Softmax(records.labels, len(records.classes))
    return Margins(loss, signs_of(records))


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
