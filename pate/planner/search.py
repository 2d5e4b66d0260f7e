"""The best setting for each number of teachers, and the best of all.

For a number of answers the noise follows from ε (:mod:`pate.planner.forecast`), so little is left
to search: how many answers for LNMax and GNMax; and for Confident-GNMax how many queries to check,
which consensus to ask for, and what share of the budget the checks get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from pate.accounting.moments import FloatArray
from pate.errors import InvalidInput
from pate.mechanisms import MECHANISMS, AggregateSpec, Mechanism
from pate.mechanisms.mechanism import IntArray
from pate.planner.forecast import (
    Budget,
    Forecast,
    evenness,
    expected_answers,
    forecast,
    rounded_up,
    useful_labels,
)
from pate.planner.profile import Facts, Profile, leads, right_with_gaussian
from pate.planner.surrogate import Surrogate

_STEPS = 36  # numbers of answers that are looked at
_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)  # of the budget, for the checks
_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of the teachers
_LEAST = 5  # answers
_INPUTS = 2000  # of a profile: enough for every mean in a plan
_WORTH = 0.05  # a setting is tried if its labels are worth this share of the most useful ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A setting within the budget, and what a quick look expects of it."""

    spec: AggregateSpec
    answers: float
    accuracy: float
    useful: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The measure by which one setting is better than another.

    The most useful labels, of which at least the share ``accuracy`` is right; or, with ``answers``,
    the most accurate labels among settings that give so many.
    """

    accuracy: float = 0.0
    answers: int | None = None

    def best(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """Return the candidate wished for; where none meets the wish, the one nearest to it."""
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


_ANYTHING = Wish()


def plannable() -> tuple[str, ...]:
    """Return the mechanisms whose settings follow from a budget.

    >>> plannable()
    ('lnmax', 'gnmax', 'gumbel', 'confident')
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
        """Return the accuracy of the answers, where inputs are answered with these weights."""
        above = int(np.clip(np.searchsorted(self.sigmas, sigma), 1, len(self.sigmas) - 1))
        ends = self.right[above - 1 : above + 1] @ weights / weights.sum()
        return float(np.interp(np.log(sigma), np.log(self.sigmas[above - 1 : above + 1]), ends))


def _one_noise(
    profile: Profile, budget: Budget, numbers: IntArray, kind: type[Mechanism]
) -> Iterator[Candidate]:
    """Yield settings of a mechanism with one noise and no check."""
    ahead = leads(profile)
    for number in map(int, numbers):
        noise = rounded_up(budget.least_noise(kind, number))
        mechanism = kind.from_keys({str(kind.calibrated): noise})
        accuracy = float(mechanism.win_chances(ahead).mean())
        yield Candidate(
            spec=_spec(mechanism=kind.name, **{str(kind.calibrated): noise}, queries=number),
            answers=float(number),
            accuracy=accuracy,
            useful=useful_labels(number, accuracy, classes=profile.classes),
        )


