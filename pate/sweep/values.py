"""Values of a setting: from a list on the command line, and back to what ``--set`` reads."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pate.errors import InvalidInput

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read_values(text: str) -> tuple[Any, ...]:
    """The values between commas: as TOML has them in a list, or else words.

    >>> read_values("10, 2.5,true"), read_values("[1,2],[3]"), read_values("supervised,fixmatch")
    ((10, 2.5, True), ([1, 2], [3]), ('supervised', 'fixmatch'))
    """
    if not text.strip():
        raise InvalidInput("there is no value; write section.key=value,value")
    if text.rstrip().endswith(","):
        raise InvalidInput("there is no value after the last comma; remove it, or add one")
    try:
        content = tomllib.loads(f"values = [{text}]")
        if content.keys() == {"values"}:
            return tuple(content["values"])
    except (ValueError, RecursionError):
        pass  # words without quotation marks
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise InvalidInput("there is no value between two commas; remove one, or add a value")
    if any(word.startswith(("[", "{", '"', "'")) for word in words):
        raise InvalidInput("this is not TOML; close what is open, and put words into quotes")
    return tuple(_read(word) for word in words)


def _read(word: str) -> Any:
    """One value as ``--set`` would read it."""
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except (ValueError, RecursionError, KeyError):
        return word


def as_setting(value: Any) -> str:
    """A value as ``--set`` takes it, on one line: a plain word stays one.

    >>> as_setting("fixmatch"), as_setting("true"), as_setting(True), as_setting([1, "a"])
    ('fixmatch', '"true"', 'true', '[1, "a"]')
    """
    if isinstance(value, str) and value.isprintable() and _read(value) == value:
        return value
    return _toml(value)


def _toml(value: Any) -> str:
    """A value as TOML writes it, on one line.

    >>> _toml({"a b": [1, 2.5], "c": {}}), _toml("x\\ty"), _toml(1e300)
    ('{ "a b" = [1, 2.5], c = {} }', '"x\\\\ty"', '1e+300')
    """
    if isinstance(value, Mapping):
        inside = (f"{_key(key)} = {_toml(each)}" for key, each in value.items())
        return "{ " + ", ".join(inside) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)  # a number, or a date, which no setting takes


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _toml(key)
