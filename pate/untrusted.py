"""Code that is not ours, run on records: what it prints, warns of or raises stops here.

There are two guards. :func:`run_untrusted` surrounds every call of the user's own code.
:func:`shown` decides at the outermost place of a command or a worker what may be said of an
exception that nobody expected. Both show its type and its place, never its text, which may quote a
private record; ``--debug`` shows the text to the owner.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pate.errors import PateError
from pate.silence import Aloud, silence

DEBUG = "PATE_DEBUG"  # set by --debug, and inherited by workers

_HERE = Path(__file__).parent
_OURS = {"pate": _HERE, "dpsgd": _HERE.with_name("dpsgd")}
_STDLIB = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_CALL_BACK = ("click", "joblib", "numpy", "pydantic", "sklearn", "torch", "typer")  # our functions


class ProcessExit(BaseException):
    """Somebody called ``os._exit`` in a command: it would end as if all were done."""


def run_untrusted(
    name: str,
    call: Callable[[], Any],
    *,
    private: bool,
    error: type[PateError],
    advice: str = "",
    silent: bool = True,
) -> Any:
    """Runs it; what it prints or warns is dropped, and an exception becomes one sentence.

    ``silent=False`` is for what shows progress of ours meanwhile and sees nothing private.

    >>> run_untrusted("fit", lambda: 1 // 1, private=True, error=PateError)
    1

    Guarantees:
        With ``private`` the sentence names the exception's type and place, never its words: those
        may quote a private record. An error of ours keeps its words if our code raised it, and no
        other code was in between. What numpy does about overflow is as it was, afterwards.
    """
    try:
        with contained(silent=silent):
            return call()
    except BaseException as problem:
        if passes(problem):
            raise
        place = locate(problem)
        failure = f"{name} raised {type(problem).__name__}{f' in {place}' if place else ''}{advice}"
        said = _text(problem) if debugging() or not private else ""
        more = _traceback(problem)
    # Raised outside the handler, so that no chained traceback quotes the words.
    raise error((f"{failure}: {said}" if said else failure) + more)


def make_untrusted(failure: str, call: Callable[[], Any], *, error: type[PateError]) -> Any:
    """Makes something by a constructor that has seen no data: the reason why it fails is told.

    >>> make_untrusted("it cannot be made", lambda: {}["size"], error=PateError)
    Traceback (most recent call last):
    pate.errors.PateError: it cannot be made: KeyError: 'size'
    """
    try:
        with contained():
            return call()
    except BaseException as problem:
        if passes(problem):
            raise
        reason = f"{type(problem).__name__}: {_text(problem)}{_traceback(problem)}"
    raise error(f"{failure}: {reason}")


def passes(problem: BaseException) -> bool:
    """Whether an exception goes on as it is: an error of ours, or Ctrl-C."""
    return is_own(problem) or type(problem) is KeyboardInterrupt


@contextlib.contextmanager
def contained(*, silent: bool = True) -> Iterator[Aloud]:
    """Inside, code may print and change how numpy treats overflow; outside nobody notices.

    Given is a context for words of our own meanwhile (:func:`pate.silence.silence`).
    """
    with contextlib.ExitStack() as stack:
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            stack.enter_context(numpy.errstate())
        else:
            stack.callback(_restore_numpy)
        aloud: Aloud = contextlib.nullcontext
        if silent and not debugging():
            aloud = stack.enter_context(silence())
        yield aloud


def shown(error: BaseException) -> str:
    """One line about an exception that is safe to show.

    >>> shown(ValueError("could not convert 'Ada Lovelace'"))
    'ValueError'
    >>> shown(PateError("scale is -1; it must be positive"))
    'PateError: scale is -1; it must be positive'
    """
    kind = type(error).__name__
    if is_own(error):
        return f"{kind}: {' '.join(str(error).split())}"
    return f"{kind}: {_text(error)}{_traceback(error)}" if debugging() else kind


def is_own(error: BaseException) -> bool:
    """Whether it is an error of ours, raised by our code for a reason of ours.

    Guarantees:
        One that the user's code raised, or caused by what it called us with, is not: its text may
        be a record.
    """
    return isinstance(error, PateError) and not any(map(_is_foreign, _frames(error)))


def is_foreign(error: BaseException) -> bool:
    """Whether the user's own code took part in it, as far as it is not an installed package."""
    return any(_is_foreign(frame) and not _is_installed(frame) for frame in _frames(error))


def is_ours(module: str) -> bool:
    """Whether a module belongs to this project.

    >>> is_ours("pate.teachers.linear"), is_ours("pateacher")
    (True, False)
    """
    return module.partition(".")[0] in _OURS


def debugging() -> bool:
    """Whether the owner asked to see what exceptions say."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def locate(error: BaseException, *, in_ours: bool = False) -> str:
    """The line of code that raised: the last one of the user's, else the last one of all.

    With ``in_ours`` the last one of ours counts before those of libraries.
    """
    lines = list(traceback.walk_tb(error.__traceback__))
    if not lines:
        return ""
    best = [line for line in lines if _is_foreign(line[0]) and not _is_installed(line[0])]
    if not best and in_ours:
        best = [line for line in lines if _is_of_ours(line[0])]
    frame, number = (best or lines)[-1]
    file = Path(frame.f_code.co_filename)
    of_ours = file.relative_to(_HERE.parent).as_posix() if file.is_relative_to(_HERE) else None
    return f"{of_ours or '/'.join(file.parts[-2:])} line {number}"


def forbid_core_dumps() -> None:
    """Keeps memory, and the records in it, out of a file that a crash would leave."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def no_early_end() -> Iterator[None]:
    """Inside, ``os._exit`` raises :class:`ProcessExit`; in processes that are forked it works."""
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


def _is_foreign(frame: FrameType) -> bool:
    """Whether it runs the user's code, or that of a library which has no reason to call ours."""
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
    """Treats overflow as numpy does when it is loaded, where somebody loaded it meanwhile."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.seterr(divide="warn", over="warn", under="ignore", invalid="warn")


def _text(error: BaseException) -> str:
    """The first line of what it says, if it can say anything."""
    try:
        return "".join(str(error).strip().splitlines()[:1])
    except Exception:
        return ""


def _traceback(error: BaseException) -> str:
    """Everything about it, for an owner who asked."""
    return "\n" + "".join(traceback.format_exception(error)).rstrip() if debugging() else ""
