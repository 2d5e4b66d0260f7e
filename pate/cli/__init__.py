"""The command line. A command's module is imported when it is called, and heavy ones inside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from pate.cli import options
from pate.console import run_command, set_debugging

_MODULES = {
    "pipeline": ("run", *options.STAGES, "status", "recipes", "schema", "new"),
    "aggregate_votes": ("aggregate-votes",),
    "plan": ("plan",),
    "sweep": ("sweep",),
    "compare": ("compare",),
    "report": ("report",),
    "audit": ("audit",),
    "forget": ("forget",),
    "release": ("release", "verify"),
    "epsilon": ("epsilon",),
    "ledger": ("ledger",),
    "data": ("data",),
    "doctor": ("doctor",),
    "federation": ("federate", "party"),
}
_HOMES = {command: module for module, commands in _MODULES.items() for command in commands}


@cache
def _made(module: str) -> Any:
    return typer.main.get_command(import_module(f"pate.cli.{module}").app)


class _Commands(Mapping[str, Any]):
    """The commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        made = _made(_HOMES[name])
        return getattr(made, "commands", {}).get(name, made)

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": _Commands()})


app = options.new_app(
    name="pate",
    cls=_Group,
    add_completion=True,
    help="From private data to a publishable student, and an ε one can trust.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from pate import __version__

        typer.echo(f"pate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(
        False,
        "--debug",
        help="Show the text of unexpected errors, which may quote private records.",
    ),
) -> None:
    set_debugging(debug)


def main() -> None:
    """Run a command; a mistake is one sentence and an exit code, never a traceback."""
    run_command("pate", partial(app, prog_name="pate"), when_interrupted=options.resume_hint)
