"""What a comparison costs: from plans, before anything is charged, and from the ledgers afterwards.

PATE and DP-SGD have ledgers of their own. Each row of the table alone costs its ε, if it was fixed
before any result was seen; a table that rests on all of them costs all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpsgd.checkpoint import releases
from dpsgd.ledgers import ledger_path as dpsgd_ledger_path
from dpsgd.outcome import find_outcome, name_of_run
from dpsgd.workplace import CHECKPOINT, private_folder
from pate._format import describe_neighbours, format_epsilon
from pate.accounting import Event, Guarantee, Ledger, Neighbours, compose
from pate.accounting.data_ledger import open_data_ledger
from pate.accounting.events import relation_of
from pate.accounting.together import WholeStudy, whole_study
from pate.compare.points import Point
from pate.errors import BudgetExceeded
from pate.pipeline.spending import ledger_path
from pate.stages.releasing import releases_in_ledger


def told(guarantee: Guarantee | None) -> str:
    """A cost in a few words, rounded up.

    >>> told(Guarantee(epsilon=1.23451, delta=1e-5))
    'ε = 1.235 at δ = 1e-05'
    >>> told(Guarantee(epsilon=9.0, delta=0.00041731))
    'ε = 9 at δ = 0.0004174'
    """
    if guarantee is None:
        return "more than any ε promises, said of one record replaced"
    figure = f"ε = {format_epsilon(guarantee.epsilon)} at δ = {format_epsilon(guarantee.delta)}"
    stated = guarantee.neighbours is not Neighbours.AS_STATED
    return f"{figure} for {describe_neighbours(guarantee.neighbours)}" if stated else figure


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
        votes, steps = _events(pate, "pate"), _events(dpsgd, "dpsgd")
        relation = pate[0].pate.partition.neighbours if pate else None
        _require_room("PATE", self.pate, votes, records=relation, beside=steps)
        _require_room("DP-SGD", self.dpsgd, steps)

    @contextmanager
    def opened(self, points: Sequence[Point]) -> Iterator[tuple[Ledger, Ledger]]:
        """Both ledgers; one that is not there is made, without a budget.

        The λ of a new one is the best for all that is planned, which is public.
        """
        delta = points[0].pate.privacy.delta
        with ExitStack() as stack:
            made = [
                stack.enter_context(
                    open_data_ledger(
                        path,
                        budget=None,
                        delta=delta,
                        neighbours=neighbours,
                        moment=compose(_events(points, method)).guarantee(delta=delta).moment,
                    )
                )
                for method, path, neighbours in (
                    ("pate", self.pate, Neighbours.REPLACE_ONE),
                    ("dpsgd", self.dpsgd, Neighbours.ADD_REMOVE),
                )
            ]
            yield made[0], made[1]

    def plan(self, points: Sequence[Point], pate: Ledger, dpsgd: Ledger, *, protects: str) -> None:
        """Writes down in both what is planned, unless results of either method are there.

        Guarantees:
            A result of one method may lead to releases of the other, so either plan is fixed only
            while nothing of the study was charged in either ledger.
        """
        begun = any(self.study in each.studies for book in (pate, dpsgd) for each in book.charges())
        for book, method, who in (
            (pate, "pate", protects),
            (dpsgd, "dpsgd", describe_neighbours(relation_of(_events(points, "dpsgd")))),
        ):
            plans = [_events([point], method) for point in points]
            book.plan_study(self.study, plans, protects=who, begun=begun)

    def cost(
        self,
        pate: Ledger,
        dpsgd: Ledger,
        *,
        points: Sequence[Point],
        unpaid: Sequence[Point] = (),
        untrained: Sequence[Point] = (),
    ) -> WholeStudy:
        """What the study costs by both ledgers, once ``unpaid`` and ``untrained`` are made, too."""
        return whole_study(
            pate,
            dpsgd,
            self.study,
            more=[_events([point], "pate") for point in unpaid],
            more_there=[_events([point], "dpsgd") for point in untrained],
            one_teacher=points[0].pate.partition.neighbours,
        )


def budget_told(ledger: Ledger) -> str:
    budget = ledger.terms.budget.epsilon
    room = f"within the budget of ε = {budget:g}" if budget < math.inf else "without a budget"
    return f"{ledger.path.name}: {room}"


def _require_room(
    method: str,
    path: Path,
    events: list[Event],
    *,
    records: Neighbours | None = None,
    beside: Iterable[Event] = (),
) -> None:
    if not path.exists():
        return  # it will be made without a budget
    with Ledger.open(path) as ledger:
        try:
            ledger.require_room(events, records=records, beside=beside)
        except BudgetExceeded as error:
            raise error.saying(
                f"what {method} is to release here would bring ε in {path} to "
                f"{error.needed:.6g}, past the budget of {error.budget:.6g} (spent "
                f"{error.spent:.6g}); nothing was charged: compare at fewer or smaller ε, or with "
                "fewer seeds"
            ) from error


def paid_for_dpsgd(
    point: Point, folder: Path, *, ledger: Path, data_root: Path, seed: int | None
) -> bool:
    """Whether a model is there, or begun and charged: a checkpoint comes just before its charge."""
    if find_outcome(point.dpsgd, folder, data_root=data_root, insecure_seed=seed) is not None:
        return True
    begun = private_folder(folder, name_of_run(point.dpsgd, seed)) / CHECKPOINT
    return begun.exists() and releases(begun) <= releases_in_ledger(ledger)
