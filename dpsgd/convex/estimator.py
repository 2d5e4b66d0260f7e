"""The base of the private linear classifiers: their records, their noise, and their rounding.

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

from dpsgd.convex.losses import FloatArray, Logistic, MarginLoss
from pate._validate import check_delta, check_positive
from pate.accounting import Event, Guarantee
from pate.errors import InvalidInput
from pate.randomness import Randomness

_GRID_BITS = 20
_ROUNDING = 1e-9  # a row scaled to the bound may exceed it by this much, relatively
_WHOLE = 2.0**53  # from here on doubles are whole numbers
_SEEDED = "not private: the noise came from a seed, and who knows the seed can take it off"


def as_table(X: ArrayLike) -> FloatArray:
    """Return a finite table (records, features); no error message names a row."""
    if isinstance(X, np.ma.MaskedArray):
        raise InvalidInput("X is a masked array; fill or remove what is masked first")
    try:
        given = np.asarray(X)
        if given.dtype.kind in "cmMV":
            raise TypeError
        with np.errstate(over="ignore"):  # a warning would reveal a private number
            table = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # whose texts may quote a cell
        raise InvalidInput("X is not a dense table of real numbers") from None
    if table.ndim != 2 or not table.size:
        raise InvalidInput(f"X has {table.ndim} dimensions; give a filled table: records, features")
    if not np.isfinite(table).all():
        raise InvalidInput("X holds numbers that are not finite; remove or replace them first")
    return table


def scaled_rows(table: FloatArray, norm: float) -> FloatArray:
    """Scale every row longer than ``norm`` down to it, independently of all other rows.

    >>> scaled_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    largest = np.abs(table).max(axis=1, keepdims=True)  # first: the square of 1e200 overflows
    unit = table / np.where(largest > 0, largest, 1.0)
    lengths = largest * np.linalg.norm(unit, axis=1, keepdims=True)
    long = np.asarray(lengths > norm)
    shrunk = unit * (norm / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1.0))
    return np.where(long, shrunk, table)


def check_classes(classes: Sequence[Any] | NDArray[Any] | None) -> NDArray[Any]:
    """Return the public classes, sorted."""
    if classes is None:
        raise InvalidInput(
            "classes is not given; name the possible labels (they are public): reading them off "
            "private labels would reveal that a record of a rare class exists"
        )
    try:
        given = np.asarray(classes)
        known = np.unique(given)
    except (TypeError, ValueError):
        raise InvalidInput("classes are not labels of one kind; list two or more, once") from None
    if known.dtype.kind in "fc" and not np.isfinite(known).all():
        raise InvalidInput("classes hold a number that is not finite; name every class")
    if given.ndim != 1 or len(known) < 2 or len(known) != len(given):
        raise InvalidInput(f"classes has {len(known)} different labels; list two or more, once")
    return known


def _class_indices(known: NDArray[Any], y: ArrayLike, *, count: int) -> NDArray[np.intp]:
    """Return the index of every label among the classes; no error message quotes a label."""
    if isinstance(y, np.ma.MaskedArray):
        raise InvalidInput("y is a masked array; fill or remove what is masked first")
    try:
        given = np.asarray(y)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput("y is not a list of labels") from None
    if given.shape != (count,):
        raise InvalidInput("y must hold one label for every row of X")
    numbered = {label: index for index, label in enumerate(known.tolist())}
    try:
        indices = np.array([numbered.get(label, -1) for label in given.tolist()], dtype=np.intp)
    except TypeError:
        raise InvalidInput("y holds something that is not a label") from None
    if (indices < 0).any():
        raise InvalidInput("y holds a label that is not among the classes; list every class")
    return indices


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundedRecords:
    """The input of a learner: rows with the intercept's column, and labels as 0 … classes − 1."""

    rows: FloatArray
    labels: NDArray[np.intp]
    classes: NDArray[Any]
    row_norm: float  # public bound on the norm of a row, the intercept's column included

    @classmethod
    def read(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        *,
        classes: Sequence[Any] | NDArray[Any] | None,
        data_norm: float,
        clip_rows: bool,
        intercept: float | None,
    ) -> Self:
        """Check private data against its public description; ``intercept`` is a column's value.

        Guarantees:
            * ‖(x, intercept)‖ ≤ ``row_norm`` = √(data_norm² + intercept²) for every row.
            * A refusal depends on the data and is not covered by any ε: where rows may exceed
              ``data_norm``, set ``clip_rows``, with which no finite row is refused.
        """
        known = check_classes(classes)
        table = as_table(X)
        indices = _class_indices(known, y, count=len(table))
        room = data_norm * (1 + _ROUNDING)
        if not clip_rows and not np.array_equal(scaled_rows(table, room), table):
            raise InvalidInput(
                f"a row is longer than data_norm = {data_norm:g}; set clip_rows=True to scale "
                "such rows, or state a larger public bound"
            )
        rows = scaled_rows(table, data_norm)
        if intercept is not None:
            rows = np.column_stack([rows, np.full(len(rows), intercept)])
        return cls(
            rows=rows,
            labels=indices,
            classes=known,
            row_norm=math.hypot(data_norm, intercept or 0.0),
        )


