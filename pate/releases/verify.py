"""The check of a release: its files, its ε from the events in it, its texts, and its student.

``pate verify`` needs neither the private data, nor a ledger, nor the run.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pate import __version__
from pate._format import restate_protected
from pate.accounting import Accountant, Analysis, ReleasePlan, event_from_json
from pate.accounting.events import tally
from pate.artifacts import digest_of
from pate.dpsgd_runs import plan_of
from pate.errors import InvalidInput
from pate.mechanisms import Plan
from pate.metrics import wilson
from pate.pipeline.recipe import Recipe
from pate.releases.conventions import digest_of_content, written_files
from pate.releases.documents import (
    caps_analysis,
    caps_of,
    recipe_of,
    render_release_page,
    training_recipe_of,
)
from pate.releases.files import (
    CARD,
    CONFIG,
    CROISSANT,
    DEPLOYMENT,
    ENCODER,
    GRAPH,
    HEADER,
    HUB,
    HUB_CARD,
    LABELS,
    LABELS_CSV,
    PAGE,
    RELEASE,
    STATEMENT,
    STUDENT,
    SUMS,
    TABLE,
    TENSORS,
    CodeModel,
    file_problems,
    is_hub,
    is_training,
    read_header,
    read_json,
    read_sums,
    unpublishable,
    value_problems,
)
from pate.releases.guarantee import (
    accountant_of,
    agrees,
    analysis_of,
    read_events,
    statement_problems,
)
from pate.releases.student import step_files, trial_problem
from pate.teachers.persist import files_of_format

_OF_LABELS = (LABELS_CSV, CROISSANT)
_NEEDED = (HEADER, STATEMENT, RELEASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of a check.

    Attributes
    ----------
    problems
        A sentence for each fault; none if the release holds.
    notes
        A sentence for each part that could not be checked.
    epsilon, delta
        The guarantee that the events come to; None if there are problems.
    digest
        The SHA-256 of the list of checksums, to be compared with the owner's.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    digest: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything was checked and no problem was found."""
        return not self.problems and not self.notes


class _Given:
    """A release that was given: its JSON files, read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statement, self.release, self.header = (
            read_json(folder / name) for name in (STATEMENT, RELEASE, HEADER)
        )

    @property
    def first_format(self) -> bool:
        return isinstance(self.release, dict) and self.release.get("format") == 1

    @property
    def training(self) -> bool:
        """Whether it is a model trained by DP-SGD."""
        return is_training(self.release)

    @cached_property
    def recipe(self) -> Recipe:
        return recipe_of(self.release)

    @cached_property
    def caps_analysis(self) -> Analysis | None:
        events = read_events(self.statement["labels"])
        return caps_analysis(self.recipe, events, inputs=self.release["public_inputs"])

    @cached_property
    def plan(self) -> Plan:
        return self.recipe.plan(inputs=self.release["public_inputs"], analysis=self.caps_analysis)

    @property
    def classes(self) -> int:
        return len(self.header["class_names"])


def verify(
    folder: str | Path, *, plugin_path: Path | None = None, trust: bool = False
) -> Verification:
    """Check a release; needs neither the private data, nor a ledger, nor the run.

    Parameters
    ----------
    folder
        The folder of the release.
    plugin_path
        A folder with the code of a student of the user's own class; used with ``trust`` only.
    trust
        Try a student that needs code: imports and runs what the release names. Only for code you
        know and a release from somebody you trust.

    Returns
    -------
    Verification
        Problems, parts that were not checked, the guarantee, and the digest of the release.

    Raises
    ------
    InvalidInput
        If there is no such folder.

    Guarantees:
        Without problems: the files are those of ``SHA256SUMS``, and no others; the stated ε is what
        the recorded events come to; these events, δ and conversion are those of the settings in
        ``release.json``; the card and the page are, byte for byte, rendered from the JSON files.

        Without ``trust`` nothing that the release names is run, imported, downloaded or opened, and
        its student is tried in a process of its own, within limits of memory and time.

        Whoever can change files can change all of them, and the list too: compare ``digest`` with
        one from the owner. Nothing here shows that the events are all there were: a ledger would.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidInput(f"there is no release in {folder}")
    found = list(_guarded(SUMS, _files, folder))
    if found:  # what is damaged is not read further
        return Verification(problems=tuple(found))
    try:
        given = _Given(folder)
    except InvalidInput as error:
        return Verification(problems=(str(error),))
    problems = list(_guarded(RELEASE, _values, given))
    notes: list[str] = []
    if problems:
        return Verification(problems=tuple(dict.fromkeys(problems)))
    parts: list[tuple[str, Callable[[_Given], Iterator[str]]]] = [
        (STATEMENT, _figures),
    ]
    if given.training:
        parts += [
            (RELEASE, _training_settings),
            (RELEASE, _evaluated),
            (CARD, _texts),
            (PAGE, lambda given: _page(given, notes)),
        ]
    elif given.first_format:
        notes.append("its settings, card, page and labels were not checked: it is of format 1")
        parts.append((CARD, _foreign))
    else:
        parts += [
            (RELEASE, _settings),
            (RELEASE, _evaluation),
            ("labels", _labels),
            ("labels", _table),
            (CARD, _texts),
            (PAGE, lambda given: _page(given, notes)),
        ]
    problems = [each for name, part in parts for each in _guarded(name, part, given)]
    if not problems:
        problems = list(_student(given, plugin_path, notes, trust=trust))
    if problems:
        return Verification(problems=tuple(dict.fromkeys(problems)), notes=tuple(notes))
    stated = given.statement["guarantee"]
    return Verification(
        problems=(),
        notes=tuple(notes),
        epsilon=stated["epsilon"],
        delta=stated["delta"],
        digest=digest_of(folder / SUMS),
    )


