"""A sweep: its points as runs in one folder, with one store and one mark in the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from pate.artifacts import Store
from pate.errors import InvalidInput
from pate.pipeline.runner import Run
from pate.pipeline.stage import Options, Stage
from pate.sweep.grid import Grid, Point
from pate.sweep.order import in_order, origins


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Points that share a folder: what two of them have in common is made once."""

    grid: Grid
    folder: Path
    stages: Sequence[Stage]
    options: Options  # one object for all points: data of one's own are then read once

    @classmethod
    def of(cls, grid: Grid, folder: Path, stages: Sequence[Stage], options: Options) -> Self:
        """A sweep whose charges are marked with its folder's name."""
        name = folder.absolute().name
        if not name.isprintable():
            raise InvalidInput(f"--out {folder!s:.80} has unprintable characters; choose another")
        marked = replace(options, study=f"sweep {name}")
        return cls(grid=grid, folder=folder, stages=stages, options=marked)

    @property
    def study(self) -> str:
        assert self.options.study is not None
        return self.options.study

    def run(self, point: Point) -> Run:
        return Run(
            folder=self.folder, recipe=point.recipe, stages=self.stages, options=self.options
        )

    @property
    def store(self) -> Store:
        return self.run(self.grid.points[0]).store

    @cached_property
    def origins(self) -> Mapping[int, Mapping[str, str]]:
        """What the stages of each point follow from, by the point's number."""
        return {
            point.number: origins(point.recipe, self.stages, self.options)
            for point in self.grid.points
        }

    @property
    def in_order(self) -> list[Point]:
        """The points in the order in which they are run."""
        return in_order(self.grid.points, self.origins, self.stages)

    def one_of_each(self, stage: str) -> list[Point]:
        """The first point, in the order of running, for each result of a stage."""
        found: dict[str, Point] = {}
        for point in self.in_order:
            found.setdefault(self.origins[point.number][stage], point)
        return list(found.values())


def enough_labels(run: Run) -> bool:
    """Whether the released labels of a run are of two classes at least: else no student learns."""
    released = run.artifact("aggregate")
    labels = [released.array("labels.npy"), released.array("kept_labels.npy")]
    return len(np.unique(np.concatenate(labels))) > 1
