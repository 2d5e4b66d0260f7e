"""A released student, loaded from its folder: ``pate.load_student(path).predict(X)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput
from pate.release.models import (
    ENCODER,
    STUDENT,
    Model,
    encoded,
    load_encoder_steps,
    load_model,
    rows_of,
)
from pate.release.schema import HEADER, CodeModel, Header, read_header
from pate.release.sums import require_whole
from pate.release.trial import problem_of

TRUST = (
    "trust imports and runs the code that the release names, and reads its files as that code does;"
    " give it only for code you know and a release from somebody you trust"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedStudent:
    """A model that answers for records in the form of the data set it was made for."""

    model: Model
    encoder: Callable[[NDArray[Any]], NDArray[Any]]  # of a batch; fitted on public inputs
    class_names: tuple[str, ...]
    shape: tuple[int, ...]  # of one record
    dtype: str  # of the records it learnt from

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """The class of each record, from 0; ``class_names`` says what they are called."""
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *self._answers(self.model.labels, X)])

    @property
    def predict_proba(self) -> Callable[[ArrayLike], NDArray[np.float64]]:
        """A probability for each class, where the model gives them."""
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
    """The student of a release (``pate release RUN OUT``), ready to predict.

    Args:
        path: The folder of the release.
        plugin_path: A folder with the code of a student of one's own class.
        trust: Whether a student that needs code may import and run it. Only for code you know and
            a release from somebody you trust.

    Guarantees:
        Without ``trust`` loading runs, imports and downloads nothing that the release names, and
        opens no file outside its folder: the student is numbers (ONNX of standard operators,
        safetensors), and was tried in a process of its own, within limits of memory and time,
        before it is loaded here. Files that differ from ``SHA256SUMS`` are refused.
    """
    folder = Path(path)
    require_whole(folder, HEADER, STUDENT, ENCODER)
    header = read_header(folder)
    if isinstance(header.model, CodeModel):
        if not trust:
            raise InvalidInput(
                f"the student needs code of its own ({', '.join(header.model.needs)}) because "
                f"{header.model.why}; load it with trust=True (--trust): {TRUST}"
            )
        return _trusted(folder, header, None if plugin_path is None else Path(plugin_path))
    problem = problem_of(folder)
    if problem is not None:
        raise InvalidInput(f"the student in {folder} does not work: {problem}")
    return open_student(folder, header)


def open_student(folder: Path, header: Header) -> ReleasedStudent:
    """A student that needs no code, here and now: only after a trial, or where it was made."""
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
    """A trained teacher as the model of a student."""

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
    """A student that needs code, which the caller vouches for."""
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
