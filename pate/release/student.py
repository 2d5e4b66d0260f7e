"""A released student, loaded from its folder: ``pate.load_student(path).predict(X)``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.release.importing import require_known
from pate.release.sums import require_whole
from pate.teachers.spec import ModelSpec

if TYPE_CHECKING:
    from pate.encoders.chain import Chain

HEADER = "student.json"
STUDENT = "student"
ENCODER = "encoder"
_WEIGHTS = re.compile(rf"{ENCODER}/weights-[0-9]+\.safetensors")


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedStudent:
    """A model that answers for records in the form of the data set it was made for."""

    model: Any
    encoder: Chain | None  # fitted on public inputs; None where the model takes records as they are
    class_names: tuple[str, ...]
    shape: tuple[int, ...]  # of one record
    dtype: str  # of the records it learnt from

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """The class of each record, from 0; ``class_names`` says what they are called."""
        from pate.teachers.protocol import predict_labels

        return predict_labels(
            self.model, self._seen(X), classes=len(self.class_names), private=False
        )

    @property
    def predict_proba(self) -> Callable[[ArrayLike], NDArray[np.float64]]:
        """A probability for each class, where the model gives them."""
        if not callable(getattr(self.model, "predict_proba", None)):
            raise AttributeError(f"a {type(self.model).__name__} gives no probabilities")
        return self._probabilities

    def _probabilities(self, X: ArrayLike) -> NDArray[np.float64]:
        from pate.teachers.protocol import probabilities

        return probabilities(self.model, self._seen(X), classes=len(self.class_names))

    def _seen(self, X: ArrayLike) -> NDArray[Any]:
        records = np.asarray(X)
        if records.shape[1:] != self.shape or records.ndim == 0:
            raise InvalidInput(
                f"the records have shape {records.shape}; the student takes (n, "
                f"{', '.join(map(str, self.shape))})"
            )
        return records if self.encoder is None else self.encoder.transform(records)


def load_student(
    path: str | Path, plugin_path: str | Path | None = None, *, trust: str | Collection[str] = ()
) -> ReleasedStudent:
    """The student of a release (``pate release RUN OUT``), ready to predict.

    A student of one's own class needs ``plugin_path``, the folder with its code; one of another
    installed package needs ``trust``, the name of the package.

    Guarantees:
        Loading runs no code that the release brings: weights are safetensors, skops, npz and JSON,
        never pickle, and only models of pate, scikit-learn and torchvision are imported unless the
        caller vouches for others. Files that differ from ``SHA256SUMS`` are refused.
    """
    folder = Path(path)
    plugins = None if plugin_path is None else Path(plugin_path)
    require_whole(folder, HEADER, STUDENT, ENCODER)
    header = read_header(folder)
    trusted = (trust,) if isinstance(trust, str) else tuple(trust)
    model, spec = _specs(folder, header)
    _require_own_weights(folder, spec)
    for name in names_of(model, spec):
        require_known(name, plugin_path=plugins, trust=trusted)
    from pate.teachers.persist import load

    names = tuple(header["class_names"])
    loaded = load(
        folder / STUDENT, model, classes=len(names), seed=header["seed"], plugin_path=plugins
    )
    return ReleasedStudent(
        model=loaded,
        encoder=None if spec is None else _encoder(folder, spec, plugins),
        class_names=names,
        shape=tuple(header["input"]["shape"]),
        dtype=header["input"]["dtype"],
    )


def read_header(folder: Path) -> dict[str, Any]:
    """``student.json``, its values of the right kinds."""
    try:
        header: dict[str, Any] = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        shape, names = header["input"]["shape"], header["class_names"]
        np.dtype(header["input"]["dtype"])
        right = (
            header["format"] == 1
            and all(type(side) is int and side > 0 for side in shape)
            and all(isinstance(name, str) for name in names)
            and len(names) > 1
            and type(header["seed"]) is int
            and {"model", "encoder"} <= header.keys()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        right = False
    if not right:
        raise InvalidInput(f"{folder / HEADER} is damaged, or of another version of pate")
    return header


def names_of(model: ModelSpec, encoder: EncoderSpec | None) -> list[str]:
    """Every name that loading would import."""
    steps = [] if encoder is None else encoder.steps
    return [
        model.model,
        *(step.name for step in steps if step.own),
        *(step.model for step in steps if step.model is not None),
    ]


def _specs(folder: Path, header: dict[str, Any]) -> tuple[ModelSpec, EncoderSpec | None]:
    try:
        model = ModelSpec.model_validate(header["model"])
        encoder = header["encoder"]
        return model, None if encoder is None else EncoderSpec.model_validate(encoder)
    except (ValidationError, InvalidInput):
        raise InvalidInput(f"{folder / HEADER} is damaged, or of another version of pate") from None


def _require_own_weights(folder: Path, spec: EncoderSpec | None) -> None:
    """A backbone's weights are files of the release itself, and safetensors."""
    for step in [] if spec is None else spec.steps:
        if step.weights is None:
            continue
        file = folder / step.weights
        links = file.is_symlink() or file.parent.is_symlink()
        if not _WEIGHTS.fullmatch(step.weights) or links or not file.is_file():
            raise InvalidInput(
                f"{folder / HEADER} names the weights {step.weights!r}, which is not a file of "
                f"the release such as {ENCODER}/weights-0.safetensors; get the release again"
            )


def _encoder(folder: Path, spec: EncoderSpec, plugin_path: Path | None) -> Chain:
    """The encoder, its weights taken from the release, wherever the caller's folder is."""
    from pate.encoders.persist import load_encoder

    home = folder.resolve()  # a name that begins with ~ would mean another folder
    return load_encoder(spec, folder / ENCODER, plugin_path=plugin_path, weights=home)
