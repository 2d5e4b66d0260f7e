"""Students that are data: a graph, a matrix, one label, or the weights of a network of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pate.encoders.spec import StepSpec
from pate.encoders.step import Step, checked_features
from pate.errors import InvalidInput
from pate.release.onnx_graph import OnnxGraph, read_graph
from pate.release.schema import (
    ConstantModel,
    EncoderStep,
    Header,
    LinearModel,
    NetworkModel,
    OnnxModel,
)
from pate.teachers.protocol import checked_labels

STUDENT, ENCODER = "student", "encoder"
GRAPH, TENSORS = "model.onnx", "model.safetensors"
# What a fitted step of an encoder keeps; the others keep nothing.
STATE: dict[str, tuple[str, ...]] = {
    "standardise": ("mean", "scale"),
    "pca": ("mean", "components", "variances"),
    "diffusion": ("inputs", "reach", "coordinates"),
}
_LONGEST_HEADER = 2**20  # bytes of names and shapes in a file of tensors
_ROWS, _MOST_NUMBERS = 256, 2**22  # of one batch

Tensors = dict[str, NDArray[Any]]


class Model(Protocol):
    """Answers for features of one batch of records."""

    gives_probabilities: bool

    def labels(self, X: NDArray[Any]) -> NDArray[np.int64]: ...

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]: ...


def rows_of(shape: tuple[int, ...]) -> int:
    """How many records go through a student together; a trial uses as many."""
    return max(1, min(_ROWS, _MOST_NUMBERS // max(1, math.prod(shape))))


def load_model(folder: Path, header: Header) -> Model:
    """The model of a release, where it needs no code but ours."""
    classes = len(header.class_names)
    place = folder / STUDENT
    match header.model:
        case OnnxModel(classes=order):
            return _Graph(read_graph(place / GRAPH), order=order, classes=classes)
        case LinearModel():
            return _Linear(read_tensors(place / TENSORS), classes=classes)
        case ConstantModel(label=label):
            return _Constant(label, classes=classes)
        case NetworkModel() as network:
            shape = _features(folder, header).shape[1:]
            return _Network(read_tensors(place / TENSORS), network, shape=shape, classes=classes)
    raise InvalidInput(f"{folder} holds a student that needs code of its own")


class _Logits:
    """The class of the largest logit; probabilities are their softmax."""

    gives_probabilities = True

    def _logits(self, X: NDArray[Any]) -> NDArray[Any]:
        raise NotImplementedError

    def labels(self, X: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(self._logits(X).argmax(axis=1), dtype=np.int64)

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        from scipy.special import softmax

        return np.asarray(softmax(self._logits(X).astype(np.float64), axis=1))


class _Graph(_Logits):
    def __init__(self, graph: OnnxGraph, *, order: list[int], classes: int) -> None:
        if graph.outputs not in (("logits",), ("label",), ("label", "probabilities")):
            raise InvalidInput("the graph gives neither labels nor logits")
        if max(order) >= classes or len(set(order)) < len(order):
            raise InvalidInput("the graph's classes are not those of the student")
        self._graph, self._order, self._classes = graph, order, classes
        self.gives_probabilities = graph.outputs != ("label",)

    def labels(self, X: NDArray[Any]) -> NDArray[np.int64]:
        if self._graph.outputs == ("logits",):
            return super().labels(X)
        return checked_labels(self._graph.run(X)["label"], records=len(X), classes=self._classes)

    def _logits(self, X: NDArray[Any]) -> NDArray[Any]:
        logits = self._graph.run(X)["logits"]
        if logits.shape != (len(X), self._classes):
            raise InvalidInput("the graph does not give a logit for each class")
        return logits

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        if self._graph.outputs == ("logits",):
            return super().probabilities(X)
        found = self._graph.run(X)["probabilities"]
        if found.shape != (len(X), len(self._order)):
            raise InvalidInput("the graph does not give a probability for each class")
        table = np.zeros((len(X), self._classes))
        table[:, self._order] = found
        return table


class _Linear:
    gives_probabilities = False

    def __init__(self, tensors: Tensors, *, classes: int) -> None:
        weights, intercept = (tensors.get(name) for name in ("weights", "intercept"))
        if (
            set(tensors) != {"weights", "intercept"}
            or weights is None
            or intercept is None
            or weights.ndim != 2
            or (weights.shape[1],) != intercept.shape
            or intercept.shape != (classes,)
        ):
            raise InvalidInput(f"{TENSORS} does not hold the weights of a linear model")
        self._weights, self._intercept = weights, intercept

    def labels(self, X: NDArray[Any]) -> NDArray[np.int64]:
        flat = np.asarray(X, dtype=np.float32).reshape(len(X), -1)
        scores = flat @ self._weights + self._intercept
        return np.asarray(scores.argmax(axis=1), dtype=np.int64)

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        raise NotImplementedError


class _Constant:
    gives_probabilities = True

    def __init__(self, label: int, *, classes: int) -> None:
        if label >= classes:
            raise InvalidInput(f"the student's only label is {label}, and there are {classes}")
        self._label, self._classes = label, classes

    def labels(self, X: NDArray[Any]) -> NDArray[np.int64]:
        return np.full(len(X), self._label, dtype=np.int64)

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        return np.tile(np.eye(self._classes)[self._label], (len(X), 1))


class _Network(_Logits):
    def __init__(
        self, tensors: Tensors, spec: NetworkModel, *, shape: tuple[int, ...], classes: int
    ) -> None:
        import torch

        from pate.students.networks import Mlp, SmallCNN

        def build() -> Any:
            if spec.name == "mlp":
                return Mlp(classes, hidden=spec.widths)
            return SmallCNN(classes, channels=spec.widths)

        # On "meta" nothing is allocated: shapes are known before weights are compared with them.
        with torch.device("meta"), torch.no_grad():
            module = build().eval()
            module(torch.zeros(2, *shape))
        wanted = {name: tuple(each.shape) for name, each in module.state_dict().items()}
        if wanted != {name: each.shape for name, each in tensors.items()}:
            raise InvalidInput(f"{TENSORS} does not hold the weights of this {spec.name}")
        state = {name: torch.from_numpy(each.copy()) for name, each in tensors.items()}
        module.load_state_dict(state, assign=True)
        self._module = module.eval()

    def _logits(self, X: NDArray[Any]) -> NDArray[Any]:
        import torch

        with torch.inference_mode():
            records = torch.from_numpy(np.array(X, dtype=np.float32))
            return np.asarray(self._module(records).numpy())


# --- tensors --------------------------------------------------------------------------------------


def read_tensors(file: Path) -> Tensors:
    """The arrays of a safetensors file; names and shapes are looked at before anything is read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LONGEST_HEADER:
                raise InvalidInput(f"{file} is no file of tensors")
            names = json.loads(stream.read(length))
            size = sum(
                each["data_offsets"][1] - each["data_offsets"][0]
                for name, each in names.items()
                if name != "__metadata__"
            )
            if not 0 <= size <= file.stat().st_size - 8 - length:
                raise InvalidInput(f"{file} promises more than it holds")
        tensors = load(file.read_bytes())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError,
            RecursionError):  # fmt: skip
        raise InvalidInput(f"{file} is no file of tensors") from None
    return tensors


