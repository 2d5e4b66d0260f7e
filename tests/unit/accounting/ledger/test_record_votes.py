"""Record votes in a ledger of votes: they state their own relation, and totals keep it apart."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from pate.accounting import (
    Conversion,
    ForAddRemove,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Guarantee,
    Ledger,
    Mode,
    Neighbours,
    PureDP,
    Repeated,
    SampledGaussian,
    event_from_json,
    event_to_json,
)
from pate.accounting.composition import pure_guarantee, rounded_up
from pate.accounting.events import relation_of
from pate.errors import BudgetExceeded, InvalidInput

TABLE = ForAddRemove(PureDP(epsilon=0.5))
BY_USER = ForAddRemove(PureDP(epsilon=0.5), per_user=True)
ANSWERS = Repeated(GaussianNoisyMaxAnswer(sigma=40.0), 100)
ADD, REPLACE = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE
USER = Neighbours.USER_ADD_REMOVE


@pytest.fixture
def ledger(tmp_path):
    """As a run opens it: of votes, without a budget."""
    budget = Guarantee(
        epsilon=math.inf, delta=1e-5, neighbours=REPLACE, conversion=Conversion.IMPROVED
    )
    with Ledger.open(tmp_path / "d.ledger", budget=budget, mode=Mode.ODOMETER) as opened:
        yield opened


def test_its_relation_is_part_of_the_event():
    assert relation_of([TABLE]) is ADD
    assert relation_of([BY_USER]) is USER
    step = SampledGaussian(sample_rate=0.1, noise_multiplier=1.0)
    assert relation_of([TABLE, step]) is Neighbours.ZERO_OUT
    with pytest.raises(InvalidInput, match="do not add up"):
        relation_of([TABLE, ANSWERS])
    for event in (TABLE, BY_USER):
        assert event_from_json(event_to_json(event)) == event
    assert event_to_json(TABLE) == (
        '{"event": "ForAddRemove", "of": {"epsilon": 0.5, "event": "PureDP"}}'
    )
    for inner in (GaussianNoisyMaxAnswer(sigma=2.0), TABLE):
        with pytest.raises(InvalidInput, match="leave the relation open"):
            ForAddRemove(inner)


def test_a_ledger_of_votes_takes_it_with_its_relation_only(ledger):
    for records in (None, REPLACE, USER):
        with pytest.raises(InvalidInput, match="holds for add-remove neighbours"):
            ledger.charge([TABLE], release="table", records=records)
    assert not ledger.releases()
    ledger.charge([TABLE], release="table", records=ADD)
    assert ledger.guarantee().neighbours is ADD
    assert ledger.data_set_total().neighbours is ADD


def test_beside_hashed_teachers_all_of_it_is_for_one_record_more_or_less(ledger):
    ledger.charge([ANSWERS], release="labels", records=ADD)
    assert ledger.guarantee().neighbours is REPLACE  # one teacher
    ledger.charge([TABLE], release="table", records=ADD)
    assert ledger.guarantee().neighbours is ADD
    total = ledger.data_set_total()
    assert total.neighbours is ADD
    assert not total.restated


def test_beside_shuffled_teachers_it_is_restated_for_a_replaced_record(ledger):
    ledger.charge([TABLE], release="table", records=ADD)
    alone = ledger.data_set_total().epsilon
    ledger.charge([ANSWERS], release="labels", records=REPLACE)
    assert ledger.guarantee().neighbours is Neighbours.AS_STATED
    total = ledger.data_set_total()
    assert total.neighbours is REPLACE
    assert total.restated
    assert total.epsilon > 2 * alone


def test_users_of_one_column_are_users_and_beside_records_are_not(ledger):
    ledger.charge([BY_USER], release="table", records=USER, group="patient")
    assert ledger.guarantee().neighbours is USER
    assert ledger.data_set_total().neighbours is USER
    ledger.charge([ANSWERS], release="labels", records=ADD, group="patient")
    assert ledger.data_set_total().neighbours is USER
    ledger.charge([TABLE], release="records", records=ADD)
    assert ledger.data_set_total().neighbours is Neighbours.LONE_RECORD


def test_a_ledger_is_read_again_as_it_was(ledger, tmp_path):
    ledger.charge([ANSWERS], release="labels", records=ADD)
    ledger.charge([TABLE], release="table", records=ADD)
    whole = ledger.guarantee()
    with Ledger.open(tmp_path / "d.ledger") as again:
        assert again.guarantee() == whole
        again._running.rebuild()
        assert again.guarantee() == whole


def test_a_sum_of_pure_costs_is_never_rounded_down():
    found = pure_guarantee([Repeated(PureDP(epsilon=0.1), 3), TABLE])
    assert found is not None
    assert found.epsilon >= 0.8
    assert found.epsilon == pytest.approx(0.8, rel=1e-12)
    assert found.delta == 0
    assert pure_guarantee([Gaussian(noise_multiplier=1.0)]) is None
    assert all(Fraction(rounded_up(Fraction(n, 7))) >= Fraction(n, 7) for n in range(1, 9))


def test_tables_alone_cost_their_sum(ledger, tmp_path):
    for number in range(3):
        ledger.charge([TABLE], release=f"table {number}", records=ADD)
    assert ledger.spent().epsilon == ledger.guarantee().epsilon == 1.5
    assert ledger.data_set_total().epsilon == 1.5
    with Ledger.open(tmp_path / "d.ledger") as again:
        assert again.guarantee().epsilon == 1.5
    ledger.charge([ANSWERS], release="labels", records=ADD)  # then log-moments, as ever
    assert ledger.spent().epsilon > 1.5


def test_a_budget_covers_tables_up_to_their_sum(tmp_path):
    budget = Guarantee(epsilon=1.0, delta=1e-5, neighbours=REPLACE)
    with Ledger.open(tmp_path / "b.ledger", budget=budget) as ledger:
        ledger.charge([TABLE], release="one", records=ADD)
        ledger.charge([TABLE], release="two", records=ADD)
        with pytest.raises(BudgetExceeded):
            ledger.charge([TABLE], release="three", records=ADD)
        assert ledger.releases() == {"one", "two"}
        assert ledger.guarantee().epsilon == 1.0
