"""A release may come from anybody: what it holds is read, never run, and nothing outside it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import netcdf_file
from sklearn.datasets import load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import all_estimators

from pate.encoders.persist import load_encoder
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.release.importing import require_known
from pate.release.student import load_student
from pate.release.sums import SUMS, digests, rendered
from pate.teachers import ModelSpec, make, save
from pate.teachers.archive import pack, unpack
from pate.vision import torchvision

X, Y = np.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.2]]), np.array([1, 0, 1])
TREE = "sklearn.tree:DecisionTreeClassifier"
IRIS = load_iris(return_X_y=True)


@pytest.fixture
def release(tmp_path):
    """A release of a tree, made by hand."""
    folder = tmp_path / "out"
    spec = ModelSpec(model=TREE)
    teacher = make(spec, classes=2, seed=0)
    teacher.fit(X, Y)
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
    summed(folder)
    return folder


def summed(folder):
    (folder / SUMS).write_text(rendered(digests(folder)))


def edited(data, edit):
    """The archive with its schema changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        members = {name: old.read(name) for name in old.namelist()}
    schema = json.loads(members["schema.json"])
    members["schema.json"] = json.dumps(edit(schema) or schema).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)
    return out.getvalue()


def forge(release, **changes):
    """Changes what the student's archive says it is; the checksums are right again."""
    file = release / "student" / "model.skops"
    file.write_bytes(edited(file.read_bytes(), lambda schema: schema.update(changes)))
    summed(release)


LOADS = (
    "import sys, pate\ntry:\n    pate.load_student({!r})\nexcept pate.PateError as e: print(e)\n"
)


@pytest.mark.parametrize(
    ("module", "loader"),
    [
        ("numpy.f2py.__main__", "ObjectNode"),
        ("numpy.f2py.__main__", "TypeNode"),
        ("numpy.testing.print_coercion_tables", "LossNode"),
    ],
)
def test_no_module_is_imported_because_an_archive_names_it(module, loader, release):
    empty = {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode"}
    forge(
        release,
        __module__=module,
        __class__="x",
        __loader__=loader,
        __reduce__={"args": {**empty, "content": []}},
    )
    program = LOADS.format(str(release)) + f"print({module!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True
    )
    said, imported = done.stdout.splitlines()
    assert f"holds {module}.x, which is neither" in said
    assert imported == "False"


def test_a_program_that_ends_the_process_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "leaves_early.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    model = pack(DecisionTreeClassifier().fit(X, Y), home="sklearn")
    file = tmp_path / "model.skops"
    file.write_bytes(
        edited(model, lambda s: s.update(__module__="leaves_early", __class__="Model"))
    )
    with pytest.raises(InvalidInput, match=r"holds leaves_early\.Model"):
        unpack(file, home="leaves_early", kind=DecisionTreeClassifier)


@pytest.mark.parametrize("name", ["sklearn.conftest:pytest", "sklearn.tests.test_base:MyEstimator"])
def test_no_program_or_test_of_scikit_learn_is_a_student(name):
    before = set(sys.modules)
    with pytest.raises(InvalidInput, match="the release needs"):
        require_known(name)
    assert name.partition(":")[0] not in set(sys.modules) - before


@pytest.mark.parametrize(
    "value", [netcdf_file, np.load, np.memmap, DecisionTreeClassifier, KNeighborsClassifier.fit]
)
def test_no_callable_of_a_library_is_a_value(value):
    model = make_pipeline(FunctionTransformer(value), DecisionTreeClassifier())
    with pytest.raises(InvalidInput, match="neither of scikit-learn nor"):
        pack(model, home="sklearn.pipeline")


def test_a_piece_of_a_model_is_not_called_either(tmp_path):
    """A name that may be loaded as an object is still refused as a function or a constructor."""
    model = make_pipeline(FunctionTransformer(np.exp), DecisionTreeClassifier()).fit(X, Y)
    data = pack(model, home="sklearn.pipeline")

    def call(name, loader):
        module, _, kind = name.rpartition(".")

        def swap(node):
            if isinstance(node, dict):
                if node.get("__loader__") == "FunctionNode":
                    node.update(__module__=module, __class__=kind, __loader__=loader)
                    empty = {"__class__": "tuple", "__module__": "builtins"}
                    node["content"] = {**empty, "__loader__": "TupleNode", "content": []}
                    node["__reduce__"] = {"args": node["content"]}
                for child in list(node.values()):
                    swap(child)
            elif isinstance(node, list):
                for child in node:
                    swap(child)

        return swap

    for name in ("sklearn.tree._tree.Tree", "sklearn.neighbors._kd_tree.KDTree"):
        for loader in ("FunctionNode", "TypeNode", "LossNode", "ConstructorFromReduceNode"):
            (tmp_path / "m").write_bytes(edited(data, call(name, loader)))
            with pytest.raises(InvalidInput, match=f"holds {name}"):
                unpack(tmp_path / "m", home="sklearn.pipeline", kind=type(model))


def test_the_oldest_archives_are_refused(tmp_path):
    data = pack(DecisionTreeClassifier().fit(X, Y), home="sklearn")
    (tmp_path / "m").write_bytes(edited(data, lambda schema: schema.update(protocol=0)))
    with pytest.raises(InvalidInput, match="too old"):
        unpack(tmp_path / "m", home="sklearn", kind=DecisionTreeClassifier)


