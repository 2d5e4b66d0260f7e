"""The cost of Gumbel noisy-max answers: the exponential mechanism and its bounded range.

Class j is drawn with a chance p_j in proportion to e^{n_j/b}. A moved vote changes two counts by
one each, in opposite directions, so that the privacy losses log p_j/p'_j of all answers lie in an
interval of length η = 2/b (*bounded range*: Durfee & Rogers 2019). A vote cast or withheld changes
one count, and the range is 1/b.

Let t be the upper end of that interval. A loss is worst if it takes the two ends only: with
r = e^{−loss}, E r = 1 under p, and both r^{−λ} and (1 − e^ε r)₊ are convex in r. So an answer costs
no more than a randomised response with losses t and t − η and chances

    1 − s and s under p,   1 − s′ and s′ under p′,   s = (e^t − 1)/(e^η − 1),   s′ = e^{η−t} s,

for the worst t in [0, η] (Dong, Durfee & Rogers 2020). The reverse direction has the same range,
and the same bound. The proofs are in docs/proofs/bounded-range.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, logsumexp

from pate._validate import check_delta, check_whole
from pate.accounting.events import GumbelNoisyMaxAnswer
from pate.accounting.guarantee import Analysis, Neighbours
from pate.accounting.moments import FloatArray, LogMoments, as_moments, log_moments, moments_of
from pate.accounting.noisy_max import as_counts
from pate.errors import InvalidInput

LEAST_DELTA = 1e-10  # below it, rounding of binomial sums would count
_ROUNDING = 1e-13  # of a sum of logarithms of numbers near one
_LARGEST_EPSILON = 20.0  # beyond it, rounding of e^ε times a binomial sum would count
_CHUNK = 1 << 20  # costs held at a time
_SUM_ROUNDING = 1e-14  # relative, of a binomial sum for each trial: eight times what was measured
_STEP_ROUNDING = 1e-14  # relative, of one step of the recursion
_LEAST_CELLS, _MOST_CELLS = 10, 256  # of the grid of losses, in one width
_POINTS, _MOST_WORK = 1e7, 1e7  # of the grid in all steps, by cells; and with one cell a width
_TAIL = 1e-3  # of δ: what is lost where the grid ends
_BAND = 2.0  # where the worst t lies: this, over √k, of a width around the middle
_LONGEST_REACH = 100.0  # far from the end of doubles in e^ε


@moments_of.register
def _(event: GumbelNoisyMaxAnswer, moments: FloatArray, analysis: Analysis) -> FloatArray:
    return bounded_range_log_moments(2 / event.scale, moments)


def bounded_range_log_moments(width: float, moments: FloatArray) -> FloatArray:
    """Return the log-moments of any mechanism whose losses lie in an interval of ``width``.

    Guarantees:
        The worst t has a closed form. With c = e^{−λη} and x = e^t the moment of the randomised
        response above is x^λ [(e^η − c) − x(1 − c)]/(e^η − 1), which is largest at
        x = λ(e^η − c)/((λ+1)(1 − c)), between 1 and e^η. It is at most λ(λ+1)η²/8 (Cesar & Rogers
        2021, Lemma 3.4: η-bounded range is η²/8-zCDP), which is taken where it is the smaller of
        the two, i.e. where rounding would outweigh the difference.

    >>> bounded_range_log_moments(0.1, np.array([1.0, 8.0])).round(6)
    array([0.002499, 0.089102])
    """
    shrink = moments * width
    # log (e^η − e^{−λη}) and log (1 − e^{−λη}), where no two large numbers cancel.
    rest = width + np.log(-np.expm1(-(moments + 1) * width))
    log_x = np.log(moments / (moments + 1)) + rest - np.log(-np.expm1(-shrink))
    least = width + math.log(-math.expm1(-width))  # log (e^η − 1)
    exact = moments * log_x + rest - np.log(moments + 1) - least
    margin = _ROUNDING * (1 + moments) * (1 + width + abs(math.log(width)))
    concentrated = moments * (moments + 1) * width**2 / 8 * (1 + 1e-15)
    return np.minimum(np.maximum(exact, 0.0) + margin, concentrated)


def gumbel_total(votes: ArrayLike, *, scale: float, moments: ArrayLike | None = None) -> LogMoments:
    """Return the exact data-dependent cost of answering every query by Gumbel noisy-max.

    Parameters
    ----------
    votes
        Counts of votes, (queries, classes). PRIVATE, and so is the result.
    scale
        The Gumbel b, in votes.
    moments
        The grid of λ; a fine default grid if None.

    Guarantees:
        No bound, but the divergence itself. A vote moved from a to c multiplies the weights of two
        classes by e^{∓1/b} and their sum by Z = 1 + p_a(e^{−1/b} − 1) + p_c(e^{1/b} − 1), so that
        the moment is Z^λ [1 + p_a(e^{λ/b} − 1) + p_c(e^{−λ/b} − 1)]; the worst pair is taken, and
        with p_a or p_c left out the worst vote cast or withheld. From the data at hand to its
        neighbours, as for the other mechanisms.

    >>> votes = np.array([[240, 5, 5], [130, 100, 20]])
    >>> gumbel_total(votes, scale=20.0).guarantee(delta=1e-5).publishable
    False
    """
    grid = as_moments(moments)
    counts = as_counts(votes)
    cap = log_moments(GumbelNoisyMaxAnswer(scale=scale), grid)
    # The order of classes does not matter, and equal histograms are evaluated once.
    counts, times = np.unique(np.sort(counts, axis=1), axis=0, return_counts=True)
    weights = counts / scale
    log_p = weights - logsumexp(weights, axis=1, keepdims=True)
    gone, kept = _pairs(counts.shape[1])
    total = np.zeros_like(grid)
    rows = max(1, _CHUNK // (len(gone) * len(grid)))
    for start in range(0, len(counts), rows):
        # A further column stands for no class: its chance is zero.
        some = np.pad(log_p[start : start + rows], ((0, 0), (0, 1)), constant_values=-np.inf)
        each = _moved_vote(some[:, gone, None], some[:, kept, None], 1 / scale, grid)
        total += times[start : start + rows] @ np.minimum(each.max(axis=1), cap)
    return LogMoments(
        moments=grid, values=total, data_dependent=True, neighbours=Neighbours.REPLACE_ONE
    )


def _pairs(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every class that a vote may leave and every one that it may go to; one may be none."""
    gone, kept = np.divmod(np.arange((classes + 1) ** 2), classes + 1)
    return gone[gone != kept], kept[gone != kept]


