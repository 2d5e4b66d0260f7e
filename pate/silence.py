"""Standard output and standard error that lead nowhere, for libraries in C, too."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TextIO

Aloud = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def silence() -> Iterator[Aloud]:
    """Inside, nothing that is printed, logged or warned of appears, then or later.

    Given is a context in which our own words are heard all the same.

    Guarantees:
        How often something is tried must stay private, and models like to talk while they train: a
        line for each training would tell; so would a record that is printed. What is still in a
        buffer at the end, of Python's streams or of C's, is let go before the way out is open
        again. A stream that somebody kept from inside leads nowhere afterwards, too.
    """
    outside = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    _flush(outside)
    with contextlib.ExitStack() as stack:
        silent = _nowhere()
        ways_out: dict[int, int] = {}
        for number in (1, 2):
            with contextlib.suppress(OSError):  # one that is closed says nothing anyway
                ways_out[number] = kept = os.dup(number)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, number)
                os.dup2(silent.fileno(), number)
        stack.callback(_flush, [*outside, silent])  # while they still lead nowhere

        @contextlib.contextmanager
        def aloud() -> Iterator[None]:
            _flush([*outside, silent])
            for number, kept in ways_out.items():
                os.dup2(kept, number)
            try:
                with (
                    contextlib.redirect_stdout(outside[0]),
                    contextlib.redirect_stderr(outside[1]),
                ):
                    yield
            finally:
                _flush(outside)
                for number in ways_out:
                    os.dup2(silent.fileno(), number)

        stack.enter_context(contextlib.redirect_stdout(silent))
        stack.enter_context(contextlib.redirect_stderr(silent))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield aloud


_stream: TextIO | None = None


def _nowhere() -> TextIO:
    """One stream for the whole process: a logger made inside may write to it at any time."""
    global _stream
    try:
        os.fstat(-1 if _stream is None or _stream.closed else _stream.fileno())
    except OSError:
        _stream = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
        atexit.register(_stream.close)
    assert _stream is not None
    return _stream


def _flush(streams: list[TextIO | None]) -> None:
    """Empties all buffers to where the streams lead now."""
    for stream in streams:
        # None, closed, or broken
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no C library to ask
        _c_library().fflush(None)


@functools.cache
def _c_library() -> Any:
    return ctypes.CDLL(None)
