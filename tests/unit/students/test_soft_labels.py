"""Soft labels and weights: every method takes them, and what has no weight teaches nothing."""

from __future__ import annotations

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.students.spec import StudentSpec
from pate.students.train import METHODS, StudentData, sure_places, train_student
from pate.teachers.protocol import predict_labels

CLASSES = 3


def blobs(count=240, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return (4 * np.eye(CLASSES)[labels] + rng.normal(size=(count, CLASSES))).astype(
        np.float32
    ), labels


def soft_data(wrong=0.4, weight=0.0):
    """All inputs labelled, a share of them wrongly and unsure of it."""
    inputs, labels = blobs()
    given = labels.copy()
    off = np.arange(len(labels)) < wrong * len(labels)
    given[off] = (labels[off] + 1) % CLASSES
    sure = np.where(off, 0.34, 0.98)
    soft = np.full((len(labels), CLASSES), 0.0)
    soft[np.arange(len(labels)), given] = sure
    soft += (1 - soft.sum(axis=1, keepdims=True)) / CLASSES
    data = StudentData(
        inputs=inputs,
        rows=np.arange(len(labels)),
        labels=given,
        classes=CLASSES,
        soft=soft,
        weights=np.where(off, weight, 1.0),
    )
    return data, inputs, labels


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("supervised", "sklearn.linear_model:LogisticRegression"),
        ("self-training", "sklearn.linear_model:LogisticRegression"),
        *((method, "mlp") for method in METHODS),
    ],
)
def test_every_method_learns_from_the_sure_ones(method, model):
    data, inputs, labels = soft_data()
    spec = StudentSpec(model=model, method=method, **({"epochs": 8} if model == "mlp" else {}))
    student = train_student(spec, data)
    predicted = predict_labels(student, inputs, classes=CLASSES)
    assert (predicted == labels).mean() > 0.9


def test_without_their_weights_wrong_labels_do_harm():
    """The other half of the test above: it can fail."""
    data, inputs, labels = soft_data(wrong=0.6, weight=1.0)
    spec = StudentSpec(model="sklearn.linear_model:LogisticRegression")
    predicted = predict_labels(train_student(spec, data), inputs, classes=CLASSES)
    assert (predicted == labels).mean() < 0.7


def test_a_model_without_weights_takes_the_labels_alone():
    data, inputs, labels = soft_data(wrong=0.1)
    spec = StudentSpec(model="sklearn.neighbors:KNeighborsClassifier")
    predicted = predict_labels(train_student(spec, data), inputs, classes=CLASSES)
    assert (predicted == labels).mean() > 0.85


def test_labels_that_are_taken_as_given():
    data, _, _ = soft_data()
    chosen = sure_places(data, np.arange(240))
    assert (data.weights[chosen] == 1).mean() > 0.85
    for label in range(CLASSES):  # half of each class at least
        members = data.labels == label
        assert members[chosen].sum() >= members.sum() / 2
    hard = StudentData(inputs=data.inputs, rows=data.rows, labels=data.labels, classes=CLASSES)
    assert len(sure_places(hard, np.arange(240))) == 240
    assert hard.digest() != data.digest()
    assert (hard.targets.argmax(axis=1) == hard.labels).all()


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"soft": np.ones((2, CLASSES))}, "do not match"),
        ({"weights": np.ones(2)}, "one for each label"),
        ({"weights": np.full(3, 2.0)}, "from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_refused(given, rule):
    with pytest.raises(InvalidInput, match=rule):
        StudentData(
            inputs=np.zeros((3, 2)), rows=[0, 1, 2], labels=[0, 1, 2], classes=CLASSES, **given
        )
