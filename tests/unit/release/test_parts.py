"""Parts of a release: the list of what may leave, checksums, the card, whose code is imported."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

import pate
from pate.accounting.shown import upwards
from pate.errors import InvalidInput
from pate.release.contents import may_leave
from pate.release.importing import needs_trust, require_known
from pate.release.leaks import unpublishable
from pate.release.student import ReleasedStudent, load_student
from pate.release.sums import SUMS, digests, read_sums, rendered, require_whole
from pate.teachers import ModelSpec, make, save


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "student/manifest.json",
        "student/model.pkl",
        "student/own/all.pickle",
        "student/own/../../x.json",
        "student/../votes.npy",
        "labels/counts.npy",
        "encoder/features.npy",
        "encoder/step-0/state.pt",
        "encoder/weights-0.pt",
        "report-private.html",
        "home.json",
        "recipe.json",
        "",
        ".hidden",
    ],
)
def test_what_is_not_on_the_list_stays(name):
    assert not may_leave(name)


@pytest.mark.parametrize("epsilon", [1e-7, 0.123449, 0.99999, 1.0, 4.7291, 14.3784, 99999.5])
def test_the_card_rounds_up_and_by_little(epsilon):
    shown = float(upwards(epsilon))
    assert epsilon <= shown <= epsilon * 1.001
    assert upwards(math.inf) == "∞"


def test_sums_are_read_as_they_are_written(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("x")
    (tmp_path / "c.txt").write_text("y")
    (tmp_path / SUMS).write_text(rendered(digests(tmp_path)))
    assert read_sums(tmp_path) == digests(tmp_path)
    subprocess.run(["sha256sum", "-c", "--quiet", SUMS], cwd=tmp_path, check=True)
    text = (tmp_path / SUMS).read_text()
    outside = text.replace("a/b", "../b")
    for other in ("", text + text, text[:-1], outside, text.upper(), "\n" + text):
        (tmp_path / SUMS).write_text(other)
        with pytest.raises(InvalidInput, match=SUMS):
            read_sums(tmp_path)


def test_only_known_models_are_imported():
    for name in ("ridge", "logistic", "pate.students.networks:Mlp", "sklearn.svm:SVC",
                 "torchvision.models:resnet18"):  # fmt: skip
        require_known(name)
        assert not needs_trust(name, plugin_path=None)
    for name in (
        "os:system",
        "builtins:eval",
        "sklearn.utils:Bunch",
        "sklearn:show_versions",
        "sklearn.base:clone",
        "torchvision.datasets.utils:download_url",
        "torchvision.models:torch.hub.load",
        "pate.students.networks:nn.Module",
        "numpy:fromfile",
        "installed-teacher",
    ):
        assert needs_trust(name, plugin_path=None)


def test_trust_reaches_as_far_as_the_package(tmp_path):
    require_known("numpy:fromfile", trust=("numpy",))
    require_known("installed-teacher", trust=("installed-teacher",))
    (tmp_path / "vouched.py").write_text("import os\nclass Model: pass\n")
    require_known("vouched:Model", plugin_path=tmp_path)
    for name in ("vouched:os.system", "os:system"):
        with pytest.raises(InvalidInput):
            require_known(name, plugin_path=tmp_path, trust=("vouched",))


def test_unpublishable_figures_are_found_wherever_they_are():
    assert list(unpublishable({"a": {"b": [1, {"data_dependent": True}]}}))
    assert not list(unpublishable({"a": {"b": [1, {"publishable": True}]}, "c": None}))


def released(folder, model, X, y):
    """A folder that load_student takes, made by hand."""
    spec = ModelSpec(**model)
    teacher = make(spec, classes=2, seed=0)
    teacher.fit(X, y)
    save(teacher, folder / "student")
    header = {
        "format": 1,
        "model": spec.model_dump(mode="json"),
        "seed": 0,
        "class_names": ["no", "yes"],
        "input": {"shape": [2], "dtype": "float64"},
        "encoder": None,
        "plugins": [],
        "trust": [],
    }
    (folder / "student.json").write_text(json.dumps(header))
    (folder / SUMS).write_text(rendered(digests(folder)))


X, Y = np.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.2]]), np.array([1, 0, 1])


def test_a_student_is_loaded_lazily_and_predicts(tmp_path):
    released(tmp_path, {"model": "sklearn.tree:DecisionTreeClassifier"}, X, Y)
    assert pate.load_student is load_student
    student = pate.load_student(str(tmp_path))
    assert isinstance(student, ReleasedStudent)
    np.testing.assert_array_equal(student.predict(X.tolist()), Y)
    np.testing.assert_array_equal(student.predict_proba(X).argmax(axis=1), Y)
    for wrong in (np.zeros(2), np.zeros((1, 3)), 4.0):
        with pytest.raises(InvalidInput, match=r"the student takes \(n, 2\)"):
            student.predict(wrong)


def test_probabilities_are_there_only_where_the_model_has_them(tmp_path):
    released(tmp_path, {"model": "sklearn.svm:LinearSVC"}, X, Y)
    student = load_student(tmp_path)
    assert not hasattr(student, "predict_proba")
    np.testing.assert_array_equal(student.predict(X), Y)


def test_a_changed_student_is_not_loaded(tmp_path):
    released(tmp_path, {"model": "sklearn.tree:DecisionTreeClassifier"}, X, Y)
    (tmp_path / "student" / "more.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"more\.json does not belong"):
        load_student(tmp_path)
    (tmp_path / "student" / "more.json").unlink()
    file = tmp_path / "student" / "model.skops"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidInput, match=r"model\.skops was damaged"):
        load_student(tmp_path)
    file.unlink()
    with pytest.raises(InvalidInput, match=r"model\.skops is missing"):
        require_whole(tmp_path, "student")
    with pytest.raises(InvalidInput, match="there is no release in"):
        load_student(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "edit",
    [
        {"format": 2},
        {"class_names": ["one"]},
        {"class_names": [1, 2]},
        {"input": {"shape": [-1], "dtype": "float64"}},
        {"input": {"shape": [2], "dtype": "nonsense"}},
        {"seed": "0"},
        {"model": {"model": "a b"}},
        {"encoder": {"steps": ["nonsense"]}},
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path, edit):
    released(tmp_path, {"model": "sklearn.tree:DecisionTreeClassifier"}, X, Y)
    file = tmp_path / "student.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | edit))
    (tmp_path / SUMS).write_text(rendered(digests(tmp_path)))
    with pytest.raises(InvalidInput, match=r"student\.json is damaged, or of another version"):
        load_student(tmp_path)


def test_a_student_of_scikit_learn_brings_no_function_along(tmp_path):
    """A library has functions that run text; only its classes are loaded from a file."""
    released(tmp_path, {"model": "sklearn.tree:DecisionTreeClassifier"}, X, Y)
    model = load_student(tmp_path).model.estimator
    model.sly = clone
    import skops.io

    (tmp_path / "student" / "model.skops").write_bytes(skops.io.dumps(model))
    (tmp_path / SUMS).write_text(rendered(digests(tmp_path)))
    with pytest.raises(InvalidInput, match=r"the model holds sklearn\.base\.clone"):
        load_student(tmp_path)


def test_loading_draws_and_distributes_nothing(tmp_path):
    released(tmp_path, {"model": "sklearn.tree:DecisionTreeClassifier"}, X, Y)
    code = (
        f"import sys, pate; pate.load_student({str(tmp_path)!r}).predict([[0.0, 1.0]])\n"
        "print([m for m in ('ray', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
