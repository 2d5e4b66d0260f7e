"""Noisy projected gradient descent: every step's gradient is released with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dpsgd.convex.estimator import (
    PrivateLinearClassifier,
    PrivateWeights,
    check_positive,
    check_whole,
    is_number,
)
from dpsgd.convex.losses import FloatArray, MarginLoss, as_loss
from dpsgd.convex.noise import rounded
from dpsgd.convex.records import Records
from dpsgd.convex.scores import ScoreLoss, score_loss
from pate.accounting import Event, Repeated, SampledGaussian, compose, smallest_noise
from pate.accounting.calibrate import dpsgd_step, moments_epsilon
from pate.accounting.guarantee import check_delta
from pate.errors import InvalidInput


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DescentCalibration:
    """The public numbers of the descent."""

    gradient_norm: float  # C: one record's gradient is at most this long
    noise_multiplier: float  # the noise of the sum of gradients has σ = C · noise_multiplier
    learning_rate: float


def projected(weights: FloatArray, radius: float) -> FloatArray:
    """The nearest weights in the ball around zero.

    >>> projected(np.array([[3.0, 4.0]]), 1.0)
    array([[0.6, 0.8]])
    """
    length = float(np.linalg.norm(weights))
    return weights if length <= radius else weights * (radius / length)


def gradient_sum(
    rows: FloatArray, loss: ScoreLoss, weights: FloatArray, *, gradient_norm: float
) -> FloatArray:
    """Σ of the records' gradients, each scaled down to ``gradient_norm`` where it is longer.

    Guarantees:
        One record more or less moves the sum by at most ``gradient_norm``, whatever the loss:
        what a loss declares is not relied on.
    """
    slopes = loss.slopes(rows @ weights.T)
    lengths = np.linalg.norm(slopes, axis=1) * np.linalg.norm(rows, axis=1)
    shrink = gradient_norm / np.maximum(lengths, gradient_norm)
    return np.asarray((slopes * shrink[:, None]).T @ rows)


@final
class NoisyGradientDescent(PrivateLinearClassifier):
    """Full-batch gradient descent in a ball of public ``radius``, with Gaussian noise.

    Each of ``steps`` steps releases the sum of all gradients with noise, divides it by
    ``records``, steps and projects. ``iterate`` says whether the mean of the iterates or the last
    one is kept. The learning rate, unless given, is radius/(G√steps) with G² the mean square of
    a noised gradient: the classic choice for the mean iterate. Any loss with bounded slopes will
    do, the plain hinge too; ``regularisation`` may be 0. More than two classes: as
    :class:`~dpsgd.convex.output.OutputPerturbation`.

    Guarantees:
        (ε, δ)-DP with δ > 0 for adding or removing one record: ``steps`` Gaussian mechanisms of
        sensitivity C, composed by moments, with the smallest noise that stays within (ε, δ); all
        iterates are covered (Bassily, Smith & Thakurta 2014, Algorithm 1, with full batches).
        ``records`` is therefore a public number, such as a rounded size of the data: the true
        number of records is private between such neighbours, and is not used.

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
        check_delta(self.delta)  # Gaussian noise has no guarantee at δ = 0
        if self.records is None:
            raise InvalidInput(
                "records is not given; state the rough number of records as a public number: the "
                "true one is private where a record may be added or removed"
            )
        check_whole("records", self.records)
        check_whole("steps", self.steps)
        check_positive("radius", self.radius)
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
        if self.iterate not in ("average", "last"):
            raise InvalidInput(f"iterate is {self.iterate!r}; it must be 'average' or 'last'")
        if not is_number(self.regularisation) or not 0 <= self.regularisation < math.inf:
            raise InvalidInput(
                f"regularisation is {self.regularisation!r}; it must be finite and not negative"
            )
        as_loss(self.loss, smooth=False)

    def _calibrate(self, gradient_norm: float, size: int) -> DescentCalibration:
        """Public numbers only: nothing here reads a record."""
        assert self.records is not None
        multiplier = smallest_noise(
            dpsgd_step(1.0),
            count=self.steps,
            target=self.epsilon,
            epsilon=moments_epsilon(delta=self.delta),
        )
        spread = gradient_norm * multiplier * math.sqrt(size) / self.records
        usual = math.hypot(gradient_norm + self.regularisation * self.radius, spread)
        rate = self.learning_rate or self.radius / (usual * math.sqrt(self.steps))
        return DescentCalibration(
            gradient_norm=gradient_norm, noise_multiplier=multiplier, learning_rate=rate
        )

    def _learn(self, records: Records, rng: np.random.Generator) -> PrivateWeights:
        assert self.records is not None
        loss = score_loss(records, as_loss(self.loss, smooth=False))
        shape = (loss.outputs, records.rows.shape[1])
        public = self._calibrate(loss.lipschitz * records.row_norm, shape[0] * shape[1])
        sigma = public.gradient_norm * public.noise_multiplier
        weights, total = np.zeros(shape), np.zeros(shape)
        for _ in range(self.steps):
            noised = gradient_sum(
                records.rows, loss, weights, gradient_norm=public.gradient_norm
            ) + rng.normal(scale=sigma, size=shape)
            slope = noised / self.records + self.regularisation * weights
            weights = projected(weights - public.learning_rate * slope, self.radius)
            total += weights
        kept = weights if self.iterate == "last" else total / self.steps
        step: Event = SampledGaussian(sample_rate=1.0, noise_multiplier=public.noise_multiplier)
        events = (Repeated(step, self.steps),)
        return PrivateWeights(
            weights=rounded(kept, spread=public.learning_rate * sigma / self.records / self.steps),
            events=events,
            guarantee=compose(events).guarantee(delta=self.delta),
            calibration=public,
        )
