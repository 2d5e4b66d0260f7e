"""Which command a recipe is for: ``kind`` at its top, or ``pate run`` where it says nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from pate.errors import InvalidInput

PATE = "pate"
COMMANDS = {PATE: "pate run", "dpsgd": "dpsgd train", "compare": "pate compare"}


def kind_for(model: type[BaseModel]) -> str:
    """The kind of recipe that a model describes: the value of its field ``kind``, if it has one.

    >>> from typing import Literal
    >>> from pydantic import create_model
    >>> kind_for(create_model("Recipe", kind=(Literal["dpsgd"], ...))), kind_for(BaseModel)
    ('dpsgd', 'pate')
    """
    field = model.model_fields.get("kind")
    return PATE if field is None else str(get_args(field.annotation)[0])


def kind_in(content: Mapping[str, Any]) -> str | None:
    """The kind a recipe says it is of; None where no command knows it.

    >>> kind_in({"kind": "dpsgd"}), kind_in({"data": {}}), kind_in({"kind": 3})
    ('dpsgd', 'pate', None)
    """
    kind = content.get("kind", PATE)
    return kind if isinstance(kind, str) and kind in COMMANDS else None


def check_kind(name: str, content: Mapping[str, Any], *, wanted: str) -> None:
    """Refuses a recipe of another command, and says which one it is for."""
    found = kind_in(content)
    if found is None or found == wanted or not content:
        return  # an unknown kind is a wrong value, and an empty file lacks all
    what = f"{name} is a recipe for `{COMMANDS[found]}`, not for `{COMMANDS[wanted]}`"
    if found != PATE:
        raise InvalidInput(f"{what}; run `{COMMANDS[found]} {name}`")
    raise InvalidInput(
        f'{what}; run `{COMMANDS[found]} {name}`, or write kind = "{wanted}" at its top if it is '
        "meant for this command"
    )


def shipped_recipes(kind: str | None = None) -> dict[str, Path]:
    """Recipes that come with the package (in a checkout: the folder ``pipelines``), by kind."""
    package = Path(str(resources.files("pate")))
    for folder in (package / "recipes", package.parent / "pipelines"):
        if folder.is_dir():
            paths = sorted(folder.glob("*.toml"))
            return {path.stem: path for path in paths if kind is None or is_kind(path, kind)}
    return {}


def is_kind(path: Path, kind: str) -> bool:
    """Whether a file is a recipe of this kind, or might be: one that is damaged may be meant."""
    try:
        return kind_in(tomllib.loads(path.read_text(encoding="utf-8-sig"))) == kind
    except (OSError, ValueError, RecursionError):
        return True
