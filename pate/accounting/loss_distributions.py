"""Privacy loss distributions: the exact composition of noise, discretised and rounded up."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pate._validate import check_delta
from pate.accounting.events import (
    Event,
    ForAddRemove,
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
from pate.accounting.guarantee import Accountant, Guarantee
from pate.errors import InvalidInput, UnsupportedEvent

PLD_SPREAD = 1e-4
"""The most by which the ε of two processors was seen to differ, rounded up."""

PLD_MARGIN = 2 * PLD_SPREAD
"""Added to every ε of :func:`pld_guarantee`."""

_ROUNDING = sys.float_info.epsilon  # of one convolution of probabilities
_LEAST_PLD_NOISE = 0.05  # below it a loss distribution would not fit in memory


def pld_guarantee(
    events: Iterable[Event], *, delta: float, discretisation: float = 1e-4
) -> Guarantee:
    """Return the guarantee of events that were fixed in advance, by privacy loss distributions.

    Tighter than moments, and data-independent only. The ε is rounded up by the discretisation and a
    margin, never down.

    Parameters
    ----------
    events
        Gaussian, Laplace, sampled Gaussian, noisy-max and threshold events.
    delta
        The δ of the guarantee.
    discretisation
        The width of the grid of losses; rounding to it is upwards.

    Guarantees:
        * Koskela et al. 2020 and Doroshenko et al. 2022 (connect-the-dots, pessimistic), as
          implemented in dp-accounting. Not for costs chosen as answers come in.
        * That library convolves in floats and does not count their rounding. ε is taken at δ less
          ``_ROUNDING`` for every event, and ``PLD_MARGIN`` is added: what one processor prints is
          at most that margin below what another does. Where the rounding is more than half of δ,
          no value is given. (Measured, the noise moved by 1e-12: δ moves by up to 1e-16 for each
          event. ε moves by 1e-9 for 10 000 steps at δ = 1e-5, by 1e-4 for 100 000 at δ = 1e-8.)

    >>> from pate.accounting import Repeated
    >>> steps = [Repeated(SampledGaussian(sample_rate=0.01, noise_multiplier=1.0), 100)]
    >>> round(pld_guarantee(steps, delta=1e-5).epsilon, 2)
    0.72
    """
    check_delta(delta)
    counts = tally(events)
    for event in counts:
        _require_noise(event)
    neighbours = relation_of(counts)
    if not counts:
        return Guarantee(epsilon=0.0, delta=delta, neighbours=neighbours)
    rounding = _ROUNDING * sum(counts.values())
    if rounding > delta / 2:
        raise InvalidInput(
            f"delta is {delta:g}; over {sum(counts.values())} events privacy loss distributions "
            f"need {2 * rounding:.2g} or more, because they are added up in floats: use the "
            "moments accountant"
        )
    epsilon = _epsilon(tuple(counts.items()), delta - rounding, discretisation)
    return Guarantee(
        epsilon=epsilon + PLD_MARGIN,
        delta=delta,
        neighbours=neighbours,
        accountant=Accountant.PLD,
    )


def pld_deltas(
    events: Iterable[Event], *, epsilons: Iterable[float], discretisation: float = 1e-3
) -> tuple[float, ...]:
    """Return the δ of each ε for events that were fixed in advance, as :func:`pld_guarantee` does.

    Parameters
    ----------
    events
        As in :func:`pld_guarantee`.
    epsilons
        Each ε, 0 or more.
    discretisation
        The width of the grid of losses; rounding to it is upwards.

    Guarantees:
        Those of :func:`pld_guarantee`; each δ is rounded up by ``_ROUNDING`` for every event.

    >>> from pate.accounting import Repeated
    >>> steps = [Repeated(SampledGaussian(sample_rate=0.01, noise_multiplier=1.0), 100)]
    >>> [round(delta, 6) for delta in pld_deltas(steps, epsilons=[0.0, 0.72])]
    [0.050696, 1e-05]
    """
    counts = tally(events)
    for event in counts:
        _require_noise(event)
    accountant = _composed(counts, discretisation)
    rounding = _ROUNDING * sum(counts.values())
    return tuple(min(1.0, float(accountant.get_delta(each)) + rounding) for each in epsilons)


@functools.lru_cache(maxsize=1024)  # a plan is calibrated, stated and checked in one process
def _epsilon(counts: tuple[tuple[Event, int], ...], delta: float, discretisation: float) -> float:
    return max(0.0, float(_composed(dict(counts), discretisation).get_epsilon(delta)))


def _composed(counts: Mapping[Event, int], discretisation: float) -> Any:
    import dp_accounting  # slow to load
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=discretisation,
    )
    for event, count in counts.items():
        accountant.compose(_as_dp_event(event), count)
    return accountant


def _require_noise(event: Event) -> None:
    if isinstance(event, (ForReplacement, ForAddRemove)):
        event = event.event
    for name in ("noise_multiplier", "sigma", "scale"):
        noise = getattr(event, name, math.inf)
        if noise < _LEAST_PLD_NOISE:
            raise InvalidInput(
                f"{name} is {noise:g}; below {_LEAST_PLD_NOISE:g} use the moments accountant"
            )


def _as_dp_event(event: Event) -> Any:
    """Return the dp-accounting event that an event of ours is, or is a post-processing of."""
    import dp_accounting as dp

    match event:
        case ForReplacement(event=inner) | ForAddRemove(event=inner):  # distributions are the same
            return _as_dp_event(inner)
        case Gaussian(noise_multiplier=multiplier) | ThresholdCheck(sigma=multiplier):
            return dp.GaussianDpEvent(multiplier)
        case GaussianNoisyMaxAnswer(sigma=sigma):  # the argmax of counts that move by √2 in L2
            return dp.GaussianDpEvent(sigma / math.sqrt(2))
        case SampledGaussian(sample_rate=rate, noise_multiplier=multiplier):
            return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier))
        case Laplace(noise_multiplier=multiplier):
            return dp.LaplaceDpEvent(multiplier)
        case LaplaceNoisyMaxAnswer(scale=scale):  # the argmax of counts of which two move by one
            return dp.SelfComposedDpEvent(dp.LaplaceDpEvent(scale), 2)
    raise UnsupportedEvent(
        f"{type(event).__name__} has no privacy loss distribution here; use the moments accountant"
    )
