"""From public facts and profiles over k to a proposal: teachers, mechanism, noise, queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pate.datasets.catalogue import CATALOGUE, NamedSet
from pate.datasets.spec import DataSpec
from pate.errors import InvalidInput
from pate.mechanisms import AggregateSpec, make_mechanism, plan_caps
from pate.planner.forecast import Budget, Forecast, forecast
from pate.planner.profile import Profile, right_with_gaussian
from pate.planner.search import Candidate, Wish, candidates, plannable
from pate.planner.surrogate import Rehearsal, shortlist

_ROUND = (10, 25, 50, 100, 250, 500, 1000, 2000, 4000, 8000)
_OF_EACH_CLASS = 2  # records of each class that a teacher should see, on average
_SPREAD = 20  # the most teachers of a grid over the fewest


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The public quantities a plan may rest on.

    Guarantees:
        The number of private records comes from the catalogue, which is public for a named set,
        or from the user, who thereby makes it public. No file of the data set is opened.
    """

    records: int  # private ones
    queries: int  # public inputs
    classes: int


def public_facts(
    data: DataSpec,
    *,
    records: int | None = None,
    queries: int | None = None,
    classes: int | None = None,
) -> Facts:
    """Return the facts of a recipe's data: as given, else as the catalogue has them.

    >>> public_facts(DataSpec(name="mnist"))
    Facts(records=60000, queries=9000, classes=10)
    >>> public_facts(DataSpec(name="digits", public=300, test=300), records=1000)
    Facts(records=1000, queries=300, classes=10)
    """
    known = _own(data) if data.own else _named(data, CATALOGUE[data.name])
    found: dict[str, int] = {}
    for name, option, given in (
        ("records", "--records", records),
        ("queries", "--public", queries),
        ("classes", "--classes", classes),
    ):
        value = known[name] if given is None else given
        if value is None:
            raise InvalidInput(
                f"how many {_WORDS[name]} {data.name} has is not known without opening it; "
                f"give it with {option}"
            )
        if value < _LEAST[name]:
            raise InvalidInput(f"{option} is {value}; it must be {_LEAST[name]} or more")
        found[name] = value
    return Facts(**found)


_WORDS = {"records": "private records", "queries": "public inputs", "classes": "classes"}
_LEAST = {"records": 2, "queries": 1, "classes": 2}


def _own(data: DataSpec) -> dict[str, int | None]:
    return {
        "records": data.private if isinstance(data.private, int) else None,
        "queries": data.public if isinstance(data.public, int) else None,
        "classes": None if data.classes is None else len(data.classes),
    }


def _named(data: DataSpec, named: NamedSet) -> dict[str, int | None]:
    """As :func:`pate.datasets.load` divides the set; the default roles make up its test part."""
    held_out = named.public + named.test
    training = named.records - held_out if named.official_test else named.records
    public, test = data.public or named.public, data.test or named.test
    if named.official_test and data.public_from == "test":
        queries, left = _amount(public, of=held_out - _amount(test, of=held_out)), training
    elif named.official_test:
        queries = _amount(public, of=training)
        left = training - queries
    else:
        rest = training - _amount(test, of=training)
        queries = _amount(public, of=rest)
        left = rest - queries
    private = left if data.private is None else min(left, _amount(data.private, of=left))
    return {"records": private, "queries": queries, "classes": len(named.class_names)}


def _amount(amount: int | float, *, of: int) -> int:
    return amount if isinstance(amount, int) else round(amount * of)


def teacher_counts(facts: Facts, *, own: int) -> list[int]:
    """Return numbers of teachers worth considering, with the recipe's ``own`` among them.

    >>> teacher_counts(Facts(records=60000, queries=9000, classes=10), own=250)
    [100, 250, 500, 1000, 2000]
    """
    most = facts.records // (_OF_EACH_CLASS * facts.classes)
    fitting = [count for count in _ROUND if count <= most]
    fitting = [count for count in fitting if count * _SPREAD >= max(fitting)]
    return sorted({*fitting, own} if own <= facts.records else fitting) or [2]


_INPUTS = 2000  # of a profile, for the search: enough for every mean in a plan


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
        report(f"looking for the best noise with {profile.teachers} teachers")
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
    """Try the settings on the short list that meet the wish."""
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