def _guarded(name: str, part: Callable[[Any], Iterator[str]], given: Any) -> Iterator[str]:
    """Yield the problems of one part; an error in reading a stranger's file is one of them."""
    try:
        yield from part(given)
    except InvalidInput as error:
        yield f"{name}: {error}"
    except (Exception, SystemExit) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        yield f"{name} cannot be checked ({text})"


def _files(folder: Path) -> Iterator[str]:
    """Check that every file is there, unchanged and of a known kind; and nothing else is."""
    try:
        known = read_sums(folder)
        card = HUB_CARD if is_hub(folder) else CARD
        yield from (f"{name} is missing" for name in (card, *_NEEDED) if name not in known)
        yield from file_problems(folder)
    except InvalidInput as error:
        yield str(error)
        return
    homes = {parent.as_posix() for name in known for parent in Path(name).parents}
    places = (each for each in folder.rglob("*") if each.is_dir())
    folders = {place.relative_to(folder).as_posix() for place in places}
    if is_hub(folder):
        folders = {name for name in folders if not name.startswith(".")}
    for name in sorted(folders - homes):
        yield f"{name} does not belong to the release"


def _values(given: _Given) -> Iterator[str]:
    """Check that every value in the JSON files is of its type and in its range."""
    read_header(given.folder)
    yield from value_problems(STATEMENT, given.statement, training=given.training)
    if not given.first_format:
        yield from value_problems(RELEASE, given.release, training=given.training)
    first = given.header["format"] == 1
    if first is not given.first_format:  # the first one is checked for less
        yield f"{HEADER} is of another format than release.json"
    values = {STATEMENT: given.statement, RELEASE: given.release, HEADER: given.header}
    for name, value in values.items():
        yield from (f"{name} holds {what}" for what in unpublishable(value))


def _figures(given: _Given) -> Iterator[str]:
    """Compute ε again from the events, and check that ``release.json`` lists the same files."""
    for problem in statement_problems(given.statement):
        yield f"guarantee.json: {problem}"
    known = read_sums(given.folder)
    known.pop(RELEASE)
    if given.release["files"] != known:
        yield f"release.json lists other files than {SUMS}"


