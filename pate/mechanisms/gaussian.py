"""Gaussian noisy-max (GNMax): cheaper than Laplace over many answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from pate._format import format_number
from pate._validate import check_noise
from pate.accounting import Event, GaussianNoisyMaxAnswer, LogMoments, gaussian_total
from pate.accounting.smooth import SensitiveCost, gnmax_cost
from pate.mechanisms.mechanism import FloatArray, IntArray
from pate.mechanisms.noisy_max import NoisyMax, gaussian_win_chances


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoisyMax(NoisyMax):
    """Answer a query with the class whose count plus N(0, sigma²) is largest.

    Parameters
    ----------
    sigma : float
        The standard deviation, in votes. Public.

    Guarantees:
        * A record reaches one teacher and a teacher casts one vote or none, so one record moves
          two counts by at most one each, √2 in L2; each answer is (α, α/sigma²)-RDP for every
          order α (Papernot et al. 2018, Proposition 8).
        * Only the winning label leaves. Counts and noise do not.
        * Which queries are answered (the first ones) depends on public numbers alone.

    Examples
    --------
    >>> import pate
    >>> votes = pate.Votes(counts=np.array([[990, 5, 5], [3, 995, 2]]))
    >>> answer = GaussianNoisyMax(sigma=40.0).release(votes, rng=pate.secure_generator())
    >>> answer.labels, round(pate.compose(answer.events).guarantee(delta=1e-5).epsilon, 3)
    (array([0, 1]), 0.178)
    >>> GaussianNoisyMax(sigma=40.0).caps(queries=100, answers=100)
    (Repeated(event=GaussianNoisyMaxAnswer(sigma=40.0), count=100),)
    """

    name: ClassVar[str] = "gnmax"
    title: ClassVar[str] = "GNMax"
    calibrated: ClassVar[str | None] = "sigma"

    sigma: float

    def __post_init__(self) -> None:
        check_noise("sigma", self.sigma)

    @property
    def answer_event(self) -> Event:
        """The event of one answer."""
        return GaussianNoisyMaxAnswer(sigma=self.sigma)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Draw N(0, sigma²) for each count."""
        return rng.normal(scale=self.sigma, size=shape)

    def data_dependent_cost(
        self,
        counts: IntArray,
        *,
        moments: ArrayLike | None = None,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> LogMoments:
        """Return the log-moments worked out from the votes; every query asked is answered."""
        return gaussian_total(counts, sigma=self.sigma, moments=moments)

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
        return gnmax_cost(counts, sigma=self.sigma, order=order, teachers=teachers)

    def formula(self) -> str:
        """Return the answer in symbols."""
        return f"answer = argmaxⱼ (nⱼ + N(0, σ²)), σ = {format_number(self.sigma)} votes"

    def settings(self) -> str:
        """Return the standard deviation in a few characters."""
        return f"σ {self.sigma:g}"

    def win_chances(self, leads: FloatArray) -> FloatArray:
        """Return the chance of a class to win, from its leads over the others."""
        return gaussian_win_chances(leads, self.sigma)

    @classmethod
    def least_noise(cls, answers: int, *, moments: FloatArray, room: FloatArray) -> float:
        """Return the least σ with which so many answers fit: each costs λ(λ+1)/σ²."""
        rho = float(np.max(room / (moments * (moments + 1))))
        return math.sqrt(answers / rho)
