"""The class whose noised count is largest: what all noisy-max mechanisms share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from scipy.special import ndtr

from pate._validate import check_whole
from pate.accounting import Event
from pate.accounting.vote_counts import as_counts
from pate.errors import InvalidInput
from pate.mechanisms.mechanism import (
    FloatArray,
    IntArray,
    Mechanism,
    Release,
    happened,
)
from pate.votes import Votes

Noise = Callable[[tuple[int, ...]], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]

BLOCK = 1 << 17  # counts noised at a time: one megabyte of doubles
_GAUSSIAN, _LAPLACE = 24, 16  # points of a quadrature: more change no mean by 1e-4


class NoisyMax(Mechanism):
    """Answer every query with the class whose noised count is largest; no check comes first."""

    __slots__ = ()

    @property
    @abstractmethod
    def answer_event(self) -> Event:
        """The event of one answer."""

    @abstractmethod
    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Draw noise of its own for each count."""

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
            labels=noisy_argmax(counts[:answers], noise=lambda shape: self.noise(rng, shape)),
            answered=np.arange(answers, dtype=np.int64),
            events=self.caps(queries=answers, answers=answers),
            asked=answers,
        )

    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        """Return an answer for each query asked, as far as answers are allowed."""
        check_whole("queries", queries)
        check_whole("answers", answers)
        return happened((self.answer_event, min(queries, answers)))


def blocks(queries: int, *, classes: int) -> Iterator[slice]:
    """Yield consecutive runs of queries, about :data:`BLOCK` counts each.

    >>> [(part.start, part.stop) for part in blocks(5, classes=BLOCK // 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
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
    check_whole("most_answers", most_answers)
    return min(queries, most_answers)


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
