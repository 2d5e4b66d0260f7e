"""The finished run that a release is made from, and the charges in the ledger that pay for it.

Nothing PRIVATE can be read but the names of the run's own charges.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from pate._format import in_nouns
from pate.accounting import (
    Analysis,
    Charge,
    Conversion,
    Event,
    Guarantee,
    Ledger,
    Neighbours,
    ReleasePlan,
    SmoothRelease,
    compose,
    event_to_json,
)
from pate.accounting.events import tally
from pate.accounting.ledger.data_set import coverage_of
from pate.accounting.ledger.running_total import states_records
from pate.accounting.ledger.study_costs import TotalStudyCost
from pate.accounting.ledger.terms import Terms
from pate.artifacts import Artifact, Level, Store, StoreError, fingerprint
from pate.artifacts.results import (
    ChargeNote,
    Costs,
    Evaluation,
    Labels,
    SanitisedGuarantee,
    StatedGuarantee,
    drawn_for,
    is_seeded,
)
from pate.datasets.catalogue import data_root as default_root
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput, LedgerError, PateError
from pate.pipeline.ledger import key_path, ledger_path, naming_key
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import PipelineRun, find_data_root, read_resolved
from pate.pipeline.stage import producer
from pate.releases.files import ENCODER, HEADER_FORMAT
from pate.releases.guarantee import (
    agrees,
    data_set_relation,
    difference,
    guarantee_of_ledger,
    guarantee_record,
    read_events,
    restated,
    statement_problems,
    write_events,
)
from pate.releases.records import form_record
from pate.releases.verify import evaluation_problem
from pate.report.facts import AnyRecipe, finished_stages, without_folders, without_places
from pate.stages.catalogue import open_run
from pate.stages.caveats import studies_behind, tuning_caveats


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What of a run leaves: all but texts, checksums and date, which every release has alike."""

    folder: Path  # of the run
    data_root: Path
    plugin_path: Path | None
    recipe_folder: Path | None
    settings: str  # in a few words
    unit: str  # the noun for whoever is protected
    statement: dict[str, Any]  # guarantee.json
    record: dict[str, Any]  # its part of release.json
    export: Callable[[Path], dict[str, Any]]  # write the student into a draft; its student.json
    secrets: tuple[tuple[bytes, str], ...]  # bytes that must not leave, and what they are


