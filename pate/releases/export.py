"""The export of a trained student as data: ONNX, a matrix, a kernel, or weights of our networks.

Whatever is written is read again and compared with the original. A student that cannot be expressed
so is released as its class saves it, and loaded only by callers who trust the code.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, StoreError, digest_of
from pate.artifacts.manifest import MANIFEST
from pate.artifacts.results import Evaluation
from pate.encoders.chain import Chain, load_encoder
from pate.encoders.spec import EncoderSpec, StepSpec, find_weights
from pate.encoders.user_code import Backbone, Plugin
from pate.errors import InvalidInput, PateError
from pate.pipeline.runner import PipelineRun
from pate.releases.files import (
    ENCODER,
    GRAPH,
    LABELS,
    STUDENT,
    TABLE,
    TENSORS,
    Header,
    Input,
    may_leave,
)
from pate.releases.records import RecordForm, form_record
from pate.releases.run import FinishedRun
from pate.releases.student import (
    STATE,
    ReleasedStudent,
    open_student,
    teacher_model,
    write_tensors,
)
from pate.students.kernel_ridge import KernelRidge
from pate.students.spec import NETWORKS
from pate.teachers.adapters import SklearnTeacher, takes_missing
from pate.teachers.boosting import BoostedClassifier
from pate.teachers.linear import LinearTeacher
from pate.teachers.persist import load
from pate.teachers.spec import ModelSpec
from pate.teachers.torch_teacher import TorchTeacher
from pate.untrusted import run_untrusted

TOLERANCE = 1e-4  # of a probability; of two classes so near to each other either may win
_RANDOM = 500  # records drawn around the public inputs
_MOST = 5000  # public inputs that are compared


class _Inexpressible(PateError):
    """A student cannot be released as data."""


def export_student(run: FinishedRun, draft: Path, header: dict[str, Any]) -> dict[str, Any]:
    """Write the student into a draft; return ``student.json``, given the part that all kinds share.

    Guarantees:
        The student that is written predicts as the original on public and on random inputs: the
        same labels, but where two classes are nearer than ``TOLERANCE``, and the same
        probabilities to ``TOLERANCE``.
    """
    recipe, plugins, artifacts = run.recipe, run.run.options.plugin_path, run.artifacts
    model, seed = recipe.student.as_model(), recipe.student.seed
    classes = len(header["class_names"])
    place = artifacts["distill"].path
    teacher = load(place, model, classes=classes, seed=seed, plugin_path=plugins)
    inputs = artifacts["data-public"].array("features.npy")
    chain, shape = None, tuple(inputs.shape[1:])
    if run.encoder is not None:
        chain = load_encoder(recipe.encoder, artifacts["encoder"].path, plugin_path=plugins)
        shape = chain.shape
    if run.columns is not None:
        missing = _takes_missing(teacher, chain, int(np.prod(inputs.shape[1:])))
        header = header | {"input": header["input"] | {"missing": missing}}
    try:
        steps = [] if chain is None else encoder_steps(chain, draft / ENCODER)
        written = header | {"encoder": steps, "model": _model(teacher, model, shape, draft)}
        exported = open_student(draft, Header.model_validate(written))
        original = ReleasedStudent(
            model=teacher_model(teacher, classes=classes),
            encoder=np.asarray if chain is None else chain.transform,
            class_names=exported.class_names,
            form=exported.form,
        )
        require_same(original, exported, sampled_records(inputs, exported.form))
    except (_Inexpressible, InvalidInput) as error:
        for place in (draft / STUDENT, draft / ENCODER):
            shutil.rmtree(place, ignore_errors=True)
        return _with_code(run, draft, header, why=str(error))
    return written


def own_student(run: PipelineRun) -> ReleasedStudent:
    """Return the student of a run in the hands of its owner, with the names of its columns."""
    recipe, plugins, made = run.recipe, run.options.plugin_path, run.artifact("distill")
    classes = int(made.facts["classes"])
    model, seed = recipe.student.as_model(), recipe.student.seed
    teacher = load(made.path, model, classes=classes, seed=seed, plugin_path=plugins)
    inputs, encoder = run.artifact("data-public").array("features.npy"), run.artifact("encoder")
    chain = None
    if recipe.student.inputs == "features" and not encoder.facts["identity"]:
        chain = load_encoder(recipe.encoder, encoder.path, plugin_path=plugins)
    columns, names = None, tuple(map(str, range(classes)))
    with contextlib.suppress(StoreError):  # of records that are no table
        columns = run.artifact("data-columns").json("columns.json")
    with contextlib.suppress(InvalidInput, StoreError):  # not evaluated yet
        names = tuple(e.name for e in Evaluation.load(run.artifact("evaluate")).classes)
    width = int(np.prod(inputs.shape[1:]))
    missing = columns is not None and _takes_missing(teacher, chain, width)
    record = form_record(inputs, columns, missing=missing, names=True)
    return ReleasedStudent(
        model=teacher_model(teacher, classes=classes),
        encoder=np.asarray if chain is None else chain.transform,
        class_names=names,
        form=Input.model_validate(record).form,
    )


def _takes_missing(teacher: Any, chain: Chain | None, width: int) -> bool:
    """Return whether a student takes missing values: filled in by its encoder, or by its model."""
    records = np.full((2, width), np.nan)
    try:
        features = records if chain is None else chain.transform(records)
    except InvalidInput:
        return False
    return not np.isnan(features).any() or takes_missing(teacher, width=features.shape[1])


def _with_code(
    run: FinishedRun, draft: Path, header: dict[str, Any], *, why: str
) -> dict[str, Any]:
    """Copy the student as its class saved it; return the names of the classes it needs."""
    _copy(run.artifacts["distill"], draft, STUDENT)
    model, encoder = run.recipe.student.as_model(), None
    needs = [model.model]
    if run.encoder is not None:
        _copy_encoder(run, run.encoder, draft)
        steps = run.encoder.steps
        encoder = {"steps": [{"name": step.name, **step.settings()} for step in steps]}
        needs += [step.name for step in steps if step.own]
        needs += [step.model for step in steps if step.model is not None]
    code = {
        "kind": "code",
        "model": model.model_dump(mode="json"),
        "encoder": encoder,
        "seed": run.recipe.student.seed,
        "needs": needs,
        "why": why,
    }
    return header | {"encoder": [], "model": code}


# --- copies ---------------------------------------------------------------------------------------


def copy_labels(run: FinishedRun, draft: Path) -> None:
    """Copy the released labels, and the rows of the public inputs that they belong to."""
    _copy(run.artifacts["aggregate"], draft, "labels", only=(*LABELS, *TABLE))


def _copy(
    artifact: Artifact, draft: Path, place: str, *, only: tuple[str, ...] | None = None
) -> None:
    """Copy an artifact's files without their manifest: that names what they were made from."""
    for name in sorted(artifact.manifest["files"]):
        if name == MANIFEST or (only is not None and name not in only):
            continue
        if not may_leave(f"{place}/{name}"):
            raise InvalidInput(
                f"{artifact.path / name} is not of a kind that may be released; let save(folder) "
                "write npy, npz, json, txt, onnx, ubj, safetensors or skops files"
            )
        (draft / place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.path / name, draft / place / name)


