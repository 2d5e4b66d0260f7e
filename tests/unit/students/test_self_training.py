"""Rounds of self-training: which labels they take, and what the section may say."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_digits

from pate.errors import InvalidInput, TeacherError
from pate.students import self_training as module
from pate.students.self_training import Round, most_confident, planned_rounds
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, Tools, train_student
from pate.teachers.protocol import predict_labels
from pate.teachers.torch_teacher import TorchTeacher

KNN = "sklearn.neighbors:KNeighborsClassifier"


def data(labelled=60, inputs=500, labels=None, features=None):
    digits = load_digits()
    return StudentData(
        inputs=(digits.images[:inputs] / 16).astype(np.float32),
        features=features,
        rows=np.arange(labelled),
        labels=digits.target[:labelled] if labels is None else labels,
        classes=10,
    )


def spec(**settings):
    small = {"model": "small-cnn", "params": {"channels": [4, 8, 8]}, "augment": "none"}
    quick = {"epochs": 1, "first_epochs": 1, "method": "self-training"}
    return StudentSpec.model_validate(small | quick | settings)


@pytest.fixture
def seen(monkeypatch):
    """What every fit of a round learns from: (round, rows, what is said of them)."""
    found = []
    inner = module._targets

    def spy(each, *rest):
        rows, targets = inner(each, *rest)
        found.append((each, rows, targets))
        return rows, targets

    monkeypatch.setattr(module, "_targets", spy)
    return found


def test_every_class_keeps_its_share():
    rng = np.random.default_rng(0)
    table = rng.dirichlet([0.2] * 4, size=1000)
    table[:, 3] *= 0.3  # a class nobody is sure of
    for fraction in (0.1, 0.5, 1.0):
        chosen = most_confident(table, fraction=fraction)
        for label in range(4):
            members = table.argmax(axis=1) == label
            assert chosen[members].sum() == np.ceil(fraction * members.sum())
            if (members & ~chosen).any():
                assert table[members & chosen].max(axis=1).min() >= (
                    table[members & ~chosen].max(axis=1).max()
                )


def test_rounds_take_more_and_keep_released_labels(seen):
    given = data()
    train_student(spec(fractions=[0.3, 0.6, 1.0]), given)
    assert [each.fraction for each, _, _ in seen] == [0.3, 0.6, 1.0]
    sizes = [len(rows) for _, rows, _ in seen]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 500
    for _, rows, targets in seen:
        assert set(given.rows) <= set(rows)
        np.testing.assert_array_equal(targets[np.isin(rows, given.rows)].argmax(1), given.labels)
        np.testing.assert_allclose(targets.sum(axis=1), 1)


def test_released_labels_that_all_deny_can_go():
    given = data()
    table = np.full((500, 10), 0.01)
    table[np.arange(500), load_digits().target[:500]] = 0.91
    table[5] = np.roll(table[5], 1)
    table[6] = 0.1

    def rows(overrule):
        each = Round(epochs=1, confidence=0.95)  # no pseudo-label passes
        chosen, _ = module._targets(each, table, given, np.arange(60), spec(overrule=overrule))
        return chosen.tolist()

    assert rows(1.0) == rows(0.92) == list(range(60))
    assert rows(0.9) == [row for row in range(60) if row != 5]


def test_one_label_said_twice_in_two_ways(seen):
    given = StudentData(
        inputs=data().inputs,
        rows=np.array([0, 0, 1, 2]),
        labels=np.array([0, 8, 1, 2]),
        classes=10,
    )
    train_student(spec(fractions=[0.1]), given)
    _, rows, targets = seen[0]
    np.testing.assert_allclose(targets[rows == 0][0, [0, 8]], [0.5, 0.5])


def test_the_start_is_the_graph_or_the_model(seen):
    train_student(spec(fractions=[0.5]), data())
    assert [len(rows) > 200 for _, rows, _ in seen] == [True]
    seen.clear()
    train_student(spec(fractions=[0.5], start="model"), data())
    assert len(seen[0][1]) == 60
    assert len(seen) == 2


def test_the_graph_is_of_features_where_there_are_any(seen):
    truth = np.eye(10)[load_digits().target[:500]]
    train_student(spec(fractions=[1.0]), data(features=truth))
    (_, rows, targets) = seen[0]
    np.testing.assert_array_equal(targets.argmax(axis=1), load_digits().target[rows])


def test_folds_are_labelled_by_others(monkeypatch):
    """With folds, no input is labelled by a network that learnt its label."""
    from pate.students import training

    learnt, asked = [], []
    fit, predict = training.fit_table, TorchTeacher.predict_proba

    def fitting(teacher, inputs, *rest, **settings):
        learnt.append({each.numpy().tobytes() for each in inputs})
        fit(teacher, inputs, *rest, **settings)

    def predicting(teacher, X):
        asked.append(X)
        return predict(teacher, X)

    monkeypatch.setattr(training, "fit_table", fitting)
    monkeypatch.setattr(TorchTeacher, "predict_proba", predicting)
    given = data(inputs=300)
    train_student(spec(fractions=[1.0, 1.0], folds=3), given)
    released = {each.tobytes() for each in given.inputs[given.rows]}
    assert len(learnt) == 4
    assert len(asked) == 3
    for knew, said in zip(learnt[:3], asked, strict=True):
        assert not knew & {each.tobytes() for each in said} - released
    assert sum(map(len, asked)) == 300 + 2 * 60


def test_stopping_goes_by_labels_held_out(seen):
    """Labels at random: no round can be better than the first for long."""
    labels = np.random.default_rng(0).integers(0, 10, 60)
    held = spec(fractions=[0.5] * 9, validation=0.5, patience=1)
    train_student(held, data(labels=labels))
    assert len(seen) < 9
    learn, _ = Tools(spec=held, classes=10).held_out(data())
    for _, rows, _ in seen:
        assert set(learn) <= set(rows)


def test_any_model_can_start_from_the_graph():
    truth = load_digits().target[:500]
    given = data(features=np.eye(10)[truth])
    right = {}
    for start in ("model", "propagation"):
        section = {"model": KNN, "params": {"n_neighbors": 1}, "start": start, "fractions": [1.0]}
        student = train_student(StudentSpec(method="self-training", **section), given)
        assert student.estimator.n_samples_fit_ == 500
        right[start] = (predict_labels(student, given.inputs, classes=10) == truth).mean()
    assert right["propagation"] == 1 > right["model"]


def test_plans():
    assert [each.epochs for each in planned_rounds(spec(epochs=14, first_epochs=5))][::6] == [5, 14]
    assert planned_rounds(spec(epochs=3, first_epochs=9, fractions=[1.0])) == [
        Round(epochs=3, fraction=1.0)
    ]
    threshold = planned_rounds(spec(confidence=0.8))
    assert [(each.fraction, each.confidence) for each in threshold] == [(None, 0.8)] * 3


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"fractions": [0.5], "rounds": 3}, "one for each round"),
        ({"fractions": [0.5], "confidence": 0.8}, "one for each round"),
        ({"fractions": [0.0]}, "greater than 0"),
        ({"augment": "blur"}, "'blur' is neither one of auto, none, shift, affine, randaugment"),
        ({"propagation": {"alpha": 1.0}}, "less than 1"),
        ({"propagation": {"neighbors": 3}}, "Extra inputs"),
        ({"method": "supervised", "fractions": [0.5]}, "'fractions' belongs to method"),
        (
            {"method": "supervised", "propagation": {"neighbours": 3}},
            "'propagation' belongs to method",
        ),
    ],
)
def test_sections_that_are_refused(section, message):
    with pytest.raises(ValidationError, match=message):
        spec(**section) if "method" not in section else StudentSpec(model="small-cnn", **section)


@pytest.mark.parametrize("key", [{"augment": "shift"}, {"smoothing": 0.1}, {"average": 0.9}])
@pytest.mark.parametrize("method", ["supervised", "self-training"])
def test_keys_for_torch_are_refused_elsewhere(key, method):
    with pytest.raises(InvalidInput, match=f"{next(iter(key))!r} is for torch modules"):
        train_student(StudentSpec(model=KNN, method=method, **key), data())


def test_a_single_fit_has_nothing_to_stop():
    with pytest.raises(InvalidInput, match="fitted once"):
        train_student(StudentSpec(model=KNN, validation=0.2), data())


def test_a_network_that_does_not_fit_the_inputs_says_so():
    flat = StudentData(inputs=np.ones((30, 5)), rows=[0, 1], labels=[0, 1], classes=2)
    with pytest.raises(
        TeacherError, match=r"the student failed: the module raised .*8 pixels a side"
    ):
        train_student(StudentSpec(model="small-cnn", method="self-training"), flat)
