"""Work of which nobody hears: what it prints, warns of or fails with stays inside."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Inside, standard output and standard error lead nowhere, for libraries in C, too.

    Guarantees:
        How often something is tried must stay private, and models like to talk while they train: a
        line for each training would tell. Warnings and logs go the same way.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # none, closed, or broken
            stream.flush()
    with contextlib.ExitStack() as stack:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, nowhere)
        for number in (1, 2):
            with contextlib.suppress(OSError):  # one that is closed says nothing anyway
                kept = os.dup(number)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, number)
                os.dup2(nowhere, number)
        silent = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(silent))
        stack.enter_context(contextlib.redirect_stderr(silent))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
