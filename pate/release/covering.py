"""The ledger's word: which charges pay for a release, and what they come to."""

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
from pate.errors import InvalidInput, LedgerError
from pate.release.figures import (
    differs,
    of_ledger,
    of_plan,
    problems_of,
    read_events,
    same,
    terms_told,
    told,
    undamaged,
    written,
)
from pate.release.finished import Finished
from pate.report.tuning import studies_behind

_CHARGE = "charge.json"


def statement_of(finished: Finished) -> dict[str, Any]:
    """``guarantee.json``: what this release costs, and what the data set has spent in all.

    Guarantees:
        * Every event comes from the ledger. What the run says of itself must come to the same, or
          is refused: a file that was changed by hand cannot make ε smaller.
        * A charge is named by what was drawn at random for it. Its full name also holds a keyed
          fingerprint of the private records; that stays, because of two releases it would tell
          whether the records were the same.
        * Where a sanitised figure is published, its price is part of ε. Where answers of an earlier
          release were given out again, the plan grew after answers were seen: then only what covers
          all charges up to it holds, and is said (:meth:`pate.accounting.Ledger.guarantee`).
    """
    report = finished.path("account", "guarantees.json")
    with Ledger.open(finished.ledger) as ledger, undamaged(report):
        return _Covering(finished, ledger).statement()


def require_own_choice(finished: Finished, *, chosen_beforehand: bool) -> list[str]:
    """Refuses labels that were drawn for a study, unless they were chosen before its results.

    So are labels drawn once more with the settings of one that was. Returns what the card must then
    say, after what :func:`~pate.report.tuning.tuning_told` says of the study.
    """
    with Ledger.open(finished.ledger) as ledger:
        covering = _Covering(finished, ledger)
        covering.require_paid()
        own = [each.release for each in covering.own]
        relation = finished.recipe.partition.neighbours
        studies = studies_behind(ledger, own, one_teacher=relation)
    if not studies:
        return []
    if not chosen_beforehand:
        told = ", and ".join(
            f"one of {each.releases} release{'s' * (each.releases > 1)} of the study "
            f"“{each.here.name}”, or has the settings of one, which cost {each.told()}"
            for each in studies
        )
        raise InvalidInput(
            f"this run is {told}, and whoever chose it by their results has spent that; choose by "
            "`pate sweep --private-selection`, or, if it was chosen before any of these results "
            "was seen, add --chosen-beforehand"
        )
    return [
        "Its owner says that it was chosen before any of their results was seen, which is what its "
        "own ε needs."
    ]


