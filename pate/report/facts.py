"""Everything the public page says, gathered from what may be shown and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pate.accounting import Conversion, Event, Ledger, event_from_json
from pate.artifacts import Artifact, Level
from pate.errors import InvalidInput
from pate.mechanisms import make_mechanism
from pate.metrics import Share
from pate.pipeline.ledger import key_path, ledger_path
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import Run
from pate.pipeline.stage import producer
from pate.report.comparison import Contender, read_comparison
from pate.report.curves import Curves, Profile, cost_curves, moment_profile
from pate.report.tuning import tuning_told

if TYPE_CHECKING:
    from pate.report.private import PrivateFacts

_PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "dp-accounting", "randomgen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One (ε, δ), and the λ that gave it."""

    epsilon: float
    delta: float
    moment: float | None
    conversion: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """One class: labels that were released, and how the student does on it."""

    name: str
    labels: int
    records: int
    right: int
    said: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What an artifact holds, as one hash."""

    what: str
    level: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the page says. All of it PUBLIC or RELEASED, but for ``private``."""

    recipe: Recipe
    protects: str
    neighbours: str
    guarantee: Figure
    plan: Mapping[str, Figure]  # of the labels alone, by conversion
    sanitised: Figure | None
    confidence: float | None  # that the sanitised figure is an upper bound
    price: float | None  # RDP that was paid for the sanitised figure
    why_not: str | None  # there is no sanitised figure
    events: tuple[Event, ...]  # of the plan
    queries: int
    answers: int
    asked: int
    answered: int
    kept: int
    curves: Curves
    profile: Profile
    classes: tuple[ClassRow, ...]
    confusion: tuple[tuple[int, ...], ...]
    student: Share
    labels: Share | None  # that are right, where the truth of public inputs is known
    agreement: Share | None  # of the student with the released labels
    all_releases: Figure | None  # of the data set, as its ledger publishes it
    seeded: bool
    extended: bool
    warnings: tuple[str, ...]
    digests: tuple[Digest, ...]
    versions: Mapping[str, str]
    written: date
    comparison: tuple[Contender, ...] = ()
    private: PrivateFacts | None = field(default=None)

    @property
    def conversion(self) -> Conversion:
        return Conversion(self.recipe.privacy.conversion)


class Shown:
    """The artifacts of a finished run that a page may show.

    Guarantees:
        Everything is opened through a store cleared to RELEASED: it refuses whatever is PRIVATE or
        reserved for a stage, by its manifest and wherever it lies.
    """

    def __init__(self, run: Run) -> None:
        self._store = run.store.cleared("report", Level.RELEASED)
        self._made_from = finished(run)

    def open(self, name: str) -> Artifact:
        return self._store.open(name, self._made_from[producer(name)])


def finished(run: Run) -> dict[str, str]:
    """What each stage was made from; refuses a run that is not complete, and says what is missing.

    A data set's key is never drawn here: without it nothing of the run could be found.
    """
    key = key_path(run.recipe, run.options.data_root)
    if not key.is_file():
        raise InvalidInput(
            f"{run.folder} was not run with the data root {run.options.data_root}: the data set's "
            "key is not in it; give the run's own --data-root"
        )
    made_from = {}
    for state in run.states():
        if not state.done or state.made_from is None:
            raise InvalidInput(
                f"{run.folder} is not finished: {state.stage} is {state.why}; {_advice(state.why)}"
            )
        made_from[state.stage] = state.made_from
    return made_from


def _advice(why: str) -> str:
    for setting, option in (("insecure_seed", "--insecure-seed"), ("plugin", "--plugin-path")):
        if setting in why:
            return f"give the {option} it was run with, or run the recipe again"
    return "run the recipe again, or the sweep or comparison, to go on where it was"


