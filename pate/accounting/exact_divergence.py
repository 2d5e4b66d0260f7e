"""The exact Rényi divergence of noisy-max answers between votes and their neighbours. PRIVATE.

For a histogram and each way in which one teacher may change its vote, the distributions of the
answer are computed by quadrature, and their divergence in both directions. It shows how much of a
bound is slack on the votes at hand. It is a function of private votes, and it says nothing of votes
further away: a diagnostic for the owner of the data, never a cost to charge or to publish.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from pate.accounting.noisy_max import Counts, as_counts
from pate.errors import InvalidInput

FloatArray = NDArray[np.float64]

_BLOCK = 64  # histograms at a time: their products stay in cache
_FAINT = 1e-280  # a probability below this has no digits left
_LEAST_NOISE = 0.2  # in votes; with less, outcomes as faint as that weigh in a divergence
_LARGEST_EXPONENT = 600.0
_STEP = 1 / 3  # in standard deviations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactDivergence:
    """The largest Rényi divergences over all neighbours of each histogram. PRIVATE.

    Parameters
    ----------
    orders
        The Rényi orders.
    forward
        From the votes to a neighbour, (queries, orders).
    reverse
        From a neighbour to the votes, (queries, orders).
    """

    orders: FloatArray
    forward: FloatArray
    reverse: FloatArray

    @property
    def largest(self) -> FloatArray:
        """The larger of both directions."""
        return np.maximum(self.forward, self.reverse)


def exact_divergence(
    votes: ArrayLike,
    *,
    orders: ArrayLike,
    sigma: float | None = None,
    scale: float | None = None,
    abstentions: bool = False,
) -> ExactDivergence:
    """Return the exact divergences of noisy-max answers, by quadrature. PRIVATE.

    Parameters
    ----------
    votes
        Counts of votes, (queries, classes). Private, and so is the result.
    orders
        The Rényi orders, above one.
    sigma
        The standard deviation of Gaussian noise, in votes.
    scale
        The Laplace b, in votes; one of the two is given.
    abstentions
        A teacher may also withdraw its vote or cast one; otherwise it moves it.

    >>> here = exact_divergence([[50, 50, 0]], orders=[2.0], sigma=20.0)
    >>> bool(0.63 < here.largest[0, 0] * 20**2 / 2 < 0.64)  # published: order / sigma²
    True
    """
    counts = as_counts(votes)
    at = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if at.ndim != 1 or not np.all(np.isfinite(at) & (at > 1)):
        raise InvalidInput("orders must be a list of finite numbers above one")
    noise, gaussian = _checked_noise(sigma=sigma, scale=scale)
    forward, reverse = (np.zeros((len(counts), len(at))) for _ in range(2))
    distinct, inverse = np.unique(np.sort(counts, axis=1), axis=0, return_inverse=True)
    for start in range(0, len(distinct), _BLOCK):
        part = distinct[start : start + _BLOCK]
        here, there, possible = _distributions(
            part, noise=noise, gaussian=gaussian, abstentions=abstentions
        )
        moves = renyi_divergences(here[:, None, :], there, at)
        rows = np.flatnonzero((inverse.ravel() >= start) & (inverse.ravel() < start + _BLOCK))
        forward[rows], reverse[rows] = (
            np.where(possible[:, :, None], each, 0.0).max(axis=1)[inverse.ravel()[rows] - start]
            for each in moves
        )
    return ExactDivergence(orders=at, forward=forward, reverse=reverse)


def neighbour_chances(
    votes: ArrayLike,
    source: ArrayLike,
    target: ArrayLike,
    *,
    sigma: float | None = None,
    scale: float | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the chances of noisy-max answers for votes and for one neighbour of each. PRIVATE.

    Parameters
    ----------
    votes
        Counts of votes, (queries, classes).
    source
        The class that a teacher voted for, of each query; −1 if it abstained.
    target
        The class that it votes for instead; −1 if it abstains.
    sigma
        The standard deviation of Gaussian noise, in votes.
    scale
        The Laplace b, in votes; one of the two is given.

    >>> here, there = neighbour_chances([[5, 5]], [0], [1], sigma=2.0)
    >>> [round(float(chance), 3) for chance in (here[0, 0], there[0, 0])]
    [0.5, 0.24]
    """
    counts = as_counts(votes)
    noise, gaussian = _checked_noise(sigma=sigma, scale=scale)
    taken, given = (np.asarray(each, dtype=np.int64) for each in (source, target))
    classes = counts.shape[1]
    for each in (taken, given):
        if each.shape != (len(counts),) or np.any((each < -1) | (each >= classes)):
            raise InvalidInput("source and target hold one class, or −1, for each row of votes")
    here, there = (np.empty(counts.shape) for _ in range(2))
    for start in range(0, len(counts), _BLOCK):
        part = slice(start, start + _BLOCK)
        found = _Integrands.of(counts[part], noise=noise, gaussian=gaussian)
        rows = np.arange(len(found.here))
        a, b = taken[part], given[part]
        one, other = found.taken[rows, a], found.given[rows, b]  # −1: the ones at the end
        moved = np.einsum("qkn,qn->qk", found.stay, one * other)
        left, joined = (a >= 0) & (a != b), (b >= 0) & (a != b)
        lost = np.einsum("qn,qn->q", found.lost[rows, a], other)
        won = np.einsum("qn,qn->q", found.won[rows, b], one)
        moved[rows[left], a[left]] = lost[left]
        moved[rows[joined], b[joined]] = won[joined]
        same = a == b
        moved[same] = found.here[same]
        here[part], there[part] = found.here, moved
    return here, there