def write_tensors(file: Path, tensors: Tensors) -> None:
    from safetensors.numpy import save

    arrays = {name: np.array(each, order="C") for name, each in tensors.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(save(arrays))


# --- the encoder ----------------------------------------------------------------------------------


def load_encoder_steps(
    folder: Path, header: Header
) -> list[Callable[[NDArray[Any]], NDArray[np.float32]]]:
    """The steps that records go through before the model, each on one batch."""
    return [_step(folder / ENCODER, at, step) for at, step in enumerate(header.encoder)]


def _step(folder: Path, at: int, spec: EncoderStep) -> Callable[..., NDArray[np.float32]]:
    if spec.name == "onnx":
        graph = read_graph(folder / f"step-{at}.onnx")
        if graph.outputs != ("features",):
            raise InvalidInput(f"step {at} of the encoder gives no features")
        return lambda X: checked_features(graph.run(X)["features"], step="onnx", records=len(X))
    from pate.encoders.chain import make_step

    try:
        step: Step = make_step(StepSpec.model_validate(spec.model_dump()))
    except ValueError:
        raise InvalidInput(
            f"step {at} of the encoder has other settings than a {spec.name}"
        ) from None
    kept = STATE.get(spec.name, ())
    if kept:
        tensors = read_tensors(folder / f"step-{at}.safetensors")
        if set(tensors) != set(kept):
            raise InvalidInput(f"step {at} of the encoder is no {spec.name}")
        for name, value in tensors.items():
            setattr(step, name, value)
    return lambda X: checked_features(step.transform(X), step=spec.name, records=len(X))


def encoded(steps: list[Callable[..., NDArray[np.float32]]], X: NDArray[Any]) -> NDArray[Any]:
    """A batch of records as the model takes them."""
    if steps:
        X = checked_features(X, step="(the inputs)", records=len(X))
    for step in steps:
        X = step(X)
    return X


def _features(folder: Path, header: Header) -> NDArray[Any]:
    """Two records of zeros as the model would see them."""
    zeros = np.zeros((2, *header.input.shape), dtype=header.input.dtype)
    return encoded(load_encoder_steps(folder, header), zeros)
