"""Budget through crashes and races: real processes, really killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time

import pytest

from pate.accounting import GaussianNoisyMaxAnswer, Guarantee, Ledger, Repeated, compose
from pate.errors import BudgetExceeded

fork = multiprocessing.get_context("fork")
ANSWER = GaussianNoisyMaxAnswer(sigma=200.0)


def charge_and_publish(path, journal, worker):
    """Charges, then publishes (appends to a journal on disk), until killed."""
    with Ledger.open(path) as ledger:
        number = 0
        while True:
            release = f"{worker}-{number}"
            try:
                ledger.charge([ANSWER], release=release)
            except BudgetExceeded:
                return
            handle = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, f"{release}\n".encode())
            os.fsync(handle)
            os.close(handle)
            number += 1


def audit(path, journal, budget):
    """The ledger opens, is whole, covers everything published, and keeps its budget."""
    published = journal.read_text().split() if journal.exists() else []
    with Ledger.open(path) as ledger:
        charged = [charge.release for charge in ledger.charges()]
        assert ledger._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        spent = ledger.spent().epsilon
        moment = ledger.terms.budget.moment
    assert len(set(charged)) == len(charged)
    assert set(published) <= set(charged)
    expected = compose([Repeated(ANSWER, len(charged))], [moment]).guarantee(delta=budget.delta)
    assert spent == (expected.epsilon if charged else 0.0)
    assert spent <= budget.epsilon
    return len(charged), len(published)


def test_killed_two_hundred_times(tmp_path):
    path, journal = tmp_path / "ledger.db", tmp_path / "published"
    budget = Guarantee(epsilon=50.0, delta=1e-5)
    Ledger.open(path, budget=budget).close()
    rng = random.Random(20)
    kills = charged = published = 0
    while kills < 200:
        worker = fork.Process(target=charge_and_publish, args=(path, journal, kills))
        worker.start()
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        assert worker.exitcode == -signal.SIGKILL, "the budget ran out before the kill"
        kills += 1
        charged, published = audit(path, journal, budget)
    assert published > 100, "the processes were killed before they did anything"
    print(f"\n200 kills: {charged} charges, {published} published, every one of them covered")


def take_one(path, start, results, worker):
    with Ledger.open(path) as ledger:
        start.wait()
        try:
            ledger.charge([ANSWER], release=f"racer-{worker}")
            results.put((worker, True))
        except BudgetExceeded:
            results.put((worker, False))


@pytest.mark.parametrize(("room", "racers"), [(5, 8), (1, 2), (1, 8)])
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
        outcomes = dict(results.get(timeout=60) for _ in workers)
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
    outcomes = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    opened = [outcome for outcome in outcomes if isinstance(outcome, float)]
    assert len(opened) == 1
    assert outcomes.count("LedgerError") == 7
    with Ledger.open(path) as ledger:
        assert ledger.terms.budget.epsilon == opened[0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["ledger.db"]
