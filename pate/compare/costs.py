"""What a comparison costs: from plans, before anything is charged, and from the ledgers afterwards.

PATE and DP-SGD have ledgers of their own. Each row of the table alone costs its ε, if it was fixed
before any result was seen; a table that rests on all of them costs all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpsgd.ledgers import ledger_path as dpsgd_ledger_path
from dpsgd.outcome import find_outcome, name_of_run
from dpsgd.workplace import CHECKPOINT, private_folder
from pate.accounting import Event, Guarantee, Ledger, Neighbours, compose
from pate.accounting.data_ledger import open_data_ledger
from pate.accounting.shown import upwards
from pate.accounting.together import all_of, study_costs
from pate.compare.planned import Noted
from pate.compare.points import Point
from pate.errors import BudgetExceeded, InvalidInput
from pate.pipeline.runner import Run
from pate.pipeline.spending import ledger_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What either method's releases cost together, and both."""

    pate: Guarantee
    dpsgd: Guarantee
    releases: int  # of either method
    grown: bool = False  # points were added after results were there

    @property
    def together(self) -> Guarantee | None:
        """Both at once; None where nothing is left that could be promised.

        Guarantees:
            ε and δ add up (:func:`pate.accounting.together.all_of`). Where PATE's records were
            shuffled, its figure is for one record replaced, and DP-SGD's is restated for that.
        """
        mixed = self.pate.neighbours is not self.dpsgd.neighbours
        try:
            return all_of([self.pate, self.dpsgd], replace_one=mixed)
        except InvalidInput:  # δ of a restated figure came to one
            return None


def told(guarantee: Guarantee | None) -> str:
    """A cost in a few words, rounded up.

    >>> told(Guarantee(epsilon=1.23451, delta=1e-5))
    'ε = 1.235 at δ = 1e-05'
    >>> told(Guarantee(epsilon=9.0, delta=0.00041731))
    'ε = 9 at δ = 0.0004174'
    """
    if guarantee is None:
        return "more than any ε promises, said of one record replaced"
    return f"ε = {upwards(guarantee.epsilon)} at δ = {upwards(guarantee.delta)}"


def planned_cost(points: Sequence[Point]) -> Cost:
    """What all points will cost at most: their plans, composed.

    Guarantees:
        Log-moments add up, at the best λ: all plans are fixed before the first result is there
        (Abadi et al. 2016, Theorem 2.1).
    """
    delta = points[0].pate.privacy.delta
    pate = compose(_events(points, "pate")).guarantee(delta=delta)
    dpsgd = compose(_events(points, "dpsgd")).guarantee(delta=delta)
    return Cost(
        pate=replace(pate, neighbours=points[0].pate.partition.neighbours),
        dpsgd=replace(dpsgd, neighbours=Neighbours.ADD_REMOVE),
        releases=len(points),
    )


