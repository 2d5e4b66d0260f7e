"""What is wrong with a recipe, in one sentence: the key, its value, the rule, the nearest key."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

Where = tuple[str | int, ...]

_MOST_SAID = 600  # characters of a rule with the value it quotes
_MOST_SHOWN = 60  # characters of a value in a message


def worst_problem(error: ValidationError, content: Any = None) -> Any:
    """The problem to fix first: a misspelt key, since it leaves another one missing."""
    problems = error.errors(include_url=False)
    worst = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    return {**worst, "loc": _path_in(content, worst["loc"])}


def _path_in(content: Any, where: Where) -> Where:
    """The path without the names of types, which the checker puts between."""
    path: Where = ()
    for part in where:
        known = isinstance(content, dict) and part in content
        if part == type(content).__name__ and not known:
            continue
        path += (part,)
        inside = known or (isinstance(content, list) and isinstance(part, int))
        content = content[part] if inside else None
    return path


def numbers_without_end(content: Any, where: Where = ()) -> Iterator[tuple[Where, float]]:
    """Infinite numbers and NaN, wherever they are: neither can be written into a manifest."""
    if isinstance(content, float) and not math.isfinite(content):
        yield where, content
    entries = content.items() if isinstance(content, dict) else ()
    for key, value in enumerate(content) if isinstance(content, list) else entries:
        yield from numbers_without_end(value, (*where, key))


def words_for_numbers(
    content: Any, read: Any, where: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], bool]]:
    """Every true and false that was read as a number.

    >>> list(words_for_numbers({"a": True, "b": [False]}, {"a": 1.0, "b": [False]}))
    [(('a',), True)]
    """
    if isinstance(content, bool):
        if isinstance(read, (int, float)) and not isinstance(read, bool):
            yield where, content
    elif isinstance(content, dict) and isinstance(read, dict):
        for key in content.keys() & read.keys():
            yield from words_for_numbers(content[key], read[key], (*where, key))
    elif isinstance(content, list) and isinstance(read, (list, tuple)):
        for number, (each, own) in enumerate(zip(content, read, strict=False)):
            yield from words_for_numbers(each, own, (*where, number))


def plain(text: str, *, most: int = 200) -> str:
    """Text that may be shown on one line: escapes for what is not printable, and not too long.

    >>> plain("a\\x1b[31m"), len(plain("x" * 1000))
    ('a\\\\x1b[31m', 200)
    """
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:most])
    return shown if len(text) <= most and len(shown) <= most else f"{shown[: most - 1]}…"


def explained(problem: Any, model: type[BaseModel]) -> str:
    """A problem of a recipe in one sentence: the key, its value, the rule.

    ``model`` is what the recipe was checked against: it knows which keys there are.
    """
    where, kind = problem["loc"], problem["type"]
    key = plain(".".join(map(str, where)))
    if kind == "extra_forbidden":
        return _unknown(where, problem["input"], model)
    if kind == "missing":
        target = f"the section [{key}]" if len(where) == 1 else f"it to [{where[0]}]"
        return f"{key} is missing; add {target}"
    message = _lowered(problem["msg"].removeprefix("Value error, ").rstrip("."))
    if kind in ("value_error", "assertion_error"):
        if len(message) > _MOST_SAID:  # it quotes a value, and ends with the rule
            message = f"{message[:200]}…{message[-200:]}"
        return f"{key}: {message}" if key else message
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        message = "input should be a section, or a table in braces"
    if kind == "invalid-json-value":
        message = "input should be text, a number, true, false, a list or a table"
    if kind.endswith("_parsing") or kind == "int_from_float":
        message = message.partition(",")[0]  # what follows says the same again
    rule = message.replace("input should be", "it should be", 1)
    return f"{key} is {_shown(problem['input'])}; {rule}{_nearest_choice(problem)}"


def _unknown(where: Where, value: Any, model: type[BaseModel]) -> str:
    key, known = plain(".".join(map(str, where))), _keys_at(where[:-1], model)
    what = f"section [{key}]" if len(where) == 1 and isinstance(value, dict) else f"key {key}"
    near = difflib.get_close_matches(str(where[-1]), known, n=1)
    if near:
        return f"unknown {what}; did you mean {near[0]}?"
    above = ".".join(map(str, where[:-1]))
    inside = [name for name in known if str(where[-1]) in _keys_at((*where[:-1], name), model)]
    if above and inside:
        places = " or ".join(f"{above}.{name}" for name in inside)
        return f"unknown {what}; {where[-1]} belongs to {places}"
    homes = [name for name in model.model_fields if str(where[-1]) in _keys_at((name,), model)]
    if homes:
        return f"unknown {what}; {where[-1]} belongs to [{'] or ['.join(homes)}]"
    return f"unknown {what}; known are {', '.join(known)}"


def _nearest_choice(problem: Any) -> str:
    if problem["type"] != "literal_error":
        return ""
    choices = re.findall(r"'([^']*)'", problem["msg"])
    near = difflib.get_close_matches(str(problem["input"]), choices, n=1)
    return f"; did you mean {near[0]}?" if near and len(choices) > 1 else ""


def _shown(value: Any) -> str:
    """A value as TOML would have it, on one line and not too long."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        text = type(value).__name__
    return plain(text, most=_MOST_SHOWN)


def _lowered(message: str) -> str:
    return f"{message[:1].lower()}{message[1:]}"


def _keys_at(where: Where, top: type[BaseModel]) -> list[str]:
    model: Any = top
    for part in where:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = next((a for a in _flat(field and field.annotation) if _is_model(a)), None)
        if model is None:
            return []
    return sorted(model.model_fields)


def _flat(annotation: Any) -> list[Any]:
    arguments = getattr(annotation, "__args__", ())
    return [annotation, *(each for argument in arguments for each in _flat(argument))]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
