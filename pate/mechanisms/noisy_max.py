"""Laplace and Gaussian noisy-max (LNMax, GNMax): the class whose noised count is largest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from pate._format import format_number
from pate._validate import check_noise, check_whole
from pate.accounting import (
    Analysis,
    Event,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    LogMoments,
    gaussian_total,
    laplace_total,
)
from pate.accounting.exact_divergence import neighbour_chances
from pate.accounting.noisy_max import as_counts
from pate.accounting.smooth import SensitiveCost, gnmax_cost, lnmax_cost
from pate.errors import InvalidInput
from pate.mechanisms.mechanism import FloatArray, IntArray, Mechanism, Release, happened
from pate.votes import Votes

Noise = Callable[[tuple[int, ...]], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]

BLOCK = 1 << 17  # counts noised at a time: one megabyte of doubles
_GAUSSIAN, _LAPLACE = 24, 16  # points of a quadrature: more change no mean by 1e-4


class NoisyMax(Mechanism):
    """Answer every query with the class whose noised count is largest; no check comes first.

    Guarantees:
        Only the winning label leaves, neither counts nor noise. Which queries are answered (the
        first ones) depends on public numbers alone.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def answer_event(self) -> Event:
        """The event of one answer."""

    @abstractmethod
    def answers(self, counts: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw the winner of each query, with randomness of its own."""

    def release(
        self,
        votes: Votes,
        *,
        rng: np.random.Generator,
        most_answers: int | None = None,
        student: FloatArray | None = None,
        teachers: int | None = None,
    ) -> Release:
        """Answer the first ``most_answers`` queries; see :meth:`Mechanism.release`."""
        refuse_student(self, student)
        counts = checked_counts(votes)
        answers = most_of(len(counts), most_answers)
        return Release(
            labels=self.answers(counts[:answers], rng),
            answered=np.arange(answers, dtype=np.int64),
            events=self.caps(queries=answers, answers=answers),
            asked=answers,
        )

    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        check_whole("queries", queries)
        check_whole("answers", answers)
        return happened((self.answer_event, min(queries, answers)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoisyMax(NoisyMax):
    """Answer a query with the class whose count plus Lap(scale) is largest.

    Parameters
    ----------
    scale : float
        The Laplace b, in votes. Public.

    Guarantees:
        A record reaches one teacher and a teacher casts one vote or none, so one record moves two
        counts by at most one each; Lap(scale) on every count makes each answer (2/scale)-DP
        (Papernot et al. 2017, Section 2; report-noisy-max, Dwork & Roth 2014, Claim 3.9). What the
        index alone costs is Theorem 3 of docs/proofs/noisy-argmax.md.

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
        return LaplaceNoisyMaxAnswer(scale=self.scale)

    def answers(self, counts: IntArray, rng: np.random.Generator) -> IntArray:
        return noisy_argmax(counts, noise=lambda shape: rng.laplace(scale=self.scale, size=shape))

    def data_dependent_cost(
        self,
        counts: IntArray,
        *,
        moments: ArrayLike | None = None,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
        analysis: Analysis = Analysis.TIGHT,
    ) -> LogMoments:
        return laplace_total(counts, scale=self.scale, moments=moments, analysis=analysis)

    def sensitive_cost(
        self,
        counts: IntArray,
        *,
        order: float,
        teachers: int,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> SensitiveCost:
        return lnmax_cost(counts, scale=self.scale, order=order, teachers=teachers)

    def formula(self) -> str:
        return f"answer = argmaxⱼ (nⱼ + Lap(b)), b = {format_number(self.scale)} votes"

    def settings(self) -> str:
        return f"b {self.scale:g}"

    def win_chances(self, leads: FloatArray) -> FloatArray:
        return laplace_win_chances(leads, self.scale)

    def neighbour_chances(
        self, counts: IntArray, source: IntArray, target: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        return neighbour_chances(counts, source, target, scale=self.scale)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoisyMax(NoisyMax):
    """Answer a query with the class whose count plus N(0, sigma²) is largest.

    Parameters
    ----------
    sigma : float
        The standard deviation, in votes. Public.

    Guarantees:
        A record reaches one teacher and a teacher casts one vote or none, so one record moves two
        counts by at most one each, √2 in L2; each answer is (α, α/sigma²)-RDP for every order α
        (Papernot et al. 2018, Proposition 8). What the index alone costs is Theorem 2 of
        docs/proofs/noisy-argmax.md.

    Examples
    --------
    >>> import pate
    >>> votes = pate.Votes(counts=np.array([[990, 5, 5], [3, 995, 2]]))
    >>> answer = GaussianNoisyMax(sigma=40.0).release(votes, rng=pate.secure_generator())
    >>> answer.labels, round(pate.compose(answer.events).guarantee(delta=1e-5).epsilon, 3)
    (array([0, 1]), 0.152)
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
        return GaussianNoisyMaxAnswer(sigma=self.sigma)

    def answers(self, counts: IntArray, rng: np.random.Generator) -> IntArray:
        return noisy_argmax(counts, noise=lambda shape: rng.normal(scale=self.sigma, size=shape))

    def data_dependent_cost(
        self,
        counts: IntArray,
        *,
        moments: ArrayLike | None = None,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
        analysis: Analysis = Analysis.TIGHT,
    ) -> LogMoments:
        return gaussian_total(counts, sigma=self.sigma, moments=moments, analysis=analysis)

    def sensitive_cost(
        self,
        counts: IntArray,
        *,
        order: float,
        teachers: int,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> SensitiveCost:
        return gnmax_cost(counts, sigma=self.sigma, order=order, teachers=teachers)

    def formula(self) -> str:
        return f"answer = argmaxⱼ (nⱼ + N(0, σ²)), σ = {format_number(self.sigma)} votes"

    def settings(self) -> str:
        return f"σ {self.sigma:g}"

    def win_chances(self, leads: FloatArray) -> FloatArray:
        return gaussian_win_chances(leads, self.sigma)

    def neighbour_chances(
        self, counts: IntArray, source: IntArray, target: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        return neighbour_chances(counts, source, target, sigma=self.sigma)


def blocks(queries: int, *, classes: int) -> Iterator[slice]:
    """Yield consecutive runs of queries, about :data:`BLOCK` counts each."""
    rows = max(1, BLOCK // classes)
    for start in range(0, queries, rows):
        yield slice(start, min(start + rows, queries))


def noisy_argmax(counts: IntArray, *, noise: Noise) -> IntArray:
    """Return argmax_j (n_j + noise) of each query; every count gets a draw of its own."""
    labels = np.empty(len(counts), dtype=np.int64)
    for part in blocks(len(counts), classes=counts.shape[1]):
        noised = noise(counts[part].shape)
        noised += counts[part]
        np.argmax(noised, axis=1, out=labels[part])
    return labels


def checked_counts(votes: Votes) -> IntArray:
    """Return the counts of votes, checked before any noise is drawn; there may be no queries."""
    counts = votes.counts
    if counts.ndim != 2 or counts.shape[1] < 2 or counts.dtype.kind not in "iu":
        raise InvalidInput(
            f"votes of shape {counts.shape} and kind {counts.dtype} are not whole counts, "
            "(queries, classes ≥ 2)"
        )
    for part in blocks(len(counts), classes=counts.shape[1]):
        as_counts(counts[part])
    return counts


def most_of(queries: int, most_answers: int | None) -> int:
    """Return how many of the queries may be answered."""
    if most_answers is None:
        return queries
    return min(queries, check_whole("most_answers", most_answers))


def refuse_student(mechanism: Mechanism, student: FloatArray | None) -> None:
    """Raise InvalidInput if there is a student, which this mechanism would ignore."""
    if student is not None:
        raise InvalidInput(f"{mechanism.title} takes no student's predictions; leave student out")


def gaussian_win_chances(leads: FloatArray, sigma: float) -> FloatArray:
    """Return the chance of a class to win against every other, with N(0, sigma²) on each count.

    The noised count of the class is n_t + σz; it wins if it is above every other, so the chance is
    E_z Π_{j≠t} F((n_t − n_j)/σ + z) with z and F the standard noise and its distribution function:
    an integral over one number.

    >>> round(float(gaussian_win_chances(np.array([[40.0]]), 40.0)[0]), 4)  # Φ(40 / (40·√2))
    0.7602
    """
    return _expected(leads / sigma, *_gaussian_rule(), ndtr)


def laplace_win_chances(leads: FloatArray, scale: float) -> FloatArray:
    """Return the chance of a class to win, with Lap(scale) on each count."""
    return _expected(leads / scale, *_laplace_rule(), _laplace_below)


def _expected(
    ahead: FloatArray,
    points: FloatArray,
    weights: FloatArray,
    below: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    total = np.zeros(len(ahead))
    for point, weight in zip(points, weights, strict=True):
        total += weight * np.prod(below(ahead + point), axis=1)
    return np.minimum(total, 1.0)


def _laplace_below(x: FloatArray) -> FloatArray:
    tail = np.exp(-np.abs(x)) / 2
    return np.where(x < 0, tail, 1 - tail)


@cache
def _gaussian_rule() -> tuple[FloatArray, FloatArray]:
    points, weights = np.polynomial.hermite_e.hermegauss(_GAUSSIAN)
    return points, weights / weights.sum()


@cache
def _laplace_rule() -> tuple[FloatArray, FloatArray]:
    """Gauss's rule on either half of the probabilities, where the density has no kink."""
    points, weights = np.polynomial.legendre.leggauss(_LAPLACE)
    below = (points + 1) / 4  # in 0 … ½
    at: FloatArray = np.log(2 * below)
    return np.concatenate([at, -at]), np.concatenate([weights, weights]) / 4
