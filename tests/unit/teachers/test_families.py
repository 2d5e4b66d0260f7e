"""Families: who goes together, and that one member's trouble stays its own."""

from __future__ import annotations

import numpy as np
import pytest

from pate.errors import InvalidInput, TeacherError
from pate.teachers.adapters import make
from pate.teachers.linear import RidgeTeacher
from pate.teachers.protocol import group_families, predict_many_labels, train_many
from pate.teachers.spec import ModelSpec

SECRET = 31337
X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 3


class Plain:
    """Says what it was told; has trouble with a mark in its records."""

    def fit(self, X, y):
        if (X == SECRET).any():
            raise ValueError(f"bad {SECRET}")
        self.label = int(y[0])
        return self

    def predict(self, X):
        if self.label == 2:
            raise ValueError(f"bad {SECRET}")
        return np.full(len(X), self.label)


class Group(Plain):
    """The same, with a way to do all at once."""

    calls: list = []  # noqa: RUF012

    def __init__(self, kind=0):
        self.kind = kind

    def family(self):
        return self.kind

    @classmethod
    def fit_many(cls, teachers, shards):
        print(SECRET)
        cls.calls.append(("fit", [t is not None for t in teachers]))
        told = []
        for teacher, shard in zip(teachers, shards, strict=True):
            told.append(None)
            if teacher is not None:
                teacher.fit(*shard)
        return told

    @classmethod
    def predict_many(cls, teachers, X):
        cls.calls.append(("predict", [t is not None for t in teachers]))
        return np.stack([np.zeros(len(X)) if t is None else t.predict(X) for t in teachers])


@pytest.fixture(autouse=True)
def _forget():
    Group.calls.clear()


def test_who_goes_together():
    tree = ModelSpec(model="sklearn.tree:DecisionTreeClassifier")
    trees = [make(tree, classes=3, seed=0) for _ in range(2)]
    ridges = [RidgeTeacher(classes=3), RidgeTeacher(classes=3), RidgeTeacher(classes=4)]
    assert group_families([*trees, None, *ridges]) == [[0], [1], [3, 4], [5]]
    assert group_families([Group(), Group(1), Group()]) == [[0, 2], [1]]
    assert group_families([Group([]), Group([])]) == [[0], [1]]  # it cannot be a key


def test_a_family_is_trained_and_asked_in_one_call(capfd):
    teachers = [Group(), None, Group()]
    shards = [(X, Y), None, (X, Y[::-1] % 2)]
    assert train_many(teachers, shards) == [None, None, None]
    first, nobody, last = predict_many_labels(teachers, X, classes=3)
    assert (first.tolist(), nobody, last.tolist()) == ([0] * 6, None, [0] * 6)
    assert Group.calls == [("fit", [True, False, True]), ("predict", [True, False, True])]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("cls", [Group, Plain])
def test_one_members_failure_is_its_own_and_says_nothing(cls):
    bad = X.copy()
    bad[0, 0] = SECRET
    shards = [(X, Y), (bad, Y), (X, Y + 1), (X[:0], Y[:0]), (X, Y + 2), (X, Y * 0.5)]
    teachers = [cls() for _ in shards]
    errors = train_many(teachers, shards)
    assert [e is None for e in errors] == [True, False, True, False, True, False]
    assert all(isinstance(e, TeacherError) for e in errors if e is not None)
    assert "fit raised ValueError" in str(errors[1])
    assert "no records" in str(errors[3])
    answers = predict_many_labels([teachers[0], teachers[2], teachers[4]], X, classes=3)
    assert answers[0].tolist() == [0] * 6
    assert answers[1].tolist() == [1] * 6
    assert "predict raised ValueError" in str(answers[2])
    assert str(SECRET) not in f"{errors}{answers}"


def test_a_prediction_that_is_no_label_spoils_no_other():
    teachers = [Group(), Group()]
    train_many(teachers, [(X, Y), (X, Y + 1)])
    fine, bad = predict_many_labels(teachers, X, classes=1)
    assert fine.tolist() == [0] * 6
    assert "class that does not exist" in str(bad)


@pytest.mark.parametrize("told", [[], [None], ["fine", "fine"], None])
def test_a_family_that_answers_nonsense_is_trained_one_by_one(told):
    class Odd(Group):
        @classmethod
        def fit_many(cls, teachers, shards):
            return told

        @classmethod
        def predict_many(cls, teachers, X):
            return np.zeros(3)

    teachers = [Odd(), Odd()]
    assert train_many(teachers, [(X, Y), (X, Y + 1)]) == [None, None]
    said = predict_many_labels(teachers, X, classes=3)
    assert [labels[0] for labels in said] == [0, 1]


def test_errors_of_ours_from_a_whole_family_send_it_apart_too():
    class Refuses(Group):
        @classmethod
        def fit_many(cls, teachers, shards):
            raise InvalidInput("not today")

    assert train_many([Refuses(), Refuses()], [(X, Y), (X, Y)]) == [None, None]