_COLUMNS = "data-columns"
_READ = ("aggregate", "account", "distill", "evaluate", "encoder", "data-public")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run: its recipe, its ledger, and what of it is RELEASED or PUBLIC.

    Guarantees:
        ``artifacts`` were opened with RELEASED clearance: the store refuses what is above. Each
        was checked against its manifest, and is in the place where it was made.
    """

    run: PipelineRun
    ledger: Path
    artifacts: dict[str, Artifact]
    labels: Labels
    costs: Costs
    evaluation: Evaluation

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    @property
    def columns(self) -> list[dict[str, Any]] | None:
        """The columns of a table; None for other records, and in runs of earlier versions."""
        found = self.artifacts.get(_COLUMNS)
        return None if found is None else found.json("columns.json")

    @property
    def encoder(self) -> EncoderSpec | None:
        """The encoder that the student needs, its weights named as they are in the release."""
        identity = bool(self.artifacts["encoder"].facts["identity"])
        if self.recipe.student.inputs == "raw" or identity:
            return None
        steps = [
            step
            if step.weights is None
            else step.model_copy(update={"weights": f"{ENCODER}/weights-{at}.safetensors"})
            for at, step in enumerate(self.recipe.encoder.steps)
        ]
        return EncoderSpec(steps=steps)


def open_finished_run(
    folder: Path, *, data_root: Path | None = None, plugin_path: Path | None = None
) -> FinishedRun:
    """Open a run that may be released.

    Refuses seeded noise, a ledger that is not here, a stage that is missing or stale, and files
    that are damaged or not where they belong.
    """
    if not folder.is_dir():
        raise InvalidInput(f"there is no run in {folder}")
    recipe = read_resolved(folder)
    store = Store(root=folder).cleared("release", Level.RELEASED)
    drawn = store.all("aggregate")
    if drawn and all(map(is_seeded, drawn)):  # it would otherwise look like a stage that is stale
        raise _seeded(drawn[0])
    root = _root_of(folder, recipe, data_root)
    run = open_run(folder, data_root=root, plugin_path=plugin_path)
    made_from = finished_stages(run)
    artifacts = {name: store.open(name, made_from[producer(name)]) for name in _READ}
    if store.find(_COLUMNS, made_from["data"]) is not None:  # of a table
        artifacts[_COLUMNS] = store.open(_COLUMNS, made_from["data"])
    for name in ("aggregate", "distill"):
        if is_seeded(artifacts[name]):
            raise _seeded(artifacts[name])
    return FinishedRun(
        run=run,
        ledger=ledger_path(recipe, root),
        artifacts=artifacts,
        labels=Labels.load(artifacts["aggregate"]),
        costs=Costs.load(artifacts["account"]),
        evaluation=Evaluation.load(artifacts["evaluate"]),
    )


def _seeded(artifact: Artifact) -> InvalidInput:
    return InvalidInput(
        f"{artifact.path / 'labels.npy'} was drawn with seeded noise, which is not private; run "
        "the recipe without --insecure-seed to release it"
    )


def _root_of(folder: Path, recipe: Recipe, given: Path | None) -> Path:
    """Find the run's own ledger, before anything could be created in its place."""
    root = default_root(given)
    if given is None:
        root = find_data_root(folder, recipe, root)
    ledger, key = ledger_path(recipe, root), key_path(recipe, root)
    for file in (ledger, key):
        if not file.is_file():
            raise LedgerError(
                f"there is no {file}; a release is made where the ledger of its data set is: give "
                "its --data-root, or restore the file from a backup"
            )
    try:
        home = json.loads((folder / "home.json").read_text())["key"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            f"{folder / 'home.json'} is missing or damaged; run the recipe again"
        ) from None
    if fingerprint("key", naming_key(recipe, root)) != home:
        raise LedgerError(f"{folder} belongs to another ledger than {ledger}; give its --data-root")
    return root


@contextmanager
def _undamaged(file: Path) -> Iterator[None]:
    """Report values of a file that cannot be computed with as damage of that file."""
    try:
        yield
    except PateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        raise InvalidInput(
            f"{file} is damaged; remove its folder and run the recipe again"
        ) from None


# --- charges --------------------------------------------------------------------------------------


def read_charges(run: FinishedRun, *, chosen_beforehand: bool) -> tuple[dict[str, Any], list[str]]:
    """Return ``guarantee.json`` (the cost of the release and of the data set), and notes on it.

    Labels that were drawn for a study are refused unless they were chosen before its results, and
    so are labels drawn once more with the settings of one that was. The notes are traces of tuning
    and, for such labels, the owner's statement.

    Guarantees:
        * Every event comes from the ledger. What the run states must come to the same, or is
          refused: a file that was changed by hand cannot make ε smaller.
        * A charge is named by what was drawn at random for it. Its full name also holds a keyed
          fingerprint of the private records; that is left out, because it would reveal of two
          releases whether the records were the same.
        * Where a sanitised ε is published, its price is part of ε. Where answers of an earlier
          release were given out again, the plan grew after answers were seen: then ε is that of
          all charges up to it (:meth:`pate.accounting.Ledger.guarantee`).
    """
    with Ledger.open(run.ledger) as ledger:
        with _undamaged(run.artifacts["account"].path / "guarantees.json"):
            charges = _Charges(run, ledger)
            stated = charges.require_own_choice(chosen_beforehand=chosen_beforehand)
            statement = charges.statement()
        return statement, [*tuning_caveats(run.run, ledger), *stated]


