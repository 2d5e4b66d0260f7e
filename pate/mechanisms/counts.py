"""Noised tables of record votes: every count with noise of whole numbers, released once.

A record votes once in the whole table, so noise on every count protects all of them together,
however many there are. What comes out is a table, not labels; labels follow from it by smoothing
(:mod:`pate.students.count_smoothing`), which costs nothing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, final

import numpy as np

from pate._format import format_number
from pate._validate import LEAST_NOISE, MOST_NOISE, check_noise, check_whole
from pate.accounting import Conversion, Event, ForAddRemove, Ledger, PureDP, ZeroConcentrated
from pate.accounting.calibrate import moments_epsilon, smallest_noise
from pate.accounting.composition import rounded_up
from pate.artifacts.results import NoisedCounts
from pate.errors import ConditionsFail, InvalidInput
from pate.mechanisms.mechanism import BaseMechanism, FloatArray, IntArray
from pate.randomness import (
    discrete_gaussian,
    discrete_laplace,
    representable_scale,
    representable_variance,
)
from pate.record_votes import GRID, RecordVotes

_NEEDS_GAUSSIAN = (
    "{} does not fit votes along components, whose length is one in L2 and not in L1; choose "
    "gaussian-counts"
)
_FAR = 37  # standard deviations: beyond it a chance is below 1e-297
_MOST_OUTCOMES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountRelease:
    """A noised table, to be published once its events are paid for.

    Attributes
    ----------
    table : NoisedCounts
        The counts with their noise.
    events : tuple of Event
        What happened, as :func:`pate.compose` and a ledger take it.
    """

    table: NoisedCounts = field(repr=False)
    events: tuple[Event, ...]


class CountMechanism(BaseMechanism):
    """One way to release a table of record votes, and all that other code needs to know about it.

    A frozen dataclass like :class:`~pate.mechanisms.Mechanism`, entered in
    :data:`pate.mechanisms.COUNT_MECHANISMS`. The counts are whole numbers of units, of which
    ``reach`` make a vote; a record adds one unit at ``reach`` places of the table. Along components
    ``reach`` is 1, a record adds a vector of a length of one unit at most, and counts are in parts
    of a unit, ``grid`` of which make one.

    Attributes
    ----------
    pure : bool
        Whether the release is (ε, 0)-DP.
    """

    __slots__ = ()

    takes: ClassVar[str] = "records"
    pure: ClassVar[bool]

    @abstractmethod
    def noise(
        self, shape: tuple[int, ...], *, reach: int, rng: np.random.Generator, grid: int = 1
    ) -> IntArray:
        """Draw the noise of a table, in units, or in parts of one."""

    @abstractmethod
    def variance(self, *, reach: int, grid: int = 1) -> float:
        """Return the variance of the noise on one count, in units², or in parts of one."""

    @abstractmethod
    def cost(self, *, reach: int, records: int) -> Event:
        """Return the cost of the whole table where so many records come or go together."""

    def neighbour_chances(self, *, reach: int, units: int) -> tuple[FloatArray, FloatArray]:
        """Return the chances of a noised count that is 0, and of one that is ``units``.

        Outcomes whose chances have the same ratio are taken together, and those of less than
        1e-297 at either end are left out.

        Raises
        ------
        ConditionsFail
            If they are not known.
        """
        raise ConditionsFail(f"the exact chances of the outcomes of {self.title} are not known")

    @classmethod
    @abstractmethod
    def least_noise(
        cls,
        *,
        epsilon: float,
        delta: float,
        reach: int,
        per_user: int | None,
        conversion: Conversion = Conversion.IMPROVED,
    ) -> float:
        """Return the least ``calibrated`` noise with which the table costs no more than ε."""

    def events(self, *, reach: int = 1, per_user: int | None = None) -> tuple[Event, ...]:
        """Return what releasing a table causes, whatever its size.

        ``per_user`` is the most records of a user that voted; None where single records are
        protected.
        """
        check_whole("reach", reach, least=1)
        records = 1 if per_user is None else check_whole("per_user", per_user, least=1)
        cost = self.cost(reach=reach, records=records)
        return (ForAddRemove(cost, per_user=per_user is not None),)

    def release(self, votes: RecordVotes, *, rng: np.random.Generator) -> CountRelease:
        """Noise every count of a table, once.

        Parameters
        ----------
        votes : RecordVotes
            The votes of records. Private; left as they are.
        rng : numpy.random.Generator
            The source of the noise: :func:`pate.secure_generator` outside tests.

        Returns
        -------
        CountRelease
            The noised table, and the events to pay for.
        """
        self.require_norm(components=votes.components)
        known = {"reach": votes.reach, "grid": votes.grid}
        noised = votes.counts + self.noise(votes.counts.shape, rng=rng, **known)
        table = NoisedCounts(
            counts=noised, units=votes.reach * votes.grid, variance=self.variance(**known)
        )
        return CountRelease(
            table=table, events=self.events(reach=votes.reach, per_user=votes.per_user)
        )

    def require_norm(self, *, components: bool) -> None:
        """Refuse votes along components where the noise hides no vote of length one in L2.

        Also where the noise, counted in parts of a vote there, is too large to be drawn.
        """
        if not components:
            return
        if self.pure:
            raise InvalidInput(_NEEDS_GAUSSIAN.format(self.name))
        try:
            self.variance(reach=1, grid=GRID)
        except InvalidInput:
            raise InvalidInput(
                f"the noise is {self.settings()} in votes, and along components 8192 at most; "
                "raise epsilon, or let fewer records of a user vote"
            ) from None

    def release_once(
        self, votes: RecordVotes, *, ledger: Ledger, name: str, most_answers: int | None = None
    ) -> CountRelease:
        """Draw, charge and store a table in one operation: :meth:`pate.Ledger.release`."""
        from pate.mechanisms.charged import release_table_once

        if most_answers is not None:
            raise InvalidInput("a table is released as a whole; leave most_answers out")
        return release_table_once(self, votes, ledger=ledger, name=name)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceCounts(CountMechanism):
    """Release every count of record votes plus discrete Laplace noise: pure ε, at δ = 0.

    Parameters
    ----------
    scale : float
        The Laplace b, in votes. Public.

    Guarantees:
        * A record adds one unit, 1/reach of a vote, at ``reach`` places of the table. Discrete
          Laplace noise of scale b votes, so b·reach units, changes the chance of a count by a
          factor of at most e^{1/(b·reach)} for each unit, so that of the table by e^{1/b}: one
          record added or removed costs ε = 1/b at δ = 0, and n records of one user n/b, however
          many cells there are (Dwork et al. 2006, Proposition 1, for the noise of Ghosh,
          Roughgarden & Sundararajan 2012).
        * The noise has these chances exactly (:func:`pate.randomness.discrete_laplace`): its scale
          is rounded up to a ratio, and the ε charged is that of the ratio, rounded up.

    Examples
    --------
    >>> import pate
    >>> cells = pate.make_cells([[0.0], [1.0]])
    >>> votes = pate.count_record_votes([[0.1], [0.9], [1.2]], [0, 1, 1], cells=cells, classes=2)
    >>> noised = LaplaceCounts(scale=1.0).release(votes, rng=pate.secure_generator())
    >>> noised.table.counts.shape, noised.events
    ((2, 2), (ForAddRemove(event=PureDP(epsilon=1.0), per_user=False),))
    """

    name: ClassVar[str] = "laplace-counts"
    title: ClassVar[str] = "Laplace counts"
    calibrated: ClassVar[str | None] = "scale"
    pure: ClassVar[bool] = True

    scale: float

    def __post_init__(self) -> None:
        check_noise("scale", self.scale)

    def _units(self, reach: int) -> Fraction:
        """Return the scale in units, as it is drawn."""
        return representable_scale(Fraction(self.scale) * reach)

    def noise(
        self, shape: tuple[int, ...], *, reach: int, rng: np.random.Generator, grid: int = 1
    ) -> IntArray:
        return discrete_laplace(self._units(reach * grid), shape, rng)

    def variance(self, *, reach: int, grid: int = 1) -> float:
        # 2p/(1 − p)² with p = e^{−1/scale}: 1/(2 sinh²(1/(2·scale)))
        half = 1 / (2 * float(self._units(reach * grid)))
        return 0.0 if half > 300 else 1 / (2 * math.sinh(half) ** 2)

    def neighbour_chances(self, *, reach: int, units: int) -> tuple[FloatArray, FloatArray]:
        # The ratio of chances differs only between 0 and ``units``: the rest is two tails.
        step = 1 / float(self._units(reach))
        inner = np.arange(1, units)
        unit = math.tanh(step / 2)  # the chance of 0
        here = np.concatenate([[(1 + unit) / 2], unit * np.exp(-step * inner), [0.0]])
        here[-1] = math.exp(-step * units) / (1 + math.exp(-step))
        return here, here[::-1].copy()

    def cost(self, *, reach: int, records: int) -> Event:
        return PureDP(epsilon=rounded_up(records * reach / self._units(reach)))

    @classmethod
    def least_noise(
        cls,
        *,
        epsilon: float,
        delta: float,
        reach: int,
        per_user: int | None,
        conversion: Conversion = Conversion.IMPROVED,
    ) -> float:
        scale = min(max((per_user or 1) / epsilon, LEAST_NOISE), MOST_NOISE)
        while True:  # one rounding up suffices
            event = cls(scale=scale).cost(reach=reach, records=per_user or 1)
            assert isinstance(event, PureDP)
            if event.epsilon <= epsilon:
                return scale
            if scale >= MOST_NOISE:
                raise InvalidInput(f"no scale up to {MOST_NOISE:g} votes reaches ε {epsilon:g}")
            scale = math.nextafter(scale, math.inf)

    def formula(self) -> str:
        return f"every count + discrete Lap(b), b = {format_number(self.scale)} votes"

    def settings(self) -> str:
        return f"b {self.scale:g}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianCounts(CountMechanism):
    """Release every count of record votes plus discrete Gaussian noise.

    Parameters
    ----------
    sigma : float
        The standard deviation, in votes. Public.

    Guarantees:
        * A record adds one unit, 1/reach of a vote, at ``reach`` places: √reach units in L2. With
          σ·reach units of discrete Gaussian noise the table is 1/(2σ²·reach)-zCDP where one record
          is added or removed, and, n records of one user being n·√reach units at most,
          n²/(2σ²·reach)-zCDP for them (Canonne, Kamath & Steinke 2020, Theorem 4 and its
          multivariate form, Theorem 14).
        * Along components a record adds a vector of whole parts of a unit whose length is one unit
          at most (:mod:`pate.components`), and n records of one user n units at most, as lengths
          add up: by the same theorem 1/(2σ²)-zCDP and n²/(2σ²)-zCDP.
        * The noise has these chances exactly (:func:`pate.randomness.discrete_gaussian`): its
          variance is rounded up to a ratio, and the ρ charged is that of the ratio, rounded up.

    Examples
    --------
    >>> GaussianCounts(sigma=2.0).events(reach=4)
    (ForAddRemove(event=ZeroConcentrated(rho=0.03125), per_user=False),)
    """

    name: ClassVar[str] = "gaussian-counts"
    title: ClassVar[str] = "Gaussian counts"
    calibrated: ClassVar[str | None] = "sigma"
    pure: ClassVar[bool] = False

    sigma: float

    def __post_init__(self) -> None:
        check_noise("sigma", self.sigma)

    def _units(self, reach: int) -> Fraction:
        """Return σ² in units², as it is drawn."""
        return representable_variance((Fraction(self.sigma) * reach) ** 2)

    def _drawn(self, reach: int, grid: int) -> Fraction:
        """Return the same in parts of a unit: never less, so the cost of whole units covers it."""
        return representable_variance(self._units(reach) * grid**2)

    def noise(
        self, shape: tuple[int, ...], *, reach: int, rng: np.random.Generator, grid: int = 1
    ) -> IntArray:
        return discrete_gaussian(self._drawn(reach, grid), shape, rng)

    def variance(self, *, reach: int, grid: int = 1) -> float:
        # Of discrete noise at most σ² (Canonne, Kamath & Steinke 2020, Corollary 9), and about it.
        return float(self._drawn(reach, grid))

    def neighbour_chances(self, *, reach: int, units: int) -> tuple[FloatArray, FloatArray]:
        variance = float(self._units(reach))
        reached = math.ceil(_FAR * math.sqrt(variance)) + units
        if reached > _MOST_OUTCOMES:
            raise ConditionsFail(f"noise of {self.settings()} has too many outcomes to add up")
        values = np.arange(-reached, reached + units + 1)
        chances = [np.exp(-((values - shift) ** 2) / (2 * variance)) for shift in (0, units)]
        here, there = (np.maximum(each, 1e-300) / each.sum() for each in chances)
        return here, there

    def cost(self, *, reach: int, records: int) -> Event:
        return ZeroConcentrated(rho=rounded_up(records**2 * reach / (2 * self._units(reach))))

    @classmethod
    def least_noise(
        cls,
        *,
        epsilon: float,
        delta: float,
        reach: int,
        per_user: int | None,
        conversion: Conversion = Conversion.IMPROVED,
    ) -> float:
        found = smallest_noise(
            lambda sigma: cls(sigma=sigma).cost(reach=reach, records=per_user or 1),
            count=1,
            target=epsilon,
            epsilon=moments_epsilon(delta=delta, conversion=conversion),
        )
        return max(found, LEAST_NOISE)

    def formula(self) -> str:
        return f"every count + discrete N(0, σ²), σ = {format_number(self.sigma)} votes"

    def settings(self) -> str:
        return f"σ {self.sigma:g}"
