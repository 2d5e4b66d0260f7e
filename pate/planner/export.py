"""A plan as a recipe that is ready to run, and as a plot of teachers against noise."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pate._plots import COLOURS, new_figure, plain_axes, render_figure
from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.planner.forecast import Budget, Forecast
from pate.planner.plan import Planned
from pate.planner.proposal import Proposal
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
    given = keys_in(find_recipe(source).read_text(encoding="utf-8-sig"), settings)
    proposal = planned.proposal
    content = planned_recipe(planned.recipe, proposal.best, proposal.budget, given=given)
    write_recipe(path, content, comment=comment, force=force)


def planned_recipe(
    recipe: Recipe, best: Forecast, budget: Budget, *, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the recipe with the plan in place of its own values.

    ``given`` holds the keys written in it or set: what it leaves to defaults stays out.
    """
    full: dict[str, Any] = recipe.model_dump(mode="json", exclude_unset=True)
    plan = {
        "teachers": {"count": best.teachers},
        "aggregate": best.spec.model_dump(mode="json", exclude_unset=True),
        "privacy": {"epsilon": budget.epsilon, "delta": budget.delta},
    }
    content: dict[str, Any] = {}
    for name in Recipe.model_fields:
        kept = {key: full[name][key] for key in given.get(name, ()) if key in full.get(name, {})}
        if name == "aggregate":
            kept = _choosing(kept)
        if merged := kept | plan.get(name, {}):
            content[name] = merged
    return content


def _choosing(aggregate: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that choose inputs: not planned, so they stay."""
    used = {"random": ("choose_seed",), "uncertain": ("rounds",)}
    keys = ("choose", *used.get(aggregate.get("choose", ""), ()))  # no plan is interactive
    return {key: aggregate[key] for key in keys if key in aggregate}


def keys_in(text: str, settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the keys of each section that a recipe's text and ``--set`` give, in their order.

    >>> keys_in('[data]\\nname = "digits"', ["data.test=30", "teachers.params.depth=2"])
    {'data': ['name', 'test'], 'teachers': ['params']}
    """
    given = {
        section: list(keys)
        for section, keys in tomllib.loads(text).items()
        if isinstance(keys, dict)
    }
    for setting in settings:
        section, key = setting.partition("=")[0].strip().split(".")[:2]
        if key not in given.setdefault(section, []):
            given[section].append(key)
    return given


def write_recipe(
    path: Path, content: Mapping[str, Any], *, comment: Sequence[str], force: bool = False
) -> None:
    """Write a recipe that was checked; an existing file is replaced only with ``force``."""
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
        raise InvalidInput(f"{path} exists; add --force to replace it") from None
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    """Return a plain value as TOML.

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


def plot_trade(proposal: Proposal, path: Path, *, title: str) -> None:
    """Plot how often one teacher, the plurality, and labels at ε are right, over the teachers."""
    rows = proposal.over_teachers
    counts = [row.teachers for row in rows]
    with new_figure() as figure:
        axes = plain_axes(figure.subplots(), title=title, x="teachers", y="right, %")
        axes.plot(counts, [100 * row.teacher_accuracy for row in rows], "o--", color=COLOURS[1],
                  label="one teacher")  # fmt: skip
        axes.plot(counts, [100 * row.plurality_accuracy for row in rows], "s-", color=COLOURS[0],
                  label="plurality of all, without noise")  # fmt: skip
        planned = round(proposal.best.answered)
        for number, right in proposal.trade.items():
            main = number == min(proposal.trade, key=lambda each: abs(each - planned))
            axes.plot(
                counts,
                [100 * share for share in right],
                "-" if main else ":" if number < planned else "-.",
                marker="D" if main else None,
                color=COLOURS[2],
                linewidth=2.2 if main else 1.4,
                alpha=1.0 if main else 0.7,
                label=f"labels of gnmax, {number} at ε = {proposal.budget.epsilon:g}",
            )
        best = proposal.best
        axes.plot(best.teachers, 100 * best.label_accuracy, marker="*", markersize=17,
                  color=COLOURS[3], linestyle="none", zorder=5,
                  label=f"proposed: {best.spec.mechanism}, {best.teachers} teachers")  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(top=101)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        try:
            kind = path.suffix.removeprefix(".").lower() or "png"
            path.write_bytes(render_figure(figure, kind))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot plot {path}: {error}") from error
