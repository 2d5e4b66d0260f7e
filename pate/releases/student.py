"""A released student, loaded from its folder: ``pate.load_student(path).predict(X)``.

A student is data: an ONNX graph, a matrix, one label, or the weights of a network of ours. One that
needs code of its own is loaded only for a caller who trusts that code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.encoders.spec import StepSpec
from pate.encoders.step import Step, checked_features
from pate.errors import InvalidInput
from pate.releases.files import ENCODER, GRAPH, HEADER, STUDENT, TENSORS, require_unchanged
from pate.releases.onnx_graph import OnnxGraph, read_graph
from pate.releases.schema import (
    CodeModel,
    ConstantModel,
    EncoderStep,
    Header,
    LinearModel,
    NetworkModel,
    OnnxModel,
    read_header,
)
from pate.releases.trial import trial_problem
from pate.teachers.protocol import checked_labels

TRUST = (
    "trust imports and runs the code that the release names, and reads its files as that code does;"
    " give it only for code you know and a release from somebody you trust"
)

# The arrays of fitted encoder steps; the others have none.
STATE: dict[str, tuple[str, ...]] = {
    "standardise": ("mean", "scale"),
    "pca": ("mean", "components", "variances"),
    "diffusion": ("inputs", "reach", "coordinates"),
}
_LONGEST_HEADER = 2**20  # bytes of names and shapes in a file of tensors
_ROWS, _MOST_NUMBERS = 256, 2**22  # of one batch

Tensors = dict[str, NDArray[Any]]


# --- students ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedStudent:
    """A model that predicts the classes of records in the form of the data set it was made for.

    Attributes
    ----------
    class_names
        The name of each class, by label.
    shape
        The shape of one record.
    dtype
        The type of the records it was trained on.
    """

    model: Model
    encoder: Callable[[NDArray[Any]], NDArray[Any]]  # of a batch; fitted on public inputs
    class_names: tuple[str, ...]
    shape: tuple[int, ...]  # of one record
    dtype: str  # of the records it learnt from

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the label of each record, from 0.

        Parameters
        ----------
        X
            Records, (n, *shape), of a numeric type.

        Raises
        ------
        InvalidInput
            If the records have another shape or no numeric type.
        """
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *self._answers(self.model.labels, X)])

    @property
    def predict_proba(self) -> Callable[[ArrayLike], NDArray[np.float64]]:
        """A function that returns a probability for each class, where the model gives them."""
        if not self.model.gives_probabilities:
            raise AttributeError("this student gives no probabilities")
        return self._probabilities

    def _probabilities(self, X: ArrayLike) -> NDArray[np.float64]:
        empty = np.zeros((0, len(self.class_names)))
        return np.concatenate([empty, *self._answers(self.model.probabilities, X)])

    def _answers(
        self, ask: Callable[[NDArray[Any]], NDArray[Any]], X: ArrayLike
    ) -> list[NDArray[Any]]:
        records = np.asarray(X)
        if records.ndim == 0 or records.shape[1:] != self.shape:
            raise InvalidInput(
                f"the records have shape {records.shape}; the student takes (n, "
                f"{', '.join(map(str, self.shape))})"
            )
        if records.dtype.kind not in "fiub":
            raise InvalidInput(f"the records have type {records.dtype}; the student takes numbers")
        rows = rows_of(self.shape)
        starts = range(0, len(records), rows)
        return [ask(self.encoder(records[start : start + rows])) for start in starts]


def load_student(
    path: str | Path, plugin_path: str | Path | None = None, *, trust: bool = False
) -> ReleasedStudent:
    """Load the student of a release (``pate release RUN OUT``), ready to predict.

    Parameters
    ----------
    path
        The folder of the release.
    plugin_path
        A folder with the code of a student of the user's own class.
    trust
        Allow a student that needs code to import and run it. Only for code you know and a release
        from somebody you trust.

    Returns
    -------
    ReleasedStudent
        The student, with ``predict``, ``predict_proba`` where it has probabilities, and
        ``class_names``.

    Raises
    ------
    InvalidInput
        If the folder holds no release, its files were changed, or the student does not work or
        needs code without ``trust``.

    Guarantees:
        Without ``trust`` loading runs, imports and downloads nothing that the release names, and
        opens no file outside its folder: the student is numbers (ONNX of standard operators,
        safetensors), and was tried in a process of its own, within limits of memory and time,
        before it is loaded here. Files that differ from ``SHA256SUMS`` are refused.
    """
    folder = Path(path)
    require_unchanged(folder, HEADER, STUDENT, ENCODER)
    header = read_header(folder)
    if isinstance(header.model, CodeModel):
        if not trust:
            raise InvalidInput(
                f"the student needs code of its own ({', '.join(header.model.needs)}) because "
                f"{header.model.why}; load it with trust=True (--trust): {TRUST}"
            )
        return _trusted(folder, header, None if plugin_path is None else Path(plugin_path))
    problem = trial_problem(folder)
    if problem is not None:
        raise InvalidInput(f"the student in {folder} does not work: {problem}")
    return open_student(folder, header)


