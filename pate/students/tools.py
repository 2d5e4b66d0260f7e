"""What every method is given besides the recipe's section and the data."""

from __future__ import annotations

import contextlib
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
from pate.students.data import StudentData
from pate.students.seeds import sub_seed
from pate.students.spec import StudentSpec
from pate.teachers.adapters import build, make
from pate.teachers.protocol import Teacher

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
        """An untrained model; ``name`` tells apart those of one student."""
        seed = sub_seed(self.spec.seed, "model", name) if name else self.spec.seed
        model = self.spec.as_model()
        if self.factory is not None:
            return build(self.factory, model, classes=self.classes, seed=seed)
        return make(model, classes=self.classes, seed=seed, plugin_path=self.plugin_path)

    def checkpoint(self, name: str) -> Checkpoint | None:
        """A file of that name among the student's checkpoints; None if none are kept."""
        if self.folder is None:
            return None
        return Checkpoint(path=self.folder / f"{name}.safetensors", identity=self.identity)

    @contextlib.contextmanager
    def progress(self, total: int, done: int) -> Iterator[Progress]:
        """Shows how far a method has come, where somebody looks."""
        if self.show is None:
            yield Silence()
        else:
            with self.show(TITLE, total, done) as bar:
                yield bar

    def held_out(self, data: StudentData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places of released labels to learn from, and to stop by; no input is in both."""
        rows, share = data.rows, self.spec.validation
        distinct = np.unique(rows)
        if share == 0 or len(distinct) < 2:
            return np.arange(len(rows)), np.empty(0, dtype=np.int64)
        count = min(max(1, round(share * len(distinct))), len(distinct) - 1)
        order = np.random.default_rng(sub_seed(self.spec.seed, "held out")).permutation(distinct)
        out = np.isin(rows, order[:count])
        return np.flatnonzero(~out), np.flatnonzero(out)


def refuse_torch_keys(spec: StudentSpec) -> None:
    """For a model that is no torch module: what only such a module can use is refused."""
    set_ = {
        "augment": spec.augment not in ("none", "auto"),
        "smoothing": spec.smoothing > 0,
        "average": spec.average > 0,
        "agreement": spec.agreement < 1,
    }
    for key, given in set_.items():
        if given:
            raise InvalidInput(f"{key!r} is for torch modules, and {spec.model} is none; drop it")
