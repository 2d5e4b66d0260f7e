"""The contract of teachers holds for the built-in kinds and the examples, and catches others."""

from __future__ import annotations

import doctest
import functools
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from pate.plugins import resolve
from pate.teachers.linear import LogisticTeacher, RidgeTeacher
from pate.testing import check_teacher, stored_as

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom_teacher"


class TorchMLP(nn.Module):
    def __init__(self, classes, hidden=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LazyLinear(hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )

    def forward(self, x):
        return self.layers(x)


def pipeline(max_iter=50):
    return make_pipeline(StandardScaler(), MLPClassifier([8], max_iter=max_iter))


class Centres:
    """The nearest mean: the smallest teacher, and stored as arrays without a word."""

    def fit(self, X, y):
        self.labels = np.unique(y)
        self.means = np.stack([X[y == label].mean(axis=0) for label in self.labels])

    def predict(self, X):
        return self.labels[((X[:, None] - self.means) ** 2).sum(axis=2).argmin(axis=1)]


class Nested(Centres):
    def fit(self, X, y):
        super().fit(X, y)
        self.extra = {"a": [1]}


class Closure(Centres):
    """What it has learned is in a function, which no format takes: it is fitted again."""

    def __init__(self, random_state):
        self.seed = random_state

    def fit(self, X, y):
        super().fit(X, y)
        means, labels = (
            self.means + np.random.default_rng(self.seed).normal(size=8) / 9,
            self.labels,
        )
        self.answer = lambda X: labels[((X[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)]

    def predict(self, X):
        return self.answer(X)


@pytest.mark.parametrize(
    ("teacher", "form"),
    [(Centres, "arrays"), (TorchMLP, "safetensors"), (Nested, "skops"), (Closure, "refit")],
)
def test_any_object_is_kept_in_some_form(teacher, form):
    assert stored_as(teacher) == form
    check_teacher(teacher)


class Images(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(6, 4, 3), nn.Flatten(), nn.LazyLinear(classes))

    def forward(self, x):
        return self.layers(x)


def test_examples_give_the_form_of_records():
    inputs = np.random.default_rng(0).normal(size=(20, 6, 5, 5)).astype(np.float32)
    check_teacher(Images, inputs=inputs, settings={"epochs": 2})
    assert stored_as(Images, inputs=inputs) == "safetensors"
    with pytest.raises(AssertionError, match="fit and predict"):
        check_teacher(Images)


class Undeclared(ClassifierMixin, BaseEstimator):
    """An estimator in scikit-learn's manner that declares no constraints of its parameters."""

    def fit(self, X, y):
        self.centres_ = Centres()
        self.classes_ = np.unique(y)
        self.centres_.fit(X, y)
        return self

    def predict(self, X):
        return self.centres_.predict(X)


@pytest.mark.parametrize(
    "teacher",
    [
        pytest.param(Undeclared, id="estimator without constraints"),
        pytest.param(DecisionTreeClassifier, id="tree"),
        pytest.param(LogisticRegression, id="logistic regression"),
        pytest.param(functools.partial(MLPClassifier, max_iter=30), id="mlp"),
        pytest.param(functools.partial(RandomForestClassifier, n_estimators=5), id="forest"),
        pytest.param(KNeighborsClassifier, id="neighbours"),
        pytest.param(pipeline, id="pipeline from a factory"),
        pytest.param(TorchMLP, id="torch"),
        pytest.param(Centres, id="own class"),
        pytest.param(RidgeTeacher, id="ridge"),
        pytest.param(LogisticTeacher, id="logistic"),
    ],
)
@pytest.mark.sample(4)
def test_built_in_kinds_keep_the_contract(teacher):
    check_teacher(teacher)
    check_teacher(teacher, classes=2, features=3, records=33, seed=5)


@pytest.mark.parametrize("entry", ["boosting:Boosting", "network:Network"])
def test_the_examples_keep_the_contract_and_are_short(entry):
    check_teacher(resolve(entry, path=EXAMPLES), records=40)
    assert len((EXAMPLES / f"{entry.split(':')[0]}.py").read_text().splitlines()) < 40
    assert str(EXAMPLES) not in sys.path


def test_params_reach_the_class():
    check_teacher(DecisionTreeClassifier, params={"max_depth": 2})
    with pytest.raises(Exception, match="max_dept"):
        check_teacher(DecisionTreeClassifier, params={"max_dept": 2})


class NoPredict(Centres):
    predict = None


class Columns(Centres):
    def predict(self, X):
        return super().predict(X)[:, None]


class Scores(Centres):
    def predict(self, X):
        return super().predict(X) + 0.5


class Words(Centres):
    def predict(self, X):
        return super().predict(X).astype(str)


class FromOne(Centres):
    def predict(self, X):
        return super().predict(X) + 1


class Squeezed(Centres):
    def predict(self, X):
        return super().predict(X).squeeze()


class NeedsAll(Centres):
    def fit(self, X, y):
        if len(np.unique(y)) < 3:
            raise ValueError("I want all of them")
        super().fit(X, y)


class NeedsTwo(Centres):
    def fit(self, X, y):
        if len(np.unique(y)) < 2:
            raise ValueError("one class only")
        super().fit(X, y)


class Scales(Centres):
    def fit(self, X, y):
        X -= X.mean(axis=0)
        super().fit(X, y)


class ScalesWhatItCan(Centres):
    def predict(self, X):
        if X.flags.writeable:
            X *= 1.0001
        return super().predict(X)


class Moody(Centres):
    def __init__(self, seed):
        self.seed = seed

    def predict(self, X):
        return np.random.default_rng().integers(0, 2, size=len(X))


class Unseeded(Centres):
    def __init__(self, random_state):
        self.whims = np.random.default_rng().integers(0, 3, size=60)  # its seed is not used

    def predict(self, X):
        return self.whims[: len(X)]


class Forgets(Centres):
    def save(self, folder):
        pass

    def load(self, folder):
        self.labels, self.means = np.array([0]), np.zeros((1, 8))


class Counts(Centres):
    calls = 0

    def predict(self, X):
        self.calls += 1
        return super().predict(X)


class LearnsWhileAsked(Centres):
    def predict(self, X):
        answer = super().predict(X)
        self.means[0] += X.mean(axis=0)
        return answer


class Shared(Centres):
    memory: dict = {}  # noqa: RUF012

    def fit(self, X, y):
        super().fit(X, y)
        self.memory["means"] = self.means

    def predict(self, X):
        self_means, self.means = self.means, self.memory["means"]
        try:
            return super().predict(X) if len(self.means) == len(self.labels) else np.zeros(len(X))
        finally:
            self.means = self_means


class Prints(Centres):
    def fit(self, X, y):
        print("first record", X[0])
        super().fit(X, y)


class DrawsNumpy(Centres):
    def fit(self, X, y):
        np.random.rand()  # noqa: NPY002
        super().fit(X, y)


class DrawsPython(Centres):
    def fit(self, X, y):
        random.random()
        super().fit(X, y)


class DrawsTorch(Centres):
    def predict(self, X):
        torch.rand(1)
        return super().predict(X)


class TooManyLogits(TorchMLP):
    def __init__(self):
        super().__init__(classes=7)


ONE = Centres()
BODY = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
LAZY = nn.LazyLinear(16)
TABLE = np.zeros((3, 8))


class Table(Centres):
    def __init__(self):
        self.table = TABLE[1:]


class Ours(TorchMLP):
    """Says that it was copied, and keeps its layers."""

    def __deepcopy__(self, memo):
        other = type(self)(self.classes)
        other.layers = self.layers
        return other

    def __init__(self, classes):
        super().__init__(classes)
        self.classes, self.layers = classes, OURS


OURS = TorchMLP(3).layers


@pytest.mark.parametrize(
    ("teacher", "rule"),
    [
        (NoPredict, "no fit and predict"),
        (Columns, r"fit and predict: predict returned shape \(60, 1\)"),
        (Scores, "fit and predict: predict returned fractions"),
        (Words, "fit and predict: predict returned type"),
        (FromOne, "fit and predict: predict returned a class that does not exist"),
        (Squeezed, r"any number of records: predict returned shape \(\)"),
        (NeedsAll, "labels its shard never saw: it raised ValueError: I want all of them"),
        (NeedsTwo, "a shard of one class: it raised ValueError: one class only"),
        (Scales, "read-only data: it raised ValueError"),
        (Scales, "data unchanged: "),
        (ScalesWhatItCan, "data unchanged: "),
        (Moody, "one seed, one teacher: "),
        (Moody, "predict only reads: "),
        (Unseeded, "one seed, one teacher: "),
        (Forgets, "save and load: it predicts differently"),
        (Counts, "predict only reads: predict changes attributes"),
        (LearnsWhileAsked, "predict only reads: "),
        (Shared, "independent teachers: training a second teacher changes the first"),
        (lambda: ONE, "nothing shared: the factory returns the same object twice"),
        (lambda: nn.Sequential(BODY, nn.Linear(16, 3)), "nothing shared: two teachers share"),
        (lambda: nn.Sequential(LAZY, nn.Linear(16, 3)), "nothing shared: two teachers share"),
        (Table, "nothing shared: two teachers share"),
        (Ours, "nothing shared: two teachers share"),
        (Prints, "no output: "),
        (DrawsNumpy, "global random state: it draws from the global random state of numpy"),
        (DrawsPython, "global random state of random"),
        (DrawsTorch, "global random state of torch"),
        (TooManyLogits, r"must return logits of shape \(records, 3\)"),
    ],
)
def test_broken_teachers_are_caught_by_the_rule_they_break(teacher, rule, capfd):
    with pytest.raises(Exception, match=rule) as caught:
        check_teacher(teacher)
    assert type(caught.value).__name__ in ("AssertionError", "InvalidInput")
    assert capfd.readouterr() == ("", "")


def test_all_broken_rules_are_listed_at_once():
    class Bad(Prints, DrawsNumpy, Counts):
        pass

    with pytest.raises(AssertionError) as caught:
        check_teacher(Bad)
    first, *rest = str(caught.value).splitlines()
    assert "Bad breaks 3 rules of a teacher:" in first
    assert [line.split(":")[0] for line in rest] == [
        "  - predict only reads",
        "  - no output",
        "  - global random state",
    ]


def test_the_check_leaves_no_trace():
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    with pytest.raises(AssertionError):
        check_teacher(DrawsNumpy)
    check_teacher(TorchMLP)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_the_page_on_own_teachers_is_true():
    page = EXAMPLES.parents[1] / "docs" / "how-to" / "own-teacher.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried >= 8) == (0, True)