class _Charges:
    """The charges of one run, looked up in its ledger."""

    def __init__(self, run: FinishedRun, ledger: Ledger) -> None:
        self.run, self.ledger = run, ledger
        self.charges = ledger.charges()
        self.paid = {each.release: each for each in self.charges}
        self.report = run.artifacts["account"].path / "guarantees.json"
        self.neighbours = run.recipe.neighbours
        # For the names of charges, kept with the drawn answers; no more of it is read.
        self.store = Store(root=run.run.folder).cleared("release", Level.PRIVATE)
        self.names: list[str] = []
        self.own: list[Charge] = []
        self.labels = self._labels()

    def _labels(self) -> list[Event]:
        """Return the events charged for the labels, and for those they build on."""
        folder = self.run.artifacts["aggregate"].path
        drawn: str | None = self._drawn_for("aggregate")
        charged: list[Event] = []
        while drawn is not None:
            note = ChargeNote.load(self.store.open("pending-labels", drawn))
            charged += self._own(note, folder / "labels.npy").events
            drawn = None
            if note.extends is not None:
                drawn = self._drawn_behind(note.extends, folder / "labels.npy")
        if tally(self.run.labels.plan.events) != tally(charged):
            raise LedgerError(
                f"{folder / 'plan.json'} names other events than {self.ledger.path} was charged "
                "for; run the recipe again"
            )
        return charged

    def _drawn_for(self, stage: str) -> str:
        """Return what an answer was drawn for; that is kept apart from what is released."""
        return str(drawn_for(self.run.run.artifact(stage)))

    def _drawn_behind(self, charge: str, file: Path) -> str:
        """Return what an earlier charge of the same run was drawn for."""
        if charge not in self.paid:
            raise self._unpaid(file)
        for note in map(ChargeNote.load, self.store.all("pending-labels")):
            if charge == note.release:
                return note.made_from
        raise StoreError(f"the answers that {file} builds on are not in {self.run.run.folder}")

    def _own(self, note: ChargeNote, file: Path) -> Charge:
        charge = self.paid.get(note.release)
        if charge is None:
            raise self._unpaid(file)
        self.names.append(f"{note.kind} {note.name}")
        self.own.append(charge)
        return charge

    def _unpaid(self, file: Path) -> LedgerError:
        return LedgerError(
            f"{self.ledger.path} holds no charge that pays for {file}; it cannot be released"
        )

    def require_own_choice(self, *, chosen_beforehand: bool) -> list[str]:
        """Refuse labels of a study, unless they were chosen before its results; return notes."""
        own = [each.release for each in self.own]
        studies = studies_behind(self.ledger, own, one_teacher=self.neighbours)
        if not studies:
            return []
        if chosen_beforehand:
            return [stated_beforehand()]
        raise study_refusal(studies, self.run.recipe.nouns)

    def statement(self) -> dict[str, Any]:
        """Return ``guarantee.json``."""
        labels, terms = self.run.labels, self.ledger.terms
        sanitised = self._sanitised()
        statement: dict[str, Any] = {
            "format": 1,
            "protects": labels.protects,
            "labels": write_events(self.labels),
            "sanitised": sanitised,
            "counted": "ledger" if labels.extended else "plan",
            "charges": self.names,
        }
        if labels.extended:
            until, total = self._until()
            statement["events"] = write_events(until)
        else:
            price = read_events([sanitised["event"]]) if sanitised and sanitised["charged"] else []
            total = self._planned([*self.labels, *price], self.run.costs.guarantee)
        statement["guarantee"] = guarantee_record(total, self.neighbours.value)
        everything = [event for each in self.charges for event in each.events]
        whole = guarantee_of_ledger(everything, terms)  # of the charges read above
        name, noted = self.run.recipe.data.name, {each.records for each in self.charges}
        covers = coverage_of({each.group for each in self.charges})
        relation = data_set_relation(everything, terms, records=noted, covers=covers)
        statement["data_set"] = data_set_record(
            name, terms, self.charges, whole, neighbours=relation
        )
        if any(map(states_records, tally(everything))):
            statement["data_set"]["records"] = sorted(noted, key=str)
        self._require_same(total)
        if not math.isfinite(total.epsilon) or not math.isfinite(whole.epsilon):
            raise InvalidInput(f"{self.report}: ε is infinite, which guarantees nothing")
        for problem in statement_problems(statement):
            raise InvalidInput(f"{self.report}: {problem}; it was not released")
        return statement

    def _planned(self, events: Sequence[Event], stated: StatedGuarantee) -> Guarantee:
        """Return the cost of events by the bounds and the accountant that the run states."""
        return restated(stated.as_json() | {"delta": self.run.recipe.privacy.delta}, events)

    def _until(self) -> tuple[list[Event], Guarantee]:
        """Return all charges up to the moment at which the run read the ledger, and their cost."""
        last = max(each.number for each in self.own)
        events: list[Event] = []
        for each in self.charges:
            events += each.events
            if each.number < last:
                continue
            total = guarantee_of_ledger(
                events, self.ledger.terms, analysis=Analysis(self.run.costs.guarantee.analysis)
            )
            if agrees(self.run.costs.guarantee.epsilon, total.epsilon):
                return events, total
        raise self._mismatch("no reading of the ledger comes to its ε")

    def _sanitised(self) -> dict[str, Any] | None:
        """Return the sanitised ε that was published, and the event that paid for it."""
        stated = self.run.costs.sanitised
        if stated is None:
            return None
        if stated.publishable is not True:
            raise InvalidInput(f"{self.report} holds an ε that may not be published")
        answer = self.store.open("pending-sanitised", self._drawn_for("account"))
        if SanitisedGuarantee.load(answer) != stated:
            raise InvalidInput(
                f"{self.report} holds another sanitised ε than was drawn; remove its folder and "
                "run the recipe again"
            )
        assert stated.moment is not None
        doubt = self.run.recipe.privacy.doubt
        event: Event = ReleasePlan.default(order=stated.moment + 1, doubt=doubt).event
        note = ChargeNote.load(answer)
        if note.events:
            ((event, count),) = tally(self._own(note, self.report).events).items()
            if not isinstance(event, SmoothRelease) or count != 1:
                raise LedgerError(
                    f"{self.ledger.path} was charged for something else than {self.report}"
                )
        elif not self._follows_from_events(stated):
            raise self._unpaid(self.report)
        keys = ("epsilon", "delta", "moment", "conversion", "confidence", "price")
        return {key: getattr(stated, key) for key in keys} | {
            "event": event_to_json(event),
            "charged": bool(note.events),
        }

    def _follows_from_events(self, stated: SanitisedGuarantee) -> bool:
        """Return whether an ε without a price is that of the events, so that it reveals no vote."""
        assert stated.moment is not None
        own = compose(
            self.run.labels.events, [stated.moment], analysis=Analysis.PUBLISHED
        ).guarantee(delta=stated.delta, conversion=Conversion(str(stated.conversion)))
        return agrees(stated.price, 0.0) and agrees(stated.epsilon, own.epsilon)

    def _require_same(self, total: Guarantee) -> None:
        """Raise unless the run's own report agrees with the ledger's events."""
        costs = self.run.costs
        stated = costs.guarantee
        problems = [difference(stated.as_json(), total)]
        if stated.neighbours != self.neighbours.value:
            problems.append(f"it is for {str(stated.neighbours)[:40]} neighbours")
        if stated.publishable is not True:
            problems.append("its ε may not be published")
        if costs.protects != self.run.labels.protects:
            problems.append("it protects something else than the labels do")
        for each in Conversion:
            planned = self._planned(self.labels, costs.plan[each.value])
            problems.append(difference(costs.plan[each.value].as_json(), planned))
        for problem in filter(None, problems):
            raise self._mismatch(problem)

    def _mismatch(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self.report} does not agree with the charges in the ledger ({how}); remove its "
            "folder and run the recipe again"
        )


