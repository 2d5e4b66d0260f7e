"""Where in a TOML file something is said, in whatever spelling."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

Path = Sequence[str | int]  # of a key: names of tables, and places in lists


def line_of(text: str, path: Path) -> int | None:
    """The line, from 1, on which ``path`` is said, or as much of it as is said at all.

    Every statement is read by a TOML parser of its own, so that dotted and quoted keys, inline
    tables and values over several lines are found too. None where no part of it is there.

    >>> text = "[a]\\nb = 1\\n[[a.c]]\\nd = 1\\n[[a.c]]\\nd = [\\n  2,\\n]\\n"
    >>> line_of(text, ["a", "b"]), line_of(text, ["a", "c", 1, "d"]), line_of(text, ["a", "x"])
    (2, 6, 1)
    """
    found, deepest = None, 0
    for line, table, content in _statements(text):
        depth = _agreement(path, table, content)
        if depth > deepest:
            found, deepest = line, depth
    return found


def _statements(text: str) -> Iterator[tuple[int, Path, dict[str, Any]]]:
    """Each statement's first line, the table it is in, and what it says there."""
    table: Path = []
    lengths: dict[Path, int] = {}  # of the lists of tables so far
    start, statement = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        statement += line
        try:
            content = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # it goes on in the next line
        if content and statement.lstrip().startswith("["):
            table, content = _opened(content, lengths), {}
            yield start, table, content
        elif content:
            yield start, table, content
        start, statement = number + 1, ""


def _opened(header: dict[str, Any], lengths: dict[Path, int]) -> Path:
    """The table that ``[a.b]`` or ``[[a.b]]`` opens."""
    path: tuple[str | int, ...] = ()
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


def _agreement(path: Path, table: Path, content: Any) -> int:
    """How many parts of the path a statement says."""
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
