"""The base of encoder steps: arrays of fitted steps on disk, and a check of their features."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput

_ARRAYS = "arrays.npz"
_ROWS = 1024  # records of a pass over the public inputs
_MOST_NUMBERS = 2**24  # of one batch, for wide records


class Step:
    """One step of an encoder; ``fit`` sees PUBLIC inputs only. By default nothing is fitted."""

    fitted: ClassVar[bool] = False  # whether fit() looks at its inputs
    arrays: ClassVar[tuple[str, ...]] = ()  # attributes that fit() sets, to be saved
    takes_missing: ClassVar[bool] = False  # whether numbers may be NaN; they may then remain so
    takes_categories: ClassVar[bool] = False  # whether numbers may be codes of categories
    categories: tuple[int, ...] = ()  # set before fit(): of each column; empty: numbers alone

    def fit(self, X: NDArray[Any]) -> None:
        return None

    def transform(self, X: NDArray[Any]) -> ArrayLike:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        if self.arrays:
            write_arrays(folder, {name: getattr(self, name) for name in self.arrays})

    def load(self, folder: Path) -> None:
        found = read_arrays(folder) if self.arrays else {}
        for name in self.arrays:
            setattr(self, name, found[name])

    def state_digest(self) -> str | None:
        """Return a digest of what a step of the user's own holds; None for a built-in step."""
        return None


def batches(X: NDArray[Any], *, rows: int = _ROWS) -> list[slice]:
    """Return slices by which an array or memory map is read in parts."""
    rows = max(1, min(rows, _MOST_NUMBERS // max(math.prod(X.shape[1:]), 1)))
    return [slice(start, min(start + rows, len(X))) for start in range(0, len(X), rows)]


def flat(X: NDArray[Any]) -> NDArray[Any]:
    """Return records flattened to rows of numbers."""
    return X.reshape(len(X), math.prod(X.shape[1:]))


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


def checked_features(
    answer: Any, *, step: str, records: int, missing: bool = False
) -> NDArray[np.float32]:
    """Return a step's features as float32; raise the rule that they break.

    With ``missing`` they may be NaN.
    """
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
    if (np.isinf(features) if missing else ~np.isfinite(features)).any():
        raise InvalidInput(
            f"step {step} returned numbers that are infinite or NaN in float32; look at its inputs"
        )
    return features


def apply_step(step: Step, X: NDArray[Any], *, name: str) -> NDArray[np.float32]:
    """Return a step's features of records, checked; NaN only where records have NaN."""
    if not step.takes_missing:
        require_complete(X, name=name)
    missing = step.takes_missing and bool(np.isnan(X).any())
    return checked_features(step.transform(X), step=name, records=len(X), missing=missing)


def require_complete(X: NDArray[Any], *, name: str) -> None:
    """Refuse missing values, for a step that takes none."""
    if np.isnan(X).any():
        raise InvalidInput(f'step {name} takes no missing values; put the step "impute" before it')
