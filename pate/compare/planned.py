"""What a comparison set out to release, written down before anything is charged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pate.accounting import Event, event_from_json, event_to_json
from pate.artifacts import Level, fingerprint
from pate.compare.points import Point
from pate.studies.files import write_owned

_PLANNED = "planned.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """All that was planned in a folder since the first charge, and whether it was fixed by then."""

    pate: tuple[Event, ...]
    dpsgd: tuple[Event, ...]
    grown: bool = False  # some of it was asked for, or drawn, when results were there


def note_plan(
    folder: Path, points: Sequence[Point], *, charged: bool, grown: bool = False
) -> Noted:
    """Writes down which points are planned, beside those of earlier commands.

    Whoever saw results, and then asked for more, chose by them: the plan has then grown, and stays
    so. What was planned and never ``charged`` for was never seen, either: it is forgotten.
    ``grown`` says that charges tell of it.
    """
    own = {_name(point): _costs(point) for point in points}
    file = folder / Level.PRIVATE.folder / _PLANNED
    try:
        before = json.loads(file.read_text())
        earlier, was_grown = dict(before["points"]), bool(before["grown"])
    except (OSError, ValueError, KeyError, TypeError):
        earlier, was_grown = {}, False
    if charged:
        grown = grown or was_grown or not own.keys() <= earlier.keys()
        own = earlier | own
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_owned(file, json.dumps({"points": own, "grown": grown}).encode())
    return Noted(pate=_events(own, "pate"), dpsgd=_events(own, "dpsgd"), grown=grown)


def _name(point: Point) -> str:
    """Of what a point releases; how a student is tested is no part of that."""
    return fingerprint(
        point.pate.model_dump(mode="json", exclude={"evaluate"}),
        point.dpsgd.model_dump(mode="json"),
    )


def _costs(point: Point) -> dict[str, list[str]]:
    plans = {"pate": point.pate_plan.events, "dpsgd": point.dpsgd_plan.events}
    return {method: [event_to_json(event) for event in plans[method]] for method in plans}


def _events(points: dict[str, dict[str, list[str]]], method: str) -> tuple[Event, ...]:
    return tuple(event_from_json(text) for costs in points.values() for text in costs[method])