def stated_beforehand() -> str:
    """Return the note on a run of a study that its owner chose before its results."""
    return (
        "Its owner states that it was chosen before any of their results was seen, which its own ε "
        "requires."
    )


def study_refusal(studies: Iterable[TotalStudyCost], nouns: Mapping[str, str]) -> InvalidInput:
    """Return the refusal of a run whose settings were compared with others."""
    found = ", and ".join(
        f"one of {each.releases} release{'s' * (each.releases > 1)} of the study "
        f"“{each.here.name}”, or has the settings of one, which cost "
        f"{in_nouns(each.describe(), **nouns)}"
        for each in studies
    )
    return InvalidInput(
        f"this run is {found}, and whoever chose it by their results has spent that; choose by "
        "`pate sweep --private-selection`, or, if it was chosen before any of these results was "
        "seen, add --chosen-beforehand"
    )


# --- parts of the JSON files ----------------------------------------------------------------------


def data_set_record(
    name: str,
    terms: Terms,
    charges: Sequence[Charge],
    whole: Guarantee,
    *,
    neighbours: Neighbours,
) -> dict[str, Any]:
    """Return the part of ``guarantee.json`` on all charges of a data set."""
    return {
        "name": name,
        "terms": json.loads(terms.to_json()),
        "events": write_events(event for each in charges for event in each.events),
        "covers": coverage_of({each.group for each in charges}).value,
        "guarantee": guarantee_record(whole, neighbours.value),
    }


