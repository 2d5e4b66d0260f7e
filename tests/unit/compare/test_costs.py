"""What a comparison costs: plans, room in budgets, and what was added later."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pate.accounting import Guarantee, Ledger, Neighbours, compose
from pate.accounting.calibrate import gnmax
from pate.accounting.events import Repeated
from pate.compare.answers import Answers
from pate.compare.costs import Cost, Ledgers, planned_cost, told
from pate.compare.planned import Noted, note_plan
from pate.compare.points import make_points
from pate.compare.recipe import CompareRecipe
from pate.errors import BudgetExceeded, SpendNeeded
from pate.pipeline.recipe import EvaluateSpec


@pytest.fixture
def recipe():
    return CompareRecipe.model_validate(
        {
            "kind": "compare",
            "data": {"name": "digits"},
            "compare": {"epsilons": [1, 2], "seeds": 2, "delta": 1e-4},
            "pate": {
                "teachers": {"count": 20, "model": "ridge"},
                "aggregate": {"mechanism": "gnmax", "queries": 50},
                "student": {"model": "ridge"},
            },
            "dpsgd": {"training": {"steps": 10, "learning_rate": 0.1}},
        }
    )


@pytest.fixture
def points(recipe):
    return make_points(recipe, public=100, private=1000)


@pytest.fixture
def ledgers(points, tmp_path):
    return Ledgers.of(points[0], data_root=tmp_path, seed=None, study="compare mine")


def noted(points, *, grown=False):
    return Noted(
        pate=tuple(event for point in points for event in point.pate_plan.events),
        dpsgd=tuple(event for point in points for event in point.dpsgd_plan.events),
        grown=grown,
    )


def figure(epsilon, neighbours, delta=1e-5):
    return Guarantee(epsilon=epsilon, delta=delta, neighbours=neighbours)


def test_both_together_add_up():
    pate, dpsgd = (figure(each, Neighbours.ADD_REMOVE) for each in (1.5, 2.0))
    both = Cost(pate=pate, dpsgd=dpsgd, releases=1).together
    assert both is not None
    assert (both.epsilon, both.delta) == (3.5, 2e-5)
    assert both.neighbours is Neighbours.ADD_REMOVE


def test_figures_for_other_neighbours_are_restated_first():
    pate = figure(1.5, Neighbours.REPLACE_ONE)
    both = Cost(pate=pate, dpsgd=figure(2.0, Neighbours.ADD_REMOVE), releases=1).together
    assert both is not None
    assert both.epsilon == pytest.approx(1.5 + 2 * 2.0)
    assert both.delta == pytest.approx(1e-5 + (1 + math.exp(2.0)) * 1e-5)
    assert both.neighbours is Neighbours.REPLACE_ONE
    lost = Cost(pate=pate, dpsgd=figure(20.0, Neighbours.ADD_REMOVE), releases=1)
    assert lost.together is None  # δ comes to more than one
    assert "more than any ε promises" in told(lost.together)


def test_all_that_is_planned_costs_more_than_one_and_less_than_the_sum(points):
    cost = planned_cost(points)
    assert cost.releases == 4
    for whole in (cost.pate, cost.dpsgd):
        assert 2 < whole.epsilon < 6
        assert whole.neighbours is Neighbours.ADD_REMOVE


def test_room_is_asked_of_both_ledgers_and_nothing_is_written(points, ledgers):
    ledgers.require_room(pate=points, dpsgd=points)
    assert not ledgers.pate.exists()
    for path, method in ((ledgers.pate, "PATE"), (ledgers.dpsgd, "DP-SGD")):
        path.parent.mkdir(exist_ok=True)
        with Ledger.open(path, budget=Guarantee(epsilon=2.5, delta=1e-4)):
            pass
        with pytest.raises(BudgetExceeded, match=f"what {method} is to release here"):
            ledgers.require_room(pate=points, dpsgd=points)
        ledgers.require_room(pate=points[:1], dpsgd=points[:1])  # what is left fits
        path.unlink()


def test_ledgers_are_made_without_a_budget_and_say_so(points, ledgers):
    cost = planned_cost(points)
    assert ledgers.make(cost) == (
        "digits.ledger: without a budget",
        "digits.dpsgd.ledger: without a budget",
    )
    with Ledger.open(ledgers.pate) as ledger:
        assert ledger.terms.budget.moment == cost.pate.moment
    assert not ledgers.charged()


def test_what_was_paid_is_what_the_study_charged(points, ledgers):
    cost = planned_cost(points)
    ledgers.make(cost)
    with Ledger.open(ledgers.pate) as ledger:
        for number in range(8):  # twice what is planned: answers that were lost, and paid again
            plan = points[number % 4].pate_plan
            ledger.charge(plan.events, release=f"r{number}", study="compare mine")
        ledger.charge([Repeated(gnmax(5.0), 9)], release="other")  # of no study: not of this table
    assert ledgers.charged()
    spent = ledgers.spent(cost, noted(points))
    twice = planned_cost([*points, *points])
    assert spent.pate.epsilon == pytest.approx(twice.pate.epsilon)
    assert spent.dpsgd.epsilon == cost.dpsgd.epsilon  # never less than what is planned
    with Ledger.open(ledgers.pate) as ledger:
        reading = ledger.guarantee().epsilon
    assert ledgers.spent(cost, noted(points, grown=True)).pate.epsilon == pytest.approx(reading)
    assert reading > spent.pate.epsilon


@pytest.mark.parametrize("grown", [False, True])
def test_what_was_paid_and_what_was_planned_are_compared_at_one_delta(points, ledgers, grown):
    """At its own, smaller δ a plan has the larger ε, and is still not what was paid."""
    cost = planned_cost(points)
    budget = Guarantee(epsilon=50.0, delta=1e-2)
    ledgers.pate.parent.mkdir()
    for path in (ledgers.pate, ledgers.dpsgd):
        with Ledger.open(path, budget=budget) as ledger:
            reading = ledger.guarantee()
    with Ledger.open(ledgers.pate) as ledger:
        for number in range(5):  # one more than is planned
            plan = points[number % 4].pate_plan
            ledger.charge(plan.events, release=f"r{number}", study="compare mine")
        events = [event for charge in ledger.charges() for event in charge.events]
    spent = ledgers.spent(cost, noted(points, grown=grown))
    for whole in (spent.pate, spent.dpsgd):
        assert whole.delta == 1e-2
        assert whole.neighbours is Neighbours.ADD_REMOVE
    if grown:
        assert spent.pate.epsilon == spent.dpsgd.epsilon == reading.epsilon
        return
    paid = compose(events).guarantee(delta=1e-2).epsilon
    assert spent.pate.epsilon == pytest.approx(paid)
    assert paid < cost.pate.epsilon  # at the δ of the recipe
    planned = compose(noted(points).dpsgd).guarantee(delta=1e-2).epsilon
    assert spent.dpsgd.epsilon == pytest.approx(planned)


def test_points_that_come_after_charges_are_noticed(points, tmp_path):
    def note(some, *, charged):
        return note_plan(tmp_path, some, charged=charged).grown

    assert note(points[:2], charged=False) is False
    assert note(points[:2], charged=True) is False  # the same again: a run that was killed
    assert note(points[:1], charged=True) is False
    tested = points[0].pate.model_copy(update={"evaluate": EvaluateSpec(reference=True)})
    assert note([replace(points[0], pate=tested)], charged=True) is False  # nothing more is drawn
    assert note(points, charged=True) is True
    assert note(points[:1], charged=True) is True  # what was seen stays seen


def test_all_that_was_planned_counts_once_something_was_charged(points, tmp_path):
    note_plan(tmp_path, points, charged=False)
    assert note_plan(tmp_path, points[:3], charged=False) == noted(points[:3])  # nothing was seen
    assert note_plan(tmp_path, points[:1], charged=True) == noted(points[:3])


def test_what_charges_tell_stays_known(points, tmp_path):
    assert note_plan(tmp_path, points, charged=False, grown=True).grown is True
    assert note_plan(tmp_path, points, charged=True).grown is True


def test_a_plan_that_is_lost_counts_as_added(points, tmp_path):
    assert note_plan(tmp_path / "a", points, charged=True).grown is True
    note_plan(tmp_path / "b", points, charged=False)
    (tmp_path / "b" / "private" / "planned.json").write_text("{")
    assert note_plan(tmp_path / "b", points, charged=True).grown is True


def test_charges_for_what_is_not_here_and_charges_of_others_are_noticed(points, tmp_path):
    path = tmp_path / "it.ledger"

    def answers(*here, own=()):
        names = frozenset(here)
        return Answers(ledger=path, study="compare mine", here=names, own=frozenset(own))

    assert answers().came_before() is False  # there is no ledger yet
    plans = [point.dpsgd_plan.events for point in points]
    answers().require_consent(plans)
    answers().claim()
    assert plans[0] != plans[1]
    with Ledger.open(path, budget=Guarantee(epsilon=50.0, delta=1e-4)) as ledger:
        ledger.charge(plans[0], release="one", study="compare mine")
        ledger.charge(plans[1], release="two")
        ledger.charge(plans[1], release="three", study="other")
    assert answers("one", own=["one"]).came_before() is False
    assert answers("one", "two", own=["one", "two"]).came_before() is True  # charged by itself
    assert answers("one", "three", own=["three"]).came_before() is True  # for another study
    assert answers("two").came_before() is True  # of “one” the answer is lost, or elsewhere
    answers("one").require_consent(plans)
    answers().require_consent(plans[1:2])  # not paid for in this study
    with pytest.raises(SpendNeeded, match="already paid for such a model"):
        answers().require_consent(plans[:1])
    answers(own=["one", "two", "three", "four"]).claim()
    with Ledger.open(path) as ledger:
        marks = [each.study for each in ledger.charges()]
    assert marks == ["compare mine", "compare mine", "other"]