def _copy_encoder(run: FinishedRun, encoder: EncoderSpec, draft: Path) -> None:
    """Copy what was fitted on public inputs, and a backbone's weights; not the public features."""
    artifact = run.artifacts["encoder"]
    kept = tuple(name for name in artifact.manifest["files"] if name != "features.npy")
    _copy(artifact, draft, ENCODER, only=kept)
    header = draft / ENCODER / "encoder.json"
    content = json.loads(header.read_text(encoding="utf-8"))
    steps = zip(run.recipe.encoder.steps, encoder.steps, strict=True)
    for at, (before, now) in enumerate(steps):
        if before.weights is not None and now.weights is not None:
            content["steps"][at]["weights"] = now.weights
            digest = _copy_weights(run, before, draft / now.weights)
            kept_digest = draft / ENCODER / f"step-{at}" / "weights.json"
            kept_digest.write_text(json.dumps({"sha256": digest}), encoding="utf-8")
    header.write_text(json.dumps(content, sort_keys=True), encoding="utf-8")


def _copy_weights(run: FinishedRun, step: StepSpec, place: Path) -> str:
    """Copy a backbone's weights as safetensors; return their digest."""
    import torch
    from safetensors.torch import save_file

    assert step.weights is not None
    plugins = run.run.options.plugin_path
    file = find_weights(step.weights, folder=step.folder, plugin_path=plugins)
    if file.suffix == ".safetensors":
        shutil.copyfile(file, place)
    else:
        state = torch.load(file, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state)
        save_file({key: value.clone().contiguous() for key, value in state.items()}, place)
    return digest_of(place)


