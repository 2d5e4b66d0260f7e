"""The command line of ``dpsgd``. Heavy imports happen inside commands: ``--help`` is quick."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpsgd.cli import audit, epsilon, train
from pate.console import run_command, set_debugging

_TEMPLATE = "digits-dpsgd"  # the recipe that ``dpsgd new`` copies

app = typer.Typer(
    name="dpsgd",
    help="DP-SGD that is exact.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: loading rich takes time
)
app.command("train")(train.train)
app.command("epsilon")(epsilon.epsilon)
app.command("audit")(audit.audit)


@app.command("recipes")
def recipes() -> None:
    """List the recipes that come with the package."""
    from pate.recipes.read import shipped_recipes, summary

    for name, path in sorted(shipped_recipes("dpsgd").items()):
        typer.echo(f"{name:22} {summary(path)}")


@app.command("new")
def new(path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write a recipe to start from, and its JSON schema for editors beside it."""
    from pate.recipes.schema import copy_recipe

    copy_recipe(path, _TEMPLATE, kind="dpsgd")
    typer.echo(f"wrote {path}; next: dpsgd train {path}")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dpsgd {version('pate-privacy')}")  # the two are installed together
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show the text of unexpected errors: it may quote private records."
    ),
) -> None:
    set_debugging(debug)


def main() -> None:
    """Run a command; a mistake is reported as one line and an exit code, never a traceback."""
    run_command("dpsgd", partial(app, prog_name="dpsgd"), when_interrupted=train.how_to_resume)
