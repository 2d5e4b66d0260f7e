"""Running a command line: an error becomes one sentence and an exit code, not a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate._format import format_epsilon, printable
from pate._namesake import require_own_package
from pate.devices import is_out_of_memory
from pate.errors import MissingPackage, PateError
from pate.untrusted import (
    DEBUG,
    debugging,
    forbid_core_dumps,
    forbid_exit,
    involves_user_code,
    is_own,
    locate,
)

if TYPE_CHECKING:
    from rich.console import Console

_FAILED = 1
_INTERRUPTED = 130
_PIPE_CLOSED = 141  # as a shell reports a tool that SIGPIPE ended


def run_command(
    name: str, command: Callable[[], object], *, when_interrupted: Callable[[], str] = str
) -> None:
    """Run a command line and exit; ``when_interrupted`` returns a hint to print on Ctrl-C.

    Guarantees:
        Every failure ends in one line and an exit code. Of an unexpected exception, or one that the
        user's own code raised, the line names the type and the place: its text may quote a private
        record, and is shown with ``--debug`` only. A crash leaves no core dump.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε gets a question mark
    forbid_core_dumps()
    with _own_debug(), forbid_exit():
        code = _run(name, command, when_interrupted)
    sys.exit(code)


def _run(name: str, command: Callable[[], object], when_interrupted: Callable[[], str]) -> int:
    try:
        require_own_package()
        with _named_packages():
            command()
    except BaseException as problem:
        line, code = _ending(problem, when_interrupted)
        if code == _PIPE_CLOSED:
            _close_output()  # the reader of our output went away
        elif line:
            with contextlib.suppress(OSError):
                print(f"{name}: {printable(line)}", file=sys.stderr)
                if debugging():
                    traceback.print_exception(problem)
        return code
    return 0


@contextlib.contextmanager
def _named_packages() -> Iterator[None]:
    """Replace the error of an import of ours by one that names what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "pate", "dpsgd") or involves_user_code(error):
            raise
        raise MissingPackage(package) from error


def wide_console(width: int = 110) -> Console:
    """Return a console that is wide where no terminal sets the width; paths print as they are."""
    from rich.console import Console

    return Console(width=None if Console().is_terminal else width, markup=False, highlight=False)


def print_json(report: Mapping[str, Any]) -> None:
    """Print a report for machines: one JSON object, the only line on standard output.

    Each ``epsilon`` is exact; beside it, ``epsilon_printed`` is as people read it, rounded up.
    """
    sys.stdout.write(json.dumps(_plain(report), ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """Return a value for JSON.

    >>> _plain({"epsilon": 3.18801, "budgets": [math.inf], "at": Path("runs")})
    {'epsilon': 3.18801, 'epsilon_printed': '3.19', 'budgets': ['inf'], 'at': 'runs'}
    """
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, each in value.items():
            found[str(key)] = _plain(each)
            if key == "epsilon" and isinstance(each, (int, float)):
                found["epsilon_printed"] = format_epsilon(each)
        return found
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return str(value) if isinstance(value, Path) else value


def set_debugging(wanted: bool) -> None:
    """Apply the option ``--debug`` to this process and its workers."""
    if wanted:
        os.environ[DEBUG] = "1"


def _ending(problem: BaseException, when_interrupted: Callable[[], str]) -> tuple[str, int]:
    """Return the line to print for an exception, if any, and the exit code."""
    if is_own(problem):
        return str(problem), getattr(problem, "exit_code", PateError.exit_code)
    kind, place = type(problem).__name__, locate(problem, in_ours=True)
    if isinstance(problem, SystemExit) and isinstance(problem.__context__, BrokenPipeError):
        return "", _PIPE_CLOSED  # as typer and rich end then
    if isinstance(problem, SystemExit):
        code = problem.code if isinstance(problem.code, int) else _FAILED if problem.code else 0
        if code or not involves_user_code(problem):  # user code must not report success
            # typer leaves silently on Ctrl-C
            return (f"interrupted{when_interrupted()}" if code == _INTERRUPTED else ""), code
    if isinstance(problem, KeyboardInterrupt):
        return f"interrupted{when_interrupted()}", _INTERRUPTED
    if isinstance(problem, BrokenPipeError):
        return "", _PIPE_CLOSED
    if isinstance(problem, MemoryError) or is_out_of_memory(problem):
        return f"not enough memory (in {place}); use less data, or smaller models", _FAILED
    if isinstance(problem, OSError) and problem.errno and not involves_user_code(problem):
        # of a file that nobody handled: a name too long, a closed folder
        reason = os.strerror(problem.errno).lower()
        return f"{problem.filename or 'a file'}: {reason}", PateError.exit_code
    return f"unexpected {kind} in {place}; its text may be private: --debug shows it", _FAILED


def _close_output() -> None:
    """Send what is still buffered to the null device, so that exiting does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)


@contextlib.contextmanager
def _own_debug() -> Iterator[None]:
    """Restore ``--debug`` at the end: a process may run several commands."""
    before = os.environ.get(DEBUG)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DEBUG, None)
        else:
            os.environ[DEBUG] = before
