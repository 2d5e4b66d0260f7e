"""One budget over both ledgers of a data set, and what both come to."""

from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import os
import re
import sqlite3
from dataclasses import replace

import pytest

from pate.accounting import (
    Conversion,
    GaussianNoisyMaxAnswer,
    Guarantee,
    Ledger,
    Neighbours,
    Repeated,
    SampledGaussian,
    compose,
)
from pate.accounting.ledger.data_ledger import budget_line, data_set_line, open_data_ledger
from pate.accounting.ledger.data_set import LedgerShare, total_of
from pate.accounting.moments import odometer_epsilon
from pate.errors import BudgetExceeded, InvalidInput, LedgerError

DELTA = 1e-5
ANSWER = GaussianNoisyMaxAnswer(sigma=100.0)
STEP = SampledGaussian(sample_rate=0.05, noise_multiplier=4.0)
HASHED, SHUFFLED = Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE
RELATIONS = {"tiny.ledger": Neighbours.REPLACE_ONE, "tiny.dpsgd.ledger": Neighbours.ADD_REMOVE}

fork = multiprocessing.get_context("fork")


def opened(folder, name, *, budget=None, delta=DELTA):
    return open_data_ledger(
        folder / name, budget=budget, delta=delta, neighbours=RELATIONS[name], moment=10.0
    )


def votes(folder, *, budget=None):
    return opened(folder, "tiny.ledger", budget=budget)


def steps(folder, *, budget=None):
    return opened(folder, "tiny.dpsgd.ledger", budget=budget)


# --- the mathematics --------------------------------------------------------------------------


def share(ledger, epsilon, relation, *, delta=DELTA, moment=10.0):
    return LedgerShare(
        ledger=ledger, epsilon=epsilon, delta=delta, moment=moment, records=frozenset([relation])
    )


def test_one_relation_adds_up_and_another_is_restated():
    pate, dpsgd = share("a.ledger", 1.0, HASHED), share("a.dpsgd.ledger", 0.5, HASHED, moment=5.0)
    plain = total_of([pate, dpsgd])
    assert (plain.epsilon, plain.delta, plain.neighbours) == (1.5, 2 * DELTA, HASHED)
    assert not plain.restated
    zeroed = total_of([pate, share("a.dpsgd.ledger", 0.5, Neighbours.ZERO_OUT)])
    assert (zeroed.epsilon, zeroed.neighbours) == (1.5, Neighbours.ZERO_OUT)
    replaced = total_of([share("a.ledger", 1.0, SHUFFLED), dpsgd])
    assert replaced.neighbours is SHUFFLED
    assert replaced.epsilon == pytest.approx(1.0 + 0.5 * (2 + 1 / 10 + 1 / 5))
    assert replaced.delta == pytest.approx(3 * DELTA)
    unknown = total_of([share("a.ledger", 1.0, None), dpsgd])
    assert unknown.epsilon == pytest.approx(1.5 * (2 + 1 / 10 + 1 / 5))
    assert unknown.delta == pytest.approx(4 * DELTA)
    for relations in ({None}, {None, HASHED}):  # by itself, as it is; also after an upgrade
        alone = total_of([replace(pate, records=frozenset(relations))])
        assert (alone.epsilon, alone.neighbours) == (1.0, None)
    assert total_of([]).epsilon == 0.0


USERS = Neighbours.USER_ADD_REMOVE


def test_costs_for_users_add_up_for_users_of_one_record_and_not_for_a_record_replaced():
    dpsgd = share("a.dpsgd.ledger", 0.5, Neighbours.USER_ZERO_OUT)
    together = total_of([share("a.ledger", 1.0, USERS), dpsgd])
    assert (together.epsilon, together.neighbours) == (1.5, Neighbours.USER_ZERO_OUT)
    mixed = total_of([share("a.ledger", 1.0, HASHED), dpsgd])
    assert (mixed.epsilon, mixed.neighbours) == (1.5, Neighbours.LONE_RECORD)
    for relation in (SHUFFLED, None):
        with pytest.raises(InvalidInput, match="do not add up"):
            total_of([share("a.ledger", 1.0, relation), dpsgd])


def test_votes_by_users_are_costs_for_users_of_the_same_column_and_for_records():
    dpsgd = replace(share("a.dpsgd.ledger", 0.5, Neighbours.USER_ZERO_OUT), groups={"patient"})
    for columns, relation in (
        ({"patient"}, Neighbours.USER_ZERO_OUT),
        ({"ward"}, Neighbours.LONE_RECORD),
        ({None}, Neighbours.LONE_RECORD),
        ({None, "patient"}, Neighbours.LONE_RECORD),
    ):
        pate = replace(share("a.ledger", 1.0, HASHED), groups=columns)
        assert total_of([pate, dpsgd]).neighbours is relation
        single = replace(dpsgd, records={Neighbours.ZERO_OUT}, groups={None})
        assert total_of([pate, single]).neighbours is Neighbours.ZERO_OUT


