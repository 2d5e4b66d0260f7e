"""Noise in shares: every party noises its own counts, and the sum of all has the noise of a plan.

Nobody but the parties sees a single share: what is accounted for is the *sum* of the noised counts
that comes out of a secure aggregation (:mod:`pate.federated`). It is a noised table, every entry of
which leaves, and not only the class that won.

A share is scaled so that ``shares`` of them suffice. More of them only add noise that does not
depend on any record, which is post-processing (Dwork & Roth 2014, Proposition 2.1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, final

import numpy as np

from pate._validate import check_noise, check_whole
from pate.accounting import Event, PureDP, Repeated, ZeroConcentrated
from pate.accounting.composition import rounded_up
from pate.errors import InvalidInput
from pate.mechanisms.mechanism import IntArray
from pate.randomness import (
    discrete_gaussian,
    polya,
    representable_scale,
    representable_variance,
)

_LEAST_VARIANCE = Fraction(1, 4)  # of a Gaussian share, for the bound on their sum
_ROUNDING = 1 + 2.0**-40  # more than the floating-point error of a few operations
_FAR = 4096  # scales: a share of Laplace noise beyond it has a chance below e^{−4096}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The most that one record, or one user, changes in a table of counts.

    Parameters
    ----------
    l1, l2_squared
        Its L1 norm, and its L2 norm squared, in whole units of the counts.
    entries
        The number of entries of the table.
    largest
        The most that it changes a single entry.

    >>> Sensitivity.of_teachers(queries=10, classes=3)
    Sensitivity(l1=20, l2_squared=20, entries=30, largest=1)
    """

    l1: int
    l2_squared: int
    entries: int
    largest: int = 1

    @classmethod
    def of_teachers(cls, *, queries: int, classes: int) -> Sensitivity:
        """Return that of teachers' votes: on each query one teacher's vote goes elsewhere."""
        return cls(l1=2 * queries, l2_squared=2 * queries, entries=queries * classes)

    @classmethod
    def of_records(cls, *, cells: int, classes: int, reach: int, records: int) -> Sensitivity:
        """Return that of record votes: ``records`` times one unit at ``reach`` places."""
        return cls(
            l1=records * reach,
            l2_squared=records**2 * reach,
            entries=cells * classes,
            largest=records,
        )


