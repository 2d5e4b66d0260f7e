"""Laplace noisy-max (LNMax): the default mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from pate._format import format_number
from pate._validate import check_noise
from pate.accounting import Event, LaplaceNoisyMaxAnswer, LogMoments, laplace_total
from pate.accounting.smooth import SensitiveCost, lnmax_cost
from pate.mechanisms.mechanism import FloatArray, IntArray
from pate.mechanisms.noisy_max import NoisyMax, laplace_win_chances


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoisyMax(NoisyMax):
    """Answer a query with the class whose count plus Lap(scale) is largest.

    Parameters
    ----------
    scale : float
        The Laplace b, in votes. Public.

    Guarantees:
        * A record reaches one teacher and a teacher casts one vote or none, so one record moves
          two counts by at most one each; Lap(scale) on every count makes each answer
          (2/scale)-DP (Papernot et al. 2017, Section 2; report-noisy-max, Dwork & Roth 2014,
          Claim 3.9).
        * Only the winning label leaves. Counts and noise do not.
        * Which queries are answered (the first ones) depends on public numbers alone.

    Examples
    --------
    >>> import pate
    >>> votes = pate.Votes(counts=np.array([[990, 5, 5], [3, 995, 2]]))
    >>> answer = LaplaceNoisyMax(scale=20.0).release(votes, rng=pate.secure_generator())
    >>> answer.labels
    array([0, 1])
    >>> LaplaceNoisyMax(scale=20.0).caps(queries=100, answers=50)
    (Repeated(event=LaplaceNoisyMaxAnswer(scale=20.0), count=50),)
    """

    name: ClassVar[str] = "lnmax"
    title: ClassVar[str] = "LNMax"
    calibrated: ClassVar[str | None] = "scale"

    scale: float

    def __post_init__(self) -> None:
        check_noise("scale", self.scale)

    @property
    def answer_event(self) -> Event:
        """The event of one answer."""
        return LaplaceNoisyMaxAnswer(scale=self.scale)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Draw Lap(scale) for each count."""
        return rng.laplace(scale=self.scale, size=shape)

    def data_dependent_cost(
        self,
        counts: IntArray,
        *,
        moments: ArrayLike | None = None,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> LogMoments:
        """Return the log-moments worked out from the votes; every query asked is answered."""
        return laplace_total(counts, scale=self.scale, moments=moments)

    def sensitive_cost(
        self,
        counts: IntArray,
        *,
        order: float,
        teachers: int,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> SensitiveCost:
        """Return the cost at one order with its local sensitivity."""
        return lnmax_cost(counts, scale=self.scale, order=order, teachers=teachers)

    def formula(self) -> str:
        """Return the answer in symbols."""
        return f"answer = argmaxⱼ (nⱼ + Lap(b)), b = {format_number(self.scale)} votes"

    def settings(self) -> str:
        """Return the scale in a few characters."""
        return f"b {self.scale:g}"

    def win_chances(self, leads: FloatArray) -> FloatArray:
        """Return the chance of a class to win, from its leads over the others."""
        return laplace_win_chances(leads, self.scale)

    @classmethod
    def least_noise(cls, answers: int, *, moments: FloatArray, room: FloatArray) -> float:
        """Return the least scale b with which so many answers fit.

        At λ they do where ε₀ = 2/b has λε₀ ≤ room/answers or ½ε₀²λ(λ+1) ≤ room/answers.
        """
        each = np.maximum(room, 0.0) / answers
        pure = np.maximum(each / moments, np.sqrt(2 * each / (moments * (moments + 1))))
        return 2 / float(np.max(pure))
