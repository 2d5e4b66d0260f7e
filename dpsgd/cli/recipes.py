"""``dpsgd recipes`` and ``dpsgd new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_TO_START_FROM = "digits-dpsgd"


def recipes() -> None:
    """The recipes that come with the package."""
    from pate.recipes.read import shipped_recipes, summary

    for name, path in sorted(shipped_recipes("dpsgd").items()):
        typer.echo(f"{name:22} {summary(path)}")


def new(path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Writes a recipe to start from."""
    from pate.errors import InvalidInput
    from pate.recipes.read import find_recipe

    if path.exists():
        raise InvalidInput(f"{path} is there already; choose another name")
    source = find_recipe(_TO_START_FROM, kind="dpsgd")
    try:
        path.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    typer.echo(f"wrote {path}; next: dpsgd train {path}")
