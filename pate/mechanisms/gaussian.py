"""Gaussian noisy-max (GNMax): cheaper than Laplace over many answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from pate._validate import check_noise, check_whole
from pate.accounting import Event, GaussianNoisyMaxAnswer
from pate.mechanisms.noisy_argmax import checked_counts, most_of, noisy_argmax
from pate.mechanisms.release import HasCounts, Release, happened


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoisyMax:
    """Answers a query with the class whose count plus N(0, sigma²) is largest.

    Guarantees:
        * A record reaches one teacher and a teacher casts one vote or none, so one record moves
          two counts by at most one each, √2 in L2; each answer is (α, α/sigma²)-RDP for every
          order α (Papernot et al. 2018, Proposition 8).
        * Only the winning label leaves. Counts and noise do not.
        * Which queries are answered (the first ones) depends on public numbers alone.

    >>> GaussianNoisyMax(sigma=40.0).caps(queries=100, answers=100)
    (Repeated(event=GaussianNoisyMaxAnswer(sigma=40.0), count=100),)
    """

    sigma: float  # standard deviation, in votes; public

    def __post_init__(self) -> None:
        check_noise("sigma", self.sigma)

    def release(
        self, votes: HasCounts, *, rng: np.random.Generator, most_answers: int | None = None
    ) -> Release:
        """Answers the first ``most_answers`` queries; all of them if None."""
        counts = checked_counts(votes)
        answers = most_of(len(counts), most_answers)
        return Release(
            labels=noisy_argmax(
                counts[:answers], noise=lambda shape: rng.normal(scale=self.sigma, size=shape)
            ),
            answered=np.arange(answers, dtype=np.int64),
            events=self.caps(queries=answers, answers=answers),
            asked=answers,
        )

    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        """Every query asked is answered, so the smaller number counts."""
        check_whole("queries", queries)
        check_whole("answers", answers)
        return happened((GaussianNoisyMaxAnswer(sigma=self.sigma), min(queries, answers)))
