"""The cost of answers, one after the other: by older theorems, and by log-moments.

Everything here follows from the plan, which was public before any vote was opened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pate.accounting import (
    Analysis,
    Conversion,
    Event,
    GaussianNoisyMaxAnswer,
    ThresholdCheck,
    compose,
)
from pate.accounting.composition import advanced, gaussian_epsilon, pure_epsilon
from pate.accounting.events import tally
from pate.accounting.moments import epsilon_at
from pate.mechanisms import Mechanism

_POINTS = 60
_AROUND = 30  # the profile extends from the best λ by this factor, both ways


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurves:
    """ε over the number of queries, in the plan's worst case: as many answers as it allows."""

    queries: tuple[int, ...]
    naive: tuple[float, ...]
    advanced: tuple[float, ...]
    moments: tuple[float, ...]

    @property
    def places(self) -> int:
        """Decimal places that show three or more digits of the last ε."""
        return max(2, 3 - math.floor(math.log10(max(self.moments[-1], 1e-3))))

    def rows(self, count: int = 9) -> list[tuple[int, tuple[float, float, float]]]:
        """Return some of the points, evenly apart: queries, and ε by the three rules."""
        last = len(self.queries) - 1
        chosen = sorted({round(n * last / (count - 1)) for n in range(count)})
        return [
            (self.queries[i], (self.naive[i], self.advanced[i], self.moments[i])) for i in chosen
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentProfile:
    """ε of a whole plan at each λ."""

    moments: tuple[float, ...]
    epsilons: tuple[float, ...]


def cost_curves(
    mechanism: Mechanism,
    *,
    queries: int,
    answers: int,
    delta: float,
    conversion: Conversion,
    analysis: Analysis = Analysis.TIGHT,
) -> CostCurves:
    """Return the three data-independent curves over the queries of a plan.

    >>> from pate.mechanisms import LaplaceNoisyMax
    >>> curves = cost_curves(LaplaceNoisyMax(scale=8.0), queries=100, answers=100, delta=1e-4,
    ...                      conversion=Conversion.IMPROVED)
    >>> curves.queries[-1], curves.naive[-1], round(curves.moments[-1], 2)
    (100, 25.0, 5.36)
    """
    steps = shown_queries(queries)
    events = [mechanism.caps(queries=n, answers=min(n, answers)) for n in steps]
    return CostCurves(
        queries=steps,
        naive=tuple(naive_epsilon(each, delta) for each in events),
        advanced=tuple(advanced_epsilon(each, delta) for each in events),
        moments=tuple(
            compose(each, analysis=analysis).guarantee(delta=delta, conversion=conversion).epsilon
            for each in events
        ),
    )


def shown_queries(queries: int, points: int = _POINTS) -> tuple[int, ...]:
    """Return at most so many whole numbers from one to all, evenly apart.

    >>> shown_queries(5), len(shown_queries(9000)) <= 60
    ((1, 2, 3, 4, 5), True)
    """
    return tuple(int(n) for n in np.unique(np.linspace(1, queries, points).round()))


def naive_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return Σε; events that need a δ are given equal shares of it.

    Guarantees:
        Dwork et al. 2006 (basic composition), with the exact (ε, δ) of a Gaussian: Balle & Wang
        2018, Theorem 8.
    """
    counts = tally(events)
    gaussian = sum(n for event, n in counts.items() if pure_epsilon(event) is None)
    each = delta / gaussian if gaussian else 0.0
    return math.fsum(n * _one(event, each) for event, n in counts.items())


def advanced_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return ε by strong composition of all events of a kind; the kinds are then added up.

    Guarantees:
        Dwork, Rothblum & Vadhan 2010, Theorem III.3 for each kind. Laplace answers alone leave all
        of δ to the theorem; otherwise one half pays for the answers, in equal shares, and the other
        for the theorem, in equal shares of the kinds.
    """
    counts = tally(events)
    gaussian = sum(n for event, n in counts.items() if pure_epsilon(event) is None)
    each = delta / 2 / gaussian if gaussian else 0.0
    slack = (delta / 2 if gaussian else delta) / max(len(counts), 1)
    return math.fsum(
        advanced(_one(event, each), count=n, slack=slack) for event, n in counts.items()
    )


def _one(event: Event, delta: float) -> float:
    """Return ε of one event.

    One vote moves two counts by one each, √2 in L2; a check's count by one. An event of another
    kind is converted from its log-moments, which holds for any.
    """
    pure = pure_epsilon(event)
    if pure is not None:
        return pure
    if isinstance(event, GaussianNoisyMaxAnswer):
        return gaussian_epsilon(event.sigma / math.sqrt(2), delta=delta)
    if isinstance(event, ThresholdCheck):
        return gaussian_epsilon(event.sigma, delta=delta)
    return compose([event]).guarantee(delta=delta).epsilon


def moment_profile(
    events: Sequence[Event],
    *,
    delta: float,
    conversion: Conversion,
    analysis: Analysis = Analysis.TIGHT,
) -> MomentProfile:
    """Return ε at each λ of the grid around the best: 30 times smaller to 30 times larger.

    >>> from pate.accounting import LaplaceNoisyMaxAnswer, Repeated
    >>> plan = [Repeated(LaplaceNoisyMaxAnswer(scale=8.0), 100)]
    >>> profile = moment_profile(plan, delta=1e-4, conversion=Conversion.IMPROVED)
    >>> profile.moments[profile.epsilons.index(min(profile.epsilons))]
    3.3
    """
    total = compose(events, analysis=analysis)
    epsilons = epsilon_at(total.moments, total.values, delta=delta, conversion=conversion)
    best = total.moments[np.argmin(epsilons)]
    near = (total.moments >= best / _AROUND) & (total.moments <= best * _AROUND)
    near &= epsilons <= 4 * max(epsilons.min(), 1e-9)
    return MomentProfile(
        moments=tuple(total.moments[near].tolist()), epsilons=tuple(epsilons[near].tolist())
    )
