"""``pate verify``: is a release whole, does its ε follow from its events, does its student work?"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pate import __version__
from pate.accounting import BestOfTries, Conversion, Event
from pate.accounting.events import tally
from pate.artifacts.fingerprint import digest_of
from pate.errors import InvalidInput
from pate.mechanisms import AggregateSpec, Plan, make_mechanism, plan_caps
from pate.partition import PartitionSpec
from pate.release.card import CARD, write_card
from pate.release.contents import LABELS, may_leave
from pate.release.figures import problems_of, read_events, wrong_with_share
from pate.release.leaks import unpublishable
from pate.release.paper import PAGE, problems_of_page
from pate.release.student import HEADER, load_student, read_header
from pate.release.sums import SUMS, digest_of_sums, read_sums

_NEEDED = (CARD, HEADER, "guarantee.json", "release.json", "student/teacher.json")
_RECORDS = 2  # zeros the student is asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found: problems, and what could not be tried."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()  # why the student was not tried, where it was not
    epsilon: float | None = None
    delta: float | None = None
    digest: str | None = None  # of the list of checksums


def verify_release(
    folder: Path, *, plugin_path: Path | None = None, trust: Collection[str] = ()
) -> Checked:
    """Checks a release wherever it is; needs neither the private data, nor a ledger, nor the run.

    Guarantees:
        Without problems: the files are those of ``SHA256SUMS``, and no others; the stated ε is what
        the recorded events come to, the price of a sanitised figure included; these events, δ and
        conversion are those of the settings in ``release.json``; the card says what the JSON files
        say; the page states the same ε and loads nothing from elsewhere.

        Whoever can change files can change all of them, and the list too: compare ``digest`` with
        one from the owner. Nothing here shows that the events are all there were: a ledger would.
    """
    if not folder.is_dir():
        raise InvalidInput(f"there is no release in {folder}")
    found = list(_guarded(SUMS, _files, folder))
    if found:  # what is damaged is not read further
        return Checked(problems=tuple(found))
    parts: tuple[tuple[str, Callable[[Path], Iterator[str]]], ...] = (
        ("guarantee.json", _figures),
        ("release.json", _list),
        ("release.json", _settings),
        ("release.json", _shares),
        ("labels", _labels),
        (CARD, _card),
        (PAGE, _page),
    )
    problems = [each for name, part in parts for each in _guarded(name, part, folder)]
    notes: list[str] = []
    if not problems:
        problems += _student(folder, plugin_path, trust, notes)
    if problems:
        return Checked(problems=tuple(dict.fromkeys(problems)), notes=tuple(notes))
    stated = _json(folder / "guarantee.json")["guarantee"]
    return Checked(
        problems=(),
        notes=tuple(notes),
        epsilon=stated["epsilon"],
        delta=stated["delta"],
        digest=digest_of_sums(folder),
    )


def _guarded(name: str, part: Callable[[Path], Iterator[str]], folder: Path) -> Iterator[str]:
    """One part's problems; whatever goes wrong in reading what a stranger wrote is one of them."""
    try:
        yield from part(folder)
    except (Exception, SystemExit) as error:
        yield f"{name} cannot be checked ({_told(error)})"


