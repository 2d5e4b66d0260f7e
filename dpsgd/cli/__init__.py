"""The command line of ``dpsgd``. Heavy imports happen inside commands: ``--help`` is quick."""

from __future__ import annotations

import typer

from dpsgd.cli import epsilon, recipes, train
from pate.console import ask_for_debugging, run_command

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
    debug: bool = typer.Option(
        False, "--debug", help="Show what unexpected errors say: it may quote private records."
    ),
) -> None:
    ask_for_debugging(debug)


def main() -> None:
    """Runs a command; a mistake is one sentence and an exit code, never a traceback."""
    run_command("dpsgd", app, when_interrupted=train.how_to_go_on)
