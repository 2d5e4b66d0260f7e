"""Runs the points of a sweep one after the other, and keeps its files up to date.

What is done is skipped, so a sweep that was killed goes on where it was. Nothing is charged before
all points are planned and the budget is known to have room for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from pate.studies.files import require_own
from pate.sweep.costing import Planned, cost_so_far, plan_sweep
from pate.sweep.grid import Point
from pate.sweep.plotting import draw
from pate.sweep.results import STEM, Results, Row
from pate.sweep.sweeping import Sweep, enough_labels

_BETWEEN_PICTURES = 20.0  # seconds: a picture takes a second, a small point less than that
_REST = 20  # times as long as a picture took: most of the time goes into points


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
    require_own(sweep.folder, STEM, seeded=sweep.options.insecure_seed is not None)
    planned = plan_sweep(sweep)
    for line in _announced(sweep, planned):
        say(line)
    rows = [_row(sweep, point) for point in sweep.grid.points if _finished(sweep, point)]
    results = _kept(sweep, rows, new=rows)
    again = 0.0
    finished = {row.point.number for row in rows}
    for point in sweep.in_order:
        if point.number in finished:
            continue
        say(f"point {point.number} of {len(sweep.grid.points)}: {point}")
        rows.append(_run(sweep, point))
        results = _kept(sweep, rows, new=rows[-1:])
        if time.monotonic() > again:
            start = time.monotonic()
            draw(results, sweep.folder)
            again = time.monotonic() + max(_BETWEEN_PICTURES, _REST * (time.monotonic() - start))
    _leave_first(sweep)
    draw(results, sweep.folder)
    return results


def _announced(sweep: Sweep, planned: Planned) -> Iterator[str]:
    points, cost = len(sweep.grid.points), planned.cost
    what = f"{points} point{'s' * (points > 1)}"
    paid = planned.releases - len(planned.unpaid)
    if cost.in_advance:
        told = f"{what}: the study costs at most {cost.told()}"
        yield f"{told}; {paid} of these points' releases are paid for" if paid else told
        return
    unpaid = len(planned.unpaid)
    yield (
        f"{what}, {unpaid or 'none'} to be paid for; not all of the study “{cost.name}” was "
        f"planned before its first result. To look at it costs {cost.told(why=False)}, what the "
        "ledger says of all its releases"
        + ("; for a study of its own, choose another --out." if unpaid else ".")
    )


def _kept(sweep: Sweep, rows: Sequence[Row], *, new: Sequence[Row]) -> Results:
    """All rows in order, with what the study has come to; the tables in the folder hold them.

    The charges of the ``new`` rows are marked as the study's; those of the others were before.
    """
    ordered = tuple(sorted(rows, key=lambda row: row.point.number))
    seeded = sweep.options.insecure_seed is not None
    cost = cost_so_far(sweep, [row.point for row in new])
    results = Results(grid=sweep.grid, rows=ordered, cost=cost, seeded=seeded)
    results.write(sweep.folder)
    return results


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


def _leave_first(sweep: Sweep) -> None:
    """The folder's recipe is the first point's, whichever was run last."""
    run = sweep.run(sweep.grid.points[0])
    run.execute(until=None if enough_labels(run) else "account")
