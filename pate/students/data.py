"""What a student may see: released labels and public inputs, and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudentData:
    """Released labels of some public inputs, and all public inputs.

    >>> data = StudentData(inputs=np.eye(3), rows=[2, 0], labels=[1, 0], classes=2)
    >>> data.unlabelled
    array([1])

    Guarantees:
        There is no place for a true label, a test input or a private record, so no method can
        see one, be it for training or for stopping.
    """

    inputs: NDArray[Any]  # (n, …) every public input, as the student's model sees it
    features: NDArray[Any] | None = None  # (n, d) the encoder's, for graphs and choosing
    rows: NDArray[np.int64]  # (m,) which inputs have a label; the same may come twice
    labels: NDArray[np.int64]  # (m,)
    classes: int

    def __post_init__(self) -> None:
        inputs, rows, labels = (np.asarray(a) for a in (self.inputs, self.rows, self.labels))
        if rows.ndim != 1 or rows.shape != labels.shape:
            raise InvalidInput(f"rows {rows.shape} and labels {labels.shape} do not go together")
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
                f"{len(self.features)} features do not go with {len(inputs)} public inputs; encode "
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
        """What nearness is measured in: the encoder's features, or else the inputs."""
        chosen = self.inputs if self.features is None else np.asarray(self.features)
        return chosen.reshape(len(chosen), -1)

    def digest(self) -> str:
        """A hash of all of it, by which a checkpoint knows its data again."""
        found = hashlib.sha256(f"{self.classes}".encode())
        for array in (self.inputs, self.features, self.rows, self.labels):
            if array is not None:
                whole = np.ascontiguousarray(array)
                found.update(f"{whole.dtype} {whole.shape}".encode())
                found.update(whole.reshape(-1).view(np.uint8).data)
        return found.hexdigest()
