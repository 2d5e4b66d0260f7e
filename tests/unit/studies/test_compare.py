"""What a comparison costs: plans in both ledgers, room in budgets, and what was added later."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from oracles import gnmax

from dpsgd.runs import CHECKPOINT, STAGE, name_of_run, private_folder
from pate._format import describe_neighbours
from pate.accounting import (
    ForAddRemove,
    Gaussian,
    Guarantee,
    Ledger,
    Neighbours,
    PureDP,
    SampledGaussian,
    compose,
)
from pate.accounting.events import Repeated, tally
from pate.artifacts.manifest import MANIFEST
from pate.errors import BudgetExceeded, InvalidInput, LedgerError, SpendNeeded
from pate.studies import compare
from pate.studies.compare import (
    is_paid_model,
    require_charged_models,
    require_no_lost_model,
    require_own_models,
)
from pate.studies.compare.recipe import CompareRecipe, make_points
from pate.studies.study import TwoLedgers, budget_in_words
from pate.studies.tables import cost_in_words

STUDY = "compare mine"
HASHED, SHUFFLED = "one record added or removed", "one record replaced"


def made_recipe(partition, **training):
    return CompareRecipe.model_validate(
        {
            "kind": "compare",
            "data": {"name": "digits"},
            "compare": {"epsilons": [1, 2], "seeds": 2, "delta": 1e-4},
            "pate": {
                "partition": {"method": partition},
                "teachers": {"count": 20, "model": "ridge"},
                "aggregate": {"mechanism": "gnmax", "queries": 50},
                "student": {"model": "ridge"},
            },
            "dpsgd": {"training": {"steps": 10, "learning_rate": 0.1} | training},
        }
    )


@pytest.fixture
def points():
    return make_points(made_recipe("hash"), public=100, private=1000)


@pytest.fixture
def shuffled():
    return make_points(made_recipe("shuffle"), public=100, private=1000)


@pytest.fixture
def ledgers(points, tmp_path):
    return ledgers_of(points, tmp_path)


def ledgers_of(points, data_root):
    """Both ledgers, for a study that plans these points."""
    return TwoLedgers(
        tag=STUDY,
        pate=data_root / "ledgers" / "digits.ledger",
        dpsgd=data_root / "ledgers" / "digits.dpsgd.ledger",
        delta=1e-4,
        relation=points[0].labels[0].recipe.partition.neighbours,
        votes=votes_of(points),
        steps=steps_of(points),
    )


def votes_of(points):
    return [each.plan.events for point in points for each in point.labels]


def steps_of(points):
    return [each.plan.events for point in points for each in point.models]


@contextmanager
def opened(ledgers, points=None, *, planned=True):
    """Both ledgers, in which these points (or all) are planned."""
    if points is not None:
        ledgers = ledgers_of(points, ledgers.pate.parents[1])
    with ledgers.opened() as (pate, dpsgd):
        if planned:
            ledgers.plan(pate, dpsgd, protects=HASHED)
        yield pate, dpsgd


def pay(ledger, points, *, study=STUDY, first=0):
    """Charges what these points cost in PATE's ledger, or in DP-SGD's."""
    ours = ledger.path.name == "digits.ledger"
    for number, point in enumerate(points, first):
        (made,) = point.labels if ours else point.models
        ledger.charge(made.plan.events, release=f"r{number}", study=study)


def planned_events(points):
    return [[event for each in plans for event in each]
            for plans in (votes_of(points), steps_of(points))]  # fmt: skip


def cost_of(ledgers, points=None, *, unpaid=(), untrained=()):
    """What the ledgers say of the study, opened anew; of these points, or of all."""
    if points is not None:
        ledgers = ledgers_of(points, ledgers.pate.parents[1])
    with Ledger.open(ledgers.pate) as pate, Ledger.open(ledgers.dpsgd) as dpsgd:
        return ledgers.cost(pate, dpsgd, unpaid=votes_of(unpaid), untrained=steps_of(untrained))


def readings(ledgers):
    """What both ledgers publish of all their releases."""
    with Ledger.open(ledgers.pate) as pate, Ledger.open(ledgers.dpsgd) as dpsgd:
        return [pate.guarantee().epsilon, dpsgd.guarantee().epsilon]


def parts(cost):
    return [each.guarantee.epsilon for each in cost.parts]


# --- what both cost -------------------------------------------------------------------------------


def test_all_that_is_planned_costs_more_than_one_and_less_than_the_sum(points, ledgers):
    with opened(ledgers, points) as (pate, dpsgd):
        cost = ledgers.cost(pate, dpsgd, unpaid=votes_of(points), untrained=steps_of(points))
        assert cost == ledgers.cost(pate, dpsgd)  # all of it is in the plans
    assert cost.in_advance
    for each, events in zip(cost.parts, planned_events(points), strict=True):
        assert (each.releases, each.unpaid) == (0, 4)
        assert 2 < each.guarantee.epsilon < 6
        assert each.guarantee.epsilon == compose(events).guarantee(delta=1e-4).epsilon
    relations = [each.guarantee.neighbours for each in cost.parts]
    assert relations == [Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT]


@pytest.mark.parametrize("records", [None, 1200])
@pytest.mark.sample(1)
def test_both_together_add_up(ledgers, records):
    """What a hashed partition promises for add/remove it promises for zero-out, too."""
    recipe = made_recipe("hash", records=records)
    points = make_points(recipe, public=100, private=1000)
    with opened(ledgers, points):
        pass
    cost = cost_of(ledgers, points)
    assert cost.together.epsilon == pytest.approx(sum(parts(cost)))
    assert cost.together.delta == 2e-4
    expected = Neighbours.ZERO_OUT if records is None else Neighbours.ADD_REMOVE
    assert cost.together.neighbours is expected


def test_a_study_planned_before_zero_out_had_a_name_resumes(points, ledgers):
    """Its plan claims add/remove for steps whose rate followed from the number of records."""
    old = "one record added or removed"
    with opened(ledgers, points, planned=False) as (pate, dpsgd):
        plans = [list(events) for events in steps_of(points)]
        dpsgd._studies.plan(STUDY, plans, protects=old, begun=False)
        assert dpsgd.study_plans()[STUDY].protects == describe_neighbours("zero-out")
        ledgers.plan(pate, dpsgd, protects=old)
        dpsgd.charge(plans[0], release="a", study=STUDY)
        ledgers.plan(pate, dpsgd, protects=old)
    assert cost_of(ledgers, points).in_advance


@pytest.mark.campaign
def test_costs_for_other_neighbours_are_restated_first(shuffled, ledgers):
    with opened(ledgers, shuffled):
        pass
    cost = cost_of(ledgers, shuffled)
    pate, dpsgd = parts(cost)
    assert cost.here.guarantee.neighbours is Neighbours.REPLACE_ONE
    assert cost.together.epsilon == pytest.approx(pate + 2 * dpsgd)
    assert cost.together.delta == pytest.approx(1e-4 + (1 + math.exp(dpsgd)) * 1e-4)
    assert cost.together.neighbours is Neighbours.REPLACE_ONE


@pytest.mark.campaign
def test_a_restated_cost_may_guarantee_nothing(shuffled, ledgers):
    with opened(ledgers, shuffled * 80):
        pass
    cost = cost_of(ledgers, shuffled)
    assert (1 + math.exp(parts(cost)[1])) * 1e-4 > 1  # δ comes to more than one
    assert cost.together is None
    assert "no guarantee" in cost_in_words(cost.together)


# --- budgets --------------------------------------------------------------------------------------


def test_room_is_asked_of_both_ledgers_and_nothing_is_written(points, ledgers):
    ledgers.require_room(votes_of(points), steps_of(points))
    assert not ledgers.pate.exists()
    for path, method in ((ledgers.pate, "PATE"), (ledgers.dpsgd, "DP-SGD")):
        path.parent.mkdir(exist_ok=True)
        with Ledger.open(path, budget=Guarantee(epsilon=2.7, delta=1e-4)):
            pass
        with pytest.raises(BudgetExceeded, match=f"what {method} is to release here"):
            ledgers.require_room(votes_of(points), steps_of(points))
        first = points[:1]
        labels = method == "PATE"
        ledgers.require_room(  # what is left fits
            votes_of(first) if labels else [], [] if labels else steps_of(first)
        )
        path.unlink()


@pytest.mark.parametrize("first", ["pate", "dpsgd"])
@pytest.mark.sample(1)
def test_room_is_asked_for_both_methods_where_one_ledger_is_still_to_be_made(ledgers, first):
    """The budget is the data set's: it binds the ledger that the comparison makes."""
    table = [ForAddRemove(PureDP(epsilon=2.0))]
    steps = [Repeated(SampledGaussian(sample_rate=0.05, noise_multiplier=1.5), 200)]
    ledgers = replace(ledgers, votes=[table], steps=[steps])
    path = getattr(ledgers, first)
    path.parent.mkdir()
    own = Neighbours.REPLACE_ONE if first == "pate" else Neighbours.ADD_REMOVE
    budget = Guarantee(epsilon=4.0, delta=1e-4, neighbours=own)
    with Ledger.open(path, budget=budget):
        pass
    for votes, trained in (([table], []), ([], [steps])):
        ledgers.require_room(votes, trained)
    with pytest.raises(BudgetExceeded, match="what both methods are to release here") as refused:
        ledgers.require_room([table], [steps])
    assert str(path) in str(refused.value)
    assert [each.name for each in path.parent.glob("*.ledger")] == [path.name]
    with ledgers.opened() as (pate, dpsgd):  # … and so it would have ended
        pate.charge(table, release="a", records=Neighbours.ADD_REMOVE)
        with pytest.raises(BudgetExceeded) as late:
            dpsgd.charge(steps, release="a")
    assert late.value.needed == pytest.approx(refused.value.needed)


