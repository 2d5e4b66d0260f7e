"""The command line. Heavy imports happen inside commands, so that ``--help`` is quick."""

from __future__ import annotations

import typer

from pate.cli import (
    aggregate_votes,
    compare,
    data,
    epsilon,
    ledger,
    options,
    pipeline,
    plan,
    release,
    report,
    sweep,
)
from pate.console import run_command, set_debugging

app = typer.Typer(
    name="pate",
    help="From private data to a publishable student, and an ε one can trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, without the time that loading rich takes
)
pipeline.add_commands(app)
app.command("aggregate-votes")(aggregate_votes.aggregate_votes)
app.command()(plan.plan)
app.command()(sweep.sweep)
app.command()(compare.compare)
app.command()(report.report)
app.command()(release.release)
app.command()(release.verify)
app.add_typer(epsilon.app, name="epsilon")
app.add_typer(ledger.app, name="ledger")
app.add_typer(data.app, name="data")


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
        False, "--debug", help="Show what unexpected errors say: it may quote private records."
    ),
) -> None:
    set_debugging(debug)


def main() -> None:
    """Runs a command; a mistake is one sentence and an exit code, never a traceback."""
    run_command("pate", app, when_interrupted=options.resume_hint)
