"""A recipe as TOML, without what it says of a machine and of how the data are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pate.pipeline.recipe import Recipe
from pate.report.facts import file_name

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def recipe_text(recipe: Recipe) -> str:
    """Every section with every setting that has a value; of a path, its last part.

    Folders tell of a machine and its user, and nothing of the guarantee. So do the files and
    columns of private data, and the key of their shards (:func:`without_places`).
    """
    # How it was chosen, if it was, is no part of a recipe that runs.
    sections = without_places(recipe).model_dump(mode="json", exclude={"selection"})
    parts = []
    for name, settings in sections.items():
        lines = [f"{_key(key)} = {_value(each)}" for key, each in _present(settings).items()]
        if lines:
            parts.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(parts) + "\n"


def without_places(recipe: Recipe) -> Recipe:
    """A recipe to be shown: without the files and columns of the data, and how shards are keyed."""
    gone = dict.fromkeys(
        ("source", "private_path", "public_path", "test_path", "id", "group", "label", "features")
    )
    return recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update=gone),
            "partition": recipe.partition.model_copy(update={"key": None}),
        }
    )


def _present(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    """A plain value as TOML writes it.

    >>> _value({"a b": [1, 2.5, True], "none": None}), _value("/home/ann/x.csv")
    ('{ "a b" = [1, 2.5, true] }', '"x.csv"')
    """
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in _present(value).items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(each) for each in value)}]"
    if isinstance(value, str):
        is_path = "/" in value or "\\" in value
        return json.dumps(file_name(value) if is_path else value, ensure_ascii=False)
    return json.dumps(value)
