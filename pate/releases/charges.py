"""The charges in the ledger that pay for a release, and the guarantee they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pate.accounting import (
    Charge,
    Conversion,
    Event,
    Guarantee,
    Ledger,
    ReleasePlan,
    SmoothRelease,
    compose,
    event_to_json,
)
from pate.accounting.events import tally
from pate.artifacts import Artifact, Level, Store, StoreError
from pate.artifacts.results import ChargeNote, drawn_for
from pate.errors import InvalidInput, LedgerError
from pate.releases.guarantee import (
    agrees,
    difference,
    guarantee_of_ledger,
    guarantee_of_plan,
    guarantee_record,
    read_events,
    statement_problems,
    terms_record,
    write_events,
)
from pate.releases.run import FinishedRun, undamaged
from pate.report.caveats import studies_behind


def statement_of(run: FinishedRun) -> dict[str, Any]:
    """Return ``guarantee.json``: the cost of this release, and of all releases of the data set.

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
    report = run.path("account", "guarantees.json")
    with Ledger.open(run.ledger) as ledger, undamaged(report):
        return _Charges(run, ledger).statement()


def require_own_choice(run: FinishedRun, *, chosen_beforehand: bool) -> list[str]:
    """Refuse labels that were drawn for a study, unless they were chosen before its results.

    So are labels drawn once more with the settings of one that was. Return the notes that the card
    must then hold, after those of :func:`~pate.report.caveats.tuning_caveats` on the study.
    """
    with Ledger.open(run.ledger) as ledger:
        charges = _Charges(run, ledger)
        charges.require_paid()
        own = [each.release for each in charges.own]
        relation = run.recipe.partition.neighbours
        studies = studies_behind(ledger, own, one_teacher=relation)
    if not studies:
        return []
    if not chosen_beforehand:
        found = ", and ".join(
            f"one of {each.releases} release{'s' * (each.releases > 1)} of the study "
            f"“{each.here.name}”, or has the settings of one, which cost {each.describe()}"
            for each in studies
        )
        raise InvalidInput(
            f"this run is {found}, and whoever chose it by their results has spent that; choose by "
            "`pate sweep --private-selection`, or, if it was chosen before any of these results "
            "was seen, add --chosen-beforehand"
        )
    return [
        "Its owner states that it was chosen before any of their results was seen, which its own ε "
        "requires."
    ]


