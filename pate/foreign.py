"""Code that is not ours, run on records: its words stop here."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pate.errors import PateError


def run_foreign(
    name: str, call: Callable[[], Any], *, private: bool, error: type[PateError], advice: str = ""
) -> Any:
    """Runs it; what it prints or warns is dropped, and an exception becomes one sentence.

    >>> run_foreign("fit", lambda: 1 // 1, private=True, error=PateError)
    1

    Guarantees:
        With ``private`` the sentence names the exception's type and place, never its words: those
        may quote a private record.
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
    except (Exception, SystemExit) as problem:
        failure = f"{name} raised {type(problem).__name__}{_place(problem)}{advice}"
        said = "" if private else "".join(str(problem).strip().splitlines()[:1])
    # Raised outside the handler, so that no chained traceback quotes the words.
    raise error(f"{failure}: {said}" if said else failure)


def _place(problem: BaseException) -> str:
    """The file and line an exception comes from."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    file = Path(trace.tb_frame.f_code.co_filename)
    return f" in {'/'.join(file.parts[-2:])} line {trace.tb_lineno}"
