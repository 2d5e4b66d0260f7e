"""The unit that a ledger's charges protect: records, users, or both."""

from __future__ import annotations

import sqlite3

from pate.accounting import (
    ForAddRemove,
    GaussianNoisyMaxAnswer,
    Guarantee,
    Ledger,
    Neighbours,
    PureDP,
    Repeated,
    SampledGaussian,
)
from pate.accounting.ledger.data_ledger import budget_line, trial_ledger
from pate.accounting.ledger.data_set import Coverage
from pate.accounting.ledger.study_costs import total_study_cost

BUDGET = Guarantee(epsilon=4.0, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)
EVENT = PureDP(epsilon=0.1)


def charge(ledger, name, group=None):
    return ledger.charge([EVENT], release=name, records=Neighbours.ADD_REMOVE, group=group)


def test_a_total_for_users_needs_every_charge_to_protect_them(tmp_path):
    with Ledger.open(tmp_path / "mine.ledger", budget=BUDGET) as ledger:
        assert charge(ledger, "a", "patient").group == "patient"
        assert charge(ledger, "a", "patient").number == 1  # the same charge
        assert str(ledger.data_set_total()).endswith("all records of one user added or removed")
        assert "it covers all records of one user" in budget_line(ledger)
        spent = ledger.spent().epsilon
        charge(ledger, "b")
        assert ledger.coverage() is Coverage.MIXED
        text = str(ledger.data_set_total())
        assert "for one record added or removed; it covers single records" in text
        assert "nothing is claimed of users" in budget_line(ledger)
        assert ledger.spent().epsilon > spent


def test_users_by_two_columns_are_not_the_same_users(tmp_path):
    with Ledger.open(tmp_path / "mine.ledger", budget=BUDGET) as ledger:
        charge(ledger, "a", "patient")
        charge(ledger, "b", "ward")
        assert ledger.coverage() is Coverage.MIXED


def test_charges_to_the_other_ledger_of_a_data_set_count(tmp_path):
    with (
        Ledger.open(tmp_path / "mine.ledger", budget=BUDGET) as votes,
        Ledger.open(tmp_path / "mine.dpsgd.ledger", budget=BUDGET) as steps,
    ):
        charge(votes, "a", "patient")
        charge(steps, "b")
        assert votes.coverage() is Coverage.USER
        assert votes.data_set_total().coverage is Coverage.MIXED


def test_a_ledger_from_before_groups_were_recorded_covers_records(tmp_path):
    path = tmp_path / "mine.ledger"
    with Ledger.open(path, budget=BUDGET) as ledger:
        charge(ledger, "a", "patient")
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE groups")
    database.close()
    with Ledger.open(path) as ledger:
        assert [each.group for each in ledger.charges()] == [None]
        assert ledger.coverage() is Coverage.RECORD
        charge(ledger, "b", "patient")
        assert ledger.coverage() is Coverage.MIXED


def table(ledger, name, group=None):
    event = ForAddRemove(EVENT, per_user=group is not None)
    return ledger.charge([event], release=name, records=event.neighbours, group=group)


def test_record_votes_of_users_cover_single_records_of_those_with_no_other(tmp_path):
    """Without one record of several, another one votes in its place: two votes change."""
    with Ledger.open(tmp_path / "mine.ledger", budget=BUDGET) as ledger:
        table(ledger, "a", "patient")
        table(ledger, "b")
        relation = ledger.guarantee().neighbours
        assert relation is Neighbours.LONE_RECORD
        text = ledger.coverage().describe(relation)
        assert text.startswith("it covers single records of users who have no other: only some")
        assert ledger.data_set_total().neighbours is relation


def test_beside_record_votes_no_total_is_about_one_teacher(tmp_path):
    with Ledger.open(tmp_path / "mine.ledger", budget=BUDGET) as ledger:
        ledger.charge([GaussianNoisyMaxAnswer(sigma=400.0)], release="a")  # of which partition?
        assert "records of one teacher" in str(ledger.data_set_total())
        planned = ledger.data_set_total(more=[ForAddRemove(EVENT)], records=Neighbours.ADD_REMOVE)
        table(ledger, "b")
        for total in (planned, ledger.data_set_total()):
            assert total.neighbours is Neighbours.AS_STATED
            assert "no one relation covers all" in str(total)
        assert ledger.guarantee().neighbours is Neighbours.AS_STATED


STEPS = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0, per_user=True)
USERS = Guarantee(epsilon=4.0, delta=1e-5, neighbours=Neighbours.USER_ADD_REMOVE)


def test_votes_that_are_still_to_be_paid_for_are_not_taken_for_those_of_users(tmp_path):
    votes = [[Repeated(GaussianNoisyMaxAnswer(sigma=40.0), 10)]]
    with (
        Ledger.open(tmp_path / "mine.ledger", budget=BUDGET) as pate,
        Ledger.open(tmp_path / "mine.dpsgd.ledger", budget=USERS) as dpsgd,
    ):
        dpsgd.charge([STEPS], release="a", group="patient", study="s")

        def relation(one_teacher, more):
            cost = total_study_cost(
                pate, dpsgd, "s", more=more, one_teacher=one_teacher, group="patient"
            )
            return cost.together.neighbours

        assert relation(Neighbours.ADD_REMOVE, votes) is Neighbours.LONE_RECORD
        assert relation(Neighbours.USER_ADD_REMOVE, votes) is Neighbours.USER_ZERO_OUT
        pate.charge(
            votes[0], release="b", study="s", records=Neighbours.ADD_REMOVE, group="patient"
        )
        assert relation(Neighbours.ADD_REMOVE, ()) is Neighbours.USER_ZERO_OUT


def test_a_trial_counts_charges_that_are_in_the_log_of_an_open_ledger(tmp_path):
    with Ledger.open(tmp_path / "mine.dpsgd.ledger", budget=USERS) as dpsgd:
        dpsgd.charge([STEPS], release="a", group="patient")
        known = dpsgd.data_set_total().epsilon

        def made(place):
            return Ledger.open(place, budget=BUDGET)

        with trial_ledger(tmp_path / "mine.ledger", made) as trial:
            assert trial.data_set_total().epsilon == known > 0
    assert not (tmp_path / "mine.ledger").exists()
