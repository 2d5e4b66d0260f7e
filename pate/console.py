"""How a command line ends: a user's mistake is one sentence and an exit code, not a traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

from pate.errors import PateError

_INTERRUPTED = 130
_PIPE_CLOSED = 141


def run_command(
    name: str, command: Callable[[], object], *, when_interrupted: Callable[[], str] = str
) -> None:
    """Runs a command line; ``when_interrupted`` may add to what is said on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε gets a question mark
    try:
        command()
    except PateError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:  # typer leaves silently on Ctrl-C
            print(f"{name}: interrupted{when_interrupted()}", file=sys.stderr)
        raise
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away: nothing left to say
        sys.exit(_PIPE_CLOSED)
    except OSError as error:  # of a file no part had in mind: a name too long, a closed folder
        reason = error.strerror or type(error).__name__
        print(f"{name}: {error.filename or 'a file'}: {reason.lower()}", file=sys.stderr)
        sys.exit(PateError.exit_code)
