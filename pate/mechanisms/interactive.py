"""Interactive-GNMax: asks the teachers only where they would surprise the student."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from pate._validate import check_probability, check_whole
from pate.accounting.noisy_max import count_teachers
from pate.errors import InvalidInput
from pate.mechanisms.confident import CheckedNoisyMax
from pate.mechanisms.mechanism import FloatArray, IntArray, Release
from pate.mechanisms.noisy_max import blocks, checked_counts, most_of
from pate.votes import Votes

_SUM_TOLERANCE = 1e-3  # of a row of probabilities: half precision passes, logits do not


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
