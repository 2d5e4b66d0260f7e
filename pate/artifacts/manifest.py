"""Levels, fingerprints, sealed manifests, and the origins of artifacts in the open.

The manifest of an artifact that is PRIVATE also records what it was made from. One that is PUBLIC
or RELEASED lies in a folder named by its own content, and its manifest records what it holds alone.
What it was made from (fingerprints of inputs and settings, by which a stage is known to be done) is
its origin, kept on the private side of the run:

    ROOT/private/origins/STAGE/FINGERPRINT.json

Guarantees:
    Nothing in the open follows from private records but what was paid for. Fingerprints of private
    inputs would show, of two publications of one run, whether any record changed in between.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from pate._files import draft_folder, sync
from pate.errors import StoreError

MANIFEST = "manifest.json"
ORIGINS = "origins"
ID_LENGTH = 20  # characters of a fingerprint in names of folders and files
_ORIGIN_FACTS = ("drawn", "winner")  # they name what something was drawn from


class Level(IntEnum):
    """PUBLIC < RELEASED < PRIVATE.

    Guarantees:
        Something RELEASED can come from something PRIVATE only with a charge in the ledger.

    >>> Level.PRIVATE > Level.RELEASED > Level.PUBLIC
    True
    """

    PUBLIC = 0  # known to everybody: public inputs
    RELEASED = 1  # paid for: noised labels, the student, its guarantee
    PRIVATE = 2  # shards, teachers, votes, and everything worked out from them

    @property
    def folder(self) -> str:
        return self.name.lower()


def fingerprint(*parts: Any) -> str:
    """Return the SHA-256 of JSON-able parts; the same parts in the same order give the same hash.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sealed(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with a seal over all of it, against slips of the hand."""
    sealed = {**content, "seal": fingerprint(content)}
    file.write_text(json.dumps(sealed, indent=1, sort_keys=True) + "\n")


def _read_sealed(file: Path, *, what: str, remedy: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        seal = content.pop("seal")
        whole = fingerprint(content) == seal
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{what} cannot be read; {remedy}") from error
    if not whole:
        raise StoreError(f"{what} was changed by hand; {remedy}")
    return content


# --- manifests ------------------------------------------------------------------------------------


def write_manifest(folder: Path, *, level: Level, **content: Any) -> dict[str, Any]:
    """Describe a folder and everything in it, in the last file to be written; return that."""
    files = {
        str(file.relative_to(folder)): {"sha256": digest_of(file), "bytes": file.stat().st_size}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    manifest = {**content, "level": level.name, "files": files}
    write_sealed(folder / MANIFEST, manifest)
    return manifest


def read_manifest(folder: Path, *, stage: str, level: Level) -> Mapping[str, Any]:
    """Return the manifest of a finished artifact, if it is whole and in its own place.

    Guarantees:
        The level is the one the artifact was made with: a PRIVATE folder that somebody copies to
        where RELEASED ones are does not become RELEASED.
    """
    what = f"the manifest of {folder}"
    manifest = _read_sealed(folder / MANIFEST, what=what, remedy="remove the folder")
    if (manifest["stage"], manifest["level"]) != (stage, level.name):
        raise StoreError(
            f"{folder} was moved there by hand: it is a {manifest['level']} artifact of "
            f"{manifest['stage']}; remove the folder"
        )
    return manifest


def verify(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check that every file is there, unchanged, and no other; hidden files do not count."""
    known = manifest["files"]
    for name, expected in known.items():
        file = folder / name
        if not file.is_file():
            raise StoreError(f"{file} is missing; remove its folder to make it again")
        if file.stat().st_size != expected["bytes"] or digest_of(file) != expected["sha256"]:
            raise StoreError(f"{file} was damaged or changed; remove its folder to make it again")
    for file in folder.rglob("*"):
        name = str(file.relative_to(folder))
        hidden = file.name.startswith(".")
        if file.is_file() and not hidden and name != MANIFEST and name not in known:
            raise StoreError(f"{file} was put there by hand; remove it")


def content_digest(manifest: Mapping[str, Any]) -> str:
    """Return a digest of what an artifact holds, whenever and from whatever it was made."""
    return fingerprint(manifest["files"], without_origin(manifest["facts"]))


# --- origins --------------------------------------------------------------------------------------


def origins_folder(root: Path, stage: str) -> Path:
    return root / Level.PRIVATE.folder / ORIGINS / stage


def without_origin(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that may be in the open."""
    return {name: fact for name, fact in facts.items() if name not in _ORIGIN_FACTS}


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
    place = _origin_file(root, stage, made_from)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = read_origin(root, stage, made_from)
    if known is not None and known["folder"] == folder:
        return
    content = {
        "stage": stage,
        "level": level.name,
        "made_from": made_from,
        "inputs": dict(inputs),
        "facts": {name: facts[name] for name in _ORIGIN_FACTS if name in facts},
        "key": key,
        "folder": folder,
    }
    with draft_folder(place.parents[1]) as working:
        write_sealed(working / place.name, content)
        sync(working / place.name)
        (working / place.name).replace(place)
    sync(place.parent)


def read_origin(root: Path, stage: str, made_from: str) -> Mapping[str, Any] | None:
    """Return the origin of the artifact of this fingerprint; None if unknown."""
    place = _origin_file(root, stage, made_from)
    if not place.is_file():
        return None
    origin = _read_origin(place)
    if (origin["made_from"], origin["stage"]) != (made_from, stage):
        raise StoreError(f"{place} does not belong to its name; remove the file")
    return origin


def all_origins(root: Path, stage: str) -> Iterator[Mapping[str, Any]]:
    """Yield the origins of all artifacts of a stage in the open, also of removed ones."""
    for place in sorted(origins_folder(root, stage).glob("[!.]*.json")):
        yield _read_origin(place)


def origin_files(root: Path, stage: str) -> Iterator[Path]:
    """Yield the files of the origins of a stage whose artifacts are still there."""
    for place in origins_folder(root, stage).glob("[!.]*.json"):
        try:
            there = folder_of(root, _read_origin(place)).is_dir()
        except StoreError:  # whoever reads it gets the error
            there = True
        if there:
            yield place


def folder_of(root: Path, origin: Mapping[str, Any]) -> Path:
    """Return the folder of the artifact with this origin."""
    level = Level[str(origin["level"])]
    return root / level.folder / str(origin["stage"]) / str(origin["folder"])


def _origin_file(root: Path, stage: str, made_from: str) -> Path:
    return origins_folder(root, stage) / f"{made_from[:ID_LENGTH]}.json"


def _read_origin(place: Path) -> Mapping[str, Any]:
    return _read_sealed(place, what=f"the origin in {place}", remedy="remove the file")
