"""Attribute inference: what a model tells about an unknown column of a record it was trained on.

The attacker knows all of a record but one attribute. It tries each value, and takes the one with
which the record looks most like a member (the reduction to membership of Yeom et al. 2018). A value
that can be guessed for strangers too is a fact about the population, not a leak: what counts is the
advantage with members over others.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.audits.findings import Finding, FloatArray
from pate.audits.predictions import Labelled, check_labels, confidences, true_confidence
from pate.audits.statistics import clopper_pearson
from pate.errors import InvalidInput

MOST_VALUES: Final = 64  # of an attribute; a column of more is a measurement


def attribute_attack(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    column: int,
    prior: ArrayLike | None = None,
    name: str = "",
    target: str = "model",
    confidence: float = 0.95,
) -> Finding:
    """Guess one column of each record from the rest, the label and the model's confidences.

    The guess is the value v with the largest Pr(v) · p(label | record with v): the attribute
    attack of Yeom et al. 2018, with the model's likelihood in place of that of its error.

    Parameters
    ----------
    model : object or callable
        The target: an object with ``predict_proba``, or that function.
    members, others : pair of arrays
        Records (n, columns) the model was and was not trained on, with labels.
    column : int
        The place of the attribute. Its values are those that occur. Of a measurement, which has
        more than 64, the half is guessed, below or above the median of the others; the median of
        each half stands for it.
    prior : array-like, optional
        The attacker's probability of each value, in ascending order of values; by default their
        shares among the others, which the attacker may take from any sample of the population.
    name : str
        The attribute in the finding; by default its place.
    target : str
        The name of the target in the finding.
    confidence : float
        The confidence of the interval of the advantage.

    Returns
    -------
    Finding
        ``values`` has the accuracy with members, with others, and by the prior alone; the
        advantage, the first less the second, with its interval; and for each value the gain of its
        recall among members over that among others. (ε, δ) allows an advantage of at most
        :func:`pate.audits.roc.most_advantage`.

    >>> def predict_proba(X):  # has learned that the label is the first column
    ...     return np.column_stack([1 - 0.9 * X[:, 0], 0.1 + 0.9 * X[:, 0]]).clip(0.1, 0.9)
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0]] * 5), np.array([0, 1] * 5)
    >>> attribute_attack(predict_proba, (X, y), (X, 1 - y), column=0).values["advantage"]
    1.0
    """
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence is {confidence!r}; it must lie between 0 and 1")
    tables = [_records(X, y, column=column) for X, y in (members, others)]
    values, edges = _values(*(X[:, column] for X, _ in tables), column=column)
    known = np.searchsorted(edges, tables[1][0][:, column], side="right")
    chances = _prior(prior, np.bincount(known, minlength=len(values)))
    rights, truths = [], []
    for X, y in tables:
        truth = np.searchsorted(edges, X[:, column], side="right")
        scores = np.empty((len(values), len(X)))
        for place, value in enumerate(values):
            tried = X.copy()
            tried[:, column] = value
            fit = true_confidence(confidences(model, tried, y), y)
            scores[place] = np.log(np.maximum(fit, 1e-45)) + chances[place]
        rights.append(scores.argmax(axis=0) == truth)
        truths.append(truth)
    inside, outside = (right.mean() for right in rights)
    bounds = [
        clopper_pearson(int(right.sum()), len(right), error=(1 - confidence) / 4)
        for right in rights
    ]
    found = {
        "accuracy with members": float(inside),
        "accuracy with others": float(outside),
        "accuracy by the prior": float((truths[0] == chances.argmax()).mean()),
        "advantage": float(inside - outside),
        "advantage, low": float(bounds[0][0] - bounds[1][1]),
        "advantage, high": float(bounds[0][1] - bounds[1][0]),
        "advantage over the prior": float(inside - (truths[0] == chances.argmax()).mean()),
    }
    names = [f"at {value:g}" for value in values]
    if len(edges) == 1 and not np.isin(tables[0][0][:, column], values).all():
        names = [f"{side} {edges[0]:g}" for side in ("below", "above")]
    for place, kind_name in enumerate(names):
        kinds = [truth == place for truth in truths]
        if all(kind.any() for kind in kinds):
            gains = [right[kind].mean() for right, kind in zip(rights, kinds, strict=True)]
            found[f"advantage {kind_name}"] = float(gains[0] - gains[1])
    return Finding(
        attack=f"attribute inference ({name or f'column {column}'})",
        target=target,
        knowledge="confidences, and all of a record but one attribute",
        source="Yeom et al. 2018",
        confidence=confidence,
        values=found,
    )


def _records(X: ArrayLike, y: ArrayLike, *, column: int) -> tuple[FloatArray, NDArray[Any]]:
    records, labels = np.array(X, dtype=np.float64), np.asarray(y)
    check_labels(labels, records=len(records))
    if records.ndim != 2 or not 0 <= column < records.shape[1]:
        raise InvalidInput(
            f"column is {column!r} and records have shape {records.shape}; give a table and the "
            "place of one of its columns"
        )
    return records, labels


def _values(inside: FloatArray, outside: FloatArray, *, column: int) -> tuple[FloatArray, ...]:
    """Return the values to try, and the edges between them: those that occur, or two halves."""
    if not all(np.isfinite(each).all() for each in (inside, outside)):
        raise InvalidInput(f"column {column} has missing values; leave these records out")
    values = np.unique(np.concatenate([inside, outside]))
    if len(values) < 2:
        raise InvalidInput(f"column {column} has one value; there is nothing to guess")
    if len(values) <= MOST_VALUES:
        return values, values[1:]
    middle = np.median(outside)
    halves = [outside[outside < middle], outside[outside >= middle]]
    if not all(map(len, halves)):
        raise InvalidInput(f"half of column {column} is one value; bin it first")
    return np.array([np.median(half) for half in halves]), np.array([middle])


def _prior(prior: ArrayLike | None, counts: NDArray[np.int64]) -> FloatArray:
    """Return the logarithm of the attacker's probability of each value."""
    if prior is None:
        return np.asarray(np.log((counts + 0.5) / (counts + 0.5).sum()))
    chances = np.asarray(prior, dtype=np.float64)
    if chances.shape != counts.shape or not (chances > 0).all():
        raise InvalidInput(
            f"prior has shape {chances.shape}; give a probability above zero for each of "
            f"{len(counts)} values"
        )
    return np.asarray(np.log(chances / chances.sum()))


