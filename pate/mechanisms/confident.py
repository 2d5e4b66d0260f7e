"""Confident-GNMax: answers only where the teachers agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from pate.accounting import Event
from pate.mechanisms.check import CheckedAnswers
from pate.mechanisms.noisy_argmax import checked_counts, most_of
from pate.mechanisms.release import HasCounts, Release


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentGnmax:
    """Answers a query by Gaussian noisy-max if its largest count, noised, reaches a threshold.

    Guarantees:
        * A record reaches one teacher and a teacher casts one vote or none, so one record moves
          the largest count by at most one: a check is (α, α/(2·sigma1²))-RDP, an answer
          (α, α/sigma2²)-RDP (Papernot et al. 2018, Algorithm 1). Every check is paid for, passed
          or not.
        * Only whether each check passed, and the labels of those that did, leave.
        * Stopping at ``most_answers`` reads nothing but what was released.

    >>> ConfidentGnmax(threshold=200.0, sigma1=150.0, sigma2=40.0).caps(queries=9, answers=4)[0]
    Repeated(event=ThresholdCheck(sigma=150.0), count=9)
    """

    threshold: float  # in votes; public, as are the others
    sigma1: float  # of the check
    sigma2: float  # of the answer

    def __post_init__(self) -> None:
        _ = self._checked  # keeps the rules

    @property
    def _checked(self) -> CheckedAnswers:
        return CheckedAnswers(threshold=self.threshold, sigma1=self.sigma1, sigma2=self.sigma2)

    def release(
        self, votes: HasCounts, *, rng: np.random.Generator, most_answers: int | None = None
    ) -> Release:
        """Checks queries in order; stops checking once ``most_answers`` were given."""
        counts = checked_counts(votes)
        outcome = self._checked.run(
            counts, rng=rng, most_answers=most_of(len(counts), most_answers)
        )
        return Release(
            labels=outcome.labels,
            answered=outcome.answered,
            events=self.caps(queries=outcome.checks, answers=len(outcome.answered)),
            asked=outcome.checks,
        )

    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        """A check for each query asked, an answer for as many as allowed."""
        return self._checked.events(checks=queries, answers=answers)
