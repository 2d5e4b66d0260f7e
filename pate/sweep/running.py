"""Runs the points of a sweep one after the other, and keeps its files up to date.

What is done is skipped, so a sweep that was killed goes on where it was. Nothing is charged before
all points are planned and the budget is known to have room for them.
"""

from __future__ import annotations

import time
from dataclasses import replace

from pate.pipeline.spending import open_ledger
from pate.studies.charges import claim, others, releases_in
from pate.sweep.costing import Planned, charged_before, cost_so_far, plan_sweep
from pate.sweep.grid import Point
from pate.sweep.plotting import draw
from pate.sweep.results import Before, Results, Row, digests, read_planned
from pate.sweep.sweeping import Sweep, enough_labels

_BETWEEN_PICTURES = 20.0  # seconds: a picture takes a second, a small point less than that


def run_sweep(sweep: Sweep) -> Results:
    """Runs what is not done, and returns all of it.

    After every point the tables in the folder hold all that is finished, and the picture not much
    less. In the end the folder is a run's folder whose recipe is the first point's.

    Guarantees:
        Nothing is charged before :func:`~pate.sweep.costing.plan_sweep` has planned all points and
        found room for them. Every charge is marked with the study; a point that is done is never
        charged again.
    """
    say = sweep.options.say
    planned = plan_sweep(sweep)
    say(_announced(sweep, planned))
    results = _before(sweep, planned)
    _keep(sweep, results)
    drawn = 0.0
    finished = {row.point.number for row in results.rows}
    for point in sweep.in_order:
        if point.number in finished:
            continue
        say(f"point {point.number} of {len(sweep.grid.points)}: {point}")
        results = _with(sweep, results, _run(sweep, point))
        _keep(sweep, results)
        if time.monotonic() - drawn > _BETWEEN_PICTURES:
            draw(results, sweep.folder)
            drawn = time.monotonic()
    _leave_first(sweep)
    draw(results, sweep.folder)
    return results


def _announced(sweep: Sweep, planned: Planned) -> str:
    points = len(sweep.grid.points)
    paid = planned.all.releases - len(planned.unpaid)
    told = f"{points} point{'s' * (points > 1)}: at most {planned.all.told()}"
    return f"{told}; {paid} of them paid for before" if paid else told


def _before(sweep: Sweep, now: Planned) -> Results:
    """What an earlier command finished, and whether this one adds points to what it planned.

    What was planned and never charged for was never seen, either: it is forgotten.
    """
    with open_ledger(sweep.grid.points[0].recipe, sweep.options) as ledger:
        charged, elsewhere = charged_before(sweep, ledger)
    own = digests(sweep.grid.points)
    before = read_planned(sweep.folder)
    if before is None or not charged:
        before = Before(planned=own, together=now.all, grown=charged)
    grown = before.grown or elsewhere or not set(own) <= set(before.planned)
    rows = tuple(_row(sweep, point) for point in sweep.grid.points if _finished(sweep, point))
    results = Results(
        grid=sweep.grid,
        study=sweep.study,
        rows=(),
        cost=None,
        planned=tuple(dict.fromkeys([*before.planned, *own])),
        together=before.together,
        grown=grown,
    )
    return _with(sweep, results, *rows) if rows else results


def _finished(sweep: Sweep, point: Point) -> bool:
    run = sweep.run(point)
    done = {state.stage for state in run.states() if state.done}
    return "evaluate" in done or ("account" in done and not enough_labels(run))


def _run(sweep: Sweep, point: Point) -> Row:
    """Runs a point to its end; one whose labels are too few for a student ends without one."""
    run = sweep.run(point)
    run.execute(until="account")
    if enough_labels(run):
        run.execute()
    else:
        sweep.options.say("its labels are of one class at most, too few for a student")
    return _row(sweep, point)


def _row(sweep: Sweep, point: Point) -> Row:
    run = sweep.run(point)
    return Row.of(point, run, student=enough_labels(run))


def _with(sweep: Sweep, results: Results, *rows: Row) -> Results:
    """The results with more rows, and with what all of them cost together by now.

    A row that was charged by itself, or for another study, came before this one: that stays so.
    """
    ordered = sorted([*results.rows, *rows], key=lambda row: row.point.number)
    drawn = {row.drawn for row in ordered}
    with open_ledger(sweep.grid.points[0].recipe, sweep.options) as ledger:
        grown = results.grown or others(ledger, releases_in(sweep.store, drawn), study=sweep.study)
        cost = cost_so_far(sweep, ledger, drawn=drawn, planned=results.together, grown=grown)
    return replace(results, rows=tuple(ordered), cost=cost, grown=grown)


def _keep(sweep: Sweep, results: Results) -> None:
    """Writes the tables, and only then marks what was charged by itself as part of the study."""
    results.write(sweep.folder)
    drawn = {row.drawn for row in results.rows}
    with open_ledger(sweep.grid.points[0].recipe, sweep.options) as ledger:
        claim(ledger, releases_in(sweep.store, drawn), study=sweep.study)


def _leave_first(sweep: Sweep) -> None:
    """The folder's recipe is the first point's, whichever was run last."""
    run = sweep.run(sweep.grid.points[0])
    run.execute(until=None if enough_labels(run) else "account")
