"""Read a recipe from TOML and ``--set``; an error names the file, the line and the nearest key."""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError

from pate.errors import InvalidInput
from pate.recipes.paths import PluginsSpec, set_file

KeyPath = tuple[str | int, ...]  # names of tables, and positions in lists
M = TypeVar("M", bound=BaseModel)

PATE = "pate"
COMMANDS = {  # by ``kind``
    PATE: "pate run",
    "dpsgd": "dpsgd train",
    "compare": "pate compare",
    "federation": "pate federate",
    "party": "pate party",
}

# It changes no result, so it enters no fingerprint and no stored copy of a recipe.
Notes = Annotated[
    str,
    Field(
        exclude=True,
        description="What the recipe is for, in a first line, and remarks below it. Changes no "
        "result.",
    ),
]

DataRoot = Annotated[
    str | None,
    Field(
        exclude=True,
        description="Folder of data sets and ledgers, relative to the recipe. By default the "
        "user's data folder; `--data-root` and `$PATE_DATA` come first.",
    ),
]

# Neither does the place of the user's code; what of it is used is in every fingerprint.
Plugins = Annotated[PluginsSpec, Field(exclude=True)]


def read_recipe(name: str, settings: list[str] | None, model: type[M]) -> tuple[str, M]:
    """Return the name and the validated content of a shipped recipe, or of a ``.toml`` file.

    ``settings`` are overrides of the form ``section.key=value``; a later one wins.
    """
    kind = kind_of_model(model)
    path = find_recipe(name, kind=kind)
    text, content = load_toml(path)
    _check_kind(name, content, wanted=kind)
    set_by = {_apply(content, setting): printable(setting) for setting in settings or []}
    _make_absolute(content, "data_root", path.parent)
    _make_absolute(content.get("plugins"), "path", path.parent)
    problem: tuple[KeyPath, str] | None = None
    try:
        recipe = model.model_validate(content)
        problem = next(_unfit_values(content, recipe.model_dump()), None)
    except ValidationError as error:
        from pate.recipes.explain import explain

        problem = explain(error, model, content)
    if problem is not None:
        from pate.recipes.explain import location_of

        where, sentence = problem
        raise InvalidInput(f"{location_of(path, text, where, set_by)}: {sentence}")
    set_file(recipe, path.parent.resolve() / path.name)
    return path.stem, recipe


def _make_absolute(section: Any, key: str, folder: Path) -> None:
    if isinstance(section, dict) and isinstance(place := section.get(key), str):
        section[key] = str((folder / Path(place).expanduser()).absolute())


def _unfit_values(content: Any, read: Any, where: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield values that validation accepts and that are wrong: infinities, true for a number.

    >>> list(_unfit_values({"a": True, "b": [False]}, {"a": 1.0, "b": [False]}))
    [(('a',), 'a is true; give a number')]
    """
    key = printable(".".join(map(str, where)))
    if isinstance(content, float) and not math.isfinite(content):
        yield where, f"{key} is {content}; give a finite number"
    elif isinstance(content, bool) and type(read) in (int, float):
        yield where, f"{key} is {str(content).lower()}; give a number"
    elif isinstance(content, dict):
        for name, value in content.items():
            inner = read.get(name) if isinstance(read, dict) else None
            yield from _unfit_values(value, inner, (*where, name))
    elif isinstance(content, list):
        others = read if isinstance(read, (list, tuple)) else ()
        for at, value in enumerate(content):
            inner = others[at] if at < len(others) else None
            yield from _unfit_values(value, inner, (*where, at))


def find_recipe(name: str, *, kind: str = PATE) -> Path:
    """Return the file of a recipe: a path as given, a bare name among the shipped recipes.

    A shipped recipe is found whatever its kind; only recipes of ``kind`` are suggested.
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
    beside = [file for file in beside if _may_be(Path(file), kind)]
    near = [own] if own in beside else difflib.get_close_matches(name, [*shipped, *beside], n=1)
    known = f"shipped are {', '.join(sorted(shipped))}" if shipped else "give a .toml file"
    hint = f"did you mean {near[0]}?" if near else known
    what = "recipe file" if is_path else "recipe named"
    raise InvalidInput(f"there is no {what} {name or repr(name)}; {hint}")


def shipped_recipes(kind: str | None = None) -> dict[str, Path]:
    """Return the recipes that come with the package, by name; of one kind if ``kind`` is given."""
    package = Path(str(resources.files("pate")))
    for folder in (package / "pipelines", package.parent / "pipelines"):  # a wheel, a checkout
        if folder.is_dir():
            paths = sorted(folder.glob("*.toml"))
            return {path.stem: path for path in paths if kind is None or _may_be(path, kind)}
    return {}


def summary(path: Path) -> str:
    """Return the first line of a recipe's ``notes``, which describes it in a sentence."""
    lines = str(load_toml(path)[1].get("notes", "")).strip().splitlines()
    return lines[0].strip() if lines else ""


def remarks(notes: str) -> str:
    """Return a recipe's ``notes`` below their first line, as running text.

    >>> remarks("A title.\\n\\nChosen by accuracy\\non test records.")
    'Chosen by accuracy on test records.'
    """
    return " ".join(notes.strip().partition("\n")[2].split())


def kind_of_model(model: type[BaseModel]) -> str:
    """Return the kind of recipe that a model describes: the value of its field ``kind``.

    >>> from typing import Literal
    >>> from pydantic import create_model
    >>> kind_of_model(create_model("Recipe", kind=(Literal["dpsgd"], ...)))
    'dpsgd'
    >>> kind_of_model(BaseModel)
    'pate'
    """
    field = model.model_fields.get("kind")
    return PATE if field is None else str(get_args(field.annotation)[0])


def _kind(content: Mapping[str, Any]) -> str | None:
    """Return the kind that a recipe states; None if no command knows it."""
    kind = content.get("kind", PATE)
    return kind if isinstance(kind, str) and kind in COMMANDS else None


def _check_kind(name: str, content: Mapping[str, Any], *, wanted: str) -> None:
    """Refuse a recipe of another command, and name that command."""
    found = _kind(content)
    if found is None or found == wanted or not content:
        return  # validation reports an unknown kind, and an empty file
    message = f"{name} is a recipe for `{COMMANDS[found]}`, not for `{COMMANDS[wanted]}`"
    if found != PATE:
        raise InvalidInput(f"{message}; run `{COMMANDS[found]} {name}`")
    raise InvalidInput(
        f'{message}; run `{COMMANDS[found]} {name}`, or write kind = "{wanted}" at its top if it '
        "is meant for this command"
    )


def _may_be(path: Path, kind: str) -> bool:
    """Return whether a file is a recipe of this kind; a damaged file may be one."""
    try:
        return _kind(tomllib.loads(path.read_text(encoding="utf-8-sig"))) == kind
    except (OSError, ValueError, RecursionError):
        return True


def printable(text: str, *, longest: int = 200) -> str:
    """Return text for one line of a message: escaped where not printable, and cut.

    >>> printable("a\\x1b[31m"), len(printable("x" * 1000))
    ('a\\\\x1b[31m', 200)
    """
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:longest])
    cut = len(text) > longest or len(shown) > longest
    return f"{shown[: longest - 1]}…" if cut else shown