def spherical_noise(size: int, *, rate: float, rng: np.random.Generator) -> FloatArray:
    """Draw a vector of density ∝ exp(−rate·‖b‖): a uniform direction, a Gamma(size) length.

    Guarantees:
        With rate = ε/Δ it makes a vector of L2 sensitivity Δ ε-DP, since ‖b‖ moves by at most Δ
        (Chaudhuri, Monteleoni & Sarwate 2011, Algorithm 1).
    """
    direction = rng.standard_normal(size)
    return direction * (rng.gamma(size) / (rate * np.linalg.norm(direction)))


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

    Parameters
    ----------
    epsilon : float, default=1.0
        ε of one call of ``fit``.
    delta : float
        δ of one call of ``fit``.
    classes : sequence of labels
        All possible labels, two or more. Public: they are never read off the data.
    loss : {'logistic', 'huber', 'hinge'} or MarginLoss, default='logistic'
        The loss of a margin.
    data_norm : float, default=1.0
        A public bound on the Euclidean norm of a row of features.
    clip_rows : bool, default=False
        Scale longer rows to ``data_norm``, when fitting and when predicting; otherwise a longer
        row is refused when fitting.
    fit_intercept : bool, default=True
        Learn an intercept, as the weight of an appended constant column.
    intercept_scaling : float, default=1.0
        The value of that column; it counts in the norm of a row.
    insecure_seed : int or None, default=None
        Draw the noise from this seed. Such a model is not private; for tests only.

    Attributes
    ----------
    coef_ : ndarray of shape (outputs, n_features)
        The released weights: one row for two classes, else one for each class.
    intercept_ : ndarray of shape (outputs,)
        The released intercepts; zeros without ``fit_intercept``.
    classes_ : ndarray
        The classes, sorted.
    n_features_in_ : int
        The number of features seen by ``fit``.
    guarantee_ : pate.accounting.Guarantee
        (ε, δ) of this fit, with the relation for which it holds.
    events_ : tuple of Event
        The accounting events of this fit, to compose with others.
    calibration_ : object
        The public numbers behind the noise.

    Guarantees:
        * ``coef_``, ``intercept_`` and everything computed from them are covered by
          ``guarantee_``; every call of ``fit`` on the same records spends it again.
        * ``classes``, ``data_norm`` and all other parameters count as public: choose them without
          looking at the private data. Under replace-one neighbours the number of records counts
          as public too: ``calibration_`` shows it.
        * The intercept is the weight of an appended constant column ``intercept_scaling``: it is
          counted in the norm of a row, regularised and noised like any other weight. So rows are
          bounded by √(data_norm² + intercept_scaling²).
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
        check_positive("data_norm", self.data_norm)
        if self.fit_intercept:
            check_positive("intercept_scaling", self.intercept_scaling)

    def _target(self) -> tuple[float, float]:
        """Return (ε, δ) as Python numbers."""
        delta = check_delta(self.delta, allow_zero=True)
        return check_positive("epsilon", self.epsilon), delta and check_positive("delta", delta)

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
        column = float(self.intercept_scaling) if self.fit_intercept else None
        records = BoundedRecords.read(
            X,
            y,
            classes=self.classes,
            data_norm=float(self.data_norm),
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
            table = scaled_rows(table, float(self.data_norm))
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
