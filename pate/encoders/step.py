"""What a step is, and the arrays that a fitted one leaves on disk."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import InvalidInput

_ARRAYS = "arrays.npz"
_ROWS = 1024  # records of a pass over the public inputs
_MOST_NUMBERS = 2**24  # of one batch, for wide records


class Step(Protocol):
    """One step of an encoder. ``fit`` sees PUBLIC inputs only, and may do nothing."""

    def fit(self, X: NDArray[Any]) -> None: ...

    def transform(self, X: NDArray[Any]) -> ArrayLike: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


class Fixed:
    """A step with nothing to fit and nothing to keep."""

    def fit(self, X: NDArray[Any]) -> None:
        return None

    def save(self, folder: Path) -> None:
        return None

    def load(self, folder: Path) -> None:
        return None


def batches(X: NDArray[Any], *, rows: int = _ROWS) -> list[slice]:
    """The parts of an array (also a memory map) that are read one after another."""
    width = int(np.prod(X.shape[1:], dtype=np.int64))
    rows = max(1, min(rows, _MOST_NUMBERS // max(width, 1)))
    return [slice(start, min(start + rows, len(X))) for start in range(0, len(X), rows)]


def flat(X: NDArray[Any]) -> NDArray[Any]:
    """Records as rows of numbers."""
    return X.reshape(len(X), int(np.prod(X.shape[1:], dtype=np.int64)))


def write_arrays(folder: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """The same arrays give the same bytes."""
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