def _settings(given: _Given) -> Iterator[str]:
    """Check the guarantee against the settings: noise, number, δ, conversion, neighbours."""
    statement, recipe = given.statement, given.recipe
    stated, sanitised, partition = statement["guarantee"], statement["sanitised"], recipe.partition
    protects = {recipe.protects(named=named) for named in (True, False)}
    if stated["neighbours"] != recipe.neighbours.value:
        yield "guarantee.json: its neighbours are not those of the partition in release.json"
    if restate_protected(statement["protects"]) not in protects:
        yield "guarantee.json: it protects something else than the partition in release.json"
    if statement["data_set"].get("covers") == "user" and partition.by != "group":
        yield "guarantee.json: its data set covers users, and the release itself does not"
    if statement["data_set"]["name"] != recipe.data.name:
        yield "guarantee.json: its data set is not that of release.json"
    # A ledger's guarantee holds at the ledger's own δ, which its terms are checked for.
    planned = [("guarantee", stated)] if statement["counted"] == "plan" else []
    for name, part in [*planned, *([] if sanitised is None else [("sanitised", sanitised)])]:
        if part["delta"] != recipe.privacy.delta:
            yield f"guarantee.json: the delta of its {name} is not that of release.json"
        converted = accountant_of(part) is Accountant.MOMENTS
        if part["conversion"] != (recipe.privacy.conversion if converted else None):
            yield f"guarantee.json: the conversion of its {name} is not that of release.json"
    if not recipe.by_records and recipe.privacy.analysis not in (None, analysis_of(stated).value):
        yield "guarantee.json: its analysis is not that of release.json"
    accountant = accountant_of(stated)
    if accountant is Accountant.BOUNDED_RANGE and recipe.aggregate.in_rounds:
        yield "guarantee.json: its accountant is for queries that were fixed in advance"
    by_moments = recipe.privacy.analysis == "published" or recipe.privacy.conversion == "classic"
    if accountant is not Accountant.MOMENTS and by_moments and stated["delta"]:
        yield "guarantee.json: its accountant is not that of release.json"
    if sanitised is not None:
        doubt = recipe.privacy.doubt
        plan = ReleasePlan.default(order=sanitised["moment"] + 1, doubt=doubt)
        if (
            event_from_json(sanitised["event"]) != plan.event
            or sanitised["confidence"] != 1 - doubt
        ):
            yield "guarantee.json: its sanitised ε is not the one that release.json plans"
    caps = caps_of(recipe, inputs=given.release["public_inputs"], analysis=given.caps_analysis)
    events, charged = tally(read_events(statement["labels"])), tally(caps)
    if set(events) != set(charged):
        yield "guarantee.json: its events are not those of the mechanism in release.json"
    elif events != charged:
        yield "guarantee.json: it counts other events than the settings in release.json ask for"


def _training_settings(given: _Given) -> Iterator[str]:
    """Check the guarantee of DP-SGD against the settings: sampling, noise, steps, δ, accountant."""
    statement, recipe = given.statement, training_recipe_of(given.release)
    stated, training = statement["guarantee"], given.release["training"]
    if recipe.training.sampling != "poisson" or recipe.privacy.noise != "secure":
        yield "release.json: lots or noise are of a kind that no guarantee covers"
    agreed = recipe.training.users if recipe.by_user else recipe.training.records
    if agreed not in (None, training["records"]):
        yield "release.json: its sampling follows from another number of records than its recipe's"
    if recipe.privacy.noise_multiplier not in (None, training["noise_multiplier"]):
        yield "release.json: its noise is not that of its recipe"
    plan = plan_of(
        recipe, records=training["records"], noise_multiplier=training["noise_multiplier"]
    )
    if tally(read_events(statement["events"])) != tally(plan.events):
        yield "guarantee.json: its events are not those of the settings in release.json"
    if statement["data_set"]["name"] != recipe.data.name:
        yield "guarantee.json: its data set is not that of release.json"
    if statement["accountant"] != recipe.privacy.accountant:
        yield "guarantee.json: its accountant is not that of release.json"
    if stated["delta"] != recipe.privacy.delta:
        yield "guarantee.json: its delta is not that of release.json"
    target = recipe.privacy.epsilon
    if target is not None and stated["epsilon"] > target and not agrees(stated["epsilon"], target):
        yield "guarantee.json: its ε is above the one that release.json asks for"
    for row in training["epochs"]:
        if row["step"] > plan.steps:
            yield "release.json: it shows more steps than were paid for"
    if (given.folder / "labels").exists():
        yield "labels: a model trained by DP-SGD has none"


def _evaluated(given: _Given) -> Iterator[str]:
    """Check that shares of records follow from their counts, and fit the classes."""
    wrong = evaluation_problem(given.release["evaluation"], classes=given.classes)
    if wrong is not None:
        yield f"release.json: evaluation of the {wrong}"


def _evaluation(given: _Given) -> Iterator[str]:
    """Check the same of a student, and that its labels fit the plan."""
    yield from _evaluated(given)
    answers, plan = given.release["answers"], given.plan
    asked, answered, kept = (answers[key] for key in ("asked", "answered", "kept"))
    if len(answers["by_class"]) != given.classes or sum(answers["by_class"]) != answered:
        yield "release.json: its labels by class are not as many as were answered"
    if asked > plan.queries or answered > plan.answers or answered + kept > asked:
        yield "release.json: it has more answers than were paid for"