class _Covering:
    def __init__(self, finished: Finished, ledger: Ledger) -> None:
        self.finished, self.ledger = finished, ledger
        self.charges = ledger.charges()
        self.paid = {each.release: each for each in self.charges}
        self.neighbours = finished.recipe.partition.neighbours.value
        self.names: list[str] = []
        self.own: list[Charge] = []

    def require_paid(self) -> None:
        """The labels' charges are there; ``own`` holds them from here on."""
        self._labels()

    def statement(self) -> dict[str, Any]:
        finished = self.finished
        report = finished.json("account", "guarantees.json")
        labels = self._labels()
        figure = self._sanitised(report, labels)
        extended = bool(finished.artifacts["aggregate"].facts["extended"])
        statement: dict[str, Any] = {
            "format": 1,
            "protects": str(finished.artifacts["aggregate"].facts["protects"]),
            "labels": written(labels),
            "sanitised": figure,
            "counted": "ledger" if extended else "plan",
            "charges": self.names,
        }
        if extended:
            until, total = self._until(report)
            statement["events"] = written(until)
        else:
            price = read_events([figure["event"]]) if figure and figure["charged"] else []
            total = self._planned([*labels, *price])
        statement["guarantee"] = told(total, self.neighbours)
        everything = [event for each in self.charges for event in each.events]
        whole = of_ledger(everything, self.ledger.terms)  # of the charges that were read above
        statement["data_set"] = {
            "name": finished.recipe.data.name,
            "terms": terms_told(self.ledger.terms),
            "events": written(everything),
            "guarantee": told(whole, self.ledger.terms.budget.neighbours.value),
        }
        self._require_same(report, total, labels)
        if not math.isfinite(total.epsilon) or not math.isfinite(whole.epsilon):
            raise InvalidInput(f"{self._report()}: ε is infinite, which promises nothing")
        for problem in problems_of(statement):
            raise InvalidInput(f"{self._report()}: {problem}; it was not released")
        return statement

    def _report(self) -> Path:
        return self.finished.path("account", "guarantees.json")

    def _planned(self, events: Sequence[Event]) -> Guarantee:
        privacy = self.finished.recipe.privacy
        return of_plan(events, delta=privacy.delta, conversion=Conversion(privacy.conversion))

    # --- labels -------------------------------------------------------------------------------

    def _labels(self) -> list[Event]:
        """The events charged for the labels, and for those they build on."""
        file = self.finished.path("aggregate", "labels.npy")
        drawn: str | None = self._drawn_for("aggregate")
        charged: list[Event] = []
        while drawn is not None:
            answer = self._drawn("pending-labels", drawn)
            own = self._own("labels", answer, file)
            charged += own.events
            with undamaged(answer.path / _CHARGE):
                earlier = answer.json(_CHARGE)["extends"]
            drawn = None if earlier is None else self._draw_behind(str(earlier), file)
        plan = self.finished.path("aggregate", "plan.json")
        with undamaged(plan):
            said = read_events(self.finished.json("aggregate", "plan.json")["events"])
        if tally(said) != tally(charged):
            raise LedgerError(
                f"{plan} names other events than {self.ledger.path} was charged for; run the "
                "recipe again"
            )
        return charged

    def _draw_behind(self, charge: str, file: Path) -> str:
        """What an earlier charge of the same run was drawn for."""
        if charge not in self.paid:
            raise self._unpaid(file)
        for each in self._private().all("pending-labels"):
            made_from = str(each.manifest["made_from"])
            with undamaged(each.path / _CHARGE):
                name = each.json(_CHARGE)["name"]
            if charge == _charge_id("labels", made_from, name):
                return made_from
        raise StoreError(f"the answers that {file} builds on are not in {self.finished.run.folder}")

    # --- the sanitised figure -----------------------------------------------------------------

    def _sanitised(self, report: Mapping[str, Any], labels: list[Event]) -> dict[str, Any] | None:
        """The published figure, and the event that paid for it."""
        stated = report["sanitised"]
        if stated is None:
            return None
        if stated["publishable"] is not True:
            raise InvalidInput(f"{self._report()} holds an ε that may not be published")
        answer = self._drawn("pending-sanitised", self._drawn_for("account"))
        if answer.json("sanitised.json") != stated:
            raise InvalidInput(
                f"{self._report()} holds another figure than was drawn; remove its folder and run "
                "the recipe again"
            )
        plan = ReleasePlan.default(
            order=float(stated["moment"]) + 1, doubt=self.finished.recipe.privacy.doubt
        )
        event: Event = plan.event
        with undamaged(answer.path / _CHARGE):
            charged = bool(answer.json(_CHARGE)["events"])
        if charged:
            ((event, count),) = tally(self._own("sanitised", answer, self._report()).events).items()
            if not isinstance(event, SmoothRelease) or count != 1:
                raise LedgerError(
                    f"{self.ledger.path} was charged for something else than {self._report()}"
                )
        elif not self._follows_from_events(stated):
            raise self._unpaid(self._report())
        keys = ("epsilon", "delta", "moment", "conversion", "confidence", "price")
        return {key: stated[key] for key in keys} | {
            "event": event_to_json(event),
            "charged": charged,
        }

    def _follows_from_events(self, stated: Mapping[str, Any]) -> bool:
        """Whether a figure without a price is that of the events, so that it tells no vote."""
        happened = read_events(self.finished.json("aggregate", "events.json"))
        total = compose(happened, [float(stated["moment"])])
        conversion = Conversion(stated["conversion"])
        own = total.guarantee(delta=stated["delta"], conversion=conversion)
        return same(stated["price"], 0.0) and same(stated["epsilon"], own.epsilon)

    # --- charges ------------------------------------------------------------------------------

    def _private(self) -> Store:
        """For the names of charges, which are kept with the drawn answers; nothing else is read."""
        return Store(root=self.finished.run.folder).cleared("release", Level.PRIVATE)

    def _drawn_for(self, stage: str) -> str:
        """What an answer was drawn for; that is kept apart from what is released."""
        return str(self.finished.run.artifact(stage).facts["drawn"])

    def _drawn(self, kind: str, made_from: str) -> Artifact:
        return self._private().open(kind, made_from)

    def _own(self, kind: str, answer: Artifact, file: Path) -> Charge:
        with undamaged(answer.path / _CHARGE):
            name = str(answer.json(_CHARGE)["name"])
        charge = self.paid.get(_charge_id(kind, str(answer.manifest["made_from"]), name))
        if charge is None:
            raise self._unpaid(file)
        self.names.append(f"{kind} {name}")
        self.own.append(charge)
        return charge

    def _unpaid(self, file: Path) -> LedgerError:
        return LedgerError(
            f"{self.ledger.path} holds no charge that pays for {file}; it cannot be released"
        )

    # --- what the run says of itself ----------------------------------------------------------

    def _until(self, report: Mapping[str, Any]) -> tuple[list[Event], Guarantee]:
        """All charges up to the moment at which the run read the ledger, and what they come to."""
        last = max(each.number for each in self.own)
        events: list[Event] = []
        for each in self.charges:
            events += each.events
            if each.number < last:
                continue
            total = of_ledger(events, self.ledger.terms)
            if same(report["guarantee"]["epsilon"], total.epsilon):
                return events, total
        raise self._mismatch("no reading of the ledger comes to its ε")

    def _require_same(
        self, report: Mapping[str, Any], total: Guarantee, labels: list[Event]
    ) -> None:
        """The run's own report must say what the ledger's events come to."""
        stated = report["guarantee"]
        wrong = differs(stated, total)
        if wrong is None and stated["neighbours"] != self.neighbours:
            wrong = f"it speaks of {str(stated['neighbours'])[:40]} neighbours"
        if wrong is None and stated["publishable"] is not True:
            wrong = "its ε may not be published"
        protects = self.finished.artifacts["aggregate"].facts["protects"]
        if wrong is None and report["protects"] != protects:
            wrong = "it protects something else than the labels do"
        delta = self.finished.recipe.privacy.delta
        for conversion in Conversion:
            if wrong is None:
                plan = of_plan(labels, delta=delta, conversion=conversion)
                wrong = differs(report["plan"][conversion.value], plan)
        if wrong is not None:
            raise self._mismatch(wrong)

    def _mismatch(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self._report()} does not say what the ledger was charged for ({how}); remove its "
            "folder and run the recipe again"
        )


def _charge_id(kind: str, made_from: str, name: str) -> str:
    """How the ledger names the charge of one drawing (:mod:`pate.stages.exactly_once`)."""
    return f"{kind} {made_from[:40]} {name}"
