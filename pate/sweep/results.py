"""What has come out of a sweep so far: a row for each finished point, and files of them.

Everything in a row is RELEASED; the files are for their owner all the same (mode 0600), because
what publishing all of it costs is for its owner to decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pate.accounting import Guarantee
from pate.artifacts import fingerprint
from pate.errors import InvalidInput
from pate.pipeline.runner import Run
from pate.studies.files import write_table
from pate.sweep.costing import Cost
from pate.sweep.grid import Grid, Point

STEM = "sweep"  # of the files in the folder
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of right answers, with its 95 % interval."""

    accuracy: float
    low: float
    high: float
    records: int

    @classmethod
    def of(cls, figure: Mapping[str, Any] | None) -> Share | None:
        return None if figure is None else cls(**{k: figure[k] for k in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A finished point. All figures are of what was released."""

    point: Point
    epsilon: float  # of this point alone, if it was fixed before any result was seen
    delta: float
    neighbours: str
    protects: str
    private: bool  # False where the noise was seeded
    drawn: str  # the fingerprint of its labels, by which the ledger names their charge
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
            drawn=str(released.facts["drawn"]),
            asked=int(released.facts["asked"]),
            answered=int(released.facts["answered"]),
            labels=Share.of(found.get("labels")),
            student=Share.of(found.get("student")),
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
    study: str
    rows: tuple[Row, ...]
    cost: Cost | None  # None while nothing is released
    planned: tuple[str, ...]  # every point that was ever planned in this folder, as a digest
    together: Cost  # of all that was planned before anything was charged
    grown: bool  # whether points were added after results were there

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
            "study": self.study,
            "over": {axis.key: list(axis.values) for axis in self.grid.axes},
            "points": len(self.grid.points),
            "complete": self.complete,
            "rows": [row.as_json(self.grid) for row in self.rows],
            "together": None
            if cost is None
            else _together(cost) | {"fixed_in_advance": cost.in_advance, "unpaid": cost.unpaid},
            "planned": list(self.planned),
            "planned_together": _together(self.together),
            "grown": self.grown,
        }

    def write(self, folder: Path) -> None:
        """``sweep.json`` and ``sweep.csv``, each whole or not at all."""
        keys = [axis.key for axis in self.grid.axes]
        rows = [_flat(row.as_json(self.grid)) for row in self.rows]
        columns = ["point", *keys, *(each for each in _COLUMNS if each not in keys)]
        write_table(folder, STEM, self.as_json(), rows=rows, columns=columns)


_COLUMNS = ("epsilon", "delta", "teachers", "asked", "answered", "labels_right", "accuracy",
            "low", "high", "records")  # fmt: skip


def _together(cost: Cost) -> dict[str, Any]:
    epsilon, delta = cost.guarantee.epsilon, cost.guarantee.delta
    return {"releases": cost.releases, "epsilon": epsilon, "delta": delta}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    labels, student = row["labels"] or {}, row["student"] or {}
    return {**row, **student, **row["settings"], "labels_right": labels.get("accuracy")}


def digests(points: Sequence[Point]) -> tuple[str, ...]:
    """What tells one point from another, whatever the command that named it."""
    return tuple(fingerprint(point.recipe.model_dump(mode="json"))[:20] for point in points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What an earlier command planned in a folder."""

    planned: tuple[str, ...]
    together: Cost
    grown: bool


def read_planned(folder: Path) -> Before | None:
    """Which points were planned in this folder before, at what cost; None where none were."""
    file = folder / f"{STEM}.json"
    try:
        before = json.loads(file.read_text())
        cost = before["planned_together"]
        together = Guarantee(epsilon=float(cost["epsilon"]), delta=float(cost["delta"]))
        return Before(
            planned=tuple(map(str, before["planned"])),
            together=Cost(releases=int(cost["releases"]), guarantee=together),
            grown=bool(before["grown"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{file} is damaged; remove it to have it written anew") from error
