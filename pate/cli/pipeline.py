"""``pate run``, one stage at a time, and what a run has come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pate.cli import running
from pate.cli.running import make_run


def add_commands(app: typer.Typer) -> None:
    """Puts ``run``, the stages, ``status``, ``recipes`` and ``new`` on the command line."""
    what = "Runs a recipe from data to student; what is done already is skipped."
    app.command("run", help=what)(_command(until=None))
    for name in running.STAGE_NAMES:
        app.command(name, help=f"Runs the recipe up to {name}.")(_command(until=name))
    app.command()(status)
    app.command()(recipes)
    app.command()(new)


def _command(until: str | None) -> Any:
    """The command that runs a recipe up to a stage; to the end, and sums it up, if None."""

    def command(
        recipe: running.RecipeName,
        settings: running.Settings = None,
        out: running.Out = None,
        data_root: running.DataRoot = None,
        engine: running.EngineName = "processes",
        plugin_path: running.PluginPath = None,
        insecure_seed: running.InsecureSeed = None,
        spend: running.Spend = False,
        quiet: running.Quiet = False,
        json_logs: running.JsonLogs = False,
    ) -> None:
        made = make_run(recipe, settings, out, data_root, engine, plugin_path, insecure_seed, spend,
                        quiet, json_logs)  # fmt: skip
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
    data_root: running.DataRoot = None,
    plugin_path: running.PluginPath = None,
    insecure_seed: running.InsecureSeed = None,
) -> None:
    """Each stage: done, stale (and why) or missing; and the budget, spent and left."""
    from pate.cli.summary import show_status

    show_status(folder, data_root, plugin_path, insecure_seed)


def recipes() -> None:
    """The recipes that come with the package."""
    from pate.recipes.read import shipped_recipes, summary

    own = shipped_recipes("pate") | shipped_recipes("compare")
    for name, path in sorted(own.items()):
        typer.echo(f"{name:14} {summary(path)}")


def new(path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Writes a recipe to start from."""
    from pate.errors import InvalidInput
    from pate.recipes.read import find_recipe

    if path.exists():
        raise InvalidInput(f"{path} is there already; choose another name")
    try:
        text = find_recipe("digits").read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    typer.echo(f"wrote {path}; next: pate run {path}")
