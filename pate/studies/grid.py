"""The grid of a sweep: every combination of the values given, each a complete recipe.

All points are read and checked before anything runs, so that a mistake in the last one costs
nothing.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.recipes.read import as_setting, read_recipe, read_value

MOST_POINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting that is varied, and its values in the order given."""

    key: str  # "section.key"
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination: the recipe that ``pate run`` with these settings would use."""

    number: int  # from 1, in the order given: the last setting varies fastest
    values: tuple[Any, ...]  # one of each axis
    settings: tuple[str, ...]  # "section.key=value", as --set takes them
    recipe: Recipe

    def __str__(self) -> str:
        return " ".join(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The settings that are varied, and every combination of their values."""

    name: str  # of the recipe
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]


# --- values of a setting --------------------------------------------------------------------------


def read_values(text: str) -> tuple[Any, ...]:
    """Return the values between commas: TOML values as in a list, or else plain words.

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
    return tuple(map(read_value, words))


# --- axes and points ------------------------------------------------------------------------------


def read_grid(
    recipe: str,
    over: Mapping[str, Sequence[Any]] | Sequence[str],
    settings: Sequence[str] = (),
) -> Grid:
    """Return every combination of the values in ``over``, on top of ``settings``.

    ``over`` maps "section.key" to its values, or lists texts "section.key=value,value". Every point
    is without a sanitised ε, which has a price of its own.

    >>> grid = read_grid("digits", ["teachers.count=50,100", "aggregate.scale=8,16"])
    >>> [str(point) for point in grid.points][:2]
    ['teachers.count=50 aggregate.scale=8', 'teachers.count=50 aggregate.scale=16']
    """
    axes = read_axes(over)
    _require_apart(axes, settings)
    name, points = recipe, []
    for number, values in enumerate(itertools.product(*(axis.values for axis in axes)), start=1):
        pairs = zip(axes, values, strict=True)
        own = tuple(f"{axis.key}={as_setting(value)}" for axis, value in pairs)
        name, checked = _read_point(recipe, settings, own)
        points.append(Point(number=number, values=values, settings=own, recipe=checked))
    _require_different(points)
    _require_one_relation(points)
    return Grid(name=name, axes=axes, points=tuple(points))


def read_axes(over: Mapping[str, Sequence[Any]] | Sequence[str]) -> tuple[Axis, ...]:
    """Return the settings to vary; refuse those that a sweep cannot vary, and too many points.

    >>> read_axes(["aggregate.scale=8,16"]) == read_axes({"aggregate.scale": [8, 16]})
    True
    """
    if not over:
        raise InvalidInput(
            "there is nothing to sweep over; add --over section.key=value,value, such as "
            "--over aggregate.scale=10,20"
        )
    if isinstance(over, Mapping):
        axes = tuple(_checked_axis(key, tuple(values)) for key, values in over.items())
    else:
        axes = tuple(map(_read_axis, over))
    for before, after in itertools.combinations(axes, 2):
        if before.key == after.key:
            raise InvalidInput(
                f"--over {after.key} is given twice; write all its values into one list"
            )
        if _inside(before.key, after.key) or _inside(after.key, before.key):
            raise InvalidInput(
                f"--over {before.key} and --over {after.key} set the same; keep one of them"
            )
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        shown = " × ".join(str(len(axis.values)) for axis in axes)
        raise InvalidInput(
            f"{shown} values are {count} points, and a sweep has at most {MOST_POINTS}; "
            "give fewer values"
        )
    return axes


def _read_axis(over: str) -> Axis:
    key, equals, text = over.partition("=")
    if not equals:
        raise InvalidInput(f"--over {over} is not of the form section.key=value,value")
    key = _checked_key(key.strip(), over)
    try:
        values = read_values(text)
    except InvalidInput as error:
        raise InvalidInput(f"--over {over}: {error}") from None
    return _checked_axis(key, values)


def _checked_key(key: str, over: str) -> str:
    parts = key.split(".")
    if len(parts) < 2 or not all(part.strip() for part in parts):
        raise InvalidInput(f"--over {over} is not of the form section.key=value,value")
    if parts[0] == "data":
        raise InvalidInput(
            f"--over {key}: a sweep keeps its data; make a sweep for each, or use --set {key}"
        )
    if key == "privacy.budget":
        raise InvalidInput(
            f"--over {key}: the budget belongs to the data set, and never changes; "
            "vary privacy.epsilon for what a point may cost"
        )
    if key == "privacy.sanitise":
        raise InvalidInput(
            f"--over {key}: no point of a sweep has a sanitised ε, which has a price of its own; "
            "leave it out"
        )
    return key


def _checked_axis(key: str, values: tuple[Any, ...]) -> Axis:
    _checked_key(key, key)
    written = [as_setting(value) for value in values]
    if not written:
        raise InvalidInput(f"--over {key}: there is no value; give one or more")
    twice = next((each for n, each in enumerate(written) if each in written[:n]), None)
    if twice is not None:
        raise InvalidInput(
            f"--over {key}={','.join(written)}: {twice} is given twice; name each value once"
        )
    return Axis(key=key, values=values)


def _inside(key: str, other: str) -> bool:
    """Return whether a key lies in the table that another one names."""
    return key.startswith(f"{other}.")


def _require_apart(axes: Sequence[Axis], settings: Sequence[str]) -> None:
    """Refuse a setting for all points that an axis would override."""
    fixed = [setting.partition("=")[0].strip() for setting in settings]
    for axis in axes:
        for key in fixed:
            if key == axis.key or _inside(key, axis.key):
                raise InvalidInput(f"--set {key} and --over {axis.key} set the same; keep one")


def _read_point(recipe: str, settings: Sequence[str], own: Sequence[str]) -> tuple[str, Recipe]:
    try:
        name, checked = read_recipe(recipe, [*settings, *own], Recipe)
    except InvalidInput as error:
        text = str(error)
        for setting in own:  # it was typed as another option
            text = text.replace(f"--set {setting}", f"--over {setting}")
        raise InvalidInput(text) from error
    plain = checked.privacy.model_copy(update={"sanitise": False})
    return name, checked.model_copy(update={"privacy": plain})


def _require_different(points: Sequence[Point]) -> None:
    seen: dict[str, Point] = {}
    for point in points:
        other = seen.setdefault(point.recipe.model_dump_json(), point)
        if other is not point:
            raise InvalidInput(f"--over: {other} and {point} mean the same; name each value once")


def _require_one_relation(points: Sequence[Point]) -> None:
    """Refuse points of several neighbour relations: costs add up under one relation only."""
    first = points[0].recipe.partition
    for point in points:
        own = point.recipe.partition
        if (own.method, own.by) != (first.method, first.by):
            raise InvalidInput(
                f"--over: {points[0]} and {point} protect records in different ways, and their "
                "costs do not add up; make a sweep for each"
            )