def _moved_vote(
    log_gone: FloatArray, log_kept: FloatArray, step: float, moments: FloatArray
) -> FloatArray:
    gone, kept = np.exp(log_gone), np.exp(log_kept)
    sum_change = np.log1p(gone * math.expm1(-step) + kept * math.expm1(step))
    up = moments * step
    few = np.minimum(up, 1.0)
    near = np.log1p(gone * np.expm1(few) + kept * np.expm1(-few))
    others = np.log(np.maximum(1 - gone - kept, 0.0) + _ROUNDING)
    far = np.logaddexp(np.logaddexp(others, log_gone + up), log_kept - up)
    exact = moments * sum_change + np.where(up > 1.0, far, near)
    bound: FloatArray = np.maximum(exact, 0.0) + _ROUNDING * (1 + up)
    return bound


def bounded_range_epsilon(
    width: float, *, count: int, delta: float, adaptive: bool = True, fineness: float = 1.0
) -> float:
    """Return an ε of mechanisms whose losses each lie in a range of ``width``.

    It is the least one up to rounding, below ε = 20; above that, the sum of their ranges.

    Parameters
    ----------
    width
        η: 2/b for an answer with Gumbel(b) noise.
    count
        The number of mechanisms, fixed in advance.
    delta
        The δ of the guarantee, at least 1e-10.
    adaptive
        Earlier outcomes may decide what a later mechanism is asked. False is for mechanisms that
        are all fixed in advance.
    fineness
        How many times the usual work goes into the grid of adaptive composition.

    Guarantees:
        Optimal composition (Dong, Durfee & Rogers 2020; proofs in docs/proofs/bounded-range.md).

        * Not adaptive: all mechanisms have the same t at worst. The hockey-stick divergence is then
          the largest Pr[I ≤ l] − e^ε Pr′[I ≤ l] over t and l, where I counts the losses t − η; for
          each l it is largest at t = (ε + (l+1)η)/(count+1).
        * Adaptive: V_0(s) = (1 − e^{−s})₊ and V_k(s) = max_t E_t[V_{k−1}(s + loss)], with ε where
          V_count(−ε) = δ. V is convex in e^{−s}, so that its linear interpolation between points of
          a grid of s is above it: every step rounds up.

    >>> round(bounded_range_epsilon(2 / 209, count=191, delta=1e-5), 4)
    0.2174
    >>> round(bounded_range_epsilon(2 / 209, count=191, delta=1e-5, adaptive=False), 4)
    0.217
    """
    check_delta(delta)
    check_whole("count", count)
    if delta < LEAST_DELTA:
        raise InvalidInput(
            f"delta is {delta:g}; optimal composition needs {LEAST_DELTA:g} or more, because "
            "probabilities are added up in floats: use the moments accountant"
        )
    if not 0 < width < math.inf:
        raise InvalidInput(f"width is {width!r}; it must be a finite number above zero")
    if count == 0:
        return 0.0
    if adaptive:
        found = _adaptive_epsilon(width, count, delta, fineness)
    else:
        found = _fixed_epsilon(width, count, delta)
    return min(found, count * width)  # pure DP holds always