def _checking(
    profile: Profile, budget: Budget, numbers: IntArray, ladder: _Ladder, kind: type[Mechanism]
) -> Iterator[Candidate]:
    """Yield settings of a mechanism with a check (Confident-GNMax).

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


def _spec(**keys: Any) -> AggregateSpec:
    return AggregateSpec.model_validate(keys)


def shortlist(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the most useful setting of each mechanism and size (answers within a factor √2)."""
    best: dict[tuple[str, int], Candidate] = {}
    for each in found:
        place = each.spec.mechanism, round(2 * float(np.log2(max(each.answers, 1.0))))
        if place not in best or each.useful > best[place].useful:
            best[place] = each
    top = max((each.useful for each in best.values()), default=0.0)
    return [each for each in best.values() if each.useful >= _WORTH * top]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The best setting for each k, the best of all, and what decided it."""

    facts: Facts
    budget: Budget
    wish: Wish
    over_teachers: tuple[Forecast, ...]  # the best setting for each k
    over_mechanisms: tuple[Forecast, ...]  # at the chosen k, the best one of each mechanism
    best: Forecast
    trade: Mapping[int, tuple[float, ...]]  # answers → share of right labels, for each k
    met: bool  # whether the best meets the wish
    rehearsed: bool  # whether a student decided

    def as_json(self) -> dict[str, Any]:
        return {
            "wished": {"label_accuracy": self.wish.accuracy, "answers": self.wish.answers},
            "met": self.met,
            "rehearsed": self.rehearsed,
            "proposal": self.best.as_json(),
            "over_teachers": [each.as_json() for each in self.over_teachers],
            "over_mechanisms": [each.as_json() for each in self.over_mechanisms],
            "trade": {str(answers): list(shares) for answers, shares in self.trade.items()},
        }


def propose(
    profiles: Sequence[Profile],
    *,
    facts: Facts,
    budget: Budget,
    wish: Wish = _ANYTHING,
    mechanisms: Sequence[str] | None = None,
    surrogate: Surrogate | None = None,
    ledger_budget: float | None = None,
    doubt: float = 0.01,
    report: Callable[[str], None] = lambda text: None,
) -> Proposal:
    """Search every profile and put the best settings side by side.

    Guarantees:
        Reads profiles and facts, which are public, and nothing else; so the choice costs no
        privacy (post-processing of public values), and the guarantee of the chosen plan is the one
        printed: data-independent, whatever the votes will be.
    """
    if not profiles:
        raise InvalidInput("there is no number of teachers to plan for; give --teachers")
    short = [profile.first(_INPUTS) for profile in profiles]
    mechanisms = plannable() if mechanisms is None else mechanisms
    chosen: list[list[Forecast]] = []  # for each number of teachers, the best of each mechanism

    def measured(profile: Profile, setting: AggregateSpec, student: float | None) -> Forecast:
        found = forecast(
            profile,
            setting,
            budget=budget,
            queries=facts.queries,
            ledger_budget=ledger_budget,
            doubt=doubt,
        )
        return replace(found, student_accuracy=student)

    for whole, profile in zip(profiles, short, strict=True):
        report(f"looking for the best noise with {profile.teachers} teachers")
        found = candidates(profile, budget=budget, queries=facts.queries, mechanisms=mechanisms)
        tried = _rehearsed(surrogate, whole, wish, found, budget, facts.queries)
        rivals = [
            _pick(wish, tried, [c for c in found if c.spec.mechanism == name])
            for name in mechanisms
        ]
        chosen.append([measured(profile, *each) for each in rivals if each is not None])
    best_of_each = [max(rivals, key=lambda each: _rank(wish, each)) for rivals in chosen]
    best = max(best_of_each, key=lambda each: _rank(wish, each))
    return Proposal(
        facts=facts,
        budget=budget,
        wish=wish,
        over_teachers=tuple(best_of_each),
        over_mechanisms=tuple(chosen[best_of_each.index(best)]),
        best=best,
        trade=_trade(short, budget, best.answered, facts.queries),
        met=_met(wish, best),
        rehearsed=best.student_accuracy is not None,
    )


Tried = list[tuple[Candidate, float]]  # with what a student reached


def _rehearsed(
    surrogate: Surrogate | None,
    profile: Profile,
    wish: Wish,
    found: Sequence[Candidate],
    budget: Budget,
    queries: int,
) -> Tried:
    """Try the settings on the short list that meet the wish."""
    if surrogate is None:
        return []
    meeting = [c for c in found if wish.met_by(answers=c.answers, accuracy=c.accuracy)]
    tried: Tried = []
    for each in shortlist(meeting):
        plan = budget.plan(each.spec, queries=queries)
        reached = surrogate.rehearse(profile, each.spec, plan)
        if reached is not None:
            tried.append((each, reached))
    return tried


def _pick(
    wish: Wish, tried: Tried, found: Sequence[Candidate]
) -> tuple[AggregateSpec, float | None] | None:
    """Return the setting that taught most; without a rehearsal the one wished for."""
    own = [each for each in tried if each[0] in found]
    if own:
        candidate, reached = max(own, key=lambda each: each[1])
        return candidate.spec, reached
    best = wish.best(found)
    return None if best is None else (best.spec, None)


def _met(wish: Wish, found: Forecast) -> bool:
    return wish.met_by(answers=found.answered, accuracy=found.label_accuracy)


def _rank(wish: Wish, found: Forecast) -> tuple[bool, float, float]:
    worth = found.label_accuracy if wish.answers is not None else found.useful
    return _met(wish, found), found.student_accuracy or 0.0, worth


def _trade(
    profiles: Sequence[Profile], budget: Budget, answers: float, queries: int
) -> dict[int, tuple[float, ...]]:
    """Return the share of right GNMax labels over k: as planned, and with 4 times fewer or more."""
    numbers = sorted({min(queries, max(1, round(answers * times))) for times in (0.25, 1.0, 4.0)})
    return {
        number: tuple(
            float(right_with_gaussian(profile, budget.gaussian(number)).mean())
            for profile in profiles
        )
        for number in numbers
    }