def test_relations_combine_in_any_order():
    def combined(*relations):
        try:
            return functools.reduce(Neighbours.combine, relations)
        except InvalidInput:
            return None  # for good, whatever comes after

    for three in itertools.product(Neighbours, repeat=3):
        assert len({combined(*each) for each in itertools.permutations(three)}) == 1, three
    user, lone = Neighbours.USER_ZERO_OUT, Neighbours.LONE_RECORD
    assert combined(USERS, user) is user
    assert all(combined(lone, each) is lone for each in (HASHED, Neighbours.ZERO_OUT, USERS, user))
    assert combined(USERS, SHUFFLED) is None


def test_a_charge_for_users_is_refused_beside_votes_of_a_shuffled_partition(tmp_path):
    with votes(tmp_path) as pate, steps(tmp_path) as dpsgd:
        pate.charge([ANSWER], release="labels", records=SHUFFLED)
        with pytest.raises(InvalidInput, match=r"for one user .* do not add up"):
            dpsgd.charge([replace(STEP, per_user=True)], release="model")
        assert dpsgd.charges() == []
        dpsgd.charge([STEP], release="model")


def three_ways(epsilon):
    """Pr of either output on a data set, on the one between, and on the one with another record."""
    odds = [epsilon, 0.0, -epsilon]
    yes = [1 / (1 + math.exp(-each)) for each in odds]
    return [(each, 1 - each) for each in yes]


def at_once(epsilon):
    """A vote of a shuffled partition: it knows no data set in between."""
    first, _, last = three_ways(epsilon / 2)
    return [first, None, last]


def log_moment(mechanism, moment):
    known = [each for each in mechanism if each is not None]
    sums = [
        sum(p ** (moment + 1) / q**moment for p, q in zip(here, there, strict=True))
        for a, b in itertools.pairwise(known)
        for here, there in ((a, b), (b, a))
    ]
    return math.log(max(sums))


def worst(menus, moments, read, *, steps):
    """The most that an adversary gets who charges either of two ledgers as outputs come in."""
    choices = [(ledger, each) for ledger, menu in enumerate(menus) for each in menu]
    costs = [log_moment(each, moments[ledger]) for ledger, each in choices]

    @functools.cache
    def value(counts, loss, left):
        totals = [
            sum(n * c for n, c, (own, _) in zip(counts, costs, choices, strict=True) if own == each)
            for each in range(2)
        ]
        best = max(0.0, 1 - math.exp(min(0.0, read(totals) - loss)))
        for number, (_, mechanism) in enumerate(choices if left else ()):
            after = tuple(n + (i == number) for i, n in enumerate(counts))
            best = max(best, sum(
                p * value(after, round(loss + math.log(p / q), 12), left - 1)
                for p, q in zip(mechanism[0], mechanism[-1], strict=True)
            ))  # fmt: skip
        return best

    return value((0,) * len(choices), 0.0, steps)


@pytest.mark.parametrize("conversion", Conversion)
@pytest.mark.parametrize(("partition", "deltas"), [("hash", (0.1, 0.05)), ("shuffle", (0.02, 0.1))])
def test_the_total_holds_whoever_is_charged_next(partition, deltas, conversion):
    """Exact enumeration over all adversaries that choose by outputs, and when to stop."""
    moments = (2.0, 3.0)
    if partition == "hash":  # one record more or less; both ledgers change once
        menus = [[three_ways(e)[::2] for e in (0.3, 0.9)], [three_ways(e)[::2] for e in (0.5, 1.2)]]
        relations = (HASHED, Neighbours.ZERO_OUT)
    else:
        menus = [[at_once(e) for e in (0.6, 1.8)], [three_ways(e) for e in (0.4, 0.9)]]
        relations = (SHUFFLED, Neighbours.ZERO_OUT)

    def whole(totals):
        shares = [
            share(
                name,
                odometer_epsilon(total, moment=moment, delta=delta, conversion=conversion),
                relation,
                delta=delta,
                moment=moment,
            )
            for name, total, moment, delta, relation in zip(
                ("a.ledger", "a.dpsgd.ledger"), totals, moments, deltas, relations, strict=True
            )
        ]
        return total_of(shares)

    delta = whole([0.0, 0.0]).delta
    found = worst(menus, moments, lambda totals: whole(totals).epsilon, steps=6)
    assert found <= delta * (1 + 1e-9)
    # The planted fault: one ledger alone, whatever the other spent.
    alone = worst(menus, moments, lambda totals: whole([totals[0], 0.0]).shares[0].epsilon, steps=6)
    assert alone > delta


