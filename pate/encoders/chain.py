"""An encoder: steps fitted in turn on public inputs, applied in batches, saved as npz and JSON.

On disk each step has a folder, and ``encoder.json`` records what was fitted; nothing is pickled.
Modules to import come from the recipe, never from the folder.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.encoders.spec import EncoderSpec, StepSpec
from pate.encoders.step import Step, apply_step, batches, checked_features, require_complete
from pate.errors import InvalidInput, PateError

_BATCH = 256  # records that go through all steps together
_MOST_NUMBERS = 2**24  # of one batch at its widest: 64 MiB
_IN_MEMORY = 2**28  # bytes of features between two steps that are kept in memory while fitting
_ALONE = 8  # public records on which a step must show that it encodes each by itself
_HEADER = "encoder.json"
_BUILT_IN = {
    "scattering": "scattering:Scattering",
    "root": "scaling:Root",
    "standardise": "scaling:Standardise",
    "normalise": "scaling:Normalise",
    "groupnorm": "scaling:GroupNorm",
    "pca": "reduction:PCA",
    "diffusion": "reduction:Diffusion",
    "impute": "tables:Impute",
    "one-hot": "tables:OneHot",
    "ordinal": "tables:Ordinal",
}


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A fitted encoder.

    >>> spec = EncoderSpec(steps=["standardise", {"name": "pca", "dimension": 2}])
    >>> public = np.arange(12.0).reshape(4, 3) ** 2
    >>> chain = fit_encoder(spec, public)
    >>> chain.shape, chain.transform(public).shape
    ((2,), (4, 2))

    Guarantees:
        No step keeps a record that it transforms: its state comes from the public inputs, and a
        user's step that changes is refused (:mod:`pate.encoders.user_code`). Each record is encoded
        on its own. For the built-in steps this is exact: the values of other records in a call
        change no bit of a record's features, and their number changes at most the last bits, by the
        record's position among them. A backbone or a user's step may round differently in another
        batch, so a call should hold the records of one shard.
    """

    spec: EncoderSpec
    steps: tuple[Step, ...]
    input_shape: tuple[int, ...]  # of one record
    shape: tuple[int, ...]  # of one record's features
    widest: int  # numbers of one record between any two steps

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the features of records (n, …), as (n, \\*shape)."""
        records = np.asanyarray(X)
        out = np.empty((len(records) if records.ndim else 0, *self.shape), dtype=np.float32)
        self.transform_into(records, out)
        return out

    def transform_into(self, X: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the features of (n, …) records into an array, which may be a memory map.

        Input and output are held a batch at a time.
        """
        if X.shape[1:] != self.input_shape or X.ndim == 0:
            raise InvalidInput(
                f"the encoder was fitted on records of shape {self.input_shape}, and these have "
                f"shape {X.shape[1:]}; encode records of the same data set"
            )
        rows = _rows(self.widest)
        with _unchanged(self.steps, self.spec.steps):
            for start in range(0, len(X), rows):
                part: NDArray[Any] = np.asarray(X[start : start + rows])
                part = checked_features(part, step="(the inputs)", records=len(part), missing=True)
                for step, spec in zip(self.steps, self.spec.steps, strict=True):
                    part = apply_step(step, part, name=spec.name)
                if part.shape[1:] != self.shape:
                    raise InvalidInput(
                        f"the encoder made features of shape {part.shape[1:]}, and {self.shape} "
                        "when it was fitted; a step must make the same shape of every record"
                    )
                out[start : start + rows] = part


def fit_encoder(
    spec: EncoderSpec,
    public_inputs: ArrayLike,
    *,
    categories: Sequence[int] = (),
    plugin_path: Path | None = None,
) -> Chain:
    """Fit the steps in turn, each on the output of the steps before it for the public inputs.

    ``categories`` has, of a table with categories, their number for each column.

    Guarantees:
        The inputs must be PUBLIC: fitted steps reach every teacher and the student.
    """
    X = np.asanyarray(public_inputs)
    if X.ndim < 1 or len(X) == 0:
        raise InvalidInput("an encoder is fitted on public inputs, and there are none")
    input_shape = tuple(X.shape[1:])
    spec.require_categories(categories)
    for part in batches(X):
        records = part.stop - part.start
        checked_features(np.asarray(X[part]), step="(the inputs)", records=records, missing=True)
    steps = [make_step(step, plugin_path=plugin_path) for step in spec.steps]
    last = max((at for at, step in enumerate(steps) if step.fitted), default=-1)
    widest = math.prod(input_shape)
    with contextlib.ExitStack() as temporary:
        for at, (step, step_spec) in enumerate(zip(steps, spec.steps, strict=True)):
            if at > last:  # no later step is fitted: a few records suffice for the shape
                X = X[:_ALONE]
            if step.takes_categories:
                step.categories = tuple(categories)
            if not step.takes_missing:
                for part in batches(X):
                    require_complete(np.asarray(X[part]), name=step_spec.name)
            step.fit(X)
            categories = categories if step_spec.name == "impute" else ()
            with _unchanged([step], [step_spec]):
                _check_per_record(step, step_spec, X[:_ALONE])
                X = _features_after(step, step_spec, X if at < last else X[:_ALONE], temporary)
            widest = max(widest, math.prod(X.shape[1:]))
        shape = tuple(X.shape[1:])
    return Chain(spec=spec, steps=tuple(steps), input_shape=input_shape, shape=shape, widest=widest)