# --- models ---------------------------------------------------------------------------------------


def _model(teacher: Any, spec: ModelSpec, shape: tuple[int, ...], draft: Path) -> dict[str, Any]:
    folder = draft / STUDENT
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(teacher, SklearnTeacher):
        if teacher.only_label is not None:
            return {"kind": "constant", "label": teacher.only_label}
        if isinstance(teacher.estimator, BoostedClassifier):
            raise _Inexpressible(
                f"its trees are in the format of {teacher.estimator.library}, which must read them"
            )
        width = int(np.prod(shape))
        order = [int(label) for label in teacher.classes_]
        (folder / GRAPH).write_bytes(_of_estimator(teacher.estimator, width))
        return {"kind": "onnx", "classes": order}
    if isinstance(teacher, LinearTeacher):
        tensors = {"weights": teacher.weights, "intercept": teacher.intercept}
        write_tensors(folder / TENSORS, tensors)
        return {"kind": "linear"}
    if isinstance(teacher, KernelRidge):
        tensors = {name: getattr(teacher, name) for name in ("inputs", "coefficients", "shares")}
        scale = np.array(teacher.width * teacher.unit)
        write_tensors(folder / TENSORS, tensors | {"scale": scale})
        return {"kind": "kernel"}
    if isinstance(teacher, TorchTeacher):
        for name, network in NETWORKS.items():
            if spec.model == network:
                state = teacher.module.state_dict()
                write_tensors(folder / TENSORS, {k: v.cpu().numpy() for k, v in state.items()})
                widths = spec.params.get("channels", spec.params.get("hidden"))
                default = [16, 32, 64] if name == "small-cnn" else [256]
                return {
                    "kind": "network",
                    "name": name,
                    "widths": default if widths is None else widths,
                }
        (folder / GRAPH).write_bytes(module_graph(teacher.module, shape, output="logits"))
        return {"kind": "onnx", "classes": list(range(teacher.classes))}
    raise _Inexpressible(f"a {type(teacher).__name__} is a class of its own")


def _of_estimator(estimator: Any, width: int) -> bytes:
    """Return a scikit-learn model as a graph from (n, width) to labels and probabilities."""

    def trim(model: Any) -> None:
        if not hasattr(estimator, "predict_proba"):
            del model.graph.output[1:]  # scores, which are not probabilities

    return _converted(estimator, width, ({id(estimator): {"zipmap": False}}, None), trim)


def _of_transformer(estimator: Any, width: int) -> bytes:
    """Return a transformer of scikit-learn as a graph from (n, width) to features."""

    def rename(model: Any) -> None:
        (output,) = model.graph.output
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = ["features" if name == output.name else name for name in names]
        output.name = "features"

    return _converted(estimator, width, (None,), rename)


