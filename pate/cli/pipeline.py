"""``pate run``, its stages one at a time, ``status``, ``recipes`` and ``new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pate.cli import options

STAGES = (
    "partition",
    "encode",
    "teach",
    "vote",
    "aggregate",
    "account",
    "distill",
    "evaluate",
)


def add_commands(app: typer.Typer) -> None:
    """Add ``run``, the stages, ``status``, ``recipes`` and ``new`` to the command line."""
    what = "Run a recipe from data to student; stages that are done are skipped."
    app.command("run", help=what)(_command(until=None))
    for name in STAGES:
        app.command(name, help=f"Run the recipe up to {name}.")(_command(until=name))
    app.command()(status)
    app.command()(recipes)
    app.command()(new)


def _command(until: str | None) -> Any:
    """Return the command that runs a recipe up to a stage, or to the end and prints a summary."""

    def command(
        recipe: options.RecipeName,
        settings: options.Settings = None,
        out: options.Out = None,
        data_root: options.DataRoot = None,
        engine: options.EngineName = "processes",
        plugin_path: options.PluginPath = None,
        insecure_seed: options.InsecureSeed = None,
        spend: options.Spend = False,
        quiet: options.Quiet = False,
        json_logs: options.JsonLogs = False,
    ) -> None:
        from pate.api import prepare_run

        given = options.make_options(
            data_root=data_root,
            engine=engine,
            plugin_path=plugin_path,
            insecure_seed=insecure_seed,
            spend=spend,
            quiet=quiet,
            json_logs=json_logs,
        )
        made = prepare_run(recipe, set=settings, out=out, options=given)
        ran = made.execute(until=until)
        if until is not None:
            return
        if not ran:
            typer.echo(f"nothing to do: {made.folder} is complete")
        from pate.cli.summary import show_summary

        show_summary(made)

    return command


def status(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
    insecure_seed: options.InsecureSeed = None,
) -> None:
    """Print each stage (done, stale and why, or missing) and the budget, spent and left."""
    from pate.cli.summary import show_status

    show_status(folder, data_root, plugin_path, insecure_seed)


def recipes() -> None:
    """List the recipes that come with the package."""
    from pate.recipes.read import shipped_recipes, summary

    own = shipped_recipes("pate") | shipped_recipes("compare")
    for name, path in sorted(own.items()):
        typer.echo(f"{name:14} {summary(path)}")


def new(path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write a recipe to start from."""
    from pate.errors import InvalidInput
    from pate.recipes.read import find_recipe

    if path.exists():
        raise InvalidInput(f"{path} exists; choose another name")
    try:
        text = find_recipe("digits").read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    typer.echo(f"wrote {path}; next: pate run {path}")
