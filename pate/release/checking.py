"""``pate verify``: is a release whole, does its ε follow from its events, does its student work?"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pate import __version__
from pate.accounting import Event, ReleasePlan, event_from_json
from pate.accounting.events import tally
from pate.artifacts import digest_of
from pate.errors import InvalidInput
from pate.release.card import CARD, write_card
from pate.release.contents import LABELS, may_leave, recipe_of, wrong_with_evaluation
from pate.release.figures import problems_of, read_events
from pate.release.leaks import unpublishable
from pate.release.page import PAGE, write_page
from pate.release.schema import (
    HEADER,
    CodeModel,
    problems_of_values,
    read_header,
    read_json,
)
from pate.release.sums import SUMS, digest_of_sums, read_sums, sizes
from pate.release.trial import problem_of
from pate.stages.selection import candidates_of, event_of

_NEEDED = (CARD, HEADER, "guarantee.json", "release.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found: problems, and what could not be checked."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()  # a sentence for each part that was not checked
    epsilon: float | None = None
    delta: float | None = None
    digest: str | None = None  # of the list of checksums


@dataclass(frozen=True, slots=True, kw_only=True)
class _Release:
    """The JSON files, read once."""

    folder: Path
    statement: Any
    release: Any
    header: Any

    @property
    def first_format(self) -> bool:
        return isinstance(self.release, dict) and self.release.get("format") == 1


def verify_release(
    folder: Path, *, plugin_path: Path | None = None, trust: bool = False
) -> Checked:
    """Checks a release wherever it is; needs neither the private data, nor a ledger, nor the run.

    Guarantees:
        Without problems: the files are those of ``SHA256SUMS``, and no others; the stated ε is what
        the recorded events come to; these events, δ and conversion are those of the settings in
        ``release.json``; the card and the page are, byte for byte, what the JSON files say.

        Without ``trust`` nothing that the release names is run, imported, downloaded or opened, and
        its student is tried in a process of its own, within limits of memory and time.

        Whoever can change files can change all of them, and the list too: compare ``digest`` with
        one from the owner. Nothing here shows that the events are all there were: a ledger would.
    """
    if not folder.is_dir():
        raise InvalidInput(f"there is no release in {folder}")
    found = list(_guarded(SUMS, _files, folder))
    if found:  # what is damaged is not read further
        return Checked(problems=tuple(found))
    try:
        given = _Release(
            folder=folder,
            statement=read_json(folder / "guarantee.json"),
            release=read_json(folder / "release.json"),
            header=read_json(folder / HEADER),
        )
    except InvalidInput as error:
        return Checked(problems=(str(error),))
    problems = list(_guarded("release.json", _values, given))
    notes: list[str] = []
    if problems:
        return Checked(problems=tuple(dict.fromkeys(problems)))
    parts: list[tuple[str, Callable[[_Release], Iterator[str]]]] = [
        ("guarantee.json", _figures),
        ("release.json", _list),
    ]
    if given.first_format:
        notes.append("its settings, card and labels were not checked: it is of format 1")
    else:
        parts += [
            ("release.json", _settings),
            ("release.json", _evaluation),
            ("labels", _labels),
            (CARD, _card),
            (PAGE, lambda given: _page(given, notes)),
        ]
    problems = [each for name, part in parts for each in _guarded(name, part, given)]
    if not problems:
        problems = list(_student(given, plugin_path, notes, trust=trust))
    if problems:
        return Checked(problems=tuple(dict.fromkeys(problems)), notes=tuple(notes))
    stated = given.statement["guarantee"]
    return Checked(
        problems=(),
        notes=tuple(notes),
        epsilon=stated["epsilon"],
        delta=stated["delta"],
        digest=digest_of_sums(folder),
    )


def _guarded(name: str, part: Callable[[Any], Iterator[str]], given: Any) -> Iterator[str]:
    """One part's problems; whatever goes wrong in reading what a stranger wrote is one of them."""
    try:
        yield from part(given)
    except InvalidInput as error:
        yield f"{name}: {error}"
    except (Exception, SystemExit) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        yield f"{name} cannot be checked ({text})"


def _files(folder: Path) -> Iterator[str]:
    """Every file is there, unchanged, of a kind that may leave; and nothing else is."""
    try:
        there = sizes(folder)
        known = read_sums(folder)
    except InvalidInput as error:
        yield str(error)
        return
    for name in _NEEDED:
        if name not in known:
            yield f"{name} is missing"
    for name, digest in known.items():
        if not may_leave(name):
            yield f"{name} is not of a kind that belongs to a release"
        elif name not in there:
            yield f"{name} is missing"
        elif digest_of(folder / name) != digest:
            yield f"{name} was damaged or changed"
    homes = {parent.as_posix() for name in known for parent in Path(name).parents}
    places = (each for each in folder.rglob("*") if each.is_dir())
    folders = {place.relative_to(folder).as_posix() for place in places}
    for name in sorted((there.keys() - known.keys() - {SUMS}) | (folders - homes)):
        yield f"{name} does not belong to the release"


def _values(given: _Release) -> Iterator[str]:
    """Every value in the JSON files is of its kind, and in its range."""
    read_header(given.folder)
    yield from problems_of_values("guarantee.json", given.statement)
    if not given.first_format:
        yield from problems_of_values("release.json", given.release)
    if given.header["format"] != given.release["format"]:  # the older one is checked for less
        yield f"{HEADER} is of another format than release.json"
    for name, value in (
        ("guarantee.json", given.statement),
        ("release.json", given.release),
        (HEADER, given.header),
    ):
        yield from (f"{name} holds {what}" for what in unpublishable(value))


