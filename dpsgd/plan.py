"""Plans of a run, and their cost: fixed, and paid for, before the first step.

Every call of ``fit`` is one plan with a random name of its own. The plan is written down, then
charged to the ledger under its name, then carried out. So a charge belongs to one draw of noise: a
killed run resumes what it paid for, and nothing is paid twice.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Self, final

from dpsgd.schedules import Constant, Piecewise, Schedule
from pate._format import format_epsilon
from pate._validate import check_choice, check_delta, check_positive, check_whole
from pate.accounting import (
    Event,
    Guarantee,
    Ledger,
    Repeated,
    compose,
    odometer_epsilon,
    smallest_noise,
)
from pate.accounting.calibrate import DpsgdAccountant, Method, dpsgd_step
from pate.accounting.guarantee import Conversion
from pate.accounting.ledger.terms import moment_for
from pate.errors import InvalidInput

_FINE = math.log(1.01)  # the grid of a noise multiplier that changes at every step
MOST_STEPS = 10_000_000
BARE = "step"  # the request behind Trainer.step()


def method_named(accountant: str) -> Method:
    """Return the accountant of this name."""
    return Method(check_choice("accountant", accountant, [method.value for method in Method]))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The cost of step 0, 1, 2, … of a run whose sampling and noise are fixed in advance.

    Guarantees:
        * A step is a Poisson sample and a Gaussian mechanism: ``SampledGaussian``, composed by
          Abadi et al. 2016, Theorem 2.1 (moments) or by privacy loss distributions. The best λ may
          be used because noise and sampling of every step are fixed before the first.
        * :meth:`guarantee` holds for a number of steps that was fixed in advance. If results
          decided to end training early, the ε of the whole plan holds (dropping the rest is
          post-processing). :meth:`odometer` holds at any stopping time.

    >>> spending = Spending(sample_rate=0.01, noise_multiplier=Constant(4.0), delta=1e-5)
    >>> round(spending.guarantee(10_000).epsilon, 3), spending.most_steps(1.0, at_most=100_000)
    (1.035, 9376)
    """

    sample_rate: float  # the probability of an example to be in a lot
    noise_multiplier: Schedule  # the noise over the clipping norm, by step
    delta: float
    accountant: str = "moments"
    prior: tuple[Event, ...] = ()  # costs paid beside the steps, such as those of a private PCA
    caveats: tuple[str, ...] = ()  # of every guarantee
    moment: float | None = None  # λ of the odometer, fixed in advance; None: the best for ε = 1
    public_rate: bool = False  # True: costs are for one record added or removed; else zero-out
    per_user: bool = False  # True: costs are for all records of one user

    def __post_init__(self) -> None:
        check_delta(self.delta)
        method_named(self.accountant)
        self._step(self.multiplier(0))

    def multiplier(self, step: int) -> float:
        """Return the noise multiplier that a step uses and is charged for.

        A multiplier that changes at every step is rounded up to a hundredth of itself, in the noise
        and in the account alike: the account stays exact, and has tens of terms, not thousands.
        """
        value = self.noise_multiplier(step)
        if isinstance(self.noise_multiplier, (Constant, Piecewise)):
            return value
        return math.exp(math.ceil(math.log(value) / _FINE - 1e-6) * _FINE)

    def events(self, steps: int, *, first: int = 0) -> tuple[Event, ...]:
        """Return the events of the steps ``first`` … ``steps`` − 1, without ``prior``."""
        if isinstance(self.noise_multiplier, Constant):
            runs = [(self.noise_multiplier.value, max(0, steps - first))]
        else:
            noise = map(self.multiplier, range(first, steps))
            runs = [(value, sum(1 for _ in run)) for value, run in groupby(noise)]
        return tuple(Repeated(self._step(value), count) for value, count in runs if count)

    def _step(self, noise_multiplier: float) -> Event:
        make = dpsgd_step(self.sample_rate, public_rate=self.public_rate, per_user=self.per_user)
        return make(noise_multiplier)

    def guarantee(self, steps: int) -> Guarantee:
        """Return (ε, δ) of the first ``steps`` steps and of ``prior``."""
        return self.guarantee_of((*self.prior, *self.events(steps)))

    def guarantee_of(self, events: tuple[Event, ...]) -> Guarantee:
        """Return (ε, δ) of any events, by this accountant and with these caveats."""
        if not events:
            return Guarantee(epsilon=0.0, delta=self.delta, caveats=self.caveats)
        accountant = DpsgdAccountant(delta=self.delta, method=method_named(self.accountant))
        return dataclasses.replace(accountant.guarantee(list(events)), caveats=self.caveats)

    def most_steps(self, epsilon: float, *, at_most: int = MOST_STEPS) -> int:
        """Return the largest number of steps, up to ``at_most``, that stays within ``epsilon``.

        0 if not even one does. More steps never cost less, so a bisection is exact.
        """
        if not epsilon > 0:
            raise InvalidInput(f"the epsilon to stay within is {epsilon}; it must be above zero")
        start = 1
        if self.accountant in (Method.PLD, Method.TIGHTEST) and at_most > 1:
            # A quick start: the moments accountant allows slightly fewer steps.
            near = dataclasses.replace(self, accountant=Method.MOMENTS.value)
            start = max(1, near.most_steps(epsilon, at_most=at_most))
        return _last(lambda steps: self.guarantee(steps).epsilon <= epsilon, start, at_most)

    def odometer(self, steps: int, *, moment: float | None = None) -> Guarantee:
        """Return (ε, δ) of the steps so far, valid also if results decide when to stop.

        ``moment`` is λ, fixed before the first step; by default :attr:`moment`.

        Guarantees:
            The running sum at that λ, at any one stopping time
            (:func:`pate.accounting.moments_epsilon`). Always by moments.
        """
        return self.odometer_of((*self.prior, *self.events(steps)), moment=moment)

    def odometer_of(self, events: tuple[Event, ...], *, moment: float | None = None) -> Guarantee:
        """Return the same for any events."""
        moment = moment or self.moment or moment_for(Guarantee(epsilon=1.0, delta=self.delta))
        total = compose(events, [moment])
        epsilon = 0.0
        if events:
            epsilon = odometer_epsilon(
                float(total.values[0]),
                moment=moment,
                delta=self.delta,
                conversion=Conversion.IMPROVED,
            )
        return Guarantee(
            epsilon=epsilon,
            delta=self.delta,
            moment=moment,
            neighbours=total.neighbours,
            conversion=Conversion.IMPROVED,
            caveats=self.caveats,
        )