@pytest.mark.campaign
def test_ledgers_are_created_without_a_budget(points, ledgers):
    with opened(ledgers, points, planned=False) as both:
        assert [budget_in_words(each) for each in both] == [
            f"{path.absolute()}: without a budget" for path in (ledgers.pate, ledgers.dpsgd)
        ]
        for each, events in zip(both, planned_events(points), strict=True):
            best = compose(events).guarantee(delta=1e-4)
            assert each.terms.budget.moment == best.moment
            assert each.charges() == []
            assert each.study_plans() == {}
    with Ledger.open(
        ledgers.pate.with_name("other"), budget=Guarantee(epsilon=3, delta=1e-4)
    ) as it:
        assert budget_in_words(it).endswith("/other: within the budget of ε = 3")


def test_costs_are_at_the_delta_of_the_ledger(points, ledgers):
    """At its own, smaller δ a plan has the larger ε, and is still not what was paid."""
    ledgers.pate.parent.mkdir()
    for path in (ledgers.pate, ledgers.dpsgd):
        with Ledger.open(path, budget=Guarantee(epsilon=50.0, delta=1e-2)):
            pass
    with opened(ledgers, points) as (pate, _):
        pay(pate, points)
    for each, events in zip(cost_of(ledgers, points).parts, planned_events(points), strict=True):
        assert each.guarantee.delta == 1e-2
        assert each.guarantee.epsilon == compose(events).guarantee(delta=1e-2).epsilon
        assert each.guarantee.epsilon < compose(events).guarantee(delta=1e-4).epsilon
        assert each.guarantee.neighbours is not Neighbours.REPLACE_ONE
    with Ledger.open(ledgers.pate) as pate:
        pay(pate, points[:1], first=4)  # one more than is planned
    later = cost_of(ledgers, points)
    assert not later.in_advance
    assert later.here.guarantee.epsilon == 50.0  # the budget, which is all that then holds
    assert later.here.guarantee.delta == 1e-2
    assert later.other is None  # of DP-SGD nothing was released


