"""Training a student, by the method its section names.

A method is a function from (spec, data, a maker of fresh models) to a trained model, entered in
:data:`METHODS`: semi-supervised students for images enter here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput
from pate.students.spec import StudentSpec
from pate.teachers.adapters import make
from pate.teachers.errors import TeacherError
from pate.teachers.protocol import Teacher, probabilities, train


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudentData:
    """What a student may see: released labels and public inputs."""

    labelled: NDArray[Any]  # (n, …)
    labels: NDArray[np.int64]  # (n,)
    unlabelled: NDArray[Any]  # (m, …), m may be 0
    classes: int


Fresh = Callable[[], Teacher]
Method = Callable[[StudentSpec, StudentData, Fresh], Teacher]


def train_student(
    spec: StudentSpec,
    *,
    labelled_X: ArrayLike,
    labels: ArrayLike,
    unlabelled_X: ArrayLike | None = None,
    classes: int,
    plugin_path: Path | None = None,
) -> Teacher:
    """A trained student; :func:`pate.teachers.save` stores it and ``predict_labels`` asks it.

    Guarantees:
        The student is a function of released labels and public inputs, so it costs no privacy
        beyond theirs (post-processing: Dwork and Roth 2014, Proposition 2.1).
    """
    data = _checked(labelled_X, labels, unlabelled_X, classes=classes)

    def fresh() -> Teacher:
        return make(spec.as_model(), classes=classes, seed=spec.seed, plugin_path=plugin_path)

    try:
        return METHODS[spec.method](spec, data, fresh)
    except (TeacherError, InvalidInput) as error:
        raise type(error)(f"the student failed: {error}") from None


def supervised(spec: StudentSpec, data: StudentData, fresh: Fresh) -> Teacher:
    """One fit to the released labels."""
    student = fresh()
    train(student, data.labelled, data.labels, private=False)
    return student


def self_training(spec: StudentSpec, data: StudentData, fresh: Fresh) -> Teacher:
    """Fits, labels the inputs it is sure of, and fits a fresh model to both; several rounds.

    A pseudo-label stays once given. Rounds end early when no input is added. With labels of a
    single class the model would be sure of everything, so it stays at the first fit.
    """
    student = fresh()
    if not hasattr(student, "predict_proba"):
        raise InvalidInput(
            f"self-training needs a model with predict_proba, and {spec.model} as set up has none; "
            'choose another model, or method = "supervised"'
        )
    train(student, data.labelled, data.labels, private=False)
    if len(np.unique(data.labels)) < 2:
        return student
    given = np.full(len(data.unlabelled), -1, dtype=np.int64)
    for _ in range(spec.rounds):
        open_ = np.flatnonzero(given < 0)
        if not len(open_):
            break
        table = probabilities(student, data.unlabelled[open_], classes=data.classes)
        sure = table.max(axis=1) >= spec.confidence
        if not sure.any():
            break
        given[open_[sure]] = table[sure].argmax(axis=1)
        used = given >= 0
        student = fresh()
        train(
            student,
            np.concatenate([data.labelled, data.unlabelled[used]]),
            np.concatenate([data.labels, given[used]]),
            private=False,
        )
    return student


METHODS: dict[str, Method] = {"supervised": supervised, "self-training": self_training}


def _checked(
    labelled_X: ArrayLike, labels: ArrayLike, unlabelled_X: ArrayLike | None, *, classes: int
) -> StudentData:
    inputs, known = np.asarray(labelled_X), np.asarray(labels)
    others = inputs[:0] if unlabelled_X is None else np.asarray(unlabelled_X)
    if known.ndim != 1 or len(inputs) != len(known):
        raise InvalidInput(f"inputs {inputs.shape} and labels {known.shape} do not go together")
    if len(known) == 0:
        raise InvalidInput("no label was released, so there is nothing for a student to learn from")
    if known.dtype.kind not in "iu" or known.min() < 0 or known.max() >= classes:
        raise InvalidInput(f"a student's labels must be whole numbers from 0 to {classes - 1}")
    if len(others) and others.shape[1:] != inputs.shape[1:]:
        raise InvalidInput(
            f"unlabelled inputs {others.shape} have another shape than labelled ones {inputs.shape}"
        )
    return StudentData(
        labelled=inputs, labels=known.astype(np.int64), unlabelled=others, classes=classes
    )
