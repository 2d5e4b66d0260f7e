"""Archives of scikit-learn models name what they hold: little of it may be loaded."""

from __future__ import annotations

import io
import json
import warnings
import zipfile

import numpy as np
import pytest
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

from pate.errors import InvalidInput
from pate.teachers.persist import read_skops, skops_archive

X, Y = np.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.2]]), np.array([1, 0, 1])
IRIS = load_iris(return_X_y=True)


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


def test_a_program_that_ends_the_process_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "leaves_early.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    model = skops_archive(DecisionTreeClassifier().fit(X, Y), home="sklearn")
    file = tmp_path / "model.skops"
    file.write_bytes(
        edited(model, lambda s: s.update(__module__="leaves_early", __class__="Model"))
    )
    with pytest.raises(InvalidInput, match=r"holds leaves_early\.Model"):
        read_skops(file, home="leaves_early", kind=DecisionTreeClassifier)


@pytest.mark.parametrize(
    "value", [netcdf_file, np.load, np.memmap, DecisionTreeClassifier, KNeighborsClassifier.fit]
)
def test_no_callable_of_a_library_is_a_value(value):
    model = make_pipeline(FunctionTransformer(value), DecisionTreeClassifier())
    with pytest.raises(InvalidInput, match="neither of scikit-learn nor"):
        skops_archive(model, home="sklearn.pipeline")


def test_a_piece_of_a_model_is_not_called_either(tmp_path):
    """A name that may be loaded as an object is still refused as a function or a constructor."""
    model = make_pipeline(FunctionTransformer(np.exp), DecisionTreeClassifier()).fit(X, Y)
    data = skops_archive(model, home="sklearn.pipeline")

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
                read_skops(tmp_path / "m", home="sklearn.pipeline", kind=type(model))


def test_the_oldest_archives_are_refused(tmp_path):
    data = skops_archive(DecisionTreeClassifier().fit(X, Y), home="sklearn")
    (tmp_path / "m").write_bytes(edited(data, lambda schema: schema.update(protocol=0)))
    with pytest.raises(InvalidInput, match="too old"):
        read_skops(tmp_path / "m", home="sklearn", kind=DecisionTreeClassifier)


def test_what_a_trusted_module_has_imported_is_not_its_own(tmp_path, monkeypatch):
    (tmp_path / "vouched_for.py").write_text("from os import system\ndef own(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import vouched_for

    model = make_pipeline(FunctionTransformer(vouched_for.own), DecisionTreeClassifier())
    data = skops_archive(model.fit(X, Y), home="vouched_for")
    file = tmp_path / "m"
    file.write_bytes(data)
    np.testing.assert_array_equal(
        read_skops(file, home="vouched_for", kind=type(model)).predict(X), model.predict(X)
    )
    file.write_bytes(edited(data, lambda s: json.loads(json.dumps(s).replace('"own"', '"system"'))))
    with pytest.raises(InvalidInput, match=r"holds vouched_for\.system"):
        read_skops(file, home="vouched_for", kind=type(model))


def test_the_model_is_of_the_class_that_is_named(tmp_path):
    (tmp_path / "m").write_bytes(skops_archive(KNeighborsClassifier(1).fit(X, Y), home="sklearn"))
    with pytest.raises(InvalidInput, match="holds a KNeighborsClassifier, and the recipe's model"):
        read_skops(tmp_path / "m", home="sklearn", kind=DecisionTreeClassifier)


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
@pytest.mark.sample(8)
def test_every_classifier_of_scikit_learn_survives(kind, tmp_path):
    features, labels = IRIS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = kind().fit(features, labels)
    except (TypeError, ValueError):
        pytest.skip("needs arguments")
    (tmp_path / "m").write_bytes(skops_archive(model, home="sklearn"))
    again = read_skops(tmp_path / "m", home="sklearn", kind=type(model))
    np.testing.assert_array_equal(again.predict(features), model.predict(features))