# --- the budget -------------------------------------------------------------------------------


def test_a_budget_is_spent_by_both(tmp_path):
    with votes(tmp_path, budget=1.5) as pate:
        pate.charge([Repeated(ANSWER, 300)], release="labels", records=HASHED)
        spent = pate.spent().epsilon
    assert 0.8 < spent < 1.4
    with steps(tmp_path, budget=1.5) as dpsgd:
        with pytest.raises(BudgetExceeded) as refused:
            dpsgd.charge([Repeated(STEP, 800)], release="model")
        said = str(refused.value)
        assert "\n" not in said
        assert re.search(r"PATE ε [\d.]+ \(tiny.ledger\) \+ DP-SGD ε [\d.]+ \(tiny.dpsgd", said)
        assert refused.value.spent == pytest.approx(spent)
        assert dpsgd.charges() == []
        dpsgd.charge([STEP], release="small")
        total = dpsgd.data_set_total()
        assert total.epsilon == pytest.approx(spent + dpsgd.spent().epsilon)
        assert total.delta == 2 * DELTA
        assert "PATE ε" in budget_line(dpsgd)
        assert f"of {1.5:g}" in data_set_line(dpsgd)
    with votes(tmp_path, budget=1.5) as pate, pytest.raises(BudgetExceeded, match="DP-SGD ε"):
        pate.charge([Repeated(ANSWER, 400)], release="more labels", records=HASHED)


@pytest.mark.parametrize("records", [SHUFFLED, None])
def test_votes_of_a_shuffled_partition_make_steps_dearer(tmp_path, records):
    with votes(tmp_path) as pate, steps(tmp_path) as dpsgd:
        pate.charge([ANSWER], release="labels", records=records)
        dpsgd.charge([Repeated(STEP, 100)], release="model")
        total = dpsgd.data_set_total()
        own = dpsgd.spent().epsilon
        assert total.neighbours is SHUFFLED
        assert total.epsilon > pate.spent().epsilon + 2 * own
        assert "restated" in data_set_line(pate)


@pytest.mark.parametrize("first", [votes, steps])
def test_a_budget_agreed_on_with_one_ledger_binds_the_other(tmp_path, first):
    (second,) = {votes, steps} - {first}
    with second(tmp_path) as ledger:  # made without a budget, before there was one
        event = ANSWER if second is votes else STEP
        ledger.charge([event], release="before")
    with first(tmp_path, budget=1.0):
        pass
    with second(tmp_path) as ledger:
        assert ledger.data_set_budget == 1.0
        with pytest.raises(BudgetExceeded):
            ledger.charge([Repeated(event, 10_000)], release="too much")
        assert "no budget was set" not in budget_line(ledger)
    with second(tmp_path, budget=1.0):
        pass  # the same figure, said of the other ledger
    with pytest.raises(LedgerError, match="made without a budget; privacy"):
        second(tmp_path, budget=2.0)


def test_a_new_ledger_takes_over_the_budget_and_no_other(tmp_path):
    votes(tmp_path, budget=1.5).close()
    with pytest.raises(LedgerError, match="of the same data set, was made with a budget of ε 1"):
        steps(tmp_path, budget=2.0)
    assert not (tmp_path / "tiny.dpsgd.ledger").exists()
    with steps(tmp_path) as dpsgd:
        assert dpsgd.terms.budget.epsilon == 1.5


def test_of_two_budgets_the_smaller_binds(tmp_path):
    """As ledgers of before there was one budget may have them."""
    for name, budget in (("tiny.ledger", 1.0), ("tiny.dpsgd.ledger", 3.0)):
        terms = Guarantee(epsilon=budget, delta=DELTA, neighbours=RELATIONS[name])
        Ledger.open(tmp_path / name, budget=terms).close()
    with steps(tmp_path, budget=3.0) as dpsgd:
        assert dpsgd.data_set_budget == 1.0
        with pytest.raises(BudgetExceeded, match="past the budget of 1 "):
            dpsgd.charge([Repeated(STEP, 1500)], release="model")


def test_what_is_not_private_shares_no_budget(tmp_path):
    with votes(tmp_path, budget=1.0), Ledger.open(
        tmp_path / "tiny.dpsgd.not-private.ledger",
        budget=Guarantee(epsilon=50.0, delta=DELTA, neighbours=Neighbours.ADD_REMOVE),
    ) as seeded:  # fmt: skip
        seeded.charge([Repeated(STEP, 5000)], release="seeded")
        assert seeded.data_set_budget == 50.0
    with votes(tmp_path) as pate:
        assert pate.data_set_total().epsilon == 0.0


