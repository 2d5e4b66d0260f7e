"""A recipe with the plan in place of its own values."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.planner.plan import TEACHERS, Planned
from pate.recipes.read import find_recipe, to_toml


def write_planned(
    path: Path,
    planned: Planned,
    *,
    source: str,
    settings: Sequence[str],
    comment: Sequence[str],
    force: bool = False,
) -> None:
    """Write the recipe at ``source`` with the plan in place of its own values.

    Keys that it leaves to defaults stay out. An existing file is replaced only with ``force``.
    """
    given = _keys_in(find_recipe(source).read_text(encoding="utf-8-sig"), settings)
    plan = _table_sections(planned) if planned.by_records else _teacher_sections(planned)
    full, root = _seen_from(path.absolute().parent, planned.recipe)
    content: dict[str, dict[str, Any]] = {}
    for name in Recipe.model_fields:
        if name == ("teachers" if planned.by_records else "votes"):
            continue
        kept = {key: full[name][key] for key in given.get(name, ()) if key in full.get(name, {})}
        if name == "aggregate":
            kept = {} if planned.by_records else _choosing(kept)
        if merged := kept | plan.get(name, {}):
            content[name] = {key: value for key, value in merged.items() if value is not None}
    Recipe.model_validate(content)
    lines = [f"# {line}".rstrip() for line in comment]
    lines += [] if root is None else ["", f"data_root = {_value(root)}"]
    for section, keys in content.items():
        lines += ["", f"[{section}]", *(f"{k} = {_value(v)}" for k, v in keys.items())]
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except FileExistsError:
        raise InvalidInput(f"{path} exists; add --force to replace it") from None
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def _teacher_sections(planned: Planned) -> dict[str, dict[str, Any]]:
    """Return the sections of a recipe that a plan for teachers decides; None removes a key."""
    assert planned.proposal is not None
    best, budget = planned.proposal.best, planned.budget
    model = {"model": TEACHERS.model} if planned.recipe.by_records else {}
    plan: dict[str, dict[str, Any]] = {
        "teachers": {"count": best.teachers, **model},
        "aggregate": best.spec.model_dump(mode="json", exclude_unset=True),
        "privacy": {"epsilon": budget.epsilon, "delta": budget.delta, "sanitise": None},
    }
    if best.sanitising_pays:  # its price would come on top of privacy.epsilon: caps take its place
        plan["privacy"] |= {"epsilon": None, "sanitise": True}
        plan["aggregate"]["queries"] = best.plan.queries
        if best.spec.kind.checks:
            plan["aggregate"]["answers"] = best.plan.answers
    return plan


def _table_sections(planned: Planned) -> dict[str, dict[str, Any]]:
    """Return the sections that a plan for record votes decides; noise is found when it is read."""
    table, budget = planned.table, planned.budget
    assert table is not None
    delta = table.plan.guarantee.delta or None
    return {
        "votes": table.votes.model_dump(mode="json", exclude_defaults=True),
        "aggregate": {"mechanism": table.spec.mechanism},
        "privacy": {"epsilon": budget.epsilon, "delta": delta, "sanitise": None},
    }


def _seen_from(folder: Path, recipe: Recipe) -> tuple[dict[str, Any], str | None]:
    """Return the sections and the data root of a recipe, with paths relative to another folder."""
    full = recipe.model_dump(mode="json", exclude_unset=True)
    if recipe.data.accept_unprotected:
        full["data"]["accept_unprotected"] = True
    if recipe.plugins.path is not None:
        full["plugins"] = {"path": os.path.relpath(recipe.plugins.path, folder)}
    for section in (full["data"], *full.get("encoder", {}).get("steps", ())):
        for key in ("source", "private_path", "public_path", "test_path", "weights"):
            if section.get(key) is not None and recipe.data.folder not in (None, folder):
                section[key] = _moved(section[key], recipe.data.folder, folder)
    root = recipe.data_root
    return full, None if root is None else os.path.relpath(root, folder)


def _moved(name: str, before: Path, now: Path) -> str:
    place = before / name
    return os.path.relpath(place, now) if not Path(name).is_absolute() and place.exists() else name


def _keys_in(text: str, settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of each section that a recipe's text and ``--set`` give, in their order.

    >>> _keys_in('[data]\\nname = "digits"', ["data.test=30", "teachers.params.depth=2"])
    {'data': ['name', 'test'], 'teachers': ['params']}
    """
    sections = tomllib.loads(text).items()
    given = {name: list(keys) for name, keys in sections if isinstance(keys, dict)}
    for setting in settings:
        section, key = setting.partition("=")[0].strip().split(".")[:2]
        if key not in given.setdefault(section, []):
            given[section].append(key)
    return given


def _choosing(aggregate: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that choose inputs: not planned, so they stay."""
    used = {"random": ("choose_seed",), "uncertain": ("rounds",)}
    keys = ("choose", *used.get(aggregate.get("choose", ""), ()))  # no plan is interactive
    return {key: aggregate[key] for key in keys if key in aggregate}


def _value(value: Any) -> str:
    """Return a value in TOML, with a line for each table of a list."""
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        return "[\n" + "".join(f"  {to_toml(each)},\n" for each in value) + "]"
    return to_toml(value)
