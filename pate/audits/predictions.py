"""Predictions of a model under attack, and the statistics of them that membership shows in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.audits.findings import FloatArray
from pate.errors import InvalidInput

Labelled = tuple[ArrayLike, ArrayLike]  # records and their labels
Predict = Callable[[Any], Any]  # records → probabilities (records, classes)

_METHODS = ("predict_proba", "decision", "decision_function")
_TINY = 1e-45  # smaller probabilities count as this much, so that logarithms are finite


def confidences(model: Any, X: ArrayLike, y: ArrayLike | None = None) -> FloatArray:
    """Return a model's probabilities (records, classes); raise one line where it has none.

    Scores of linear models (``decision`` or ``decision_function``, one column for each class)
    become probabilities by softmax. Whole numbers in ``classes_`` name the columns: a class that
    the model never saw has the probability 0.

    Parameters
    ----------
    model : object or callable
        An object with ``predict_proba``, or that function itself.
    X : array-like
        Records.
    y : array-like, optional
        Their labels, which must be columns of the table.

    >>> confidences(lambda X: [[0.5, 0.5]] * len(X), [[1.0], [2.0]], [0, 1]).shape
    (2, 2)
    """
    records = np.asarray(X)
    name = next((name for name in _METHODS if callable(getattr(model, name, None))), None)
    if not gives_confidences(model):
        raise InvalidInput(
            f"{type(model).__name__} has no predict_proba, so it gives no confidences; use "
            "robustness_attack or boundary_attack, which need predict alone"
        )
    answer = np.asarray(model(records) if name is None else getattr(model, name)(records), float)
    if answer.ndim != 2 or len(answer) != len(records):
        raise InvalidInput(
            f"{name or 'the model'} returned shape {answer.shape} for {len(records)} records; it "
            "must be (records, classes)"
        )
    if name in _METHODS[1:]:
        answer = np.exp(answer - answer.max(axis=1, keepdims=True))
        answer /= answer.sum(axis=1, keepdims=True)
    table = _by_label(as_probabilities(answer), model)
    if y is not None:
        check_labels(np.asarray(y), records=len(records), classes=table.shape[1])
    return table


def gives_confidences(model: Any) -> bool:
    """Return whether a model gives probabilities, or scores that become them."""
    named = any(callable(getattr(model, name, None)) for name in _METHODS)
    return named or (callable(model) and not hasattr(model, "predict"))


def _by_label(table: FloatArray, model: Any) -> FloatArray:
    seen = np.asarray(getattr(model, "classes_", np.arange(table.shape[1])))
    if seen.dtype.kind not in "iu" or len(seen) != table.shape[1] or seen.min() < 0:
        return table
    wide = np.zeros((len(table), int(seen.max()) + 1))
    wide[:, seen] = table
    return wide


def as_probabilities(values: ArrayLike) -> FloatArray:
    """Return a table of probabilities as doubles; raise the rule it breaks."""
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise InvalidInput(f"probabilities have shape {table.shape}; give (records, classes)")
    if not ((table >= 0) & (table <= 1 + 1e-6)).all():  # NaN too
        raise InvalidInput("a prediction is not between 0 and 1; give probabilities, not logits")
    return table


def check_labels(labels: NDArray[Any], *, records: int, classes: int | None = None) -> None:
    """Require a label for each record, and a column for each label."""
    if labels.shape != (records,) or labels.dtype.kind not in "iu":
        raise InvalidInput(
            f"labels have shape {labels.shape} and type {labels.dtype}; give one whole number for "
            f"each of {records} records"
        )
    if not records:
        raise InvalidInput("there are no records; an attack needs members and others")
    if labels.min() < 0 or (classes is not None and labels.max() >= classes):
        raise InvalidInput("a label is not a class of the model; labels are places of its columns")


def true_confidence(probabilities: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Return the probability of each record's own label: e to the power of minus its loss.

    >>> true_confidence([[0.9, 0.1], [0.4, 0.6]], [0, 0])
    array([0.9, 0.4])
    """
    table = as_probabilities(probabilities)
    return np.asarray(table[np.arange(len(table)), np.asarray(labels)])


def log_odds(probabilities: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Return log(p/(1 − p)) of each record's own label, the statistic of LiRA.

    1 − p is the sum over the other classes, which keeps its digits where p rounds to 1.

    >>> log_odds([[0.9, 0.1], [1.0, 1e-30]], [0, 0]).round(3)
    array([ 2.197, 69.078])
    """
    table = as_probabilities(probabilities).copy()
    rows, places = np.arange(len(table)), np.asarray(labels)
    own = table[rows, places]
    table[rows, places] = 0.0
    rest = table.sum(axis=1)
    return np.asarray(np.log(np.maximum(own, _TINY)) - np.log(np.maximum(rest, _TINY)))


def negative_entropy(probabilities: ArrayLike) -> FloatArray:
    """Return Σ p log p over the classes: 0 for a certain prediction, negative otherwise.

    >>> negative_entropy([[1.0, 0.0], [0.5, 0.5]]).round(4)
    array([ 0.    , -0.6931])
    """
    table = as_probabilities(probabilities)
    return np.asarray((table * np.log(np.maximum(table, _TINY))).sum(axis=1))