def open_student(folder: Path, header: Header) -> ReleasedStudent:
    """Load a student that needs no code into this process: after a trial, or where it was made."""
    steps = load_encoder_steps(folder, header)
    return _released(header, load_model(folder, header), lambda X: encoded(steps, X))


def _released(
    header: Header, model: Model, encoder: Callable[[NDArray[Any]], NDArray[Any]]
) -> ReleasedStudent:
    return ReleasedStudent(
        model=model,
        encoder=encoder,
        class_names=tuple(header.class_names),
        shape=tuple(header.input.shape),
        dtype=header.input.dtype,
    )


class TeacherModel:
    """A trained teacher in the role of a released model."""

    def __init__(self, teacher: Any, *, classes: int) -> None:
        self.teacher, self._classes = teacher, classes
        self.gives_probabilities = callable(getattr(teacher, "predict_proba", None))

    def labels(self, X: NDArray[Any]) -> NDArray[np.int64]:
        from pate.teachers.protocol import predict_labels

        return predict_labels(self.teacher, X, classes=self._classes, private=False)

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        from pate.teachers.protocol import probabilities

        return probabilities(self.teacher, X, classes=self._classes)


def _trusted(folder: Path, header: Header, plugin_path: Path | None) -> ReleasedStudent:
    """Load a student that needs code, which the caller trusts."""
    from pydantic import ValidationError

    from pate.encoders.chain import load_encoder
    from pate.encoders.spec import EncoderSpec
    from pate.teachers.persist import load
    from pate.teachers.spec import ModelSpec

    assert isinstance(header.model, CodeModel)
    classes = len(header.class_names)
    encoder: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    try:
        model = ModelSpec.model_validate(header.model.model)
        if header.model.encoder is not None:
            spec = EncoderSpec.model_validate(header.model.encoder)
            home = folder.resolve()  # a name that begins with ~ would mean another folder
            encoder = load_encoder(
                spec, folder / ENCODER, plugin_path=plugin_path, weights=home
            ).transform
    except ValidationError:
        raise InvalidInput(f"{folder / HEADER} is damaged, or of another version of pate") from None
    teacher = load(
        folder / STUDENT, model, classes=classes, seed=header.model.seed, plugin_path=plugin_path
    )
    return _released(header, TeacherModel(teacher, classes=classes), encoder)


# --- models --------------------------------------------------------------------------------------


class Model(Protocol):
    """Predicts for the features of one batch of records."""

    gives_probabilities: bool

    def labels(self, X: NDArray[Any]) -> NDArray[np.int64]: ...

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]: ...


def rows_of(shape: tuple[int, ...]) -> int:
    """Return how many records go through a student together; a trial uses as many."""
    return max(1, min(_ROWS, _MOST_NUMBERS // max(1, math.prod(shape))))


def load_model(folder: Path, header: Header) -> Model:
    """Return the model of a release, where it needs no code but ours."""
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
    """Return the arrays of a safetensors file; sizes are checked before anything is read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LONGEST_HEADER:
                raise InvalidInput(f"{file} is not a file of tensors")
            names = json.loads(stream.read(length))
            size = sum(
                each["data_offsets"][1] - each["data_offsets"][0]
                for name, each in names.items()
                if name != "__metadata__"
            )
            if not 0 <= size <= file.stat().st_size - 8 - length:
                raise InvalidInput(f"{file} declares more than it holds")
        tensors = load(file.read_bytes())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError,
            RecursionError):  # fmt: skip
        raise InvalidInput(f"{file} is not a file of tensors") from None
    return tensors


def write_tensors(file: Path, tensors: Tensors) -> None:
    """Write arrays as a safetensors file."""
    from safetensors.numpy import save

    arrays = {name: np.array(each, order="C") for name, each in tensors.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(save(arrays))


# --- the encoder ----------------------------------------------------------------------------------


def load_encoder_steps(
    folder: Path, header: Header
) -> list[Callable[[NDArray[Any]], NDArray[np.float32]]]:
    """Return the steps that records go through before the model, each for one batch."""
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
            raise InvalidInput(f"step {at} of the encoder is not a {spec.name}")
        for name, value in tensors.items():
            setattr(step, name, value)
    return lambda X: checked_features(step.transform(X), step=spec.name, records=len(X))


def encoded(steps: list[Callable[..., NDArray[np.float32]]], X: NDArray[Any]) -> NDArray[Any]:
    """Return a batch of records as the model takes them."""
    if steps:
        X = checked_features(X, step="(the inputs)", records=len(X))
    for step in steps:
        X = step(X)
    return X


def _features(folder: Path, header: Header) -> NDArray[Any]:
    """Return two records of zeros as the model takes them."""
    zeros = np.zeros((2, *header.input.shape), dtype=header.input.dtype)
    return encoded(load_encoder_steps(folder, header), zeros)
