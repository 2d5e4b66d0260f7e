"""Local and smooth sensitivity of data-dependent costs.

A data-dependent cost is a function of private votes, so publishing it leaks. How much noise hides
one teacher depends on how much the cost can change when one teacher changes its votes: at the
votes at hand (*local* sensitivity), and d teachers away, discounted by e^{−βd} (*smooth*
sensitivity; Nissim, Raskhodnikova & Smith 2007). :mod:`pate.accounting.sanitise` adds the noise.

Costs here are RDP at **one Rényi order**, fixed before the votes are opened. One teacher may
change its vote on every query at once, on each by one vote or not at all; so sensitivities
*within* distance d add up over queries (those at *exactly* distance d do not).

Costs are capped by the **published** data-independent bounds (α/σ², …), for which the propositions
below were proved, and not by the tighter ones of :mod:`pate.accounting.argmax_divergence`.

Guarantees, where teachers may abstain:
    A change of one teacher moves its vote to another class, takes it away or adds it; the number
    of teachers (k, public) stays, and a query holds k votes at most. Taking away or adding moves
    every gap, and the checked statistic, by no more than moving a vote does, so all one-step
    bounds hold as they are. d changes take at most d votes from the leader and give at most d to
    its rivals (or the other way round), and d votes moved do both: the walks of
    :class:`GnmaxSensitivity` reach the least and the most certain votes as long as
    there are votes to move, and beyond their end the largest sensitivity is taken. One change
    lengthens a walk by one step at most, so the discounted maximum stays smooth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from pate.accounting.events import (
    Event,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    ThresholdCheck,
)
from pate.accounting.guarantee import Analysis
from pate.accounting.moments import FloatArray, log1mexp, log_moments
from pate.accounting.noisy_max import (
    Counts,
    as_counts,
    count_teachers,
    gaussian_from_log_q,
    gaussian_log_q,
    laplace_from_log_q,
    laplace_log_q,
    threshold_from_log_q,
    threshold_log_q,
)
from pate.errors import ConditionsFail, InvalidInput

_LOWEST_LOG_Q = -700.0  # e^{−700}: below it every cost is zero in double precision
_GRID = 20001


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SensitiveCost:
    """A data-dependent RDP cost at one order, and how far one teacher can move it. PRIVATE.

    Costs at the same order and of the same teachers can be added.
    """

    order: float
    value: float  # private
    ceiling: float  # the data-independent cost of the same answers; public
    local_sensitivity: FloatArray  # [d]: bound within distance d = 0 … teachers + 1; private

    def __add__(self, other: SensitiveCost) -> SensitiveCost:
        if self.order != other.order or len(self.local_sensitivity) != len(other.local_sensitivity):
            raise InvalidInput("costs at different orders or of different teachers do not add up")
        return SensitiveCost(
            order=self.order,
            value=self.value + other.value,
            ceiling=self.ceiling + other.ceiling,
            local_sensitivity=self.local_sensitivity + other.local_sensitivity,
        )

    def smooth_sensitivity(self, beta: float) -> float:
        """Return max_d e^{−βd} · local sensitivity within distance d."""
        return discounted_max(self.local_sensitivity, beta)


def _ceiling(event: Event, order: float) -> float:
    """Return the published data-independent RDP of an event: the cap of the costs analysed here."""
    cost = log_moments(event, np.array([order - 1]), analysis=Analysis.PUBLISHED)
    return float(cost[0]) / (order - 1)


def discounted_max(sensitivity: FloatArray, beta: float) -> float:
    """Return max_d e^{−βd} · sensitivity[d]."""
    return float(np.max(sensitivity * np.exp(-beta * np.arange(len(sensitivity)))))


# --- GNMax ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GnmaxSensitivity:
    """Local sensitivity of one answer's cost; Papernot et al. 2018, Appendix B, Algorithms 3–5.

    Guarantees:
        Propositions 11–15 there, whose conditions C5 (the cost grows with q) and C6 (so does its
        growth over one vote) must hold: :meth:`require_conditions` checks them, and that the cost
        this analysis describes is the one the accountant charges.
    """

    sigma: float
    order: float
    classes: int

    @cached_property
    def log_q0(self) -> float:
        """Above this log q the data-independent cost is the smaller one."""
        # Theorem 6 needs μ₂ > 1 and μ₁ > order; the margins keep its terms finite.
        edge = min(
            -((1 + 1 / self.sigma) ** 2),
            -(((self.order - 0.99) / self.sigma) ** 2),
            -1 / self.sigma**2,
        )

        def excess(log_q: float) -> float:
            return float(self._dependent(np.array(log_q))) - self.ceiling

        if excess(edge) < 0:
            return edge
        low = 2 * edge
        while excess(low) > 0:
            low *= 1.5
            if low < -1e6:
                raise ConditionsFail(
                    "the data-dependent bound never beats the data-independent one"
                )
        return float(brentq(excess, low, edge, xtol=1e-15, rtol=1e-15))

    @cached_property
    def log_q1(self) -> float:
        """One vote below q₀."""
        return float(self.one_vote_lower(np.array(self.log_q0)))

    @cached_property
    def plateau(self) -> float:
        """The largest local sensitivity anywhere."""
        return float(self.local(np.array([self.log_q1]))[0])

    @property
    def ceiling(self) -> float:
        return self.order / self.sigma**2

    def cost(self, log_q: FloatArray) -> FloatArray:
        """Return the RDP of one answer as the sensitivity analysis sees it."""
        below = np.minimum(log_q, self.log_q0)
        return np.where(log_q >= self.log_q0, self.ceiling, self._dependent(below))

    def _dependent(self, log_q: FloatArray) -> FloatArray:
        """Return the bound of Theorem 6 without its conditions."""
        mu2 = self.sigma * np.sqrt(-log_q)
        log_stay = np.log1p(-np.exp(log_q))
        a = log_stay - log1mexp((log_q + mu2 / self.sigma**2) * (1 - 1 / mu2))
        b = (mu2 + 1) / self.sigma**2 - log_q / mu2
        moment = self.order - 1
        with np.errstate(over="ignore"):
            excess = np.expm1(log_stay + moment * a) + np.exp(log_q + moment * b)
        return np.asarray(np.log1p(excess) / moment)

    def one_vote_lower(self, log_q: FloatArray) -> FloatArray:
        """Return B_L: the least log q that one changed vote can lead to (Proposition 11)."""
        return self._shifted(log_q, math.sqrt(2) / self.sigma)

    def one_vote_higher(self, log_q: FloatArray) -> FloatArray:
        """Return B_U: the largest log q that one changed vote can lead to (Proposition 11)."""
        return np.minimum(self._shifted(log_q, -math.sqrt(2) / self.sigma), 0.0)

    def _shifted(self, log_q: FloatArray, by: float) -> FloatArray:
        others = math.log(self.classes - 1)
        return np.asarray(others + log_ndtr(ndtri_exp(log_q - others) - by))

    def local(self, log_q: FloatArray) -> FloatArray:
        """Return the bound of Algorithm 3 on the local sensitivity at votes with this q."""
        steep = (self.log_q1 <= log_q) & (log_q <= self.log_q0)
        at = np.where(steep, self.log_q1, log_q)
        higher = np.where(steep, self.log_q0, self.one_vote_higher(at))  # B_U(q₁) = q₀ exactly
        here = self.cost(at)
        return np.maximum(self.cost(higher) - here, here - self.cost(self.one_vote_lower(at)))

    def at_distances(self, votes: Counts, teachers: int | None = None) -> FloatArray:
        """Return the bounds of Algorithms 4 and 5 at distances d = 0 … teachers − 1.

        ``teachers`` is their number, where some abstained.
        """
        teachers = int(votes.sum()) if teachers is None else teachers
        log_q = float(gaussian_log_q(votes, sigma=self.sigma)[0])
        result = np.full(teachers, self.plateau)
        if self.log_q1 <= log_q <= self.log_q0:
            return result
        path = np.array(list(_less_certain(votes) if log_q < self.log_q1 else _more_certain(votes)))
        log_qs = gaussian_log_q(path, sigma=self.sigma)
        inside = (log_qs >= self.log_q1) if log_q < self.log_q1 else (log_qs <= self.log_q0)
        steps = int(np.argmax(inside)) if inside.any() else len(path)
        steps = min(steps, teachers)
        result[:steps] = self.local(log_qs[:steps])
        return result

    def conditions(self) -> tuple[bool, bool]:
        """Return whether C5 and C6 hold, on a fine grid of log q down to e^{−700}."""
        upto0 = np.linspace(_LOWEST_LOG_Q, self.log_q0, _GRID)
        with np.errstate(invalid="ignore"):  # ∞ − ∞, for tiny σ: neither grows
            c5 = bool(np.all(np.diff(self._dependent(upto0)) >= 0))
            # Denser towards q₁, where C6 fails first when it does.
            upto1 = self.log_q1 - np.geomspace(1e-6, self.log_q1 - _LOWEST_LOG_Q, _GRID)[::-1]
            growth = self._dependent(np.minimum(self.one_vote_higher(upto1), self.log_q0))
            growth = growth - self._dependent(upto1)
            return c5, c5 and bool(np.all(np.diff(growth) >= 0))

    def require_conditions(self) -> None:
        """Raise :class:`ConditionsFail` where the published analysis does not apply."""
        if self.problem is not None:
            raise ConditionsFail(self.problem)

    @cached_property
    def problem(self) -> str | None:
        """Why the published analysis does not apply; None if it does."""
        where = f"at sigma {self.sigma:g}, order {self.order:g}, {self.classes} classes"
        log_q = np.concatenate(
            [np.linspace(-60, -1e-3, _GRID), np.linspace(_LOWEST_LOG_Q, -60, 1000)]
        )
        moment = np.array([self.order - 1])
        charged = gaussian_from_log_q(log_q, sigma=self.sigma, moments=moment)[:, 0] / moment
        if not np.allclose(charged, self.cost(log_q), rtol=1e-9, atol=1e-300):
            return (
                f"{where} the sensitivity analysis describes another cost than the one charged "
                "(σ is too small); publish the data-independent ε instead"
            )
        c5, c6 = self.conditions()
        if c5 and c6:
            return None
        return (
            f"condition {'C6' if c5 else 'C5'} of Papernot et al. 2018 fails {where}: the "
            "smooth sensitivity can come out too small; choose a lower order or a larger σ"
        )


@lru_cache(maxsize=64)
def _analysis(sigma: float, order: float, classes: int) -> GnmaxSensitivity:
    """Return the analysis at public settings, cached with its conditions: they take grids."""
    return GnmaxSensitivity(sigma=sigma, order=order, classes=classes)


def _more_certain(votes: Counts) -> Iterator[Counts]:
    """Yield the votes after d = 0, 1, … moves from the strongest rival to the leader."""
    now = np.sort(votes)[::-1].copy()
    while True:
        yield now.copy()
        rival = 1 + int(np.argmax(now[1:]))
        if now[rival] == 0:
            return
        now[0] += 1
        now[rival] -= 1


def _less_certain(votes: Counts) -> Iterator[Counts]:
    """Yield the votes after d = 0, 1, … moves from the leader to the runner-up."""
    now = np.sort(votes)[::-1].copy()
    while now[0] >= now[1]:
        yield now.copy()
        now[0] -= 1
        now[1] += 1


def gnmax_cost(
    votes: ArrayLike,
    *,
    sigma: float,
    order: float,
    weights: ArrayLike | None = None,
    teachers: int | None = None,
) -> SensitiveCost:
    """Return the cost of GNMax answers with its sensitivity.

    ``weights`` are 1 for an answered query, else 0. ``teachers`` is their public number, needed
    where some abstained.

    Guarantees:
        Refuses (``ConditionsFail``) where C5 or C6 fail. Fractional weights (probabilities of
        an answer) are for planning: they are data-dependent and their change is not covered.
    """
    counts = as_counts(votes)
    teachers = count_teachers(counts, teachers)
    analysis = _analysis(sigma, order, counts.shape[1])
    times = _as_weights(weights, len(counts))
    ceiling = times.sum() * _ceiling(GaussianNoisyMaxAnswer(sigma=sigma), order)
    sensitivity = np.zeros(teachers + 2)
    if gaussian_log_q(_unanimous(counts, teachers), sigma=sigma)[0] >= analysis.log_q0:
        return SensitiveCost(  # no votes make it data-dependent
            order=order, value=ceiling, ceiling=ceiling, local_sensitivity=sensitivity
        )
    analysis.require_conditions()
    histograms, inverse = np.unique(np.sort(counts, axis=1), axis=0, return_inverse=True)
    each = np.bincount(inverse.ravel(), weights=times, minlength=len(histograms))
    moment = np.array([order - 1])
    costs = gaussian_from_log_q(
        gaussian_log_q(histograms, sigma=sigma), sigma=sigma, moments=moment
    )
    for histogram, weight in zip(histograms, each, strict=True):
        if weight:
            at = np.append(analysis.at_distances(histogram, teachers), [analysis.plateau] * 2)
            sensitivity += weight * np.maximum.accumulate(at)
    return SensitiveCost(
        order=order,
        value=float(each @ costs[:, 0]) / (order - 1),
        ceiling=ceiling,
        local_sensitivity=sensitivity,
    )


# --- the threshold check ------------------------------------------------------------------------


def threshold_at_distances(
    statistic: int, *, teachers: int, threshold: float, sigma: float, order: float
) -> FloatArray:
    """Return the local sensitivity of a check's cost at *exactly* distance d < teachers.

    No conditions: every value 0 … teachers of the checked statistic is evaluated.
    """
    if not 0 <= statistic <= teachers:
        raise InvalidInput(f"the checked value must lie in 0 … {teachers}")
    step = np.abs(np.diff(_threshold_costs(teachers, threshold, sigma, order)))
    local = np.maximum(np.append(step, 0.0), np.insert(step, 0, 0.0))
    distance = np.arange(teachers)
    up, down = statistic + distance, statistic - distance
    return np.maximum(
        np.where(up <= teachers, local[np.minimum(up, teachers)], 0.0),
        np.where(down >= 0, local[np.maximum(down, 0)], 0.0),
    )


def _threshold_costs(teachers: int, threshold: float, sigma: float, order: float) -> FloatArray:
    """Return the RDP of a check for every value 0 … teachers of the checked statistic."""
    log_q = threshold_log_q(np.arange(teachers + 1.0), threshold=threshold, sigma=sigma)
    return threshold_from_log_q(log_q, sigma=sigma, moments=np.array([order - 1]))[:, 0] / (
        order - 1
    )


def threshold_cost(
    statistic: FloatArray, *, teachers: int, threshold: float, sigma: float, order: float
) -> SensitiveCost:
    """Return the cost of the threshold checks of all queries with its sensitivity."""
    costs = _threshold_costs(teachers, threshold, sigma, order)
    values, times = np.unique(statistic.astype(np.int64), return_counts=True)
    sensitivity = np.zeros(teachers + 2)
    for value, count in zip(values, times, strict=True):
        at = threshold_at_distances(
            int(value), teachers=teachers, threshold=threshold, sigma=sigma, order=order
        )
        within = np.maximum.accumulate(np.append(at, [0.0, 0.0]))
        sensitivity += count * within
    ceiling = _ceiling(ThresholdCheck(sigma=sigma), order)
    return SensitiveCost(
        order=order,
        value=float(times @ costs[values]),
        ceiling=len(statistic) * ceiling,
        local_sensitivity=sensitivity,
    )


# --- LNMax ------------------------------------------------------------------------------------


def lnmax_cost(
    votes: ArrayLike,
    *,
    scale: float,
    order: float,
    weights: ArrayLike | None = None,
    teachers: int | None = None,
) -> SensitiveCost:
    """Return the cost of Laplace noisy-max answers with its sensitivity.

    ``weights`` and ``teachers`` are as in :func:`gnmax_cost`.

    Guarantees:
        One changed vote moves every sorted gap by at most two, and the bound of Lemma 4 changes
        by less than a factor e^{1/b} for each; so log q moves by less than 2/b. The cost never
        falls as q grows (Papernot et al. 2017, Theorem 3). Hence its growth over a step of 2/b in
        log q, taken at its largest over all log q within reach, bounds the local sensitivity; no
        further conditions. From any votes a distance of teachers + 1 covers the whole range, so
        that the bound is smooth to the end. (The walk of the 2017 code, from leader to runner-up
        only, finds zero for close votes.)
    """
    counts = as_counts(votes)
    teachers = count_teachers(counts, teachers)
    times = _as_weights(weights, len(counts))
    moment = np.array([order - 1])
    step = 2 / scale
    log_q, inverse = np.unique(laplace_log_q(counts, scale=scale), return_inverse=True)
    each = np.bincount(inverse, weights=times, minlength=len(log_q))

    def cost(at: FloatArray) -> FloatArray:
        return laplace_from_log_q(at, scale=scale, moments=moment)[:, 0] / (order - 1)

    # Growth over one step, bounded on every cell of a grid that is the same for all votes and
    # covers what votes can reach: from unanimity to the clamp.
    parts = 64
    width = step / parts
    unanimous = _unanimous(counts, teachers)
    lowest = math.floor(laplace_log_q(unanimous, scale=scale)[0] / width)
    highest = math.ceil(math.log1p(-1 / counts.shape[1]) / width)
    at = cost(np.minimum(np.arange(lowest, highest + parts + 2) * width, 0.0))
    growth = at[parts + 1 :] - at[: highest - lowest + 1]
    distance = np.arange(teachers + 2)
    sensitivity = np.zeros(teachers + 2)
    for x, weight in zip(log_q, each, strict=True):
        first = np.floor((x - (distance + 1) * step) / width) - lowest
        last = np.ceil((x + distance * step) / width) - lowest
        sensitivity += weight * _nested_maxima(
            growth, first.astype(np.int64), last.astype(np.int64)
        )
    ceiling = _ceiling(LaplaceNoisyMaxAnswer(scale=scale), order)
    return SensitiveCost(
        order=order,
        value=float(each @ cost(log_q)),
        ceiling=float(times.sum()) * ceiling,
        local_sensitivity=sensitivity,
    )


def _nested_maxima(values: FloatArray, first: Counts, last: Counts) -> FloatArray:
    """Return max(values[first[d] : last[d] + 1]) for windows that grow around a common core."""
    first, last = np.clip(first, 0, len(values) - 1), np.clip(last, 0, len(values) - 1)
    left = np.maximum.accumulate(values[: last[0] + 1][::-1])  # from the core downwards
    right = np.maximum.accumulate(values[first[0] :])  # from the core upwards
    return np.asarray(np.maximum(left[last[0] - first], right[last - first[0]]))


def _unanimous(counts: Counts, teachers: int) -> Counts:
    votes = np.zeros(counts.shape[1], dtype=np.int64)
    votes[0] = teachers
    return votes


def _as_weights(weights: ArrayLike | None, queries: int) -> FloatArray:
    if weights is None:
        return np.ones(queries)
    times = np.asarray(weights, dtype=np.float64)
    if times.shape != (queries,) or not np.all((times >= 0) & (times <= 1)):
        raise InvalidInput(f"weights must be {queries} numbers between 0 and 1")
    return times
