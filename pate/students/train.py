"""Training a student: what its method is given, and the methods by name.

A method is a function from (spec, data, tools) to a trained model, entered in :data:`METHODS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts import fingerprint
from pate.engines.progress import Progress, Silence
from pate.errors import InvalidInput, TeacherError
from pate.students.spec import StudentSpec, derived_seed
from pate.teachers.adapters import build, make
from pate.teachers.protocol import Teacher, guarded, train

if TYPE_CHECKING:
    from pate.students.training import Checkpoint
    from pate.teachers.torch_teacher import TorchTeacher

Show = Callable[[str, int, int], AbstractContextManager[Progress]]
METHODS = {  # and their modules, loaded at the first use
    "supervised": "train",
    "self-training": "self_training",
    "fixmatch": "semi_supervised",
    "mixmatch": "semi_supervised",
    "gan": "semi_supervised",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudentData:
    """Released labels of some public inputs, and all public inputs.

    Guarantees:
        It has no field for a true label, a test input or a private record, so no method can see
        one, neither for training nor for stopping.
    """

    inputs: NDArray[Any]  # (n, …) every public input, as the student's model sees it
    features: NDArray[Any] | None = None  # (n, d) the encoder's, for graphs and choosing
    rows: NDArray[np.int64]  # (m,) the inputs with a label; one may occur twice
    labels: NDArray[np.int64]  # (m,)
    classes: int
    soft: NDArray[np.float64] | None = None  # (m, classes) probabilities, where labels are unsure
    weights: NDArray[np.float64] | None = None  # (m,) from 0 to 1; None: all count alike

    def __post_init__(self) -> None:
        inputs, rows, labels = (np.asarray(a) for a in (self.inputs, self.rows, self.labels))
        if rows.ndim != 1 or rows.shape != labels.shape:
            raise InvalidInput(f"rows {rows.shape} and labels {labels.shape} do not match")
        if len(rows) == 0:
            raise InvalidInput(
                "no label was released, so there is nothing for a student to learn from"
            )
        for name, found, end in (("labels", labels, self.classes), ("rows", rows, len(inputs))):
            if found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= end:
                raise InvalidInput(
                    f"a student's {name} must be whole numbers from 0 to {end - 1}, one for each "
                    "label"
                )
        if self.features is not None and len(self.features) != len(inputs):
            raise InvalidInput(
                f"{len(self.features)} features do not match {len(inputs)} public inputs; encode "
                "the same inputs"
            )
        if self.soft is not None and np.shape(self.soft) != (len(rows), self.classes):
            raise InvalidInput(f"{np.shape(self.soft)} probabilities do not match {len(rows)} rows")
        if self.weights is not None:
            weights = np.asarray(self.weights)
            if weights.shape != rows.shape or not ((weights >= 0) & (weights <= 1)).all():
                raise InvalidInput("a student's weights must be from 0 to 1, one for each label")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "rows", rows.astype(np.int64))
        object.__setattr__(self, "labels", labels.astype(np.int64))

    @property
    def targets(self) -> NDArray[np.float64]:
        """The probabilities to learn, (m, classes): ``soft``, or otherwise the labels alone."""
        if self.soft is not None:
            return np.asarray(self.soft, dtype=np.float64)
        return np.eye(self.classes)[self.labels]

    @property
    def graph_features(self) -> NDArray[Any]:
        """The features that define neighbours: the encoder's, or otherwise the inputs."""
        chosen = self.inputs if self.features is None else np.asarray(self.features)
        return chosen.reshape(len(chosen), -1)

    def digest(self) -> str:
        """Return a hash of all of it, by which a checkpoint recognises its data."""
        found = hashlib.sha256(f"{self.classes}".encode())
        given = (self.inputs, self.features, self.rows, self.labels, self.soft, self.weights)
        for array in given:
            if array is not None:
                whole = np.ascontiguousarray(array)
                found.update(f"{whole.dtype} {whole.shape}".encode())
                found.update(whole.reshape(-1).view(np.uint8).data)
        return found.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Fresh models, checkpoints, progress, and the labels held out for early stopping."""

    spec: StudentSpec
    classes: int
    plugin_path: Path | None = None
    folder: Path | None = None  # for checkpoints; None: none are kept
    identity: str = ""  # of spec and data: a checkpoint of others is not used
    show: Show | None = None
    private: bool = False  # whether the data are private records: then errors quote nothing
    factory: Callable[..., Any] | None = None  # makes the model where the spec does not name one

    def fresh(self, name: str = "") -> Teacher:
        """Return an untrained model; ``name`` distinguishes those of one student."""
        seed = derived_seed(self.spec.seed, "model", name) if name else self.spec.seed
        model = self.spec.as_model()
        if self.factory is not None:
            return build(self.factory, model, classes=self.classes, seed=seed)
        return make(model, classes=self.classes, seed=seed, plugin_path=self.plugin_path)

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the student's checkpoint of that name; None if none are kept."""
        if self.folder is None:
            return None
        from pate.students.training import Checkpoint

        return Checkpoint(path=self.folder / f"{name}.safetensors", identity=self.identity)

    @contextlib.contextmanager
    def progress(self, total: int, done: int) -> Iterator[Progress]:
        """Show the progress of a method, if a display was given."""
        if self.show is None:
            yield Silence()
        else:
            with self.show("distill", total, done) as bar:
                yield bar

    def held_out(self, data: StudentData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return positions of released labels to learn from and to stop by; they share no input."""
        rows, share = data.rows, self.spec.validation
        distinct = np.unique(rows)
        if share == 0 or len(distinct) < 2:
            return np.arange(len(rows)), np.empty(0, dtype=np.int64)
        count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
        rng = np.random.default_rng(derived_seed(self.spec.seed, "held out"))
        out = np.isin(rows, rng.permutation(distinct)[:count])
        return np.flatnonzero(~out), np.flatnonzero(out)


SURE = 0.9  # confidence from which a soft label is taken as it is, where others are guessed
_LEAST_SURE = 0.5  # the share of each class that is, if fewer are that sure


def sure_places(data: StudentData, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of labels that are taken as given, among ``places``.

    Those are all, unless labels are soft: then the sure ones, and at least half of each class. The
    others are guessed like inputs without a label.
    """
    if data.soft is None:
        return places
    labels, sure = data.labels[places], data.soft[places].max(axis=1)
    if data.weights is not None:
        sure = np.asarray(data.weights)[places]
    chosen = sure >= SURE
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        least = int(np.ceil(_LEAST_SURE * len(members)))
        chosen[members[np.argsort(-sure[members], kind="stable")[:least]]] = True
    return np.asarray(places[chosen])


def as_torch(student: Teacher) -> TorchTeacher | None:
    """Return the student if it is a torch module; without one nothing of torch is loaded."""
    if not hasattr(student, "module"):
        return None
    from pate.teachers.torch_teacher import TorchTeacher

    return student if isinstance(student, TorchTeacher) else None


def refuse_torch_keys(spec: StudentSpec) -> None:
    """Refuse keys that only a torch module can use, for another model."""
    set_ = {
        "augment": spec.augment not in ("none", "auto"),
        "smoothing": spec.smoothing > 0,
        "average": spec.average > 0,
        "agreement": spec.agreement < 1,
    }
    for key, given in set_.items():
        if given:
            raise InvalidInput(f"{key!r} is for torch modules, and {spec.model} is none; drop it")


def supervised(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """Fit once to the released labels.

    A torch module with augmentation, averaged weights, smoothed or soft labels or early stopping is
    trained by the loop of students; otherwise as a teacher is. Other models learn the most probable
    class, or soft labels if they have ``fit_soft``; with weights where they take them.
    """
    student = tools.fresh()
    if (module := as_torch(student)) is not None:
        own = data.soft is not None or data.weights is not None
        if own or spec.augment != "none" or spec.smoothing or spec.average or spec.validation:
            _fit_torch(spec, data, tools, module)
            return student
    else:
        refuse_torch_keys(spec)
        if spec.validation:
            raise InvalidInput(
                f"validation decides when to stop, and {spec.model} is fitted once; leave it out"
            )
    inputs, learn_soft = data.inputs[data.rows], getattr(student, "fit_soft", None)
    if data.soft is not None and learn_soft is not None:
        guarded("fit", lambda: learn_soft(inputs, data.soft, data.weights), private=tools.private)
    else:
        train(student, inputs, data.labels, private=tools.private, weights=data.weights)
    return student


def _fit_torch(spec: StudentSpec, data: StudentData, tools: Tools, student: TorchTeacher) -> None:
    import torch

    from pate.students.augment import make_augment
    from pate.students.training import accuracy, fit_table, initialise

    learn, stop = tools.held_out(data)
    inputs = torch.from_numpy(np.array(data.inputs[data.rows], dtype=np.float32))
    labels = torch.from_numpy(data.labels)
    targets = torch.from_numpy(data.targets).float()
    if data.weights is not None:  # of a row of targets, and so of its cross entropy
        targets *= torch.from_numpy(np.asarray(data.weights)).float()[:, None]
    # Zeros in place of private records: the error of a module that does not fit may quote inputs.
    initialise(student, np.zeros_like(data.inputs[:2]) if tools.private else data.inputs)

    with tools.progress(spec.epochs, 0) as bar:
        fit_table(
            student,
            inputs[learn],
            targets[learn],
            augment=make_augment(
                spec.augment, shape=data.inputs.shape[1:], plugin_path=tools.plugin_path
            ),
            smoothing=spec.smoothing,
            epochs=spec.epochs,
            seed=spec.seed,
            average=spec.average,
            score=accuracy(inputs[stop], labels[stop]),
            patience=spec.patience,
            checkpoint=tools.checkpoint("epochs"),
            advance=bar.advance,
        )


def find_method(name: str) -> Callable[[StudentSpec, StudentData, Tools], Teacher]:
    """Return the function of a method."""
    module = importlib.import_module(f"pate.students.{METHODS[name]}")
    found: Callable[..., Teacher] = getattr(module, name.replace("-", "_"))
    return found


def train_student(
    spec: StudentSpec,
    data: StudentData,
    *,
    plugin_path: Path | None = None,
    folder: Path | None = None,
    progress: Show | None = None,
    private: bool = False,
    factory: Callable[..., Any] | None = None,
) -> Teacher:
    """Train a student by the method that its section names.

    torch modules train on the current device (:mod:`pate.devices`), others on the CPU.

    With a ``folder`` of checkpoints a killed run resumes; a checkpoint of another section or other
    data is ignored. ``private`` is for a reference model fitted to private records, which is no
    student. ``factory`` makes the untrained model in place of ``spec.model``.

    >>> data = StudentData(inputs=[[0.0], [1.0]], rows=[0, 1], labels=[1, 0], classes=2)
    >>> spec = StudentSpec(model="sklearn.tree:DecisionTreeClassifier")
    >>> train_student(spec, data).predict([[0.2]])
    array([1])

    Guarantees:
        The student is a function of released labels and public inputs, so it costs no privacy
        beyond theirs (post-processing: Dwork and Roth 2014, Proposition 2.1). With ``private`` it
        is PRIVATE, and an error names the place where the model failed and never its message.
    """
    if private and spec.method != "supervised":
        raise InvalidInput(f"a reference model is fitted once, and the method is {spec.method!r}")
    identity = "" if folder is None else fingerprint(spec.model_dump(mode="json"), data.digest())
    tools = Tools(
        spec=spec,
        classes=data.classes,
        plugin_path=plugin_path,
        folder=folder,
        identity=identity,
        show=progress,
        private=private,
        factory=factory,
    )
    try:
        trained: Teacher = guarded(
            "fit",
            lambda: find_method(spec.method)(spec, data, tools),
            private=private,
            silent=private,  # a student sees nothing private, and may show its progress
        )
    except (TeacherError, InvalidInput) as error:
        who = "the reference model" if private else "the student"
        raise type(error)(f"{who} failed: {error}") from None
    return trained
