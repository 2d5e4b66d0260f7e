"""The step protocol, arrays of fitted steps on disk, and checks on the user's own steps.

Guarantees:
    A step that keeps something of a record it transforms would carry it to the next one: to another
    shard, to another private record, or into what is published. Its state, as it saves itself, is
    compared before and after. State that a step hides from its own ``save`` is not detected.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.encoders.spec import EncoderSpec, StepSpec
from pate.errors import InvalidInput
from pate.untrusted import run_untrusted

_ARRAYS = "arrays.npz"
_ROWS = 1024  # records of a pass over the public inputs
_MOST_NUMBERS = 2**24  # of one batch, for wide records


class Step(Protocol):
    """One step of an encoder; ``fit`` sees PUBLIC inputs only, and may do nothing."""

    def fit(self, X: NDArray[Any]) -> None: ...

    def transform(self, X: NDArray[Any]) -> ArrayLike: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


class Fixed:
    """A step with nothing to fit and nothing to save."""

    def fit(self, X: NDArray[Any]) -> None:
        return None

    def save(self, folder: Path) -> None:
        return None

    def load(self, folder: Path) -> None:
        return None


def batches(X: NDArray[Any], *, rows: int = _ROWS) -> list[slice]:
    """Return slices by which an array or memory map is read in parts."""
    width = int(np.prod(X.shape[1:], dtype=np.int64))
    rows = max(1, min(rows, _MOST_NUMBERS // max(width, 1)))
    return [slice(start, min(start + rows, len(X))) for start in range(0, len(X), rows)]


def flat(X: NDArray[Any]) -> NDArray[Any]:
    """Return records flattened to rows of numbers."""
    return X.reshape(len(X), int(np.prod(X.shape[1:], dtype=np.int64)))


def write_arrays(folder: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays; the same arrays give the same bytes."""
    named: dict[str, Any] = {f"a_{name}": value for name, value in arrays.items()}
    np.savez(folder / _ARRAYS, allow_pickle=False, **named)


def read_arrays(folder: Path) -> dict[str, NDArray[Any]]:
    file = folder / _ARRAYS
    try:
        # numpy leaves a damaged file open if it opened it itself
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name.removeprefix("a_"): stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        raise InvalidInput(f"{file} is damaged or missing; fit the encoder again") from None


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """Run a step's own code on records that may be private; errors show their type alone."""
    return run_untrusted(
        what, call, private=True, error=InvalidInput, advice="; try it on public inputs"
    )


def checked_features(answer: Any, *, step: str, records: int) -> NDArray[np.float32]:
    """Return a step's features as float32; raise the rule that they break."""
    features = np.asarray(answer)
    if features.dtype.kind not in "fiub":
        raise InvalidInput(f"step {step} returned type {features.dtype}; features are numbers")
    if features.ndim < 1 or len(features) != records:
        raise InvalidInput(
            f"step {step} returned shape {features.shape} for {records} records; it must return "
            "one row for each"
        )
    with np.errstate(over="ignore"):
        features = features.astype(np.float32, copy=False)
    if not np.isfinite(features).all():
        raise InvalidInput(
            f"step {step} returned numbers that are infinite or NaN in float32; look at its inputs"
        )
    return features


def is_own(spec: StepSpec) -> bool:
    """Return whether a step runs code of the user's: ``"module:attr"``, or a network.

    >>> [is_own(StepSpec(name=name)) for name in ("scattering", "numpy:tanh")]
    [False, True]
    """
    return spec.name == "torch" or ":" in spec.name


def has_own(spec: EncoderSpec) -> bool:
    return any(map(is_own, spec.steps))


def step_states(steps: Sequence[Step], specs: Sequence[StepSpec]) -> list[str | None]:
    """Return a digest of the state of each user's step; None for built-in steps."""
    return [
        _memory(step) if is_own(spec) else None for step, spec in zip(steps, specs, strict=True)
    ]


def require_unchanged(
    before: Sequence[str | None], steps: Sequence[Step], specs: Sequence[StepSpec]
) -> None:
    """Refuse a step whose state changed when it transformed records."""
    for old, new, spec in zip(before, step_states(steps, specs), specs, strict=True):
        if old != new:
            raise InvalidInput(
                f"step {spec.name} changes when it transforms records, and would carry one record "
                "to others; let fit(X) alone set attributes, and save() write the same bytes again"
            )


def _memory(step: Step) -> str:
    from pate.encoders.backbone import Backbone

    digest = hashlib.sha256()
    if isinstance(step, Backbone):
        for name, tensor in [*step.module.named_parameters(), *step.module.named_buffers()]:
            values = tensor.detach().double().numpy()
            digest.update(f"{name} {tensor.dtype} {values.shape}".encode() + values.tobytes())
        digest.update(str(step.module.training).encode())
        return digest.hexdigest()
    with tempfile.TemporaryDirectory(prefix="pate-step-") as folder:
        step.save(Path(folder))
        for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()
