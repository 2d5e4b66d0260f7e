"""Files of a release: what may lie in its folder, and checksums as ``sha256sum -c`` reads them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from pate.artifacts import digest_of
from pate.errors import InvalidInput

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+(?:/[\w.-]+)*)")

_MIB = 2**20
# Bytes of a file that is read at all; a model of another kind may have 2 GiB, as ONNX allows.
_LARGEST = {"": 10 * _MIB, ".json": 16 * _MIB, ".md": 16 * _MIB, ".html": 64 * _MIB}
_LARGEST_MODEL = 2048 * _MIB
_MOST_FILES, _DEEPEST = 1000, 8


def sizes(folder: Path) -> dict[str, int]:
    """The size of every file below a folder by its name; looks at names, and opens no file.

    Raises:
        InvalidInput: for a link, a device, a pipe, and what is larger than any release.
    """
    found: dict[str, int] = {}
    waiting = [(folder, "", 1)]
    while waiting:
        place, prefix, depth = waiting.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                name = prefix + entry.name
                state = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(state.st_mode) and depth < _DEEPEST:
                    waiting.append((Path(entry.path), f"{name}/", depth + 1))
                elif not stat.S_ISREG(state.st_mode):
                    raise InvalidInput(
                        f"{name} is no plain file and does not belong to the release"
                    )
                elif state.st_size > _LARGEST.get(Path(name).suffix, _LARGEST_MODEL):
                    raise InvalidInput(f"{name} is larger than any such file of a release")
                else:
                    found[name] = state.st_size
                if len(found) + len(waiting) > _MOST_FILES:
                    raise InvalidInput(f"{folder} holds more files than any release")
    return found


def digests(folder: Path) -> dict[str, str]:
    """The digest of every file but the list itself, by its name, in order."""
    return {name: digest_of(folder / name) for name in sorted(sizes(folder)) if name != SUMS}


def rendered(known: Mapping[str, str]) -> str:
    """The list as a file: a line for each, in order.

    >>> rendered({"a.txt": "0" * 64})[60:]
    '0000  a.txt\\n'
    """
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items()))


def read_sums(folder: Path) -> dict[str, str]:
    """The list of a release; refuses one that is not written as :func:`rendered` does."""
    if not folder.is_dir() or SUMS not in sizes(folder):
        raise InvalidInput(f"there is no release in {folder}: {SUMS} cannot be read")
    try:
        text = (folder / SUMS).read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(f"there is no release in {folder}: {SUMS} cannot be read") from None
    found = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    known = {match[2]: match[1] for match in found if match is not None}
    if rendered(known) != text or not known or any(".." in name.split("/") for name in known):
        raise InvalidInput(f"{folder / SUMS} was damaged or changed")
    return known


def digest_of_sums(folder: Path) -> str:
    """The one digest that stands for a whole release; the owner shares it out of band."""
    return digest_of(folder / SUMS)


def require_whole(folder: Path, *tops: str) -> None:
    """The files under some names are those of the list, and no others."""
    known = read_sums(folder)
    there = sizes(folder)
    for name, digest in known.items():
        if name.split("/")[0] not in tops:
            continue
        if name not in there:
            raise InvalidInput(f"{folder / name} is missing; get the release again")
        if digest_of(folder / name) != digest:
            raise InvalidInput(f"{folder / name} was damaged or changed; get the release again")
    for name in there:
        if name.split("/")[0] in tops and name not in known:
            raise InvalidInput(f"{folder / name} does not belong to the release; get it again")