def test_what_a_trusted_module_has_imported_is_not_its_own(tmp_path, monkeypatch):
    (tmp_path / "vouched_for.py").write_text("from os import system\ndef own(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import vouched_for

    model = make_pipeline(FunctionTransformer(vouched_for.own), DecisionTreeClassifier())
    data = pack(model.fit(X, Y), home="vouched_for")
    file = tmp_path / "m"
    file.write_bytes(data)
    np.testing.assert_array_equal(
        unpack(file, home="vouched_for", kind=type(model)).predict(X), model.predict(X)
    )
    file.write_bytes(edited(data, lambda s: json.loads(json.dumps(s).replace('"own"', '"system"'))))
    with pytest.raises(InvalidInput, match=r"holds vouched_for\.system"):
        unpack(file, home="vouched_for", kind=type(model))


def test_the_model_is_of_the_class_that_is_named(release):
    model = KNeighborsClassifier(1).fit(X, Y)
    (release / "student" / "model.skops").write_bytes(pack(model, home="sklearn"))
    summed(release)
    with pytest.raises(InvalidInput, match="holds a KNeighborsClassifier, and the recipe's model"):
        load_student(release)


def models():
    for name, kind in all_estimators(type_filter="classifier"):
        yield pytest.param(kind, id=name)
    tree = DecisionTreeClassifier(random_state=0)
    yield pytest.param(lambda: VotingClassifier([("a", tree), ("b", tree)]), id="votes")
    yield pytest.param(lambda: make_pipeline(OneHotEncoder(), tree), id="one-hot")
    yield pytest.param(
        lambda: GridSearchCV(tree, {"max_depth": [1, 2]}, cv=StratifiedKFold(2)), id="search"
    )
    yield pytest.param(
        lambda: KNeighborsClassifier(algorithm="ball_tree", metric="manhattan"), id="balls"
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of classes that scikit-learn retires
@pytest.mark.parametrize("kind", list(models()))
def test_every_classifier_of_scikit_learn_survives(kind, tmp_path):
    features, labels = IRIS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = kind().fit(features, labels)
    except (TypeError, ValueError):
        pytest.skip("needs arguments")
    (tmp_path / "m").write_bytes(pack(model, home="sklearn"))
    again = unpack(tmp_path / "m", home="sklearn", kind=type(model))
    np.testing.assert_array_equal(again.predict(features), model.predict(features))


def backbone(release, weights):
    """The release with an encoder whose network has its weights in a file of this name."""
    step = {"name": "torch", "model": "torchvision.models:resnet18", "channels": 3}
    header = json.loads((release / "student.json").read_text())
    header["encoder"] = {"steps": [{**step, "weights": weights}]}
    header["input"]["shape"] = [32, 32]
    (release / "student.json").write_text(json.dumps(header))
    spec = EncoderSpec.model_validate(header["encoder"])
    place = release / "encoder" / "step-0"
    place.mkdir(parents=True, exist_ok=True)
    file = release / weights
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "0" * 64
    (place / "weights.json").write_text(json.dumps({"sha256": digest}))
    kept = {
        "steps": [{"name": each.name, **each.settings()} for each in spec.steps],
        "widest": 512,
        "input_shape": [32, 32],
        "shape": [512],
    }
    (release / "encoder" / "encoder.json").write_text(json.dumps(kept))
    summed(release)
    return spec


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Weights of a network, as safetensors and as torch's own."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("states")
    state = torchvision().models.resnet18().state_dict()
    save_file(state, folder / "a.safetensors")
    torch.save(state, folder / "a.pt")
    return folder


@pytest.mark.parametrize(
    ("weights", "source"),
    [
        ("../outside.pt", "a.pt"),
        ("../outside.safetensors", "a.safetensors"),
        ("encoder/weights-0.pt", "a.pt"),
        ("encoder/../encoder/weights-0.safetensors", "a.safetensors"),
        ("encoder/step-0/weights-0.safetensors", "a.safetensors"),
        ("encoder/weights-٣.safetensors", "a.safetensors"),
    ],
)
def test_weights_are_files_of_the_release(weights, source, release, states):
    (release / "encoder" / "step-0").mkdir(parents=True)
    os.link(states / source, release / weights)
    backbone(release, weights)
    with pytest.raises(InvalidInput, match=r"names the weights|SHA256SUMS"):
        load_student(release)


def test_weights_are_not_taken_from_beside_the_callers_code(release, states, tmp_path):
    (tmp_path / "plugins" / "encoder").mkdir(parents=True)
    os.link(states / "a.safetensors", tmp_path / "plugins" / "encoder" / "weights-0.safetensors")
    backbone(release, "encoder/weights-0.safetensors")
    with pytest.raises(InvalidInput, match="names the weights"):
        load_student(release, tmp_path / "plugins")


def test_weights_of_the_release_itself_are_read(release, states):
    (release / "encoder").mkdir()
    os.link(states / "a.safetensors", release / "encoder" / "weights-0.safetensors")
    backbone(release, "encoder/weights-0.safetensors")
    assert load_student(release).encoder is not None


def test_weights_that_lead_out_of_their_folder(release, states):
    (release / "encoder").mkdir()
    link = release / "encoder" / "weights-0.safetensors"
    Path(link).symlink_to(states / "a.safetensors")
    spec = backbone(release, "encoder/weights-0.safetensors")
    with pytest.raises(InvalidInput):
        load_student(release)
    with pytest.raises(InvalidInput, match="there is no file"):
        load_encoder(spec, release / "encoder", weights=release)
