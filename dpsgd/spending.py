"""What steps cost: from the plan of a run to (ε, δ), before, during and after it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import final

from dpsgd.schedules import Constant, Piecewise, Schedule
from pate._validate import check_delta
from pate.accounting import Event, Guarantee, Repeated, compose, odometer_epsilon
from pate.accounting.calibrate import dpsgd_step
from pate.accounting.composition import sampled_gaussian_strong
from pate.accounting.dpsgd import DpsgdAccountant, Method
from pate.accounting.guarantee import Conversion
from pate.accounting.terms import moment_for
from pate.errors import InvalidInput

_FINE = math.log(1.01)  # of a noise multiplier that moves at every step
MOST_STEPS = 10_000_000


def method_named(accountant: str) -> Method:
    """The accountant of a name.

    >>> method_named("pld")
    <Method.PLD: 'pld'>
    """
    if accountant not in list(Method):
        known = ", ".join(method.value for method in Method)
        raise InvalidInput(f"accountant is {accountant!r}; it must be one of {known}")
    return Method(accountant)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The cost of step 0, 1, 2, … of a run whose sampling and noise are fixed in advance.

    ``prior`` are costs paid beside the steps (a private PCA). ``caveats`` go onto every guarantee.
    ``public_rate`` states that ``sample_rate`` does not depend on the number of records: costs are
    then for one record added or removed, else for zero-out (see ``SampledGaussian``).

    Guarantees:
        * A step is a Poisson sample and a Gaussian mechanism: ``SampledGaussian``, composed by
          Abadi et al. 2016, Theorem 2.1 (moments) or by privacy loss distributions. The best λ may
          be used because noise and sampling of every step are fixed before the first.
        * :meth:`guarantee` holds for a number of steps that was fixed in advance. If training ended
          early because of what was seen, the figure of the whole plan holds (the rest is cut
          off: post-processing). :meth:`odometer` holds whenever one stops.

    >>> spending = Spending(sample_rate=0.01, noise_multiplier=Constant(4.0), delta=1e-5)
    >>> round(spending.guarantee(10_000).epsilon, 3), spending.most_steps(1.0, at_most=100_000)
    (1.035, 9376)
    """

    sample_rate: float
    noise_multiplier: Schedule
    delta: float
    accountant: str = "moments"
    prior: tuple[Event, ...] = ()
    caveats: tuple[str, ...] = ()
    moment: float | None = None  # of the odometer: fixed in advance; None: best for ε = 1
    public_rate: bool = False

    def __post_init__(self) -> None:
        check_delta(self.delta)
        method_named(self.accountant)
        self._step(self.multiplier(0))

    def multiplier(self, step: int) -> float:
        """The noise multiplier that a step uses and is charged for.

        A multiplier that moves at every step is rounded up to a hundredth of itself, in the noise
        and in the account alike: the account stays exact, and has tens of terms, not thousands.
        """
        value = self.noise_multiplier(step)
        if isinstance(self.noise_multiplier, (Constant, Piecewise)):
            return value
        return math.exp(math.ceil(math.log(value) / _FINE - 1e-6) * _FINE)

    def events(self, steps: int, *, first: int = 0) -> tuple[Event, ...]:
        """What the steps ``first`` … ``steps`` − 1 are, without what was paid before."""
        if isinstance(self.noise_multiplier, Constant):
            runs = [(self.noise_multiplier.value, max(0, steps - first))]
        else:
            noise = map(self.multiplier, range(first, steps))
            runs = [(value, sum(1 for _ in run)) for value, run in groupby(noise)]
        return tuple(Repeated(self._step(value), count) for value, count in runs if count)

    def _step(self, noise_multiplier: float) -> Event:
        return dpsgd_step(self.sample_rate, public_rate=self.public_rate)(noise_multiplier)

    def guarantee(self, steps: int) -> Guarantee:
        """(ε, δ) of the first ``steps`` steps and of what was paid before."""
        return self.guarantee_of((*self.prior, *self.events(steps)))

    def guarantee_of(self, events: tuple[Event, ...]) -> Guarantee:
        """(ε, δ) of any events, by this accountant and with these caveats."""
        if not events:
            return Guarantee(epsilon=0.0, delta=self.delta, caveats=self.caveats)
        accountant = DpsgdAccountant(delta=self.delta, method=method_named(self.accountant))
        return dataclasses.replace(accountant.guarantee(list(events)), caveats=self.caveats)

    def most_steps(self, epsilon: float, *, at_most: int = MOST_STEPS) -> int:
        """The largest number of steps, up to ``at_most``, that stays within ``epsilon``.

        0 if not even one does. More steps never cost less, so a search on their number is exact.
        """
        if not epsilon > 0:
            raise InvalidInput(f"the epsilon to stay within is {epsilon}; it must be above zero")
        start = 1
        if self.accountant == Method.PLD and at_most > 1:
            # Quick, and near: the moments accountant allows a little less.
            near = dataclasses.replace(self, accountant=Method.MOMENTS.value)
            start = max(1, near.most_steps(epsilon, at_most=at_most))
        return _last(lambda steps: self.guarantee(steps).epsilon <= epsilon, start, at_most)

    def strong_composition(self, steps: int) -> float:
        """ε of the steps by strong composition as it was drawn in 2016: to compare, no guarantee.

        For one noise multiplier only; what was paid before the steps is left out.
        """
        if not isinstance(self.noise_multiplier, Constant):
            raise InvalidInput("strong composition is given for a constant noise multiplier only")
        return sampled_gaussian_strong(
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier.value,
            steps=steps,
            delta=self.delta,
        )

    def odometer(self, steps: int, *, moment: float | None = None) -> Guarantee:
        """(ε, δ) of the steps so far, valid whenever one stops, also because of what was seen.

        ``moment`` is the λ, fixed before the first step; None is :attr:`moment`.

        Guarantees:
            The running sum at that λ, at any one stopping time
            (:func:`pate.accounting.odometer_epsilon`). Always by moments.
        """
        return self.odometer_of((*self.prior, *self.events(steps)), moment=moment)

    def odometer_of(self, events: tuple[Event, ...], *, moment: float | None = None) -> Guarantee:
        """The same reading, of any events."""
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
    """The last number of 0 … at_most that meets a condition all smaller ones meet too."""
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