def make_step(spec: StepSpec, *, plugin_path: Path | None = None) -> Step:
    """Return the step of a recipe, not fitted yet."""
    if spec.runs_user_code:
        from pate.encoders.user_code import Backbone, Plugin

        if spec.own:
            return Plugin(spec.name, **spec.settings(), plugin_path=plugin_path)
        return Backbone(**spec.settings(), folder=spec.folder, plugin_path=plugin_path)
    module, _, name = _BUILT_IN[spec.name].partition(":")
    kind = getattr(importlib.import_module(f"pate.encoders.{module}"), name)
    step: Step = kind(**spec.settings())
    return step


@contextlib.contextmanager
def _unchanged(steps: Sequence[Step], specs: Sequence[StepSpec]) -> Iterator[None]:
    """Refuse a user's step whose state changes when it transforms records."""
    before = [step.state_digest() for step in steps]
    yield
    for old, step, spec in zip(before, steps, specs, strict=True):
        if step.state_digest() != old:
            raise InvalidInput(
                f"step {spec.name} changes when it transforms records, and would carry one record "
                "to others; let fit(X) alone set attributes, and save() write the same bytes again"
            )


def _features_after(
    step: Step, spec: StepSpec, X: NDArray[Any], temporary: contextlib.ExitStack
) -> NDArray[np.float32]:
    """Return a step's features of all public inputs; in a file if they are too large."""
    first = apply_step(step, np.asarray(X[:1], dtype=np.float32), name=spec.name)
    shape = (len(X), *first.shape[1:])
    out: NDArray[np.float32]
    if 4 * math.prod(shape) <= _IN_MEMORY:
        out = np.empty(shape, dtype=np.float32)
    else:
        folder = temporary.enter_context(tempfile.TemporaryDirectory(prefix="pate-public-"))
        out = np.memmap(Path(folder) / "features", dtype=np.float32, mode="w+", shape=shape)
    rows = _rows(max(first.size, math.prod(X.shape[1:])))
    for start in range(0, len(X), rows):
        part = np.asarray(X[start : start + rows], dtype=np.float32)
        made = apply_step(step, part, name=spec.name)
        if made.shape[1:] != shape[1:]:
            raise InvalidInput(
                f"step {spec.name} made features of shape {made.shape[1:]} and of shape "
                f"{shape[1:]}; it must make the same shape of every record"
            )
        out[start : start + rows] = made
    return out


def _check_per_record(step: Step, spec: StepSpec, X: NDArray[Any]) -> None:
    """Refuse a step whose features of one record depend on the other records."""
    sample = np.asarray(X, dtype=np.float32)
    together, alone = (apply_step(step, each, name=spec.name) for each in (sample, sample[:1]))
    size = np.nanmax(np.abs(together[:1]), initial=0.0)
    if alone.shape[1:] != together.shape[1:] or not np.allclose(
        alone[0], together[0], rtol=1e-2, atol=1e-3 * float(size), equal_nan=True
    ):
        raise InvalidInput(
            f"step {spec.name} gives a record different features when others are present; each "
            "record must be encoded on its own, so take statistics in fit(X)"
        )


def _rows(widest: int) -> int:
    return max(1, min(_BATCH, _MOST_NUMBERS // max(widest, 1)))


def save_encoder(chain: Chain, folder: Path) -> None:
    """Write a fitted encoder, which is PUBLIC; the same encoder gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for at, step in enumerate(chain.steps):
        place = folder / f"step-{at}"
        place.mkdir(exist_ok=True)
        step.save(place)
    header = {
        "steps": _steps(chain.spec),
        "input_shape": chain.input_shape,
        "shape": chain.shape,
        "widest": chain.widest,
    }
    (folder / _HEADER).write_text(json.dumps(header, sort_keys=True), encoding="utf-8")


def load_encoder(
    spec: EncoderSpec,
    folder: Path,
    *,
    plugin_path: Path | None = None,
    weights: Path | None = None,
) -> Chain:
    """Return the encoder that :func:`save_encoder` wrote, for the steps of a recipe.

    ``weights`` is the folder that holds files of weights; by default they are looked up by path.
    """
    damaged = InvalidInput(f"{folder / _HEADER} is damaged; fit the encoder again")
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        kept, widest = header["steps"], int(header["widest"])
        input_shape, shape = (tuple(map(int, header[key])) for key in ("input_shape", "shape"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no saved encoder in {folder}; fit it first") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise damaged from None
    if kept != _steps(spec):
        raise InvalidInput(
            f"{folder} holds an encoder of other steps than the recipe's; fit it again"
        )
    steps = [make_step(_within(step, weights), plugin_path=plugin_path) for step in spec.steps]
    for at, step in enumerate(steps):
        try:
            step.load(folder / f"step-{at}")
        except PateError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            raise damaged from None
    return Chain(spec=spec, steps=tuple(steps), input_shape=input_shape, shape=shape, widest=widest)


def _steps(spec: EncoderSpec) -> list[Any]:
    return [{"name": step.name, **step.settings()} for step in spec.steps]


def _within(step: StepSpec, folder: Path | None) -> StepSpec:
    """Return the step with its weights from a folder, and from nowhere else."""
    if folder is None or step.weights is None:
        return step
    file = folder / step.weights
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput(
            f"there is no file {step.weights} in {folder} for the backbone's weights"
        )
    return step.model_copy(update={"weights": str(file)})