def bounded_range_fits(width: float, *, count: int, epsilon: float, delta: float) -> bool:
    """Return whether ``count`` mechanisms, not adaptive, are known to be (ε, δ)-DP; see above."""
    if max(epsilon, width) > _LARGEST_EPSILON:
        return count * width <= epsilon
    largest = np.arange(count + 1, dtype=np.float64)
    t = np.clip((epsilon + (largest + 1) * width) / (count + 1), 0.0, width)
    # Of chances near one the complement keeps its digits; e^ε times its rounding would count.
    other = np.expm1(width - t) / math.expm1(width)
    under = np.minimum(np.exp(t) * other, 1.0)
    gain = math.exp(epsilon)
    first, second = _at_most(largest, count, under), gain * _at_most(largest, count, other)
    rounding = _SUM_ROUNDING * (100 + count) * (first + second)
    return float(np.max(first - second + rounding)) <= delta


def _at_most(largest: FloatArray, count: int, complement: FloatArray) -> FloatArray:
    """Return the chance of at most ``largest`` of ``count`` events, each of 1 − ``complement``."""
    below = np.minimum(largest, count - 1)
    chances = betainc(count - below, below + 1, complement)
    return np.asarray(np.where(largest < count, chances, 1.0), dtype=np.float64)


def _fixed_epsilon(width: float, count: int, delta: float) -> float:
    def meets(epsilon: float) -> bool:
        return bounded_range_fits(width, count=count, epsilon=epsilon, delta=delta)

    if meets(0.0):
        return 0.0
    low, high = 0.0, width
    while not meets(high):
        if high >= _LARGEST_EPSILON:
            return math.inf
        low, high = high, min(2 * high, _LARGEST_EPSILON)
    while high - low > 1e-12 * max(high, 1e-3):
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _adaptive_epsilon(width: float, count: int, delta: float, fineness: float) -> float:
    grid, curve = _adaptive_curve(width, count, delta, fineness)
    within = np.flatnonzero(curve <= delta)
    if not len(within):
        return math.inf
    last = int(within[-1])  # the curve rises with s = −ε
    if grid[last] >= 0 or last + 1 == len(grid):
        return max(0.0, -float(grid[last]))
    share = (delta - curve[last]) / (curve[last + 1] - curve[last])
    high, low = math.exp(-grid[last]), math.exp(-grid[last + 1])
    return max(0.0, math.log(high - share * (high - low)) + _ROUNDING)


