"""What a sweep costs: before anything is charged from plans alone, and afterwards from the ledger.

Guarantees:
    Each point alone costs its own ε, if it was fixed before any result was seen. Whoever chooses
    the best of them by its result, or publishes them all, has spent what all of them cost together:
    what the ledger says of the study (:func:`pate.accounting.ledger.study_costs.study_cost`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pate.accounting import Conversion, Event, Ledger, compose
from pate.accounting.ledger.study_costs import StudyCost, study_cost
from pate.errors import BudgetExceeded
from pate.mechanisms import Plan
from pate.pipeline.recipe import Recipe
from pate.pipeline.runner import Run
from pate.pipeline.spending import open_ledger
from pate.stages.drawing import plan_of
from pate.stages.paid import require_paid
from pate.studies.charges import claim, claim_labels, drawn_for, is_paid, releases_in
from pate.sweep.grid import Point
from pate.sweep.sweeping import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a sweep will ask for; public, and known before a vote is opened."""

    releases: int  # of this command
    cost: StudyCost  # of the study, once all of them are made
    unpaid: tuple[tuple[Event, ...], ...]  # of the releases that the ledger has not paid for yet


def plan_sweep(sweep: Sweep) -> Planned:
    """Plans every release of the sweep, and makes sure that the budget has room for all of them.

    The data are read first, because a plan asks for no more than there are public inputs.
    Everything that can be wrong with a point's shards is found here, too: nothing is paid yet. The
    plan is in the ledger before anything is charged, and what was charged by itself bears the mark
    of the study from here on.
    """
    for point in sweep.one_of_each("partition"):
        sweep.run(point).execute(until="partition")
    points = sweep.one_of_each("aggregate")
    runs = [sweep.run(point) for point in points]
    plans = [planned(run, point) for run, point in zip(runs, points, strict=True)]
    require_paid(runs[0])
    first = points[0].recipe
    conversion = Conversion(first.privacy.conversion)
    # The λ of a ledger that this sweep is the first to use: the best one for all of its plans.
    whole = compose(event for plan in plans for event in plan.events)
    moment = whole.guarantee(delta=first.privacy.delta, conversion=conversion).moment
    with open_ledger(first, sweep.options, moment=moment) as ledger:
        unpaid = tuple(
            plan.events for run, plan in zip(runs, plans, strict=True) if not is_paid(run, ledger)
        )
        _require_room(ledger, unpaid, first)
        ledger.plan_study(sweep.study, [plan.events for plan in plans], protects=_protects(runs[0]))
        claim(ledger, releases_in(sweep.store, drawn_for(runs)), study=sweep.study)
        cost = study_cost(ledger, sweep.study, more=unpaid)
    return Planned(releases=len(plans), cost=cost, unpaid=unpaid)


def _protects(run: Run) -> str:
    return run.recipe.partition.protects(named=bool(run.artifact("data").facts["named"]))


def planned(run: Run, point: Point) -> Plan:
    """The most that a point will ask, and what that costs; no vote is read."""
    inputs = len(run.artifact("data-public").array("features.npy"))
    try:
        return plan_of(run.recipe, inputs=inputs)
    except BudgetExceeded as error:
        raise error.saying(f"{point}: {error}") from error


def _require_room(ledger: Ledger, unpaid: tuple[tuple[Event, ...], ...], recipe: Recipe) -> None:
    try:
        ledger.require_room(
            (event for events in unpaid for event in events), records=recipe.partition.neighbours
        )
    except BudgetExceeded as error:
        what = "the release" if len(unpaid) == 1 else f"the {len(unpaid)} releases"
        raise error.saying(
            f"{what} of this sweep would bring ε to {error.needed:.6g}, past the budget of "
            f"{error.budget:.6g} (spent {error.spent:.6g}, left {error.left:.6g}); nothing was "
            "charged: sweep over fewer values, or with more noise"
        ) from error


def cost_so_far(sweep: Sweep, points: Iterable[Point]) -> StudyCost:
    """What the study has come to by the ledger, with all that was planned.

    What the ``points`` that were finished last rest on is of the study, whoever drew it: it is
    marked here.
    """
    with open_ledger(sweep.grid.points[0].recipe, sweep.options) as ledger:
        claim_labels(ledger, map(sweep.run, points), study=sweep.study)
        return study_cost(ledger, sweep.study)