class NoiseShare(ABC):
    """One party's share of the noise on a table of whole numbers.

    A frozen dataclass of public parameters, one of which is ``shares``.
    """

    __slots__ = ()

    name: ClassVar[str]
    shares: int

    @abstractmethod
    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> IntArray:
        """Draw one share."""

    @abstractmethod
    def events(self, change: Sensitivity) -> tuple[Event, ...]:
        """Return the cost of a table that has ``shares`` shares in it, or more.

        The relation between data sets is that of the sensitivity.
        """

    @abstractmethod
    def total_variance(self, parties: int) -> float:
        """Return the variance of the sum of so many shares, in units²."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """The size that no share passes, but for a chance below e^{−4000} or so."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianShare(NoiseShare):
    """A share of Gaussian noise: discrete Gaussian noise of a variance of σ²/shares.

    Parameters
    ----------
    sigma : float
        The standard deviation of the sum, in units. Public.
    shares : int
        The shares that suffice: those in a sum whose noise no reader of it knows. Public.

    Guarantees:
        * The sum of n discrete Gaussian draws of variance v ≥ 1/4 is not discrete Gaussian, but
          nearly so. For a change Δ of d entries, D_α ≤ (α/2)(‖Δ‖₂/√(nv) + τ√d)², where
          τ = 10 Σ_{k=1}^{n−1} e^{−2π² v k/(k+1)}: it is ρ-zCDP with ρ = ½(‖Δ‖₂/√(nv) + τ√d)²
          (Kairouz, Liu & Steinke 2021, Proposition 14). A single share is ‖Δ‖₂²/(2v)-zCDP (Canonne,
          Kamath & Steinke 2020, Theorem 14).
        * A smaller share, of v below 1/4, is refused.
        * Draws are exact (:func:`pate.randomness.discrete_gaussian`), and v is rounded up.

    Examples
    --------
    >>> share = GaussianShare(sigma=40.0, shares=4)
    >>> share.events(Sensitivity.of_teachers(queries=100, classes=10))
    (ZeroConcentrated(rho=0.06250000000005686),)
    """

    name: ClassVar[str] = "gaussian"

    sigma: float
    shares: int

    def __post_init__(self) -> None:
        check_noise("sigma", self.sigma)
        check_whole("shares", self.shares, least=1, most=1 << 20)
        if self.variance < _LEAST_VARIANCE:
            raise InvalidInput(
                f"a share of sigma {self.sigma:g} among {self.shares} has a variance of "
                f"{float(self.variance):g}, and the bound on their sum needs 1/4; raise sigma"
            )

    @property
    def variance(self) -> Fraction:
        """The variance of one share, as it is drawn."""
        return representable_variance(Fraction(self.sigma) ** 2 / self.shares)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> IntArray:
        return discrete_gaussian(self.variance, shape, rng)

    def events(self, change: Sensitivity) -> tuple[Event, ...]:
        total = self.variance * self.shares
        if self.shares == 1:
            return (ZeroConcentrated(rho=rounded_up(change.l2_squared / (2 * total))),)
        v = float(self.variance)
        tau = 10 * math.fsum(
            math.exp(-2 * math.pi**2 * v * k / (k + 1)) for k in range(1, self.shares)
        )
        root = math.sqrt(change.l2_squared / float(total)) + tau * math.sqrt(change.entries)
        return (ZeroConcentrated(rho=root**2 / 2 * _ROUNDING),)

    def total_variance(self, parties: int) -> float:
        return parties * float(self.variance)

    @property
    def reach(self) -> int:
        return 64 * (math.isqrt(math.ceil(self.variance)) + 1)  # where its draws end


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceShare(NoiseShare):
    """A share of Laplace noise: the difference of two Pólya draws of 1/shares.

    Parameters
    ----------
    scale : float
        The Laplace b of the sum, in units. Public.
    shares : int
        The shares that suffice: those in a sum whose noise no reader of it knows. Public.

    Guarantees:
        ``shares`` of them add up to discrete Laplace noise of scale b *exactly*
        (:func:`pate.randomness.polya`), which makes a table (Δ₁/b)-DP (Dwork et al. 2006,
        Proposition 1; Ghosh, Roughgarden & Sundararajan 2012): 2/b on each query of teachers, whose
        votes compose, and for record votes n·reach/b in all. The scale is rounded up.

    Examples
    --------
    >>> LaplaceShare(scale=40.0, shares=4).events(Sensitivity.of_teachers(queries=100, classes=10))
    (Repeated(event=PureDP(epsilon=0.025), count=200),)
    """

    name: ClassVar[str] = "laplace"

    scale: float
    shares: int

    def __post_init__(self) -> None:
        check_noise("scale", self.scale)
        check_whole("shares", self.shares, least=1, most=1 << 20)

    @property
    def drawn_scale(self) -> Fraction:
        """The scale of the sum, as it is drawn."""
        return representable_scale(self.scale)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> IntArray:
        above, below = polya(self.drawn_scale, self.shares, (2, *shape), rng)
        return np.asarray(above - below, dtype=np.int64)

    def events(self, change: Sensitivity) -> tuple[Event, ...]:
        if change.largest > 1:
            return (PureDP(epsilon=rounded_up(change.l1 / self.drawn_scale)),)
        # One unit at one entry costs 1/b, and the entries have noise of their own: they compose.
        return (Repeated(PureDP(epsilon=rounded_up(1 / self.drawn_scale)), change.l1),)

    def total_variance(self, parties: int) -> float:
        half = 1 / (2 * float(self.drawn_scale))
        return 0.0 if half > 300 else parties / self.shares / (2 * math.sinh(half) ** 2)

    @property
    def reach(self) -> int:
        return _FAR * math.ceil(self.drawn_scale)
