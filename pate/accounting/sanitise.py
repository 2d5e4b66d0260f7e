"""The sanitised ε: a data-dependent cost published with noise, its own price included.

Published is, at one Rényi order fixed in advance,

    min( cost + margin + noise,  data-independent cost ) + price of publishing,

as ε, rounded up to a public grid (:data:`GRID`): the digits of a noised double beyond it carry no
more information on the cost, and might reveal how the noise was drawn (Mironov 2012). The margin, a
multiple of the smooth sensitivity, makes it an upper bound with the stated confidence; it is
private like the cost, so the noise hides it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import ndtri

from pate.accounting.events import SmoothRelease
from pate.accounting.guarantee import Conversion, Guarantee, Neighbours
from pate.accounting.moments import epsilon_at, log_moments
from pate.accounting.smooth import SensitiveCost
from pate.errors import InvalidInput

GRID = 1000  # a published ε is a whole number of thousandths; public
_FLOOR = 1e-6  # of the data-independent cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePlan:
    """The public plan of publishing a cost, fixed **before** the votes are opened.

    Parameters
    ----------
    order
        The Rényi order of the cost, above 1.
    beta
        The smoothness of the sensitivity.
    sigma
        The standard deviation of the noise, as a multiple of the smooth sensitivity.
    doubt
        The probability that the published value is below the exact one, below 0.5.
    """

    order: float
    beta: float
    sigma: float
    doubt: float = 0.01

    def __post_init__(self) -> None:
        if not self.order > 1 or not self.beta > 0:
            raise InvalidInput(f"need order > 1 and beta > 0, got {self.order:g} and {self.beta:g}")
        if (self.order - 1) * math.expm1(2 * self.beta) >= 1:
            raise InvalidInput(
                f"beta {self.beta:g} is too large for order {self.order:g}: publishing would have "
                "no finite price"
            )
        if not (self.sigma > 0 and 0 < self.doubt < 0.5):
            raise InvalidInput("need sigma > 0 and 0 < doubt < 0.5")
        if self._quantile * self.sigma * math.expm1(self.beta) >= 1:
            raise InvalidInput(
                f"sigma {self.sigma:g} is too large for beta {self.beta:g} and doubt "
                f"{self.doubt:g}: the margin would need more noise than it covers"
            )

    @classmethod
    def default(cls, *, order: float, doubt: float = 0.01) -> ReleasePlan:
        """Return a plan that suits many votes and depends on none."""
        return cls(order=order, beta=0.2 / order, sigma=0.4 * order, doubt=doubt)

    @property
    def event(self) -> SmoothRelease:
        """The event that publishing adds to the ledger."""
        return SmoothRelease(beta=self.beta, sigma=self.sigma)

    @property
    def rdp(self) -> float:
        """The price of publishing: the exact cost of :class:`SmoothRelease` at this order."""
        moment = self.order - 1
        return float(log_moments(self.event, np.array([moment]))[0]) / moment

    @property
    def margin(self) -> float:
        """The margin c added to the cost before the noise, in smooth sensitivities S.

        cost + cS changes by at most S + c(e^β − 1)S over one teacher, because S changes by at most
        e^β. That is again β-smooth, and the noise must be scaled to it; so c solves
        c = z σ (1 + c(e^β − 1)), with z the quantile of 1 − doubt.
        """
        reach = self._quantile * self.sigma
        return reach / (1 - reach * math.expm1(self.beta))

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, in smooth sensitivities of the bare cost."""
        return self.sigma * (1 + self.margin * math.expm1(self.beta))

    @property
    def _quantile(self) -> float:
        return float(-ndtri(self.doubt))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitised:
    """A data-dependent ε that can be published.

    Parameters
    ----------
    guarantee
        The ε, its price included.
    confidence
        The probability that it is not below the exact data-dependent one.
    price
        The part of its RDP that paid for publishing it.
    """

    guarantee: Guarantee
    confidence: float
    price: float

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain values for a JSON file."""
        return {**self.guarantee.as_json(), "confidence": self.confidence, "price": self.price}


def sanitise(
    cost: SensitiveCost,
    *,
    plan: ReleasePlan,
    delta: float,
    rng: Generator,
    conversion: Conversion = Conversion.IMPROVED,
) -> Sanitised:
    """Publish a data-dependent cost, once: every call spends the plan's price again.

    Parameters
    ----------
    cost
        The cost with its sensitivity, at the plan's order. PRIVATE.
    plan
        The public plan, fixed before the votes were opened.
    delta
        The δ of the published guarantee.
    rng
        The source of the noise; secure outside of tests.
    conversion
        The bound that converts RDP to ε.

    Guarantees:
        * The Gaussian mechanism scaled to the smooth sensitivity of cost + margin, worked out in
          :attr:`ReleasePlan.margin`; its exact price is part of the published ε.
        * The value is at least the exact cost with its price, with probability 1 − doubt; and
          never more than the data-independent cost with the price.
        * ε is a multiple of the public grid, rounded up, or the public ceiling where that is less:
          post-processing of the noised cost (Dwork & Roth 2014, Proposition 2.1).
        * It covers the divergence from the data at hand to its neighbours (the direction of
          Theorem 6 there), as every data-dependent bound does.

    >>> from pate.accounting.smooth import gnmax_cost
    >>> plan = ReleasePlan.default(order=20.0)
    >>> cost = gnmax_cost(np.tile([240, 5, 5], (100, 1)), sigma=40.0, order=20.0)
    >>> result = sanitise(cost, plan=plan, delta=1e-5, rng=np.random.default_rng(0))
    >>> result.guarantee.epsilon, result.guarantee.publishable
    (1.491, True)
    """
    if cost.order != plan.order:
        raise InvalidInput(f"the cost is at order {cost.order:g}, the plan at {plan.order:g}")
    if not cost.local_sensitivity.any():  # at no distance: the cost is the same for all votes
        exact = _at_order(cost.value, plan.order, delta, conversion)
        return Sanitised(guarantee=exact, confidence=1 - plan.doubt, price=0.0)
    sensitivity = _visible(cost, plan)
    noised = cost.value + sensitivity * (plan.margin + plan.noise * rng.standard_normal())
    rdp = float(np.clip(noised, 0.0, cost.ceiling))
    below = _at_order(rdp + plan.rdp, plan.order, delta, conversion)
    most = _at_order(cost.ceiling + plan.rdp, plan.order, delta, conversion)
    epsilon = min(on_grid(below.epsilon), most.epsilon)
    guarantee = replace(below, epsilon=epsilon)
    return Sanitised(guarantee=guarantee, confidence=1 - plan.doubt, price=plan.rdp)


def on_grid(epsilon: float) -> float:
    """Return the least double of the public grid that is not below ε."""
    if not epsilon < 2**40:  # beyond it doubles are about as coarse as the grid
        return epsilon
    steps = round(epsilon * GRID)
    return steps / GRID if steps / GRID >= epsilon else (steps + 1) / GRID


def _visible(cost: SensitiveCost, plan: ReleasePlan) -> float:
    """Return the smooth sensitivity, but at least a public amount: rounding must hide no noise.

    The larger of a β-smooth bound and a constant is a β-smooth bound.
    """
    return max(cost.smooth_sensitivity(plan.beta), _FLOOR * cost.ceiling)


def _at_order(rdp: float, order: float, delta: float, conversion: Conversion) -> Guarantee:
    moment = np.array([order - 1])
    epsilon = epsilon_at(moment, rdp * moment, delta=delta, conversion=conversion)
    return Guarantee(
        epsilon=float(epsilon[0]),
        delta=delta,
        moment=order - 1,
        neighbours=Neighbours.REPLACE_ONE,
        conversion=conversion,
    )
