"""The local sensitivity of the cost of one GNMax answer, at the votes and d votes away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from pate.accounting.moments import FloatArray, log1mexp
from pate.accounting.noisy_max import gaussian_from_log_q, gaussian_log_q
from pate.accounting.vote_counts import Counts
from pate.errors import ConditionsFail

_LOWEST_LOG_Q = -700.0  # e^{−700}: below it every cost is zero in double precision
_GRID = 20001


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
        where = f"at sigma {self.sigma:g}, order {self.order:g}, {self.classes} classes"
        log_q = np.concatenate(
            [np.linspace(-60, -1e-3, _GRID), np.linspace(_LOWEST_LOG_Q, -60, 1000)]
        )
        moment = np.array([self.order - 1])
        charged = gaussian_from_log_q(log_q, sigma=self.sigma, moments=moment)[:, 0] / moment
        if not np.allclose(charged, self.cost(log_q), rtol=1e-9, atol=1e-300):
            raise ConditionsFail(
                f"{where} the sensitivity analysis describes another cost than the one charged "
                "(σ is too small); publish the data-independent ε instead"
            )
        c5, c6 = self.conditions()
        if not (c5 and c6):
            raise ConditionsFail(
                f"condition {'C6' if c5 else 'C5'} of Papernot et al. 2018 fails {where}: the "
                "smooth sensitivity can come out too small; choose a lower order or a larger σ"
            )


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
