"""ε through privacy loss distributions, by the dp-accounting library, for events it supports.

Tighter than moments, and data-independent only. Imported on demand: dp-accounting is slow to load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from pate.accounting.events import (
    Event,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Laplace,
    LaplaceNoisyMaxAnswer,
    SampledGaussian,
    ThresholdCheck,
    tally,
)
from pate.accounting.guarantee import Guarantee, Neighbours, check_delta
from pate.errors import InvalidInput, UnsupportedEvent

_LEAST_NOISE = 0.05


def pld_guarantee(
    events: Iterable[Event], *, delta: float, discretisation: float = 1e-4
) -> Guarantee:
    """ε of events fixed in advance; rounded up by the discretisation, never down.

    Guarantees:
        Koskela et al. 2020 and Doroshenko et al. 2022 (connect-the-dots, pessimistic), as
        implemented in dp-accounting. Not for costs chosen as answers come in.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    check_delta(delta)
    counts = tally(events)
    for event in counts:
        _require_noise(event)
    neighbours = Neighbours.AS_STATED
    for event in counts:
        neighbours = neighbours.combine(event.neighbours)
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=discretisation,
    )
    for event, count in counts.items():
        accountant.compose(as_dp_event(event), count)
    epsilon = float(accountant.get_epsilon(delta)) if counts else 0.0
    return Guarantee(epsilon=max(epsilon, 0.0), delta=delta, neighbours=neighbours)


def _require_noise(event: Event) -> None:
    """With hardly any noise a loss distribution would not fit in memory."""
    if isinstance(event, ForReplacement):
        event = event.event
    for name in ("noise_multiplier", "sigma", "scale"):
        noise = getattr(event, name, math.inf)
        if noise < _LEAST_NOISE:
            raise InvalidInput(
                f"{name} is {noise:g}; below {_LEAST_NOISE:g} use the moments accountant"
            )


@singledispatch
def as_dp_event(event: Event) -> Any:
    """The dp-accounting event that an event of ours is, or is a post-processing of."""
    raise UnsupportedEvent(
        f"{type(event).__name__} has no privacy loss distribution here; use the moments accountant"
    )


@as_dp_event.register
def _(event: Gaussian) -> Any:
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(event.noise_multiplier)


@as_dp_event.register
def _(event: ForReplacement) -> Any:
    """The same pair of distributions; only between whom it lies is another."""
    return as_dp_event(event.event)


@as_dp_event.register
def _(event: Laplace) -> Any:
    from dp_accounting import LaplaceDpEvent

    return LaplaceDpEvent(event.noise_multiplier)


@as_dp_event.register
def _(event: SampledGaussian) -> Any:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    return PoissonSampledDpEvent(event.sample_rate, GaussianDpEvent(event.noise_multiplier))


@as_dp_event.register
def _(event: GaussianNoisyMaxAnswer) -> Any:
    """The argmax of counts that move by √2 in L2 norm."""
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(event.sigma / math.sqrt(2))


@as_dp_event.register
def _(event: ThresholdCheck) -> Any:
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(event.sigma)


@as_dp_event.register
def _(event: LaplaceNoisyMaxAnswer) -> Any:
    """The argmax of counts of which two move by one: two Laplace mechanisms."""
    from dp_accounting import LaplaceDpEvent, SelfComposedDpEvent

    return SelfComposedDpEvent(LaplaceDpEvent(event.scale), 2)