def gather(run: Run) -> Facts:
    """The facts of a finished run, for anybody to see.

    Guarantees:
        Reads RELEASED and PUBLIC artifacts (:class:`Shown`), the recipe, and what the data set's
        ledger publishes. The reading of what happened to be answered, the data-dependent ε, and
        the reference trained on private records are not among them.
    """
    shown = Shown(run)
    recipe = run.recipe
    released, costs = shown.open("aggregate"), shown.open("account").json("guarantees.json")
    evaluation = shown.open("evaluate").json("evaluation.json")
    plan = released.json("plan.json")
    events = tuple(event_from_json(text) for text in plan["events"])
    terms: dict[str, Any] = {
        "delta": recipe.privacy.delta,
        "conversion": Conversion(recipe.privacy.conversion),
    }
    seeded = released.facts["randomness"] != "private"
    total, told = _of_the_ledger(run)
    return Facts(
        recipe=recipe,
        protects=costs["protects"],
        neighbours=costs["guarantee"]["neighbours"],
        guarantee=_figure(costs["guarantee"]),
        plan={name: _figure(each) for name, each in costs["plan"].items()},
        sanitised=_figure(costs["sanitised"]) if costs.get("sanitised") else None,
        confidence=costs["sanitised"]["confidence"] if costs.get("sanitised") else None,
        price=costs["sanitised"]["price"] if costs.get("sanitised") else None,
        why_not=without_paths(costs.get("why_not")),
        events=events,
        queries=plan["queries"],
        answers=plan["answers"],
        asked=released.facts["asked"],
        answered=released.facts["answered"],
        kept=released.facts["kept"],
        curves=cost_curves(
            make_mechanism(recipe.aggregate),
            queries=plan["queries"],
            answers=plan["answers"],
            **terms,
        ),
        profile=moment_profile(events, **terms),
        classes=_classes(evaluation["classes"], np.array(released.array("labels.npy"))),
        confusion=tuple(map(tuple, evaluation["confusion"])),
        student=Share(**evaluation["student"]),
        labels=_share(evaluation["labels"]),
        agreement=_share(evaluation["agreement"]),
        all_releases=total,
        seeded=seeded,
        extended=bool(released.facts["extended"]),
        warnings=(*warnings_of(recipe, seeded=seeded, extended=released.facts["extended"]), *told),
        digests=_digests(shown),
        versions=versions(),
        written=datetime.now(UTC).date(),
        comparison=read_comparison(run.folder),
    )


def _figure(figure: Mapping[str, Any]) -> Figure:
    """A figure of the public report; one that is marked otherwise never gets on the page."""
    if not figure["publishable"]:
        raise InvalidInput("a figure among the released ones may not be published; run it again")
    return Figure(**{key: figure[key] for key in ("epsilon", "delta", "moment", "conversion")})


def _share(figure: Mapping[str, Any] | None) -> Share | None:
    return None if figure is None else Share(**figure)


def _classes(rows: list[dict[str, Any]], labels: Any) -> tuple[ClassRow, ...]:
    counts = np.bincount(labels, minlength=len(rows))
    return tuple(
        ClassRow(
            name=str(row["class"]),
            labels=int(count),
            records=row["records"],
            right=row["right"],
            said=row["said"],
        )
        for row, count in zip(rows, counts, strict=True)
    )


def warnings_of(recipe: Recipe, *, seeded: bool, extended: bool) -> list[str]:
    """Sentences that a reader must see first."""
    told = []
    if seeded:
        told.append(
            "The noise was drawn from a known seed. This run is NOT PRIVATE: whoever knows the "
            "seed can subtract the noise, and no figure on this page is a guarantee."
        )
    if recipe.partition.method == "shuffle":
        told.append(
            "Records were dealt to teachers by a shuffle of their places. The guarantee covers one "
            "record replaced by another; it does not cover one record added or removed, which would"
            " shift others to other teachers."
        )
    if extended:
        told.append(
            "Queries were added after earlier answers had been seen. The guarantee is the ledger's,"
            " which covers that; the curves show the plan as it stands now."
        )
    return told


def _of_the_ledger(run: Run) -> tuple[Figure | None, list[str]]:
    """What may be published of all releases of the data set, and traces of tuning."""
    seeded = run.options.insecure_seed is not None
    place = ledger_path(run.recipe, run.options.data_root, seeded=seeded)
    if not place.is_file():
        return None, [
            "The ledger of this data set was not found: whether other releases were made from the "
            "same data is not known."
        ]
    with Ledger.open(place) as ledger:
        whole = None if seeded else _figure(ledger.guarantee().as_json())
        return whole, tuning_told(run, ledger)


def without_paths(reason: str | None) -> str | None:
    """Why there is no sanitised figure; a sentence that names a file stays at home."""
    if reason is not None and ("/" in reason or "\\" in reason):
        return "its price was not paid again"
    return reason


def _digests(shown: Shown) -> tuple[Digest, ...]:
    titles = {
        "data-public": "public inputs",
        "encoder": "encoder",
        "aggregate": "released labels",
        "account": "guarantees",
        "distill": "student",
        "evaluate": "evaluation",
    }
    opened = [(title, shown.open(name)) for name, title in titles.items()]
    return tuple(
        Digest(what=title, level=found.level.name.lower(), sha256=found.digest)
        for title, found in opened
    )


def versions() -> dict[str, str]:
    """Of what computed the figures, where this page was written."""
    import platform

    from pate import __version__

    found = {"pate": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # of something this run did without
            continue
    return found


def file_name(path: str) -> str:
    """The last part of a path: the rest tells of a machine.

    >>> file_name("/home/ann/records.csv"), file_name("records.csv"), file_name("C:\\\\a\\\\b.csv")
    ('records.csv', 'records.csv', 'b.csv')
    """
    return Path(path.replace("\\", "/")).name