def load_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a TOML file as text and as values; raise the line that is not TOML."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, tomllib.loads(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not a text file in UTF-8; save it as one") from error
    except (ValueError, RecursionError) as error:  # also numbers too long and lists too deep
        what, _, where = str(error).rstrip(")").partition(" (at ")
        line = re.match(r"line (\d+), (column \d+)", where)
        if line:
            raise InvalidInput(
                f"{path}:{line[1]}: not TOML at {line[2]}: {what[:1].lower()}{what[1:]}"
            ) from error
        raise InvalidInput(f"{path} is not TOML: {error}") from error


def _apply(content: dict[str, Any], setting: str) -> KeyPath:
    """Override one key of a recipe in place; return the path of that key."""
    key, equals, value = setting.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise InvalidInput(f"--set {printable(setting)} is not of the form section.key=value")
    parsed = read_value(value)
    holder: Any = content
    path: KeyPath = ()
    for depth, part in enumerate(parts, start=1):
        own: str | int = part
        above = printable(".".join(map(str, path)))
        if isinstance(holder, list):
            if not (part.isascii() and part.isdecimal() and int(part) < len(holder)):
                raise InvalidInput(
                    f"--set {printable(setting)}: {above} is a list of {len(holder)}; "
                    f"name one by its number, 0 to {len(holder) - 1}"
                )
            own = int(part)
        elif isinstance(holder, dict):
            holder.setdefault(part, {})
        else:
            raise InvalidInput(f"--set {printable(setting)}: {above} is not a section")
        path += (own,)
        if depth == len(parts):
            holder[own] = parsed
        holder = holder[own]
    return path


# --- settings as texts ----------------------------------------------------------------------------


def read_value(text: str) -> Any:
    """Return the value of a setting: a TOML value, or else a word without quotation marks."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError, KeyError):
        return text


def as_setting(value: Any) -> str:
    """Return a value as ``--set`` takes it, on one line; a plain word stays as it is.

    >>> as_setting("fixmatch"), as_setting("true"), as_setting(True), as_setting([1, "a"])
    ('fixmatch', '"true"', 'true', '[1, "a"]')
    """
    plain = isinstance(value, str) and value.isprintable() and read_value(value) == value
    return str(value) if plain else to_toml(value)


def as_settings(settings: Mapping[str, Any] | Sequence[str] | None) -> list[str]:
    """Return settings as ``--set`` takes them, from a mapping or from such texts.

    >>> as_settings({"teachers.count": 50}), as_settings(["student.seed=1"]), as_settings(None)
    (['teachers.count=50'], ['student.seed=1'], [])
    """
    if isinstance(settings, Mapping):
        return [f"{key}={as_setting(value)}" for key, value in settings.items()]
    return list(settings or ())


def to_toml(value: Any) -> str:
    """Return a value in TOML, on one line.

    >>> to_toml({"a b": [1, 2.5], "c": {}}), to_toml("x\\ty"), to_toml(1e300)
    ('{ "a b" = [1, 2.5], c = {} }', '"x\\\\ty"', '1e+300')
    """
    if isinstance(value, Mapping):
        keys = {k: k if re.fullmatch(r"[A-Za-z0-9_-]+", k) else to_toml(k) for k in value}
        inside = [f"{keys[k]} = {to_toml(each)}" for k, each in value.items() if each is not None]
        return "{ " + ", ".join(inside) + " }" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)
