"""The proposal as a recipe, ready to run."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.planner.forecast import Forecast
from pate.planner.noise import Budget
from pate.planner.planning import Planned
from pate.recipes.read import find_recipe

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_planned(
    path: Path,
    planned: Planned,
    *,
    source: str,
    settings: Sequence[str],
    comment: Sequence[str],
    force: bool = False,
) -> None:
    """Write the recipe at ``source`` with the plan in place of its own values."""
    said = said_in(find_recipe(source).read_text(encoding="utf-8-sig"), settings)
    proposal = planned.proposal
    content = planned_recipe(planned.recipe, proposal.best, proposal.budget, said=said)
    write_recipe(path, content, comment=comment, force=force)


def planned_recipe(
    recipe: Recipe, best: Forecast, budget: Budget, *, said: Mapping[str, Any]
) -> dict[str, Any]:
    """The recipe as it was given, with the plan in the place of its own figures.

    ``said`` is what was written in it or set besides: what it leaves to defaults stays unsaid.
    """
    full: dict[str, Any] = recipe.model_dump(mode="json", exclude_unset=True)
    plan = {
        "teachers": {"count": best.teachers},
        "aggregate": best.spec.model_dump(mode="json", exclude_unset=True),
        "privacy": {"epsilon": budget.epsilon, "delta": budget.delta},
    }
    content: dict[str, Any] = {}
    for name in Recipe.model_fields:
        kept = {key: full[name][key] for key in said.get(name, ()) if key in full.get(name, {})}
        if name == "aggregate":
            kept = _choosing(kept)
        if merged := kept | plan.get(name, {}):
            content[name] = merged
    return content


def _choosing(aggregate: dict[str, Any]) -> dict[str, Any]:
    """Which inputs are asked about: not planned, so it stays; all other figures are the plan's."""
    used = {"random": ("choose_seed",), "uncertain": ("rounds",)}
    keys = ("choose", *used.get(aggregate.get("choose", ""), ()))  # no plan is interactive
    return {key: aggregate[key] for key in keys if key in aggregate}


def said_in(text: str, settings: Sequence[str]) -> dict[str, list[str]]:
    """The keys of each section that a recipe's text and ``--set`` speak of, in their order.

    >>> said_in('[data]\\nname = "digits"', ["data.test=30", "teachers.params.depth=2"])
    {'data': ['name', 'test'], 'teachers': ['params']}
    """
    said = {
        section: list(keys)
        for section, keys in tomllib.loads(text).items()
        if isinstance(keys, dict)
    }
    for setting in settings:
        section, key = setting.partition("=")[0].strip().split(".")[:2]
        if key not in said.setdefault(section, []):
            said[section].append(key)
    return said


def write_recipe(
    path: Path, content: Mapping[str, Any], *, comment: Sequence[str], force: bool = False
) -> None:
    """Writes a recipe that was checked; an existing file is replaced only with ``force``."""
    Recipe.model_validate(content)
    lines = [f"# {line}".rstrip() for line in comment]
    for section, keys in content.items():
        lines += ["", f"[{section}]"]
        lines += [f"{_key(key)} = {_value(value)}" for key, value in keys.items()
                  if value is not None]  # fmt: skip
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except FileExistsError:
        raise InvalidInput(f"{path} is there already; add --force to replace it") from None
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    """A plain value as TOML writes it.

    >>> _value({"a": [1, 2.5, True], "b c": "x\\ty"})
    '{ a = [1, 2.5, true], "b c" = "x\\\\ty" }'
    """
    if isinstance(value, Mapping):
        inside = [f"{_key(key)} = {_value(each)}" for key, each in value.items()
                  if each is not None]  # fmt: skip
        return "{ " + ", ".join(inside) + " }" if inside else "{}"
    if isinstance(value, list):
        if any(isinstance(each, Mapping) for each in value):
            return "[\n" + "".join(f"  {_value(each)},\n" for each in value) + "]"
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
