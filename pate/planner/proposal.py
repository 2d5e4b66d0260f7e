"""From profiles over k to a proposal: which k and mechanism, how much noise, how many queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pate.errors import InvalidInput
from pate.planner.facts import Facts
from pate.planner.forecast import Forecast, forecast
from pate.planner.noise import Budget
from pate.planner.profile import Profile
from pate.planner.search import MECHANISMS, Candidate, Mechanism, Wish, candidates
from pate.planner.winning import right_with_gaussian

NEARLY = 0.9  # of the best plurality: the share of right labels that is wished for by default


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
    mechanisms: Sequence[Mechanism] = MECHANISMS,
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
    if label_accuracy is None:
        label_accuracy = NEARLY * max(profile.plurality_accuracy for profile in profiles)
    wish = Wish(accuracy=label_accuracy, answers=answers)
    chosen: list[tuple[Profile, list[Candidate], Forecast]] = []

    def measured(profile: Profile, candidate: Candidate) -> Forecast:
        return forecast(
            profile, candidate.spec, budget=budget, queries=facts.queries,
            ledger_budget=ledger_budget, doubt=doubt,
        )  # fmt: skip

    for profile in profiles:
        say(f"looking for the best noise with {profile.teachers} teachers")
        found = candidates(profile, budget=budget, queries=facts.queries, mechanisms=mechanisms)
        best = wish.best(found)
        assert best is not None  # one answer fits into any budget, with noise enough
        chosen.append((profile, found, measured(profile, best)))
    profile, found, best_of_all = max(chosen, key=lambda each: _rank(wish, each[2]))
    rivals = [wish.best([c for c in found if c.spec.mechanism == name]) for name in mechanisms]
    return Proposal(
        facts=facts,
        budget=budget,
        wish=wish,
        over_teachers=tuple(each for _, _, each in chosen),
        over_mechanisms=tuple(measured(profile, each) for each in rivals if each is not None),
        best=best_of_all,
        trade=_trade(profiles, budget, best_of_all.answered, facts.queries),
        met=_met(wish, best_of_all),
    )


def _met(wish: Wish, found: Forecast) -> bool:
    return wish.met_by(answers=found.answered, accuracy=found.label_accuracy)


def _rank(wish: Wish, found: Forecast) -> tuple[bool, float]:
    worth = found.label_accuracy if wish.answers is not None else found.useful
    return _met(wish, found), worth


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
