"""Certify the table behind ``pate/accounting/argmax_divergence.json``, and print or write it.

    python benchmarks/certify_argmax.py [--write]

For each noise the table holds upper bounds of

    ψ(κ) = sup over real counts of log E exp(κ s),

where s is the score of an answer along a moved vote (docs/proofs/noisy-argmax.md). A bound is
certified by branch and bound: on a rectangle of counts, G = E exp(κs) − 1 is at most its value at
the centre plus the largest slopes times the half-widths, both evaluated in interval arithmetic with
outward rounding; rectangles where that exceeds the bound are cut in two until none is left. Counts
outside the rectangles are covered by the inequalities of the proof note, evaluated here. A bound is
the largest G found by sampling, raised by ``MARGIN``; if it cannot be certified, the program fails.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr

Array = NDArray[np.float64]
MARGIN = 1e-3
"""Added to each bound on ψ, as a share of it: room for the certificate, far above any rounding."""

TABLE = Path(__file__).parents[1] / "pate" / "accounting" / "argmax_divergence.json"
_ULPS = 4 * np.finfo(float).eps  # of + − × ÷, outwards
_FUNCTION = 1e-12  # of exp, Φ and the hazard; tests compare them with ball arithmetic
_INTEGRAL = 1e-11  # of the chance to win, by quadrature; as above
_LEAST_WIDTH = 1e-5
_CHUNK = 4096
_ROOT2 = math.sqrt(2)


# --- intervals, and intervals with slopes -------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Arrays of closed intervals; results contain every exact result."""

    low: Array
    high: Array

    @classmethod
    def around(cls, low: Array, high: Array, relative: float) -> Interval:
        """Return [low, high], each end moved outwards by a relative error."""
        return cls(low - relative * np.abs(low), high + relative * np.abs(high))

    @classmethod
    def of(cls, value: Interval | float) -> Interval:
        if isinstance(value, Interval):
            return value
        return cls(np.float64(value), np.float64(value))  # type: ignore[arg-type]

    def __add__(self, other: Interval | float) -> Interval:
        other = Interval.of(other)
        return Interval.around(self.low + other.low, self.high + other.high, _ULPS)

    __radd__ = __add__

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval | float) -> Interval:
        return self + (-Interval.of(other))

    def __rsub__(self, other: float) -> Interval:
        return (-self) + other

    def __mul__(self, other: Interval | float) -> Interval:
        other = Interval.of(other)
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval.around(np.minimum.reduce(ends), np.maximum.reduce(ends), _ULPS)

    __rmul__ = __mul__

    def inverse(self) -> Interval:
        """Return 1/x; the interval must be positive."""
        low = np.where(
            self.low > 0, self.low, np.nan
        )  # NaN fails every comparison: never certified
        return Interval.around(1 / self.high, 1 / low, _ULPS)

    def clip(self, low: float, high: float) -> Interval:
        return Interval(np.maximum(self.low, low), np.minimum(self.high, high))

    def increasing(self, function: Callable[[Array], Array], relative: float) -> Interval:
        """Return f(x) for an increasing f that is computed to a relative error."""
        return Interval.around(function(self.low), function(self.high), relative)

    @property
    def size(self) -> Array:
        """The largest absolute value."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True, slots=True, eq=False)
class Jet:
    """Enclosures of a function and of its two partial derivatives on rectangles."""

    value: Interval
    first: Interval
    second: Interval

    @classmethod
    def of(cls, value: Jet | float) -> Jet:
        zero = Interval.of(0.0)
        return value if isinstance(value, Jet) else cls(Interval.of(value), zero, zero)

    def __add__(self, other: Jet | float) -> Jet:
        other = Jet.of(other)
        return Jet(self.value + other.value, self.first + other.first, self.second + other.second)

    __radd__ = __add__

    def __neg__(self) -> Jet:
        return Jet(-self.value, -self.first, -self.second)

    def __sub__(self, other: Jet | float) -> Jet:
        return self + (-Jet.of(other))

    def __rsub__(self, other: float) -> Jet:
        return (-self) + other

    def __mul__(self, other: Jet | float) -> Jet:
        other = Jet.of(other)
        return Jet(
            self.value * other.value,
            self.first * other.value + self.value * other.first,
            self.second * other.value + self.value * other.second,
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Jet) -> Jet:
        inverse = other.value.inverse()
        ratio = self.value * inverse
        return Jet(
            ratio,
            (self.first - ratio * other.first) * inverse,
            (self.second - ratio * other.second) * inverse,
        )

    def through(self, value: Interval, slope: Interval) -> Jet:
        """Return f of this jet, from enclosures of f and f′ on its values."""
        return Jet(value, slope * self.first, slope * self.second)


def exp_excess(z: Array) -> Array:
    """Return e^z − 1 − z without cancellation."""
    small = np.clip(z, -1.0, 1.0)
    series = np.zeros_like(small)
    for n in range(20, 2, -1):
        series = (series + 1.0) * small / n
    with np.errstate(over="ignore"):
        return np.where(np.abs(z) <= 1, (series + 1.0) * small**2 / 2, np.expm1(z) - z)


def excess(z: Jet, *, all_smaller: bool) -> Jet:
    """Return e^z − 1 − z; with ``all_smaller`` z²/2 where z < 0.

    The latter, divided by κ², bounds the former at every κ′ ≤ κ: (e^z − 1 − z)/z² grows with z.
    """
    low, high = z.value.low, z.value.high

    def at(x: Array) -> Array:
        return np.where(x < 0, x**2 / 2, exp_excess(x)) if all_smaller else exp_excess(x)

    ends = at(low), at(high)
    least = np.where((low < 0) & (high > 0), 0.0, np.minimum(*ends))
    value = Interval.around(least, np.maximum(*ends), _FUNCTION)

    def slope(x: Array) -> Array:
        return np.where(x < 0, x, np.expm1(x)) if all_smaller else np.expm1(x)

    return z.through(value, z.value.increasing(slope, _FUNCTION))


# --- noises -------------------------------------------------------------------------------------

Boxes = tuple[Array, Array, Array, Array]  # low and high ends of both coordinates
Excess = Callable[[Boxes, float, bool], Jet]  # boxes, κ, all smaller κ too → G


def _variables(boxes: Boxes) -> tuple[Jet, Jet]:
    low1, high1, low2, high2 = boxes
    one, zero = Interval.of(1.0), Interval.of(0.0)
    return Jet(Interval(low1, high1), one, zero), Jet(Interval(low2, high2), zero, one)


def _total(kappa: float, all_smaller: bool, *outcomes: tuple[Jet, Jet]) -> Jet:
    """Return Σ p (e^{κt} − 1 − κt) over outcomes (p, t)."""
    total = Jet.of(0.0)
    for chance, score in outcomes:
        total = total + chance * excess(kappa * score, all_smaller=all_smaller)
    return total


def _exp(z: Jet) -> Jet:
    value = z.value.increasing(np.exp, _FUNCTION)
    return z.through(value, value)


def laplace_above(sign: int) -> Excess:
    """G for Laplace noise where both counts exceed the start of M: (δ, z) = (y − x, e^{−x})."""

    def excess_of(boxes: Boxes, kappa: float, all_smaller: bool) -> Jet:
        delta, z = _variables(boxes)
        q = _exp(-delta)
        win_a = 0.5 + 0.25 * delta - 0.5 * z + 0.125 * (z * z) + (1 / 12) * (q * z)  # over q
        neither = 0.75 + 0.5 * delta - 0.25 * z + (1 / 12) * q  # over qz
        lost_a = 0.5 + 0.5 * delta - 0.5 * z + 0.25 * (q * z)  # (D + A)/q
        rest = 0.25 - 0.5 * delta - 0.25 * q  # (A − B)/qz
        gained_b = 0.5 + 0.5 * delta - 0.75 * z + 0.5 * (delta * z) + 0.5 * (q * z)  # (D + B)/q
        p_a, p_o = q * win_a, q * z * neither
        p_b = 1.0 - p_a - p_o
        return _total(
            kappa,
            all_smaller,
            (p_a, -sign * (lost_a / win_a)),
            (p_b, sign * (q * gained_b / p_b)),
            (p_o, sign * (rest / neither)),
        )

    return excess_of


def laplace_between(sign: int) -> Excess:
    """G where x < 0 ≤ y: (y, ξ) = (y, e^x)."""

    def excess_of(boxes: Boxes, kappa: float, all_smaller: bool) -> Jet:
        y, xi = _variables(boxes)
        small = _exp(-y)
        win_a = 0.125 + 0.25 * y + (1 / 12) * small  # over ξe^{−y}
        neither = 0.75 + 0.5 * y - 0.25 * xi + (1 / 12) * (xi * small)  # over e^{−y}
        lost_a = 0.5 * y + 0.25 * small  # (D + A)/ξe^{−y}
        rest = 0.5 * xi - 0.25 * (xi * small) - 0.25 - 0.5 * y  # (A − B)/e^{−y}
        gained_b = 0.25 + 0.5 * y + xi * (0.5 * y + 0.5 * small - 0.5)  # (D + B)/e^{−y}
        p_a, p_o = xi * small * win_a, small * neither
        p_b = 1.0 - p_a - p_o
        return _total(
            kappa,
            all_smaller,
            (p_a, -sign * (lost_a / win_a)),
            (p_b, sign * (small * gained_b / p_b)),
            (p_o, sign * (rest / neither)),
        )

    return excess_of


def laplace_below(boxes: Boxes, kappa: float, all_smaller: bool) -> Jet:
    """G where both counts lie below the start of M: (ξ, η) = (e^x, e^y)."""
    xi, eta = _variables(boxes)
    both = (1 / 12) * (xi * eta)
    p_a, p_b = 0.25 * xi - 0.5 * both, 0.25 * eta - 0.5 * both
    t_a = Jet.of(-0.25) * _reciprocal(0.25 - (1 / 24) * eta)
    t_b = Jet.of(0.25) * _reciprocal(0.25 - (1 / 24) * xi)
    p_o = 1.0 - 0.25 * xi - 0.25 * eta + both
    t_o = (0.25 * xi - 0.25 * eta) / p_o
    return _total(kappa, all_smaller, (p_a, t_a), (p_b, t_b), (p_o, t_o))


def _reciprocal(z: Jet) -> Jet:
    inverse = z.value.inverse()
    return z.through(inverse, -(inverse * inverse))


def hazard(x: Array) -> Array:
    """Return φ(x)/Φ(−x)."""
    return np.asarray(math.sqrt(2 / math.pi) / erfcx(x / _ROOT2))


def density(x: Array) -> Array:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _hazard(x: Jet) -> Jet:
    value = x.value.increasing(hazard, _FUNCTION)
    return x.through(value, (value * (value - x.value)).clip(0.0, 1.0))  # h′ = h(h − x) ∈ (0, 1)


def _density(x: Jet) -> Jet:
    low, high = x.value.low, x.value.high
    ends = density(low), density(high)
    most = np.where((low < 0) & (high > 0), density(np.zeros(1)), np.maximum(*ends))
    value = Interval.around(np.minimum(*ends), most, _FUNCTION)
    return x.through(value, -(x.value * value))


def _below(x: Jet) -> Jet:
    """Return Φ(x)."""
    return x.through(x.value.increasing(ndtr, _FUNCTION), _density(x).value)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(72)


def gaussian_wins(d: Array, m: Array) -> Array:
    """Return Pr[x + Z₁ > max(0, y + Z₂)] with x, y = (m ± d)/√2, by Gauss's rule.

    It is ∫ φ(u − x) Φ(u − y) du over u > 0. The logarithm of the integrand is concave, with a
    second derivative of −1 or less, and its peak lies within 0.8 above max(x, (x + y)/2).
    """
    x, y = (m + d) / _ROOT2, (m - d) / _ROOT2
    peak = np.maximum(x, (x + y) / 2)
    falling = np.minimum(9.5, 40 / np.maximum(-(x + hazard(y)), 4.0))  # where the peak is below 0
    start = np.maximum(peak - 8.5, 0.0)
    length = np.where(peak > 0, peak + 9.5 - start, falling)
    total = np.zeros(np.broadcast(d, m).shape)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        u = start + length * (node + 1) / 2
        total += weight * density(u - x) * ndtr(u - y)
    return total * length / 2


def gaussian(boxes: Boxes, kappa: float, all_smaller: bool) -> Jet:
    """G for Gaussian noise and a constant M: (d, m) = (x ∓ y)/√2."""
    d, m = _variables(boxes)
    low1, high1, low2, high2 = boxes
    x, y = (1 / _ROOT2) * (m + d), (1 / _ROOT2) * (m - d)
    between = _ROOT2 * (_density(d) * _below(m))  # from a to b
    leaves_a, enters_b = _density(x) * _below(-y), _density(y) * _below(-x)
    # Both chances to win grow with m; a's grows with d and b's falls.
    wins_a = Interval.around(gaussian_wins(low1, low2), gaussian_wins(high1, high2), _INTEGRAL)
    wins_b = Interval.around(gaussian_wins(-high1, low2), gaussian_wins(-low1, high2), _INTEGRAL)
    half = 1 / _ROOT2
    p_a = Jet(wins_a, half * (between + leaves_a).value, half * leaves_a.value)
    p_b = Jet(wins_b, -(half * (between + enters_b).value), half * enters_b.value)
    return _total(
        kappa,
        all_smaller,
        (p_a, -((between + leaves_a) / p_a)),
        (p_b, (between + enters_b) / p_b),
        (_below(-x) * _below(-y), _hazard(x) - _hazard(y)),
    )


def gaussian_bit(boxes: Boxes, kappa: float, all_smaller: bool) -> Jet:
    """G for one noised count against a constant: whether x + Z > 0."""
    x, _ = _variables(boxes)
    return _total(kappa, all_smaller, (_below(x), -_hazard(-x)), (_below(-x), _hazard(x)))


# --- what lies outside the rectangles (docs/proofs/noisy-argmax.md, "Tails") ----------------------


def _gaussian_tail(slope: float, cut: float) -> float:
    """Return a bound of E[e^{sZ} − 1 − sZ; Z > cut] for s > 0; infinite unless cut > s."""
    if cut <= slope:
        return math.inf
    s, far = slope, cut - slope
    inside = (1 + s * s) * float(ndtr(-far)) + (cut + s) * float(density(np.array(far)))
    return s * s / 2 * math.exp(s * s / 2) * inside


def _one(z: float) -> float:
    return float(exp_excess(np.array([z]))[0])


def _phi(z: float) -> float:
    return float(density(np.array(z)))


def laplace_far(kappa: float, cut: float) -> float:
    """Return a bound on G where one of a and b leads the other, and M, by ``cut`` or more."""
    rare = math.exp(-cut) * (17 / 24 + 5 / 6 + 0.75 * cut)
    return rare * _one(2 * kappa) + _one(2 * kappa * rare / (1 - rare))


def gaussian_low(kappa: float, low: float) -> float:
    """Return a bound on G where x or y lies below −``low``."""
    bit = _gaussian_tail(kappa, low) + _one(kappa * _phi(low) / float(ndtr(low)))
    return math.expm1(kappa**2 / 2) + math.exp(kappa**2 / 2) * bit


def gaussian_far(kappa: float, cut: float, low: float) -> float:
    """Return a bound on G where |x − y|/√2 ≥ ``cut`` and both counts are above −``low``."""
    high = _ROOT2 * cut - low  # the larger one is above this
    rare = float(ndtr(-cut) + ndtr(-high))
    if high <= kappa or rare > 0.5:
        return math.inf
    sure = _one(kappa * (_ROOT2 * _phi(cut) + _phi(high)) / (1 - rare))
    return _gaussian_tail(_ROOT2 * kappa, cut) + _gaussian_tail(kappa, high) + sure


def gaussian_strip(boxes: Boxes, kappa: float, all_smaller: bool) -> Array:
    """Return a bound on G for d in a box and every m from ``boxes[2]`` up to infinity."""
    d1, d2, m, _ = boxes
    x, y = (m + d1) / _ROOT2, (m - d2) / _ROOT2  # the least of each, not below zero
    up, down = 1 + 1e-11, 1 - 1e-11
    neither = ndtr(-x) * ndtr(-y) * up
    widest = np.maximum(np.abs(d1), np.abs(d2))
    most = np.where((d1 < 0) & (d2 > 0), _phi(0), np.maximum(density(d1), density(d2)))
    between = _ROOT2 * most * up
    p_a, p_b = ndtr(d1) * down - neither, ndtr(-d2) * down - neither
    with np.errstate(divide="ignore", invalid="ignore"):
        t_a = np.where(p_a > 0, (between + density(x) * ndtr(-y) * up) / p_a, np.nan)
        t_b = np.where(p_b > 0, (between + density(y) * ndtr(-x) * up) / p_b, np.nan)
    lost = (kappa * t_a) ** 2 / 2 if all_smaller else exp_excess(-kappa * t_a)
    total = ndtr(d2) * lost + ndtr(-d1) * exp_excess(kappa * t_b)
    return np.asarray((total + neither * exp_excess(kappa * _ROOT2 * widest)) * up)


# --- branch and bound ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A rectangle of counts with G on it; ``skip`` picks boxes that are covered elsewhere."""

    excess: Excess
    box: tuple[float, float, float, float]
    strip: bool = False  # bounded by :func:`gaussian_strip`, for all m above the box
    skip: Callable[[Boxes], NDArray[np.bool_]] | None = None

    def bound(
        self, boxes: Boxes, kappa: float, all_smaller: bool
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Return an upper bound on G over each box, and whether to cut its second side first."""
        if self.strip:
            return gaussian_strip(boxes, kappa, all_smaller), np.zeros(len(boxes[0]), dtype=bool)
        low1, high1, low2, high2 = boxes
        middle1, middle2 = (low1 + high1) / 2, (low2 + high2) / 2
        centre = self.excess((middle1, middle1, middle2, middle2), kappa, all_smaller).value.high
        jet = self.excess(boxes, kappa, all_smaller)
        reach1, reach2 = jet.first.size * (high1 - low1), jet.second.size * (high2 - low2)
        bound = np.fmin(jet.value.high, centre + 0.5001 * (reach1 + reach2))
        unclear = ~np.isfinite(reach1 + reach2)
        return bound, np.where(unclear, high2 - low2 > high1 - low1, reach2 > reach1)

    def sampled(self, kappa: float, all_smaller: bool) -> float:
        """Return about the largest G, by sampling and refining."""
        if self.strip:
            return 0.0
        a, b, c, d = self.box
        best = 0.0
        for _ in range(12):
            first = np.linspace(a, b, 1 if a == b else 61)
            second = np.linspace(c, d, 1 if c == d else 61)
            g1, g2 = (each.ravel() for each in np.meshgrid(first, second))
            with np.errstate(all="ignore"):
                values = self.excess((g1, g1, g2, g2), kappa, all_smaller).value.high
            at = int(np.nanargmax(values))
            best = max(best, float(values[at]))
            w1, w2 = (b - a) / 12, (d - c) / 12
            a, b = max(self.box[0], g1[at] - w1), min(self.box[1], g1[at] + w1)
            c, d = max(self.box[2], g2[at] - w2), min(self.box[3], g2[at] + w2)
        return best

    def certify(self, limit: float, kappa: float, all_smaller: bool) -> int:
        """Return how many boxes it took to show that G ≤ ``limit`` here; exit if that fails."""
        a, b, c, d = self.box
        cut1, cut2 = 1 if a == b else 16, 1 if c == d else 16
        edges1, edges2 = np.linspace(a, b, cut1 + 1), np.linspace(c, d, cut2 + 1)
        low1, low2 = (each.ravel() for each in np.meshgrid(edges1[:-1], edges2[:-1]))
        high1, high2 = (each.ravel() for each in np.meshgrid(edges1[1:], edges2[1:]))
        waiting, used = [(low1, high1, low2, high2)], 0
        while waiting:
            boxes = waiting.pop()
            if len(boxes[0]) > _CHUNK:
                waiting.extend(_parts(boxes))
                continue
            used += len(boxes[0])
            keep = np.ones(len(boxes[0]), dtype=bool) if self.skip is None else ~self.skip(boxes)
            boxes = _pick(boxes, keep)
            with np.errstate(all="ignore"):
                bounds, second = self.bound(boxes, kappa, all_smaller)
            open_ = ~(bounds <= limit)  # NaN is open
            boxes, second = _pick(boxes, open_), second[open_]
            if not len(boxes[0]):
                continue
            width = np.where(second, boxes[3] - boxes[2], boxes[1] - boxes[0])
            if width.min() < _LEAST_WIDTH:
                where = [float(each[0]) for each in boxes]
                sys.exit(f"not certified at κ = {kappa:g} near {where}")
            waiting += [_cut(_pick(boxes, ~second), 0), _cut(_pick(boxes, second), 2)]
        return used


def _pick(boxes: Boxes, mask: NDArray[np.bool_]) -> Boxes:
    low1, high1, low2, high2 = boxes
    return low1[mask], high1[mask], low2[mask], high2[mask]


def _parts(boxes: Boxes) -> list[Boxes]:
    pieces = -(-len(boxes[0]) // _CHUNK)
    low1, high1, low2, high2 = (np.array_split(each, pieces) for each in boxes)
    return list(zip(low1, high1, low2, high2, strict=True))


def _cut(boxes: Boxes, side: int) -> Boxes:
    """Cut boxes in two across one side: 0 or 2."""
    low, high = boxes[side], boxes[side + 1]
    middle = (low + high) / 2
    low1, high1, low2, high2 = (np.concatenate([each, each]) for each in boxes)
    ends = np.concatenate([low, middle]), np.concatenate([middle, high])
    return (*ends, low2, high2) if side == 0 else (low1, high1, *ends)


# --- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One noise: its regions and what lies outside of them, at one κ."""

    regions: Callable[[float, float], tuple[list[Region], float]]  # κ, about G → …, tail bound
    largest: float  # κ

    def supremum(self, kappa: float, *, all_smaller: bool = False) -> tuple[float, int]:
        """Return a certified bound on G at κ (or, over κ², at every κ′ ≤ κ), and the boxes used."""
        regions, _ = self.regions(kappa, math.expm1(0.6 * kappa**2))
        found = max(each.sampled(kappa, all_smaller) for each in regions)
        limit = (
            found * (1 + MARGIN) if all_smaller else math.expm1(math.log1p(found) * (1 + MARGIN))
        )
        regions, outside = self.regions(kappa, found)
        if not outside <= limit:
            sys.exit(f"the tails at κ = {kappa:g} reach {outside:g}, above {limit:g}")
        return limit, sum(each.certify(limit, kappa, all_smaller) for each in regions)


def _laplace(kappa: float, _: float, *, two: bool = False) -> tuple[list[Region], float]:
    cut = 12 + 2 * kappa
    above = (0.0, cut, 0.0, 0.0 if two else 1.0)
    regions = [Region(excess=laplace_above(sign), box=above) for sign in (1, -1)]
    if not two:
        between = (0.0, cut, 0.0, 1.0)
        regions += [Region(excess=laplace_between(sign), box=between) for sign in (1, -1)]
        regions.append(Region(excess=laplace_below, box=(0.0, 1.0, 0.0, 1.0)))
    return regions, laplace_far(kappa, cut)


def _gaussian(kappa: float, found: float) -> tuple[list[Region], float]:
    steps = np.arange(2.0, 30.0, 0.25)
    low = next(each for each in kappa + steps if gaussian_low(kappa, each) <= found)
    far = next(each for each in _ROOT2 * kappa + steps if gaussian_far(kappa, each, low) <= found)
    top = max(far + 0.5, 5.5)

    def skip(boxes: Boxes) -> NDArray[np.bool_]:
        low1, high1, _, high2 = boxes
        largest_x, largest_y = (high2 + high1) / _ROOT2, (high2 - low1) / _ROOT2
        return np.asarray((largest_x <= -low) | (largest_y <= -low))

    regions = [
        Region(excess=gaussian, box=(-far, far, -_ROOT2 * low, top), skip=skip),
        Region(excess=gaussian, box=(-far, far, top, top), strip=True),
    ]
    return regions, max(gaussian_low(kappa, low), gaussian_far(kappa, far, low))


def _gaussian_bit(kappa: float, found: float) -> tuple[list[Region], float]:
    cut = kappa + 8.0
    outside = _gaussian_tail(kappa, cut) + _one(kappa * _phi(cut) / float(ndtr(cut)))
    return [Region(excess=gaussian_bit, box=(-cut, cut, 0.0, 0.0))], outside


CASES = {
    "laplace": Case(regions=_laplace, largest=12.0),
    "laplace_two_classes": Case(
        regions=lambda kappa, found: _laplace(kappa, found, two=True), largest=12.0
    ),
    "gaussian": Case(regions=_gaussian, largest=7.0),
    "gaussian_bit": Case(regions=_gaussian_bit, largest=6.0),
}
SMALLEST, RATIO = 0.02, 1.1


def knots(largest: float) -> list[float]:
    """Return the κ of a table: a geometric grid."""
    count = math.ceil(math.log(largest / SMALLEST) / math.log(RATIO))
    return [float(f"{SMALLEST * RATIO**i:.6g}") for i in range(count + 1)]


def certified(case: Case, *, every: int = 1) -> dict[str, object]:
    """Return the table of one noise."""
    ratio, used = case.supremum(SMALLEST, all_smaller=True)
    kappas = knots(case.largest)[::every]
    values = []
    for kappa in kappas:
        limit, boxes = case.supremum(kappa)
        values.append(math.log1p(limit) * (1 + 1e-12))
        used += boxes
    print(f"  {len(kappas)} orders, {used} boxes, ψ/κ² from {ratio / SMALLEST**2:.5f} "
          f"to {values[-1] / kappas[-1] ** 2:.5f}")  # fmt: skip
    return {"ratio": ratio / SMALLEST**2 * (1 + 1e-12), "kappa": kappas, "psi": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--every", type=int, default=1, help="certify one κ in so many")
    given = parser.parse_args()
    table = {}
    for name, case in CASES.items():
        print(name, flush=True)
        table[name] = certified(case, every=given.every)
    if given.write and given.every == 1:
        TABLE.write_text(json.dumps({"margin": MARGIN, **table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
