"""Charges that belong to a study: marks, older ledgers, and room for all of it at once."""

from __future__ import annotations

import json
import sqlite3

import pytest

from pate.accounting import (
    ApproximateDP,
    Basis,
    GaussianNoisyMaxAnswer,
    Guarantee,
    Ledger,
    Mode,
    Repeated,
    SampledGaussian,
    event_to_json,
)
from pate.accounting.ledger.studies import StudyPlan
from pate.errors import BudgetExceeded, InvalidInput, LedgerError, ReleaseConflict, UnsupportedEvent

BUDGET = Guarantee(epsilon=2.0, delta=1e-5)
ANSWER = GaussianNoisyMaxAnswer(sigma=100.0)

# As ledgers were made before there were studies, to the letter.
OLD_SCHEMA = """
PRAGMA application_id = 1346458693;
PRAGMA user_version = 1;
CREATE TABLE terms (only INTEGER PRIMARY KEY CHECK (only = 1), json TEXT NOT NULL);
CREATE TABLE charges (
    number INTEGER PRIMARY KEY,
    release TEXT NOT NULL UNIQUE,
    basis TEXT NOT NULL,
    charged_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE TABLE entries (
    charge INTEGER NOT NULL REFERENCES charges (number),
    event TEXT NOT NULL,
    count INTEGER NOT NULL CHECK (count > 0)
);
"""
TERMS = {
    "epsilon": 2.0, "delta": 1e-5, "moment": 9.2, "neighbours": "as-stated",
    "conversion": "improved", "mode": "filter", "basis": "fixed-moment", "plan": [],
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.ledger"


@pytest.fixture
def old(path):
    """A ledger of before, with one charge in it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript("BEGIN;" + OLD_SCHEMA + "COMMIT;")
    connection.execute("INSERT INTO terms VALUES (1, ?)", (json.dumps(TERMS, sort_keys=True),))
    connection.execute("INSERT INTO charges (release, basis) VALUES ('before', 'fixed-moment')")
    connection.execute("INSERT INTO entries VALUES (1, ?, 10)", (event_to_json(ANSWER),))
    connection.close()
    return path


def tables(path):
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    connection.close()
    return sorted(name for (name,) in found)


def test_a_mark_is_kept_and_costs_nothing(path, tmp_path):
    with Ledger.open(path, budget=BUDGET) as marked, \
            Ledger.open(tmp_path / "other", budget=BUDGET) as other:  # fmt: skip
        told = marked.charge([Repeated(ANSWER, 10)], release="a", study="sweep one")
        assert told.studies == ("sweep one",)
        assert marked.charge([Repeated(ANSWER, 5)], release="b").studies == ()
        other.charge([Repeated(ANSWER, 15)], release="all")
        assert marked.spent() == other.spent()
    with Ledger.open(path) as again:
        assert [charge.studies for charge in again.charges()] == [("sweep one",), ()]


def test_a_repeated_charge_keeps_its_marks_and_may_get_another(path):
    """Whoever was first to pay: the study that asks for it, too, looks at it."""
    with Ledger.open(path, budget=BUDGET) as ledger:
        first = ledger.charge([Repeated(ANSWER, 10)], release="a", study="one")
        ledger.charge([Repeated(ANSWER, 10)], release="b")
        spent = ledger.spent()
        assert ledger.charge([Repeated(ANSWER, 10)], release="a") == first
        again = ledger.charge([Repeated(ANSWER, 10)], release="a", study="two")
        assert again.studies == ("one", "two")
        assert ledger.charge([Repeated(ANSWER, 10)], release="b", study="two").studies == ("two",)
        assert [charge.studies for charge in ledger.charges()] == [("one", "two"), ("two",)]
        assert ledger.spent() == spent


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m"])
def test_a_study_needs_a_printable_name(path, name):
    with Ledger.open(path, budget=BUDGET) as ledger:
        with pytest.raises(InvalidInput, match="printable"):
            ledger.charge([ANSWER], release="a", study=name)
        assert ledger.charges() == []


def test_a_study_of_an_earlier_charge_costs_no_more(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([Repeated(ANSWER, 10)], release="a")
        ledger.charge([Repeated(ANSWER, 10)], release="b", study="one")
        spent = ledger.spent()
        for _ in range(2):  # the second time changes nothing
            ledger.charge([Repeated(ANSWER, 10)], release="a", study="two")
            ledger.charge([Repeated(ANSWER, 10)], release="b", study="two")
        assert [charge.studies for charge in ledger.charges()] == [("two",), ("one", "two")]
        assert ledger.spent() == spent


def test_a_charge_of_an_older_ledger_joins_a_study(old):
    with Ledger.open(old) as ledger:
        ledger.charge(ledger.charges()[0].events, release="before", study="sweep")
        assert [charge.studies for charge in ledger.charges()] == [("sweep",)]


def test_an_older_ledger_reads_and_pays_as_before(old):
    with Ledger.open(old) as ledger:
        assert [(c.release, c.studies) for c in ledger.charges()] == [("before", ())]
        assert ledger.charges()[0].basis is Basis.FIXED_MOMENT
        spent = ledger.spent().epsilon
        assert spent > 0
        ledger.charge([Repeated(ANSWER, 10)], release="again")
        assert ledger.spent().epsilon > spent
        assert ledger.charges()[0].records is None


def test_an_older_ledger_is_brought_up_to_date_on_opening(old):
    with Ledger.open(old) as reader, Ledger.open(old) as ledger:
        ledger.charge([Repeated(ANSWER, 10)], release="marked", study="sweep")
        ledger.charge([Repeated(ANSWER, 10)], release="more", study="sweep")
        for each in (ledger, reader):  # one that was open all the while reads them too
            assert [c.studies for c in each.charges()] == [(), ("sweep",), ("sweep",)]
    added = ["groups", "plans", "running", "settings", "studies", "totals"]
    assert tables(old) == sorted(["charges", "entries", "terms", *added])
    connection = sqlite3.connect(old)
    # What is older would charge without adding to the running total: it must not.
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_a_refused_charge_leaves_no_mark_and_no_total(old):
    with Ledger.open(old) as ledger:
        before = "\n".join(ledger._connection.iterdump())
        with pytest.raises(BudgetExceeded):
            ledger.charge([Repeated(ANSWER, 10_000)], release="marked", study="sweep")
        assert "\n".join(ledger._connection.iterdump()) == before


def test_a_mark_that_cannot_be_written_undoes_the_charge(path):
    """Unmarked, the charge could be released as if its run had been fixed beforehand."""
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger._connection.execute("ALTER TABLE studies RENAME TO gone")
        with pytest.raises(LedgerError):
            ledger.charge([ANSWER], release="a", study="sweep")
        ledger._connection.execute("ALTER TABLE gone RENAME TO studies")
        assert ledger.charges() == []
        assert ledger.spent().epsilon == 0.0


def test_room_is_asked_for_as_a_charge_would_and_nothing_is_written(path):
    answer = GaussianNoisyMaxAnswer(sigma=25.0)  # the budget covers a few dozen
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([Repeated(answer, 10)], release="a")
        before = path.read_bytes(), ledger.charges(), ledger.spent()
        most = 10
        while True:  # the largest number that require_room lets through …
            try:
                ledger.require_room([Repeated(answer, most + 1)])
            except BudgetExceeded:
                break
            most += 1
        assert (path.read_bytes(), ledger.charges(), ledger.spent()) == before
        with pytest.raises(BudgetExceeded) as asked:
            ledger.require_room([Repeated(answer, most), answer])
        with pytest.raises(BudgetExceeded) as charged:
            ledger.charge([Repeated(answer, most + 1)], release="b")
        assert str(asked.value) == str(charged.value)
        assert asked.value.needed == charged.value.needed > 2.0
        for number in range(most):  # … is what charges get, one by one
            ledger.charge([answer], release=f"one {number}")
        with pytest.raises(BudgetExceeded):
            ledger.charge([answer], release="one more")
        ledger.require_room([])


def test_an_odometer_has_room_but_not_for_what_it_cannot_count(path):
    endless = Guarantee(epsilon=float("inf"), delta=1e-5)
    with Ledger.open(path, budget=endless, mode=Mode.ODOMETER) as ledger:
        ledger.require_room([Repeated(ANSWER, 1_000_000)])
        with pytest.raises(UnsupportedEvent):
            ledger.require_room([ApproximateDP(epsilon=1.0, delta=1e-6)])
        with pytest.raises(InvalidInput, match="do not add up"):
            ledger.require_room([ANSWER, SampledGaussian(sample_rate=0.1, noise_multiplier=1.0)])
        assert ledger.charges() == []


def test_room_in_a_plan(path):
    with Ledger.open(path, budget=BUDGET, plan=[Repeated(ANSWER, 20)]) as ledger:
        ledger.charge([Repeated(ANSWER, 15)], release="a")
        ledger.require_room([Repeated(ANSWER, 5)])
        with pytest.raises(BudgetExceeded, match="the plan allows 20"):
            ledger.require_room([Repeated(ANSWER, 6)])


# --- plans --------------------------------------------------------------------------------------

FINER = GaussianNoisyMaxAnswer(sigma=60.0)
WHO = {"protects": "one record added or removed"}


def test_a_plan_may_change_until_something_is_charged(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([Repeated(ANSWER, 3)], release="before")
        ledger.plan_study("s", [[ANSWER]], **WHO)
        plan = ledger.plan_study("s", [[Repeated(ANSWER, 10)], [FINER]], **WHO)
        assert plan is not None
        assert plan.releases == ((Repeated(ANSWER, 10),), (FINER,))
        assert plan.after == 1
        ledger.charge([Repeated(ANSWER, 10)], release="a", study="s")
        assert ledger.plan_study("s", [[Repeated(FINER, 50)]], **WHO) == plan
        assert ledger.plan_study("other", [[FINER]], **WHO) != plan
    with Ledger.open(path) as again:
        assert again.study_plans()["s"] == plan


def test_no_plan_is_made_up_for_what_was_charged_without_one(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([ANSWER], release="a", study="s")
        assert ledger.plan_study("s", [[ANSWER]], **WHO) is None
        assert ledger.plan_study("t", [[ANSWER]], begun=True, **WHO) is None
        assert ledger.study_plans() == {}


@pytest.mark.parametrize(
    ("charges", "covered"),
    [
        ([(5, [Repeated(ANSWER, 10)])], True),
        ([(5, [Repeated(ANSWER, 4)]), (6, [Repeated(ANSWER, 6)]), (9, [FINER])], True),
        ([(5, [Repeated(ANSWER, 11)])], False),
        ([(5, [ANSWER]), (6, [FINER]), (7, [FINER])], False),
        ([(5, [GaussianNoisyMaxAnswer(sigma=100.5)])], False),
        ([(4, [ANSWER])], False),  # older than the plan
        ([], True),
    ],
)
def test_what_a_plan_covers(charges, covered):
    releases = ((Repeated(ANSWER, 10),), (FINER,))
    plan = StudyPlan(study="s", protects="one record", after=4, releases=releases)
    assert plan.covers(charges) is covered


def test_two_relations_do_not_share_a_study(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.plan_study("s", [[ANSWER]], **WHO)
        ledger.plan_study("s", [[ANSWER]], protects="one record replaced")  # nothing was charged
        ledger.plan_study("s", [[ANSWER]], **WHO)
        ledger.charge([ANSWER], release="a", study="s")
        with pytest.raises(InvalidInput, match="do not add up; choose another --out"):
            ledger.plan_study("s", [[ANSWER]], protects="one record replaced")
        assert ledger.study_plans()["s"].protects == WHO["protects"]


def test_settings_are_kept_with_their_charge(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([ANSWER], release="a", settings=["3fa2", "77"])
        ledger.charge([ANSWER], release="b")
        ledger.charge([ANSWER], release="a", settings=["other"])  # the same charge, again
        with pytest.raises(ReleaseConflict, match="already paid for a release with the same"):
            ledger.charge([ANSWER], release="c", settings=["77"])
        ledger.charge([ANSWER], release="c", settings=["77"], again=True)
        noted = [charge.settings for charge in ledger.charges()]
    assert noted == [{"3fa2", "77"}, frozenset(), {"77"}]


def test_the_same_settings_pay_again_only_if_told_to(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([ANSWER], release="a", settings=["3fa2"], family=["77"])
        before = ledger.spent()
        with pytest.raises(ReleaseConflict, match="already paid for a release"):
            ledger.charge([FINER], release="b", settings=["9c", "3fa2"])
        assert ledger.spent() == before
        ledger.charge([ANSWER], release="a", settings=["3fa2"])  # a crashed run is finished
        ledger.charge([FINER], release="c", settings=["9c"], family=["77"])  # only noted, not asked
        ledger.charge([FINER], release="b", settings=["3fa2"], again=True)
        noted = [charge.settings for charge in ledger.charges()]
    assert noted == [{"3fa2", "77"}, {"9c", "77"}, {"3fa2"}]


def test_the_figure_of_more_is_that_of_a_ledger_that_has_it(path, tmp_path):
    endless = Guarantee(epsilon=float("inf"), delta=1e-5, moment=3.0)
    with Ledger.open(path, budget=endless, mode=Mode.ODOMETER) as ledger, \
            Ledger.open(tmp_path / "o", budget=endless, mode=Mode.ODOMETER) as other:  # fmt: skip
        ledger.charge([Repeated(ANSWER, 10)], release="a")
        other.charge([Repeated(ANSWER, 20_010), FINER], release="all")
        assert ledger.guarantee(more=[Repeated(ANSWER, 20_000), FINER]) == other.guarantee()
        assert ledger.guarantee() == ledger.guarantee(more=[]) != other.guarantee()
