"""``dpsgd train``: a recipe from data to a released model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_under_way = False  # for the line that Ctrl-C leaves behind


def how_to_go_on() -> str:
    """What Ctrl-C leaves to say, where a training run was under way."""
    return "; run the same command again to go on where it was" if _under_way else ""


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe, or the path of a .toml file.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key: section.key=value.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; default runs/NAME.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Where data sets live.")
    ] = None,
    plugin_path: Annotated[
        Path | None, typer.Option("--plugin-path", help="A folder with your own models.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="The same as --set privacy.epsilon=E.")
    ] = None,
    insecure_seed: Annotated[
        int | None, typer.Option("--insecure-seed", help="Seeded noise, for tests: NOT PRIVATE.")
    ] = None,
    spend: Annotated[
        bool,
        typer.Option(
            "--spend", help="Pay again: for other settings here, or the same ones elsewhere."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the result.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The result as JSON for machines.")] = False,
) -> None:
    """Trains a recipe; what is done already is not done again."""
    global _under_way
    from dpsgd.recipe import Recipe
    from pate.datasets import data_root as default_root
    from pate.errors import InvalidInput
    from pate.recipes.read import read_recipe

    changes = [*(settings or [])]
    if epsilon is not None:
        changes.append(f"privacy.epsilon={epsilon!r}")
    name, checked = read_recipe(recipe, changes, Recipe)
    if plugin_path is not None and not plugin_path.exists():
        raise InvalidInput(f"there is nothing at --plugin-path {plugin_path}")
    if insecure_seed is not None:
        typer.echo("dpsgd: --insecure-seed is set: this run is NOT PRIVATE", err=True)

    from dpsgd.cli.showing import Epochs, show_outcome
    from dpsgd.outcome import find_outcome

    folder, root = out or Path("runs") / name, default_root(data_root)
    outcome = find_outcome(checked, folder, data_root=root, insecure_seed=insecure_seed)
    if outcome is None:
        from dpsgd import training

        options = training.Options(
            data_root=root,
            plugin_path=None if plugin_path is None else plugin_path.absolute(),
            insecure_seed=insecure_seed,
            spend=spend,
            say=_silent if quiet or json else typer.echo,
            show=Epochs(silent=quiet or json).show,
        )
        _under_way = True
        outcome = training.train(checked, folder, options)
        _under_way = False
    show_outcome(outcome, json=json)


def _silent(text: Any) -> None:
    """Says nothing."""
