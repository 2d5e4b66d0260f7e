"""What the private linear classifiers share: reading data, publishing weights, predicting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils.metaestimators import available_if  # type: ignore[import-untyped]

from dpsgd.convex.losses import FloatArray, Logistic, MarginLoss
from dpsgd.convex.records import Records, as_table, scaled_rows
from pate._validate import check_delta, check_positive
from pate.accounting import Event, Guarantee
from pate.errors import InvalidInput
from pate.randomness import Randomness

SEEDED = "not private: the noise came from a seed, and who knows the seed can take it off"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateWeights:
    """What a learner releases: weights (outputs, columns), and what they cost."""

    weights: FloatArray
    events: tuple[Event, ...]
    guarantee: Guarantee
    calibration: Any  # the public numbers behind the noise


def _is_logistic(model: PrivateLinearClassifier) -> bool:
    return model.loss == "logistic" or isinstance(model.loss, Logistic)


class PrivateLinearClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The base of the estimators in :mod:`dpsgd.convex`; subclasses say how weights are learnt.

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
    def _learn(self, records: Records, rng: np.random.Generator) -> PrivateWeights:
        """Learns from checked records; draws all its noise from ``rng``."""

    def _check_parameters(self) -> None:
        """Refuses public parameters before any private record is read."""
        self._target()
        self._norm()
        self._intercept_column()

    def _target(self) -> tuple[float, float]:
        """(ε, δ) as Python numbers."""
        return check_positive("epsilon", self.epsilon), check_delta(self.delta, allow_zero=True)

    def _norm(self) -> float:
        return check_positive("data_norm", self.data_norm)

    def _intercept_column(self) -> float | None:
        if not self.fit_intercept:
            return None
        return check_positive("intercept_scaling", self.intercept_scaling)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learns weights from private records, once, for the price in ``guarantee_``."""
        self._check_parameters()
        column = self._intercept_column()
        records = Records.read(
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
            guarantee = replace(guarantee, caveats=(*guarantee.caveats, SEEDED))
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
        """Scores: one for each record with two classes, else one for each record and class."""
        if not hasattr(self, "coef_"):
            raise InvalidInput(f"this {type(self).__name__} is not fitted; call fit first")
        table = as_table(X)
        if table.shape[1] != self.n_features_in_:
            raise InvalidInput(
                f"X has {table.shape[1]} features; the model was fitted on {self.n_features_in_}"
            )
        if self.clip_rows:  # as the rows it learnt from
            table = scaled_rows(table, self._norm())
        scores: FloatArray = table @ self.coef_.T + self.intercept_
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest score."""
        scores = self.decision_function(X)
        places = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[places]
        return chosen

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """The model's probabilities; logistic loss only."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return self._probabilities(scores)

    def _probabilities(self, scores: FloatArray) -> FloatArray:
        return np.asarray(softmax(scores, axis=1))
