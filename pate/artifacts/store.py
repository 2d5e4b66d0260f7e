"""The store of a run: artifacts addressed by fingerprint, written whole or not at all.

    ROOT/public|released|private/STAGE/FINGERPRINT/manifest.json, files…

An artifact is a folder with a manifest, written last: without it nothing is there. Artifacts are
never changed or replaced; another recipe has another fingerprint and another folder. The private
folder is open to its owner only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.artifacts.drafts import Draft, drafting, is_draft, sweep
from pate.artifacts.fingerprint import fingerprint
from pate.artifacts.levels import Level
from pate.artifacts.manifest import MANIFEST, StoreError, read_manifest, verify, write_manifest

_ID_LENGTH = 20
_EVERYBODY = 0o077  # the mode bits of group and others


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Artifact:
    """A finished result of a stage."""

    stage: str
    level: Level
    path: Path
    manifest: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """What it holds, whenever and from whatever it was made."""
        return fingerprint(self.manifest["files"], self.manifest["facts"])

    @property
    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.manifest["facts"]
        return facts

    def array(self, name: str) -> NDArray[Any]:
        """An array, memory-mapped; never unpickles."""
        loaded: NDArray[Any] = np.load(self.path / name, mmap_mode="r", allow_pickle=False)
        return loaded

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Artifacts of one run, as one stage may see them.

    Guarantees:
        * What is above the reader's clearance, or reserved for other stages (the labels of public
          inputs are for ``evaluate`` alone), is refused; also to one who only asks if it is there.
        * A file that differs from its manifest, or a manifest from its seal, is named and refused.
        * PRIVATE artifacts live under a folder of mode 0700.
    """

    root: Path
    reader: str = "run"
    clearance: Level = Level.PRIVATE

    def cleared(self, reader: str, clearance: Level) -> Store:
        """The same store for a stage that may see less; a stage cannot pass for another one."""
        if self.reader not in ("run", reader):
            raise StoreError(f"{self.reader} may not open the store as {reader}")
        return replace(self, reader=reader, clearance=min(clearance, self.clearance))

    def folder(self, stage: str, level: Level, made_from: str) -> Path:
        return self.root / level.folder / stage / made_from[:_ID_LENGTH]

    def find(self, stage: str, made_from: str) -> Artifact | None:
        """The artifact of this fingerprint if it is finished; its files are not checked."""
        for level in Level:
            path = self.folder(stage, level, made_from)
            if (path / MANIFEST).is_file():
                artifact = self._artifact(path, stage, level)
                _check_origin(artifact, made_from)
                return artifact
        return None

    def all(self, stage: str) -> list[Artifact]:
        """Every finished artifact of a stage, whatever it was made from."""
        return [
            self._artifact(manifest.parent, stage, level)
            for level in Level
            for manifest in sorted((self.root / level.folder / stage).glob(f"*/{MANIFEST}"))
            if not is_draft(manifest.parent)
        ]

    def open(self, stage: str, made_from: str, *, check: bool = True) -> Artifact:
        """The artifact of this fingerprint, its files checked, if the reader may see it."""
        artifact = self.find(stage, made_from)
        if artifact is None:
            raise StoreError(f"there is no {stage} artifact for this recipe in {self.root}")
        if check:
            verify(artifact.path, artifact.manifest)
        return artifact

    def discard(self, artifact: Artifact) -> None:
        """Drops an artifact, its manifest first: what is left of it counts for nothing."""
        try:
            (artifact.path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(artifact.path)
        except OSError as error:
            raise StoreError(f"cannot remove {artifact.path}: {error.strerror}") from error

    def _artifact(self, path: Path, stage: str, level: Level) -> Artifact:
        if level > self.clearance:
            raise StoreError(
                f"{self.reader} may not open {stage}: it is {level.name}, beyond "
                f"{self.clearance.name}"
            )
        manifest = read_manifest(path, stage=stage, level=level)
        only_for = manifest["only_for"]
        if only_for and self.reader not in only_for:
            raise StoreError(f"{self.reader} may not open {stage}: it is for {', '.join(only_for)}")
        return Artifact(stage=stage, level=level, path=path, manifest=manifest)

    @contextlib.contextmanager
    def draft(
        self,
        stage: str,
        made_from: str,
        *,
        level: Level,
        inputs: Mapping[str, str] | None = None,
        only_for: tuple[str, ...] = (),
        durable: bool = True,
    ) -> Iterator[Draft]:
        """A folder to fill; it appears as an artifact at the end, or not at all.

        ``durable=False`` leaves out the waits for the disk, for what can be made again.
        """
        final = self.folder(stage, level, made_from)
        try:
            self._make_parents(final.parent, level, durable=durable)
            with drafting(final.parent) as working:
                draft = Draft(path=working)
                yield draft
                write_manifest(
                    working,
                    stage=stage,
                    made_from=made_from,
                    level=level,
                    inputs=dict(inputs or {}),
                    only_for=list(only_for),
                    facts=draft.facts,
                )
                if durable:
                    _sync_all(working)
                working.chmod(0o700 if level is Level.PRIVATE else 0o755)
                _publish(working, final, durable=durable)
        except OSError as error:
            if not self._concerns(error):
                raise
            raise _cannot_write(self.root, error) from error

    def sweep(self) -> None:
        """Removes what killed processes left half-written."""
        sweep(self.root)

    def _make_parents(self, folder: Path, level: Level, *, durable: bool) -> None:
        private = level is Level.PRIVATE
        top = self.root / level.folder
        if not folder.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            for path, mode in ((top, 0o700 if private else 0o777), (folder, 0o777)):
                path.mkdir(mode=mode, exist_ok=True)
                if durable:
                    _sync(path.parent)
        if private and top.stat().st_mode & _EVERYBODY:
            top.chmod(0o700)

    def _concerns(self, error: OSError) -> bool:
        """Whether an error is about this store, and not about a file elsewhere."""
        name = error.filename
        return not isinstance(name, (str, os.PathLike)) or Path(name).is_relative_to(self.root)


def open_alone(path: Path, *, stage: str, level: Level, made_from: str) -> Artifact:
    """An artifact apart from its store, its files checked: a copy that a worker was given."""
    if not (path / MANIFEST).is_file():
        raise StoreError(f"there is no {stage} artifact for this recipe in {path.parent}")
    manifest = read_manifest(path, stage=stage, level=level)
    artifact = Artifact(stage=stage, level=level, path=path, manifest=manifest)
    _check_origin(artifact, made_from)
    verify(path, manifest)
    return artifact


def _check_origin(artifact: Artifact, made_from: str) -> None:
    if artifact.manifest["made_from"] != made_from:
        raise StoreError(
            f"{artifact.path} was made from something else than its name says; remove the folder"
        )


def _publish(working: Path, final: Path, *, durable: bool) -> None:
    """Moves a finished folder to its place in one step; whoever came first stays."""
    try:
        working.rename(final)
    except OSError as error:
        if not final.exists():
            raise
        if not (final / MANIFEST).is_file():
            raise StoreError(f"{final} has no manifest; remove it to make it again") from error
    if durable:
        _sync(final.parent)


def _cannot_write(root: Path, error: OSError) -> StoreError:
    # numpy reports a short write without saying why
    why = os.strerror(error.errno).lower() if error.errno else "not all was written: is it full?"
    return StoreError(f"cannot write to {root}: {why}; what was there before is unchanged")


def _sync_all(folder: Path) -> None:
    for file in folder.rglob("*"):
        _sync(file)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