def _told(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


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
    """ε is worked out anew."""
    for problem in problems_of(_json(folder / "guarantee.json")):
        yield f"guarantee.json: {problem}"


def _list(folder: Path) -> Iterator[str]:
    """``release.json`` lists the same files, and no JSON holds what may not be published."""
    files = dict(_json(folder / "release.json")["files"])
    known = read_sums(folder)
    known.pop("release.json")
    if files != known:
        yield f"release.json lists other files than {SUMS}"
    for name in known:
        if name.endswith(".json"):
            yield from (f"{name} holds {what}" for what in unpublishable(_json(folder / name)))


def _settings(folder: Path) -> Iterator[str]:
    """The settings that are told fit the guarantee: noise, number, δ, conversion, neighbours."""
    release, statement = _json(folder / "release.json"), _json(folder / "guarantee.json")
    recipe, stated, figure = release["recipe"], statement["guarantee"], statement["sanitised"]
    partition = PartitionSpec(**recipe["partition"])
    protects = {partition.protects(named=named) for named in (True, False)}
    if stated["neighbours"] != partition.neighbours.value:
        yield "guarantee.json: its neighbours are not those of the partition in release.json"
    if statement["protects"] not in protects:
        yield "guarantee.json: it protects something else than the partition in release.json"
    if statement["data_set"]["name"] != recipe["data"]["name"]:
        yield "guarantee.json: its data set is not that of release.json"
    # What a ledger says holds at the ledger's own δ, which its terms are checked for.
    planned = [("guarantee", stated)] if statement["counted"] == "plan" else []
    for name, part in [*planned, *([] if figure is None else [("sanitised", figure)])]:
        for key in ("delta", "conversion"):
            if part[key] != recipe["privacy"][key]:
                yield f"guarantee.json: the {key} of its {name} is not that of release.json"
    yield from _winner(release)
    events, plan = tally(read_events(statement["labels"])), tally(_charged(release))
    if set(events) != set(plan):
        yield "guarantee.json: its events are not those of the mechanism in release.json"
    elif events != plan:
        yield "guarantee.json: it counts other events than the settings in release.json ask for"


def _charged(release: Any) -> tuple[Event, ...]:
    """What the settings must have been charged for: their plan, or the choice they were part of."""
    chosen = release["recipe"].get("selection")
    if chosen is None:
        return _plan(release).events
    plans = [_plan(release, asked=each).events for each in chosen["candidates"]]
    event = BestOfTries(
        candidates=tuple(plans), mean_tries=chosen["mean_tries"], shape=chosen["shape"]
    )
    return (event,)


def _winner(release: Any) -> Iterator[str]:
    """The settings of the student are among the candidates, where they were chosen privately."""
    recipe = release["recipe"]
    if recipe.get("selection") is None:
        return
    own = {
        "teachers": recipe["teachers"]["count"],
        "aggregate": recipe["aggregate"],
        "epsilon": recipe["privacy"].get("epsilon"),
    }
    if own not in recipe["selection"]["candidates"]:
        yield "release.json: its settings are not among the candidates they were chosen from"


def _shares(folder: Path) -> Iterator[str]:
    """Shares of records have the interval that follows from them."""
    for name, share in _json(folder / "release.json")["evaluation"].items():
        wrong = None if share is None else wrong_with_share(share)
        if wrong is not None:
            yield f"release.json: evaluation of the {name}: {wrong}"


def _plan(release: Any, *, asked: Any = None) -> Plan:
    """The most that the settings (or those of a candidate) let anybody ask; all of it is public."""
    privacy = release["recipe"]["privacy"]
    if asked is None:
        asked = {"aggregate": release["recipe"]["aggregate"], "epsilon": privacy.get("epsilon")}
    spec = AggregateSpec(**asked["aggregate"])
    return plan_caps(
        make_mechanism(spec),
        spec,
        epsilon=asked["epsilon"],
        delta=privacy["delta"],
        available_queries=release["public_inputs"],
        conversion=Conversion(privacy["conversion"]),
    )


def _labels(folder: Path) -> Iterator[str]:
    """No more labels than were paid for, each of an input of its own."""
    release = _json(folder / "release.json")
    there = (folder / "labels").is_dir()
    if release["labels"] is not there:
        yield "release.json does not say whether there are labels"
    if not there:
        return
    plan, inputs = _plan(release), release["public_inputs"]
    classes = len(read_header(folder)["class_names"])
    arrays = {name: _array(folder / "labels" / name) for name in LABELS}
    most = {"asked.npy": plan.queries, "answered.npy": plan.answers, "kept.npy": plan.queries}
    for name, count in most.items():
        rows = arrays[name]
        if len(rows) > count:
            yield f"labels/{name} holds {len(rows)} rows, and {count} were paid for"
        elif len(np.unique(rows)) != len(rows) or not _within(rows, inputs):
            yield f"labels/{name} does not hold rows of the public inputs, each once"
    for name, rows in (("labels.npy", "answered.npy"), ("kept_labels.npy", "kept.npy")):
        if len(arrays[name]) != len(arrays[rows]) or not _within(arrays[name], classes):
            yield f"labels/{name} does not hold a class for each row of labels/{rows}"


def _array(file: Path) -> Any:
    """A row of whole numbers; mapped: a file cannot ask for memory that it does not fill."""
    values = np.load(file, mmap_mode="r", allow_pickle=False)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InvalidInput(f"{file.name} is no row of whole numbers")
    return values


def _within(values: Any, end: int) -> bool:
    return not len(values) or bool(values.min() >= 0 and values.max() < end)


def _card(folder: Path) -> Iterator[str]:
    """The card is written again from the JSON files, and must be the same."""
    release = _json(folder / "release.json")
    own = write_card(_json(folder / "guarantee.json"), read_header(folder), release)
    if own.encode() != (folder / CARD).read_bytes():
        yield f"{CARD} says something else than the JSON files{_version(release)}"


def _page(folder: Path) -> Iterator[str]:
    """The page loads nothing, and states the same ε."""
    if not (folder / PAGE).exists():
        return
    epsilon = float(_json(folder / "guarantee.json")["guarantee"]["epsilon"])
    version = _version(_json(folder / "release.json"))
    for problem in problems_of_page((folder / PAGE).read_text(encoding="utf-8"), epsilon):
        yield f"{PAGE} {problem}{version}"


def _version(release: Any) -> str:
    """A hint, where the words may differ because another version wrote them."""
    made = str(release["versions"]["pate"])[:40]
    if made == __version__:
        return ""
    return f" (made by pate {made}; this is {__version__}: check it with that version)"


def _student(
    folder: Path, plugin_path: Path | None, trust: Collection[str], notes: list[str]
) -> Iterator[str]:
    """The student loads, and answers for records of zeros."""
    try:
        header = read_header(folder)
        if header.get("plugins") and plugin_path is None:
            names = " and ".join(header["plugins"])
            notes.append(f"it needs the code of {names}; give --plugin-path")
            return
        untrusted = sorted(set(header.get("trust", ())) - set(trust))
        if untrusted:
            names = " ".join(f"--trust {name}" for name in untrusted)
            notes.append(f"it imports other packages; give {names}")
            return
        student = load_student(folder, plugin_path, trust=trust)
        zeros = np.zeros((_RECORDS, *student.shape), dtype=student.dtype)
        student.predict(zeros)
    except InvalidInput as error:
        yield f"student: {error}"
    except (Exception, SystemExit) as error:
        yield f"student: it does not work ({_told(error)})"


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
