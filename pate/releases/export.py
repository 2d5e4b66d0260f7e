"""The export of a trained student as data: ONNX, a matrix, or the weights of a network of ours.

Whatever is written is read again and compared with the original. A student that cannot be expressed
so is released as its class saves it, and loaded only by callers who trust the code.
"""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import Artifact, digest_of
from pate.artifacts.manifest import MANIFEST
from pate.encoders.chain import Chain, load_encoder
from pate.encoders.spec import EncoderSpec, find_weights
from pate.encoders.user_code import Backbone
from pate.errors import InvalidInput, PateError
from pate.releases.files import ENCODER, GRAPH, LABELS, STUDENT, TENSORS, Header, may_leave
from pate.releases.run import FinishedRun
from pate.releases.student import (
    STATE,
    ReleasedStudent,
    open_student,
    teacher_model,
    write_tensors,
)
from pate.students.spec import NETWORKS
from pate.teachers.adapters import SklearnTeacher
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
    try:
        steps = [] if chain is None else _encoder(chain, draft / ENCODER)
        written = header | {"encoder": steps, "model": _model(teacher, model, shape, draft)}
        exported = open_student(draft, Header.model_validate(written))
        original = ReleasedStudent(
            model=teacher_model(teacher, classes=classes),
            encoder=np.asarray if chain is None else chain.transform,
            class_names=exported.class_names,
            shape=exported.shape,
            dtype=exported.dtype,
        )
        _require_same(original, exported, _records(inputs))
    except (_Inexpressible, InvalidInput) as error:
        for place in (draft / STUDENT, draft / ENCODER):
            shutil.rmtree(place, ignore_errors=True)
        return _with_code(run, draft, header, why=str(error))
    return written


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
    _copy(run.artifacts["aggregate"], draft, "labels", only=LABELS)


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
            digest = _copy_weights(run, before.weights, draft / now.weights)
            kept_digest = draft / ENCODER / f"step-{at}" / "weights.json"
            kept_digest.write_text(json.dumps({"sha256": digest}), encoding="utf-8")
    header.write_text(json.dumps(content, sort_keys=True), encoding="utf-8")


def _copy_weights(run: FinishedRun, weights: str, place: Path) -> str:
    """Copy a backbone's weights as safetensors; return their digest."""
    import torch
    from safetensors.torch import save_file

    file = find_weights(weights, plugin_path=run.run.options.plugin_path)
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
        (folder / GRAPH).write_bytes(_of_module(teacher.module, shape, output="logits"))
        return {"kind": "onnx", "classes": list(range(teacher.classes))}
    raise _Inexpressible(f"a {type(teacher).__name__} is a class of its own")


def _of_estimator(estimator: Any, width: int) -> bytes:
    """Return a scikit-learn model as a graph from (n, width) to labels and probabilities.

    In double precision, or in single where the converter has no other.
    """
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    from pate.releases.onnx_graph import OnnxGraph

    def convert(kind: Any, options: Any) -> bytes:
        types = [("X", kind([None, width]))]
        model = to_onnx(estimator, initial_types=types, options=options)
        if not hasattr(estimator, "predict_proba"):
            del model.graph.output[1:]  # scores, which are not probabilities
        graph = _plain(model)
        OnnxGraph(graph)
        return graph

    reason: PateError | None = None
    for kind in (DoubleTensorType, FloatTensorType):
        for options in ({id(estimator): {"zipmap": False}}, None):
            call = functools.partial(convert, kind, options)
            try:
                graph: bytes = run_untrusted("skl2onnx", call, private=False, error=_Inexpressible)
            except (_Inexpressible, InvalidInput) as error:
                reason = error
            else:
                return graph
    raise _Inexpressible(f"a {type(estimator).__name__} has no form in ONNX ({reason})")


def _of_module(module: Any, shape: tuple[int, ...], *, output: str) -> bytes:
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


def _encoder(chain: Chain, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    shape = chain.input_shape
    for at, (step, spec) in enumerate(zip(chain.steps, chain.spec.steps, strict=True)):
        if spec.own:
            raise _Inexpressible(f"the encoder's step {spec.name} is code of its own")
        if isinstance(step, Backbone):
            (folder / f"step-{at}.onnx").write_bytes(
                _of_module(_whole(step), shape, output="features")
            )
            records.append({"name": "onnx"})
        else:
            kept = STATE.get(spec.name, ())
            if kept:
                tensors = {name: getattr(step, name) for name in kept}
                write_tensors(folder / f"step-{at}.safetensors", tensors)
            records.append(json.loads(json.dumps({"name": spec.name, **spec.settings()})))
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


def _records(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return public inputs, and others drawn between and around them."""
    known = np.asarray(inputs[:_MOST])
    rng = np.random.default_rng(0)
    low, high = known.min(axis=0), known.max(axis=0)
    drawn = rng.uniform(
        low - (high - low) / 4, high + (high - low) / 4, (_RANDOM, *known.shape[1:])
    )
    return np.concatenate([known, drawn.astype(known.dtype)])


def _require_same(
    original: ReleasedStudent, exported: ReleasedStudent, records: NDArray[Any]
) -> None:
    given, wanted = exported.predict(records), original.predict(records)
    sure = np.ones(len(records), dtype=bool)
    if hasattr(original, "predict_proba"):
        table = original.predict_proba(records)
        if not np.allclose(exported.predict_proba(records), table, rtol=0, atol=TOLERANCE):
            raise _Inexpressible("its exported form gives other probabilities than the original")
        best = np.sort(table, axis=1)
        sure = best[:, -1] - best[:, -2] > TOLERANCE
    differ = int((given != wanted)[sure].sum())
    if differ:
        raise _Inexpressible(
            f"its exported form gives other labels than the original on {differ} of "
            f"{len(records)} public and random inputs"
        )
