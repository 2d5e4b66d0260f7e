"""From profiles over k to a proposal: which k and mechanism, how much noise, how many queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pate.errors import InvalidInput
from pate.mechanisms import AggregateSpec, make_mechanism, plan_caps
from pate.planner.facts import Facts
from pate.planner.forecast import Forecast, forecast
from pate.planner.noise import Budget
from pate.planner.profile import Profile
from pate.planner.rehearsal import Rehearsal, shortlist
from pate.planner.search import Candidate, Wish, candidates, plannable
from pate.planner.winning import right_with_gaussian

_INPUTS = 2000  # of a profile, for the search: enough for every mean in a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The best setting for each k, the best of all, and what it was chosen by."""

    facts: Facts
    budget: Budget
    wish: Wish
    over_teachers: tuple[Forecast, ...]  # the best setting for each k
    over_mechanisms: tuple[Forecast, ...]  # at the chosen k, the best one of each mechanism
    best: Forecast
    trade: Mapping[int, tuple[float, ...]]  # answers → share of right labels, for each k
    met: bool  # whether the best meets the wish
    rehearsed: bool  # whether a student had a say in it

    def as_json(self) -> dict[str, Any]:
        return {
            "facts": {
                "private_records": self.facts.records,
                "public_inputs": self.facts.queries,
                "classes": self.facts.classes,
            },
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "conversion": self.budget.conversion.value,
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
    label_accuracy: float | None = None,
    answers: int | None = None,
    mechanisms: Sequence[str] | None = None,
    rehearsal: Rehearsal | None = None,
    ledger_budget: float | None = None,
    doubt: float = 0.01,
    say: Callable[[str], None] = lambda text: None,
) -> Proposal:
    """Searches every profile and puts the best settings side by side.

    Guarantees:
        Reads profiles and facts, which are public, and nothing else; so the choice costs no
        privacy (post-processing of public values), and the guarantee of the chosen plan is the one
        printed: data-independent, whatever the votes will be.
    """
    if not profiles:
        raise InvalidInput("there is no number of teachers to plan for; give --teachers")
    if answers is not None and answers > facts.queries:
        raise InvalidInput(f"--answers {answers} is more than the {facts.queries} public inputs")
    short = [profile.first(_INPUTS) for profile in profiles]
    wish = Wish(accuracy=label_accuracy or 0.0, answers=answers)
    mechanisms = plannable() if mechanisms is None else mechanisms
    chosen: list[list[Forecast]] = []  # for each number of teachers, the best of each mechanism

    def measured(profile: Profile, setting: AggregateSpec, student: float | None) -> Forecast:
        figures = forecast(
            profile, setting, budget=budget, queries=facts.queries,
            ledger_budget=ledger_budget, doubt=doubt,
        )  # fmt: skip
        return replace(figures, student_accuracy=student)

    for whole, profile in zip(profiles, short, strict=True):
        say(f"looking for the best noise with {profile.teachers} teachers")
        found = candidates(profile, budget=budget, queries=facts.queries, mechanisms=mechanisms)
        tried = _rehearsed(rehearsal, whole, wish, found, budget, facts.queries)
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
    rehearsal: Rehearsal | None,
    profile: Profile,
    wish: Wish,
    found: Sequence[Candidate],
    budget: Budget,
    queries: int,
) -> Tried:
    """What a student learns from the settings on the short list that meet the wish."""
    if rehearsal is None:
        return []
    meeting = [c for c in found if wish.met_by(answers=c.answers, accuracy=c.accuracy)]
    tried: Tried = []
    for each in shortlist(meeting):
        plan = plan_caps(
            make_mechanism(each.spec), each.spec, epsilon=budget.epsilon, delta=budget.delta,
            available_queries=queries, conversion=budget.conversion,
        )  # fmt: skip
        reached = rehearsal.accuracy(profile, each.spec, plan)
        if reached is not None:
            tried.append((each, reached))
    return tried


def _pick(
    wish: Wish, tried: Tried, found: Sequence[Candidate]
) -> tuple[AggregateSpec, float | None] | None:
    """The setting that taught most; without a rehearsal the one wished for."""
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
    """How many labels of GNMax are right over k: as planned, and with 4 times fewer or more."""
    numbers = sorted({min(queries, max(1, round(answers * times))) for times in (0.25, 1.0, 4.0)})
    return {
        number: tuple(
            float(right_with_gaussian(profile, budget.gaussian(number)).mean())
            for profile in profiles
        )
        for number in numbers
    }