def _checked_noise(*, sigma: float | None, scale: float | None) -> tuple[float, bool]:
    """Return the noise in votes, and whether it is Gaussian."""
    if (sigma is None) == (scale is None):
        raise InvalidInput("give either sigma (Gaussian noise) or scale (Laplace noise)")
    noise = scale if sigma is None else sigma
    if noise is None or not _LEAST_NOISE <= noise < np.inf:
        raise InvalidInput(
            f"the noise is {noise}; it must be a finite number of votes, {_LEAST_NOISE} or more"
        )
    return noise, scale is None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Integrands:
    """What the chances of answers are integrals of, at the nodes of a quadrature.

    With w(u) = f(u − n_j) Π_{i≠j} F(u − n_i) the chance of j is ∫ w; a move from a to b multiplies
    it by F(u − n_a + 1)/F(u − n_a) and F(u − n_b − 1)/F(u − n_b). A last row of ones in these
    ratios stands for an abstention.
    """

    here: FloatArray  # (queries, classes) the chances themselves
    stay: FloatArray  # (queries, classes, nodes) w of a class whose count stays
    lost: FloatArray  # the same of a class that loses a vote, and
    won: FloatArray  # of one that gets a vote
    taken: FloatArray  # (queries, classes + 1, nodes) the ratio of a class that loses a vote
    given: FloatArray

    @classmethod
    def of(cls, counts: Counts, *, noise: float, gaussian: bool) -> _Integrands:
        u, weights = (_gaussian_nodes if gaussian else _laplace_nodes)(counts, noise)
        gaps = (u[:, None, :] - counts[:, :, None]) / noise  # (queries, classes, nodes)
        curves = _normal if gaussian else _laplace
        f, low = curves(gaps)
        f_taken, taken = curves(gaps + 1 / noise)
        f_given, given = curves(gaps - 1 / noise)
        others = low.prod(axis=1)[:, None, :] / low * (weights / noise)[:, None, :]
        ones = np.ones((len(counts), 1, u.shape[1]))
        return cls(
            here=np.einsum("qkn,qkn->qk", f, others),
            stay=f * others,
            lost=f_taken * others,
            won=f_given * others,
            taken=np.append(taken / low, ones, axis=1),
            given=np.append(given / low, ones, axis=1),
        )


