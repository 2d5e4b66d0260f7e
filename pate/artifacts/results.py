"""Typed results of stages: labels, costs, evaluation, and the note of a charge.

Each class writes its own files and facts into a draft (``save``) and reads them from an artifact
(``load``). Nobody else knows their names on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pate._format import restate_protected
from pate.accounting import (
    Accountant,
    Analysis,
    Conversion,
    Event,
    Guarantee,
    Neighbours,
    event_from_json,
    event_to_json,
)
from pate.artifacts.store import Artifact, Draft
from pate.errors import StoreError
from pate.metrics import Share

IntArray = NDArray[np.int64]

LABELS: Final = "labels"  # the kinds of drawings that are charged
SANITISED: Final = "sanitised"

_ARRAYS = ("asked", "answered", "labels", "kept", "kept_labels")
_PRIVATE = "private"  # the verdict on noise that was not seeded
_COSTS, _EVALUATION, _CHARGE = "guarantees.json", "evaluation.json", "charge.json"
_NAME_LISTS = ("sources", "settings", "builds_on")  # of a charge's note
_TABLE, _SOFT = "noised.npy", ("probabilities.npy", "confidence.npy")
_EVENTS, _PLAN, _SANITISED = "events.json", "plan.json", "sanitised.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedGuarantee:
    """A guarantee as an artifact states it: (ε, δ), its terms, and whether it may be published."""

    epsilon: float
    delta: float
    moment: float | None
    publishable: bool
    neighbours: str
    conversion: str | None
    caveats: tuple[str, ...] = ()
    analysis: str = Analysis.PUBLISHED.value  # where files do not say
    accountant: str = Accountant.MOMENTS.value  # the same

    @classmethod
    def of(cls, guarantee: Guarantee, *, neighbours: Neighbours | None = None) -> Self:
        """Return the statement of a guarantee, of the records behind the teachers if given.

        What holds where one teacher changes holds between data sets of which one record (or user)
        reaches one teacher; ``neighbours`` is the relation of the partition that sees to that.
        """
        stated = cls.from_json(guarantee.as_json())
        return stated if neighbours is None else replace(stated, neighbours=neighbours.value)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        known = {each.name: value[each.name] for each in fields(cls) if each.name in value}
        return cls(**{**known, "caveats": tuple(value.get("caveats", ()))})

    def as_json(self) -> dict[str, Any]:
        record = {**asdict(self), "caveats": list(self.caveats)}
        if self.analysis == Analysis.PUBLISHED:
            del record["analysis"]
        if self.accountant == Accountant.MOMENTS:
            del record["accountant"]
        return record

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that is stated."""
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            moment=self.moment,
            neighbours=Neighbours(self.neighbours),
            conversion=None if self.conversion is None else Conversion(self.conversion),
            analysis=Analysis(self.analysis),
            accountant=Accountant(self.accountant),
            caveats=self.caveats,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitisedGuarantee(StatedGuarantee):
    """A data-dependent ε that was noised to be published."""

    confidence: float  # that it is no less than the exact ε
    price: float  # ε of publishing it, which it includes

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        with _undamaged(artifact, _SANITISED):
            return cls.from_json(artifact.json(_SANITISED))

    def save(self, draft: Draft) -> None:
        draft.save_json(_SANITISED, self.as_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedPlan:
    """The caps of a release, fixed before the votes were opened, and the guarantee of them."""

    queries: int
    answers: int
    events: tuple[Event, ...]
    guarantee: StatedGuarantee

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            queries=int(value["queries"]),
            answers=int(value["answers"]),
            events=_read_events(value["events"]),
            guarantee=StatedGuarantee.from_json(value["guarantee"]),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "queries": self.queries,
            "answers": self.answers,
            "events": _events_json(self.events),
            "guarantee": self.guarantee.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """Queries and their labels, by the row of an input among the public ones, in asking order."""

    asked: IntArray
    answered: IntArray
    labels: IntArray  # of the answered inputs
    kept: IntArray  # where a student keeps its own label (Interactive-GNMax)
    kept_labels: IntArray

    @property
    def rows(self) -> IntArray:
        """All inputs with a label."""
        return np.concatenate([self.answered, self.kept])

    @property
    def row_labels(self) -> IntArray:
        """The labels of :attr:`rows`."""
        return np.concatenate([self.labels, self.kept_labels])

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        """Read them; the arrays are mapped, not copied."""
        return cls(**{name: artifact.array(f"{name}.npy") for name in _ARRAYS})

    def save(self, draft: Draft) -> None:
        """Write them into a draft, and how many they are into its facts."""
        for name in _ARRAYS:
            draft.save_array(f"{name}.npy", getattr(self, name))
        draft.facts.update(asked=len(self.asked), answered=len(self.answered), kept=len(self.kept))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisedCounts:
    """A table of record votes with noise on every count: PRIVATE until it is paid for.

    Attributes
    ----------
    counts : ndarray of int64
        (cells, classes), in units; a count may be below zero.
    units : int
        Units that make a vote.
    variance : float
        The variance of the noise on one count, in units².
    """

    counts: IntArray
    units: int
    variance: float

    @property
    def votes(self) -> NDArray[np.float64]:
        """The noised counts in votes."""
        found: NDArray[np.float64] = self.counts / self.units
        return found

    @classmethod
    def load(cls, artifact: Artifact) -> Self | None:
        """Read the table of an answer; None where there is none."""
        if not (artifact.path / _TABLE).is_file():
            return None
        return cls(
            counts=artifact.array(_TABLE),
            units=int(artifact.facts["units"]),
            variance=float(artifact.facts["variance"]),
        )

    def save(self, draft: Draft) -> None:
        draft.save_array(_TABLE, self.counts)
        draft.facts.update(units=self.units, variance=self.variance)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftLabels:
    """Probabilities of the classes of each public input, and how sure they are; RELEASED.

    Attributes
    ----------
    probabilities : ndarray of float64
        (inputs, classes); every row sums to one.
    confidence : ndarray of float64
        (inputs,), the probability of the most probable class.
    """

    probabilities: NDArray[np.float64]
    confidence: NDArray[np.float64]

    @property
    def labels(self) -> IntArray:
        """The most probable class of each input."""
        return np.asarray(self.probabilities.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels(Answers):
    """Labels that were drawn from votes: PRIVATE until they are paid for, then RELEASED.

    Those of record votes follow from a noised table, which is part of them, by smoothing; they have
    probabilities and a confidence for each of :attr:`answered`.
    """

    events: tuple[Event, ...]  # what happened
    plan: StatedPlan
    randomness: str  # the verdict on the noise
    family: str | None = None  # what makes answers to one query interchangeable; None: nothing
    extended: bool = False  # whether an earlier release was given out again as part of it
    protects: str = ""  # whom the guarantee protects
    table: NoisedCounts | None = None  # behind them, of record votes
    soft: SoftLabels | None = None

    @property
    def seeded(self) -> bool:
        """True if the noise was seeded, so that nothing here is private."""
        return self.randomness != _PRIVATE

    @classmethod
    def of(
        cls,
        answers: Answers,
        *,
        events: Sequence[Event],
        plan: StatedPlan,
        randomness: str,
        family: str | None = None,
        extended: bool = False,
    ) -> Self:
        """Return answers with what happened and what was planned."""
        return cls(
            **{name: getattr(answers, name) for name in _ARRAYS},
            events=tuple(events),
            plan=plan,
            randomness=randomness,
            family=family,
            extended=extended,
        )

    def stated(
        self,
        *,
        neighbours: Neighbours,
        protects: str,
        guarantee: StatedGuarantee | None = None,
    ) -> Self:
        """Return the labels as they are published: their guarantee, stated of records.

        What holds where one teacher changes holds for the ``neighbours`` that the partition covers.
        ``guarantee`` takes the place of the plan's where that does not cover them.
        """
        whole = replace(guarantee or self.plan.guarantee, neighbours=neighbours.value)
        return replace(self, plan=replace(self.plan, guarantee=whole), protects=protects)

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        facts = artifact.facts
        with _undamaged(artifact, _PLAN):
            plan = StatedPlan.from_json(artifact.json(_PLAN))
        with _undamaged(artifact, _EVENTS):
            events = _read_events(artifact.json(_EVENTS))
        labels = cls.of(
            Answers.load(artifact),
            events=events,
            plan=plan,
            randomness=str(facts["randomness"]),
            family=facts.get("family"),
            extended=bool(facts.get("extended")),
        )
        table, soft = NoisedCounts.load(artifact), None
        if (artifact.path / _SOFT[0]).is_file():
            soft = SoftLabels(
                probabilities=artifact.array(_SOFT[0]), confidence=artifact.array(_SOFT[1])
            )
        protects = restate_protected(str(facts.get("protects", "")))
        return replace(labels, protects=protects, table=table, soft=soft)

    def save(self, draft: Draft) -> None:
        """Write them into a draft; the artifact's other facts are left as they are."""
        Answers.save(self, draft)
        draft.save_json(_EVENTS, _events_json(self.events))
        draft.save_json(_PLAN, self.plan.as_json())
        draft.facts.update(family=self.family, extended=self.extended, randomness=self.randomness)
        if self.protects:
            draft.facts["protects"] = self.protects
        if self.table is not None:
            self.table.save(draft)
        if self.soft is not None:
            draft.save_array(_SOFT[0], self.soft.probabilities)
            draft.save_array(_SOFT[1], self.soft.confidence)


def is_seeded(artifact: Artifact) -> bool:
    """Return whether the noise behind labels, or a student, was seeded; no file is read."""
    return bool(artifact.facts["randomness"] != _PRIVATE)


def drawn_for(artifact: Artifact) -> str | None:
    """Return the fingerprint that a released answer was drawn for, for those who may see it."""
    drawn = artifact.facts.get("drawn")
    return None if drawn is None else str(drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The cost of a release by every rule; what may be published of it, and what not."""

    guarantee: StatedGuarantee
    protects: str
    randomness: str
    odometer: Mapping[str, StatedGuarantee]  # of what was answered, by conversion; a reading
    plan: Mapping[str, StatedGuarantee]  # of the caps, by conversion
    composition: Mapping[str, float] | None  # by older theorems, where they apply
    sanitised: SanitisedGuarantee | None = None
    why_not: str | None = None  # why there is no sanitised ε

    @property
    def seeded(self) -> bool:
        """True if the noise was seeded, so that nothing here is a guarantee."""
        return self.randomness != _PRIVATE

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        with _undamaged(artifact, _COSTS):
            found = artifact.json(_COSTS)
            sanitised = found["sanitised"]
            return cls(
                guarantee=StatedGuarantee.from_json(found["guarantee"]),
                protects=restate_protected(found["protects"]),
                randomness=found["randomness"],
                odometer=_by_conversion(found["odometer"]),
                plan=_by_conversion(found["plan"]),
                composition=found["composition"],
                sanitised=sanitised and SanitisedGuarantee.from_json(sanitised),
                why_not=found.get("why_not"),
            )

    def save(self, draft: Draft) -> None:
        found = asdict(self) | {
            "guarantee": self.guarantee.as_json(),
            "odometer": _as_json(self.odometer),
            "plan": _as_json(self.plan),
        }
        if self.sanitised is not None:
            del found["why_not"]
            found["sanitised"] = self.sanitised.as_json()
        draft.save_json(_COSTS, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateCosts:
    """The data-dependent cost by conversion, or why there is none. PRIVATE."""

    guarantees: Mapping[str, StatedGuarantee]
    why_not: str | None = None

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        with _undamaged(artifact, _COSTS):
            found = artifact.json(_COSTS)
            if "why_not" in found:
                return cls(guarantees={}, why_not=found["why_not"])
            return cls(guarantees=_by_conversion(found))

    def save(self, draft: Draft) -> None:
        known = _as_json(self.guarantees)
        draft.save_json(_COSTS, known if self.why_not is None else {"why_not": self.why_not})


def _as_json(guarantees: Mapping[str, StatedGuarantee]) -> dict[str, Any]:
    return {name: each.as_json() for name, each in guarantees.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount:
    """The test records of a class, how many the student got right, and how often it chose it."""

    name: str
    records: int
    right: int
    predicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The accuracy of a student, and of the labels it learnt from."""

    student: Share
    classes: tuple[ClassCount, ...]
    confusion: tuple[tuple[int, ...], ...]  # records by their class (rows) and prediction (columns)
    agreement: Share | None  # of the student with the released labels
    labels: Share | None  # of the released labels that are right, where that is known

    @classmethod
    def of(
        cls,
        predicted: IntArray,
        truth: IntArray,
        *,
        class_names: Sequence[str],
        agreement: Share | None = None,
        labels: Share | None = None,
    ) -> Self:
        """Return the evaluation of predictions for test records.

        >>> made = Evaluation.of(np.array([0, 1, 1]), np.array([0, 0, 1]), class_names=["a", "b"])
        >>> made.confusion, made.classes[1].predicted
        (((1, 1), (0, 1)), 2)
        """
        count = len(class_names)
        cells = np.bincount(truth * count + predicted, minlength=count * count)
        table = cells.reshape(count, count)
        return cls(
            student=Share.counted(int(table.trace()), len(truth)),
            classes=tuple(
                ClassCount(
                    name=name,
                    records=int(table[label].sum()),
                    right=int(table[label, label]),
                    predicted=int(table[:, label].sum()),
                )
                for label, name in enumerate(class_names)
            ),
            confusion=tuple(map(tuple, table.tolist())),
            agreement=agreement,
            labels=labels,
        )

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        with _undamaged(artifact, _EVALUATION):
            found = artifact.json(_EVALUATION)
            return cls(
                student=Share.of(found["student"]),
                classes=tuple(
                    ClassCount(
                        name=e["class"], records=e["records"], right=e["right"], predicted=e["said"]
                    )
                    for e in found["classes"]
                ),
                confusion=tuple(map(tuple, found["confusion"])),
                agreement=_share(found["agreement"]),
                labels=_share(found["labels"]),
            )

    @property
    def unseen(self) -> list[str]:
        """The classes of which no test record was found."""
        return [each.name for each in self.classes if each.records and not each.right]

    def save(self, draft: Draft) -> None:
        classes = [
            {"class": e.name, "records": e.records, "right": e.right, "said": e.predicted}
            for e in self.classes
        ]
        draft.save_json(_EVALUATION, {**asdict(self), "classes": classes})


def without_recall(what: str, names: Sequence[str], *, named: bool = True) -> str | None:
    """Return a warning of a model that finds no test record of some classes; None if of each one.

    Which classes these are follows from test people, who are not protected: ``named`` where errors
    by class are shown.

    >>> without_recall("student", ["a"])
    'The student finds no test record of class a: recall is zero.'
    """
    if not names:
        return None
    if named:
        return f"The {what} finds no test record of {named_classes(names)}: recall is zero."
    return (
        f"The {what} finds no test record of at least one class: recall is zero. `pate report "
        "--with-confusion` shows the errors by class on test people, who are not protected."
    )


def named_classes(names: Sequence[str]) -> str:
    """Return "class a", or "classes a, b", with the first five of many."""
    more = f", and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{'class' if len(names) == 1 else 'classes'} {', '.join(names[:5])}{more}"


def save_reference(draft: Draft, share: Share) -> None:
    """Write the accuracy of a model of the student's kind on the private records."""
    draft.save_json(_EVALUATION, {"reference": asdict(share)})


def load_reference(artifact: Artifact) -> Share:
    """Read what :func:`save_reference` wrote. PRIVATE."""
    with _undamaged(artifact, _EVALUATION):
        return Share.of(artifact.json(_EVALUATION)["reference"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicLabels:
    """The accuracy of the student on the own labels of the inputs that were asked about."""

    student: Share | None  # None where those are not known, or of one class
    labels: int

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        with _undamaged(artifact, _EVALUATION):
            found = artifact.json(_EVALUATION)
            return cls(student=_share(found["student"]), labels=int(found["labels"]))

    def save(self, draft: Draft) -> None:
        draft.save_json(_EVALUATION, asdict(self))


def charge_name(kind: str, made_from: str, name: str = "") -> str:
    """Return the name under which the ledger holds the charge of a drawing.

    ``made_from`` is the fingerprint that it was drawn for and ``name`` its own random name; without
    that, what the names of all drawings for the fingerprint begin with.

    >>> charge_name(LABELS, "0" * 64, "f3a1")
    'labels 0000000000000000000000000000000000000000 f3a1'
    """
    return f"{kind} {made_from[:40]} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeNote:
    """The note of a charge, written down with the drawing before it is charged."""

    kind: str  # LABELS or SANITISED
    made_from: str  # the fingerprint that it is drawn for
    name: str  # its own, at random
    study: str | None = None
    events: tuple[Event, ...] = ()
    extends: str | None = None  # the charge of an earlier answer that is given out again
    sources: tuple[str, ...] = ()  # fingerprints of what it is drawn from
    settings: tuple[str, ...] = ()  # digests of all that could have been drawn
    builds_on: tuple[str, ...] = ()  # charges of answers that it is worked out from
    recipe: str | None = None  # a digest of the settings alone, without records and plug-ins

    @property
    def release(self) -> str:
        """Its name in the ledger."""
        return charge_name(self.kind, self.made_from, self.name)

    @classmethod
    def load(cls, artifact: Artifact) -> Self:
        """Read the note of an answer that was drawn, or begun, in this run."""
        kind = artifact.stage.partition("-")[2]
        with _undamaged(artifact, _CHARGE):
            note = artifact.json(_CHARGE)
            return cls(
                kind=kind,
                made_from=str(artifact.manifest["made_from"]),
                name=str(note["name"]),
                study=note.get("study"),  # earlier versions noted less
                events=_read_events(note.get("events", ())),
                extends=note.get("extends"),
                recipe=note.get("recipe"),
                **{name: tuple(note.get(name, ())) for name in _NAME_LISTS},
            )

    def save(self, draft: Draft, *, begun: bool = False) -> None:
        """Write it into a draft; of one that has only ``begun``, its name, study and recipe."""
        note: dict[str, Any] = {"name": self.name, "study": self.study, "recipe": self.recipe}
        if not begun:
            note["events"] = _events_json(self.events)
            note |= {name: getattr(self, name) for name in ("extends", *_NAME_LISTS)}
        draft.save_json(_CHARGE, note)


@contextmanager
def _undamaged(artifact: Artifact, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, AttributeError):
        raise StoreError(
            f"{artifact.path / name} is damaged; remove its folder and run the recipe again"
        ) from None


def _read_events(texts: Sequence[str]) -> tuple[Event, ...]:
    return tuple(event_from_json(text) for text in texts)


def _events_json(events: Sequence[Event]) -> list[str]:
    return [event_to_json(event) for event in events]


def _by_conversion(found: Mapping[str, Any]) -> dict[str, StatedGuarantee]:
    return {each.value: StatedGuarantee.from_json(found[each.value]) for each in Conversion}


def _share(found: Mapping[str, Any] | None) -> Share | None:
    return Share.of(found) if found else None
