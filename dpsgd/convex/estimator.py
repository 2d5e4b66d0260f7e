"""The base of the private linear classifiers, their noise, and the rounding of what they release.

The noised numbers themselves are published, unlike in voting. The low bits of a noised double can
reveal the number under the noise (Mironov 2012), so weights are rounded to a public grid before
their release, about a millionth of the noise: coarse beside the spacing of doubles, fine beside the
noise. That closes the known attack; it is a precaution and not a proof about floating point.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if

from dpsgd.convex.inputs import (
    BoundedRecords,
    FloatArray,
    as_table,
    scaled_rows,
)
from dpsgd.convex.losses import Logistic, MarginLoss, as_loss
from pate._validate import check_delta, check_positive
from pate.accounting import Event, Guarantee
from pate.errors import InvalidInput
from pate.randomness import Randomness

_GRID_BITS = 20
_WHOLE = 2.0**53  # from here on doubles are whole numbers
_SEEDED = "not private: the noise came from a seed, and who knows the seed can take it off"


def spherical_noise(size: int, *, rate: float, rng: np.random.Generator) -> FloatArray:
    """Draw a vector of density ∝ exp(−rate·‖b‖): a uniform direction, a Gamma(size) length.

    Guarantees:
        With rate = ε/Δ it makes a vector of L2 sensitivity Δ ε-DP, since ‖b‖ moves by at most Δ
        (Chaudhuri, Monteleoni & Sarwate 2011, Algorithm 1).
    """
    direction = rng.standard_normal(size)
    return direction * (rng.gamma(size) / (rate * np.linalg.norm(direction)))


def gaussian_noise_vector(size: int, *, sigma: float, rng: np.random.Generator) -> FloatArray:
    """Draw independent N(0, sigma²)."""
    return rng.normal(scale=sigma, size=size)


def rounded(weights: FloatArray, *, spread: float) -> FloatArray:
    """Round weights to multiples of the power of two just below 2⁻²⁰·``spread``.

    >>> rounded(np.array([0.1234567891234]), spread=1.0) * 2**20
    array([129454.])
    """
    grid = 2.0 ** (math.floor(math.log2(spread)) - _GRID_BITS) if 0 < spread < math.inf else 0.0
    if grid == 0:
        raise InvalidInput(
            f"the noise comes out as {spread:g} on the weights, which no number can hold; choose "
            "parameters that are less extreme"
        )
    with np.errstate(over="ignore"):  # at this size every double is a multiple of the grid
        places = weights / grid
    return np.where(np.abs(places) < _WHOLE, np.round(places) * grid, weights)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateWeights:
    """The release of a learner: weights (outputs, columns), and their cost."""

    weights: FloatArray
    events: tuple[Event, ...]
    guarantee: Guarantee
    calibration: Any  # the public numbers behind the noise


def _is_logistic(model: PrivateLinearClassifier) -> bool:
    return model.loss == "logistic" or isinstance(model.loss, Logistic)


class PrivateLinearClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The base of the estimators in :mod:`dpsgd.convex`; subclasses implement ``_learn``.

    Guarantees:
        * ``coef_``, ``intercept_`` and everything computed from them are covered by
          ``guarantee_``; every call of ``fit`` on the same records spends it again.
        * ``classes``, ``data_norm`` and all other parameters count as public: choose them without
          looking at the private data. Under replace-one neighbours the number of records counts
          as public too: ``calibration_`` shows it.
        * The intercept is the weight of an appended constant column ``intercept_scaling``: it is
          counted in the norm of a row, regularised and noised like any other weight. So rows are
          bounded by √(data_norm² + intercept_scaling²).
        * ``clip_rows`` scales every longer row to ``data_norm``, when fitting and when predicting.
        * A refusal (a row beyond ``data_norm``, a number that is not finite, a label that is not a
          class, a solver that stops early) depends on the data and is not covered.
    """

    epsilon: float
    delta: float
    classes: Sequence[Any] | NDArray[Any] | None
    loss: str | MarginLoss
    data_norm: float
    clip_rows: bool
    fit_intercept: bool
    intercept_scaling: float
    insecure_seed: int | None

    @abstractmethod
    def _learn(self, records: BoundedRecords, rng: np.random.Generator) -> PrivateWeights:
        """Learn from checked records; draw all noise from ``rng``."""

    def _check_parameters(self) -> None:
        """Check the public parameters before any private record is read."""
        self._target()
        self._norm()
        self._intercept_column()

    def _target(self) -> tuple[float, float]:
        """Return (ε, δ) as Python numbers."""
        delta = check_delta(self.delta, allow_zero=True)
        return check_positive("epsilon", self.epsilon), delta and check_positive("delta", delta)

    def _norm(self) -> float:
        return check_positive("data_norm", self.data_norm)

    def _intercept_column(self) -> float | None:
        if not self.fit_intercept:
            return None
        return check_positive("intercept_scaling", self.intercept_scaling)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn weights from private records, at the cost in ``guarantee_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The private features: a dense table of finite numbers.
        y : array-like of shape (n_samples,)
            The private labels, each one of ``classes``.

        Returns
        -------
        self
        """
        self._check_parameters()
        column = self._intercept_column()
        records = BoundedRecords.read(
            X,
            y,
            classes=self.classes,
            data_norm=self._norm(),
            clip_rows=self.clip_rows,
            intercept=column,
        )
        randomness = Randomness.open(insecure_seed=self.insecure_seed)
        released = self._learn(records, randomness.generator)
        guarantee = released.guarantee
        if not randomness.secure:
            guarantee = replace(guarantee, caveats=(*guarantee.caveats, _SEEDED))
        self.classes_ = records.classes
        self.n_features_in_ = records.rows.shape[1] - (column is not None)
        self.coef_ = released.weights[:, : self.n_features_in_]
        self.intercept_ = np.zeros(len(self.coef_))
        if column is not None:
            self.intercept_ = released.weights[:, -1] * column
        self.events_ = released.events
        self.guarantee_ = guarantee
        self.calibration_ = released.calibration
        return self

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Return scores: one per record for two classes, else one per record and class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features to score.
        """
        if not hasattr(self, "coef_"):
            raise InvalidInput(f"this {type(self).__name__} is not fitted; call fit first")
        table = as_table(X)
        if table.shape[1] != self.n_features_in_:
            raise InvalidInput(
                f"X has {table.shape[1]} features; the model was fitted on {self.n_features_in_}"
            )
        if self.clip_rows:  # as when fitting
            table = scaled_rows(table, self._norm())
        scores: FloatArray = table @ self.coef_.T + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class with the largest score for each row of ``X``."""
        scores = self.decision_function(X)
        indices = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[indices]
        return chosen

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Return the probabilities of the classes for each row of ``X``; logistic loss only."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return self._probabilities(scores)

    def _probabilities(self, scores: FloatArray) -> FloatArray:
        return np.asarray(softmax(scores, axis=1))


class PerturbedClassifier(PrivateLinearClassifier):
    """The base of output and objective perturbation: a regularised, smooth minimisation."""

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        regularisation: float = 0.01,
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
        self.regularisation = regularisation
        self.loss = loss
        self.data_norm = data_norm
        self.clip_rows = clip_rows
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.insecure_seed = insecure_seed

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._regularisation()
        as_loss(self.loss, smooth=True)

    def _regularisation(self) -> float:
        return check_positive("regularisation", self.regularisation)
