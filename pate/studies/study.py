"""A study: releases that are made to be compared (a sweep, a comparison).

A study has a folder of its own, whose name is in its tag. Its charges carry that tag from the
moment they are made, and it uses no other release: so the charges with its tag are all that its
results rest on. What choosing by these results costs is the cost of the plan that the ledger
recorded before the first charge, if the plan covers all of them; otherwise what the ledger states
for all its releases (:func:`pate.accounting.ledger.study_costs.study_cost`).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from pate._format import describe_neighbours
from pate.accounting import Event, Ledger, Neighbours, compose
from pate.accounting.events import relation_of
from pate.accounting.ledger.data_ledger import (
    PlannedCharge,
    open_data_ledger,
    require_no_earlier,
)
from pate.accounting.ledger.schema import copy_charges
from pate.accounting.ledger.study_costs import TotalStudyCost, compose_votes, total_study_cost
from pate.artifacts import Artifact
from pate.artifacts.results import LABELS, Answers, ChargeNote, charge_name, drawn_for
from pate.errors import BudgetExceeded, InvalidInput
from pate.pipeline.runner import PipelineRun

_Releases = Sequence[Sequence[Event]]  # the events of each release

_DRAWS = (f"pending-{LABELS}", f"begun-{LABELS}")  # as pate.stages.exactly_once keeps them


def tag_of(kind: str, folder: Path) -> str:
    """Return the tag of a study: its kind, and the name of its folder.

    >>> tag_of("sweep", Path("runs/digits-sweep"))
    'sweep digits-sweep'
    """
    name = folder.absolute().name
    if not name.isprintable():
        raise InvalidInput(f"--out {folder!s:.80} has unprintable characters; choose another")
    return f"{kind} {name}"


def is_paid(run: PipelineRun, ledger: Ledger) -> bool:
    """Return whether a run's labels are released, or drawn and charged."""
    state = next(each for each in run.states() if each.stage == "aggregate")
    if state.done or state.made_from is None:
        return state.done
    paid = ledger.releases()
    return any(ChargeNote.load(draw).release in paid for draw in _draws(run, state.made_from))


def enough_labels(run: PipelineRun) -> bool:
    """Return whether the released labels are of two classes or more: else no student learns."""
    return len(np.unique(Answers.load(run.artifact("aggregate")).row_labels)) > 1


def require_own_labels(runs: Iterable[PipelineRun], ledger: Ledger, *, tag: str) -> None:
    """Refuse to use labels that were not released for the study.

    To be called before anything is charged, and again for what was released since: another command
    may have released labels in the folder meanwhile.

    Guarantees:
        Every charge behind the labels of these runs carries the tag, so that none is missing from
        the cost of the study.
    """
    charges = {each.release: each.studies for each in ledger.charges()}
    for run in runs:
        for release, planned_for in _releases_behind(run, charges):
            tags = charges.get(release, (planned_for or tag,))
            if tag not in tags:
                made = f"for the study “{tags[0]}”" if tags else "by a run of its own"
                raise InvalidInput(
                    f"{run.folder} holds labels that were released {made}, and a study uses only "
                    f"what was released for it, here “{tag}”; give another --out and --spend, "
                    "which pays for releases of its own"
                )


