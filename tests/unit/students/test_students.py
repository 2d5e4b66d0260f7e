"""Students learn from released labels and public inputs."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_digits

from pate.errors import InvalidInput
from pate.students import StudentSpec, train_student
from pate.students.train import METHODS
from pate.teachers import TeacherError, load, predict_labels, save
from pate.teachers.protocol import probabilities

LOGISTIC = "sklearn.linear_model:LogisticRegression"


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return data.data / 16, data.target


def student(digits, *, labelled=60, classes=10, **settings):
    X, y = digits
    return train_student(
        StudentSpec(**{"model": LOGISTIC, **settings}),
        labelled_X=X[:labelled],
        labels=y[:labelled],
        unlabelled_X=X[labelled:1200],
        classes=classes,
    )


def accuracy(model, digits):
    X, y = digits
    return (predict_labels(model, X[1200:], classes=10) == y[1200:]).mean()


def test_supervised(digits):
    assert accuracy(student(digits, labelled=400), digits) > 0.85


def test_self_training_uses_what_has_no_label(digits):
    model = student(
        digits,
        model="sklearn.neighbors:KNeighborsClassifier",
        method="self-training",
        confidence=1.0,
        rounds=5,
    )
    plain = student(digits, model="sklearn.neighbors:KNeighborsClassifier")
    assert accuracy(model, digits) > accuracy(plain, digits) + 0.02
    assert model.estimator.n_samples_fit_ > plain.estimator.n_samples_fit_ == 60
    with pytest.raises(InvalidInput, match="SVC as set up has none"):
        student(digits, model="sklearn.svm:SVC", method="self-training")


def test_confidence_is_a_threshold(digits):
    def used(confidence, rounds=1):
        model = student(
            digits,
            model="sklearn.neighbors:KNeighborsClassifier",
            method="self-training",
            confidence=confidence,
            rounds=rounds,
        )
        return model.estimator.n_samples_fit_

    assert used(1.0) < used(0.6) < used(0.01) == 1200
    assert used(1.0, rounds=3) > used(1.0)


def test_an_unsure_student_stays_supervised(digits):
    settings = {"model": LOGISTIC, "params": {"C": 1e-4}}
    plain = student(digits, **settings)
    same = student(digits, method="self-training", confidence=0.99, **settings)
    np.testing.assert_array_equal(plain.estimator.coef_, same.estimator.coef_)


def test_one_released_class_does_not_spread(digits):
    X, _ = digits
    model = train_student(
        StudentSpec(model=LOGISTIC, method="self-training"),
        labelled_X=X[:5],
        labels=np.full(5, 3),
        unlabelled_X=X[5:50],
        classes=10,
    )
    assert set(predict_labels(model, X, classes=10)) == {3}


@pytest.mark.parametrize("method", ["supervised", "self-training"])
def test_torch_students_and_their_storage(digits, method, tmp_path):
    spec = StudentSpec(
        model="torch.nn:Linear",
        params={"in_features": 64, "out_features": 10},
        method=method,
        epochs=15,
        confidence=0.8,
        seed=3,
    )
    X, y = digits
    data = {"labelled_X": X[:200], "labels": y[:200], "unlabelled_X": X[200:800], "classes": 10}
    model = train_student(spec, **data)
    assert accuracy(model, digits) > 0.75
    save(model, tmp_path)
    again = load(tmp_path, spec.as_model(), classes=10, seed=spec.seed)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    repeat = train_student(spec, **data)
    np.testing.assert_array_equal(repeat.predict_proba(X), model.predict_proba(X))


def test_probabilities_have_a_column_for_every_class(digits):
    X, y = digits
    few = np.isin(y[:200], [2, 7])
    model = train_student(
        StudentSpec(model=LOGISTIC), labelled_X=X[:200][few], labels=y[:200][few], classes=10
    )
    table = probabilities(model, X, classes=10)
    assert table.shape == (len(X), 10)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    np.testing.assert_array_equal(table.argmax(axis=1), model.predict(X))


def test_every_method_has_a_function():
    assert set(METHODS) == set(get_args(StudentSpec.model_fields["method"].annotation))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labelled_X": np.ones((0, 3)), "labels": np.ones(0, int)}, "no label was released"),
        ({"labels": np.ones(3, int)}, "do not go together"),
        ({"labels": np.array([0, 1, 2, 10])}, "whole numbers from 0 to 2"),
        ({"labels": np.array([0, 1, 2, -1])}, "whole numbers from 0 to 2"),
        ({"labels": np.ones(4)}, "whole numbers from 0 to 2"),
        ({"unlabelled_X": np.ones((5, 4))}, "another shape"),
    ],
)
def test_data_that_do_not_fit(changes, message):
    data = {"labelled_X": np.eye(4, 3), "labels": np.array([0, 1, 2, 0]), "classes": 3}
    with pytest.raises(InvalidInput, match=message):
        train_student(StudentSpec(model=LOGISTIC), **(data | changes))


def test_a_student_says_why_it_cannot_learn():
    data = {"labelled_X": np.full((4, 3), np.nan), "labels": np.array([0, 1, 2, 0])}
    with pytest.raises(TeacherError, match=r"fit raised ValueError in .*: Input X contains NaN"):
        train_student(StudentSpec(model=LOGISTIC), classes=3, **data)


@pytest.mark.parametrize(
    "section",
    [{}, {"method": "magic"}, {"rounds": 0}, {"confidence": 0}, {"confidence": 1.1}, {"mix": []}],
)
def test_sections_that_are_refused(section):
    with pytest.raises(ValidationError):
        StudentSpec.model_validate({"model": LOGISTIC} | section if section else {})
