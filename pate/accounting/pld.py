"""The ε of events by privacy loss distributions, with the dp-accounting library.

Tighter than moments, and data-independent only. Imported on demand: dp-accounting is slow to load.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from pate._validate import check_delta
from pate.accounting.events import (
    Event,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Laplace,
    LaplaceNoisyMaxAnswer,
    SampledGaussian,
    ThresholdCheck,
    relation_of,
    tally,
)
from pate.accounting.guarantee import Guarantee
from pate.errors import InvalidInput, UnsupportedEvent

PLD_MARGIN = 2e-4
"""Added to every ε found here: processors add up in floats and differ by up to 1e-4."""

_ROUNDING = sys.float_info.epsilon
"""Taken off δ for every composed event: the rounding of one convolution of probabilities."""

_LEAST_NOISE = 0.05


def pld_guarantee(
    events: Iterable[Event], *, delta: float, discretisation: float = 1e-4
) -> Guarantee:
    """Return the guarantee of events that were fixed in advance, by privacy loss distributions.

    Parameters
    ----------
    events
        Gaussian, Laplace, sampled Gaussian, noisy-max and threshold events.
    delta
        The δ of the guarantee.
    discretisation
        The width of the grid of losses; rounding to it is upwards.

    Returns
    -------
    Guarantee
        Its ε is rounded up by the discretisation and a margin, never down.

    Raises
    ------
    UnsupportedEvent
        If an event has no privacy loss distribution here.
    InvalidInput
        If the noise is too small, or δ too small for the number of events.

    Guarantees:
        * Koskela et al. 2020 and Doroshenko et al. 2022 (connect-the-dots, pessimistic), as
          implemented in dp-accounting. Not for costs chosen as answers come in.
        * That library convolves in floats and does not count their rounding. ε is taken at δ less
          ``_ROUNDING`` for every event, and ``PLD_MARGIN`` is added: what one processor prints is
          at most that margin below what another does. Where the rounding is more than half of δ,
          no figure is given. (Measured, the noise moved by 1e-12: δ moves by up to 1e-16 for each
          event. ε moves by 1e-9 for 10 000 steps at δ = 1e-5, by 1e-4 for 100 000 at δ = 1e-8.)

    >>> from pate.accounting import Repeated
    >>> steps = [Repeated(SampledGaussian(sample_rate=0.01, noise_multiplier=1.0), 100)]
    >>> round(pld_guarantee(steps, delta=1e-5).epsilon, 2)
    0.72
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    check_delta(delta)
    counts = tally(events)
    for event in counts:
        _require_noise(event)
    neighbours = relation_of(counts)
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=discretisation,
    )
    if not counts:
        return Guarantee(epsilon=0.0, delta=delta, neighbours=neighbours)
    rounding = _ROUNDING * sum(counts.values())
    if rounding > delta / 2:
        raise InvalidInput(
            f"delta is {delta:g}; over {sum(counts.values())} events privacy loss distributions "
            f"need {2 * rounding:.2g} or more, because they are added up in floats: use the "
            "moments accountant"
        )
    for event, count in counts.items():
        accountant.compose(as_dp_event(event), count)
    epsilon = max(0.0, float(accountant.get_epsilon(delta - rounding)))
    return Guarantee(epsilon=epsilon + PLD_MARGIN, delta=delta, neighbours=neighbours)


def _require_noise(event: Event) -> None:
    """Refuse noise so small that a loss distribution would not fit in memory."""
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
    """Return the dp-accounting event that an event of ours is, or is a post-processing of."""
    raise UnsupportedEvent(
        f"{type(event).__name__} has no privacy loss distribution here; use the moments accountant"
    )


@as_dp_event.register
def _(event: Gaussian) -> Any:
    from dp_accounting import GaussianDpEvent

    return GaussianDpEvent(event.noise_multiplier)


@as_dp_event.register
def _(event: ForReplacement) -> Any:
    """The same pair of distributions, under another relation."""
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
