"""A released student, loaded from its folder: ``pate.load_student(path).predict(X)``.

A student is data: an ONNX graph, a matrix, the arrays of a kernel, one label, or the weights of a
network of ours. One that needs code of its own is loaded only for a caller who trusts that code.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.encoders.spec import StepSpec
from pate.encoders.step import Step, apply_step, checked_features
from pate.errors import InvalidInput
from pate.releases.files import (
    ENCODER,
    GRAPH,
    HEADER,
    STUDENT,
    TENSORS,
    CodeModel,
    ConstantModel,
    EncoderStep,
    Header,
    KernelModel,
    LinearModel,
    NetworkModel,
    OnnxModel,
    file_problems,
    is_hub,
    read_header,
)
from pate.releases.onnx_graph import OnnxGraph, read_graph
from pate.releases.records import RecordForm
from pate.teachers.protocol import checked_labels

# The arrays of fitted encoder steps; the others have none.
STATE: dict[str, tuple[str, ...]] = {
    "standardise": ("mean", "scale"),
    "pca": ("mean", "components", "variances"),
    "diffusion": ("inputs", "reach", "coordinates"),
    "impute": ("fill",),
    "one-hot": ("counts", "missing"),
}
_ROWS, _MOST_NUMBERS = 256, 2**22  # of one batch

Tensors = dict[str, NDArray[Any]]
Predict = Callable[[NDArray[Any]], NDArray[Any]]  # for the features of one batch of records


@dataclass(frozen=True, slots=True)
class Model:
    """The functions that predict; ``probabilities`` where the model gives them."""

    labels: Predict
    probabilities: Predict | None = None


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
    columns
        The names of the columns of a table, in order; None where they are not known.
    """

    model: Model = field(repr=False)
    encoder: Predict = field(repr=False)  # fitted on public inputs
    class_names: tuple[str, ...]
    form: RecordForm

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return self.form.shape

    @property
    def dtype(self) -> str:
        """The type of the records it was trained on."""
        return self.form.dtype

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of the columns of a table, in order; None where they are not known."""
        names = [each.name for each in self.form.columns or ()]
        known = tuple(name for name in names if name is not None)
        return known if known and len(known) == len(names) else None

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each record: its name, or its number where classes are numbers.

        Parameters
        ----------
        X
            Records: an array, (n, *shape), or a DataFrame, whose columns are found by name.

        Returns
        -------
        ndarray of shape (n,)
            Text, or whole numbers if all class names are whole numbers.

        Raises
        ------
        InvalidInput
            If the records are not in the form that the student learnt from: another shape, columns
            that are missing or unknown, text in place of numbers, pixels on another scale.
        """
        return self._classes[self.predict_labels(X)]

    def predict_labels(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the label of each record, from 0: its place in ``class_names``.

        Takes and refuses records as ``predict`` does.
        """
        return self.labels_of(self.form.read(X))

    @property
    def predict_proba(self) -> Callable[[ArrayLike], NDArray[np.float64]]:
        """A function that returns a probability for each class, where the model gives them."""
        ask = self.model.probabilities
        if ask is None:
            raise AttributeError("this student gives no probabilities")
        return lambda X: self.probabilities_of(self.form.read(X))

    @property
    def _classes(self) -> NDArray[Any]:
        whole = all(re.fullmatch(r"-?\d{1,18}", name) for name in self.class_names)
        return np.array([int(name) for name in self.class_names] if whole else self.class_names)

    def labels_of(self, records: NDArray[Any]) -> NDArray[np.int64]:
        """Return the labels of records that are in the form already."""
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *self._answers(self.model.labels, records)])

    def probabilities_of(self, records: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probabilities of records that are in the form already."""
        assert self.model.probabilities is not None
        empty = np.zeros((0, len(self.class_names)))
        return np.concatenate([empty, *self._answers(self.model.probabilities, records)])

    def _answers(self, ask: Predict, records: NDArray[Any]) -> list[NDArray[Any]]:
        rows = rows_of(self.shape)
        starts = range(0, len(records), rows)
        return [ask(self.encoder(records[start : start + rows])) for start in starts]


def load_student(
    path: str | Path, plugin_path: str | Path | None = None, *, trust: bool = False
) -> ReleasedStudent:
    """Load the student of a release (``pate release RUN OUT``), ready to predict.

    Takes the folder for hubs (``--also hf``) as well, here or as it was downloaded.

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
        The student, with ``predict`` (classes by name), ``predict_labels`` (numbers from 0),
        ``predict_proba`` where it has probabilities, and ``class_names``.

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
    for changed in file_problems(folder, HEADER, STUDENT, ENCODER, GRAPH, TENSORS):
        raise InvalidInput(f"{folder}: {changed}; get the release again")
    header = read_header(folder)
    if isinstance(header.model, CodeModel):
        if not trust:
            raise InvalidInput(
                f"the student needs code of its own ({', '.join(header.model.needs)}) because "
                f"{header.model.why}; load it with trust=True (--trust), which imports and runs "
                "the code that the release names, only for code you know and a release from "
                "somebody you trust"
            )
        return _trusted(folder, header, None if plugin_path is None else Path(plugin_path))
    problem = trial_problem(folder)
    if problem is not None:
        raise InvalidInput(f"the student in {folder} does not work: {problem}")
    return open_student(folder, header)


def open_student(folder: Path, header: Header) -> ReleasedStudent:
    """Load a student that needs no code into this process: after a trial, or where it was made."""
    steps = [_step(folder / ENCODER, at, step) for at, step in enumerate(header.encoder)]

    def encode(X: NDArray[Any]) -> NDArray[Any]:
        if steps:
            X = checked_features(X, step="(the inputs)", records=len(X), missing=True)
        for step in steps:
            X = step(X)
        return X

    return _released(header, _load_model(folder, header, encode), encode)


def _released(header: Header, model: Model, encoder: Predict) -> ReleasedStudent:
    return ReleasedStudent(
        model=model,
        encoder=encoder,
        class_names=tuple(header.class_names),
        form=header.input.form,
    )


def teacher_model(teacher: Any, *, classes: int) -> Model:
    """Return a trained teacher in the role of a released model."""
    from pate.teachers.protocol import predict_labels, probabilities

    return Model(
        lambda X: predict_labels(teacher, X, classes=classes, private=False),
        (lambda X: probabilities(teacher, X, classes=classes))
        if callable(getattr(teacher, "predict_proba", None))
        else None,
    )


def _trusted(folder: Path, header: Header, plugin_path: Path | None) -> ReleasedStudent:
    """Load a student that needs code, which the caller trusts."""
    from pydantic import ValidationError

    from pate.encoders.chain import load_encoder
    from pate.encoders.spec import EncoderSpec
    from pate.teachers.persist import load
    from pate.teachers.spec import ModelSpec

    assert isinstance(header.model, CodeModel)
    classes = len(header.class_names)
    encoder: Predict = np.asarray
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
    return _released(header, teacher_model(teacher, classes=classes), encoder)


# --- models ---------------------------------------------------------------------------------------


def rows_of(shape: tuple[int, ...]) -> int:
    """Return how many records go through a student together; a trial uses as many."""
    return max(1, min(_ROWS, _MOST_NUMBERS // max(1, math.prod(shape))))


def _load_model(folder: Path, header: Header, encode: Predict) -> Model:
    """Return the model of a release, where it needs no code but ours."""
    classes = len(header.class_names)
    place = folder if is_hub(folder) else folder / STUDENT
    match header.model:
        case OnnxModel(classes=order):
            return _graph_model(read_graph(place / GRAPH), order=order, classes=classes)
        case LinearModel():
            return _linear_model(read_tensors(place / TENSORS), classes=classes)
        case KernelModel():
            return _kernel_model(read_tensors(place / TENSORS), classes=classes)
        case ConstantModel(label=label):
            if label >= classes:
                raise InvalidInput(f"the student's only label is {label}, and there are {classes}")
            return Model(
                lambda X: np.full(len(X), label, dtype=np.int64),
                lambda X: np.tile(np.eye(classes)[label], (len(X), 1)),
            )
        case NetworkModel() as network:
            zeros = np.zeros((2, *header.input.shape), dtype=header.input.dtype)
            shape = encode(zeros).shape[1:]
            tensors = read_tensors(place / TENSORS)
            return _network_model(tensors, network, shape=shape, classes=classes)
    raise InvalidInput(f"{folder} holds a student that needs code of its own")


def _logits_model(logits: Predict) -> Model:
    """Return a model that predicts the largest logit; probabilities are their softmax."""

    def probabilities(X: NDArray[Any]) -> NDArray[np.float64]:
        from scipy.special import softmax

        return np.asarray(softmax(logits(X).astype(np.float64), axis=1))

    return Model(lambda X: logits(X).argmax(axis=1).astype(np.int64), probabilities)


def _graph_model(graph: OnnxGraph, *, order: list[int], classes: int) -> Model:
    if graph.outputs not in (("logits",), ("label",), ("label", "probabilities")):
        raise InvalidInput("the graph gives neither labels nor logits")
    if max(order) >= classes or len(set(order)) < len(order):
        raise InvalidInput("the graph's classes are not those of the student")

    def output(name: str, X: NDArray[Any], columns: int) -> NDArray[Any]:
        found = graph.run(X)[name]
        if found.shape != (len(X), columns):
            raise InvalidInput(f"the graph does not give {name} for each class")
        return found

    if graph.outputs == ("logits",):
        return _logits_model(lambda X: output("logits", X, classes))

    def labels(X: NDArray[Any]) -> NDArray[np.int64]:
        return checked_labels(graph.run(X)["label"], records=len(X), classes=classes)

    def probabilities(X: NDArray[Any]) -> NDArray[np.float64]:
        table = np.zeros((len(X), classes))
        table[:, order] = output("probabilities", X, len(order))
        return table

    return Model(labels, None if graph.outputs == ("label",) else probabilities)


def _linear_model(tensors: Tensors, *, classes: int) -> Model:
    shapes = {name: each.shape for name, each in tensors.items()}
    width = math.prod(shapes.get("weights", ())[:1])
    if shapes != {"weights": (width, classes), "intercept": (classes,)}:
        raise InvalidInput(f"{TENSORS} does not hold the weights of a linear model")

    def labels(X: NDArray[Any]) -> NDArray[np.int64]:
        flat = np.asarray(X, dtype=np.float32).reshape(len(X), -1)
        scores = flat @ tensors["weights"] + tensors["intercept"]
        return np.asarray(scores.argmax(axis=1), dtype=np.int64)

    return Model(labels)


def _kernel_model(tensors: Tensors, *, classes: int) -> Model:
    from pate.students.kernel_ridge import KernelRidge

    shapes = {name: each.shape for name, each in tensors.items()}
    count = math.prod(shapes.get("coefficients", ())[:1])
    width = math.prod(shapes.get("inputs", ())[1:])
    wanted = {
        "inputs": (count, width),
        "coefficients": (count, classes),
        "shares": (classes,),
        "scale": (),
    }
    arrays = {name: np.asarray(each, dtype=np.float32) for name, each in tensors.items()}
    if shapes != wanted or not all(np.isfinite(each).all() for each in arrays.values()):
        raise InvalidInput(f"{TENSORS} does not hold the numbers of a kernel-ridge")
    scale = float(tensors["scale"])
    if not 0 < scale < math.inf:
        raise InvalidInput(f"the kernel's scale is {scale:g}; it must be positive and finite")
    model = KernelRidge(classes=classes)
    model.inputs, model.coefficients = arrays["inputs"], arrays["coefficients"]
    model.shares, model.unit = arrays["shares"], scale
    return Model(model.predict, model.predict_proba)


def _network_model(
    tensors: Tensors, spec: NetworkModel, *, shape: tuple[int, ...], classes: int
) -> Model:
    import torch

    from pate.students.networks import Mlp, SmallCNN

    # On "meta" nothing is allocated: shapes are known before weights are compared with them.
    with torch.device("meta"), torch.no_grad():
        if spec.name == "mlp":
            module: Any = Mlp(classes, hidden=spec.widths)
        else:
            module = SmallCNN(classes, channels=spec.widths)
        module.eval()(torch.zeros(2, *shape))
    wanted = {name: tuple(each.shape) for name, each in module.state_dict().items()}
    if wanted != {name: each.shape for name, each in tensors.items()}:
        raise InvalidInput(f"{TENSORS} does not hold the weights of this {spec.name}")
    state = {name: torch.from_numpy(each.copy()) for name, each in tensors.items()}
    module.load_state_dict(state, assign=True)
    module.eval()

    def logits(X: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            records = torch.from_numpy(np.array(X, dtype=np.float32))
            return np.asarray(module(records).numpy())

    return _logits_model(logits)


def read_tensors(file: Path) -> Tensors:
    """Return the arrays of a safetensors file; the library checks sizes before it reads."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(file.read_bytes())
    except (OSError, ValueError, LookupError, TypeError, SafetensorError):
        raise InvalidInput(f"{file} is not a file of tensors") from None


def write_tensors(file: Path, tensors: Tensors) -> None:
    """Write arrays as a safetensors file."""
    from safetensors.numpy import save

    arrays = {name: np.array(each, order="C") for name, each in tensors.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(save(arrays))


def step_files(header: Header) -> Iterator[str]:
    """Yield the names of the files that the steps of an encoder are read from."""
    for at, step in enumerate(header.encoder):
        if step.name == "onnx":
            yield f"step-{at}.onnx"
        elif step.name in STATE:
            yield f"step-{at}.safetensors"


def _step(folder: Path, at: int, spec: EncoderStep) -> Predict:
    """Return a step that records go through before the model."""
    if spec.name == "onnx":
        graph = read_graph(folder / f"step-{at}.onnx")
        if graph.outputs != ("features",):
            raise InvalidInput(f"step {at} of the encoder gives no features")
        return lambda X: checked_features(
            graph.run(X)["features"], step="onnx", records=len(X), missing=bool(np.isnan(X).any())
        )
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
    return lambda X: apply_step(step, X, name=spec.name)


# --- the trial ------------------------------------------------------------------------------------

# A file can be made to crash its reader or to exhaust memory. So the student is first loaded in a
# process of its own and predicts one full batch there, within limits; what passes takes no more
# memory afterwards, because no size in a student depends on a record's values.

_MEMORY = 3 * 2**30  # bytes, beside four times those of the release
_SECONDS = 120  # of the processor; three times as many by the clock
_START = "import sys; sys.path[:] = {path!r}; from pate.releases.student import _main; _main()"


def trial_problem(
    folder: Path, *, plugin_path: Path | None = None, trust: bool = False
) -> str | None:
    """Return how a student fails in a trial, in one line; None if it works."""
    path = [each for each in sys.path if each]  # not the folder one happens to be in
    arguments = [str(folder.resolve()), "" if plugin_path is None else str(plugin_path.resolve())]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _START.format(path=path), *arguments, "trust" * trust],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=3 * _SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {3 * _SECONDS} s"
    except OSError as error:
        return f"no process could be started to try it ({error.strerror})"
    if done.returncode < 0:
        number = -done.returncode
        if number == signal.SIGXCPU:
            return f"it took more than {_SECONDS} s of the processor"
        return f"its process was ended by signal {number}"
    try:
        answer = json.loads(done.stdout.decode().splitlines()[-1])
    except (ValueError, IndexError):
        return f"its process ended with code {done.returncode} and without an answer"
    return None if answer is None else str(answer)


def _main() -> None:
    """Try the student in the folder given as an argument, in this process."""
    folder, plugin_path, trust = sys.argv[1:]
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a model's output is not the answer
    if not trust:
        _limit(_MEMORY + 4 * sum(each.stat().st_size for each in Path(folder).rglob("*")))
    answer = None
    try:
        _try(Path(folder), Path(plugin_path) if plugin_path else None, trust=bool(trust))
    except MemoryError:
        answer = "it needs too much memory"
    except (Exception, SystemExit) as error:
        answer = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    os.write(output, f"\n{json.dumps(answer)}\n".encode())


def _limit(memory: int) -> None:
    """Limit memory and time, and forbid core dumps and large files."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 2**20),  # libraries test whether they can write at all
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_DATA, memory),
    ):
        with contextlib.suppress(OSError, ValueError):  # a stricter limit is set already
            resource.setrlimit(kind, (most, most))


def _try(folder: Path, plugin_path: Path | None, *, trust: bool) -> None:
    if trust:
        student = load_student(folder, plugin_path, trust=True)
    else:
        student = open_student(folder, read_header(folder))
    records = student.form.drawn(rows_of(student.shape))
    student.labels_of(records)
    if hasattr(student, "predict_proba"):
        student.probabilities_of(records)
