"""From scores to the gradient of the mean loss: margins, one against the rest, softmax.

Weights W have one row for each output; a record's scores are Wx. The gradient of a record's loss
is (slope of the loss at its scores) xᵀ, of Frobenius norm at most ``lipschitz``·‖x‖.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpsgd.convex.losses import FloatArray, Logistic, MarginLoss
from dpsgd.convex.records import Records


class ScoreLoss(Protocol):
    """A loss of scores (records, outputs), labels included."""

    @property
    def outputs(self) -> int:
        """How many scores a record has."""

    @property
    def lipschitz(self) -> float:
        """The largest norm of a record's slopes."""

    def slopes(self, scores: FloatArray) -> FloatArray:
        """The gradient of every record's loss by its scores."""

    def bend(self, scores: FloatArray) -> Callable[[FloatArray], FloatArray]:
        """Multiplies changes of scores with every record's Hessian at ``scores``."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Margins:
    """One margin for each output; ``signs`` (records, outputs) are the ±1 labels.

    With one output it is binary learning. With one output per class it is one-against-the-rest,
    learnt jointly: K slopes of at most L each have norm √K·L.
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


def signs_of(records: Records) -> FloatArray:
    """±1 labels: one column for two classes, else one for each class."""
    if len(records.classes) == 2:
        return np.where(records.labels == 1, 1.0, -1.0)[:, None]
    return np.where(records.labels[:, None] == np.arange(len(records.classes)), 1.0, -1.0)


def score_loss(records: Records, loss: MarginLoss) -> ScoreLoss:
    """One margin for two classes; for more, softmax if logistic, else one against the rest."""
    if len(records.classes) > 2 and isinstance(loss, Logistic):
        return Softmax(records.labels, len(records.classes))
    return Margins(loss, signs_of(records))