def _events(points: Iterable[Point], method: str) -> list[Event]:
    plans = [point.pate_plan if method == "pate" else point.dpsgd_plan for point in points]
    return [event for plan in plans for event in plan.events]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """The two ledgers of the data, as a comparison sees them."""

    pate: Path
    dpsgd: Path
    study: str

    @classmethod
    def of(cls, point: Point, *, data_root: Path, seed: int | None, study: str) -> Ledgers:
        return cls(
            pate=ledger_path(point.pate, data_root, seeded=seed is not None),
            dpsgd=dpsgd_ledger_path(point.dpsgd, data_root, seed),
            study=study,
        )

    def require_room(self, *, pate: Sequence[Point], dpsgd: Sequence[Point]) -> None:
        """Refuses what the budgets have no room for; writes nothing.

        ``pate`` and ``dpsgd`` are the points that are not paid for yet.
        """
        _require_room("PATE", self.pate, _events(pate, "pate"))
        _require_room("DP-SGD", self.dpsgd, _events(dpsgd, "dpsgd"))

    def make(self, cost: Cost) -> tuple[str, str]:
        """Makes what ledger is not there, without a budget; says of either what its budget is.

        The λ of a new one is the best for all that is planned, which is public.
        """
        return (
            _made(self.pate, cost.pate, Neighbours.REPLACE_ONE),
            _made(self.dpsgd, cost.dpsgd, Neighbours.ADD_REMOVE),
        )

    def spent(self, planned: Cost, noted: Noted) -> Cost:
        """What was paid for, as the ledgers have it.

        Guarantees:
            Where all points were fixed before the first result, the best λ of all that was planned:
            also of what is not made yet, because to stop may have been decided by results. Where
            not all were (``noted.grown``), only the figure that a ledger publishes of all its
            releases covers that (:meth:`pate.accounting.Ledger.guarantee`).
        """
        return Cost(
            pate=self._paid(self.pate, noted.pate, planned.pate.neighbours, grown=noted.grown),
            dpsgd=self._paid(self.dpsgd, noted.dpsgd, planned.dpsgd.neighbours, grown=noted.grown),
            releases=planned.releases,
            grown=noted.grown,
        )

    def _paid(
        self, path: Path, plan: tuple[Event, ...], neighbours: Neighbours, *, grown: bool
    ) -> Guarantee:
        with Ledger.open(path) as ledger:
            if grown:
                return replace(ledger.guarantee(), neighbours=neighbours)
            found = study_costs(ledger, one_teacher=neighbours)
            terms = ledger.terms.budget
        assert terms.conversion is not None
        # At the ledger's own δ, like what it paid for: figures at two δ cannot be compared.
        planned = compose(plan).guarantee(delta=terms.delta, conversion=terms.conversion)
        paid = [each.guarantee for each in found if each.name == self.study]
        largest = max([*paid, planned], key=lambda each: each.epsilon)
        caveats = paid[0].caveats if paid else ()
        return replace(largest, neighbours=neighbours, caveats=caveats)

    def charged(self) -> bool:
        """Whether anything was paid for this study before."""
        for path in (self.pate, self.dpsgd):
            if path.exists():
                with Ledger.open(path) as ledger:
                    if any(each.study == self.study for each in ledger.charges()):
                        return True
        return False


def _require_room(method: str, path: Path, events: list[Event]) -> None:
    if not path.exists():
        return  # it will be made without a budget
    with Ledger.open(path) as ledger:
        try:
            ledger.require_room(events)
        except BudgetExceeded as error:
            raise error.saying(
                f"what {method} is to release here would bring ε in {path} to "
                f"{error.needed:.6g}, past the budget of {error.budget:.6g} (spent "
                f"{error.spent:.6g}); nothing was charged: compare at fewer or smaller ε, or with "
                "fewer seeds"
            ) from error


def _made(path: Path, cost: Guarantee, neighbours: Neighbours) -> str:
    with open_data_ledger(
        path, budget=None, delta=cost.delta, neighbours=neighbours, moment=cost.moment
    ) as ledger:
        budget = ledger.terms.budget.epsilon
    room = f"within the budget of ε = {budget:g}" if budget < math.inf else "without a budget"
    return f"{path.name}: {room}"


def paid_for_pate(run: Run, ledger: Path) -> bool:
    """Whether a point's labels are released, or paid for and at hand."""
    state = next(each for each in run.states() if each.stage == "aggregate")
    if state.done or state.made_from is None or not ledger.exists():
        return state.done
    kept = [run.store.find(f"{way}-labels", state.made_from) for way in ("pending", "begun")]
    with Ledger.open(ledger) as opened:
        begins = f"labels {state.made_from[:40]} "
        return any(kept) and any(each.release.startswith(begins) for each in opened.charges())


def paid_for_dpsgd(point: Point, folder: Path, *, data_root: Path, seed: int | None) -> bool:
    """Whether a model is there, or begun: a checkpoint is written just before the charge."""
    done = find_outcome(point.dpsgd, folder, data_root=data_root, insecure_seed=seed)
    begun = private_folder(folder, name_of_run(point.dpsgd, seed)) / CHECKPOINT
    return done is not None or begun.exists()
