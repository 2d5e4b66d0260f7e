"""Students learn from released labels and public inputs."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_digits

from pate.errors import InvalidInput, TeacherError
from pate.students.spec import StudentSpec
from pate.students.train import METHODS, StudentData, train_student
from pate.teachers.persist import load, save
from pate.teachers.protocol import predict_labels, probabilities

LOGISTIC = "sklearn.linear_model:LogisticRegression"


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return data.data / 16, data.target


def public(X, labels, *, classes=10):
    """The first inputs have labels."""
    return StudentData(inputs=X, rows=np.arange(len(labels)), labels=labels, classes=classes)


def student(digits, *, labelled=60, classes=10, **settings):
    X, y = digits
    return train_student(
        StudentSpec(**{"model": LOGISTIC, **settings}),
        public(X[:1200], y[:labelled], classes=classes),
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
        public(X[:50], np.full(5, 3)),
    )
    assert set(predict_labels(model, X, classes=10)) == {3}


@pytest.mark.parametrize("method", ["supervised", "self-training"])
def test_torch_students_and_their_storage(digits, method, tmp_path):
    spec = StudentSpec(
        model="torch.nn:Linear",
        params={"in_features": 64, "out_features": 10},
        method=method,
        epochs=15,
        lr=0.03,
        seed=3,
        **({"confidence": 0.8} if method == "self-training" else {}),
    )
    X, y = digits
    data = public(X[:800], y[:200])
    model = train_student(spec, data)
    assert accuracy(model, digits) > 0.75
    save(model, tmp_path)
    again = load(tmp_path, spec.as_model(), classes=10, seed=spec.seed)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    repeat = train_student(spec, data)
    np.testing.assert_array_equal(repeat.predict_proba(X), model.predict_proba(X))


def test_probabilities_have_a_column_for_every_class(digits):
    X, y = digits
    few = np.isin(y[:200], [2, 7])
    model = train_student(StudentSpec(model=LOGISTIC), public(X[:200][few], y[:200][few]))
    table = probabilities(model, X, classes=10)
    assert table.shape == (len(X), 10)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    np.testing.assert_array_equal(table.argmax(axis=1), model.predict(X))


def test_every_method_has_a_function():
    assert set(METHODS) == set(get_args(StudentSpec.model_fields["method"].annotation))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": np.ones(0, int), "labels": np.ones(0, int)}, "no label was released"),
        ({"labels": np.ones(3, int)}, "do not match"),
        ({"labels": np.array([0, 1, 2, 10])}, "whole numbers from 0 to 2"),
        ({"labels": np.array([0, 1, 2, -1])}, "whole numbers from 0 to 2"),
        ({"labels": np.ones(4)}, "whole numbers from 0 to 2"),
        ({"rows": np.array([0, 1, 2, 4])}, "rows must be whole numbers from 0 to 3"),
        ({"rows": np.array([0, 1, 2, -1])}, "rows must be whole numbers from 0 to 3"),
        ({"rows": np.arange(4.0)}, "rows must be whole numbers from 0 to 3"),
        ({"features": np.ones((5, 4))}, "5 features do not match 4 public inputs"),
    ],
)
def test_data_that_do_not_fit(changes, message):
    data = {"inputs": np.eye(4, 3), "rows": np.arange(4), "labels": np.array([0, 1, 2, 0])}
    with pytest.raises(InvalidInput, match=message):
        StudentData(**(data | changes), classes=3)


def test_a_student_says_why_it_cannot_learn():
    data = public(np.full((4, 3), np.nan), np.array([0, 1, 2, 0]), classes=3)
    with pytest.raises(TeacherError, match=r"fit raised ValueError in .*: Input X contains NaN"):
        train_student(StudentSpec(model=LOGISTIC), data)


@pytest.mark.parametrize(
    "section",
    [{}, {"method": "magic"}, {"rounds": 0}, {"confidence": 0}, {"confidence": 1.1}, {"mix": []}],
)
def test_sections_that_are_refused(section):
    with pytest.raises(ValidationError):
        StudentSpec.model_validate({"model": LOGISTIC} | section if section else {})


@pytest.mark.parametrize("method", METHODS)
def test_a_section_reads_back_what_it_resolves_to(method):
    """As recipe.json has it: every default of every method is spelt out."""
    own = {"self-training": {"fractions": [0.5, 1.0], "propagation": {"neighbours": 3}}}
    own |= {name: {name: {"labelled": 8}} for name in ("fixmatch", "mixmatch", "gan")}
    spec = StudentSpec(model="mlp", method=method, **own.get(method, {}))
    assert StudentSpec.model_validate_json(spec.model_dump_json()) == spec
    assert StudentSpec.model_validate(spec.model_dump(mode="json")) == spec


QUOTING = """
import torch


class Quotes(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = torch.nn.LazyLinear(classes)

    def forward(self, records):
        if (records > 1000).any():
            raise ValueError(f"odd record {records.max().item()}")
        return self.layer(records)
"""


@pytest.mark.parametrize("settings", [{}, {"average": 0.9}, {"smoothing": 0.1}])
def test_a_reference_model_quotes_no_private_record(tmp_path, settings):
    (tmp_path / "quoting.py").write_text(QUOTING)
    spec = StudentSpec(model="quoting:Quotes", epochs=1, **settings)
    data = public(np.full((8, 2), 1234.5), np.arange(8) % 2, classes=2)
    with pytest.raises(TeacherError) as told:
        train_student(spec, data, plugin_path=tmp_path, private=True)
    assert str(told.value).startswith("the reference model failed: fit raised ValueError")
    assert "1234" not in str(told.value)
    assert told.value.__cause__ is None
    assert told.value.__suppress_context__
    with pytest.raises(InvalidInput, match="fitted once"):
        train_student(StudentSpec(model="mlp", method="self-training"), data, private=True)
