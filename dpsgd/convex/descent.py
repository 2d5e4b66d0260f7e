"""Noisy projected gradient descent: every step's gradient is released with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dpsgd.convex.estimator import (
    BoundedRecords,
    PrivateLinearClassifier,
    PrivateWeights,
    rounded,
)
from dpsgd.convex.losses import FloatArray, MarginLoss, ScoreLoss, as_loss, score_loss
from pate._validate import check_delta, check_not_negative, check_positive, check_whole
from pate.accounting import Repeated, compose, smallest_noise
from pate.accounting.calibrate import dpsgd_step, moments_epsilon
from pate.errors import InvalidInput

_LONGEST_STEP = 1e200  # for one record, so that sums over all of them stay finite


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DescentCalibration:
    """The public numbers of the descent."""

    gradient_norm: float  # C: one record's gradient is at most this long
    noise_multiplier: float  # the noise of the sum of gradients has σ = C · noise_multiplier
    learning_rate: float


def projected(weights: FloatArray, radius: float) -> FloatArray:
    """Return the nearest weights in the ball of this radius around zero."""
    largest = float(np.abs(weights).max())  # first: the square of 1e200 overflows
    unit = weights / (largest or 1.0)
    length = float(np.linalg.norm(unit))
    return weights if largest * length <= radius else unit * (radius / length)


def gradient_sum(
    rows: FloatArray, loss: ScoreLoss, weights: FloatArray, *, gradient_norm: float
) -> FloatArray:
    """Return Σ of the records' gradients, each scaled down to ``gradient_norm`` if longer.

    Guarantees:
        One record more or less moves the sum by at most ``gradient_norm``, whatever the loss
        declares. A record at whose scores the loss has no finite slopes contributes nothing, and
        no warning reveals it.
    """
    with np.errstate(all="ignore"):
        slopes = loss.slopes(rows @ weights.T)
    slopes = np.where(np.isfinite(slopes).all(axis=1, keepdims=True), slopes, 0.0)
    lengths = np.linalg.norm(slopes, axis=1) * np.linalg.norm(rows, axis=1)
    shrink = gradient_norm / np.maximum(lengths, gradient_norm)
    return np.asarray((slopes * shrink[:, None]).T @ rows)


@final
class NoisyGradientDescent(PrivateLinearClassifier):
    """Full-batch gradient descent in a ball of public ``radius``, with Gaussian noise.

    Each of ``steps`` steps releases the sum of all gradients with noise, divides it by
    ``records``, steps and projects. More than two classes are treated as by
    :class:`~dpsgd.convex.OutputPerturbation`.

    Parameters
    ----------
    delta : float, default=1e-5
        δ of one call of ``fit``; above zero.
    records : int
        The rough number of records, as a public number: it divides the sum of gradients.
    steps : int, default=50
        The number of gradient steps.
    radius : float, default=10.0
        The radius of the ball that holds the weights.
    learning_rate : float or None, default=None
        The length of a step. By default radius/(G√steps) with G² the mean square of a noised
        gradient: the classic choice for the mean iterate.
    iterate : {'average', 'last'}, default='average'
        Release the mean of the iterates, or the last one.
    regularisation : float, default=0.0
        Λ of the term Λ/2 ‖w‖².
    loss : {'logistic', 'huber', 'hinge'} or MarginLoss, default='logistic'
        The loss of a margin: any with bounded slopes.
    epsilon, classes, data_norm, clip_rows, fit_intercept, intercept_scaling, insecure_seed :
        As in :class:`dpsgd.convex.estimator.PrivateLinearClassifier`, like all attributes.

    Guarantees:
        (ε, δ)-DP with δ > 0 for adding or removing one record: ``steps`` Gaussian mechanisms of
        sensitivity C, composed by moments, with the smallest noise that stays within (ε, δ); all
        iterates are covered (Bassily, Smith & Thakurta 2014, Algorithm 1, with full batches).
        ``records`` is therefore a public number, such as a rounded size of the data: the true
        number of records is private under this relation, and is not used.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2)) / 4
    >>> y = (X @ [2.0, -1.0] > 0).astype(int)
    >>> model = NoisyGradientDescent(
    ...     epsilon=1.0, delta=1e-5, classes=[0, 1], records=2000, clip_rows=True
    ... ).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), model.guarantee_.neighbours.value
    (True, 'add-remove')
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        records: int | None = None,
        steps: int = 50,
        radius: float = 10.0,
        learning_rate: float | None = None,
        iterate: str = "average",
        regularisation: float = 0.0,
        loss: str | MarginLoss = "logistic",
        data_norm: float = 1.0,
        clip_rows: bool = False,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.records = records
        self.steps = steps
        self.radius = radius
        self.learning_rate = learning_rate
        self.iterate = iterate
        self.regularisation = regularisation
        self.loss = loss
        self.data_norm = data_norm
        self.clip_rows = clip_rows
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.insecure_seed = insecure_seed

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_delta(self.delta)
        if self.records is None:
            raise InvalidInput(
                "records is not given; state the rough number of records as a public number: the "
                "true one is private where a record may be added or removed"
            )
        check_whole("records", self.records, least=1)
        check_whole("steps", self.steps, least=1)
        check_positive("radius", self.radius)
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
        check_not_negative("regularisation", self.regularisation)
        if self.iterate not in ("average", "last"):
            raise InvalidInput(f"iterate is {self.iterate!r}; it must be 'average' or 'last'")
        as_loss(self.loss, smooth=False)

    def _calibrate(self, gradient_norm: float, size: int) -> DescentCalibration:
        """Calibrate the noise from public numbers only: nothing here reads a record."""
        assert self.records is not None  # it was checked
        epsilon, delta = self._target()
        multiplier = smallest_noise(
            dpsgd_step(1.0),
            count=int(self.steps),
            target=epsilon,
            epsilon=moments_epsilon(delta=delta),
        )
        if self.learning_rate is None:
            radius = float(self.radius)
            spread = gradient_norm * multiplier * math.sqrt(size) / int(self.records)
            usual = math.hypot(gradient_norm + float(self.regularisation) * radius, spread)
            rate = radius / (usual * math.sqrt(self.steps))
        else:
            rate = float(self.learning_rate)
        if not rate * gradient_norm * max(1.0, multiplier) < _LONGEST_STEP:
            raise InvalidInput(
                f"a step of rate {rate:g} along gradients of norm {gradient_norm:g} overflows; "
                "lower learning_rate or radius"
            )
        return DescentCalibration(
            gradient_norm=gradient_norm, noise_multiplier=multiplier, learning_rate=rate
        )

    def _learn(self, records: BoundedRecords, rng: np.random.Generator) -> PrivateWeights:
        assert self.records is not None  # it was checked
        steps, count = int(self.steps), int(self.records)
        loss = score_loss(records, as_loss(self.loss, smooth=False))
        shape = (loss.outputs, records.rows.shape[1])
        public = self._calibrate(loss.lipschitz * records.row_norm, shape[0] * shape[1])
        sigma = public.gradient_norm * public.noise_multiplier
        weights, total = np.zeros(shape), np.zeros(shape)
        for _ in range(steps):
            noised = gradient_sum(
                records.rows, loss, weights, gradient_norm=public.gradient_norm
            ) + rng.normal(scale=sigma, size=shape)
            slope = noised / count + float(self.regularisation) * weights
            weights = projected(weights - public.learning_rate * slope, float(self.radius))
            total += weights
        kept = weights if self.iterate == "last" else total / steps
        step = dpsgd_step(1.0, public_rate=True)(public.noise_multiplier)
        events = (Repeated(step, steps),)
        return PrivateWeights(
            weights=rounded(kept, spread=public.learning_rate * sigma / count / steps),
            events=events,
            guarantee=compose(events).guarantee(delta=self._target()[1]),
            calibration=public,
        )
