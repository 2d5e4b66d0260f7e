"""Forecasts and searches: every figure again, by the accountant or by drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import expected_release

from pate.accounting import (
    Conversion,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    ThresholdCheck,
    compose,
    confident_total,
    gaussian_total,
    laplace_total,
)
from pate.accounting.sanitise import ReleasePlan
from pate.accounting.smooth import gnmax_cost
from pate.mechanisms import AggregateSpec, Plan, make_mechanism
from pate.pipeline.recipe import Recipe
from pate.planner.forecast import Budget, evenness, expected_answers, forecast, useful_labels
from pate.planner.plan import plan
from pate.planner.planned_recipe import write_planned
from pate.planner.profile import Facts, Profile, simulated
from pate.planner.search import Candidate, Wish, candidates, plannable, propose
from pate.recipes.read import read_recipe
from pate.votes import Votes

BUDGET = Budget(epsilon=2.0, delta=1e-5)
QUERIES = 600


@pytest.fixture(scope="module")
def profile() -> Profile:
    return simulated(teachers=150, accuracy=0.8, classes=5, inputs=500, seed=3)


def spec(**keys: Any) -> AggregateSpec:
    return AggregateSpec.model_validate(keys)


def test_gnmax_by_hand(profile: Profile) -> None:
    setting = spec(mechanism="gnmax", sigma=40.0, queries=120)
    found = forecast(profile, setting, budget=BUDGET, queries=QUERIES)
    caps = compose([Repeated(GaussianNoisyMaxAnswer(sigma=40.0), 120)])
    assert found.plan.guarantee.epsilon == caps.guarantee(delta=1e-5).epsilon
    each = [gaussian_total(row[None], sigma=40.0).values for row in profile.counts]
    total = gaussian_total(profile.counts, sigma=40.0)
    by_hand = type(total)(moments=total.moments, values=np.mean(each, axis=0) * 120)
    best = by_hand.guarantee(delta=1e-5).epsilon  # on the whole grid of λ, not on a part of it
    assert best * (1 - 1e-9) <= found.data_dependent.epsilon <= 1.005 * best
    assert found.data_dependent.epsilon < found.plan.guarantee.epsilon
    assert (found.answered, found.plan.answers) == (120, 120)


def test_lnmax_by_hand(profile: Profile) -> None:
    setting = spec(mechanism="lnmax", scale=30.0, queries=40)
    found = forecast(profile, setting, budget=BUDGET, queries=QUERIES)
    caps = compose([Repeated(LaplaceNoisyMaxAnswer(scale=30.0), 40)])
    assert found.plan.guarantee.epsilon == caps.guarantee(delta=1e-5).epsilon
    total = laplace_total(np.repeat(profile.counts, 5, axis=0), scale=30.0)  # 2500 answers
    shared = type(total)(moments=total.moments, values=total.values * 40 / 2500)
    best = shared.guarantee(delta=1e-5).epsilon
    assert best * (1 - 1e-9) <= found.data_dependent.epsilon <= 1.005 * best


def test_confident_by_hand_and_by_drawing(profile: Profile) -> None:
    noise = {"threshold": 100.0, "sigma1": 60.0, "sigma2": 30.0}
    setting = spec(mechanism="confident", **noise, queries=400, answers=60)
    loose = Budget(epsilon=8.0, delta=1e-5)
    found = forecast(profile, setting, budget=loose, queries=QUERIES)
    caps = [
        Repeated(ThresholdCheck(sigma=60.0), 400),
        Repeated(GaussianNoisyMaxAnswer(sigma=30.0), 60),
    ]
    assert found.plan.guarantee.epsilon == compose(caps).guarantee(delta=1e-5).epsilon

    rng = np.random.default_rng(2)
    asked, answers, right = [], [], []
    for _ in range(300):
        rows = rng.integers(profile.inputs, size=400)
        drawn = make_mechanism(setting).release(
            Votes(counts=profile.counts[rows]), rng=rng, most_answers=60
        )
        asked.append(drawn.asked)
        answers.append(len(drawn.labels))
        right.append((drawn.labels == profile.truth[rows[drawn.answered]]).mean())
    assert found.answered == pytest.approx(np.mean(answers), rel=0.02)
    assert found.label_accuracy == pytest.approx(np.mean(right), abs=0.01)
    moment = found.plan.guarantee.moment  # of the plan: not the one that suits the answers best
    for moments, same in (([moment], True), (None, False)):
        total = confident_total(profile.counts, **noise, moments=moments)
        shared = type(total)(
            moments=total.moments, values=total.values * np.mean(asked) / profile.inputs
        )
        expected = shared.guarantee(delta=1e-5).epsilon
        assert (found.data_dependent.epsilon == pytest.approx(expected, rel=0.03)) is same
    assert found.data_dependent.moment == moment


@pytest.mark.parametrize("most", [1, 40, 60, 75, 200])
def test_expected_answers_are_those_of_a_capped_binomial(most: int) -> None:
    drawn = np.random.default_rng(0).binomial(200, 0.3, size=200_000)
    asked, answered = expected_answers(0.3, queries=200, most=most)
    assert answered == pytest.approx(np.minimum(drawn, most).mean(), rel=0.005)
    assert asked == pytest.approx(answered / 0.3)


def test_the_sanitised_figure_is_the_rehearsed_one() -> None:
    strong = simulated(teachers=400, accuracy=0.95, classes=4, inputs=200)
    budget = Budget(epsilon=4.0, delta=1e-5)
    setting = spec(mechanism="gnmax", sigma=40.0, queries=200)
    found = forecast(strong, setting, budget=budget, queries=200)
    order = (found.plan.guarantee.moment or 0) + 1
    cost = gnmax_cost(strong.counts, sigma=40.0, order=order)
    expected = expected_release(cost, plan=ReleasePlan.default(order=order), delta=1e-5)
    assert found.sanitised == pytest.approx(expected.mean.epsilon, abs=0.25 * expected.spread)
    fixed = forecast(strong, setting, budget=budget, queries=200, ledger_budget=1.0)
    assert fixed.sanitised != found.sanitised  # a ledger with a budget adds up at another order


@pytest.mark.parametrize(
    ("teachers", "accuracy", "epsilon", "pays"),
    [(2000, 0.99, 20.0, True), (250, 0.8, 4.0, False)],
)
def test_a_sanitised_figure_is_asked_for_only_where_it_pays(
    tmp_path: Path, teachers: int, accuracy: float, epsilon: float, pays: bool
) -> None:
    """Where it lies further below the guarantee than its price raises that; then caps replace ε."""
    planned = plan(
        "mnist-teachers", epsilon=epsilon, accuracy=accuracy, teachers=[teachers],
        mechanisms=["gnmax"],
        set=["privacy.sanitise=true", "privacy.epsilon=20.0"],
    )  # fmt: skip
    best = planned.proposal.best
    own = best.plan.guarantee.epsilon
    assert best.sanitised is not None
    order = (best.plan.guarantee.moment or 0) + 1
    price = ReleasePlan.default(order=order, doubt=0.01).event
    whole = compose([*best.plan.events, price]).guarantee(delta=1e-5).epsilon
    assert best.with_sanitised == whole
    assert best.sanitising_pays is pays is (own - best.sanitised > whole - own)
    words = " ".join(planned.assumptions)
    assert ("A sanitised ε is predicted to pay" in words, "none is asked for" in words) == (
        pays,
        not pays,
    )
    path = tmp_path / "planned.toml"
    write_planned(
        path, planned, source="mnist-teachers", settings=["privacy.sanitise=true"], comment=[]
    )
    written = read_recipe(str(path), [], Recipe)[1]
    assert written.privacy.sanitise is (True if pays else None)
    assert written.privacy.epsilon == (None if pays else epsilon)
    again = written.plan(inputs=9000)
    assert (again.queries, again.answers) == (best.plan.queries, best.plan.answers)
    assert again.guarantee.epsilon <= epsilon


def test_why_there_is_no_sanitised_figure() -> None:
    strong = simulated(teachers=60, accuracy=0.95, classes=4, inputs=100)
    found = forecast(
        strong, spec(mechanism="gnmax", sigma=2.0, queries=1), budget=Budget(epsilon=9, delta=1e-9),
        queries=10,
    )  # fmt: skip
    assert (found.sanitised is None) == (found.why_not_sanitised is not None)


def test_what_labels_are_worth() -> None:
    assert useful_labels(50, 1 / 3, classes=3) == pytest.approx(0)
    assert useful_labels(50, 0.2, classes=3) == 0
    assert useful_labels(50, 0.9, classes=2) == pytest.approx(50 * 0.8**12)
    assert useful_labels(50, 1.0, classes=2, evenness=0.5) == 25
    easy = useful_labels(50, 0.9, classes=10, on_all=0.7)
    assert easy == pytest.approx(useful_labels(50, 0.8, classes=10))
    assert evenness(np.array([0.2, 0.4])) == pytest.approx(0.09 / 0.1)


@pytest.mark.campaign
@pytest.mark.parametrize("conversion", list(Conversion))
def test_every_candidate_is_within_the_budget_and_uses_it(
    profile: Profile, conversion: Conversion
) -> None:
    budget = Budget(epsilon=1.3, delta=1e-4, conversion=conversion)
    found = candidates(profile, budget=budget, queries=QUERIES)
    assert {each.spec.mechanism for each in found} == set(plannable())
    for each in found[:: len(found) // 60]:
        exact = forecast(profile, each.spec, budget=budget, queries=QUERIES)
        least = 0.97 if each.spec.kind.checks else 0.995
        assert 1.3 * least <= exact.plan.guarantee.epsilon <= 1.3
        # The caps stand in full; where checks share the budget, all but one answer in a hundred.
        assert exact.plan.queries == each.spec.queries
        answers = each.spec.answers or each.spec.queries or 0
        assert 0.99 * answers - 1 <= exact.plan.answers <= answers
        assert each.accuracy == pytest.approx(exact.label_accuracy, abs=0.01)
        assert each.answers == pytest.approx(exact.answered, rel=0.01, abs=1)
        assert each.useful == pytest.approx(exact.useful, rel=0.2)


def candidate(answers: float, accuracy: float) -> Candidate:
    setting = spec(mechanism="gnmax", sigma=1.0, queries=1)
    worth = useful_labels(answers, accuracy, classes=10)
    return Candidate(spec=setting, answers=answers, accuracy=accuracy, useful=worth)


def test_wishes() -> None:
    few, middle, many = candidate(20, 0.98), candidate(200, 0.9), candidate(2000, 0.6)
    pool = [few, middle, many]
    assert Wish().best(pool) is middle
    assert Wish(accuracy=0.95).best(pool) is few
    assert Wish(accuracy=0.99).best(pool) is middle  # none: then the most useful
    assert Wish(answers=1000).best(pool) is many
    assert Wish(answers=100).best(pool) is middle
    assert Wish(answers=5000).best(pool) is many
    assert Wish().best([]) is None
    assert Wish(answers=100).met_by(answers=99.5, accuracy=0.1)
    assert not Wish(accuracy=0.9).met_by(answers=10, accuracy=0.89)


class Preference:
    """Stands for a rehearsal: its student likes one setting best, whatever that is worth."""

    def rehearse(self, profile: Profile, setting: AggregateSpec, plan: Plan) -> float:
        return 0.9 if (profile.teachers, setting.mechanism) == (20, "lnmax") else 0.5


@pytest.mark.campaign
def test_a_rehearsal_has_the_last_word() -> None:
    profiles = [
        simulated(teachers=k, accuracy=a, classes=5, inputs=300) for k, a in ((20, 0.9), (200, 0.9))
    ]
    facts = Facts(records=5000, queries=QUERIES, classes=5)
    budget = Budget(epsilon=5.0, delta=1e-5)
    preferred: Any = Preference()
    found = propose(profiles, facts=facts, budget=budget, surrogate=preferred)
    assert (found.best.teachers, found.best.spec.mechanism) == (20, "lnmax")
    assert (found.rehearsed, found.best.student_accuracy) == (True, 0.9)
    assert propose(profiles, facts=facts, budget=budget).best.teachers == 200


@pytest.mark.campaign
def test_a_proposal_takes_the_best_of_its_rows() -> None:
    profiles = [
        simulated(teachers=k, accuracy=a, classes=5, inputs=300)
        for k, a in ((20, 0.93), (200, 0.85), (1000, 0.4))
    ]
    facts = Facts(records=5000, queries=QUERIES, classes=5)
    found = propose(profiles, facts=facts, budget=Budget(epsilon=1.0, delta=1e-5))
    assert [row.teachers for row in found.over_teachers] == [20, 200, 1000]
    assert found.best.teachers == 200
    assert found.best in found.over_mechanisms
    assert found.best.useful == max(row.useful for row in found.over_teachers)
    assert {row.spec.mechanism for row in found.over_mechanisms} == set(plannable())
    assert (found.met, found.rehearsed) == (True, False)
    few = propose(
        profiles, facts=facts, budget=Budget(epsilon=1.0, delta=1e-5), wish=Wish(answers=500),
        mechanisms=("gnmax",),
    )  # fmt: skip
    assert few.best.answered >= 500
    assert few.best.label_accuracy == max(row.label_accuracy for row in few.over_teachers)