@lru_cache(maxsize=16)
def _adaptive_curve(
    width: float, count: int, delta: float, fineness: float
) -> tuple[FloatArray, FloatArray]:
    """Return a grid of s = −ε up to where V_count exceeds δ, and V_count on it, rounded up."""
    left = np.arange(count + 1)  # mechanisms to come
    mean = left * width**2 / 8
    # Losses seldom lie farther from zero. Where the grid ends is a matter of tightness alone.
    reach = np.minimum(left * width, mean + 2 * np.sqrt(-mean * math.log(_TAIL * delta)))
    if not (reach[-1] < _LONGEST_REACH and np.sum(reach / width + 1) <= _MOST_WORK):
        raise InvalidInput(
            f"{count} adaptive mechanisms of range {width:g} are too many for optimal "
            "composition: use the moments accountant"
        )
    start = min(_fixed_epsilon(width, count, delta), _LARGEST_EPSILON)  # no more than the result
    top = np.minimum(reach, reach[::-1] - start)
    work = float(np.sum(np.maximum(top + reach, 0) / width + 1))
    cells = min(max(math.sqrt(_POINTS / work), _LEAST_CELLS), _MOST_CELLS) * math.sqrt(fineness)
    cells = int(cells) // 2 * 2  # even: the worst t is near the middle, a point of the grid
    step, gain = width / cells, math.exp(width)
    below = np.ceil(reach / step).astype(int)
    above = np.maximum(np.ceil(top / step).astype(int) + 2, 1 - below)
    away = np.exp(-step * np.arange(1, np.diff(above).max() + cells + 1))
    curve = -np.expm1(-step * np.maximum(np.arange(-below[0], above[0] + 1), 0))
    for k in range(1, count + 1):
        # Below the grid V is at most its first value; above it, on the chord to V(∞) = 1.
        less, more = (int(side[k] - side[k - 1]) + cells for side in (below, above))
        wide = np.concatenate(
            [np.full(less, curve[0]), curve, 1 - away[: max(more, 0)] * (1 - curve[-1])]
        )
        size = int(below[k] + above[k]) + 1
        windows: FloatArray = np.ndarray(  # row i is V at s + (i − cells) · step
            (2 * cells + 1, size), buffer=wide, strides=2 * wide.strides
        )
        ends, high, low, bend = _upper_ends(width, cells, math.ceil(_BAND * cells / math.sqrt(k)))
        up, down = windows[ends + cells], windows[ends]
        value = high * up + low * down
        # From one t to the next the mean is a constant − K/y − Gy, y = e^{t − the first}: above
        # both ends by no more than a parabola, of which ``peak`` is the height over its chord.
        peak = bend * (gain * (up[1:] - up[:-1]) - (down[1:] - down[:-1]))
        np.maximum(peak, 1e-300, out=peak)
        rest = np.maximum(peak - np.abs(value[1:] - value[:-1]) / 4, 0.0)
        curve = (np.maximum(value[1:], value[:-1]) + rest * (rest / peak)).max(axis=0)
    rounding = _ROUNDING + _STEP_ROUNDING * count / 32
    bound: FloatArray = np.minimum(curve * (1 + _STEP_ROUNDING * count) + rounding, 1.0)
    grid = step * np.arange(-below[-1], above[-1] + 1, dtype=np.float64)
    grid.setflags(write=False)
    bound.setflags(write=False)
    return grid, bound


@lru_cache(maxsize=256)
def _upper_ends(
    width: float, cells: int, band: int
) -> tuple[NDArray[np.intp], FloatArray, FloatArray, FloatArray]:
    """Return some t, in cells; chances of both losses there; and (e^{t′ − t} − 1)²/4 over K.

    All t of the grid within ``band`` cells of the middle, and each three times as far beyond.
    """
    middle = cells // 2
    near = min(band, middle - 1)
    half = list(range(1, near + 1))
    while 3 * half[-1] < middle:
        half.append(3 * half[-1])
    half.append(middle)
    ends = middle + np.array([*(-each for each in reversed(half)), 0, *half])
    t, spread = ends * (width / cells), math.expm1(width)
    high, low = np.exp(t) * np.expm1((cells - ends) * (width / cells)), np.expm1(t)
    apart = np.diff(t)
    bend = np.expm1(apart) ** 2 / (-4 * np.expm1(-apart) * spread)
    return ends, high[:, None] / spread, low[:, None] / spread, bend[:, None]
