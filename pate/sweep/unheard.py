"""Work of which nobody hears: what it prints, warns of or fails with stays inside."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Inside, standard output and standard error lead nowhere, for libraries in C, too.

    Guarantees:
        How often something is tried must stay private, and models like to talk while they train: a
        line for each training would tell. Warnings and logs go the same way. What is still in a
        buffer at the end, of Python's streams or of C's, is let go before the way out is open
        again.
    """
    outside = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    _let_go(outside)
    with contextlib.ExitStack() as stack:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, nowhere)
        for number in (1, 2):
            with contextlib.suppress(OSError):  # one that is closed says nothing anyway
                kept = os.dup(number)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, number)
                os.dup2(nowhere, number)
        stack.callback(_let_go, outside)  # while they still lead nowhere
        silent = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(silent))
        stack.enter_context(contextlib.redirect_stderr(silent))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _let_go(streams: list[TextIO | None]) -> None:
    """Empties all buffers to where the streams lead now."""
    for stream in streams:
        # None, closed, or broken
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no C library to ask
        ctypes.CDLL(None).fflush(None)
