"""Private records of the convex learners: accepted only if a public number bounds their norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput

FloatArray = NDArray[np.float64]

_ROUNDING = 1e-9  # a row scaled to the bound may exceed it by this much, relatively


def as_table(X: ArrayLike) -> FloatArray:
    """Return a finite table (records, features); refuse anything else.

    Guarantees:
        A row that is not finite would have unbounded influence. The message does not name the row.
    """
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
    """Return the public classes, sorted.

    Guarantees:
        Classes are given, never read off the labels: a class that only one record has would show
        in the shape of the released weights, with certainty.
    """
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
    if "O" in (known.dtype.kind, given.dtype.kind):  # any Python objects
        numbered = {label: index for index, label in enumerate(known.tolist())}
        try:
            indices = np.array([numbered.get(label, -1) for label in given.tolist()], dtype=np.intp)
        except TypeError:
            raise InvalidInput("y holds something that is not a label") from None
        found = indices >= 0
    elif _kind(known) != _kind(given):
        raise InvalidInput("y and classes do not hold the same kind of labels")
    else:
        indices = np.minimum(np.searchsorted(known, given), len(known) - 1)
        found = known[indices] == given
    if not found.all():
        raise InvalidInput("y holds a label that is not among the classes; list every class")
    return indices


def _kind(labels: NDArray[Any]) -> str:
    return "number" if labels.dtype.kind in "biuf" else labels.dtype.kind


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
