"""Laplace noisy-max: the default mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from pate._validate import check_noise, check_whole
from pate.accounting import Event, LaplaceNoisyMaxAnswer
from pate.mechanisms.noisy_argmax import checked_counts, most_of, noisy_argmax
from pate.mechanisms.release import HasCounts, Release, happened


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoisyMax:
    """Answers a query with the class whose count plus Lap(scale) is largest.

    Guarantees:
        * A record reaches one teacher and a teacher casts one vote or none, so one record moves
          two counts by at most one each; Lap(scale) on every count makes each answer
          (2/scale)-DP (Papernot et al. 2017, Section 2; report-noisy-max, Dwork & Roth 2014,
          Claim 3.9).
        * Only the winning label leaves. Counts and noise do not.
        * Which queries are answered (the first ones) depends on public numbers alone.

    >>> LaplaceNoisyMax(scale=20.0).caps(queries=100, answers=50)
    (Repeated(event=LaplaceNoisyMaxAnswer(scale=20.0), count=50),)
    """

    scale: float  # Laplace b, in votes; public

    def __post_init__(self) -> None:
        check_noise("scale", self.scale)

    def release(
        self, votes: HasCounts, *, rng: np.random.Generator, most_answers: int | None = None
    ) -> Release:
        """Answers the first ``most_answers`` queries; all of them if None."""
        counts = checked_counts(votes)
        answers = most_of(len(counts), most_answers)
        return Release(
            labels=noisy_argmax(
                counts[:answers], noise=lambda shape: rng.laplace(scale=self.scale, size=shape)
            ),
            answered=np.arange(answers, dtype=np.int64),
            events=self.caps(queries=answers, answers=answers),
            asked=answers,
        )

    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        """Every query asked is answered, so the smaller number counts."""
        check_whole("queries", queries)
        check_whole("answers", answers)
        return happened((LaplaceNoisyMaxAnswer(scale=self.scale), min(queries, answers)))