def _converted(
    estimator: Any, width: int, options: Sequence[Any], change: Callable[[Any], None]
) -> bytes:
    """Return a graph in double precision, or in single where the converter has no other."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    from pate.releases.onnx_graph import OnnxGraph

    def convert(kind: Any, option: Any) -> bytes:
        types = [("X", kind([None, width]))]
        model = to_onnx(estimator, initial_types=types, options=option)
        change(model)
        graph = _plain(model)
        OnnxGraph(graph)
        return graph

    reason: PateError | None = None
    for kind in (DoubleTensorType, FloatTensorType):
        for option in options:
            call = functools.partial(convert, kind, option)
            try:
                graph: bytes = run_untrusted("skl2onnx", call, private=False, error=_Inexpressible)
            except (_Inexpressible, InvalidInput) as error:
                reason = error
            else:
                return graph
    raise _Inexpressible(f"a {type(estimator).__name__} has no form in ONNX ({reason})")


def module_graph(module: Any, shape: tuple[int, ...], *, output: str) -> bytes:
    """Return a torch module as a graph from records of a shape."""
    import torch

    def export() -> Any:
        program = torch.onnx.export(
            module.eval(),
            (torch.zeros(2, *shape),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("n")},),
            input_names=["X"],
            output_names=[output],
            verbose=False,
        )
        return None if program is None else program.model_proto

    model = run_untrusted("torch's exporter", export, private=False, error=_Inexpressible)
    if model is None:
        raise _Inexpressible(f"torch exports no graph of a {type(module).__name__}")
    return _plain(model)


def _plain(model: Any) -> bytes:
    """Return a graph without traces of the machine and the program that made it."""
    graph = model.graph
    for message in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        for field in ("doc_string", "metadata_props"):
            message.ClearField(field)
    for field in ("producer_name", "producer_version", "domain", "model_version"):
        model.ClearField(field)
    del graph.value_info[:]
    graph.name = "student"
    return bytes(model.SerializeToString(deterministic=True))


# --- the encoder ----------------------------------------------------------------------------------


def encoder_steps(chain: Chain, folder: Path, *, first: int = 0) -> list[dict[str, Any]]:
    """Write the steps of an encoder, the first one as step ``first``; return their records.

    A step that nothing was fitted for needs no file, and an encoder of such steps no folder.
    """
    records: list[dict[str, Any]] = []
    shape = chain.input_shape
    steps = zip(chain.steps, chain.spec.steps, strict=True)
    for at, (step, spec) in enumerate(steps, start=first):
        if isinstance(step, Plugin):
            if not step.is_estimator or len(shape) != 1:
                raise _Inexpressible(f"the encoder's step {spec.name} is code of its own")
            graph = _of_transformer(step.made, shape[0])
        elif isinstance(step, Backbone):
            graph = module_graph(_whole(step), shape, output="features")
        else:
            graph = None
            kept = STATE.get(spec.name, ())
            if kept:
                tensors = {name: getattr(step, name) for name in kept}
                write_tensors(folder / f"step-{at}.safetensors", tensors)
            records.append(json.loads(json.dumps({"name": spec.name, **spec.settings()})))
        if graph is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"step-{at}.onnx").write_bytes(graph)
            records.append({"name": "onnx"})
        zeros = np.zeros((2, *shape), dtype=np.float32)
        shape = tuple(np.asarray(step.transform(zeros)).shape[1:])
    return records


def _whole(step: Backbone) -> Any:
    """Return a backbone with its preparation of records, as one module."""
    import torch

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = step.module

        def forward(self, records: Any) -> Any:
            return self.network(step.inputs_of(records)).flatten(1)

    return Whole()


# --- comparing ------------------------------------------------------------------------------------


def sampled_records(inputs: NDArray[Any], form: RecordForm) -> NDArray[Any]:
    """Return public inputs, and others drawn between and around them."""
    known = np.asarray(inputs[:_MOST])
    return np.concatenate([known, form.drawn(_RANDOM, near=known).astype(known.dtype)])


def require_same(
    original: ReleasedStudent, exported: ReleasedStudent, records: NDArray[Any]
) -> None:
    """Raise unless an exported student predicts as the original."""
    given, wanted = exported.labels_of(records), original.labels_of(records)
    sure = np.ones(len(records), dtype=bool)
    if hasattr(original, "predict_proba"):
        table = original.probabilities_of(records)
        if not np.allclose(exported.probabilities_of(records), table, rtol=0, atol=TOLERANCE):
            raise _Inexpressible("its exported form gives other probabilities than the original")
        best = np.sort(table, axis=1)
        sure = best[:, -1] - best[:, -2] > TOLERANCE
    differ = int((given != wanted)[sure].sum())
    if differ:
        raise _Inexpressible(
            f"its exported form gives other labels than the original on {differ} of "
            f"{len(records)} public and random inputs"
        )
