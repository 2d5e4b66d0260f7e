"""What a run set out to do, and paid for, before it did it.

Every call of ``fit`` is one plan with a random name of its own. The plan is written down, then
charged to the ledger under its name, then carried out. So a charge belongs to one drawing of noise:
a run that was killed goes on with what it paid for, and nothing is paid twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, final

from dpsgd.spending import MOST_STEPS, Spending
from pate.accounting import Event, Ledger
from pate.errors import InvalidInput

BARE = "step"  # the request behind Trainer.step()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps ``first`` … ``end`` − 1, as asked for by ``request`` = ``value``."""

    request: str  # "epochs", "steps", "until_epsilon" or "step"
    value: float
    first: int
    end: int
    name: str
    why: str | None = None  # it ends where it does, if that is before what was asked for

    @property
    def release(self) -> str:
        """Its name in the ledger."""
        return f"dpsgd {self.name}"

    def asks_for(self, request: tuple[str, float]) -> bool:
        return (self.request, self.value) == request


def requested(
    *, epochs: int | None, steps: int | None, until_epsilon: float | None
) -> tuple[str, float]:
    """Which one of the three was asked for, and how much of it.

    >>> requested(epochs=20, steps=None, until_epsilon=None)
    ('epochs', 20)
    """
    given = {"epochs": epochs, "steps": steps, "until_epsilon": until_epsilon}
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise InvalidInput("give exactly one of epochs, steps and until_epsilon")
    name, value = chosen[0]
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name == "until_epsilon" and not isinstance(value, (int, float)):
        raise InvalidInput(f"until_epsilon is {value!r}; it must be a number above zero")
    if name != "until_epsilon" and not (whole and value >= 1):
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number, 1 or more")
    return name, value


def make_plan(
    request: tuple[str, float],
    *,
    first: int,
    steps_per_epoch: int,
    spending: Spending,
    max_epsilon: float | None,
) -> Plan:
    """Works out how many steps a request comes to; from public numbers only, before any is taken.

    Guarantees:
        The filter: with ``max_epsilon`` no plan goes on to a step that would pass it. How many
        steps that leaves is fixed by the schedules alone, so it holds however one stops.
    """
    kind, value = request
    why = None
    if kind == "until_epsilon":
        end = max(first, spending.most_steps(value))
        if end >= MOST_STEPS:
            raise InvalidInput(
                f"more than {MOST_STEPS} steps stay within epsilon {value:g}; say how many steps"
            )
        why = f"one more step would pass ε = {value:g}"
    else:
        end = first + int(value) * (steps_per_epoch if kind == "epochs" else 1)
    if max_epsilon is not None:
        fits = max(first, spending.most_steps(max_epsilon, at_most=end))
        if fits < end:
            end, why = fits, f"one more step would pass ε = {max_epsilon:g}"
    return Plan(
        request=kind, value=value, first=first, end=end, name=secrets.token_hex(12), why=why
    )


@final
class Plans:
    """The plans of one run, in order; the last may be under way.

    After a resume ``fit`` is answered from the plans on record as long as it is called as before,
    so that a program which is simply started again ends up where it would have.
    """

    def __init__(self, plans: tuple[Plan, ...] = ()) -> None:
        self._all = list(plans)
        self._to_replay = [each for each in plans if each.request != BARE]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> Self:
        return cls(tuple(Plan(**row) for row in rows))

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._all]

    @property
    def last(self) -> Plan | None:
        return self._all[-1] if self._all else None

    @property
    def first(self) -> Plan | None:
        return self._all[0] if self._all else None

    @property
    def fixed_in_advance(self) -> bool:
        """Whether all of it was asked for before the first step, and could follow from no result"""
        return not self._all or (len(self._all) == 1 and self._all[0].request != BARE)

    @property
    def releases(self) -> set[str]:
        """Their names in the ledger."""
        return {each.release for each in self._all}

    def known(self, request: tuple[str, float], *, steps: int) -> Plan | None:
        """The plan that a call of ``fit`` goes on with; None if it asks for something new."""
        if self._to_replay:
            plan = self._to_replay.pop(0)
            if plan.asks_for(request):
                return plan
            self._to_replay.clear()
        last = self.last
        if last is not None and last.asks_for(request) and steps < last.end:
            return last
        return None

    def add(self, plan: Plan) -> None:
        self._all.append(plan)

    def drop_last(self) -> None:
        self._all.pop()

    def lengthen_last(self) -> None:
        self._all[-1] = replace(self._all[-1], end=self._all[-1].end + 1)

    def events(self, spending: Spending) -> tuple[Event, ...]:
        """Everything that was planned, and what was paid beside it."""
        parts = [spending.events(each.end, first=each.first) for each in self._all]
        return (*spending.prior, *(event for part in parts for event in part))

    def charge(
        self,
        ledger: Ledger,
        spending: Spending,
        *,
        study: str | None = None,
        settings: Iterable[str] = (),
        again: bool = False,
    ) -> None:
        """Charges every plan under its name; one that was charged before is not charged again.

        What was paid beside the steps goes with the first, and so do the digests of ``settings``.
        ``study`` is the mark of each charge.
        """
        for index, plan in enumerate(self._all):
            beside = () if index else spending.prior
            events = (*beside, *spending.events(plan.end, first=plan.first))
            ledger.charge(
                events,
                release=plan.release,
                study=study,
                settings=() if index else settings,
                again=again,
            )
