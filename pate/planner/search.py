"""The best setting for one profile: every budget is used up, and the most is made of it.

For a number of answers the noise follows from ε (:mod:`pate.planner.forecast`), so little is left
to search: how many answers for LNMax and GNMax; and for Confident-GNMax how many queries to check,
which consensus to ask for, and what share of the budget the checks get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from pate.accounting.moments import FloatArray
from pate.mechanisms import MECHANISMS, AggregateSpec, Mechanism
from pate.mechanisms.mechanism import IntArray
from pate.planner.forecast import Budget, evenness, expected_answers, rounded_up, useful_labels
from pate.planner.profile import Profile, leads, right_with_gaussian

_STEPS = 36  # numbers of answers that are looked at
_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)  # of the budget, for the checks
_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of the teachers
_LEAST = 5  # answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setting within the budget, and what a quick look expects of it."""

    spec: AggregateSpec
    answers: float
    accuracy: float
    useful: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What makes one setting better than another.

    The most useful labels, of which at least the share ``accuracy`` is right; or, with ``answers``,
    the most accurate labels among settings that give so many.
    """

    accuracy: float = 0.0
    answers: int | None = None

    def best(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The candidate wished for; where none meets the wish, the one that comes nearest."""
        if not candidates:
            return None
        if self.answers is not None:
            enough = [each for each in candidates if each.answers >= 0.995 * self.answers]
            if enough:
                return max(enough, key=lambda each: each.accuracy)
            return max(candidates, key=lambda each: each.answers)
        clean = [each for each in candidates if each.accuracy >= self.accuracy]
        return max(clean or candidates, key=lambda each: each.useful)

    def met_by(self, *, answers: float, accuracy: float) -> bool:
        if self.answers is not None:
            return answers >= 0.99 * self.answers
        return accuracy >= self.accuracy


def plannable() -> tuple[str, ...]:
    """The mechanisms whose settings follow from a budget: one noise, or a check and an answer.

    >>> plannable()
    ('lnmax', 'gnmax', 'confident')
    """
    return tuple(
        name
        for name, kind in MECHANISMS.items()
        if kind.required_keys() in ((kind.calibrated,), ("threshold", "sigma1", "sigma2"))
        and not kind.uses_student
    )


def candidates(
    profile: Profile, *, budget: Budget, queries: int, mechanisms: Sequence[str] | None = None
) -> list[Candidate]:
    """Settings that use up the budget, for every mechanism and every number of answers."""
    names = plannable() if mechanisms is None else mechanisms
    numbers = np.unique(
        np.geomspace(min(_LEAST, queries), queries, _STEPS).round().astype(np.int64)
    )
    found: list[Candidate] = []
    ladder = None
    for kind in (MECHANISMS[name] for name in plannable() if name in names):
        if kind.calibrated is not None:
            found += _one_noise(profile, budget, numbers, kind)
        else:
            ladder = ladder or _Ladder.of(profile, budget, queries=queries)
            found += _checking(profile, budget, numbers, ladder, kind)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ladder:
    """Pr[right] of each input at rungs of σ that cover every σ of the search."""

    sigmas: FloatArray
    right: FloatArray  # (rungs, inputs)

    @classmethod
    def of(cls, profile: Profile, budget: Budget, *, queries: int) -> _Ladder:
        low, high = budget.gaussian(1), budget.gaussian(queries, share=1 - max(_SHARES))
        sigmas = np.geomspace(low, 1.01 * high, _STEPS)
        right = np.stack([right_with_gaussian(profile, float(sigma)) for sigma in sigmas])
        return cls(sigmas=sigmas, right=right)

    def accuracy(self, sigma: float, weights: FloatArray) -> float:
        """Of the answers, where inputs are answered with these weights."""
        above = int(np.clip(np.searchsorted(self.sigmas, sigma), 1, len(self.sigmas) - 1))
        ends = self.right[above - 1 : above + 1] @ weights / weights.sum()
        return float(np.interp(np.log(sigma), np.log(self.sigmas[above - 1 : above + 1]), ends))


def _one_noise(
    profile: Profile, budget: Budget, numbers: IntArray, kind: type[Mechanism]
) -> Iterator[Candidate]:
    """Settings of a mechanism with one noise and no check."""
    ahead = leads(profile)
    for number in map(int, numbers):
        noise = rounded_up(budget.least_noise(kind, number))
        mechanism = kind.from_keys({str(kind.calibrated): noise})
        spec = _spec(mechanism=kind.name, **{str(kind.calibrated): noise}, queries=number)
        accuracy = float(mechanism.win_chances(ahead).mean())
        yield _candidate(profile, spec, float(number), accuracy)


def _checking(
    profile: Profile, budget: Budget, numbers: IntArray, ladder: _Ladder, kind: type[Mechanism]
) -> Iterator[Candidate]:
    """Settings of a mechanism with a check (Confident-GNMax).

    The cap on answers is what is expected, so that the rest goes into noise.
    """
    largest = profile.counts.max(axis=1).astype(np.float64)
    thresholds = profile.teachers * np.array(_THRESHOLDS)
    everything = np.ones(profile.inputs)
    for share in _SHARES:
        for number in map(int, numbers):
            sigma1 = rounded_up(budget.checks(number, share=share))
            passing = ndtr((largest[:, None] - thresholds) / sigma1)  # (inputs, thresholds)
            chances = passing.mean(axis=0)
            for column, (threshold, chance) in enumerate(zip(thresholds, chances, strict=True)):
                most = round(float(chance) * number)
                if not min(_LEAST, number) <= most < number:  # too few pass, or all of them do
                    continue
                sigma2 = rounded_up(budget.gaussian(most, share=1 - share))
                accuracy = ladder.accuracy(sigma2, passing[:, column])
                answered = expected_answers(float(chance), queries=number, most=most)[1]
                spec = _spec(
                    mechanism=kind.name,
                    threshold=float(f"{threshold:.4g}"),
                    sigma1=sigma1,
                    sigma2=sigma2,
                    queries=number,
                    answers=most,
                )
                worth = useful_labels(
                    answered,
                    accuracy,
                    classes=profile.classes,
                    evenness=evenness(passing[:, column]),
                    on_all=ladder.accuracy(sigma2, everything),
                )
                yield Candidate(spec=spec, answers=answered, accuracy=accuracy, useful=worth)


def _spec(**figures: Any) -> AggregateSpec:
    return AggregateSpec.model_validate(figures)


def _candidate(profile: Profile, spec: AggregateSpec, answers: float, accuracy: float) -> Candidate:
    worth = useful_labels(answers, accuracy, classes=profile.classes)
    return Candidate(spec=spec, answers=answers, accuracy=accuracy, useful=worth)