class _Charges:
    """The charges of one run, looked up in its ledger."""

    def __init__(self, run: FinishedRun, ledger: Ledger) -> None:
        self.run, self.ledger = run, ledger
        self.charges = ledger.charges()
        self.paid = {each.release: each for each in self.charges}
        self.neighbours = run.recipe.partition.neighbours.value
        self.names: list[str] = []
        self.own: list[Charge] = []

    def require_paid(self) -> None:
        """Find the labels' charges; ``own`` holds them from here on."""
        self._labels()

    def statement(self) -> dict[str, Any]:
        run = self.run
        report = run.json("account", "guarantees.json")
        labels = self._labels()
        sanitised = self._sanitised(report, labels)
        extended = bool(run.artifacts["aggregate"].facts["extended"])
        statement: dict[str, Any] = {
            "format": 1,
            "protects": str(run.artifacts["aggregate"].facts["protects"]),
            "labels": write_events(labels),
            "sanitised": sanitised,
            "counted": "ledger" if extended else "plan",
            "charges": self.names,
        }
        if extended:
            until, total = self._until(report)
            statement["events"] = write_events(until)
        else:
            price = read_events([sanitised["event"]]) if sanitised and sanitised["charged"] else []
            total = self._planned([*labels, *price])
        statement["guarantee"] = guarantee_record(total, self.neighbours)
        everything = [event for each in self.charges for event in each.events]
        whole = guarantee_of_ledger(everything, self.ledger.terms)  # of the charges read above
        statement["data_set"] = {
            "name": run.recipe.data.name,
            "terms": terms_record(self.ledger.terms),
            "events": write_events(everything),
            "guarantee": guarantee_record(whole, self.ledger.terms.budget.neighbours.value),
        }
        self._require_same(report, total, labels)
        if not math.isfinite(total.epsilon) or not math.isfinite(whole.epsilon):
            raise InvalidInput(f"{self._report()}: ε is infinite, which guarantees nothing")
        for problem in statement_problems(statement):
            raise InvalidInput(f"{self._report()}: {problem}; it was not released")
        return statement

    def _report(self) -> Path:
        return self.run.path("account", "guarantees.json")

    def _planned(self, events: Sequence[Event]) -> Guarantee:
        privacy = self.run.recipe.privacy
        return guarantee_of_plan(
            events, delta=privacy.delta, conversion=Conversion(privacy.conversion)
        )

    # --- labels -------------------------------------------------------------------------------

    def _labels(self) -> list[Event]:
        """Return the events charged for the labels, and for those they build on."""
        file = self.run.path("aggregate", "labels.npy")
        drawn: str | None = self._drawn_for("aggregate")
        charged: list[Event] = []
        while drawn is not None:
            note = ChargeNote.load(self._drawn("pending-labels", drawn))
            charged += self._own(note, file).events
            drawn = None if note.extends is None else self._draw_behind(note.extends, file)
        plan = self.run.path("aggregate", "plan.json")
        with undamaged(plan):
            planned = read_events(self.run.json("aggregate", "plan.json")["events"])
        if tally(planned) != tally(charged):
            raise LedgerError(
                f"{plan} names other events than {self.ledger.path} was charged for; run the "
                "recipe again"
            )
        return charged

    def _draw_behind(self, charge: str, file: Path) -> str:
        """Return what an earlier charge of the same run was drawn for."""
        if charge not in self.paid:
            raise self._unpaid(file)
        for each in self._private().all("pending-labels"):
            note = ChargeNote.load(each)
            if charge == note.release:
                return note.made_from
        raise StoreError(f"the answers that {file} builds on are not in {self.run.run.folder}")

    # --- the sanitised ε -----------------------------------------------------------------------

    def _sanitised(self, report: Mapping[str, Any], labels: list[Event]) -> dict[str, Any] | None:
        """Return the sanitised ε that was published, and the event that paid for it."""
        stated = report["sanitised"]
        if stated is None:
            return None
        if stated["publishable"] is not True:
            raise InvalidInput(f"{self._report()} holds an ε that may not be published")
        answer = self._drawn("pending-sanitised", self._drawn_for("account"))
        if answer.json("sanitised.json") != stated:
            raise InvalidInput(
                f"{self._report()} holds another sanitised ε than was drawn; remove its folder and "
                "run the recipe again"
            )
        plan = ReleasePlan.default(
            order=float(stated["moment"]) + 1, doubt=self.run.recipe.privacy.doubt
        )
        event: Event = plan.event
        note = ChargeNote.load(answer)
        if note.events:
            ((event, count),) = tally(self._own(note, self._report()).events).items()
            if not isinstance(event, SmoothRelease) or count != 1:
                raise LedgerError(
                    f"{self.ledger.path} was charged for something else than {self._report()}"
                )
        elif not self._follows_from_events(stated):
            raise self._unpaid(self._report())
        keys = ("epsilon", "delta", "moment", "conversion", "confidence", "price")
        return {key: stated[key] for key in keys} | {
            "event": event_to_json(event),
            "charged": bool(note.events),
        }

    def _follows_from_events(self, stated: Mapping[str, Any]) -> bool:
        """Return whether an ε without a price is that of the events, so that it reveals no vote."""
        happened = read_events(self.run.json("aggregate", "events.json"))
        total = compose(happened, [float(stated["moment"])])
        conversion = Conversion(stated["conversion"])
        own = total.guarantee(delta=stated["delta"], conversion=conversion)
        return agrees(stated["price"], 0.0) and agrees(stated["epsilon"], own.epsilon)

    # --- charges ------------------------------------------------------------------------------

    def _private(self) -> Store:
        """Return a store for the names of charges, kept with the drawn answers; no more is read."""
        return Store(root=self.run.run.folder).cleared("release", Level.PRIVATE)

    def _drawn_for(self, stage: str) -> str:
        """Return what an answer was drawn for; that is kept apart from what is released."""
        return str(drawn_for(self.run.run.artifact(stage)))

    def _drawn(self, kind: str, made_from: str) -> Artifact:
        return self._private().open(kind, made_from)

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

    # --- the run's own report -----------------------------------------------------------------

    def _until(self, report: Mapping[str, Any]) -> tuple[list[Event], Guarantee]:
        """Return all charges up to the moment at which the run read the ledger, and their cost."""
        last = max(each.number for each in self.own)
        events: list[Event] = []
        for each in self.charges:
            events += each.events
            if each.number < last:
                continue
            total = guarantee_of_ledger(events, self.ledger.terms)
            if agrees(report["guarantee"]["epsilon"], total.epsilon):
                return events, total
        raise self._mismatch("no reading of the ledger comes to its ε")

    def _require_same(
        self, report: Mapping[str, Any], total: Guarantee, labels: list[Event]
    ) -> None:
        """Raise unless the run's own report agrees with the ledger's events."""
        stated = report["guarantee"]
        problem = difference(stated, total)
        if problem is None and stated["neighbours"] != self.neighbours:
            problem = f"it is for {str(stated['neighbours'])[:40]} neighbours"
        if problem is None and stated["publishable"] is not True:
            problem = "its ε may not be published"
        protects = self.run.artifacts["aggregate"].facts["protects"]
        if problem is None and report["protects"] != protects:
            problem = "it protects something else than the labels do"
        delta = self.run.recipe.privacy.delta
        for conversion in Conversion:
            if problem is None:
                plan = guarantee_of_plan(labels, delta=delta, conversion=conversion)
                problem = difference(report["plan"][conversion.value], plan)
        if problem is not None:
            raise self._mismatch(problem)

    def _mismatch(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self._report()} does not agree with the charges in the ledger ({how}); remove its "
            "folder and run the recipe again"
        )
