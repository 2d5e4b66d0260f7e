"""Trained teachers survive the disk, in the same bytes, and nothing strange is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from pate.errors import InvalidInput, PateError, TeacherError
from pate.teachers.adapters import build, make
from pate.teachers.persist import load, restore, save
from pate.teachers.protocol import train
from pate.teachers.spec import ModelSpec, Training

EXAMPLES = Path(__file__).parents[3] / "examples" / "custom_teacher"
RNG = np.random.default_rng(0)
X, Y, Q = RNG.normal(size=(60, 8)), np.arange(60) % 3, RNG.normal(size=(200, 8))
MODELS = {
    "sklearn.tree:DecisionTreeClassifier": {},
    "sklearn.linear_model:LogisticRegression": {},
    "sklearn.ensemble:RandomForestClassifier": {"n_estimators": 4},
    "sklearn.ensemble:HistGradientBoostingClassifier": {"max_iter": 3},
    "sklearn.ensemble:AdaBoostClassifier": {"n_estimators": 4},
    "sklearn.neural_network:MLPClassifier": {"hidden_layer_sizes": [5], "max_iter": 20},
    "sklearn.neighbors:KNeighborsClassifier": {},
    "sklearn.svm:SVC": {},
    "sklearn.naive_bayes:GaussianNB": {},
    "boosting:Boosting": {"trees": 3},
    "network:Network": {},
}


def trained(target, y=Y, **settings):
    teacher = build(target, Training(**settings), classes=3, seed=0)
    train(teacher, X, y)
    return teacher


def digest(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("labels", [Y, np.full(60, 2)], ids=["all classes", "one class"])
def test_round_trip(model, labels, tmp_path):
    spec = ModelSpec(model=model, params=MODELS[model], epochs=2)
    options = {"classes": 3, "seed": 5, "plugin_path": EXAMPLES}
    teacher = make(spec, **options)
    train(teacher, X, labels)
    header = save(teacher, tmp_path)
    assert header == json.loads((tmp_path / "teacher.json").read_text())
    again = load(tmp_path, spec, **options)
    np.testing.assert_array_equal(again.predict(Q), teacher.predict(Q))
    if hasattr(teacher, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(Q), teacher.predict_proba(Q))


@pytest.mark.campaign
def test_the_same_teacher_is_the_same_bytes_in_another_process(tmp_path):
    code = f"""
import sys
from pathlib import Path
import numpy as np
from pate.teachers.spec import ModelSpec
from pate.teachers.adapters import make
from pate.teachers.persist import save
from pate.teachers.protocol import train

def run(place):
    models = {{
        "sklearn.ensemble:RandomForestClassifier": {{"n_estimators": 3}},
        "sklearn.neural_network:MLPClassifier": {{"max_iter": 5}},
        "network:Network": {{}},
    }}
    X = np.random.default_rng(0).normal(size=(60, 8))
    for number, (model, params) in enumerate(models.items()):
        spec = ModelSpec(model=model, params=params, epochs=2)
        teacher = make(spec, classes=3, seed=1, plugin_path=Path({str(EXAMPLES)!r}))
        train(teacher, X, np.arange(60) % 3)
        save(teacher, place / str(number))