def _releases_behind(run: PipelineRun, charged: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the charges behind a run's labels, each with the study that a draw is to be paid for.

    None are known where the votes, from which the labels' fingerprint follows, are not there yet.
    """
    state = next(each for each in run.states() if each.stage == "aggregate")
    if state.made_from is None:
        return
    drawn = drawn_for(run.artifact("aggregate")) if state.done else state.made_from
    assert drawn is not None
    draws = _draws(run, drawn)
    for draw in draws:
        note = ChargeNote.load(draw)
        yield note.release, note.study
        for release in draw.facts.get("charges", ())[1:]:  # what it extends
            yield release, None
    if state.done and not draws:  # of a draw that is gone the last part of its name is unknown
        for release in charged:
            if release.startswith(charge_name(LABELS, drawn)):
                yield release, None


def _draws(run: PipelineRun, drawn: str) -> list[Artifact]:
    """Return the draw of some labels, from before or after its charge, where it is in the store."""
    found = (run.store.find(kind, drawn) for kind in _DRAWS)
    return [each for each in found if each is not None]


# --- a study of two methods -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLedgers:
    """The ledgers of a data set's PATE and DP-SGD releases, and what a study plans in each."""

    tag: str
    pate: Path
    dpsgd: Path
    delta: float
    relation: Neighbours  # between records, under which one teacher changes
    votes: _Releases  # that PATE is to make: labels of teachers, or tables of record votes
    steps: _Releases  # that DP-SGD is to make
    group: str | None = None  # the column of the users, where they are protected

    def require_room(self, votes: _Releases, steps: _Releases) -> None:
        """Refuse releases that the budgets have no room for; write nothing.

        Copies of the ledgers are asked, with what :meth:`opened` would make of a missing one: the
        data set's budget binds it, too.
        """
        made = [each for each in (self.pate, self.dpsgd) if each.exists()]
        if not made:
            return  # both will be created without a budget
        labels, training = list(chain(*votes)), list(chain(*steps))
        with self._copied() as (pate, dpsgd):
            of_pate = partial(pate.require_room, labels, records=self.relation)
            of_dpsgd = partial(dpsgd.require_room, training)
            so = uncharged(self.tag, pate, dpsgd)
            if self.pate in made:
                _require_room("PATE is", self.pate, of_pate, so)
            if self.dpsgd in made:
                _require_room("DP-SGD is", self.dpsgd, of_dpsgd, so)
            of_both = partial(of_pate, sibling_events=training) if labels else of_dpsgd
            _require_room("both methods are", made[0], of_both, so)

    @contextmanager
    def opened(self) -> Iterator[tuple[Ledger, Ledger]]:
        """Open both ledgers; one that is missing is created, without a budget.

        The λ of a new one is the best for all that is planned, which is public.
        """
        by_user = relation_of(chain(*self.steps)).of_users
        unit = Neighbours.USER_ADD_REMOVE if by_user else Neighbours.ADD_REMOVE
        votes = compose_votes(chain(*self.votes), one_teacher=self.relation)
        with ExitStack() as stack:
            pate, dpsgd = (
                stack.enter_context(
                    open_data_ledger(
                        path,
                        budget=None,
                        delta=self.delta,
                        neighbours=neighbours,
                        moment=planned.guarantee(delta=self.delta).moment,
                    )
                )
                for path, neighbours, planned in (
                    (self.pate, Neighbours.REPLACE_ONE, votes),
                    (self.dpsgd, unit, compose(chain(*self.steps))),
                )
            )
            yield pate, dpsgd

    @contextmanager
    def _copied(self) -> Iterator[tuple[Ledger, Ledger]]:
        """Open copies of both ledgers, as by :meth:`opened`, in a temporary folder."""
        with tempfile.TemporaryDirectory() as folder:
            copies = replace(
                self, pate=Path(folder) / self.pate.name, dpsgd=Path(folder) / self.dpsgd.name
            )
            for place, copy in ((self.pate, copies.pate), (self.dpsgd, copies.dpsgd)):
                require_no_earlier(place)
                if place.exists():
                    copy_charges(place, copy)
            with copies.opened() as both:
                yield both

    def preview(self, votes: _Releases, steps: _Releases) -> Iterator[PlannedCharge]:
        """Yield what these releases would be charged, by copies of the ledgers; change nothing."""
        labels, training = list(chain(*votes)), list(chain(*steps))
        with self._copied() as (pate, dpsgd):
            if labels:
                of = f"{releases_in_words(len(votes))} of PATE"
                yield PlannedCharge.make(
                    pate, labels, records=self.relation, path=self.pate.absolute(), of=of
                )
                for each in votes:
                    noted = relation_of(each)
                    if noted is Neighbours.REPLACE_ONE:  # of one teacher
                        noted = self.relation
                    pate.charge(each, release=f"planned {len(pate.releases())}", records=noted)
            if training:
                of = f"{releases_in_words(len(steps))} of DP-SGD"
                yield PlannedCharge.make(dpsgd, training, path=self.dpsgd.absolute(), of=of)

    def plan(self, pate: Ledger, dpsgd: Ledger, *, protects: str) -> None:
        """Record in both ledgers what is planned, unless results of either method are there.

        Guarantees:
            A result of one method may lead to releases of the other, so either plan is fixed only
            while nothing of the study was charged in either ledger.
        """
        begun = _begun(self.tag, pate, dpsgd)
        relation = describe_neighbours(relation_of(chain(*self.steps)))
        pate.plan_study(self.tag, self.votes, protects=protects, begun=begun)
        dpsgd.plan_study(self.tag, self.steps, protects=relation, begun=begun)

    def cost(
        self, pate: Ledger, dpsgd: Ledger, *, unpaid: _Releases = (), untrained: _Releases = ()
    ) -> TotalStudyCost:
        """Return the cost of the study by both ledgers, with releases that are still to be made."""
        return total_study_cost(
            pate,
            dpsgd,
            self.tag,
            more=unpaid,
            more_there=untrained,
            one_teacher=self.relation,
            group=self.group,
        )


def _begun(tag: str, *ledgers: Ledger) -> bool:
    return any(tag in each.studies for ledger in ledgers for each in ledger.charges())


def uncharged(tag: str, *ledgers: Ledger) -> str:
    """Return a clause for a refusal: nothing was charged, or nothing more if a study was begun."""
    return f"nothing {'more ' if _begun(tag, *ledgers) else ''}was charged"


def _require_room(who: str, path: Path, ask: Callable[[], None], uncharged: str) -> None:
    try:
        ask()
    except BudgetExceeded as error:
        raise error.with_reason(
            f"what {who} to release here would {error.excess} in {path}; {uncharged}: "
            "compare at fewer or smaller ε, or with fewer seeds"
        ) from error


def budget_in_words(ledger: Ledger) -> str:
    """Return the place of a ledger, and its budget."""
    budget = ledger.terms.budget.epsilon
    room = f"within the budget of ε = {budget:g}" if budget < math.inf else "without a budget"
    return f"{ledger.path.absolute()}: {room}"


def releases_in_words(count: int) -> str:
    """Return a number of releases, as a phrase."""
    return "1 release" if count == 1 else f"{count} releases"
