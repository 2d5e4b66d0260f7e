"""Models of every kind become teachers, and what a bad one says stays with it."""

from __future__ import annotations

import sys
import threading
import traceback

import numpy as np
import pytest
import torch
from torch import nn

from pate.errors import InvalidInput, TeacherError
from pate.teachers.adapters import build, make
from pate.teachers.protocol import predict_labels, train
from pate.teachers.spec import ModelSpec, Training
from pate.teachers.torch_teacher import TorchTeacher

SECRET = 31337


def spec(model, **settings):
    return ModelSpec(model=model, **settings)


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images[:900], data.target[:900], data.images[900:1300], data.target[900:1300]


def accuracy(teacher, digits):
    X, y, test_X, test_y = digits
    train(teacher, X, y)
    return (predict_labels(teacher, test_X, classes=10) == test_y).mean()


@pytest.mark.parametrize(
    "model",
    ["sklearn.tree:DecisionTreeClassifier", "sklearn.linear_model:RidgeClassifier"],
)
def test_scikit_learn_sees_images_flat_and_learns(model, digits):
    assert accuracy(make(spec(model), classes=10, seed=0), digits) > 0.7


def test_seeds_are_given_where_params_say_nothing():
    name = "sklearn.tree:DecisionTreeClassifier"
    assert make(spec(name), classes=2, seed=7).estimator.random_state == 7
    given = spec(name, params={"random_state": 3})
    assert make(given, classes=2, seed=7).estimator.random_state == 3
    make(spec("sklearn.naive_bayes:GaussianNB"), classes=2, seed=7)


class Net(nn.Module):
    def __init__(self, classes, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(hidden), nn.ReLU())
        self.norm, self.drop = nn.BatchNorm1d(hidden), nn.Dropout(0.2)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        assert x.dtype == torch.float32
        return self.head(self.drop(self.norm(self.body(x))))


def torch_teacher(module=Net, classes=10, seed=0, **settings):
    return build(module, Training(**settings), classes=classes, seed=seed)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_torch_modules_learn(optimizer, digits):
    teacher = torch_teacher(optimizer=optimizer, epochs=4, weight_decay=1e-4)
    assert isinstance(teacher, TorchTeacher)
    assert accuracy(teacher, digits) > 0.8


def test_torch_training_is_a_function_of_seed_and_data(digits):
    X, y = digits[0][:100], digits[1][:100]

    def weights(seed, noise=0):
        torch.rand(noise)  # the global state must not matter
        teacher = torch_teacher(seed=seed, epochs=2)
        train(teacher, X, y)
        return torch.cat([p.detach().flatten() for p in teacher.module.parameters()])

    before = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, weights(1, noise=5))
    assert not torch.equal(first, weights(2))


@pytest.mark.parametrize(("records", "batch_size"), [(33, 32), (1, 32), (5, 1), (3, 2), (65, 64)])
def test_batch_norm_survives_a_batch_of_one(records, batch_size):
    rng = np.random.default_rng(0)
    teacher = torch_teacher(classes=3, epochs=2, batch_size=batch_size)
    train(teacher, rng.normal(size=(records, 4)), np.arange(records) % 3)
    assert len(predict_labels(teacher, rng.normal(size=(7, 4)), classes=3)) == 7


def test_every_record_is_used_once_in_an_epoch():
    from pate.teachers.torch_teacher import batch_slices

    for n in (1, 2, 31, 32, 33, 64, 65):
        batches = [torch.arange(n)[cut] for cut in batch_slices(n, 32)]
        assert torch.cat(batches).tolist() == list(range(n))
        assert n == 1 or min(map(len, batches)) > 1


def test_predictions_come_in_chunks_and_may_be_none():
    teacher = torch_teacher(classes=3, epochs=1)
    train(teacher, np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 3)
    many = np.random.default_rng(1).normal(size=(2500, 4))
    whole = predict_labels(teacher, many, classes=3)
    np.testing.assert_array_equal(whole[2000:], predict_labels(teacher, many[2000:], classes=3))
    assert predict_labels(teacher, many[:0], classes=3).shape == (0,)
    np.testing.assert_allclose(teacher.predict_proba(many).sum(axis=1), 1)


class Explodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return (x[:, :3] + self.w) * float("inf")


class Frozen(nn.Module):
    def forward(self, x):
        return x[:, :3]


@pytest.mark.parametrize(
    ("module", "message"), [(Explodes, "loss is not finite"), (Frozen, "no parameters to train")]
)
def test_torch_modules_that_cannot_learn(module, message):
    with pytest.raises(TeacherError, match=message):
        train(torch_teacher(module, classes=3), np.ones((4, 5)), np.arange(4) % 3)


def test_torch_refuses_labels_beyond_the_classes_without_naming_them():
    with pytest.raises(TeacherError) as caught:
        train(torch_teacher(classes=3), np.ones((2, 4)), np.array([0, SECRET]))
    assert str(SECRET) not in str(caught.value)


def test_torchvision_models_come_through_the_door():
    model = spec("torchvision.models:squeezenet1_1", params={"num_classes": 4})
    teacher = make(model, classes=4, seed=0)
    assert predict_labels(teacher, np.zeros((2, 3, 32, 32)), classes=4).shape == (2,)


def test_a_module_with_its_own_fit_is_used_as_it_is():
    class Own(Net):
        def fit(self, X, y):
            pass

        def predict(self, X):
            return np.zeros(len(X))

    assert type(torch_teacher(Own)) is Own


@pytest.mark.parametrize(
    ("model", "params", "message"),
    [
        ("sklearn.tree:DecisionTreeClassifier", {"max_dept": 3}, "max_dept"),
        ("sklearn.tree:DecisionTreeClassifier", {"max_depth": -3}, "'max_depth' parameter.*-3"),
        ("sklearn.tree:DecisionTreeClasifier", {}, "did you mean 'DecisionTreeClassifier'"),
        ("sklearn.preprocessing:StandardScaler", {}, "no fit and predict"),
        ("math:pi", {}, "name its class or a function"),
        ("builtins:dict", {}, "makes a dict, which has no fit and predict"),
        ("sklearn.tree.DecisionTreeClassifier", {}, "did you mean 'sklearn.tree:DecisionTree"),
        ("boosting", {}, "no installed package offers it in 'pate.teachers'"),
    ],
)
def test_models_that_cannot_be_made(model, params, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        make(spec(model, params=params), classes=3, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("thing", [Net(3), object()])
def test_one_object_cannot_be_every_teacher(thing):
    with pytest.raises(InvalidInput, match="every teacher is its own"):
        torch_teacher(thing)


class Talks:
    """Says its secret in every way it can."""

    def __init__(self, answer=None, where="fit"):
        self.answer, self.where = answer, where

    def say(self):
        import logging
        import warnings

        print(SECRET)
        print(SECRET, file=sys.stderr)
        logging.warning(SECRET)
        warnings.warn(str(SECRET), stacklevel=1)

    def fit(self, X, y):
        self.say()
        if self.where == "fit":
            raise ValueError(f"bad label {SECRET}")

    def predict(self, X):
        self.say()
        if self.where == "predict":
            raise SystemExit(f"bad label {SECRET}")
        return self.answer


@pytest.mark.parametrize("where", ["fit", "predict"])
def test_what_a_teacher_says_goes_nowhere(where, capfd):
    teacher = Talks(where=where)
    name = {"fit": "ValueError", "predict": "SystemExit"}[where]
    use = {
        "fit": lambda: train(teacher, np.ones((2, 2)), np.arange(2)),
        "predict": lambda: predict_labels(teacher, np.ones((2, 2)), classes=2),
    }
    with pytest.raises(TeacherError, match=f"{where} raised {name} in .*py line") as caught:
        use[where]()
    text = "".join(traceback.format_exception(caught.value))
    assert str(SECRET) not in text
    assert caught.value.__context__ is None
    assert str(SECRET) not in "".join(capfd.readouterr())


def test_a_student_may_say_why_it_failed():
    with pytest.raises(TeacherError, match=f"bad label {SECRET}"):
        train(Talks(), np.ones((2, 2)), np.arange(2), private=False)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([SECRET], r"shape \(1,\); it must"),
        ([[SECRET, 0]], r"shape \(1, 2\); it must"),
        (SECRET, r"shape \(\)"),
        ([0, SECRET], "class that does not exist; labels are 0 … 2"),
        ([0, -SECRET], "class that does not exist"),
        ([0, 3.0], "class that does not exist"),
        ([0.5, SECRET], "fractions or NaN"),
        ([np.nan, 0], "fractions or NaN"),
        ([np.inf, 0], "class that does not exist"),
        (["0", str(SECRET)], "returned type"),
        ([None, SECRET], "returned type object"),
        ([1j, 0], "returned type complex"),
        (None, "shape"),
        ([[0], [0, 1]], "predict raised ValueError"),
    ],
)
def test_answers_that_are_no_labels(answer, message):
    teacher = Talks(answer=answer, where="")
    with pytest.raises(TeacherError, match=message) as caught:
        predict_labels(teacher, np.ones((2, 2)), classes=3)
    assert str(SECRET) not in str(caught.value)