# --- what was planned -----------------------------------------------------------------------------


def test_what_was_planned_is_what_the_study_costs(points, ledgers):
    with opened(ledgers, points) as (pate, dpsgd):
        pate.charge([Repeated(gnmax(5.0), 9)], release="other")  # of no study: not of this table
        planned = ledgers.cost(pate, dpsgd)
        for count in (1, 4):  # it is never less than what is planned
            pay(pate, points[:count])
            pay(dpsgd, points[:count])
            assert parts(ledgers.cost(pate, dpsgd)) == parts(planned)
    cost = cost_of(ledgers, points)
    assert cost.in_advance
    assert [each.releases for each in cost.parts] == [4, 4]
    assert [each.unpaid for each in cost.parts] == [0, 0]


@pytest.mark.parametrize("which", [0, 1])
def test_what_one_ledger_paid_beyond_the_plan_counts_in_both(points, ledgers, which):
    """Answers that were lost, and paid again: their results may have led to anything."""
    with opened(ledgers, points) as both:
        for each in both:
            pay(each, points)
        planned = parts(ledgers.cost(*both))
        more = (votes_of, steps_of)[which](points[:1])
        announced = ledgers.cost(*both, **{("unpaid", "untrained")[which]: more})
        pay(both[which], points[:1], first=4)
    cost = cost_of(ledgers, points)
    assert not announced.in_advance
    assert not cost.in_advance
    assert parts(cost) == parts(announced) == readings(ledgers)
    rounding = 1 - 1e-14  # of a sum of charges, where a plan is one product
    assert all(now >= before * rounding for now, before in zip(parts(cost), planned, strict=True))
    assert parts(cost)[which] > planned[which]
    assert cost.together.epsilon == pytest.approx(sum(readings(ledgers)))


