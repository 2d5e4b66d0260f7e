"""The teacher protocol, and the guarded calls through which the framework uses a model.

A model that trains on private records may print a record, warn about a label, or quote a value in
an exception. Guarded calls drop all of it, and check predictions before they count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import TeacherError
from pate.teachers.placement import out_of_memory, short_of_memory
from pate.untrusted import run_untrusted


@runtime_checkable
class Teacher(Protocol):
    """Any object that learns from records with labels 0 … classes − 1 and predicts such labels."""

    def fit(self, X: Any, y: Any) -> Any: ...

    def predict(self, X: Any) -> ArrayLike: ...


def train(teacher: Teacher, X: ArrayLike, y: ArrayLike, *, private: bool = True) -> None:
    """Fit a teacher to its shard: records (n, …), labels (n,).

    Guarantees:
        With ``private`` an error names the place in the code where the model failed and never its
        message; output and warnings of the model are dropped.
    """
    records, labels = checked_shard(X, y)
    guarded("fit", lambda: teacher.fit(records, labels), private=private)


def checked_shard(X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return records and labels as arrays; raise the rule they break."""
    records, labels = np.asarray(X), np.asarray(y)
    if len(labels) == 0:
        raise TeacherError("its shard holds no records; use fewer teachers")
    if labels.ndim != 1 or len(records) != len(labels):
        raise TeacherError(f"records {records.shape} and labels {labels.shape} do not match")
    if labels.dtype.kind not in "iu":
        raise TeacherError(f"labels have type {labels.dtype}; they must be whole numbers")
    return records, labels.astype(np.int64, copy=False)


def predict_labels(
    teacher: Teacher, X: ArrayLike, *, classes: int, private: bool = True
) -> NDArray[np.int64]:
    """Return one label in 0 … classes − 1 for every record.

    Guarantees:
        An invalid prediction raises :class:`TeacherError` and never becomes a vote, so a teacher
        casts at most one vote on a query. The message holds no predicted value.
    """
    records = np.asarray(X)
    answer = guarded("predict", lambda: np.asarray(teacher.predict(records)), private=private)
    return checked_labels(answer, records=len(records), classes=classes)


def checked_labels(answer: NDArray[Any], *, records: int, classes: int) -> NDArray[np.int64]:
    """Return predictions as labels; raise the rule they break."""
    if answer.shape != (records,):
        raise TeacherError(
            f"predict returned shape {answer.shape}; it must return one label for each record, "
            f"shape ({records},)"
        )
    if answer.dtype.kind not in "iufb":
        raise TeacherError(f"predict returned type {answer.dtype}; labels are whole numbers")
    if answer.dtype.kind == "f" and not np.array_equal(answer, np.trunc(answer)):  # NaN too
        raise TeacherError("predict returned fractions or NaN; labels are whole numbers")
    if records and not (answer.min() >= 0 and answer.max() < classes):
        raise TeacherError(
            f"predict returned a class that does not exist; labels are 0 … {classes - 1}"
        )
    return answer.astype(np.int64)


def probabilities(teacher: Any, X: ArrayLike, *, classes: int) -> NDArray[np.float64]:
    """Return ``predict_proba`` with a column for every class, also those the model never saw."""
    records = np.asarray(X)
    answer = guarded(
        "predict_proba",
        lambda: np.asarray(teacher.predict_proba(records), dtype=np.float64),
        private=False,
    )
    seen = np.asarray(getattr(teacher, "classes_", np.arange(classes)))
    if answer.shape != (len(records), len(seen)):
        raise TeacherError(
            f"predict_proba returned shape {answer.shape}; it must be ({len(records)}, {len(seen)})"
        )
    table = np.zeros((len(records), classes))
    table[:, checked_labels(seen, records=len(seen), classes=classes)] = answer
    return table


def guarded(name: str, call: Callable[[], Any], *, private: bool, silent: bool = True) -> Any:
    """Run a model's own code: its output is dropped, its exceptions become one sentence.

    A device that is out of memory is not the model's fault and raises OutOfMemory.
    """

    def called() -> Any:
        try:
            return call()
        except Exception as error:
            if not short_of_memory(error):
                raise
        raise out_of_memory()

    return run_untrusted(name, called, private=private, error=TeacherError, silent=silent)
