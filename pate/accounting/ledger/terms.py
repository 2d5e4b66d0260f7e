"""The terms of a ledger, fixed when it is created: its budget and its rule of composition."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pate.accounting.events import Event, Repeated, event_from_json, event_to_json, tally
from pate.accounting.guarantee import Analysis, Conversion, Guarantee, Neighbours
from pate.accounting.moments import DEFAULT_MOMENTS, compose, log_moment_at
from pate.errors import BudgetExceeded, InvalidInput


class Mode(StrEnum):
    """The behaviour of a ledger at its budget: refuse further charges, or only record them."""

    FILTER = "filter"  # a charge that would exceed it is refused
    ODOMETER = "odometer"  # nothing is refused; the total grows


class Basis(StrEnum):
    """The rule of composition that makes the sum of the charges a guarantee."""

    FIXED_MOMENT = "fixed-moment"  # at one λ fixed in advance; charges may depend on answers
    PLAN = "plan"  # caps on events fixed in advance, at the best λ for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a ledger; they never change."""

    budget: Guarantee
    mode: Mode
    basis: Basis
    plan: tuple[Event, ...] = ()

    @property
    def moment(self) -> float:
        """The λ at which charges are added up."""
        assert self.budget.moment is not None
        return self.budget.moment

    @property
    def conversion(self) -> Conversion:
        assert self.budget.conversion is not None
        return self.budget.conversion

    def to_json(self) -> str:
        budget = self.budget
        return json.dumps(
            {
                "epsilon": None if math.isinf(budget.epsilon) else budget.epsilon,
                "delta": budget.delta,
                "moment": budget.moment,
                "neighbours": budget.neighbours,
                "conversion": budget.conversion,
                "mode": self.mode,
                "basis": self.basis,
                "plan": [event_to_json(event) for event in self.plan],
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> Terms:
        record = json.loads(text)
        budget = Guarantee(
            epsilon=math.inf if record["epsilon"] is None else record["epsilon"],
            delta=record["delta"],
            moment=record["moment"],
            neighbours=Neighbours(record["neighbours"]),
            conversion=Conversion(record["conversion"]),
        )
        return cls(
            budget=budget,
            mode=Mode(record["mode"]),
            basis=Basis(record["basis"]),
            plan=tuple(event_from_json(event) for event in record["plan"]),
        )

    def __str__(self) -> str:
        budget = self.budget
        return (
            f"ε {budget.epsilon:g}, δ {budget.delta:g}, λ {budget.moment:g}, {budget.conversion}, "
            f"{self.mode}, {self.basis}"
        )


def moment_for(budget: Guarantee) -> float:
    """Return the λ at which a whole budget lets the most Gaussian-like cost ρλ(λ+1) through."""
    conversion = budget.conversion or Conversion.IMPROVED
    moments = DEFAULT_MOMENTS
    room = log_moment_at(moments, budget.epsilon, delta=budget.delta, conversion=conversion)
    rho = room / (moments * (moments + 1))
    best = int(np.argmax(rho))
    if not rho[best] > 0:
        raise InvalidInput(
            f"a budget of ε {budget.epsilon:g} at δ {budget.delta:g} pays for nothing"
        )
    return float(moments[best])


def agree(
    budget: Guarantee,
    mode: Mode,
    plan: Iterable[Event] | None,
    *,
    analysis: Analysis = Analysis.TIGHT,
) -> Terms:
    """Return the terms of a new ledger; refuse a plan that the budget does not cover."""
    conversion = budget.conversion or Conversion.IMPROVED
    if budget.data_dependent or budget.delta == 0:
        raise InvalidInput("a budget must be data-independent and have a delta above zero")
    if math.isinf(budget.epsilon) and mode is Mode.FILTER:
        raise InvalidInput("a filter needs a finite epsilon; use the odometer to go without")
    neighbours = budget.neighbours
    if plan is None:
        unbounded = math.isinf(budget.epsilon)
        finite = Guarantee(epsilon=1, delta=budget.delta) if unbounded else budget
        moment: float | None = budget.moment or moment_for(finite)
    else:
        if mode is Mode.ODOMETER:
            raise InvalidInput("an odometer follows charges as they come; it takes no plan")
        plan = tuple(Repeated(event, count) for event, count in tally(plan).items())
        total = compose(plan, analysis=analysis)
        best = total.guarantee(delta=budget.delta, conversion=conversion)
        neighbours = neighbours.combine(best.neighbours)
        if best.epsilon > budget.epsilon:
            raise BudgetExceeded(needed=best.epsilon, spent=0.0, budget=budget.epsilon)
        moment = best.moment
    return Terms(
        budget=Guarantee(
            epsilon=budget.epsilon,
            delta=budget.delta,
            moment=moment,
            neighbours=neighbours,
            conversion=conversion,
        ),
        mode=mode,
        basis=Basis.FIXED_MOMENT if plan is None else Basis.PLAN,
        plan=plan or (),
    )
