"""Manifests: what an artifact holds and what it was made from, sealed against slips of the hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pate.artifacts.fingerprint import digest_of, fingerprint
from pate.artifacts.levels import Level
from pate.errors import PateError

MANIFEST = "manifest.json"


class StoreError(PateError):
    """An artifact is missing, damaged, closed to the reader, or cannot be written."""


def write_manifest(folder: Path, *, level: Level, **content: Any) -> None:
    """Describes a folder and everything in it; the last file to be written."""
    files = {
        str(file.relative_to(folder)): {"sha256": digest_of(file), "bytes": file.stat().st_size}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    content = {**content, "level": level.name, "files": files}
    sealed = {**content, "seal": fingerprint(content)}
    (folder / MANIFEST).write_text(json.dumps(sealed, indent=1, sort_keys=True) + "\n")


def read_manifest(folder: Path, *, stage: str, level: Level) -> Mapping[str, Any]:
    """The manifest of a finished artifact, if it is whole and stands where it was put.

    Guarantees:
        The level is the one the artifact was made with: a PRIVATE folder that somebody copies to
        where RELEASED ones are does not become RELEASED.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        seal = manifest.pop("seal")
        whole = fingerprint(manifest) == seal
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"the manifest of {folder} cannot be read; remove the folder") from error
    if not whole:
        raise StoreError(f"the manifest of {folder} was changed by hand; remove the folder")
    if (manifest["stage"], manifest["level"]) != (stage, level.name):
        raise StoreError(
            f"{folder} was moved there by hand: it is a {manifest['level']} artifact of "
            f"{manifest['stage']}; remove the folder"
        )
    return manifest


def verify(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Every file is there, unchanged, and no other; hidden files of the system do not count."""
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
