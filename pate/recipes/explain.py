"""Describe a problem of a recipe in one sentence: the key, its value, the rule and the line."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pate.recipes.read import KeyPath, printable

_LONGEST_RULE = 600  # characters of a rule with the value it quotes
_LONGEST_VALUE = 60  # characters of a value in a message


def explain(
    error: ValidationError, model: type[BaseModel], content: Any = None
) -> tuple[KeyPath, str]:
    """Return the key to correct first, and a sentence that names its value and the rule.

    A misspelt key comes first, since it leaves another one missing.

    ``content`` is the recipe as parsed, by which the names of types are removed from pydantic's
    paths; ``model`` knows all keys.
    """
    problems: list[Any] = list(error.errors(include_url=False))
    worst = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    where = _path_in(content, worst["loc"])
    return where, _sentence({**worst, "loc": where}, model)


def _path_in(content: Any, where: KeyPath) -> KeyPath:
    """Return the path without the names of types that pydantic inserts."""
    path: KeyPath = ()
    for part in where:
        known = isinstance(content, dict) and part in content
        if part == type(content).__name__ and not known:
            continue
        path += (part,)
        inside = known or (isinstance(content, list) and isinstance(part, int))
        content = content[part] if inside else None
    return path


def _sentence(problem: Any, model: type[BaseModel]) -> str:
    where, kind = problem["loc"], problem["type"]
    key = printable(".".join(map(str, where)))
    if kind == "extra_forbidden":
        return _unknown(where, problem["input"], model)
    if kind == "missing":
        section = ".".join(str(part) for part in where[:-1] if isinstance(part, str))
        target = f"it to [{section}]" if section else f"the section [{key}]"
        return f"{key} is missing; add {target}"
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    message = f"{message[:1].lower()}{message[1:]}"
    if kind in ("value_error", "assertion_error"):
        if len(message) > _LONGEST_RULE:  # it quotes a value, and ends with the rule
            message = f"{message[:200]}…{message[-200:]}"
        return f"{key}: {message}" if key else message
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = _keys_at(where, model)
        inside = f" with some of {', '.join(keys)}" if keys else ", or a table in braces"
        message = f"input should be a section{f' [{key}]' if keys else ''}{inside}"
    if kind == "invalid-json-value":
        message = "input should be text, a number, true, false, a list or a table"
    if kind.endswith("_parsing") or kind == "int_from_float":
        message = message.partition(",")[0]  # the rest repeats it
    rule = message.replace("input should be", "it should be", 1)
    return f"{key} is {_shown(problem['input'])}; {rule}{_nearest_choice(problem)}"


def _unknown(where: KeyPath, value: Any, model: type[BaseModel]) -> str:
    key, known = printable(".".join(map(str, where))), _keys_at(where[:-1], model)
    what = f"section [{key}]" if len(where) == 1 and isinstance(value, dict) else f"key {key}"
    last = str(where[-1])
    named = [name for name in known if last in _also_called((*where[:-1], name), model)]
    near = named or difflib.get_close_matches(last, known, n=1)
    if near:
        return f"unknown {what}; did you mean {' or '.join(near)}?"
    above = ".".join(map(str, where[:-1]))
    inside = [name for name in known if _takes((*where[:-1], name, last), value, model)]
    if above and inside:
        places = " or ".join(f"{above}.{name}" for name in inside)
        return f"unknown {what}; {last} belongs to {places}"
    homes = [name for name in model.model_fields if _takes((name, last), value, model)]
    if homes:
        write = f": write [{homes[0]}.{last}]" if isinstance(value, dict) else ""
        return f"unknown {what}; {last} belongs to [{'] or ['.join(homes)}]{write}"
    for name in model.model_fields:
        for own in _keys_at((name,), model):
            if last in _also_called((name, own), model):
                return f"unknown {what}; did you mean {name}.{own}?"
    if isinstance(value, dict) and len(where) == 1 and value:  # a section that nothing takes whole
        first = next(iter(value))
        return _unknown((*where, first), value[first], model)
    return f"unknown {what}; known are {', '.join(known or model.model_fields)}"


def _takes(where: KeyPath, value: Any, model: type[BaseModel]) -> bool:
    """Return whether there is such a key, and, if it is a section, whether it could be this one."""
    if where[-1] not in _keys_at(where[:-1], model):
        return False
    keys, field = _keys_at(where, model), _field_at(where, model)
    if keys and isinstance(value, dict):
        return {*value} <= {*keys}
    if isinstance(value, (dict, list)):
        return field is not None and _contains(field.annotation, type(value))
    return not keys


def _contains(annotation: Any, kind: type) -> bool:
    """Return whether a type is, or has a part that is, a dict or a list (or a tuple)."""
    found = list if (origin := get_origin(annotation)) is tuple else origin
    return found is kind or any(_contains(part, kind) for part in get_args(annotation))


def _also_called(where: KeyPath, model: type[BaseModel]) -> Sequence[str]:
    """Return the other names that people try for a key: ``also`` of its field."""
    field = _field_at(where, model)
    extra = field.json_schema_extra if field is not None else None
    return extra.get("also", ()) if isinstance(extra, Mapping) else ()  # type: ignore[return-value]


def _nearest_choice(problem: Any) -> str:
    if problem["type"] != "literal_error":
        return ""
    choices = re.findall(r"'([^']*)'", problem["msg"])
    near = difflib.get_close_matches(str(problem["input"]), choices, n=1)
    return f"; did you mean {near[0]}?" if near and len(choices) > 1 else ""


def _shown(value: Any) -> str:
    """Return a value as TOML would write it, on one line and not too long."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        text = type(value).__name__
    return printable(text, longest=_LONGEST_VALUE)


