"""What a sweep costs: before anything is charged from plans alone, and afterwards.

Guarantees:
    Each point alone costs its own ε, if it was fixed before any result was seen. Whoever chooses
    the best of them by its result, or publishes them all, has spent what all of them cost together.
    Where one command fixed all points before the first result, their log-moments add up at the best
    λ (Abadi et al. 2016, Theorem 2.1). Where points were added after results were there, only the
    ledger's own figure covers that (:meth:`pate.accounting.Ledger.guarantee`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pate.accounting import Conversion, Event, Guarantee, Ledger, compose
from pate.accounting.shown import upwards
from pate.accounting.together import study_costs
from pate.errors import BudgetExceeded
from pate.mechanisms import Plan
from pate.pipeline.runner import Run
from pate.pipeline.spending import open_ledger
from pate.stages.drawing import plan_of
from pate.studies.charges import release_of, releases_in
from pate.sweep.grid import Point
from pate.sweep.sweeping import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What several releases cost together."""

    releases: int
    guarantee: Guarantee
    in_advance: bool = True  # all of them were fixed before the first result
    unpaid: int = 0  # of them, planned and not made yet

    def told(self) -> str:
        """In words.

        >>> Cost(releases=2, guarantee=Guarantee(epsilon=1.2345, delta=1e-5)).told()
        'ε = 1.235 at δ = 1e-05 for 2 releases together'
        >>> Cost(releases=3, guarantee=Guarantee(epsilon=1.5, delta=1e-5), unpaid=2).told()
        'ε = 1.5 at δ = 1e-05 for 3 releases together, 2 of them planned and not made'
        """
        epsilon, delta = upwards(self.guarantee.epsilon), upwards(self.guarantee.delta)
        if self.releases == 1:
            return f"ε = {epsilon} at δ = {delta} for 1 release"
        left = f", {self.unpaid} of them planned and not made" if self.unpaid else ""
        return f"ε = {epsilon} at δ = {delta} for {self.releases} releases together{left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a sweep will ask for; public, and known before a vote is opened."""

    all: Cost
    unpaid: tuple[tuple[Event, ...], ...]  # of the releases that the ledger has not paid for yet


def plan_sweep(sweep: Sweep) -> Planned:
    """Plans every release of the sweep, and makes sure that the budget has room for all of them.

    The data are read first, because a plan asks for no more than there are public inputs.
    Everything that can be wrong with a point's shards is found here, too: nothing is paid yet.
    """
    for point in sweep.one_of_each("partition"):
        sweep.run(point).execute(until="partition")
    points = sweep.one_of_each("aggregate")
    plans = [planned(sweep.run(point), point) for point in points]
    conversion = Conversion(points[0].recipe.privacy.conversion)
    events = [event for plan in plans for event in plan.events]
    # The λ of a ledger that this sweep is the first to use: the best one for all of its plans.
    whole = compose(events).guarantee(delta=points[0].recipe.privacy.delta, conversion=conversion)
    with open_ledger(points[0].recipe, sweep.options, moment=whole.moment) as ledger:
        terms = ledger.terms.budget
        assert terms.conversion is not None
        unpaid = tuple(
            plan.events
            for point, plan in zip(points, plans, strict=True)
            if not _paid(sweep.run(point), ledger)
        )
        _require_room(ledger, unpaid)
    together = compose(events).guarantee(delta=terms.delta, conversion=terms.conversion)
    return Planned(all=Cost(releases=len(plans), guarantee=together), unpaid=unpaid)


def planned(run: Run, point: Point) -> Plan:
    """The most that a point will ask, and what that costs; no vote is read."""
    inputs = len(run.artifact("data-public").array("features.npy"))
    try:
        return plan_of(run.recipe, inputs=inputs)
    except BudgetExceeded as error:
        raise error.saying(f"{point}: {error}") from error


def _paid(run: Run, ledger: Ledger) -> bool:
    """Whether a point's labels are released, or paid for and at hand."""
    state = next(state for state in run.states() if state.stage == "aggregate")
    if state.done or state.made_from is None:
        return state.done
    kept = [run.store.find(f"{s}-labels", state.made_from) for s in ("pending", "begun")]
    paid = {each.release for each in ledger.charges()}
    return any(release_of(answer) in paid for answer in kept if answer is not None)


def _require_room(ledger: Ledger, unpaid: tuple[tuple[Event, ...], ...]) -> None:
    try:
        ledger.require_room(event for events in unpaid for event in events)
    except BudgetExceeded as error:
        what = "the release" if len(unpaid) == 1 else f"the {len(unpaid)} releases"
        raise error.saying(
            f"{what} of this sweep would bring ε to {error.needed:.6g}, past the budget of "
            f"{error.budget:.6g} (spent {error.spent:.6g}, left {error.left:.6g}); nothing was "
            "charged: sweep over fewer values, or with more noise"
        ) from error


def cost_so_far(
    sweep: Sweep, ledger: Ledger, *, drawn: Iterable[str], planned: Cost, grown: bool
) -> Cost:
    """What released points cost together, and all that the study paid for besides.

    ``drawn`` are the fingerprints of their labels; ``planned`` is what all points cost that were
    fixed in advance; ``grown`` says whether points were added after results were there. A point
    that was run before, and for itself, was not fixed with the others.

    Guarantees:
        While some of what was planned is not made, what all of it costs is said: to stop may have
        been decided by results, and no smaller figure at the best λ covers that.
    """
    marks = _releases(ledger, drawn)
    study = next((each for each in study_costs(ledger) if each.name == sweep.study), None)
    unmarked = sum(mark != sweep.study for mark in marks.values())
    releases = unmarked + (0 if study is None else study.releases)
    if study is None or unmarked or grown:
        return Cost(releases=releases, guarantee=ledger.guarantee(), in_advance=False)
    if releases < planned.releases:
        return replace(planned, unpaid=planned.releases - releases)
    return Cost(releases=releases, guarantee=study.guarantee)


def charged_before(sweep: Sweep, ledger: Ledger) -> tuple[bool, bool]:
    """Whether the study was charged already, and whether for an answer that is not in this folder.

    A sweep of the same name in another folder is the same study to the ledger, and so is one whose
    folder was removed: what came out of it may have been looked at.
    """
    here = releases_in(sweep.store)
    study = [each.release for each in ledger.charges() if each.study == sweep.study]
    return bool(study), any(release not in here for release in study)


def _releases(ledger: Ledger, made_from: Iterable[str]) -> dict[str, str | None]:
    """Charges for the labels of these fingerprints, and the study each was made for."""
    begins = tuple(f"labels {each[:40]} " for each in made_from)
    charges = ledger.charges()
    return {each.release: each.study for each in charges if each.release.startswith(begins)}