def _distributions(
    counts: Counts, *, noise: float, gaussian: bool, abstentions: bool
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Return the chances of each answer for the votes and for every neighbour.

    Shapes (queries, classes), (queries, moves, classes) and (queries, moves): whether the move is
    possible.
    """
    queries, classes = counts.shape
    found = _Integrands.of(counts, noise=noise, gaussian=gaussian)
    size = classes + abstentions
    taken, given = found.taken[:, :size], found.given[:, :size]
    source, target = np.nonzero(~np.eye(size, dtype=bool))
    # For each class the sums over nodes of all moves are one product of matrices.
    stay = found.stay[:, :, None] * taken[:, None]  # (queries, classes, sources, nodes)
    all_moves = stay @ given.transpose(0, 2, 1)[:, None]
    there = np.ascontiguousarray(all_moves[:, :, source, target].transpose(0, 2, 1))
    lost = found.lost @ given.transpose(0, 2, 1)
    won = found.won @ taken.transpose(0, 2, 1)
    moves = np.arange(len(source))
    real = source < classes
    there[:, moves[real], source[real]] = lost[:, source[real], target[real]]
    real = target < classes
    there[:, moves[real], target[real]] = won[:, target[real], source[real]]
    possible = np.append(counts > 0, np.ones((queries, 1), dtype=bool), axis=1)[:, source]
    return found.here, there, possible


def renyi_divergences(
    p: FloatArray, q: FloatArray, orders: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return D(p ‖ q) and D(q ‖ p) of distributions over the last axis, at each order.

    Parameters
    ----------
    p
        Chances, (…, outcomes).
    q
        The chances to compare them with, of a shape that fits.
    orders
        The Rényi orders, above one; they are the last axis of what is returned.

    e^{(α−1)D} − 1 = Σ q (t^α − 1 − α(t − 1)) with t = p/q: no term is negative.

    >>> renyi_divergences(np.array([0.5, 0.5]), np.array([0.25, 0.75]), [2.0])[0].round(4)
    array([0.2877])
    """
    p, q = np.maximum(p, _FAINT), np.maximum(q, _FAINT)
    logs = np.log(p) - np.log(q)
    rise, fall = np.expm1(logs), np.expm1(-logs)
    steepest = float(np.max(np.abs(logs), initial=0.0))
    forward, reverse = [], []
    for order in np.atleast_1d(np.asarray(orders, dtype=np.float64)):
        if order * steepest < _LARGEST_EXPONENT:
            power = np.expm1(order * logs)
            there = np.log1p(np.sum(q * (power - order * rise), axis=-1))
            back = np.log1p(np.sum(p * (np.expm1(-order * logs) - order * fall), axis=-1))
        else:  # beyond the range of doubles: small terms do not matter
            there = np.logaddexp.reduce(np.log(q) + order * logs, axis=-1)
            back = np.logaddexp.reduce(np.log(p) - order * logs, axis=-1)
        forward.append(np.maximum(there, 0.0) / (order - 1))
        reverse.append(np.maximum(back, 0.0) / (order - 1))
    return np.stack(forward, axis=-1), np.stack(reverse, axis=-1)


# --- quadrature ---------------------------------------------------------------------------------


def _gaussian_nodes(counts: Counts, sigma: float) -> tuple[FloatArray, FloatArray]:
    """Return equal steps around the largest count: for entire functions they converge fastest."""
    steps = np.arange(-14.0, 9.0, _STEP) * sigma
    u = counts.max(axis=1, keepdims=True) + steps
    return u, np.full(u.shape, _STEP * sigma)


def _laplace_nodes(counts: Counts, scale: float) -> tuple[FloatArray, FloatArray]:
    """Return Gauss's rule between kinks: at the counts and one vote beside, and e^{∓u} outside."""
    top = counts.max(axis=1, keepdims=True)
    levels = top - scale * np.concatenate([np.arange(0.5, 12.5, 0.5), [16.0, 22.0, 30.0, 40.0]])
    edges = np.concatenate([counts - 1, counts, counts + 1, levels], axis=1).astype(np.float64)
    edges = np.sort(np.maximum(edges, top - 300 * scale), axis=1)  # below, nothing is left
    points, weights = _rule(6)
    width = np.diff(edges, axis=1)[:, :, None]
    inner = (edges[:, :-1, None] + width * points).reshape(len(counts), -1)
    inner_weights = (width * weights).reshape(len(counts), -1)
    # Above all kinks the integrand is a polynomial in v = e^{−(u − edge)/b}; du = b dv/v.
    points, weights = _rule(20)
    outside = -scale * np.log(points)
    ends = np.broadcast_to(scale * weights / points, (len(counts), len(points)))
    u = np.concatenate([inner, edges[:, -1:] + outside, edges[:, :1] - outside], axis=1)
    return u, np.concatenate([inner_weights, ends, ends], axis=1)


@cache
def _rule(size: int) -> tuple[FloatArray, FloatArray]:
    points, weights = np.polynomial.legendre.leggauss(size)
    return (points + 1) / 2, weights / 2


def _normal(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the standard normal density and distribution function."""
    return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi), ndtr(z)


def _laplace(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the standard Laplace density and distribution function."""
    tail = np.exp(-np.abs(z)) / 2
    return tail, np.where(z < 0, tail, 1 - tail)
