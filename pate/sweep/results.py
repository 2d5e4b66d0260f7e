"""What has come out of a sweep so far: a row for each finished point, and files of them.

Everything in a row is RELEASED; the files are for their owner all the same (mode 0600), because
what publishing all of it costs is for its owner to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pate.accounting.ledger.study_costs import StudyCost
from pate.metrics import Share
from pate.pipeline.runner import Run
from pate.studies.files import write_table
from pate.sweep.grid import Grid, Point

STEM = "sweep"  # of the files in the folder
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A finished point. All figures are of what was released."""

    point: Point
    epsilon: float  # of this point alone, if it was fixed before any result was seen
    delta: float
    neighbours: str
    protects: str
    private: bool  # False where the noise was seeded
    asked: int
    answered: int
    labels: Share | None  # how many labels are right, where that is known
    student: Share | None  # None where the labels were too few for a student

    @classmethod
    def of(cls, point: Point, run: Run, *, student: bool) -> Row:
        """Reads a finished run; ``student`` is False where its labels were too few for one."""
        released = run.artifact("aggregate")
        costs = run.artifact("account").json("guarantees.json")
        found = run.artifact("evaluate").json("evaluation.json") if student else {}
        return cls(
            point=point,
            epsilon=float(costs["guarantee"]["epsilon"]),
            delta=float(costs["guarantee"]["delta"]),
            neighbours=str(costs["guarantee"]["neighbours"]),
            protects=str(costs["protects"]),
            private=costs["randomness"] == "private",
            asked=int(released.facts["asked"]),
            answered=int(released.facts["answered"]),
            labels=_share(found.get("labels")),
            student=_share(found.get("student")),
        )

    def as_json(self, grid: Grid) -> dict[str, Any]:
        settings = {
            axis.key: value for axis, value in zip(grid.axes, self.point.values, strict=True)
        }
        return {
            "point": self.point.number,
            "settings": settings,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours,
            "protects": self.protects,
            "private": self.private,
            "teachers": self.point.recipe.teachers.count,
            "asked": self.asked,
            "answered": self.answered,
            "labels": None if self.labels is None else asdict(self.labels),
            "student": None if self.student is None else asdict(self.student),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The finished points in the order given, and what they cost together."""

    grid: Grid
    rows: tuple[Row, ...]
    cost: StudyCost
    seeded: bool

    @property
    def complete(self) -> bool:
        return len(self.rows) == len(self.grid.points)

    @property
    def deltas(self) -> str:
        """The δ of the points: one, unless it was varied."""
        return ", ".join(f"{delta:g}" for delta in dict.fromkeys(row.delta for row in self.rows))

    def as_json(self) -> dict[str, Any]:
        cost = self.cost
        return {
            "format": _FORMAT,
            "name": self.grid.name,
            "data": self.grid.points[0].recipe.data.name,
            "study": cost.name,
            "over": {axis.key: list(axis.values) for axis in self.grid.axes},
            "points": len(self.grid.points),
            "complete": self.complete,
            "seeded": self.seeded,
            "rows": [row.as_json(self.grid) for row in self.rows],
            "together": {
                "releases": cost.releases,
                "unpaid": cost.unpaid,
                "epsilon": cost.guarantee.epsilon,
                "delta": cost.guarantee.delta,
                "planned_in_advance": cost.in_advance,
            },
        }

    def write(self, folder: Path) -> None:
        """``sweep.json`` and ``sweep.csv``, each whole or not at all."""
        keys = [axis.key for axis in self.grid.axes]
        rows = [_flat(row.as_json(self.grid)) for row in self.rows]
        columns = ["point", *keys, *(each for each in _COLUMNS if each not in keys)]
        write_table(folder, STEM, self.as_json(), rows=rows, columns=columns)


_COLUMNS = ("epsilon", "delta", "teachers", "asked", "answered", "labels_right", "accuracy",
            "low", "high", "records")  # fmt: skip


def _share(figure: Mapping[str, Any] | None) -> Share | None:
    return None if figure is None else Share.of(figure)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    labels, student = row["labels"] or {}, row["student"] or {}
    return {**row, **student, **row["settings"], "labels_right": labels.get("accuracy")}
