"""The command line of ``dpsgd``. Heavy imports happen inside commands: ``--help`` is quick."""

from __future__ import annotations

import io
import sys

import typer

from dpsgd.cli import epsilon, recipes, train
from pate.errors import PateError

app = typer.Typer(
    name="dpsgd",
    help="DP-SGD that is exact.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, without the time that loading rich takes
)
app.command("train")(train.train)
app.command("epsilon")(epsilon.epsilon)
app.command("recipes")(recipes.recipes)
app.command("new")(recipes.new)

_INTERRUPTED = 130


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dpsgd {version('pate')}")  # the two are installed together
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    """Runs a command; a user's mistake is one sentence and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε gets a question mark
    try:
        app()
    except PateError as error:
        print(f"dpsgd: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:  # typer leaves silently on Ctrl-C
            print(f"dpsgd: interrupted{train.how_to_go_on()}", file=sys.stderr)
        raise
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away: nothing left to say
        sys.exit(141)
    except OSError as error:  # of a file no part had in mind: a name too long, a closed folder
        reason = error.strerror or type(error).__name__
        print(f"dpsgd: {error.filename or 'a file'}: {reason.lower()}", file=sys.stderr)
        sys.exit(PateError.exit_code)
