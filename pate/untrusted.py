"""Guards around code of the user's that sees records: its output and errors must not leak them.

:func:`run_untrusted` wraps every call of the user's own code. :func:`describe_error` decides, at
the top of a command or a worker, what to print of an unexpected exception. Both print its type and
its place, never its text, which may quote a private record; ``--debug`` shows it to the owner.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from pate.errors import PateError

Unsilenced = Callable[[], AbstractContextManager[None]]

DEBUG = "PATE_DEBUG"  # set by --debug, and inherited by workers

_HERE = Path(__file__).parent
_OURS = {"pate": _HERE, "dpsgd": _HERE.with_name("dpsgd")}
_STDLIB = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_CALL_BACK = ("click", "joblib", "numpy", "pydantic", "sklearn", "torch", "typer")  # our functions


class ProcessExit(BaseException):
    """``os._exit`` was called in a command, which would end as if it had succeeded."""


_SEES_RECORDS = ContextVar("_SEES_RECORDS", default=False)


@contextmanager
def seeing_records() -> Iterator[None]:
    """Take every call of the user's code as private: an audit asks models about private records."""
    before = _SEES_RECORDS.set(True)
    try:
        yield
    finally:
        _SEES_RECORDS.reset(before)


def run_untrusted(
    name: str,
    call: Callable[[], Any],
    *,
    private: bool,
    error: type[PateError],
    advice: str = "",
    silent: bool = True,
) -> Any:
    """Call the user's code: drop its output, and turn an exception into one sentence of ``error``.

    The sentence begins with ``name`` and ends with ``advice``. ``private`` calls see private
    records, as do all within :func:`seeing_records`. ``silent=False`` is for calls that see nothing
    private while we show progress.

    Guarantees:
        With ``private`` the sentence names the exception's type and place, never its text, which
        may quote a private record. An error of ours keeps its text if our code raised it with no
        other code in between. NumPy's handling of overflow is restored afterwards.

    >>> run_untrusted("fit", lambda: 1 // 1, private=True, error=PateError)
    1
    """
    try:
        with contained(silent=silent):
            return call()
    except BaseException as problem:
        if propagates(problem):
            raise
        place = locate(problem)
        failure = f"{name} raised {type(problem).__name__}{f' in {place}' if place else ''}{advice}"
        quoted = debugging() or not (private or _SEES_RECORDS.get())
        text = _text(problem) if quoted else ""
        more = _traceback(problem)
    # Raised outside the handler, so that no chained traceback quotes the text.
    raise error((f"{failure}: {text}" if text else failure) + more)


def make_untrusted(failure: str, call: Callable[[], Any], *, error: type[PateError]) -> Any:
    """Call a constructor that has seen no data, so that the reason of a failure can be shown.

    >>> make_untrusted("it cannot be made", lambda: {}["size"], error=PateError)
    Traceback (most recent call last):
    pate.errors.PateError: it cannot be made: KeyError: 'size'
    """
    try:
        with contained():
            return call()
    except BaseException as problem:
        if propagates(problem):
            raise
        reason = f"{type(problem).__name__}: {_text(problem)}{_traceback(problem)}"
    raise error(f"{failure}: {reason}")


def propagates(problem: BaseException) -> bool:
    """Return whether an exception propagates unchanged: an error of ours, or Ctrl-C."""
    return is_own(problem) or type(problem) is KeyboardInterrupt


@contextlib.contextmanager
def contained(*, silent: bool = True) -> Iterator[Unsilenced]:
    """Drop output and undo changes of NumPy's error handling for the duration of the block.

    Yields a context manager for output of our own meanwhile (:func:`silence`).
    """
    with contextlib.ExitStack() as stack:
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            stack.enter_context(numpy.errstate())
        else:
            stack.callback(_restore_numpy)
        unsilenced: Unsilenced = contextlib.nullcontext
        if silent and not debugging():
            unsilenced = stack.enter_context(silence())
        yield unsilenced


def describe_error(error: BaseException) -> str:
    """Return one line about an exception that is safe to show.

    >>> describe_error(ValueError("could not convert 'Ada Lovelace'"))
    'ValueError'
    >>> describe_error(PateError("scale is -1; it must be positive"))
    'PateError: scale is -1; it must be positive'
    """
    kind = type(error).__name__
    if is_own(error):
        return f"{kind}: {' '.join(str(error).split())}"
    return f"{kind}: {_text(error)}{_traceback(error)}" if debugging() else kind


def is_own(error: BaseException) -> bool:
    """Return whether our own code raised this error of ours, for a reason of its own.

    Guarantees:
        False for one that the user's code raised, or caused by what it passed to us: its text may
        quote a record.
    """
    return isinstance(error, PateError) and not any(map(_is_untrusted, _frames(error)))


def involves_user_code(error: BaseException) -> bool:
    """Return whether code of the user's took part in it, other than installed packages."""
    return any(_is_untrusted(frame) and not _is_installed(frame) for frame in _frames(error))


def is_ours(module: str) -> bool:
    """Return whether a module belongs to this project.

    >>> is_ours("pate.teachers.linear"), is_ours("pateacher")
    (True, False)
    """
    return module.partition(".")[0] in _OURS


def debugging() -> bool:
    """Return whether the owner asked to see the text of exceptions."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def locate(error: BaseException, *, in_ours: bool = False) -> str:
    """Return the line of code that raised: the last one of the user's, else the last of all.

    With ``in_ours`` the last one of ours takes precedence over those of libraries.
    """
    lines = list(traceback.walk_tb(error.__traceback__))
    if not lines:
        return ""
    best = [line for line in lines if _is_untrusted(line[0]) and not _is_installed(line[0])]
    if not best and in_ours:
        best = [line for line in lines if _is_of_ours(line[0])]
    frame, number = (best or lines)[-1]
    file = Path(frame.f_code.co_filename)
    of_ours = file.relative_to(_HERE.parent).as_posix() if file.is_relative_to(_HERE) else None
    return f"{of_ours or '/'.join(file.parts[-2:])} line {number}"


def forbid_core_dumps() -> None:
    """Disable core dumps, which would hold the records in memory."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def forbid_exit() -> Iterator[None]:
    """Make ``os._exit`` raise :class:`ProcessExit` in this process; it works in forked ones."""
    end, own = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:
            end(status)
        raise ProcessExit(f"os._exit({status}) was called")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = end


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_of_ours(frame: FrameType) -> bool:
    home = _OURS.get(_package(frame))
    file = frame.f_code.co_filename
    return home is not None and (file.startswith("<") or Path(file).is_relative_to(home))


def _is_untrusted(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code, or a library that has no reason to call ours."""
    file = frame.f_code.co_filename
    if _is_of_ours(frame) or file.startswith("<frozen "):
        return False
    if _is_installed(frame):
        return _package(frame) not in _CALL_BACK
    return not Path(file).is_relative_to(_STDLIB)


def _is_installed(frame: FrameType) -> bool:
    return any(part in _INSTALLED for part in Path(frame.f_code.co_filename).parts)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _restore_numpy() -> None:
    """Restore NumPy's defaults for overflow, if it was imported meanwhile."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.seterr(divide="warn", over="warn", under="ignore", invalid="warn")


def _text(error: BaseException) -> str:
    """Return the first line of its text, if it has any."""
    try:
        return "".join(str(error).strip().splitlines()[:1])
    except Exception:
        return ""


def _traceback(error: BaseException) -> str:
    """Return the traceback for an owner who asked for it, else nothing."""
    return "\n" + "".join(traceback.format_exception(error)).rstrip() if debugging() else ""


# --- output ---------------------------------------------------------------------------------------


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