"""
    other = code + "\nrun(Path(sys.argv[1]))"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", other, tmp_path / "a"], check=True, env=environment)
    here: dict = {}
    exec(code, here)
    here["run"](tmp_path / "b")
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert len(digest(tmp_path / "a")) == 6


class Plain:
    """Everything the array format can hold."""

    def __init__(self, depth=3):
        self.depth, self.name, self.flag, self.nothing, self.rate = depth, "ü", True, None, 0.1

    def fit(self, X, y):
        self.file, self.scalar, self.empty = X.mean(axis=0), np.float32(0.1), np.zeros((0, 2))
        self.text = np.array(["a", "bc"])

    def predict(self, X):
        return ((X - self.file).sum(axis=1) > 0).astype(int)


def test_plain_classes_are_stored_as_arrays(tmp_path):
    teacher = trained(Plain, params={"depth": 9})
    assert save(teacher, tmp_path)["format"] == "arrays"
    again = restore(Plain(), tmp_path)
    assert vars(again).keys() == vars(teacher).keys()
    for name, value in vars(teacher).items():
        assert type(getattr(again, name)) is type(value)
        np.testing.assert_array_equal(getattr(again, name), value)


class Slots:
    __slots__ = ("mean",)

    def fit(self, X, y):
        self.mean = X.mean()

    def predict(self, X):
        return np.zeros(len(X), int)


class Function(Plain):
    def fit(self, X, y):
        self.answer = lambda X: np.zeros(len(X), int)

    def predict(self, X):
        return self.answer(X)


class Model(Plain):
    def fit(self, X, y):
        self.model = DecisionTreeClassifier(random_state=0).fit(X, y)

    def predict(self, X):
        return self.model.predict(X)


def test_an_object_around_a_model_is_stored_by_skops(tmp_path):
    teacher = trained(Model)
    assert save(teacher, tmp_path)["format"] == "skops"
    np.testing.assert_array_equal(restore(Model(), tmp_path).predict(Q), teacher.predict(Q))


class Drifts(Model):
    """Comes back from skops as another teacher."""

    def __setstate__(self, state):
        self.__dict__ = state | {"model": None}

    def predict(self, X):
        return np.zeros(len(X), int) if self.model is None else 1 - self.model.predict(X) % 2


@pytest.mark.parametrize("kind", [Slots, Function, Drifts])
def test_what_cannot_be_stored_is_fitted_again_to_its_shard(kind, tmp_path):
    teacher = trained(kind)
    header = save(teacher, tmp_path, shard=(X, Y), seed=5)
    assert header == {"format": "refit", "seed": 5}
    assert {file.name for file in tmp_path.iterdir()} == {
        "teacher.json",
        "records.npy",
        "labels.npy",
    }
    seeds = []
    again = restore(kind(), tmp_path, remake=lambda seed: seeds.append(seed) or kind())
    assert seeds == [5]
    np.testing.assert_array_equal(again.predict(Q), teacher.predict(Q))
    (tmp_path / "labels.npy").write_bytes(b"")
    with pytest.raises(InvalidInput, match="damaged"):
        restore(kind(), tmp_path)


@pytest.mark.parametrize(("kind", "what"), [(Slots, "slots"), (Function, "answer is a function")])
def test_what_cannot_be_stored_says_to_add_save_and_load(kind, what, tmp_path):
    with pytest.raises(InvalidInput, match=rf"{what}.*save\(folder\) and load\(folder\)"):
        save(trained(kind), tmp_path)
    assert not (tmp_path / "teacher.json").exists()


class ByClassMethod(Plain):
    def save(self, folder):
        np.save(folder / "mean.npy", self.file)

    @classmethod
    def load(cls, folder):
        teacher = cls()
        teacher.file = np.load(folder / "mean.npy", allow_pickle=False)
        return teacher


class BadSave(ByClassMethod):
    def save(self, folder):
        raise OSError("record 31337")


def test_load_may_be_a_class_method(tmp_path):
    teacher = trained(ByClassMethod)
    save(teacher, tmp_path)
    np.testing.assert_array_equal(restore(ByClassMethod(), tmp_path).predict(Q), teacher.predict(Q))
    with pytest.raises(TeacherError, match="save raised OSError in") as caught:
        save(trained(BadSave), tmp_path)
    assert "31337" not in str(caught.value)


class Tied(nn.Module):
    """Two names for one tensor, and one that is not contiguous."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.head = nn.Linear(8, 3)
        self.register_buffer("view", torch.ones(3, 8).t())

    def forward(self, x):
        return self.head(self.b(self.a(x)))