def evaluation_problem(record: Mapping[str, Any], *, classes: int) -> str | None:
    """Return what is inconsistent in an evaluation; None if nothing is."""
    for name in ("student", "labels", "agreement"):
        problem = None if record[name] is None else _share_problem(record[name])
        if problem is not None:
            return f"{name}: {problem}"
    table = record["confusion"]
    if (table is None) is (record.get("majority") is None):
        return "it has both a table and the share of the majority class, or neither"
    if table is None:
        rows = record["majority"] * record["student"]["records"]
        if record["majority"] < 1 / classes or not agrees(float(round(rows)), rows):
            return "its majority class is no share of its records"
        return None
    if len(table) != classes or any(len(row) != classes for row in table):
        return "its table has not a row and a column for each class"
    records, right = sum(map(sum, table)), sum(row[at] for at, row in enumerate(table))
    student = record["student"]
    if student["records"] != records or not agrees(student["accuracy"], right / records):
        return f"student: {right} of {records} records are right by its table"
    return None


def _share_problem(share: Mapping[str, Any]) -> str | None:
    """Return what is inconsistent in a share of records with its 95 % interval; None if nothing is.

    Guarantees:
        The interval is that of Wilson 1927 for the share and the number of records.
    """
    records, accuracy = share["records"], share["accuracy"]
    if type(records) is not int or records < 1:
        return f"its number of records is {str(records)[:40]}"
    right = round(accuracy * records)
    if not (0 <= right <= records and agrees(accuracy, right / records)):
        return f"its accuracy is {str(accuracy)[:40]}, which is no share of {records} records"
    for name, bound in zip(("low", "high"), wilson(right, records), strict=True):
        if not agrees(share[name], bound):
            return f"its {name} is {str(share[name])[:40]}, and the records come to {bound}"
    return None


def _labels(given: _Given) -> Iterator[str]:
    """Check that there are no more labels than were paid for, each of an input of its own."""
    folder, plan = given.folder, given.plan
    there = (folder / "labels").is_dir()
    if given.release["labels"] is not there:
        yield "release.json is wrong about whether there are labels"
    if not there:
        return
    arrays = {name: _array(folder / "labels" / name) for name in LABELS}
    most = {"asked.npy": plan.queries, "answered.npy": plan.answers, "kept.npy": plan.queries}
    for name, count in most.items():
        rows = arrays[name]
        if len(rows) > count:
            yield f"labels/{name} holds {len(rows)} rows, and {count} were paid for"
        elif len(np.unique(rows)) != len(rows) or not _within(rows, given.release["public_inputs"]):
            yield f"labels/{name} does not hold rows of the public inputs, each once"
    for name, rows in (("labels.npy", "answered.npy"), ("kept_labels.npy", "kept.npy")):
        if len(arrays[name]) != len(arrays[rows]) or not _within(arrays[name], given.classes):
            yield f"labels/{name} does not hold a class for each row of labels/{rows}"


def _table(given: _Given) -> Iterator[str]:
    """Check that a table of record votes has the planned shape, and that the labels follow."""
    folder, recipe = given.folder / "labels", given.recipe
    inputs = given.release["public_inputs"]
    for name in TABLE:
        if (folder / name).exists() is not (recipe.by_records and folder.is_dir()):
            yield f"labels/{name} is missing, or does not belong to the release"
            return
    if not recipe.by_records or not folder.is_dir():
        return
    cells = recipe.resolved_votes(inputs=inputs, classes=given.classes).rows(inputs=inputs)
    shapes = [(cells, given.classes), (inputs, given.classes), (inputs,)]
    for name, shape, kind in zip(TABLE, shapes, "iff", strict=True):
        values = np.load(folder / name, mmap_mode="r", allow_pickle=False)
        if values.shape != shape or values.dtype.kind != kind:
            yield f"labels/{name} is not a table of shape {shape}"
            return
    probabilities = np.load(folder / TABLE[1], mmap_mode="r", allow_pickle=False)
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    if not np.array_equal(probabilities.argmax(axis=1), labels):
        yield f"labels/labels.npy does not hold the most probable classes of labels/{TABLE[1]}"


