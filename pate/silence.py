"""Discarding standard output and standard error, also of libraries in C."""

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

Unsilenced = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def silence() -> Iterator[Unsilenced]:
    """Discard everything that is printed, logged or warned of in the block, then or later.

    Yields a context manager within which our own output appears all the same.

    Guarantees:
        The number of tries must stay private, and models print while they train: one line per
        training would reveal it, as a printed record would. What is still buffered at the end, in
        Python's streams or in C's, is flushed before output is restored. A stream that was kept
        from inside the block leads nowhere afterwards, too.
    """
    outside = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    _flush(outside)
    with contextlib.ExitStack() as stack:
        silent = _null_stream()
        originals: dict[int, int] = {}
        for number in (1, 2):
            with contextlib.suppress(OSError):  # it is closed
                originals[number] = kept = os.dup(number)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, number)
                os.dup2(silent.fileno(), number)
        stack.callback(_flush, [*outside, silent])  # while they still lead nowhere

        @contextlib.contextmanager
        def unsilenced() -> Iterator[None]:
            _flush([*outside, silent])
            for number, kept in originals.items():
                os.dup2(kept, number)
            try:
                with (
                    contextlib.redirect_stdout(outside[0]),
                    contextlib.redirect_stderr(outside[1]),
                ):
                    yield
            finally:
                _flush(outside)
                for number in originals:
                    os.dup2(silent.fileno(), number)

        stack.enter_context(contextlib.redirect_stdout(silent))
        stack.enter_context(contextlib.redirect_stderr(silent))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield unsilenced


_stream: TextIO | None = None


def _null_stream() -> TextIO:
    """Return one stream for the whole process: a logger made inside may write to it any time."""
    global _stream
    try:
        os.fstat(-1 if _stream is None or _stream.closed else _stream.fileno())
    except OSError:
        _stream = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
        atexit.register(_stream.close)
    assert _stream is not None
    return _stream


def _flush(streams: list[TextIO | None]) -> None:
    """Flush all buffers to where the streams lead now."""
    for stream in streams:
        # None, closed, or broken
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no C library to ask
        _c_library().fflush(None)


@functools.cache
def _c_library() -> Any:
    return ctypes.CDLL(None)
