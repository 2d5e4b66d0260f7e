"""A noisy check before each answer: what Confident- and Interactive-GNMax share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from pate._validate import check_noise, check_threshold, check_whole
from pate.accounting import Event, GaussianNoisyMaxAnswer, ThresholdCheck
from pate.accounting.noisy_max import checked_statistic
from pate.mechanisms.noisy_argmax import blocks, noisy_argmax
from pate.mechanisms.release import FloatArray, IntArray, happened, no_queries

Baseline = Callable[[slice], FloatArray]  # a run of queries → what to take off their counts


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What came of checking queries in their order."""

    answered: IntArray
    labels: IntArray
    checks: int  # queries 0 … checks − 1 were checked


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAnswers:
    """Checks whether the teachers are sure enough, and answers only if they are.

    Guarantees:
        * The checked statistic moves by at most one with one record, so a check is
          (α, α/(2·sigma1²))-RDP; an answer is (α, α/sigma2²)-RDP. Papernot et al. 2018,
          Section 4 and Algorithm 1.
        * Check and answer draw noise of their own. Whether a check passed leaves, and the label
          if it did; neither the statistic nor the counts do.
        * Once the most answers were given nothing more is checked. Along every course of events
          there are at most the capped checks and answers, so the sum of log-moments of the caps
          holds at every moment, though when it stops depends on the votes.
    """

    threshold: float
    sigma1: float
    sigma2: float

    def __post_init__(self) -> None:
        check_threshold("threshold", self.threshold)
        check_noise("sigma1", self.sigma1)
        check_noise("sigma2", self.sigma2)

    def run(
        self,
        counts: IntArray,
        *,
        rng: np.random.Generator,
        most_answers: int,
        baseline: Baseline | None = None,
    ) -> Outcome:
        """Checks queries in their order, block by block, until the answers are used up."""
        answered, labels, checks, room = [no_queries()], [no_queries()], 0, most_answers
        for part in blocks(len(counts), classes=counts.shape[1]):
            if not room:
                break
            block = counts[part]
            expected = None if baseline is None else baseline(part)
            statistic = checked_statistic(block, baseline=expected)
            passed = statistic + rng.normal(scale=self.sigma1, size=len(block)) >= self.threshold
            hits = np.flatnonzero(passed)[:room]
            answered.append(part.start + hits)
            labels.append(
                noisy_argmax(
                    block[hits], noise=lambda shape: rng.normal(scale=self.sigma2, size=shape)
                )
            )
            room -= len(hits)
            checks += len(block) if room else int(hits[-1]) + 1  # what came later was not looked at
        return Outcome(
            answered=np.concatenate(answered), labels=np.concatenate(labels), checks=checks
        )

    def events(self, *, checks: int, answers: int) -> tuple[Event, ...]:
        """What this many checks and answers are to the accountant; an answer needs a check."""
        check_whole("queries", checks)
        check_whole("answers", answers)
        return happened(
            (ThresholdCheck(sigma=self.sigma1), checks),
            (GaussianNoisyMaxAnswer(sigma=self.sigma2), min(checks, answers)),
        )
