"""Students that are data: what is written answers as the original, and nothing in a file harms."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

import pate
from pate.errors import InvalidInput
from pate.releases.export import _of_estimator, _plain, module_graph
from pate.releases.files import SUMS, digests, read_header, render_sums
from pate.releases.onnx_graph import OnnxGraph, checked_graph
from pate.releases.student import (
    ReleasedStudent,
    load_student,
    open_student,
    read_tensors,
    write_tensors,
)
from pate.students.spec import StudentSpec

X, Y = np.array([[0.0, 1.0], [1.0, 0.0], [0.1, 1.2]]), np.array([1, 0, 1])
ONNX = {"kind": "onnx", "classes": [0, 1]}
OLD = Path(__file__).parent / "format-1"
NUMBERS = {"name": None, "categories": None}
ODD_FORMS = [
    {"columns": [NUMBERS]},
    {"columns": [NUMBERS] * 3},
    {"columns": [{"name": "a", "categories": None}, NUMBERS]},
    {"columns": [{"name": "a", "categories": None}] * 2},
    {"columns": [NUMBERS, {"name": None, "categories": []}]},
    {"columns": [NUMBERS, {"name": None, "categories": ["x", "x"]}]},
    {"columns": [NUMBERS, {"name": None, "categories": [f"c{n}" for n in range(1001)]}]},
    {"columns": [NUMBERS, NUMBERS | {"code": "os:system"}]},
    {"range": [0, 2]},
    {"range": [1, 0]},
    {"missing": "yes"},
]


def released(folder, model, *, graph=None, tensors=None, encoder=(), shape=(2,), classes=2):
    """A folder that load_student takes, made by hand."""
    (folder / "student").mkdir(parents=True, exist_ok=True)
    header = {
        "format": 2,
        "model": model,
        "class_names": ["no", "yes", "perhaps"][:classes],
        "input": {"shape": list(shape), "dtype": "float64"},
        "encoder": list(encoder),
    }
    (folder / "student.json").write_text(json.dumps(header))
    if graph is not None:
        (folder / "student" / "model.onnx").write_bytes(graph)
    if tensors is not None:
        write_tensors(folder / "student" / "model.safetensors", tensors)
    summed(folder)
    return folder


def summed(folder):
    (folder / SUMS).write_text(render_sums(digests(folder)))


@pytest.fixture(scope="module")
def tree():
    return _of_estimator(DecisionTreeClassifier().fit(X, Y), 2)


# --- what is exported -----------------------------------------------------------------------------


def models():
    yield DecisionTreeClassifier(max_depth=4)
    yield RandomForestClassifier(20)
    yield GradientBoostingClassifier(n_estimators=5)
    yield SVC()
    yield SVC(probability=True)
    yield LinearSVC()
    yield LogisticRegression()
    yield MLPClassifier((8,), max_iter=20)
    yield make_pipeline(StandardScaler(), LogisticRegression())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", list(models()), ids=lambda each: type(each).__name__)
def test_a_model_of_scikit_learn_answers_the_same_as_a_graph(model):
    rng = np.random.default_rng(0)
    records, labels = rng.normal(size=(90, 3)), np.arange(90) % 3
    records[np.arange(90), labels] += 2
    model.fit(records, labels)
    graph = OnnxGraph(_of_estimator(model, 3))
    others = rng.normal(size=(400, 3)) * 2
    found = graph.run(others)
    np.testing.assert_array_equal(found["label"], model.predict(others))
    assert ("probabilities" in found) == hasattr(model, "predict_proba")
    if "probabilities" in found:
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(others), atol=1e-5)


@pytest.mark.campaign
def test_a_network_is_exported_without_a_word_of_the_machine():
    import torch

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(1, 4, 3),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
                torch.nn.Linear(144, 3),
            )

        def forward(self, images):
            return self.layers(images[:, None])

    module = Own().eval()
    graph = module_graph(module, (8, 8), output="logits")
    assert b".py" not in graph
    assert b"site-packages" not in graph
    images = torch.randn(5, 8, 8)
    said = OnnxGraph(graph).run(images.numpy())["logits"]
    np.testing.assert_allclose(said, module(images).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "params"),
    [("Mlp", (3,), {}), ("Mlp", (2, 2), {"hidden": [4, 5]}), ("SmallCNN", (8, 8), {}),
     ("SmallCNN", (9, 8, 3), {"channels": [3, 4]})],
)  # fmt: skip
@pytest.mark.sample(1)
def test_a_network_of_ours_is_its_weights(tmp_path, name, shape, params):
    from pate.releases.export import _model
    from pate.teachers.adapters import make
    from pate.teachers.spec import ModelSpec

    spec = ModelSpec(model=f"pate.students.networks:{name}", params=params, epochs=1)
    teacher = make(spec, classes=2, seed=0)
    records = np.random.default_rng(0).normal(size=(20, *shape))
    teacher.fit(records, np.arange(20) % 2)
    header = _model(teacher, spec, shape, tmp_path)
    assert header["kind"] == "network"
    student = load_student(released(tmp_path, header, shape=shape))
    np.testing.assert_array_equal(student.predict_labels(records), teacher.predict(records))
    np.testing.assert_allclose(
        student.predict_proba(records), teacher.predict_proba(records), atol=1e-6
    )


def test_a_kernel_ridge_is_its_numbers(tmp_path):
    from pate.releases.export import _model
    from pate.students.kernel_ridge import KernelRidge

    rng = np.random.default_rng(0)
    records = rng.normal(size=(300, 2))
    soft = rng.dirichlet(np.ones(3), size=40)
    teacher = KernelRidge(classes=3, width=0.7, alpha=0.2).fit_soft(records[:40], soft)
    header = _model(teacher, StudentSpec(model="kernel-ridge").as_model(), (2,), tmp_path)
    student = load_student(released(tmp_path, header, classes=3))
    np.testing.assert_array_equal(student.predict_labels(records), teacher.predict(records))
    np.testing.assert_allclose(
        student.predict_proba(records), teacher.predict_proba(records), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": np.zeros((3, 2), "f4")},
        {"inputs": np.full((4, 2), np.nan, "f4")},
        {"coefficients": np.zeros((4, 3), "f4")},
        {"shares": np.zeros(3, "f4")},
        {"scale": np.zeros(1)},
        {"scale": np.float64(0)},
        {"scale": np.float64(-1)},
        {"more": np.zeros(2, "f4")},
    ],
    ids=lambda each: "-".join(each),
)
def test_numbers_of_another_kernel_are_refused(tmp_path, wrong):
    tensors = {
        "inputs": np.zeros((4, 2), "f4"),
        "coefficients": np.zeros((4, 2), "f4"),
        "shares": np.zeros(2, "f4"),
        "scale": np.float64(1),
    }
    released(tmp_path, {"kind": "kernel"}, tensors=tensors)
    student = open_student(tmp_path, read_header(tmp_path))
    assert student.predict_proba(X).shape == (3, 2)
    write_tensors(tmp_path / "student" / "model.safetensors", tensors | wrong)
    with pytest.raises(InvalidInput, match=r"of a kernel-ridge|must be positive"):
        open_student(tmp_path, read_header(tmp_path))


# --- what is loaded -------------------------------------------------------------------------------


def test_a_student_is_loaded_lazily_and_predicts(tmp_path, tree):
    released(tmp_path, ONNX, graph=tree)
    assert pate.load_student is load_student
    student = pate.load_student(str(tmp_path))
    assert isinstance(student, ReleasedStudent)
    np.testing.assert_array_equal(student.predict(X.tolist()), ["yes", "no", "yes"])
    np.testing.assert_array_equal(student.predict_labels(X.tolist()), Y)
    np.testing.assert_array_equal(student.predict_proba(X).argmax(axis=1), Y)
    assert student.predict(np.zeros((0, 2))).shape == (0,)
    many = np.tile(X, (200, 1))
    np.testing.assert_array_equal(student.predict_labels(many), np.tile(Y, 200))
    for wrong in (np.zeros(2), np.zeros((1, 3)), 4.0):
        with pytest.raises(InvalidInput, match=r"the student takes \(n, 2\)"):
            student.predict(wrong)
    with pytest.raises(InvalidInput, match="the student takes numbers"):
        student.predict([["a", "b"]])


def test_probabilities_are_there_only_where_the_model_has_them(tmp_path):
    weights = {"weights": np.eye(2, dtype="f4"), "intercept": np.array([0, 0.1], "f4")}
    student = load_student(released(tmp_path / "a", {"kind": "linear"}, tensors=weights))
    assert not hasattr(student, "predict_proba")
    np.testing.assert_array_equal(student.predict_labels(X), Y)
    student = load_student(released(tmp_path / "b", {"kind": "constant", "label": 1}))
    np.testing.assert_array_equal(student.predict_labels(X), [1, 1, 1])
    np.testing.assert_array_equal(student.predict_proba(X), [[0, 1]] * 3)


def test_classes_that_were_never_seen_have_no_probability(tmp_path):
    graph = _of_estimator(DecisionTreeClassifier().fit(X, 2 * Y), 2)
    released(tmp_path, {"kind": "onnx", "classes": [0, 2]}, graph=graph, classes=3)
    student = load_student(tmp_path)
    np.testing.assert_array_equal(student.predict_labels(X), 2 * Y)
    np.testing.assert_array_equal(student.predict_proba(X)[:, 1], 0)


def test_loading_draws_and_distributes_nothing(tmp_path, tree):
    released(tmp_path, ONNX, graph=tree)
    code = (
        f"import sys, pate; pate.load_student({str(tmp_path)!r}).predict([[0.0, 1.0]])\n"
        "names = ('ray', 'matplotlib', 'torch', 'sklearn', 'skops', 'skl2onnx')\n"
        "print([m for m in names if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_changed_student_is_not_loaded(tmp_path, tree):
    released(tmp_path, ONNX, graph=tree)
    (tmp_path / "student" / "more.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"more\.json does not belong"):
        load_student(tmp_path)
    (tmp_path / "student" / "more.json").unlink()
    file = tmp_path / "student" / "model.onnx"
    file.write_bytes(tree[:-1] + b"x")
    with pytest.raises(InvalidInput, match=r"model\.onnx was damaged"):
        load_student(tmp_path)
    file.unlink()
    with pytest.raises(InvalidInput, match=r"model\.onnx is missing"):
        load_student(tmp_path)
    with pytest.raises(InvalidInput, match="there is no release in"):
        load_student(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "edit",
    [
        {"format": 4},
        {"class_names": ["one"]},
        *({"input": {"shape": [2], "dtype": "float64"} | odd} for odd in ODD_FORMS),
        {"class_names": [1, 2]},
        {"input": {"shape": [-1], "dtype": "float64"}},
        {"input": {"shape": [2], "dtype": "nonsense"}},
        {"input": {"shape": [2], "dtype": "object"}},
        {"model": {"kind": "pickle"}},
        {"model": {"kind": "constant", "label": -1}},
        {"model": {"kind": "network", "name": "torchvision.models:resnet18", "widths": []}},
        {"model": {"kind": "network", "name": "mlp", "widths": [0]}},
        {"model": {"kind": "network", "name": "mlp", "widths": [10**9]}},
        {"encoder": [{"name": "os:system"}]},
        {"encoder": [{"name": "torch", "model": "a:b", "weights": "/etc/x.pt"}]},
        {"more": 1},
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path, tree, edit):
    released(tmp_path, ONNX, graph=tree)
    file = tmp_path / "student.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | edit))
    summed(tmp_path)
    with pytest.raises(InvalidInput, match=r"student\.json is damaged, or of another version"):
        load_student(tmp_path)


def test_a_release_of_format_1_is_loaded_with_trust_only(tmp_path):
    with pytest.raises(InvalidInput, match=r"format 1; load it with trust=True.*only for code you"):
        load_student(OLD)
    student = load_student(OLD, trust=True)
    assert student.predict(np.zeros((3, 4))).shape == (3,)
    assert student.class_names == ("0", "1", "2")


# --- what is refused ------------------------------------------------------------------------------


def graph_of(nodes, *, initial=(), opset=20, functions=(), shape=(None, 2), kind=TensorProto.FLOAT):
    graph = helper.make_graph(
        list(nodes), "g",
        [helper.make_tensor_value_info("X", kind, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, 2])],
        list(initial),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def node(kind, inputs, outputs=("logits",), **attributes):
    return helper.make_node(kind, list(inputs), list(outputs), **attributes)


def outside(name="w"):
    tensor = numpy_helper.from_array(np.zeros((2, 2), "f4"), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "/etc/passwd"), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def numbers(values, name):
    return numpy_helper.from_array(np.asarray(values), name)


def inner(**attributes):
    body = helper.make_graph(
        [node("Constant", [], ["y"], value=outside())],
        "b",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
    )
    return node("If", ["c"], then_branch=body, else_branch=body)


HOSTILE = {
    "another file": lambda: graph_of([node("MatMul", ["X", "w"])], initial=[outside()]),
    "another file in an attribute": lambda: graph_of(
        [node("Constant", [], ["w"], value=outside()), node("MatMul", ["X", "w"])]
    ),
    "a graph inside": lambda: graph_of([inner()], initial=[numbers(True, "c")]),
    "an operator of another domain": lambda: graph_of(
        [helper.make_node("Gelu", ["X"], ["logits"], domain="com.microsoft")]
    ),
    "an operator that draws": lambda: graph_of([node("RandomNormalLike", ["X"])]),
    "a loop": lambda: graph_of([node("Loop", ["n", "c", "X"])], initial=[numbers(1, "n")]),
    "an unknown operator": lambda: graph_of([node("ReadFile", ["X"])]),
    "a size from values": lambda: graph_of(
        [node("Cast", ["X"], ["i"], to=TensorProto.INT64), node("Expand", ["w", "i"])],
        initial=[numbers(np.zeros(1, "f4"), "w")],
    ),
    "not in order": lambda: graph_of([node("Relu", ["later"]), node("Relu", ["X"], ["later"])]),
    "strings": lambda: graph_of([node("Identity", ["X"])], kind=TensorProto.STRING),
    "no shape": lambda: graph_of([node("Identity", ["X"])], shape=(None, None)),
    "other outputs": lambda: graph_of([node("Identity", ["X"], ["other"])]),
    "a function": lambda: graph_of(
        [node("Identity", ["X"])],
        functions=[
            helper.make_function(
                "", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 20)]
            )
        ],
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_graph_that_is_more_than_numbers_is_refused(name):
    with pytest.raises(InvalidInput):
        OnnxGraph(HOSTILE[name]().SerializeToString())


def test_numbers_in_another_file_are_named(tmp_path):
    for name in ("another file", "another file in an attribute"):
        with pytest.raises(InvalidInput, match="keeps numbers in another file"):
            checked_graph(HOSTILE[name]().SerializeToString())


def test_what_runs_is_what_was_inspected():
    """An unknown field could be read by another program, as by one that knows more fields."""
    plain = graph_of([node("Identity", ["X"])]).SerializeToString()
    more = plain + b"\xfa\xff\x01\x04ORTM"
    assert checked_graph(more) == checked_graph(plain)
    assert b"ORTM" not in checked_graph(more)


def test_a_tree_that_leads_nowhere_is_one_line(tmp_path, tree):
    for field, value in (("nodes_truenodeids", 10**6), ("nodes_falsenodeids", -7),
                         ("nodes_featureids", 10**9), ("class_ids", 10**9)):  # fmt: skip
        model = onnx.load_model_from_string(tree)
        (found,) = [each for each in model.graph.node[0].attribute if each.name == field]
        found.ints[0] = value
        folder = released(tmp_path / field, ONNX, graph=_plain(model))
        with pytest.raises(InvalidInput, match="does not work") as refused:
            load_student(folder)
        assert "\n" not in str(refused.value)


def test_a_small_graph_takes_no_large_memory(tmp_path):
    """A few bytes declare how large an array shall be."""
    bomb = graph_of(
        [
            node("ConstantOfShape", ["s"], ["w"]),
            node("ReduceSum", ["w"], ["r"], keepdims=0),
            node("Add", ["X", "r"]),
        ],
        initial=[numbers(np.array([2**33]), "s")],
    )
    released(tmp_path, ONNX, graph=bomb.SerializeToString())
    with pytest.raises(InvalidInput, match="does not work"):
        load_student(tmp_path)


@pytest.mark.campaign
def test_a_network_is_as_large_as_its_weights(tmp_path):
    model = {"kind": "network", "name": "mlp", "widths": [2**20, 2**20]}
    tensors = {"layers.1.weight": np.zeros((2, 2), "f4")}
    released(tmp_path, model, tensors=tensors)
    with pytest.raises(InvalidInput, match="does not hold the weights of this mlp"):
        load_student(tmp_path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"counts": np.array([0, -1]), "missing": np.zeros(2, dtype=bool)},
        {"counts": np.array([0, 2**40]), "missing": np.zeros(2, dtype=bool)},
        {"counts": np.array([0, 2, 2]), "missing": np.zeros(3, dtype=bool)},
        {"counts": np.array([0, 2])},
    ],
)
@pytest.mark.sample(1)
def test_a_step_that_was_tampered_with_is_refused_in_one_line(tmp_path, tree, tensors):
    write_tensors(tmp_path / "encoder" / "step-0.safetensors", tensors)
    released(tmp_path, ONNX, graph=tree, encoder=[{"name": "one-hot"}])
    with pytest.raises(InvalidInput, match="does not work") as caught:
        load_student(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_encoder_is_of_our_own_steps_and_as_large_as_it_states(tmp_path):
    weights = {"weights": np.eye(2, dtype="f4"), "intercept": np.zeros(2, "f4")}
    (tmp_path / "encoder").mkdir()
    state = {"mean": np.zeros(2, "f4"), "components": np.eye(2, dtype="f4"),
             "variances": np.ones(2)}  # fmt: skip
    write_tensors(tmp_path / "encoder" / "step-0.safetensors", state)
    step = {"name": "pca", "dimension": 2, "whiten": 0.0}
    released(tmp_path, {"kind": "linear"}, tensors=weights, encoder=[step])
    np.testing.assert_array_equal(load_student(tmp_path).predict_labels(X), Y)
    for wrong in ({"dimension": 10**11}, {"dimension": 0}, {"J": 2}):
        released(tmp_path, {"kind": "linear"}, tensors=weights, encoder=[step | wrong])
        with pytest.raises(InvalidInput, match="does not work"):
            load_student(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        b"\x02\0\0\0\0\0\0\0[]",
        (80).to_bytes(8, "little")
        + b'{"w":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,399999999996]}}'.ljust(80),
        (4_000_000).to_bytes(8, "little") + b"[" * 4_000_000,
    ],
)
def test_tensors_that_are_none_are_refused(tmp_path, content):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(InvalidInput):
        read_tensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "device", "huge"])
def test_nothing_but_plain_files_is_opened(tmp_path, tree, kind):
    import os

    folder = released(tmp_path / "given", ONNX, graph=tree)
    file = folder / "student" / "model.onnx"
    if kind == "folder link":
        shutil.move(folder / "student", tmp_path / "elsewhere")
        (folder / "student").symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
    if kind == "link":
        (tmp_path / "m").write_bytes(tree)
        file.symlink_to(tmp_path / "m")
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "huge":
        with file.open("wb") as stream:
            stream.truncate(2**42)
    with pytest.raises(InvalidInput, match=r"is not a regular file|is larger than any"):
        load_student(folder)
