"""Code that is not ours, run on records: its words stop here, and its answers are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput
from pate.untrusted import run_untrusted


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """Runs a step's own code, on records that may be private: only its type of error is told."""
    return run_untrusted(
        what, call, private=True, error=InvalidInput, advice="; try it on public inputs"
    )


def checked(answer: Any, *, step: str, records: int) -> NDArray[np.float32]:
    """A step's answer as float32, or the rule that it breaks."""
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