def test_a_damaged_ledger_beside_it_stops_a_charge(tmp_path):
    votes(tmp_path).close()
    (tmp_path / "tiny.dpsgd.ledger").write_bytes(b"nothing of the kind" * 400)
    with (
        Ledger.open(tmp_path / "tiny.ledger") as pate,
        pytest.raises(LedgerError, match=r"tiny.dpsgd.ledger"),
    ):
        pate.charge([ANSWER], release="labels", records=HASHED)


def charge_one(folder, name, barrier, results, number):
    try:
        barrier.wait(60)
        event = Repeated(ANSWER, 60) if name == "tiny.ledger" else Repeated(STEP, 300)
        records = HASHED if name == "tiny.ledger" else None
        with opened(folder, name, budget=1.3) as ledger:
            ledger.charge([event], release=f"racer {number}", records=records)
        results.put("charged")
    except BudgetExceeded:
        results.put("refused")
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.sample(1)
def test_two_processes_cannot_share_what_is_left_for_one(tmp_path, made):
    """They charge one ledger each, at once; the ledgers are there, or are being made."""
    for attempt in range(12):
        folder = tmp_path / str(attempt)
        folder.mkdir(mode=0o700)
        if made:
            for name in RELATIONS:
                opened(folder, name, budget=1.3).close()
        barrier, results = fork.Barrier(2), fork.Queue()
        workers = [
            fork.Process(target=charge_one, args=(folder, name, barrier, results, number))
            for number, name in enumerate(RELATIONS)
        ]
        for worker in workers:
            worker.start()
        outcomes = sorted(results.get(timeout=300) for _ in workers)
        for worker in workers:
            worker.join()
        assert outcomes == ["charged", "refused"], attempt
        with votes(folder) as pate:
            assert pate.data_set_total().epsilon <= 1.3


# --- the folder, and what stands in a file -------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_folder_of_ledgers_is_its_owners(tmp_path, umask):
    before = os.umask(umask)
    try:
        votes(tmp_path / "ledgers").close()
        assert (tmp_path / "ledgers").stat().st_mode & 0o777 == 0o700
        (tmp_path / "ledgers").chmod(0o755)  # as earlier versions left it
        votes(tmp_path / "ledgers").close()
        assert (tmp_path / "ledgers").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE charges SET basis = 'hearsay'",
        "UPDATE charges SET records = 'everybody'",
        "UPDATE entries SET event = '{}'",
        "UPDATE entries SET count = 2",
        "UPDATE totals SET count = 2",
        "UPDATE totals SET cost = 0",
        "UPDATE running SET total = '0'",
        "UPDATE running SET records = '[]'",
        "UPDATE terms SET json = '{}'",
        "DELETE FROM entries",
    ],
)
def test_a_ledger_that_was_changed_by_hand_is_refused_in_one_line(tmp_path, statement):
    with votes(tmp_path) as pate:
        pate.charge([ANSWER], release="labels", records=HASHED)
    connection = sqlite3.connect(tmp_path / "tiny.ledger", isolation_level=None)
    connection.execute(statement)
    connection.close()
    with pytest.raises(LedgerError, match=r"tiny.ledger cannot be read") as error, \
            votes(tmp_path) as pate:  # fmt: skip
        pate.charges()
    assert "\n" not in str(error.value)


def test_totals_of_another_version_are_made_anew(tmp_path):
    """A bound that was mended since must not live on in a sum."""
    with votes(tmp_path) as pate:
        pate.charge([Repeated(ANSWER, 10)], release="labels", records=HASHED)
        spent = pate.spent()
    connection = sqlite3.connect(tmp_path / "tiny.ledger", isolation_level=None)
    connection.execute("UPDATE running SET formulas = 'of before', total = '0'")
    connection.execute("UPDATE totals SET cost = 0")
    connection.close()
    with votes(tmp_path) as pate:
        assert pate.spent() == spent


def test_what_a_process_of_an_earlier_version_charges_meanwhile_counts(tmp_path):
    """It had the ledger open when this version took it over, and knows of no total."""
    with votes(tmp_path, budget=2.0) as pate:
        pate.charge([Repeated(ANSWER, 10)], release="one", records=HASHED)
        connection = sqlite3.connect(tmp_path / "tiny.ledger", isolation_level=None)
        connection.execute("INSERT INTO charges (release, basis) VALUES ('two', 'fixed-moment')")
        (event,) = connection.execute("SELECT event FROM entries").fetchone()
        connection.execute("INSERT INTO entries VALUES (2, ?, 200)", (event,))
        connection.close()
        both = pate.spent().epsilon
        exact = compose([Repeated(ANSWER, 210)], [pate.terms.budget.moment])
        assert both == pytest.approx(exact.guarantee(delta=DELTA).epsilon, rel=1e-12)
        pate.charge([ANSWER], release="three", records=HASHED)
        total = pate.spent()
    with votes(tmp_path) as pate:
        assert pate.spent() == total
        assert total.epsilon > both