def worst_attribute(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    columns: Mapping[int, str],
    target: str = "model",
    confidence: float = 0.95,
) -> Finding | None:
    """Guess every column in turn, and return the finding of the largest advantage.

    Parameters
    ----------
    columns : mapping of int to str
        The names of the attributes by their places; those that cannot be guessed are left out.
    confidence : float
        The confidence of the intervals of all advantages together (Bonferroni).
    model, members, others, target
        As in :func:`attribute_attack`.

    Returns
    -------
    Finding or None
        That of the worst column, with the number of columns and their mean advantage; None where
        no column can be guessed.

    >>> def predict_proba(X):  # has learned that the label is the first column
    ...     return np.column_stack([1 - 0.9 * X[:, 0], 0.1 + 0.9 * X[:, 0]]).clip(0.1, 0.9)
    >>> X, y = np.array([[0.0, 1.0], [1.0, 1.0]] * 5), np.array([0, 1] * 5)
    >>> worst_attribute(predict_proba, (X, y), (X, 1 - y), columns={0: "sex", 1: "one"}).attack
    'attribute inference (sex)'
    """
    tables = [np.asarray(X, dtype=np.float64) for X, _ in (members, others)]
    possible = {}
    for place, name in columns.items():
        with suppress(InvalidInput):
            _values(*(X[:, place] for X in tables), column=place)
            possible[place] = name
    each = 1 - (1 - confidence) / max(1, len(possible))
    found = [
        attribute_attack(
            model, members, others, column=place, name=name, target=target, confidence=each
        )
        for place, name in possible.items()
    ]
    if not found:
        return None
    gains = [one.values["advantage"] for one in found]
    worst = found[int(np.argmax(gains))]
    more = {"columns": float(len(found)), "mean advantage of columns": float(np.mean(gains))}
    return replace(worst, confidence=confidence, values={**worst.values, **more})
