"""The points of a sweep: every combination of the values that were given, each a whole recipe.

All points are read and checked before anything runs, so a mistake in the last one costs nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pate.errors import InvalidInput
from pate.pipeline.recipe import Recipe
from pate.recipes.read import read_recipe
from pate.sweep.values import as_setting, read_values

MOST_POINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting that is varied, and its values in the order given."""

    key: str  # "section.key"
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination: a recipe as ``pate run`` with these settings would have it."""

    number: int  # from 1, in the order given: the last setting varies fastest
    values: tuple[Any, ...]  # one of each axis
    settings: tuple[str, ...]  # "section.key=value", as --set takes them
    recipe: Recipe

    def __str__(self) -> str:
        return " ".join(self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is varied, and every combination of it."""

    name: str  # of the recipe
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]


def read_grid(recipe: str, over: Sequence[str], settings: Sequence[str] = ()) -> Grid:
    """Every combination of ``over`` ("section.key=value,value"), on top of ``settings``.

    The sanitised figure is left out of every point: it has a price of its own, and a sweep is there
    to be looked at.

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
        name, checked = _read(recipe, settings, own)
        points.append(Point(number=number, values=values, settings=own, recipe=checked))
    _require_different(points)
    _require_one_relation(points)
    return Grid(name=name, axes=axes, points=tuple(points))


def read_axes(over: Sequence[str]) -> tuple[Axis, ...]:
    """What is varied; refuses what a sweep cannot vary, and more points than one would look at.

    >>> read_axes(["aggregate.scale=8,16"])
    (Axis(key='aggregate.scale', values=(8, 16)),)
    """
    if not over:
        raise InvalidInput(
            "there is nothing to sweep over; add --over section.key=value,value, such as "
            "--over aggregate.scale=10,20"
        )
    axes = tuple(map(_axis, over))
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


def _axis(over: str) -> Axis:
    key, equals, text = over.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or len(parts) < 2 or not all(part.strip() for part in parts):
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
            f"--over {key}: no point of a sweep has a sanitised figure, which has a price of its "
            "own; leave it out"
        )
    try:
        values = read_values(text)
    except InvalidInput as error:
        raise InvalidInput(f"--over {over}: {error}") from None
    written = [as_setting(value) for value in values]
    twice = next((each for n, each in enumerate(written) if each in written[:n]), None)
    if twice is not None:
        raise InvalidInput(f"--over {over}: {twice} is given twice; name each value once")
    return Axis(key=key, values=values)


def _inside(key: str, other: str) -> bool:
    """Whether a key lies in the table that another one names."""
    return key.startswith(f"{other}.")


def _require_apart(axes: Sequence[Axis], settings: Sequence[str]) -> None:
    """What is set for all points must not be overridden by what is varied."""
    fixed = [setting.partition("=")[0].strip() for setting in settings]
    for axis in axes:
        for key in fixed:
            if key == axis.key or _inside(key, axis.key):
                raise InvalidInput(f"--set {key} and --over {axis.key} set the same; keep one")


def _read(recipe: str, settings: Sequence[str], own: Sequence[str]) -> tuple[str, Recipe]:
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
    for one, other in _equal(points):
        raise InvalidInput(f"--over: {one} and {other} mean the same; name each value once")


def _require_one_relation(points: Sequence[Point]) -> None:
    """Costs add up between the same two data sets only: a record more, a user more, or another."""
    first = points[0].recipe.partition
    for point in points:
        own = point.recipe.partition
        if (own.method, own.by) != (first.method, first.by):
            raise InvalidInput(
                f"--over: {points[0]} and {point} protect records in different ways, and their "
                "costs do not add up; make a sweep for each"
            )


def _equal(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    seen: dict[str, Point] = {}
    for point in points:
        text = point.recipe.model_dump_json()
        if text in seen:
            yield seen[text], point
        seen.setdefault(text, point)