def student_header(run: FinishedRun, *, column_names: bool = False) -> dict[str, Any]:
    """Return the part of ``student.json`` that students of every kind share.

    With ``column_names`` it names the columns of a table.
    """
    public = run.artifacts["data-public"].array("features.npy")
    require_portable("student", run.recipe.student.as_model().model_dump(mode="json"))
    for at, step in enumerate([] if run.encoder is None else run.encoder.steps):
        require_portable(f"encoder.steps[{at}]", step.model_dump(mode="json"))
    return {
        "format": HEADER_FORMAT,
        "class_names": [str(each.name) for each in run.evaluation.classes],
        "input": form_record(public, run.columns, missing=False, names=column_names),
    }


def require_portable(where: str, value: Any) -> None:
    """Raise if settings name a path of this machine."""
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            require_portable(where, each)
    elif isinstance(value, str) and (
        Path(value).is_absolute() or PureWindowsPath(value).is_absolute() or value[:1] == "~"
    ):
        raise InvalidInput(
            f"recipe.json: {where} holds a path of this machine, which nobody else has; let the "
            "model do without, and run the recipe again"
        )


def evaluation_record(
    evaluation: Evaluation, artifact: Artifact, *, confusion: bool
) -> dict[str, Any]:
    """Return the accuracy of the student and of the labels, once it agrees with its own table.

    The table itself leaves with ``confusion`` only.
    """
    file = artifact.path / "evaluation.json"
    shares = {name: getattr(evaluation, name) for name in ("student", "labels", "agreement")}
    with _undamaged(file):
        record: dict[str, Any] = {
            name: None if share is None else asdict(share) for name, share in shares.items()
        }
        record["confusion"] = [list(map(int, row)) for row in evaluation.confusion]
        rows = [each.records for each in evaluation.classes]
        problem = evaluation_problem(record, classes=len(rows))
        if problem is None and [sum(row) for row in record["confusion"]] != rows:
            problem = "its classes have other numbers of records"
    if problem is not None:
        raise InvalidInput(
            f"{file} states another accuracy than its table of confusions comes to ({problem}); "
            "remove its folder and run the recipe again"
        )
    if not confusion:
        record |= {"confusion": None, "majority": max(rows) / sum(rows)}
    return record


def answers_record(run: FinishedRun) -> dict[str, Any]:
    """Return how many queries were asked and answered, and the labels by class."""
    record: dict[str, Any] = {
        name: len(getattr(run.labels, name)) for name in ("asked", "answered", "kept")
    }
    counts = np.bincount(run.labels.labels, minlength=len(run.evaluation.classes))
    return record | {"by_class": counts.tolist()}


def recipe_record(recipe: AnyRecipe) -> dict[str, Any]:
    """Return a recipe as its page shows it: no path, no column, no key of a partition."""
    shown = without_places(recipe).model_dump(mode="json", exclude={"partition": {"key"}})
    record: dict[str, Any] = without_folders(shown)
    return record