def test_tied_weights(tmp_path):
    teacher = trained(Tied, epochs=1)
    save(teacher, tmp_path)
    again = restore(build(Tied, Training(), classes=3, seed=99), tmp_path)
    np.testing.assert_array_equal(again.predict_proba(Q), teacher.predict_proba(Q))


PIPELINE = """
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeClassifier

def doubled(values):
    return 2 * values

def model():
    return make_pipeline(FunctionTransformer(doubled), DecisionTreeClassifier())
"""


@pytest.fixture
def pipeline(tmp_path):
    """A user's pipeline with a function of their own, trained and saved."""
    (tmp_path / "my_pipeline.py").write_text(PIPELINE)
    options = {"classes": 3, "seed": 0, "plugin_path": tmp_path}
    teacher = make(ModelSpec(model="my_pipeline:model"), **options)
    train(teacher, X, Y)
    save(teacher, tmp_path / "saved")
    return teacher, options


def test_functions_of_the_models_own_module_may_be_loaded(pipeline, tmp_path):
    teacher, options = pipeline
    again = load(tmp_path / "saved", ModelSpec(model="my_pipeline:model"), **options)
    np.testing.assert_array_equal(again.predict(Q), teacher.predict(Q))
    stranger = ModelSpec(model="sklearn.tree:DecisionTreeClassifier")
    with pytest.raises(InvalidInput, match=r"holds my_pipeline\.doubled"):
        load(tmp_path / "saved", stranger, **options)


def with_function(file, module, name):
    """Swaps the harmless function in a saved pipeline for another."""
    with zipfile.ZipFile(file) as old:
        members = {n: old.read(n) for n in old.namelist()}
    text = members["schema.json"].decode()
    assert "my_pipeline" in text
    members["schema.json"] = (
        text.replace('"my_pipeline"', f'"{module}"').replace('"doubled"', f'"{name}"').encode()
    )
    with zipfile.ZipFile(file, "w") as new:
        for n, data in members.items():
            new.writestr(n, data)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("numpy.testing._private.utils", "runstring"),
        ("os", "system"),
        ("builtins", "eval"),
        ("sklearn.utils.fixes", "parse_version"),
    ],
)
def test_an_archive_that_names_other_functions_is_refused(module, function, pipeline, tmp_path):
    with_function(tmp_path / "saved" / "model.skops", module, function)
    with pytest.raises(InvalidInput, match="neither of scikit-learn nor"):
        load(tmp_path / "saved", ModelSpec(model="my_pipeline:model"), **pipeline[1])


def damage(file):
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("target", "file"),
    [
        (DecisionTreeClassifier, "model.skops"),
        (Tied, "model.safetensors"),
        (Plain, "arrays.npz"),
        (Plain, "teacher.json"),
    ],
)
@pytest.mark.parametrize("harm", [damage, Path.unlink, lambda file: file.write_bytes(b"")])
def test_damaged_files_are_named(target, file, harm, tmp_path):
    save(trained(target, epochs=1), tmp_path)
    harm(tmp_path / file)
    fresh = build(target, Training(), classes=3, seed=0)
    with pytest.raises(PateError) as caught:
        restore(fresh, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ['{"format": "arrays"}', "[]", '{"format": "arrays", "values": 3}']
)
def test_an_edited_header_is_damage(text, tmp_path):
    save(trained(Plain), tmp_path)
    (tmp_path / "teacher.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"teacher\.json is damaged"):
        restore(Plain(), tmp_path)


def test_another_model_than_the_saved_one(tmp_path):
    save(trained(Tied, epochs=1), tmp_path)
    with pytest.raises(InvalidInput, match="saved as 'safetensors', and the recipe's model"):
        restore(build(DecisionTreeClassifier, Training(), classes=3, seed=0), tmp_path)
    with pytest.raises(InvalidInput, match="does not hold the weights of this Linear"):
        restore(
            build(
                nn.Linear, Training(params={"in_features": 8, "out_features": 3}), classes=3, seed=0
            ),
            tmp_path,
        )
