"""Origins: what an artifact in the open was made from, kept on the private side of its run.

    ROOT/private/origins/STAGE/FINGERPRINT.json

An artifact that is PUBLIC or RELEASED lies in a folder named by its own content, and its manifest
says what it holds and nothing of where it came from. What it was made from is written down here:
fingerprints of inputs and settings, by which a stage is known to be done.

Guarantees:
    Nothing in the open follows from private records but what was paid for. Fingerprints of private
    inputs would tell, of two publications of one run, whether any record changed in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pate._files import draft_folder, sync
from pate.artifacts.manifest import Level, read_sealed, write_sealed
from pate.errors import StoreError

ORIGINS = "origins"
# Facts that name what something was drawn from: they are part of its origin.
ORIGIN_FACTS = ("drawn", "winner")


def origins_folder(root: Path, stage: str) -> Path:
    return root / Level.PRIVATE.folder / ORIGINS / stage


def without_origin(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that may be in the open."""
    return {name: fact for name, fact in facts.items() if name not in ORIGIN_FACTS}


def write_origin(
    root: Path,
    *,
    stage: str,
    level: Level,
    made_from: str,
    inputs: Mapping[str, str],
    facts: Mapping[str, Any],
    key: str,
    folder: str,
) -> None:
    """Record where an artifact came from, in one step; of the same artifact, once.

    ``key`` stands for it in the fingerprints of what is made from it, ``folder`` is its name.
    """
    place = _place(root, stage, made_from)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = read_origin(root, stage, made_from)
    if known is not None and known["folder"] == folder:
        return
    with draft_folder(place.parents[1]) as working:
        write_sealed(
            working / place.name,
            {
                "stage": stage,
                "level": level.name,
                "made_from": made_from,
                "inputs": dict(inputs),
                "facts": {name: facts[name] for name in ORIGIN_FACTS if name in facts},
                "key": key,
                "folder": folder,
            },
        )
        sync(working / place.name)
        (working / place.name).replace(place)
    sync(place.parent)


def read_origin(root: Path, stage: str, made_from: str) -> Mapping[str, Any] | None:
    """Return where the artifact of this fingerprint came from, and lies; None if unknown."""
    place = _place(root, stage, made_from)
    if not place.is_file():
        return None
    origin = _read(place)
    if (origin["made_from"], origin["stage"]) != (made_from, stage):
        raise StoreError(f"{place} is of something else than its name says; remove the file")
    return origin


def _read(place: Path) -> Mapping[str, Any]:
    return read_sealed(place, what=f"the origin in {place}", remedy="remove the file")


def all_origins(root: Path, stage: str) -> Iterator[Mapping[str, Any]]:
    """Yield the origins of all artifacts of a stage in the open, also of removed ones."""
    for place in sorted(origins_folder(root, stage).glob("[!.]*.json")):
        yield _read(place)


def origin_files(root: Path, stage: str) -> Iterator[Path]:
    """Yield the files of the origins of a stage whose artifacts are still there."""
    for place in origins_folder(root, stage).glob("[!.]*.json"):
        try:
            there = folder_of(root, _read(place)).is_dir()
        except StoreError:  # whoever reads it is told
            there = True
        if there:
            yield place


def folder_of(root: Path, origin: Mapping[str, Any]) -> Path:
    level = Level[str(origin["level"])]
    return root / level.folder / str(origin["stage"]) / str(origin["folder"])


def _place(root: Path, stage: str, made_from: str) -> Path:
    return origins_folder(root, stage) / f"{made_from[:20]}.json"
