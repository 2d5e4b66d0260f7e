"""The guarantee of a plan that was fixed in advance: the smallest ε of all accountants that apply.

This is the figure that is published of one run. Ledgers, filters, odometers and series that grow as
answers come in add up log-moments at one λ (:mod:`pate.accounting.ledger`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from numpy.typing import ArrayLike

from pate.accounting.bounded_range import (
    LEAST_DELTA,
    bounded_range_epsilon,
    bounded_range_fits,
)
from pate.accounting.composition import gaussian_epsilon, pure_guarantee
from pate.accounting.events import (
    Event,
    ForAddRemove,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
    GumbelNoisyMaxAnswer,
    Laplace,
    Repeated,
    SampledGaussian,
    ThresholdCheck,
    tally,
)
from pate.accounting.guarantee import Accountant, Analysis, Conversion, Guarantee
from pate.accounting.loss_distributions import pld_guarantee
from pate.accounting.moments import compose
from pate.errors import InvalidInput, UnsupportedEvent

_ROUNDING = 1e-9  # relative, of ε by a closed form
_LARGEST_LOSS = 100.0  # beyond it loss distributions take long, and nobody publishes such an ε


def guarantee_of_plan(
    events: Iterable[Event],
    *,
    delta: float,
    conversion: Conversion = Conversion.IMPROVED,
    analysis: Analysis = Analysis.TIGHT,
    moments: ArrayLike | None = None,
    adaptive: bool = True,
    accountant: Accountant | None = None,
) -> Guarantee:
    """Return the guarantee of events whose number was fixed in advance, by the best accountant.

    Parameters
    ----------
    events
        The most that may happen. Fewer, and any order, are covered.
    delta
        The δ of the guarantee; at 0 every event must be (ε, 0)-DP.
    conversion
        The bound that converts log-moments. The classic one is for the papers' figures: log-moments
        alone are then used.
    analysis
        The bounds of noisy-max answers and threshold checks. The published ones are for the papers'
        figures, too.
    moments
        A grid of λ; log-moments alone are then used. By default a fine one.
    adaptive
        Earlier answers may decide what is asked next. False is for queries that are all fixed in
        advance: Gumbel answers cost less then.
    accountant
        One accountant instead of the best.

    Returns
    -------
    Guarantee
        Its ``accountant`` records which one gave the ε.

    Guarantees:
        The smallest of several ε, each a theorem about the same events, chosen by these alone:

        * log-moments, at the best λ (Abadi et al. 2016, Theorem 2.1);
        * noise that is all Gaussian: k Gaussian mechanisms are one of noise multiplier
          (Σ zᵢ⁻²)^{−1/2} (Dong, Roth & Su 2022, Corollary 3.3), of which the ε is exact (Balle &
          Wang 2018, Theorem 8);
        * Gumbel noise of one scale: optimal composition of bounded range
          (:func:`pate.accounting.bounded_range.bounded_range_epsilon`);
        * mechanisms that are all (ε, 0)-DP: the sum of their ε (Dwork et al. 2006);
        * sampled Gaussian or Laplace noise, among other events that have a dominating pair:
          privacy loss distributions (:func:`pld_guarantee`). Without these two, log-moments of
          what leaves are the smaller (for answers with Laplace noise, measured on b from 0.5 to 40
          and 1 to 100 answers), or the exact Gaussian is.

        With a dominating pair neither the order nor an event that never comes matters
        (docs/proofs/bounded-range.md).

    >>> answers = [Repeated(GumbelNoisyMaxAnswer(scale=209.0), 191)]
    >>> found = guarantee_of_plan(answers, delta=1e-5)
    >>> round(found.epsilon, 3), found.accountant.value
    (0.217, 'adaptive-bounded-range')
    >>> round(guarantee_of_plan(answers, delta=1e-5, adaptive=False).epsilon, 4)
    0.217
    """
    events = list(events)
    if not delta:
        if (pure := pure_guarantee(events)) is not None:
            return pure
        raise InvalidInput("delta is 0, and not every event is (ε, 0)-DP; give a delta above zero")
    counts, total = tally(events), compose(events, moments, analysis=analysis)
    best = total.guarantee(delta=delta, conversion=conversion)
    if accountant is Accountant.MOMENTS:
        return best
    found = dict(_others(counts, delta))
    if accountant is not None:
        if accountant not in found:
            raise InvalidInput(f"the {accountant.value} accountant does not cover these events")
        return _by(accountant, found[accountant](), best)
    if not _is_open(conversion, analysis, moments):
        return best
    found.pop(Accountant.BOUNDED_RANGE if adaptive else Accountant.ADAPTIVE_RANGE, None)
    if best.epsilon > _LARGEST_LOSS:
        found.pop(Accountant.PLD, None)
    for each, epsilon in found.items():
        try:
            other = epsilon()
        except InvalidInput:  # outside the range of that accountant
            continue
        if other < best.epsilon:
            best = _by(each, other, best)
    return best


def plan_fits(
    events: Iterable[Event],
    *,
    epsilon: float,
    delta: float,
    conversion: Conversion = Conversion.IMPROVED,
    analysis: Analysis = Analysis.TIGHT,
    moments: ArrayLike | None = None,
    adaptive: bool = True,
    by_moments: bool = False,
) -> bool:
    """Return whether a plan is known to cost no more than ``epsilon``, by closed forms alone.

    To search with: what takes long is left out, i.e. privacy loss distributions, and the recursion
    for Gumbel noise where queries are ``adaptive``. The arguments are those of
    :func:`guarantee_of_plan`, whose ε is at most ``epsilon`` where this holds. ``by_moments``
    leaves out all but log-moments: a ledger with a budget adds up these.
    """
    events = list(events)
    counts, total = tally(events), compose(events, moments, analysis=analysis)
    if total.guarantee(delta=delta, conversion=conversion).epsilon <= epsilon:
        return True
    if by_moments or not _is_open(conversion, analysis, moments):
        return False
    found = dict(_others(counts, delta))
    if Accountant.BOUNDED_RANGE in found and not adaptive:
        ((width, count),) = _ranges(counts)
        within = epsilon * (1 - _ROUNDING)
        if bounded_range_fits(width, count=count, epsilon=within, delta=delta):
            return True
    closed = (Accountant.GAUSSIAN, Accountant.PURE)
    return any(found[each]() <= epsilon for each in closed if each in found)


def _is_open(conversion: Conversion, analysis: Analysis, moments: ArrayLike | None) -> bool:
    """Return whether accountants other than log-moments may be used."""
    return conversion is Conversion.IMPROVED and analysis is Analysis.TIGHT and moments is None


def _others(
    counts: Mapping[Event, int], delta: float
) -> Iterator[tuple[Accountant, Callable[[], float]]]:
    """Yield every accountant but log-moments that covers the events, with its ε."""
    if not counts:
        return
    kinds = {type(event) for event in map(_inner, counts)}
    if kinds <= _GAUSSIAN:
        yield Accountant.GAUSSIAN, lambda: _gaussian(counts, delta)
    if len(ranges := _ranges(counts)) == len(counts) == 1 and delta >= LEAST_DELTA:
        ((width, count),) = ranges
        find = partial(bounded_range_epsilon, width, count=count, delta=delta)
        yield Accountant.BOUNDED_RANGE, partial(find, adaptive=False)
        yield Accountant.ADAPTIVE_RANGE, partial(find, adaptive=True)
    events = [Repeated(event, count) for event, count in counts.items()]
    if (pure := pure_guarantee(events)) is not None:
        yield Accountant.PURE, lambda: pure.epsilon
    if kinds & {Laplace, SampledGaussian} and kinds <= _PAIRED:
        yield Accountant.PLD, lambda: pld_guarantee(events, delta=delta).epsilon


_GAUSSIAN: set[type[Event]] = {Gaussian, GaussianNoisyMaxAnswer, ThresholdCheck}
_PAIRED = _GAUSSIAN | {Laplace, SampledGaussian}


def _ranges(counts: Mapping[Event, int]) -> list[tuple[float, int]]:
    """Return the range of every exponential mechanism, and how often it is asked."""
    return [(2 / e.scale, n) for e, n in counts.items() if isinstance(e, GumbelNoisyMaxAnswer)]


def _inner(event: Event) -> Event:
    """Return the event without its relation; a sample of all records is no sample."""
    match event:
        case ForReplacement(event=inner) | ForAddRemove(event=inner):
            return inner
        case SampledGaussian(sample_rate=1.0, noise_multiplier=multiplier):
            return Gaussian(noise_multiplier=multiplier)
    return event


def _gaussian(counts: Mapping[Event, int], delta: float) -> float:
    precision = 0.0  # Σ 1/z²
    for event, count in counts.items():
        match _inner(event):
            case Gaussian(noise_multiplier=multiplier) | ThresholdCheck(sigma=multiplier):
                precision += count / multiplier**2
            case GaussianNoisyMaxAnswer(sigma=sigma):  # counts that move by √2 in L2
                precision += 2 * count / sigma**2
            case other:
                raise UnsupportedEvent(f"{type(other).__name__} has no Gaussian noise")
    return gaussian_epsilon(1 / math.sqrt(precision), delta=delta) * (1 + _ROUNDING)


def _by(accountant: Accountant, epsilon: float, moments: Guarantee) -> Guarantee:
    return replace(moments, epsilon=epsilon, moment=None, conversion=None, accountant=accountant)
