"""Checksums of a release, as ``sha256sum -c`` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pate.artifacts.fingerprint import digest_of
from pate.errors import InvalidInput

SUMS = "SHA256SUMS"
_MOST = 10_000_000  # bytes of a list that is read at all
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+(?:/[\w.-]+)*)")


def digests(folder: Path) -> dict[str, str]:
    """The digest of every file but the list itself, by its name, in order."""
    return {
        name: digest_of(folder / name)
        for name in sorted(
            file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
        )
        if name != SUMS
    }


def rendered(known: Mapping[str, str]) -> str:
    """The list as a file: a line for each, in order.

    >>> rendered({"a.txt": "0" * 64})[60:]
    '0000  a.txt\\n'
    """
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items()))


def read_sums(folder: Path) -> dict[str, str]:
    """What the list says; refuses one that is not written as :func:`rendered` does."""
    file = folder / SUMS
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise InvalidInput(f"{file} is no file of its own; get the release again")
    try:
        if file.stat().st_size > _MOST:
            raise InvalidInput(f"{file} is longer than any list of a release; get it again")
        text = file.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(f"there is no release in {folder}: {SUMS} cannot be read") from None
    found = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    known = {match[2]: match[1] for match in found if match is not None}
    if rendered(known) != text or not known or any(".." in name.split("/") for name in known):
        raise InvalidInput(f"{folder / SUMS} was damaged or changed")
    return known


def digest_of_sums(folder: Path) -> str:
    """The one digest that stands for a whole release: the owner gives it by another way."""
    return digest_of(folder / SUMS)


def require_whole(folder: Path, *tops: str) -> None:
    """The files under some names are those of the list, and no others."""
    known = read_sums(folder)
    mine = {name: digest for name, digest in known.items() if name.split("/")[0] in tops}
    for name, digest in mine.items():
        file = folder / name
        if not file.is_file():
            raise InvalidInput(f"{file} is missing; get the release again")
        if digest_of(file) != digest:
            raise InvalidInput(f"{file} was damaged or changed; get the release again")
    for top in tops:
        inside = folder / top
        for file in [inside, *inside.rglob("*")]:
            name = file.relative_to(folder).as_posix()
            if file.is_symlink() or (file.is_file() and name not in mine):
                raise InvalidInput(f"{file} does not belong to the release; get it again")