def plans_in(ledgers):
    """How many releases are planned in either ledger."""
    with Ledger.open(ledgers.pate) as pate, Ledger.open(ledgers.dpsgd) as dpsgd:
        return [len(each.study_plans()[STUDY].releases) for each in (pate, dpsgd)]


def test_a_plan_may_change_while_nothing_was_charged(points, ledgers):
    for count in (4, 3, 4, 2):
        with opened(ledgers, points[:count]):
            assert plans_in(ledgers) == [count, count]


@pytest.mark.parametrize("which", [0, 1])
def test_both_plans_stay_once_either_ledger_was_charged(points, ledgers, which):
    with opened(ledgers, points[:2]) as both:
        pay(both[which], points[:1])
    for again in (points[:2], points[:1]):  # a run that was killed; fewer points than planned
        with opened(ledgers, again):
            cost = cost_of(ledgers, again)
        assert cost.in_advance
        assert plans_in(ledgers) == [2, 2]
    with opened(ledgers, points):
        assert plans_in(ledgers) == [2, 2]
        cost = cost_of(ledgers, points, unpaid=points[2:], untrained=points[2:])
    assert not cost.in_advance  # what comes now was not planned


def test_a_plan_that_is_lost_counts_as_added(points, ledgers):
    with opened(ledgers, points) as both:
        for each in both:
            pay(each, points)
    with closing(sqlite3.connect(ledgers.dpsgd)) as database, database:
        database.execute("DELETE FROM plans")
    with opened(ledgers, points) as (pate, dpsgd):  # it is not made up afterwards
        assert dpsgd.study_plans() == {}
        assert len(pate.study_plans()) == 1
    cost = cost_of(ledgers, points)
    assert not cost.in_advance
    assert parts(cost) == readings(ledgers)


def test_a_study_protects_one_relation(points, ledgers):
    with opened(ledgers, points) as (pate, dpsgd):
        pay(pate, points[:1])
        with pytest.raises(InvalidInput, match="such costs do not add up; choose another --out"):
            ledgers.plan(pate, dpsgd, protects=SHUFFLED)


# --- models ---------------------------------------------------------------------------------------


@pytest.fixture
def charged(points, tmp_path):
    """A ledger of three models: of this study, of none, and of another one."""
    path = tmp_path / "it.ledger"
    plans = steps_of(points)
    assert tally(plans[0]) != tally(plans[1])
    with Ledger.open(path, budget=Guarantee(epsilon=50.0, delta=1e-4)) as ledger:
        ledger.charge(plans[0], release="one", study=STUDY)
        ledger.charge(plans[1], release="two")
        ledger.charge(plans[1], release="three", study="other")
    return path


