"""From TOML, and from ``--set``, to a recipe; a mistake names its file, line and nearest key."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pate.errors import InvalidInput
from pate.reading.explaining import (
    explained,
    numbers_without_end,
    plain,
    words_for_numbers,
    worst_problem,
)
from pate.reading.kinds import PATE, check_kind, is_kind, kind_for, shipped_recipes
from pate.reading.places import line_of

M = TypeVar("M", bound=BaseModel)


def read_recipe(name: str, settings: list[str] | None, model: type[M]) -> tuple[str, M]:
    """The name of a run, and its recipe: a shipped one by name, or a file by path.

    ``model`` says what a recipe of this kind holds; a recipe of another kind is refused, with the
    command it is for.
    """
    kind = kind_for(model)
    path = find_recipe(name, kind=kind)
    text, content = _read(path)
    check_kind(name, content, wanted=kind)
    set_by = {_apply(content, setting): plain(setting) for setting in settings or []}
    try:
        recipe = model.model_validate(content)
    except ValidationError as error:
        problem = worst_problem(error, content)
        place = _place(path, text, problem["loc"], set_by)
        raise InvalidInput(f"{place}: {explained(problem, model)}") from error
    for where, value in numbers_without_end(content):  # in params anything else goes
        place = _place(path, text, where, set_by)
        raise InvalidInput(
            f"{place}: {plain('.'.join(map(str, where)))} is {value}; give a finite number"
        )
    for where, value in words_for_numbers(content, recipe.model_dump()):
        place = _place(path, text, where, set_by)
        key, said = plain(".".join(map(str, where))), str(value).lower()
        raise InvalidInput(f"{place}: {key} is {said}; give a number")
    return path.stem, recipe


def find_recipe(name: str, *, kind: str = PATE) -> Path:
    """The file of a recipe: a path as it is, a bare name among the shipped ones.

    A shipped recipe is found whatever its kind; what is suggested is of the kind asked for.
    """
    given, shipped = Path(name), shipped_recipes()
    is_path = given.suffix == ".toml" or given.parent != Path() or name.endswith("/")
    if not is_path and name in shipped:
        return shipped[name]
    try:
        if is_path and given.is_file():
            return given
        if given.is_dir() and name:
            raise InvalidInput(f"{name} is a folder; give a .toml file, or the name of a recipe")
        if is_path and given.exists():
            raise InvalidInput(f"{name} is a pipe or a device; give a .toml file")
        beside = [str(file) for file in given.parent.glob("*.toml") if file.is_file()]
    except OSError as error:
        raise InvalidInput(f"the recipe {name} cannot be read: {error.strerror}") from error
    shipped = shipped_recipes(kind)
    own = f"{name}.toml"
    beside = [file for file in beside if is_kind(Path(file), kind)]
    near = [own] if own in beside else difflib.get_close_matches(name, [*shipped, *beside], n=1)
    hint = f"did you mean {near[0]}?" if near else f"shipped are {', '.join(sorted(shipped))}"
    what = "recipe file" if is_path else "recipe named"
    raise InvalidInput(f"there is no {what} {name or repr(name)}; {hint}")


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not a text file in UTF-8; save it as one") from error
    except (ValueError, RecursionError) as error:  # a number or a list beyond all measure, too
        what, _, where = str(error).rstrip(")").partition(" (at ")
        line = re.match(r"line (\d+), (column \d+)", where)
        if line:
            raise InvalidInput(
                f"{path}:{line[1]}: not TOML at {line[2]}: {what[:1].lower()}{what[1:]}"
            ) from error
        raise InvalidInput(f"{path} is not TOML: {error}") from error


def _apply(content: dict[str, Any], setting: str) -> tuple[str | int, ...]:
    """Overrides a key, and says which."""
    key, equals, value = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise InvalidInput(f"--set {plain(setting)} is not of the form section.key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value  # a word without quotation marks
    holder: Any = content
    path: tuple[str | int, ...] = ()
    for depth, part in enumerate(parts, start=1):
        own: str | int = part
        if isinstance(holder, list):
            own = _place_in_list(holder, part, setting, of=".".join(map(str, path)))
        elif isinstance(holder, dict):
            holder.setdefault(part, {})
        else:
            raise InvalidInput(
                f"--set {plain(setting)}: {plain('.'.join(map(str, path)))} is not a section"
            )
        path += (own,)
        if depth == len(parts):
            holder[own] = parsed
        holder = holder[own]
    return path


def _place_in_list(holder: list[Any], part: str, setting: str, *, of: str) -> int:
    if not (part.isascii() and part.isdecimal() and int(part) < len(holder)):
        raise InvalidInput(
            f"--set {plain(setting)}: {plain(of)} is a list of {len(holder)}; "
            f"name one by its number, 0 to {len(holder) - 1}"
        )
    return int(part)


def _place(
    path: Path, text: str, where: tuple[str | int, ...], set_by: dict[tuple[str | int, ...], str]
) -> str:
    """The setting that said it, or the line of the file; both where they do not go together."""
    for key, setting in reversed(set_by.items()):
        if where[: len(key)] == key:
            return f"--set {setting}"
    line = line_of(text, where)
    place = f"{path}:{line}" if line else str(path)
    involved = [setting for key, setting in set_by.items() if key[: len(where)] == where]
    return " with ".join([place, *(f"--set {setting}" for setting in involved)])
