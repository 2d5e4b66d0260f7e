"""ε from recorded events: the same as the ledger's own, and a wrong figure is found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pate.accounting import (
    Accountant,
    Analysis,
    Conversion,
    GaussianNoisyMaxAnswer,
    Guarantee,
    GumbelNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Ledger,
    Mode,
    Neighbours,
    ReleasePlan,
    Repeated,
    ThresholdCheck,
    compose,
    event_to_json,
)
from pate.accounting.ledger.data_set import Coverage
from pate.accounting.ledger.terms import Terms
from pate.errors import BudgetExceeded, InvalidInput
from pate.mechanisms import LaplaceCounts
from pate.releases.guarantee import (
    covers,
    data_set_relation,
    difference,
    guarantee_of_ledger,
    guarantee_of_plan,
    guarantee_record,
    read_events,
    restated,
    statement_problems,
    write_events,
)

LABELS = [Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 100)]
OTHERS = [Repeated(ThresholdCheck(sigma=30.0), 50), Repeated(GaussianNoisyMaxAnswer(sigma=9.0), 7)]
DELTA = 1e-5


def ledger(path, *, mode=Mode.ODOMETER, epsilon=float("inf"), moment=6.0):
    budget = Guarantee(epsilon=epsilon, delta=DELTA, moment=moment)
    return Ledger.open(path, budget=budget, mode=mode)


@pytest.mark.parametrize(
    ("mode", "epsilon", "plan"),
    [
        (Mode.ODOMETER, float("inf"), None),
        (Mode.FILTER, 40.0, None),
        (Mode.FILTER, 40.0, [*LABELS, *OTHERS]),
    ],
    ids=["odometer", "filter", "plan"],
)
def test_it_is_the_guarantee_of_a_ledger_with_these_charges(tmp_path, mode, epsilon, plan):
    budget = Guarantee(epsilon=epsilon, delta=DELTA, moment=6.0)
    with Ledger.open(tmp_path / "ledger", budget=budget, mode=mode, plan=plan) as own:
        for number, event in enumerate([*LABELS, *OTHERS]):
            own.charge([event], release=f"release {number}")
            so_far = [each for charge in own.charges() for each in charge.events]
            assert guarantee_of_ledger(so_far, own.terms) == own.guarantee()


@pytest.mark.parametrize("plan", [None, [Repeated(LaplaceNoisyMaxAnswer(scale=2.0), 5)]])
def test_charges_past_a_budget_or_a_plan_are_not_covered(tmp_path, plan):
    budget = Guarantee(epsilon=20.0, delta=DELTA, moment=6.0)
    with Ledger.open(tmp_path / "ledger", budget=budget, plan=plan) as own:
        terms = own.terms
    with pytest.raises(BudgetExceeded):
        guarantee_of_ledger([Repeated(LaplaceNoisyMaxAnswer(scale=2.0), 100)], terms)


def test_terms_that_no_ledger_has_are_refused(tmp_path):
    """A filter without a budget would promise nothing, and a stranger may write it."""
    with ledger(tmp_path / "ledger") as own:
        terms = replace(own.terms, mode=Mode.FILTER)
    with pytest.raises(InvalidInput, match="finite epsilon"):
        guarantee_of_ledger(LABELS, terms)
    with pytest.raises(InvalidInput, match="at least one event"):
        guarantee_of_ledger([], own.terms)


def test_an_epsilon_by_an_earlier_grid_is_kept_if_a_finer_one_proves_it():
    answers = [Repeated(GumbelNoisyMaxAnswer(scale=209.0), 191)]
    now = guarantee_of_plan(answers, delta=DELTA)
    fixed = guarantee_of_plan(answers, delta=DELTA, adaptive=False)
    assert now.accountant is Accountant.ADAPTIVE_RANGE
    for epsilon, kept in (
        (now.epsilon, True),
        (now.epsilon * (1 - 5e-5), True),  # as an earlier, finer grid had it
        (now.epsilon * 1.01, True),  # as a coarser one
        (fixed.epsilon, False),
        (now.epsilon * 0.99, False),
        (now.epsilon * 1.1, False),
    ):
        record = now.as_json() | {"epsilon": epsilon}
        computed = restated(record, answers)
        assert (difference(record, computed) is None) == kept, epsilon
        assert computed.epsilon == (pytest.approx(epsilon, rel=1e-9) if kept else now.epsilon)


def statement(tmp_path, *, sanitised=True, counted="plan"):
    """A ``guarantee.json`` made by hand."""
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
    total = guarantee_of_plan([*LABELS, *price], delta=DELTA, conversion=Conversion.IMPROVED)
    if counted == "ledger":
        total = guarantee_of_ledger(until, terms)
    caps = compose([*LABELS, plan.event], [6.0], analysis=Analysis.PUBLISHED)
    at_order = caps.guarantee(delta=DELTA)
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
        "labels": write_events(LABELS),
        "sanitised": figure if sanitised else None,
        "counted": counted,
        "events": write_events(until),
        "guarantee": guarantee_record(total, "add-remove"),
        "data_set": {
            "terms": json.loads(terms.to_json()),
            "events": write_events(everything),
            "guarantee": guarantee_record(whole, "replace-one"),
        },
    }


@pytest.mark.parametrize("sanitised", [True, False])
@pytest.mark.parametrize("counted", ["plan", "ledger"])
def test_what_follows_has_no_problem(tmp_path, sanitised, counted):
    said = statement(tmp_path, sanitised=sanitised, counted=counted)
    assert statement_problems(said) == []
    assert statement_problems(json.loads(json.dumps(said))) == []


@pytest.mark.parametrize("counted", ["plan", "ledger"])
def test_statements_made_before_there_was_another_analysis_hold(tmp_path, counted):
    """They do not name one, and their ε is the larger one of the published bounds."""
    said = statement(tmp_path, counted=counted)
    assert said["guarantee"]["analysis"] == said["data_set"]["guarantee"]["analysis"] == "tight"
    smaller = said["guarantee"]["epsilon"]
    terms = Terms.from_json(json.dumps(said["data_set"]["terms"]))
    paid = [*LABELS, ReleasePlan.default(order=7.0).event]
    given = {"analysis": Analysis.PUBLISHED}
    if counted == "plan":
        total = guarantee_of_plan(paid, delta=DELTA, conversion=Conversion.IMPROVED, **given)
    else:
        total = guarantee_of_ledger(read_events(said["events"]), terms, **given)
    whole = guarantee_of_ledger(read_events(said["data_set"]["events"]), terms, **given)
    said["guarantee"] = guarantee_record(total, "add-remove")
    said["data_set"]["guarantee"] = guarantee_record(whole, "replace-one")
    assert "analysis" not in said["guarantee"]
    assert said["guarantee"]["epsilon"] > smaller
    assert statement_problems(said) == []
    said["guarantee"]["epsilon"] = smaller  # which the published bounds do not give
    assert statement_problems(said) != []


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
def test_each_value_is_computed_again(tmp_path, keys, counted):
    said = statement(tmp_path, counted=counted)
    halved(said, *keys)
    assert statement_problems(said) != []


@pytest.mark.parametrize("share", [0.01, 1.5])
def test_a_sanitised_epsilon_lies_between_its_price_and_the_caps(tmp_path, share):
    said = statement(tmp_path)
    said["sanitised"]["epsilon"] *= share
    assert any("can lie between" in each for each in statement_problems(said))


def test_a_price_that_was_not_charged_for_is_found(tmp_path):
    said = statement(tmp_path)
    said["sanitised"]["charged"] = False
    assert any("its price is" in each for each in statement_problems(said))


def test_a_price_left_out_of_epsilon_is_found(tmp_path):
    said = statement(tmp_path)
    bare = guarantee_of_plan(LABELS, delta=DELTA, conversion=Conversion.IMPROVED)
    said["guarantee"] = guarantee_record(bare, "add-remove")
    assert any(each.startswith("epsilon is") for each in statement_problems(said))


def test_fewer_events_are_found(tmp_path):
    said = statement(tmp_path, counted="ledger")
    said["events"] = said["events"][:1]
    assert "its events are not among those of the ledger" in statement_problems(said)
    said = statement(tmp_path)
    said["data_set"]["events"] = write_events(OTHERS)
    assert "the data set's events do not cover the release" in statement_problems(said)


@pytest.mark.parametrize("nonsense", [{}, {"labels": 3}, {"labels": [1]}, [], None])
def test_nonsense_is_a_problem_and_no_traceback(nonsense):
    assert len(statement_problems(nonsense)) == 1


def test_covers_counts():
    assert covers([*LABELS, *OTHERS], LABELS)
    assert not covers(LABELS, [Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 101)])
    assert not covers(LABELS, OTHERS)


def test_differs_names_the_first_difference():
    guarantee = Guarantee(epsilon=2.0, delta=DELTA, moment=3.0, conversion=Conversion.IMPROVED)
    assert difference(guarantee.as_json(), guarantee) is None
    assert difference(guarantee.as_json() | {"epsilon": None}, guarantee).startswith(
        "epsilon is None"
    )
    assert difference(guarantee.as_json() | {"conversion": "classic"}, guarantee) is not None


def tables(*charged):
    """A ``guarantee.json`` of a data set with record votes: relation and column of each charge."""

    def made(path):
        budget = Guarantee(epsilon=40.0, delta=DELTA, neighbours=Neighbours.REPLACE_ONE)
        with Ledger.open(path, budget=budget) as own:
            for number, (relation, group) in enumerate(charged):
                user = relation is Neighbours.USER_ADD_REMOVE
                own.charge(
                    OTHERS
                    if relation is Neighbours.REPLACE_ONE
                    else LaplaceCounts(scale=1.0).events(per_user=1 if user else None),
                    release=f"{number}",
                    records=relation,
                    group=group,
                )
            charges, whole, covered = own.charges(), own.guarantee(), own.coverage()
            terms = own.terms
        everything = [each for charge in charges for each in charge.events]
        labels = [*charges[0].events]
        total = guarantee_of_plan(labels, delta=0.0)
        noted = {each.records for each in charges}
        found = data_set_relation(everything, terms, records=noted, covers=covered)
        assert found is whole.neighbours
        return {
            "labels": write_events(labels),
            "sanitised": None,
            "counted": "plan",
            "guarantee": guarantee_record(total, charged[0][0].value),
            "data_set": {
                "terms": json.loads(terms.to_json()),
                "events": write_events(everything),
                "covers": covered.value,
                "records": sorted(noted),
                "guarantee": guarantee_record(whole, found.value),
            },
        }

    return made


ONE, USER = Neighbours.ADD_REMOVE, Neighbours.USER_ADD_REMOVE


@pytest.mark.parametrize(
    ("charged", "relation"),
    [
        ([(ONE, None)], "add-remove"),
        ([(USER, "patient")], "user-add-remove"),
        ([(USER, "patient"), (USER, "ward")], "lone-record"),
        ([(USER, "patient"), (ONE, None)], "lone-record"),
        ([(ONE, None), (Neighbours.REPLACE_ONE, None)], "as-stated"),
    ],
)
def test_a_data_set_with_record_votes_states_their_relation(tmp_path, charged, relation):
    made = tables(*charged)(tmp_path / "ledger")
    assert made["data_set"]["guarantee"]["neighbours"] == relation
    assert statement_problems(made) == []
    wrong = json.loads(json.dumps(made))
    wrong["data_set"]["guarantee"]["neighbours"] = "replace-one"  # a replaced record costs twice
    assert statement_problems(wrong) == [f"data_set: it is not for {relation}"]
    wrong = json.loads(json.dumps(made))
    del wrong["data_set"]["records"]
    assert "stated for other data sets" in statement_problems(wrong)[0]


def test_relations_are_not_asked_of_a_data_set_without_record_votes(tmp_path):
    with ledger(tmp_path / "ledger") as own:
        relation = data_set_relation(LABELS, own.terms, records=(), covers=Coverage.RECORD)
        assert relation is own.guarantee().neighbours is Neighbours.AS_STATED
        own.charge(LaplaceCounts(scale=1.0).events(), release="table", records=ONE)
        events = [each for charge in own.charges() for each in charge.events]
        relation = data_set_relation(events, own.terms, records=(), covers=Coverage.RECORD)
        assert relation is own.guarantee().neighbours is ONE
