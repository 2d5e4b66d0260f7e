"""Code that is not ours, run on records: its words stop here, and its answers are checked."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput, PateError


def guarded(what: str, call: Callable[[], Any]) -> Any:
    """Runs it; what it prints is dropped, and an exception becomes one sentence.

    Guarantees:
        The sentence names the exception's type and place, never its words: those may quote a
        private record.
    """
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            return call()
    except PateError:
        raise
    except (Exception, SystemExit) as error:
        failure = f"{what} raised {type(error).__name__}{_place(error)}; try it on public inputs"
    # Raised outside the handler, so that no chained traceback quotes the words.
    raise InvalidInput(failure)


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


def _place(error: BaseException) -> str:
    """The file and line an exception comes from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    file = Path(trace.tb_frame.f_code.co_filename)
    return f" in {'/'.join(file.parts[-2:])} line {trace.tb_lineno}"
