"""Levels, fingerprints and manifests: what an artifact holds, sealed against slips of the hand.

The manifest of something PRIVATE also says what it was made from; of something in the open that is
kept apart (:mod:`pate.artifacts.origins`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from pate.errors import StoreError

MANIFEST = "manifest.json"


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


def write_sealed(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON with a seal over all of it."""
    sealed = {**content, "seal": fingerprint(content)}
    file.write_text(json.dumps(sealed, indent=1, sort_keys=True) + "\n")


def read_sealed(file: Path, *, what: str, remedy: str) -> dict[str, Any]:
    """Return what :func:`write_sealed` wrote, without its seal."""
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        seal = content.pop("seal")
        whole = fingerprint(content) == seal
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{what} cannot be read; {remedy}") from error
    if not whole:
        raise StoreError(f"{what} was changed by hand; {remedy}")
    return content


def read_manifest(folder: Path, *, stage: str, level: Level) -> Mapping[str, Any]:
    """The manifest of a finished artifact, if it is whole and stands where it was put.

    Guarantees:
        The level is the one the artifact was made with: a PRIVATE folder that somebody copies to
        where RELEASED ones are does not become RELEASED.
    """
    what = f"the manifest of {folder}"
    manifest = read_sealed(folder / MANIFEST, what=what, remedy="remove the folder")
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
