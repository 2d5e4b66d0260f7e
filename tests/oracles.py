"""Accounting that only tests need: events by their noise, expected releases, exact composition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from pate.accounting import (
    Conversion,
    Event,
    GaussianNoisyMaxAnswer,
    Guarantee,
    LaplaceNoisyMaxAnswer,
    ReleasePlan,
)
from pate.accounting.composition import _least
from pate.accounting.sanitise import _at_order, _visible
from pate.accounting.smooth import SensitiveCost


def lnmax(scale: float) -> Event:
    """A Laplace noisy-max answer with this noise."""
    return LaplaceNoisyMaxAnswer(scale=scale)


def gnmax(sigma: float) -> Event:
    """A Gaussian noisy-max answer with this noise."""
    return GaussianNoisyMaxAnswer(sigma=sigma)


@dataclass(frozen=True, kw_only=True)
class ExpectedRelease:
    """What publishing a cost comes to, where nothing is clipped."""

    exact: Guarantee  # the data-dependent ε itself
    with_price: Guarantee  # and the price of publishing it
    mean: Guarantee  # and the margin
    spread: float  # standard deviation of the published ε


def expected_release(
    cost: SensitiveCost,
    *,
    plan: ReleasePlan,
    delta: float,
    conversion: Conversion = Conversion.IMPROVED,
) -> ExpectedRelease:
    sensitivity = _visible(cost, plan)

    def at(rdp: float) -> Guarantee:
        return _at_order(rdp, plan.order, delta, conversion)

    return ExpectedRelease(
        exact=at(cost.value),
        with_price=at(cost.value + plan.rdp),
        mean=at(cost.value + plan.rdp + plan.margin * sensitivity),
        spread=plan.noise * sensitivity,
    )


def optimal(epsilon: float, *, count: int, delta: float, each_delta: float = 0.0) -> float:
    """Return the smallest ε of ``count`` mechanisms of (epsilon, each_delta) at ``delta``.

    Kairouz, Oh & Viswanath 2015, Theorem 3.3, evaluated exactly: the composition of randomised
    responses that every (ε, δ)-DP mechanism is a post-processing of.
    """
    survive = count * np.log1p(-each_delta)  # log Pr[no mechanism fails outright]
    room = (delta + np.expm1(survive)) / np.exp(survive)
    assert room > 0

    def hockey_stick(total: float) -> float:
        # Loss of j "true" answers out of n is (2j − n)ε, with j ~ Binomial(n, e^ε/(1+e^ε)).
        j = np.arange(count + 1)
        loss = (2 * j - count) * epsilon
        above = loss > total
        log_p = (
            gammaln(count + 1) - gammaln(j + 1) - gammaln(count - j + 1)
            + j * epsilon - count * np.logaddexp(0.0, epsilon)
        )[above]  # fmt: skip
        return float(np.sum(np.exp(log_p) * -np.expm1(total - loss[above])))

    if hockey_stick(0.0) <= room:
        return 0.0
    return _least(lambda total: hockey_stick(total) <= room, 0.0, count * epsilon)