@pytest.mark.parametrize(
    "answer", [[0, 2], [0.0, 2.0], np.array([0, 2], np.uint8), torch.tensor([0, 2]), (0, 2)]
)
def test_answers_that_are_labels(answer):
    labels = predict_labels(Talks(answer=answer, where=""), np.ones((2, 2)), classes=3)
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones((0, 3)), np.ones(0, int), "no records"),
        (np.ones((3, 3)), np.ones(2, int), "do not match"),
        (np.ones((3, 3)), np.ones((3, 1), int), "do not match"),
        (np.ones((3, 3)), np.ones(3), "type float64"),
    ],
)
def test_shards_that_cannot_be_learned_from(X, y, message):
    with pytest.raises(TeacherError, match=message):
        train(make(spec("sklearn.tree:DecisionTreeClassifier"), classes=2, seed=0), X, y)


BODY = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU())
MEANS = np.zeros(3)


class Kept:
    """Trains in place on an array of its module."""

    def __init__(self):
        self.means = MEANS

    def fit(self, X, y):
        self.means += X.mean()
        return self

    def predict(self, X):
        return np.full(len(X), int(self.means[0] > 0))


class Locked(Kept):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Slotted:
    __slots__ = ("lock",)

    def __init__(self):
        self.lock = threading.Lock()

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.zeros(len(X), int)


def test_layers_of_a_module_are_no_bridge_between_teachers():
    def net(classes):
        return nn.Sequential(BODY, nn.Linear(4, classes))

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 6)), rng.integers(0, 3, 30)
    before = [value.clone() for value in BODY.state_dict().values()]
    first, second = (torch_teacher(net, classes=3) for _ in range(2))
    apart = torch_teacher(net, classes=3)
    apart.fit(X, y)
    first.fit(X + 5, y)
    second.fit(X, y)
    kept = zip(BODY.state_dict().values(), before, strict=True)
    assert all(torch.equal(value, old) for value, old in kept)
    states = [teacher.module.state_dict().values() for teacher in (second, apart)]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert not torch.equal(first.module[1].weight, second.module[1].weight)


def test_arrays_of_a_module_are_no_bridge_either():
    teacher = build(Kept, Training(), classes=2, seed=0)
    teacher.fit(np.ones((3, 2)), np.zeros(3, int))
    assert teacher.means.tolist() == [1, 1, 1]
    assert MEANS.tolist() == [0, 0, 0]
    one = Kept()
    assert build(lambda: one, Training(), classes=2, seed=0) is not one


def test_what_cannot_be_copied_must_be_new_each_time():
    one = Locked()
    assert build(lambda: one, Training(), classes=2, seed=0) is one
    with pytest.raises(InvalidInput, match="one Locked object again"):
        build(lambda: one, Training(), classes=2, seed=0)
    assert build(Locked, Training(), classes=2, seed=0) is not one
    with pytest.raises(InvalidInput, match="neither be copied nor referenced weakly"):
        build(Slotted, Training(), classes=2, seed=0)

    def net(classes):
        module = nn.Linear(4, classes)
        module.lock = threading.Lock()
        return module

    with pytest.raises(InvalidInput, match="cannot be copied"):
        torch_teacher(net)