def _figures(given: _Release) -> Iterator[str]:
    """ε is worked out anew."""
    for problem in problems_of(given.statement):
        yield f"guarantee.json: {problem}"


def _list(given: _Release) -> Iterator[str]:
    """``release.json`` lists the same files."""
    known = read_sums(given.folder)
    known.pop("release.json")
    if given.release["files"] != known:
        yield f"release.json lists other files than {SUMS}"


def _settings(given: _Release) -> Iterator[str]:
    """The settings that are told fit the guarantee: noise, number, δ, conversion, neighbours."""
    statement, recipe = given.statement, recipe_of(given.release)
    stated, figure, partition = statement["guarantee"], statement["sanitised"], recipe.partition
    protects = {partition.protects(named=named) for named in (True, False)}
    if stated["neighbours"] != partition.neighbours.value:
        yield "guarantee.json: its neighbours are not those of the partition in release.json"
    if statement["protects"] not in protects:
        yield "guarantee.json: it protects something else than the partition in release.json"
    if statement["data_set"]["name"] != recipe.data.name:
        yield "guarantee.json: its data set is not that of release.json"
    # What a ledger says holds at the ledger's own δ, which its terms are checked for.
    planned = [("guarantee", stated)] if statement["counted"] == "plan" else []
    for name, part in [*planned, *([] if figure is None else [("sanitised", figure)])]:
        for key in ("delta", "conversion"):
            if part[key] != getattr(recipe.privacy, key):
                yield f"guarantee.json: the {key} of its {name} is not that of release.json"
    if figure is not None:
        doubt = recipe.privacy.doubt
        plan = ReleasePlan.default(order=figure["moment"] + 1, doubt=doubt)
        if event_from_json(figure["event"]) != plan.event or figure["confidence"] != 1 - doubt:
            yield "guarantee.json: its sanitised figure is not the one that release.json plans"
    events, charged = tally(read_events(statement["labels"])), tally(_charged(given))
    if set(events) != set(charged):
        yield "guarantee.json: its events are not those of the mechanism in release.json"
    elif events != charged:
        yield "guarantee.json: it counts other events than the settings in release.json ask for"


def _charged(given: _Release) -> tuple[Event, ...]:
    """What the settings must have been charged for: their plan, or the choice they were part of."""
    recipe, inputs = recipe_of(given.release), given.release["public_inputs"]
    if recipe.selection is None:
        return recipe.plan(inputs=inputs).events
    return (event_of(candidates_of(recipe), recipe.selection, inputs=inputs),)


def _evaluation(given: _Release) -> Iterator[str]:
    """Shares of records follow from their counts, and go with the classes and the plan."""
    release, classes = given.release, len(given.header["class_names"])
    wrong = wrong_with_evaluation(release["evaluation"], classes=classes)
    if wrong is not None:
        yield f"release.json: evaluation of the {wrong}"
    answers = release["answers"]
    plan = recipe_of(release).plan(inputs=release["public_inputs"])
    asked, answered, kept = (answers[key] for key in ("asked", "answered", "kept"))
    if len(answers["by_class"]) != classes or sum(answers["by_class"]) != answered:
        yield "release.json: its labels by class are not as many as were answered"
    if asked > plan.queries or answered > plan.answers or answered + kept > asked:
        yield "release.json: it tells of more answers than were paid for"


def _labels(given: _Release) -> Iterator[str]:
    """No more labels than were paid for, each of an input of its own."""
    folder, release = given.folder, given.release
    there = (folder / "labels").is_dir()
    if release["labels"] is not there:
        yield "release.json does not say whether there are labels"
    if not there:
        return
    plan = recipe_of(release).plan(inputs=release["public_inputs"])
    inputs, classes = release["public_inputs"], len(given.header["class_names"])
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


def _card(given: _Release) -> Iterator[str]:
    """The card is written again from the JSON files, and must be the same."""
    own = write_card(given.statement, given.header, given.release)
    if own.encode() != (given.folder / CARD).read_bytes():
        others = _other_versions(given.release, "pate")
        yield f"{CARD} says something else than the JSON files{others and f' ({others})'}"


def _page(given: _Release, notes: list[str]) -> Iterator[str]:
    """So is the page; where it was drawn by other versions its bytes may differ."""
    if not (given.folder / PAGE).exists():
        return
    own = write_page(given.statement, given.header, given.release)
    if own.encode() == (given.folder / PAGE).read_bytes():
        return
    others = _other_versions(given.release, "pate", "matplotlib")
    if others:
        notes.append(f"{PAGE} was not compared with the JSON files: {others}")
    else:
        yield f"{PAGE} says something else than the JSON files"


def _other_versions(release: Any, *names: str) -> str:
    """Which version wrote the texts, where this one may write them otherwise."""
    for name in names:
        made = str(release["versions"].get(name))[:40]
        here = __version__ if name == "pate" else importlib.metadata.version(name)
        if made != here:
            return f"made by {name} {made}; this is {here}: check it with that version"
    return ""


def _student(
    given: _Release, plugin_path: Path | None, notes: list[str], *, trust: bool
) -> Iterator[str]:
    """The student loads and answers, in a process of its own."""
    model = read_header(given.folder).model
    code = isinstance(model, CodeModel)
    if isinstance(model, CodeModel) and not trust:
        notes.append(
            f"the student was not tried: it needs code of its own ({', '.join(model.needs)}); "
            "--trust imports and runs that code"
        )
        return
    problem = problem_of(given.folder, plugin_path=plugin_path, trust=code)
    if problem is not None:
        yield f"student: it does not work ({problem})"
