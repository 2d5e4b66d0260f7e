"""Budget through crashes and races: real processes, really killed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time

import pytest
from kills import ANSWER, fork

from pate.accounting import GaussianNoisyMaxAnswer, Guarantee, Ledger, Repeated, compose
from pate.errors import BudgetExceeded


def take_one(path, start, results, worker):
    with Ledger.open(path) as ledger:
        start.wait()
        try:
            ledger.charge([ANSWER], release=f"racer-{worker}")
            results.put((worker, True))
        except BudgetExceeded:
            results.put((worker, False))


@pytest.mark.parametrize(("room", "racers"), [(5, 8), (1, 2), (1, 8)])
@pytest.mark.sample(1)
def test_racing_for_the_last_answers(tmp_path, room, racers):
    """A budget that pays for exactly ``room`` answers has exactly ``room`` winners."""
    moment = 8.0
    fits = compose([Repeated(ANSWER, room)], [moment]).guarantee(delta=1e-5).epsilon
    one_more = compose([Repeated(ANSWER, room + 1)], [moment]).guarantee(delta=1e-5).epsilon
    budget = Guarantee(epsilon=(fits + one_more) / 2, delta=1e-5, moment=moment)
    for attempt in range(5):
        path = tmp_path / f"ledger-{attempt}.db"
        Ledger.open(path, budget=budget).close()
        start, results = fork.Event(), fork.Queue()
        workers = [
            fork.Process(target=take_one, args=(path, start, results, number))
            for number in range(racers)
        ]
        for worker in workers:
            worker.start()
        time.sleep(0.1)
        start.set()
        outcomes = dict(results.get(timeout=300) for _ in workers)
        for worker in workers:
            worker.join()
        winners = {number for number, won in outcomes.items() if won}
        assert len(outcomes) == racers
        assert len(winners) == room
        with Ledger.open(path) as ledger:
            names = {charge.release for charge in ledger.charges()}
            assert names == {f"racer-{number}" for number in winners}
            assert ledger.spent().epsilon == fits


def open_new(path, start, results, epsilon):
    start.wait()
    try:
        with Ledger.open(path, budget=Guarantee(epsilon=epsilon, delta=1e-5)) as ledger:
            results.put(ledger.terms.budget.epsilon)
    except Exception as error:
        results.put(type(error).__name__)


def test_racing_to_create_one_ledger(tmp_path):
    """Whoever is first sets the terms; nobody replaces them."""
    path = tmp_path / "ledger.db"
    start, results = fork.Event(), fork.Queue()
    workers = [
        fork.Process(target=open_new, args=(path, start, results, float(1 + number)))
        for number in range(8)
    ]
    for worker in workers:
        worker.start()
    start.set()
    outcomes = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    opened = [outcome for outcome in outcomes if isinstance(outcome, float)]
    assert len(opened) == 1
    assert outcomes.count("LedgerError") == 7
    with Ledger.open(path) as ledger:
        assert ledger.terms.budget.epsilon == opened[0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["ledger.db"]


def keep_opening(folder, start, results, number):
    start.wait()
    said = []
    for attempt in range(40):
        try:
            with Ledger.open(folder / f"{attempt}.ledger", budget=BUDGET) as ledger:
                ledger.charge([ANSWER], release=f"{number}")
        except Exception as error:
            said.append(repr(error))
    results.put(said)


def test_many_make_and_open_one_ledger_and_none_is_refused(tmp_path):
    """Each of forty ledgers is made by one of six processes, and used by all of them."""
    start, results = fork.Event(), fork.Queue()
    workers = [
        fork.Process(target=keep_opening, args=(tmp_path, start, results, number))
        for number in range(6)
    ]
    for worker in workers:
        worker.start()
    start.set()
    assert [results.get(timeout=300) for _ in workers] == [[]] * 6
    for worker in workers:
        worker.join()
    for attempt in range(40):
        with Ledger.open(tmp_path / f"{attempt}.ledger") as ledger:
            assert {charge.release for charge in ledger.charges()} == set("012345")
    assert not list(tmp_path.glob(".ledger-*"))


def test_another_process_makes_the_ledger_between_two_looks(tmp_path, monkeypatch):
    """Its journal is seen, its file was not: that is no lost ledger."""
    path = tmp_path / "ledger.db"
    ledger_there = Ledger.open(path, budget=BUDGET)
    ledger_there.charge([ANSWER], release="theirs")
    looks = iter([False])
    real = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda place: next(looks, None) or real(place))
    with Ledger.open(path, budget=BUDGET) as ledger:
        assert [charge.release for charge in ledger.charges()] == ["theirs"]
    ledger_there.close()


BUDGET = Guarantee(epsilon=50.0, delta=1e-5)


def make_old(path):
    """A ledger of version 1, with charges in it."""
    with Ledger.open(path, budget=BUDGET) as ledger:
        for number in range(40):
            ledger.charge([GaussianNoisyMaxAnswer(sigma=200.0 + number)], release=f"{number}")
        spent = ledger.spent()
        ask = ledger._connection.execute
        ask("DROP TRIGGER without_total")
        for index in ("entries_of_charge", "charges_of_settings"):
            ask(f"DROP INDEX {index}")
        for table in ("totals", "running", "studies", "settings", "plans"):
            ask(f"DROP TABLE {table}")
        ask("ALTER TABLE charges DROP COLUMN records")
        ask("PRAGMA user_version = 1")
    return spent


def dies_at(statement, path):
    """Opens and charges a ledger, and is killed just before the statement of this number."""
    count = 0

    def trace(text):
        nonlocal count
        count += 1
        if count == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    real = sqlite3.connect

    def traced(*words, **settings):
        connection = real(*words, **settings)
        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = traced
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([ANSWER], release="new", settings=["3f"], study="one")
    os._exit(0)


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.campaign
def test_killed_between_any_two_steps(tmp_path, old):
    """Of making a ledger, or of bringing an old one up to date, and of charging it."""
    kills, statement = 0, 0
    spent = make_old(tmp_path / "old") if old else None
    while True:
        statement += 1
        path = tmp_path / f"{statement}.db"
        if old:
            shutil.copyfile(tmp_path / "old", path)
        worker = fork.Process(target=dies_at, args=(statement, path))
        worker.start()
        worker.join()
        with Ledger.open(path, budget=BUDGET) as ledger:
            charged = [charge.release for charge in ledger.charges()]
            assert ledger._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            if "new" not in charged:
                assert ledger.spent() == (spent or ledger.spent())
                assert len(charged) == (40 if old else 0)
                assert worker.exitcode == -signal.SIGKILL
            ledger.charge([ANSWER], release="new", settings=["3f"], study="one")
            assert len(ledger.charges()) == (41 if old else 1)
        with Ledger.open(path) as ledger:  # its totals are those of its charges
            assert ledger.charges()[-1].studies == ("one",)
        assert not list(tmp_path.glob(".ledger-*"))
        if worker.exitcode == 0:
            break
        kills += 1
    assert kills > 20
