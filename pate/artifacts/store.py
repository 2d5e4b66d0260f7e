"""The store of a run: artifacts addressed by fingerprint, written whole or not at all.

    ROOT/private/STAGE/FINGERPRINT/manifest.json, files…
    ROOT/public|released/STAGE/CONTENT/manifest.json, files…

An artifact is a folder with a manifest, written last: without it nothing is there. Artifacts are
never changed or replaced; another recipe has another fingerprint and another folder. The private
folder is open to its owner only. What is in the open is named by a digest of its own content, and
found by its fingerprint through its origin (:mod:`pate.artifacts.manifest`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pate._files import DRAFT_PREFIX, draft_folder, remove_abandoned, remove_abandoned_files, sync
from pate.artifacts.manifest import (
    ID_LENGTH,
    MANIFEST,
    ORIGINS,
    Level,
    all_origins,
    content_digest,
    fingerprint,
    folder_of,
    origin_files,
    origins_folder,
    read_manifest,
    read_origin,
    verify,
    without_origin,
    write_manifest,
    write_origin,
    write_sealed,
)
from pate.errors import StoreError

_EVERYBODY = 0o077  # the mode bits of group and others


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Artifact:
    """A finished result of a stage."""

    stage: str
    level: Level
    path: Path
    manifest: Mapping[str, Any]  # with its origin, where the reader may see what is PRIVATE
    digest: str  # of what it holds, whenever and from whatever it was made
    key: str  # stands for it in the fingerprints of what is made from it

    @property
    def facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.manifest["facts"]
        return facts

    @property
    def holds_files(self) -> bool:
        return bool(self.manifest["files"])

    def array(self, name: str) -> NDArray[Any]:
        """Return an array, memory-mapped; never unpickles."""
        loaded: NDArray[Any] = np.load(self.path / name, mmap_mode="r", allow_pickle=False)
        return loaded

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draft:
    """A folder that becomes an artifact when its ``with`` block ends well."""

    path: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def save_array(self, name: str, values: NDArray[Any]) -> None:
        """Write an array; never pickles."""
        np.save(self.path / name, np.ascontiguousarray(values), allow_pickle=False)

    def save_json(self, name: str, value: Any) -> None:
        """Write JSON, with sorted keys."""
        (self.path / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")

    def new_array(self, name: str, *, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a memory-mapped array to fill, its space on disk taken at once.

        Without that a full disk would end the process with a signal at some later write.
        """
        file = self.path / name
        mapped: NDArray[Any] = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with file.open("rb+") as stream:
                os.posix_fallocate(stream.fileno(), 0, os.fstat(stream.fileno()).st_size)
        return mapped


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
        """Return the same store for a stage that may see less; a stage cannot pass for another."""
        if self.reader not in ("run", reader):
            raise StoreError(f"{self.reader} may not open the store as {reader}")
        return replace(self, reader=reader, clearance=min(clearance, self.clearance))

    def folder(self, stage: str, level: Level, made_from: str) -> Path:
        return self.root / level.folder / stage / made_from[:ID_LENGTH]

    def find(self, stage: str, made_from: str) -> Artifact | None:
        """Return the artifact of this fingerprint if it is finished; its files are not checked."""
        for level in Level:  # in the open: as versions before this one put them
            path = self.folder(stage, level, made_from)
            if (path / MANIFEST).is_file():
                artifact = self._artifact(path, stage, level)
                _check_origin(artifact, made_from)
                return artifact
        origin = read_origin(self.root, stage, made_from)
        return None if origin is None else self._in_the_open(origin)

    def open(self, stage: str, made_from: str) -> Artifact:
        """Return the artifact of this fingerprint, its files checked, if the reader may see it."""
        artifact = self.find(stage, made_from)
        if artifact is None:
            raise StoreError(f"there is no {stage} artifact for this recipe in {self.root}")
        verify(artifact.path, artifact.manifest)
        return artifact

    def all(self, stage: str) -> list[Artifact]:
        """Return every finished artifact of a stage, whatever it was made from."""
        moved = [self._in_the_open(origin) for origin in all_origins(self.root, stage)]
        known = [each for each in moved if each is not None]
        places = {each.path for each in known}
        others = [
            self._artifact(manifest.parent, stage, level)
            for level in Level
            for manifest in sorted((self.root / level.folder / stage).glob(f"*/{MANIFEST}"))
            if not manifest.parent.name.startswith(DRAFT_PREFIX) and manifest.parent not in places
        ]
        # In the open without an origin: published, and not yet recorded when it was killed.
        return known + [each for each in others if "made_from" in each.manifest]

    def earlier(self, stage: str) -> list[Path]:
        """Return files whose ``inputs`` list what finished artifacts of a stage were made from."""
        private = (self.root / Level.PRIVATE.folder / stage).glob(f"[!.]*/{MANIFEST}")
        return [*private, *origin_files(self.root, stage)]

    def fingerprints(self) -> Iterator[str]:
        """Yield the names of all that is on the private side, as they are cut for folders."""
        private = self.root / Level.PRIVATE.folder
        yield from (each.name for each in private.glob("*/[!.]*") if each.parent.name != ORIGINS)
        yield from (each.stem for each in private.glob(f"{ORIGINS}/*/*.json"))

    def discard(self, artifact: Artifact) -> None:
        """Remove an artifact, its manifest first: what is left of it counts for nothing."""
        try:
            (artifact.path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(artifact.path)
        except OSError as error:
            raise StoreError(f"cannot remove {artifact.path}: {error.strerror}") from error

    def _artifact(
        self, path: Path, stage: str, level: Level, origin: Mapping[str, Any] | None = None
    ) -> Artifact:
        if level > self.clearance:
            raise StoreError(
                f"{self.reader} may not open {stage}: it is {level.name}, beyond "
                f"{self.clearance.name}"
            )
        manifest = read_manifest(path, stage=stage, level=level)
        only_for = manifest["only_for"]
        if only_for and self.reader not in only_for:
            raise StoreError(f"{self.reader} may not open {stage}: it is for {', '.join(only_for)}")
        return _described(path, manifest, origin, all_of_it=self.clearance is Level.PRIVATE)

    def _in_the_open(self, origin: Mapping[str, Any]) -> Artifact | None:
        path = folder_of(self.root, origin)
        if not (path / MANIFEST).is_file():
            return None
        artifact = self._artifact(path, str(origin["stage"]), Level[str(origin["level"])], origin)
        if artifact.digest[:ID_LENGTH] != path.name:
            raise _other_content(path)
        return artifact

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
        """Open a folder to fill; it appears as an artifact at the end, or not at all.

        ``durable=False`` leaves out the waits for the disk, for what can be made again.
        """
        private = level is Level.PRIVATE
        parent = self.root / level.folder / stage
        try:
            self._make_parents(parent, level, durable=durable)
            with draft_folder(parent) as working:
                draft = Draft(path=working)
                yield draft
                origin = {"made_from": made_from, "inputs": dict(inputs or {})}
                manifest = write_manifest(
                    working,
                    stage=stage,
                    level=level,
                    only_for=list(only_for),
                    facts=draft.facts if private else without_origin(draft.facts),
                    **(origin if private else {}),
                )
                if durable:
                    for file in [*working.rglob("*"), working]:
                        sync(file)
                working.chmod(0o700 if private else 0o755)
                name = made_from if private else content_digest(manifest)
                if not private and self._known(stage, made_from):
                    return  # whoever came first stays
                _publish(working, parent / name[:ID_LENGTH], durable=durable)
                if not private:
                    self._write_origin(stage, level, origin, draft.facts, digest=name, key=name)
        except OSError as error:
            elsewhere = isinstance(error.filename, (str, os.PathLike))
            if elsewhere and not Path(error.filename).is_relative_to(self.root):
                raise  # about a file of the stage's, and not about this store
            # numpy reports a short write without a reason
            why = os.strerror(error.errno).lower() if error.errno else "the disk may be full"
            raise StoreError(
                f"cannot write to {self.root}: {why}; what was there before is unchanged"
            ) from error

    def add_origin(self, artifact: Artifact, made_from: str, inputs: Mapping[str, str]) -> None:
        """Make an artifact in the open known by another fingerprint, too."""
        origin = {"made_from": made_from, "inputs": inputs}
        self._write_origin(
            artifact.stage,
            artifact.level,
            origin,
            artifact.facts,
            digest=artifact.digest,
            key=artifact.key,
        )

    def _known(self, stage: str, made_from: str) -> bool:
        origin = read_origin(self.root, stage, made_from)
        return origin is not None and (folder_of(self.root, origin) / MANIFEST).is_file()

    def _write_origin(
        self,
        stage: str,
        level: Level,
        origin: Mapping[str, Any],
        facts: Mapping[str, Any],
        *,
        digest: str,
        key: str,
    ) -> None:
        """Record where an artifact in the open came from."""
        self._make_parents(origins_folder(self.root, stage).parent, Level.PRIVATE, durable=True)
        write_origin(
            self.root,
            stage=stage,
            level=level,
            made_from=str(origin["made_from"]),
            inputs=origin["inputs"],
            facts=facts,
            key=key,
            folder=digest[:ID_LENGTH],
        )

    def sweep(self) -> None:
        """Remove what killed processes left, and origins from manifests of earlier versions."""
        remove_abandoned(self.root)
        for folder in (self.root, self.root / Level.PRIVATE.folder):
            remove_abandoned_files(folder)
        done = origins_folder(self.root, "all-moved")
        open_to_all = [self.root / level.folder for level in (Level.PUBLIC, Level.RELEASED)]
        if done.exists() or not any(place.is_dir() for place in open_to_all):
            return
        with contextlib.suppress(OSError):  # where nothing can be written all stays as it is
            for level in (Level.PUBLIC, Level.RELEASED):
                for manifest in (self.root / level.folder).glob(f"*/[!.]*/{MANIFEST}"):
                    self._move_origin(manifest.parent, level)
            self._make_parents(done.parent, Level.PRIVATE, durable=True)
            done.mkdir(mode=0o700, exist_ok=True)

    def _move_origin(self, folder: Path, level: Level) -> None:
        """Take the origin out of a manifest, in such an order that a kill loses nothing."""
        stage = folder.parent.name
        try:
            manifest = dict(read_manifest(folder, stage=stage, level=level))
        except StoreError:  # whoever opens it gets the error
            return
        if "made_from" not in manifest:
            return
        digest, facts = content_digest(manifest), manifest["facts"]
        key = fingerprint(manifest["files"], facts)
        self._write_origin(stage, level, manifest, facts, digest=digest, key=key)
        final = folder.with_name(digest[:ID_LENGTH])
        if folder != final:
            if final.exists():  # the same content was there
                shutil.rmtree(folder)
                return
            folder.rename(final)
        del manifest["made_from"], manifest["inputs"]
        draft = final / f".{MANIFEST}"
        write_sealed(draft, {**manifest, "facts": without_origin(facts)})
        draft.replace(final / MANIFEST)

    def _make_parents(self, folder: Path, level: Level, *, durable: bool) -> None:
        private = level is Level.PRIVATE
        top = self.root / level.folder
        if not folder.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            for path, mode in ((top, 0o700 if private else 0o777), (folder, 0o777)):
                path.mkdir(mode=mode, exist_ok=True)
                if durable:
                    sync(path.parent)
        if private and top.stat().st_mode & _EVERYBODY:
            top.chmod(0o700)


def open_alone(path: Path, *, stage: str, level: Level, made_from: str) -> Artifact:
    """Return an artifact apart from its store, its files checked: a copy given to a worker."""
    if not (path / MANIFEST).is_file():
        raise StoreError(f"there is no {stage} artifact for this recipe in {path.parent}")
    artifact = _described(path, read_manifest(path, stage=stage, level=level))
    _check_origin(artifact, made_from)
    verify(path, artifact.manifest)
    return artifact


def _described(
    path: Path,
    manifest: Mapping[str, Any],
    origin: Mapping[str, Any] | None = None,
    *,
    all_of_it: bool = True,
) -> Artifact:
    """Return the artifact of a manifest; its origin is there for those who may see all of it."""
    level, digest = Level[str(manifest["level"])], content_digest(manifest)
    if origin is None:  # PRIVATE, or made by an earlier version
        of_content = fingerprint(manifest["files"], manifest["facts"])
        key = manifest["made_from"] if level is Level.PRIVATE else of_content
    else:
        key = origin["key"]
        if all_of_it:
            facts = {**manifest["facts"], **origin["facts"]}
            known = {name: origin[name] for name in ("made_from", "inputs")}
            manifest = {**manifest, **known, "facts": facts}
    stage = str(manifest["stage"])
    return Artifact(
        stage=stage, level=level, path=path, manifest=manifest, digest=digest, key=str(key)
    )


def _check_origin(artifact: Artifact, made_from: str) -> None:
    if artifact.manifest.get("made_from") != made_from:
        raise _other_content(artifact.path)


def _other_content(path: Path) -> StoreError:
    return StoreError(
        f"{path} was made from something else than its name indicates; remove the folder"
    )


def _publish(working: Path, final: Path, *, durable: bool) -> None:
    """Move a finished folder to its place in one step; whoever came first stays."""
    try:
        working.rename(final)
    except OSError as error:
        if not final.exists():
            raise
        if not (final / MANIFEST).is_file():
            raise StoreError(f"{final} has no manifest; remove it to make it again") from error
    if durable:
        sync(final.parent)
