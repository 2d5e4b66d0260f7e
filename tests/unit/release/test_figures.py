"""ε from recorded events: the same as the ledger's own, and a wrong figure is found."""

from __future__ import annotations

import json

import pytest

from pate.accounting import (
    Conversion,
    GaussianNoisyMaxAnswer,
    Guarantee,
    LaplaceNoisyMaxAnswer,
    Ledger,
    Mode,
    ReleasePlan,
    Repeated,
    ThresholdCheck,
    compose,
    event_to_json,
)
from pate.errors import BudgetExceeded
from pate.release.figures import (
    covers,
    differs,
    of_ledger,
    of_plan,
    problems_of,
    terms_told,
    told,
    written,
)

LABELS = [Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 100)]
OTHERS = [Repeated(ThresholdCheck(sigma=30.0), 50), Repeated(GaussianNoisyMaxAnswer(sigma=9.0), 7)]
DELTA = 1e-5


def ledger(path, *, mode=Mode.ODOMETER, epsilon=float("inf"), moment=6.0):
    budget = Guarantee(epsilon=epsilon, delta=DELTA, moment=moment)
    return Ledger.open(path, budget=budget, mode=mode)


@pytest.mark.parametrize(("mode", "epsilon"), [("odometer", float("inf")), ("filter", 40.0)])
def test_the_ledger_is_asked_and_no_second_rule(tmp_path, mode, epsilon):
    with ledger(tmp_path / "ledger", mode=Mode(mode), epsilon=epsilon) as own:
        for number, event in enumerate([*LABELS, *OTHERS]):
            own.charge([event], release=f"release {number}")
            so_far = [each for charge in own.charges() for each in charge.events]
            assert of_ledger(so_far, own.terms) == own.guarantee()


def test_charges_past_a_budget_are_not_covered(tmp_path):
    with ledger(tmp_path / "ledger", mode=Mode.FILTER, epsilon=2.0) as own:
        terms = own.terms
    with pytest.raises(BudgetExceeded):
        of_ledger([Repeated(LaplaceNoisyMaxAnswer(scale=2.0), 100)], terms)


def statement(tmp_path, *, sanitised=True, counted="plan"):
    """What a release would say, made by hand."""
    plan = ReleasePlan.default(order=7.0)
    price = [plan.event] if sanitised else []
    with ledger(tmp_path / f"ledger-{sanitised}") as own:
        own.charge(LABELS, release="labels")
        if sanitised:
            own.charge(price, release="sanitised")
        until = [each for charge in own.charges() for each in charge.events]
        own.charge(OTHERS, release="others")
        everything = [each for charge in own.charges() for each in charge.events]
        terms, whole = own.terms, own.guarantee()
    total = of_plan([*LABELS, *price], delta=DELTA, conversion=Conversion.IMPROVED)
    if counted == "ledger":
        total = of_ledger(until, terms)
    at_order = compose([*LABELS, plan.event], [6.0]).guarantee(delta=DELTA)
    figure = {
        "epsilon": at_order.epsilon * 0.9,
        "delta": DELTA,
        "moment": 6.0,
        "conversion": "improved",
        "confidence": 0.99,
        "price": plan.rdp,
        "event": event_to_json(plan.event),
        "charged": True,
    }
    return {
        "labels": written(LABELS),
        "sanitised": figure if sanitised else None,
        "counted": counted,
        "events": written(until),
        "guarantee": told(total, "add-remove"),
        "data_set": {
            "terms": terms_told(terms),
            "events": written(everything),
            "guarantee": told(whole, "replace-one"),
        },
    }


@pytest.mark.parametrize("sanitised", [True, False])
@pytest.mark.parametrize("counted", ["plan", "ledger"])
def test_what_follows_has_no_problem(tmp_path, sanitised, counted):
    said = statement(tmp_path, sanitised=sanitised, counted=counted)
    assert problems_of(said) == []
    assert problems_of(json.loads(json.dumps(said))) == []


def halved(said, *keys):
    inside = said
    for key in keys[:-1]:
        inside = inside[key]
    inside[keys[-1]] /= 2


@pytest.mark.parametrize(
    "keys",
    [
        ("guarantee", "epsilon"),
        ("guarantee", "delta"),
        ("guarantee", "moment"),
        ("sanitised", "price"),
        ("sanitised", "moment"),
        ("data_set", "guarantee", "epsilon"),
        ("data_set", "guarantee", "moment"),
        ("data_set", "terms", "delta"),
        ("data_set", "terms", "moment"),
    ],
    ids=".".join,
)
@pytest.mark.parametrize("counted", ["plan", "ledger"])
def test_each_figure_is_worked_out_again(tmp_path, keys, counted):
    said = statement(tmp_path, counted=counted)
    halved(said, *keys)
    assert problems_of(said) != []


@pytest.mark.parametrize("share", [0.01, 1.5])
def test_a_sanitised_figure_lies_between_its_price_and_the_caps(tmp_path, share):
    said = statement(tmp_path)
    said["sanitised"]["epsilon"] *= share
    assert any("can lie between" in each for each in problems_of(said))


def test_a_price_that_was_not_charged_for_is_found(tmp_path):
    said = statement(tmp_path)
    said["sanitised"]["charged"] = False
    assert any("its price is" in each for each in problems_of(said))


def test_a_price_left_out_of_epsilon_is_found(tmp_path):
    said = statement(tmp_path)
    bare = of_plan(LABELS, delta=DELTA, conversion=Conversion.IMPROVED)
    said["guarantee"] = told(bare, "add-remove")
    assert any(each.startswith("epsilon is") for each in problems_of(said))


def test_fewer_events_are_found(tmp_path):
    said = statement(tmp_path, counted="ledger")
    said["events"] = said["events"][:1]
    assert "its events are not among those of the ledger" in problems_of(said)
    said = statement(tmp_path)
    said["data_set"]["events"] = written(OTHERS)
    assert "the data set's events do not cover the release" in problems_of(said)


@pytest.mark.parametrize("nonsense", [{}, {"labels": 3}, {"labels": [1]}, [], None])
def test_nonsense_is_a_problem_and_no_traceback(nonsense):
    assert len(problems_of(nonsense)) == 1


def test_covers_counts():
    assert covers([*LABELS, *OTHERS], LABELS)
    assert not covers(LABELS, [Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 101)])
    assert not covers(LABELS, OTHERS)


def test_differs_names_the_first_difference():
    guarantee = Guarantee(epsilon=2.0, delta=DELTA, moment=3.0, conversion=Conversion.IMPROVED)
    assert differs(guarantee.as_json(), guarantee) is None
    assert differs(guarantee.as_json() | {"epsilon": None}, guarantee).startswith("epsilon is None")
    assert differs(guarantee.as_json() | {"conversion": "classic"}, guarantee) is not None