def _keys_at(where: KeyPath, top: type[BaseModel]) -> list[str]:
    model = _model_at(where, top)
    return [] if model is None else sorted(model.model_fields)


def _field_at(where: KeyPath, top: type[BaseModel]) -> FieldInfo | None:
    model = _model_at(where[:-1], top)
    return None if model is None else model.model_fields.get(str(where[-1]))


def _model_at(where: KeyPath, top: type[BaseModel]) -> type[BaseModel] | None:
    model = top
    for part in where:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inside = models_in(field and field.annotation)
        if not inside:
            return None
        model = inside[0]
    return model


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models that a type is or contains, outermost first."""
    own = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    inner = [model for part in getattr(annotation, "__args__", ()) for model in models_in(part)]
    return [annotation, *inner] if own else inner


def location_of(path: Path, text: str, where: KeyPath, set_by: Mapping[KeyPath, str]) -> str:
    """Return the setting that gave a value, or its line; both where they conflict."""
    for key, setting in reversed(list(set_by.items())):
        if where[: len(key)] == key:
            return f"--set {setting}"
    line = line_of(text, where)
    place = f"{path}:{line}" if line else str(path)
    involved = [setting for key, setting in set_by.items() if key[: len(where)] == where]
    return " with ".join([place, *(f"--set {setting}" for setting in involved)])


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line, from 1, that sets ``path`` or as much of it as the text sets at all.

    Every statement is parsed on its own, so that dotted and quoted keys, inline tables and values
    over several lines are found too. None if no part of the path is set.

    >>> text = "[a]\\nb = 1\\n[[a.c]]\\nd = 1\\n[[a.c]]\\nd = [\\n  2,\\n]\\n"
    >>> line_of(text, ["a", "b"]), line_of(text, ["a", "c", 1, "d"]), line_of(text, ["a", "x"])
    (2, 6, 1)
    """
    found, deepest = None, 0
    for line, table, content in _statements(text):
        depth = _matching_parts(path, table, content)
        if depth > deepest:
            found, deepest = line, depth
    return found


def _statements(text: str) -> Iterator[tuple[int, KeyPath, dict[str, Any]]]:
    """Yield each statement's first line, the table it is in, and its content."""
    table: KeyPath = ()
    lengths: dict[KeyPath, int] = {}  # of the lists of tables so far
    start, statement = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        statement += line
        try:
            content = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # it continues on the next line
        if content and statement.lstrip().startswith("["):
            table, content = _opened(content, lengths), {}
            yield start, table, content
        elif content:
            yield start, table, content
        start, statement = number + 1, ""


def _opened(header: dict[str, Any], lengths: dict[KeyPath, int]) -> KeyPath:
    """Return the table that ``[a.b]`` or ``[[a.b]]`` opens."""
    path: KeyPath = ()
    content: Any = header
    while content:
        ((key, content),) = content.items()
        path += (key,)
        if isinstance(content, list):
            lengths[path] = lengths.get(path, 0) + 1
            content = None
        if path in lengths:
            path += (lengths[path] - 1,)
    return path


def _matching_parts(path: Sequence[str | int], table: KeyPath, content: Any) -> int:
    """Return how many parts of the path a statement sets."""
    for depth, part in enumerate(path):
        if depth < len(table):
            if table[depth] != part:
                return depth
        elif isinstance(content, dict) and part in content:
            content = content[str(part)]
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            content = content[part]
        else:
            return depth
    return len(path)
