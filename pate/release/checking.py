"""``pate verify``: is a release whole, does its ε follow from its events, does its student work?"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pate.accounting.events import tally
from pate.artifacts.fingerprint import digest_of
from pate.errors import InvalidInput, PateError
from pate.mechanisms import AggregateSpec, make_mechanism
from pate.partition import PartitionSpec
from pate.release.card import CARD, expected_figures, figures_in
from pate.release.contents import may_leave
from pate.release.figures import problems_of, read_events
from pate.release.leaks import unpublishable
from pate.release.student import HEADER, load_student, read_header
from pate.release.sums import SUMS, read_sums

_NEEDED = (CARD, HEADER, "guarantee.json", "release.json", "student/teacher.json")
_RECORDS = 2  # zeros the student is asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found: problems, and what could not be tried."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    epsilon: float | None = None
    delta: float | None = None


def verify_release(
    folder: Path, *, plugin_path: Path | None = None, trust: Collection[str] = ()
) -> Checked:
    """Checks a release wherever it is; needs neither the private data, nor a ledger, nor the run.

    Guarantees:
        Without problems: no file was added, lost or changed since the release was made; the stated
        ε, here, in ``guarantee.json`` and on the card, is what the recorded events come to, the
        price of a sanitised figure included. It does not show that the events are all there were,
        nor who made the release: a ledger and a signature would.
    """
    if not folder.is_dir():
        raise InvalidInput(f"there is no release in {folder}")
    found = list(_files(folder))
    if found:  # what is damaged is not read further
        return Checked(problems=tuple(found))
    problems = [*_figures(folder), *_list(folder), *_settings(folder)]
    notes: list[str] = []
    if not problems:
        problems += _student(folder, plugin_path, trust, notes)
    if problems:
        return Checked(problems=tuple(problems), notes=tuple(notes))
    stated = _json(folder / "guarantee.json")["guarantee"]
    return Checked(
        problems=(), notes=tuple(notes), epsilon=stated["epsilon"], delta=stated["delta"]
    )


def _files(folder: Path) -> Iterator[str]:
    """Every file is there, unchanged, of a kind that may leave; and nothing else is."""
    try:
        known = read_sums(folder)
    except InvalidInput as error:
        yield str(error)
        return
    for name in _NEEDED:
        if name not in known:
            yield f"{name} is missing"
    for name, digest in known.items():
        file = folder / name
        if not may_leave(name):
            yield f"{name} is not of a kind that belongs to a release"
        elif not file.is_file():
            yield f"{name} is missing"
        elif digest_of(file) != digest:
            yield f"{name} was damaged or changed"
    homes = {parent.as_posix() for name in known for parent in Path(name).parents}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        expected = homes if file.is_dir() else {*known, SUMS}
        if file.is_symlink() or name not in expected:
            yield f"{name} does not belong to the release"


def _figures(folder: Path) -> Iterator[str]:
    """ε is worked out anew; the card says the same."""
    try:
        statement = _json(folder / "guarantee.json")
        expected = expected_figures(statement)
        stated = figures_in((folder / CARD).read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        yield f"guarantee.json cannot be read ({type(error).__name__})"
        return
    for problem in problems_of(statement):
        yield f"guarantee.json: {problem}"
    if stated != expected:
        yield (
            f"{CARD} states ε = {', '.join(stated)[:80] or 'nothing'}, and guarantee.json comes to "
            f"{', '.join(expected)}"
        )


def _list(folder: Path) -> Iterator[str]:
    """``release.json`` lists the same files, and no JSON holds what may not be published."""
    try:
        files = dict(_json(folder / "release.json")["files"])
        known = read_sums(folder)
        known.pop("release.json")
        if files != known:
            yield f"release.json lists other files than {SUMS}"
        for name in known:
            if name.endswith(".json"):
                yield from (f"{name} holds {what}" for what in unpublishable(_json(folder / name)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        yield f"release.json cannot be read ({type(error).__name__})"


def _settings(folder: Path) -> Iterator[str]:
    """The settings that are told fit the guarantee: same noise, same neighbours."""
    try:
        recipe = _json(folder / "release.json")["recipe"]
        statement = _json(folder / "guarantee.json")
        partition = PartitionSpec(**recipe["partition"])
        protects = {partition.protects(named=named) for named in (True, False)}
        if statement["guarantee"]["neighbours"] != partition.neighbours.value:
            yield "guarantee.json: its neighbours are not those of the partition in release.json"
        if statement["protects"] not in protects:
            yield "guarantee.json: it protects something else than the partition in release.json"
        mechanism = make_mechanism(AggregateSpec(**recipe["aggregate"]))
        own = set(tally(mechanism.caps(queries=1, answers=1)))
        if set(tally(read_events(statement["labels"]))) != own:
            yield "guarantee.json: its events are not those of the mechanism in release.json"
    except (ValueError, KeyError, TypeError, AttributeError, PateError) as error:
        yield f"release.json cannot be read ({type(error).__name__})"


def _student(
    folder: Path, plugin_path: Path | None, trust: Collection[str], notes: list[str]
) -> Iterator[str]:
    """The student loads, and answers for records of zeros."""
    try:
        header = read_header(folder)
        if header.get("plugins") and plugin_path is None:
            names = " and ".join(header["plugins"])
            notes.append(
                f"the student was not tried: it needs the code of {names}; give --plugin-path"
            )
            return
        untrusted = sorted(set(header.get("trust", ())) - set(trust))
        if untrusted:
            names = " ".join(f"--trust {name}" for name in untrusted)
            notes.append(f"the student was not tried: it imports other packages; give {names}")
            return
        student = load_student(folder, plugin_path, trust=trust)
        zeros = np.zeros((_RECORDS, *student.shape), dtype=student.dtype)
        student.predict(zeros)
    except (PateError, AttributeError, TypeError, ValueError, MemoryError) as error:
        yield f"student: {error}"


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