def _last(meets: Callable[[int], bool], start: int, at_most: int) -> int:
    """Return the last number of 0 … at_most that meets a condition all smaller ones meet."""
    if at_most < 1:
        return 0
    low, high, stride = 0, min(start, at_most), max(1, start // 32)
    while meets(high):
        low = high
        if high == at_most:
            return high
        high, stride = min(high + stride, at_most), 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def noise_for(
    *,
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "moments",
    prior: tuple[Event, ...] = (),
    tolerance: float = 1e-4,
) -> float:
    """Return the smallest noise multiplier with which steps and prior events meet a target ε.

    It is never too small, and too large by ``tolerance`` of itself at most.
    """
    steps = check_whole("the number of steps", steps, least=1)
    account = DpsgdAccountant(delta=delta, method=method_named(accountant))
    rough = account.rough
    before = account.epsilon(list(prior)) if prior else 0.0
    if prior and before >= target_epsilon:
        raise InvalidInput(
            f"the target is ε = {target_epsilon:g}, and what comes before the steps costs "
            f"{format_epsilon(before)} alone; raise the target, or the noise of what comes before "
            "(of a PCA in a recipe: features.pca.noise_multiplier)"
        )
    return smallest_noise(
        dpsgd_step(sample_rate),
        count=steps,
        target=target_epsilon,
        epsilon=lambda events: account.epsilon([*prior, *events]),
        tolerance=max(tolerance, account.tolerance),
        rough=None if rough is None else lambda events: rough([*prior, *events]),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """Steps ``first`` … ``end`` − 1, as requested by ``request`` = ``value``."""

    request: str  # "epochs", "steps", "until_epsilon" or "step"
    value: float
    first: int
    end: int
    name: str
    why: str | None = None  # the reason, if it ends before what was requested

    @property
    def release(self) -> str:
        """The name of its charge in the ledger."""
        return f"dpsgd {self.name}"

    def asks_for(self, request: tuple[str, float]) -> bool:
        return (self.request, self.value) == request


def requested(
    *, epochs: int | None, steps: int | None, until_epsilon: float | None
) -> tuple[str, float]:
    """Return the one of the three that is given, as its name and value."""
    given = {"epochs": epochs, "steps": steps, "until_epsilon": until_epsilon}
    chosen = [(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise InvalidInput("give exactly one of epochs, steps and until_epsilon")
    name, value = chosen[0]
    if name == "until_epsilon":
        return name, check_positive(name, value)
    return name, check_whole(name, value, least=1)


def make_plan(
    request: tuple[str, float],
    *,
    first: int,
    steps_per_epoch: int,
    spending: Spending,
    max_epsilon: float | None,
) -> FitPlan:
    """Compute the number of steps of a request, from public numbers only and before the first.

    Guarantees:
        The filter: with ``max_epsilon`` no plan contains a step that would exceed it. How many
        steps that leaves is fixed by the schedules alone, so it holds at any stopping time.
    """
    kind, value = request
    why = None
    if kind == "until_epsilon":
        end = max(first, spending.most_steps(value))
        if end >= MOST_STEPS:
            raise InvalidInput(
                f"more than {MOST_STEPS} steps stay within epsilon {value:g}; give the number of "
                "steps"
            )
        why = f"one more step would pass ε = {value:g}"
    else:
        end = first + int(value) * (steps_per_epoch if kind == "epochs" else 1)
    if max_epsilon is not None:
        fits = max(first, spending.most_steps(max_epsilon, at_most=end))
        if fits < end:
            end, why = fits, f"one more step would pass ε = {max_epsilon:g}"
    return FitPlan(
        request=kind, value=value, first=first, end=end, name=secrets.token_hex(12), why=why
    )


@final
class FitPlans:
    """The plans of one run, in order; the last may be unfinished.

    After a resume, calls of ``fit`` are matched with the recorded plans as long as they are made as
    before, so that a program which is simply started again ends as it would have.
    """

    def __init__(self, plans: tuple[FitPlan, ...] = ()) -> None:
        self._all = list(plans)
        self._to_replay = [each for each in plans if each.request != BARE]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> Self:
        return cls(tuple(FitPlan(**row) for row in rows))

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._all]

    @property
    def last(self) -> FitPlan | None:
        return self._all[-1] if self._all else None

    @property
    def first(self) -> FitPlan | None:
        return self._all[0] if self._all else None

    @property
    def fixed_in_advance(self) -> bool:
        """True if all of it was requested before the first step, when no result was known."""
        return not self._all or (len(self._all) == 1 and self._all[0].request != BARE)

    @property
    def releases(self) -> set[str]:
        """The names of their charges in the ledger."""
        return {each.release for each in self._all}

    def known(self, request: tuple[str, float], *, steps: int) -> FitPlan | None:
        """Return the plan that a call of ``fit`` continues; None if it requests something new."""
        if self._to_replay:
            plan = self._to_replay.pop(0)
            if plan.asks_for(request):
                return plan
            self._to_replay.clear()
        last = self.last
        if last is not None and last.asks_for(request) and steps < last.end:
            return last
        return None

    def add(self, plan: FitPlan) -> None:
        self._all.append(plan)

    def drop_last(self) -> None:
        self._all.pop()

    def one_more_step(self, first: int, *, join: bool) -> FitPlan:
        """Return the plan of a single step: a new one, or the last lengthened if they ``join``."""
        if join and self._all and self._all[-1].request == BARE:
            self._all[-1] = replace(self._all[-1], end=self._all[-1].end + 1)
        else:
            name = secrets.token_hex(12)
            self.add(FitPlan(request=BARE, value=1, first=first, end=first + 1, name=name))
        return self._all[-1]

    def events(self, spending: Spending) -> tuple[Event, ...]:
        """Return the events of everything planned, and of ``prior``."""
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
        group: str | None = None,
    ) -> None:
        """Charge every plan under its name; one that was charged before is not charged again.

        ``prior`` events and the digests of ``settings`` go with the first charge, ``study`` and
        ``group``, the column of the users, with each.
        """
        for index, plan in enumerate(self._all):
            prior = () if index else spending.prior
            events = (*prior, *spending.events(plan.end, first=plan.first))
            ledger.charge(
                events,
                release=plan.release,
                study=study,
                settings=() if index else settings,
                again=again,
                group=group,
            )
