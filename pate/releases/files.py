"""Files of a release: which may be in its folder, and checksums as ``sha256sum -c`` reads them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from pate.artifacts import digest_of
from pate.errors import InvalidInput

SUMS, HEADER, STATEMENT, RELEASE = "SHA256SUMS", "student.json", "guarantee.json", "release.json"
CARD, PAGE = "MODEL_CARD.md", "report.html"
STUDENT, ENCODER = "student", "encoder"
GRAPH, TENSORS = "model.onnx", "model.safetensors"
LABELS = ("asked.npy", "answered.npy", "labels.npy", "kept.npy", "kept_labels.npy")

# A class of the user's own must save files of these kinds, which are read without running code.
_SAFE = "npy|npz|json|safetensors|skops|txt|onnx|ubj"
_MAY_LEAVE = re.compile(
    "|".join(
        [
            *(re.escape(name) for name in (CARD, SUMS, STATEMENT, RELEASE, PAGE, HEADER)),
            rf"{STUDENT}/({re.escape(GRAPH)}|{re.escape(TENSORS)})",
            rf"{ENCODER}/step-\d+\.(onnx|safetensors)",
            # of a student that needs code
            rf"{STUDENT}/(teacher\.json|model\.skops|arrays\.npz|own/([\w-]+/)*[\w.-]+\.({_SAFE}))",
            rf"{ENCODER}/(encoder\.json|weights-\d+\.safetensors)",
            rf"{ENCODER}/step-\d+/([\w-]+/)*[\w.-]+\.({_SAFE})",
            rf"labels/({'|'.join(re.escape(name) for name in LABELS)})",
        ]
    )
)
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+(?:/[\w.-]+)*)")

_MIB = 2**20
# Bytes of a file that is read at all; a model of another kind may have 2 GiB, as ONNX allows.
_LARGEST = {"": 10 * _MIB, ".json": 16 * _MIB, ".md": 16 * _MIB, ".html": 64 * _MIB}
_LARGEST_MODEL = 2048 * _MIB
_MOST_FILES, _DEEPEST = 1000, 8


def may_leave(name: str) -> bool:
    """Return whether a file of this name can be part of a release at all.

    >>> may_leave("student/model.skops"), may_leave("student/model.pkl"), may_leave("votes.npy")
    (True, False, False)
    """
    return _MAY_LEAVE.fullmatch(name) is not None


def sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file below a folder by its name; no file is opened.

    Raises
    ------
    InvalidInput
        For a link, a device, a pipe, and a file that is larger than any of a release.
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
                        f"{name} is not a regular file and does not belong to the release"
                    )
                elif state.st_size > _LARGEST.get(Path(name).suffix, _LARGEST_MODEL):
                    raise InvalidInput(f"{name} is larger than any such file of a release")
                else:
                    found[name] = state.st_size
                if len(found) + len(waiting) > _MOST_FILES:
                    raise InvalidInput(f"{folder} holds more files than any release")
    return found


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file but the list itself, by its name, in order."""
    return {name: digest_of(folder / name) for name in sorted(sizes(folder)) if name != SUMS}


def render_sums(known: Mapping[str, str]) -> str:
    """Return the list of checksums as a file: a line for each, in order.

    >>> render_sums({"a.txt": "0" * 64})[60:]
    '0000  a.txt\\n'
    """
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(known.items()))


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums of a release; refuse a list that :func:`render_sums` did not write."""
    if not folder.is_dir() or SUMS not in sizes(folder):
        raise InvalidInput(f"there is no release in {folder}: {SUMS} cannot be read")
    try:
        text = (folder / SUMS).read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(f"there is no release in {folder}: {SUMS} cannot be read") from None
    found = [_LINE.fullmatch(line) for line in text.split("\n")[:-1]]
    known = {match[2]: match[1] for match in found if match is not None}
    if render_sums(known) != text or not known or any(".." in name.split("/") for name in known):
        raise InvalidInput(f"{folder / SUMS} was damaged or changed")
    return known


def digest_of_sums(folder: Path) -> str:
    """Return the one digest that stands for a whole release; the owner shares it out of band."""
    return digest_of(folder / SUMS)


def require_unchanged(folder: Path, *tops: str) -> None:
    """Raise unless the files below some names are those of the list, and no others."""
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