def test_a_model_that_is_paid_for_and_not_here_needs_consent(points, charged, tmp_path):
    plans = steps_of(points)

    def check(plans, ledger=charged, here=()):
        require_no_lost_model(plans, ledger, here=frozenset(here), tag=STUDY)

    check(plans, ledger=tmp_path / "none.ledger")  # there is no ledger yet
    check(plans, here=["one"])
    check(plans[1:2])  # not paid for in this study
    with pytest.raises(SpendNeeded, match=f"already paid for such a model of the study “{STUDY}”"):
        check(plans[:1])


def home_of(folder, *names, monkeypatch, released=True):
    """A folder with a model in it, charged under these names."""
    made = folder / "released" / STAGE / "abc"
    made.mkdir(parents=True)
    if released:
        (made / MANIFEST).write_text("{}")
    monkeypatch.setattr(compare, "models_in", lambda homes: frozenset(names))
    return folder


@pytest.mark.parametrize(
    ("names", "released", "printed"),
    [
        (("one",), True, None),
        (("one", "two"), True, None),
        (("five",), True, None),  # seeded
        (("four",), False, None),  # begun, and not paid for yet
        (("one", "four"), True, "lacks the charge of the model"),
        ((), True, "without its checkpoint"),
    ],
)
def test_a_released_model_must_be_in_a_ledger(
    charged, tmp_path, monkeypatch, names, released, printed
):
    seeded, nowhere = tmp_path / "it.not-private.ledger", tmp_path / "none.ledger"
    with Ledger.open(seeded, budget=Guarantee(epsilon=50.0, delta=1e-4)) as ledger:
        ledger.charge([Gaussian(noise_multiplier=9.0)], release="five")
    home = home_of(tmp_path / "home", *names, monkeypatch=monkeypatch, released=released)
    if printed is None:
        require_charged_models([home], charged, seeded=seeded)
    else:
        with pytest.raises(LedgerError, match=f"{printed}.* from a backup"):
            require_charged_models([home], charged, seeded=seeded)
    if released:
        with pytest.raises(LedgerError):
            require_charged_models([home], nowhere, seeded=nowhere)
    assert not nowhere.exists()


@pytest.mark.parametrize(("name", "paid"), [("one", True), ("four", False)])
def test_a_model_that_was_begun_is_paid_for_if_the_ledger_holds_its_charge(
    points, charged, tmp_path, monkeypatch, name, paid
):
    """A checkpoint is written just before the charge: a kill in between leaves it unpaid."""

    def is_paid(home):
        return is_paid_model(
            points[0].models[0].recipe, home, ledger=charged, data_root=tmp_path, seed=None
        )

    monkeypatch.setattr("dpsgd.checkpoint.releases", lambda file: {name})
    home = tmp_path / "home"
    assert not is_paid(home)  # nothing is there
    begun = private_folder(home, name_of_run(points[0].models[0].recipe, None)) / CHECKPOINT
    begun.parent.mkdir(parents=True)
    begun.touch()
    assert is_paid(home) is paid


@pytest.mark.parametrize(
    ("names", "own"),
    [(("one",), True), (("four",), True), (("two",), False), (("one", "three"), False)],
    ids=["of the study", "not charged yet", "of no study", "of another study"],
)
def test_a_study_uses_no_model_but_its_own(charged, tmp_path, monkeypatch, names, own):
    monkeypatch.setattr(compare, "models_in", lambda homes: frozenset(names))
    with Ledger.open(charged) as ledger:
        before = ledger.charges()
        if own:
            require_own_models([tmp_path], ledger, tag=STUDY)
        else:
            with pytest.raises(InvalidInput, match=r"not released for the study.*another --out"):
                require_own_models([tmp_path], ledger, tag=STUDY)
        assert ledger.charges() == before  # nothing is claimed after the fact


def test_a_charge_that_is_older_than_the_plan_was_not_planned(points, ledgers):
    """As in ledgers whose older versions added a study's tag to charges made by themselves."""
    with opened(ledgers, points, planned=False) as (_, dpsgd):
        pay(dpsgd, points[:1], study=None)
    with opened(ledgers, points) as (pate, dpsgd):
        pay(dpsgd, points[:1])  # the same release: it gets the tag
        cost = ledgers.cost(pate, dpsgd, unpaid=votes_of(points), untrained=steps_of(points[1:]))
    assert not cost.in_advance
