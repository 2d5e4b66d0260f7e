"""Which stages points share, and an order in which what is shared is made once and used at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pate.artifacts import fingerprint
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Options, Stage, producer
from pate.sweep.grid import Point


def origins(recipe: Recipe, stages: Sequence[Stage], options: Options) -> dict[str, str]:
    """What each stage's result follows from, by settings alone: known before anything is made.

    Two points with one origin of a stage share its result, and what that cost. Two origins may
    still come to one result (another way to the same public features): then there is less to pay
    for than these say, never more.
    """
    known: dict[str, str] = {}
    for stage in stages:
        above = [known[producer(need)] for need in stage.needs]
        known[stage.name] = fingerprint(stage.name, stage.settings(recipe, options), above)
    return known


def in_order(
    points: Sequence[Point], known: Mapping[int, Mapping[str, str]], stages: Sequence[Stage]
) -> list[Point]:
    """The points so that those which share a stage come one after the other, early stages first.

    ``known`` holds the origins of each point, by its number. Among equals the order stays as it is.
    """
    ranks: list[dict[str, int]] = [{} for _ in stages]

    def rank(point: Point) -> tuple[int, ...]:
        return tuple(
            seen.setdefault(known[point.number][stage.name], len(seen))
            for seen, stage in zip(ranks, stages, strict=True)
        )

    return sorted(points, key=rank)