def _array(file: Path) -> Any:
    """Return a row of whole numbers; mapped: a file cannot ask for memory that it does not fill."""
    values = np.load(file, mmap_mode="r", allow_pickle=False)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InvalidInput(f"{file.name} is not a row of whole numbers")
    return values


def _within(values: Any, end: int) -> bool:
    return not len(values) or bool(values.min() >= 0 and values.max() < end)


def _texts(given: _Given) -> Iterator[str]:
    """Write the card, and what else follows from other files, again; and compare."""
    release = {key: value for key, value in given.release.items() if key != "files"}
    own = written_files(given.folder, given.statement, given.header, release)
    known = read_sums(given.folder)
    for name, content in own.items():
        if name not in known:
            yield f"{name} is missing"
        elif digest_of_content(content) != known[name]:
            others = _other_versions(given.release, "pate")
            yield f"{name} does not match the JSON files{others and f' ({others})'}"
    yield from _foreign(given, own)


def _foreign(given: _Given, own: Collection[str] = ()) -> Iterator[str]:
    """Yield texts that follow from nothing, and files that neither student nor release uses."""
    texts = (DEPLOYMENT, HUB_CARD, CONFIG)
    used = _model_files(given.folder)
    for name in sorted(read_sums(given.folder)):
        text = name in texts or name.startswith(f"{HUB}/") or Path(name).name in _OF_LABELS
        if text and name not in own:
            yield f"{name} does not follow from the JSON files"
        model = name in (GRAPH, TENSORS) or name.startswith((f"{STUDENT}/", f"{ENCODER}/"))
        if model and not used.fullmatch(name):
            yield f"{name} is not the student of {HEADER}"
        old = given.first_format and name.startswith("labels/")
        if old and (given.release["labels"] is not True or Path(name).name in TABLE):
            yield f"{name} does not belong to a release of format 1"


def _model_files(folder: Path) -> re.Pattern[str]:
    """Return the names of the files that the student, and its encoder, are loaded from."""
    header, home = read_header(folder), "" if is_hub(folder) else f"{STUDENT}/"
    if not isinstance(header.model, CodeModel):
        kind = header.model.kind
        names = [] if kind == "constant" else [home + {"onnx": GRAPH}.get(kind, TENSORS)]
        names += (f"{ENCODER}/{name}" for name in step_files(header))
        return re.compile("|".join(map(re.escape, names)))
    saved = read_json(folder / STUDENT / "teacher.json")["format"]
    own = [rf"{home}(teacher\.json|{files_of_format(saved)})"]
    if header.model.encoder is not None:
        steps = header.model.encoder["steps"]
        own += [
            rf"{ENCODER}/encoder\.json",
            *(rf"{ENCODER}/step-{at}/.+" for at in range(len(steps))),
        ]
        own += (re.escape(str(step["weights"])) for step in steps if step.get("weights"))
    return re.compile("|".join(own))


def _page(given: _Given, notes: list[str]) -> Iterator[str]:
    """Render the page again, and compare; other versions may plot with other bytes."""
    if not (given.folder / PAGE).exists():
        return
    own = render_release_page(given.statement, given.header, given.release)
    if own.encode() == (given.folder / PAGE).read_bytes():
        return
    others = _other_versions(given.release, "pate", "matplotlib")
    if others:
        notes.append(f"{PAGE} was not compared with the JSON files: {others}")
    else:
        yield f"{PAGE} does not match the JSON files"


def _other_versions(release: Any, *names: str) -> str:
    """Return which version wrote the texts, where this one may write them differently."""
    for name in names:
        made = str(release["versions"].get(name))[:40]
        here = __version__ if name == "pate" else importlib.metadata.version(name)
        if made != here:
            return f"made by {name} {made}; this is {here}: check it with that version"
    return ""


def _student(
    given: _Given, plugin_path: Path | None, notes: list[str], *, trust: bool
) -> Iterator[str]:
    """Load the student and let it predict, in a process of its own."""
    model = read_header(given.folder).model
    code = isinstance(model, CodeModel)
    if isinstance(model, CodeModel) and not trust:
        notes.append(
            f"the student was not tried: it needs code of its own ({', '.join(model.needs)}); "
            "--trust imports and runs that code"
        )
        return
    problem = trial_problem(given.folder, plugin_path=plugin_path, trust=code)
    if problem is not None:
        yield f"student: it does not work ({problem})"
