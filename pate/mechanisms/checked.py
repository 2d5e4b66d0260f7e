"""Confident- and Interactive-GNMax: a noisy check decides whether the teachers answer.

The first answers where they agree, the second where they would surprise the student.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from pate._format import format_number
from pate._validate import check_noise, check_probability, check_threshold, check_whole
from pate.accounting import (
    Analysis,
    Event,
    GaussianNoisyMaxAnswer,
    LogMoments,
    ThresholdCheck,
    confident_total,
)
from pate.accounting.exact_divergence import neighbour_chances
from pate.accounting.noisy_max import answer_weights, checked_statistic, count_teachers
from pate.accounting.smooth import SensitiveCost, gnmax_cost, threshold_cost
from pate.errors import InvalidInput
from pate.mechanisms.mechanism import (
    FloatArray,
    IntArray,
    Mechanism,
    Release,
    happened,
    moved_counts,
    no_queries,
)
from pate.mechanisms.noisy_max import (
    blocks,
    checked_counts,
    gaussian_win_chances,
    most_of,
    noisy_argmax,
    refuse_student,
)
from pate.votes import Votes

Baseline = Callable[[slice], FloatArray]  # a run of queries → what to take off their counts

_SUM_TOLERANCE = 1e-3  # of a row of probabilities: half precision passes, logits do not
_NEVER = 40  # standard deviations: beyond it a probability is zero in double precision


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNoisyMax(Mechanism):
    """Check whether the teachers are sure enough, and answer only if they are.

    Guarantees:
        * Those of the subclasses (Papernot et al. 2018, Section 4). Check and answer draw noise of
          their own; neither the checked statistic nor the counts leave.
        * Once the most answers were given nothing more is checked. Along every course of events
          there are at most the capped checks and answers, so the sum of log-moments of the caps
          holds at every moment, though when it stops depends on the votes.
    """

    checks: ClassVar[bool] = True
    statistic: ClassVar[str]  # the checked one, in symbols

    threshold: float
    sigma1: float
    sigma2: float

    def __post_init__(self) -> None:
        check_threshold("threshold", self.threshold)
        check_noise("sigma1", self.sigma1)
        check_noise("sigma2", self.sigma2)

    def caps(self, *, queries: int, answers: int) -> tuple[Event, ...]:
        check_whole("queries", queries)
        check_whole("answers", answers)
        return happened(
            (ThresholdCheck(sigma=self.sigma1), queries),
            (GaussianNoisyMaxAnswer(sigma=self.sigma2), min(queries, answers)),
        )

    def data_dependent_cost(
        self,
        counts: IntArray,
        *,
        moments: ArrayLike | None = None,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
        analysis: Analysis = Analysis.TIGHT,
    ) -> LogMoments:
        return confident_total(
            counts,
            threshold=self.threshold,
            sigma1=self.sigma1,
            sigma2=self.sigma2,
            moments=moments,
            answered=answered,
            baseline=baseline,
            analysis=analysis,
        )

    def sensitive_cost(
        self,
        counts: IntArray,
        *,
        order: float,
        teachers: int,
        answered: ArrayLike | None = None,
        baseline: FloatArray | None = None,
    ) -> SensitiveCost:
        answers = gnmax_cost(
            counts, sigma=self.sigma2, order=order, weights=answered, teachers=teachers
        )
        return answers + threshold_cost(
            checked_statistic(counts, baseline=baseline),
            teachers=teachers,
            threshold=self.threshold,
            sigma=self.sigma1,
            order=order,
        )

    def formula(self) -> str:
        return (
            f"if {self.statistic} + N(0, σ₁²) ≥ T: answer = argmaxⱼ (nⱼ + N(0, σ₂²)); "
            f"T = {format_number(self.threshold)}, σ₁ = {format_number(self.sigma1)}, "
            f"σ₂ = {format_number(self.sigma2)} votes"
        )

    def settings(self) -> str:
        return f"T {self.threshold:g}, σ₁ {self.sigma1:g}, σ₂ {self.sigma2:g}"

    def win_chances(self, leads: FloatArray) -> FloatArray:
        return gaussian_win_chances(leads, self.sigma2)

    def answer_chances(self, counts: IntArray) -> FloatArray:
        return answer_weights(
            checked_statistic(counts), threshold=self.threshold, sigma=self.sigma1, answered=None
        )

    def neighbour_chances(
        self, counts: IntArray, source: IntArray, target: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        if self.uses_student:  # what is checked, and asked next, follows from earlier answers
            return Mechanism.neighbour_chances(self, counts, source, target)
        answers = neighbour_chances(counts, source, target, sigma=self.sigma2)
        both = (counts, moved_counts(counts, source, target))
        here, there = (
            self._with_check(votes, chances) for votes, chances in zip(both, answers, strict=True)
        )
        return here, there

    def _with_check(self, counts: IntArray, answers: FloatArray) -> FloatArray:
        """Return the chances of each answer after its check, and in a last column of none."""
        above = (checked_statistic(counts) - self.threshold) / self.sigma1
        return np.column_stack([ndtr(above)[:, None] * answers, ndtr(-above)])

    def check_reachable(self, *, teachers: int) -> None:
        most = teachers + _NEVER * self.sigma1
        if self.threshold > most:
            raise InvalidInput(
                f"aggregate.threshold is {self.threshold:g}, and {teachers} votes with noise of "
                f"sigma1 {self.sigma1:g} never reach {most:g}: nothing would be answered; lower it"
            )

    def _checked_release(
        self,
        counts: IntArray,
        *,
        rng: np.random.Generator,
        most_answers: int,
        baseline: Baseline | None = None,
    ) -> Release:
        """Check queries in their order, block by block, until the answers are used up."""
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
        rows = np.concatenate(answered)
        return Release(
            labels=np.concatenate(labels),
            answered=rows,
            events=self.caps(queries=checks, answers=len(rows)),
            asked=checks,
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidentGnmax(CheckedNoisyMax):
    """Answer a query by Gaussian noisy-max if its largest count, noised, reaches a threshold.

    Parameters
    ----------
    threshold : float
        The consensus that an answer needs, in votes. Public, as are the others.
    sigma1 : float
        The standard deviation of the check's noise, in votes.
    sigma2 : float
        The standard deviation of the answer's noise, in votes.

    Guarantees:
        * A record reaches one teacher and a teacher casts one vote or none, so one record moves
          the largest count by at most one: a check is (α, α/(2·sigma1²))-RDP, an answer
          (α, α/sigma2²)-RDP (Papernot et al. 2018, Algorithm 1). Every check is paid for, passed
          or not.
        * Only whether each check passed, and the labels of those that did, leave.
        * Stopping at ``most_answers`` reads nothing but what was released.

    Examples
    --------
    >>> ConfidentGnmax(threshold=200.0, sigma1=150.0, sigma2=40.0).caps(queries=9, answers=4)[0]
    Repeated(event=ThresholdCheck(sigma=150.0), count=9)
    """

    name: ClassVar[str] = "confident"
    title: ClassVar[str] = "Confident-GNMax"
    statistic: ClassVar[str] = "maxⱼ nⱼ"

    def release(
        self,
        votes: Votes,
        *,
        rng: np.random.Generator,
        most_answers: int | None = None,
        student: FloatArray | None = None,
        teachers: int | None = None,
    ) -> Release:
        """Check queries in order, up to ``most_answers`` answers; see :meth:`Mechanism.release`."""
        refuse_student(self, student)
        counts = checked_counts(votes)
        return self._checked_release(
            counts, rng=rng, most_answers=most_of(len(counts), most_answers)
        )


def student_baseline(student: ArrayLike, *, teachers: int) -> FloatArray:
    """Return the votes a student would predict: ``teachers`` × its probabilities, in doubles.

    Accounting for an interactive release must take off the same baseline, so it calls this too.
    """
    check_whole("teachers", teachers, least=1)
    return teachers * np.asarray(student, dtype=np.float64)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveGnmax(CheckedNoisyMax):
    """Answer by Gaussian noisy-max where the teachers' lead over the student is large.

    The statistic is max(0, ⌊max_j (n_j − teachers · p_j)⌋) with p the student's probabilities.
    Where it, noised, reaches the threshold the teachers answer. Elsewhere a student that is sure
    (its largest probability is above ``keep``) keeps its own label; else there is no label.

    Parameters
    ----------
    threshold : float
        The lead over the student that an answer needs, in votes. Public, as are the others.
    sigma1 : float
        The standard deviation of the check's noise, in votes.
    sigma2 : float
        The standard deviation of the answer's noise, in votes.
    keep : float, default 0.9
        The student's confidence above which it keeps its own label.

    Guarantees:
        * A record reaches one teacher and a teacher casts one vote or none, so one record moves
          each count by at most one. The student was made from released things and the number of
          teachers is public, so the statistic moves by at most one: a check is
          (α, α/(2·sigma1²))-RDP, an answer (α, α/sigma2²)-RDP (Papernot et al. 2018, Algorithm 2).
        * A kept label follows from the student and the check that failed: it costs that check
          and no more.
        * Only whether each check passed, and the labels of those that did, leave.

    Examples
    --------
    >>> InteractiveGnmax(threshold=50.0, sigma1=150.0, sigma2=40.0).caps(queries=9, answers=4)[1]
    Repeated(event=GaussianNoisyMaxAnswer(sigma=40.0), count=4)
    """

    name: ClassVar[str] = "interactive"
    title: ClassVar[str] = "Interactive-GNMax"
    uses_student: ClassVar[bool] = True
    statistic: ClassVar[str] = "maxⱼ (nⱼ − student’sⱼ)"

    keep: float = 0.9

    def __post_init__(self) -> None:
        CheckedNoisyMax.__post_init__(self)
        check_probability("keep", self.keep)

    def release(
        self,
        votes: Votes,
        *,
        rng: np.random.Generator,
        most_answers: int | None = None,
        student: FloatArray | None = None,
        teachers: int | None = None,
    ) -> Release:
        """Check queries in order against ``student``; see :meth:`Mechanism.release`.

        Without a student (the first round has none) the baseline is zero and nothing is kept:
        this is Confident-GNMax. ``teachers`` may be left out where every row of votes sums to one
        number, that is, where no teacher abstained.
        """
        counts = checked_counts(votes)
        answers = most_of(len(counts), most_answers)
        if student is None or not len(counts):
            return self._checked_release(counts, rng=rng, most_answers=answers)
        shown = _checked_student(student, counts.shape)
        cast = count_teachers(counts, teachers)
        release = self._checked_release(
            counts,
            rng=rng,
            most_answers=answers,
            baseline=lambda part: student_baseline(shown[part], teachers=cast),
        )
        kept, kept_labels = self._kept(shown[: release.asked], release.answered)
        return replace(release, kept=kept, kept_labels=kept_labels)

    def _kept(self, student: FloatArray, answered: IntArray) -> tuple[IntArray, IntArray]:
        """Return the unanswered queries on which the student is sure, and its labels of them."""
        sure = np.asarray(np.max(student, axis=1), dtype=np.float64) > self.keep
        sure[answered] = False
        kept = np.flatnonzero(sure)
        return kept, np.argmax(student[kept], axis=1).astype(np.int64)


def _checked_student(student: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    table = np.asanyarray(student)
    if table.shape != shape or table.dtype.kind != "f":
        raise InvalidInput(
            f"the student's predictions have shape {table.shape} and kind {table.dtype}; "
            f"they must be probabilities of the votes' shape {shape}"
        )
    for part in blocks(len(table), classes=table.shape[1]):
        rows = np.asarray(table[part], dtype=np.float64)
        sums = rows.sum(axis=1)
        if not (np.all(rows >= 0) and np.all(np.abs(sums - 1) <= _SUM_TOLERANCE)):  # NaN fails too
            raise InvalidInput(
                "the student's predictions are not probabilities; every row must be zero or more "
                "and sum to one"
            )
    return table
