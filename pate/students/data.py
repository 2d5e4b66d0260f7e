"""The inputs of a student's method: released labels and public inputs, and its tools."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.engines.progress import Progress, Silence
from pate.errors import InvalidInput
from pate.students.checkpoint import Checkpoint
from pate.students.spec import StudentSpec, derived_seed
from pate.teachers.adapters import build, make
from pate.teachers.protocol import Teacher


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudentData:
    """Released labels of some public inputs, and all public inputs.

    >>> data = StudentData(inputs=np.eye(3), rows=[2, 0], labels=[1, 0], classes=2)
    >>> data.unlabelled
    array([1])

    Guarantees:
        It has no field for a true label, a test input or a private record, so no method can see
        one, neither for training nor for stopping.
    """

    inputs: NDArray[Any]  # (n, …) every public input, as the student's model sees it
    features: NDArray[Any] | None = None  # (n, d) the encoder's, for graphs and choosing
    rows: NDArray[np.int64]  # (m,) the inputs with a label; one may occur twice
    labels: NDArray[np.int64]  # (m,)
    classes: int

    def __post_init__(self) -> None:
        inputs, rows, labels = (np.asarray(a) for a in (self.inputs, self.rows, self.labels))
        if rows.ndim != 1 or rows.shape != labels.shape:
            raise InvalidInput(f"rows {rows.shape} and labels {labels.shape} do not match")
        if len(rows) == 0:
            raise InvalidInput(
                "no label was released, so there is nothing for a student to learn from"
            )
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= self.classes:
            raise InvalidInput(
                f"a student's labels must be whole numbers from 0 to {self.classes - 1}"
            )
        if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(inputs):
            raise InvalidInput(
                f"a student's rows must be whole numbers from 0 to {len(inputs) - 1}, one for each "
                "label"
            )
        if self.features is not None and len(self.features) != len(inputs):
            raise InvalidInput(
                f"{len(self.features)} features do not match {len(inputs)} public inputs; encode "
                "the same inputs"
            )
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "rows", rows.astype(np.int64))
        object.__setattr__(self, "labels", labels.astype(np.int64))

    @property
    def unlabelled(self) -> NDArray[np.int64]:
        """The rows without a released label."""
        open_ = np.ones(len(self.inputs), dtype=bool)
        open_[self.rows] = False
        return np.flatnonzero(open_)

    @property
    def graph_features(self) -> NDArray[Any]:
        """The features that define neighbours: the encoder's, or otherwise the inputs."""
        chosen = self.inputs if self.features is None else np.asarray(self.features)
        return chosen.reshape(len(chosen), -1)

    def digest(self) -> str:
        """Return a hash of all of it, by which a checkpoint recognises its data."""
        found = hashlib.sha256(f"{self.classes}".encode())
        for array in (self.inputs, self.features, self.rows, self.labels):
            if array is not None:
                whole = np.ascontiguousarray(array)
                found.update(f"{whole.dtype} {whole.shape}".encode())
                found.update(whole.reshape(-1).view(np.uint8).data)
        return found.hexdigest()


Show = Callable[[str, int, int], AbstractContextManager[Progress]]
TITLE = "distill"


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
        return Checkpoint(path=self.folder / f"{name}.safetensors", identity=self.identity)

    @contextlib.contextmanager
    def progress(self, total: int, done: int) -> Iterator[Progress]:
        """Show the progress of a method, if a display was given."""
        if self.show is None:
            yield Silence()
        else:
            with self.show(TITLE, total, done) as bar:
                yield bar

    def held_out(self, data: StudentData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return positions of released labels to learn from and to stop by; they share no input."""
        rows, share = data.rows, self.spec.validation
        distinct = np.unique(rows)
        if share == 0 or len(distinct) < 2:
            return np.arange(len(rows)), np.empty(0, dtype=np.int64)
        count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
        order = np.random.default_rng(derived_seed(self.spec.seed, "held out")).permutation(
            distinct
        )
        out = np.isin(rows, order[:count])
        return np.flatnonzero(~out), np.flatnonzero(out)


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
