"""Privacy loss distributions: the exact composition of noise, discretised and rounded up."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

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
          implemented in dp-accounting (the δ of sampled Gaussian noise are evaluated here, by the
          same formula). Not for costs chosen as answers come in.
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
    total = _composed(counts, discretisation)
    rounding = _ROUNDING * sum(counts.values())
    return tuple(min(1.0, float(total.get_delta_for_epsilon(each)) + rounding) for each in epsilons)


@functools.lru_cache(maxsize=1024)  # a plan is calibrated, stated and checked in one process
def _epsilon(counts: tuple[tuple[Event, int], ...], delta: float, discretisation: float) -> float:
    return max(0.0, float(_composed(dict(counts), discretisation).get_epsilon_for_delta(delta)))


def _composed(counts: Mapping[Event, int], discretisation: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution  # slow to load

    total = privacy_loss_distribution.identity(value_discretization_interval=discretisation)
    for event, count in counts.items():
        total = total.compose(_repeated(event, count, discretisation))
    return total


def _require_noise(event: Event) -> None:
    if isinstance(event, (ForReplacement, ForAddRemove)):
        event = event.event
    for name in ("noise_multiplier", "sigma", "scale"):
        noise = getattr(event, name, math.inf)
        if noise < _LEAST_PLD_NOISE:
            raise InvalidInput(
                f"{name} is {noise:g}; below {_LEAST_PLD_NOISE:g} use the moments accountant"
            )


def _repeated(event: Event, count: int, discretisation: float) -> Any:
    """Return the loss distribution of equal events, or of what they are a post-processing of."""
    match event:
        case ForReplacement(event=inner) | ForAddRemove(event=inner):  # distributions are the same
            return _repeated(inner, count, discretisation)
        case Gaussian(noise_multiplier=multiplier) | ThresholdCheck(sigma=multiplier):
            return _gaussian(multiplier / math.sqrt(count), 1.0, discretisation)
        case GaussianNoisyMaxAnswer(sigma=sigma):  # the argmax of counts that move by √2 in L2
            return _gaussian(sigma / math.sqrt(2 * count), 1.0, discretisation)
        case SampledGaussian(sample_rate=rate, noise_multiplier=multiplier):
            return _gaussian(multiplier, rate, discretisation).self_compose(count)
        case Laplace(noise_multiplier=multiplier):
            return _laplace(multiplier, discretisation).self_compose(count)
        case LaplaceNoisyMaxAnswer(scale=scale):  # the argmax of counts of which two move by one
            return _laplace(scale, discretisation).self_compose(2 * count)
    raise UnsupportedEvent(
        f"{type(event).__name__} has no privacy loss distribution here; use the moments accountant"
    )


def _laplace(scale: float, discretisation: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_laplace_mechanism(
        scale, value_discretization_interval=discretisation
    )


def _gaussian(noise: float, rate: float, discretisation: float) -> Any:
    """Return the loss distribution of Gaussian noise on a Poisson sample, connecting the dots.

    As dp-accounting's ``from_gaussian_mechanism``, with δ at all points of the grid in one pass:
    that library inverts the loss point by point, which takes most of its time.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    def distribution(adjacency: Any, sign: int) -> Any:
        loss = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=adjacency)
        bounds = loss.connect_dots_bounds()
        first = math.floor(bounds.epsilon_lower / discretisation)
        last = math.ceil(bounds.epsilon_upper / discretisation)
        epsilons = np.arange(first, last + 1) * discretisation
        with np.errstate(divide="ignore"):  # a loss of -inf, at which a distribution function is 1
            # log(1 + (e^{±ε} − 1) / q): the loss of a record that is in the sample
            scaled, others = sign * epsilons + np.log(1 / rate), np.log(1 / rate - 1)
            inner = scaled + np.log1p(-np.exp(np.minimum(others - scaled, 0.0)))
            inner[epsilons == 0.0] = np.log(1 / rate + (1 - 1 / rate))
        x = (-0.5 - sign * inner * noise**2) + (sign < 0)
        deltas = loss.mu_upper_cdf(x) - np.exp(epsilons + loss.mu_lower_log_cdf(x))
        deltas = np.where(np.isposinf(x), -np.expm1(epsilons), deltas)
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            discretisation, first, last, np.clip(deltas, 0.0, 1.0)
        )

    removed = distribution(AdjacencyType.REMOVE, 1)
    if rate == 1:
        return PrivacyLossDistribution(removed)
    return PrivacyLossDistribution(removed, distribution(AdjacencyType.ADD, -1))
