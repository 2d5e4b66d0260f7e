"""Draw, charge and answer as one operation: ``ledger.release``."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest

import pate
from pate.accounting import Guarantee, Ledger
from pate.errors import BudgetExceeded, InvalidInput, LedgerError, ReleaseConflict

VOTES = pate.Votes(counts=np.array([[40, 60], [55, 45], [52, 48], [50, 50]] * 25))
NOISY = pate.GaussianNoisyMax(sigma=60.0)


@pytest.fixture
def ledger(tmp_path):
    budget = Guarantee(epsilon=4, delta=1e-5)
    with Ledger.open(tmp_path / "patients.ledger", budget=budget) as opened:
        yield opened


def test_the_second_call_returns_the_answer_of_the_first_and_costs_nothing(ledger):
    first = ledger.release(NOISY, VOTES, name="labels-1")
    spent = ledger.spent().epsilon
    again = ledger.release(NOISY, VOTES, name="labels-1")
    assert first.labels.tolist() == again.labels.tolist()
    assert first.events == again.events
    assert ledger.spent().epsilon == spent > 0
    assert [charge.release for charge in ledger.charges()] == ["labels-1"]
    other = ledger.release(NOISY, VOTES, name="labels-2")  # 100 fair coins: not the same twice
    assert other.labels.tolist() != first.labels.tolist()
    assert len(ledger.charges()) == 2


def test_the_answer_outlives_its_process_and_is_for_its_owner_only(ledger, tmp_path):
    first = ledger.release(NOISY, VOTES, name="labels-1")
    with Ledger.open(tmp_path / "patients.ledger") as later:
        assert later.release(NOISY, VOTES, name="labels-1").labels.tolist() == first.labels.tolist()
    (file,) = (tmp_path / "patients.ledger.answers").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("kill", ["before", "after"])
def test_a_killed_process_is_completed_with_the_same_draw(ledger, monkeypatch, kill):
    charge = Ledger.charge

    def killed(self, *args, **kwargs):
        if kill == "after":
            charge(self, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "charge", killed)
        with pytest.raises(KeyboardInterrupt):
            ledger.release(NOISY, VOTES, name="labels-1")
    (file,) = ledger.path.with_name("patients.ledger.answers").iterdir()
    drawn = file.read_bytes()
    ledger.release(NOISY, VOTES, name="labels-1")
    assert file.read_bytes() == drawn
    assert len(ledger.charges()) == 1


def test_a_check_is_charged_for_all_its_queries(ledger):
    checked = pate.ConfidentGnmax(threshold=95.0, sigma1=40.0, sigma2=40.0)
    answer = ledger.release(checked, VOTES, name="checked", most_answers=5)
    assert len(answer.answered) <= 5
    assert set(ledger.charges()[0].events) == set(checked.caps(queries=100, answers=5))
    assert pate.compose(answer.events).guarantee(delta=1e-5).epsilon <= ledger.spent().epsilon


def test_a_threshold_is_a_setting_too(ledger):
    """It costs the same, and gives other answers."""
    settings = {"sigma1": 40.0, "sigma2": 40.0}
    ledger.release(pate.ConfidentGnmax(threshold=95.0, **settings), VOTES, name="c", most_answers=5)
    same = pate.ConfidentGnmax(threshold=95, **settings)
    ledger.release(same, VOTES, name="c", most_answers=5)
    other = pate.ConfidentGnmax(threshold=60.0, **settings)
    with pytest.raises(ReleaseConflict):
        ledger.release(other, VOTES, name="c", most_answers=5)


def test_a_name_is_for_one_release(ledger):
    ledger.release(NOISY, VOTES, name="labels-1")
    flipped = pate.Votes(counts=VOTES.counts[:, ::-1])
    for mechanism, votes in ((pate.GaussianNoisyMax(sigma=61.0), VOTES), (NOISY, flipped)):
        with pytest.raises(ReleaseConflict, match="drawn for other votes or settings; choose"):
            ledger.release(mechanism, votes, name="labels-1")
    assert len(ledger.charges()) == 1


def test_an_answer_that_is_gone_is_not_drawn_again(ledger):
    ledger.release(NOISY, VOTES, name="labels-1")
    (file,) = ledger.path.with_name("patients.ledger.answers").iterdir()
    file.write_text("{}")
    with pytest.raises(LedgerError, match="cannot be read; restore it"):
        ledger.release(NOISY, VOTES, name="labels-1")
    file.unlink()
    with pytest.raises(LedgerError, match="its answer is not at"):
        ledger.release(NOISY, VOTES, name="labels-1")


def test_a_charge_pays_for_one_draw(ledger, tmp_path, monkeypatch):
    """A link to the ledger, another current folder, and an older draw put back in its place."""
    (tmp_path / "link.ledger").symlink_to(ledger.path)
    first = ledger.release(NOISY, VOTES, name="labels-1").labels.tolist()
    monkeypatch.chdir(tmp_path)
    for path in ("link.ledger", "patients.ledger"):
        with Ledger.open(path) as other:
            monkeypatch.chdir("/")
            assert other.release(NOISY, VOTES, name="labels-1").labels.tolist() == first
            monkeypatch.chdir(tmp_path)
    (file,) = (tmp_path / "patients.ledger.answers").iterdir()
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"draw": "0" * 32}))
    with pytest.raises(LedgerError, match="has paid for another draw"):
        ledger.release(NOISY, VOTES, name="labels-1")
    file.unlink()
    ledger.charge(NOISY.caps(queries=100, answers=100), release="by-hand")
    file.with_name("by-hand.json").write_text(json.dumps(record))
    with pytest.raises(LedgerError, match="has paid for another draw"):
        ledger.release(NOISY, VOTES, name="by-hand")


def test_past_the_budget_nothing_is_drawn(ledger):
    with pytest.raises(BudgetExceeded):
        ledger.release(pate.GaussianNoisyMax(sigma=1.0), VOTES, name="labels-1")
    assert not ledger.charges()
    assert not ledger.path.with_name("patients.ledger.answers").exists()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 101, "\n"])
def test_names_that_cannot_be_files(ledger, name):
    with pytest.raises(InvalidInput, match="use letters, digits"):
        ledger.release(NOISY, VOTES, name=name)


@pytest.mark.parametrize(
    ("mechanism", "votes", "remedy"),
    [
        (NOISY, np.zeros((100, 3), dtype=int), r"pate\.Votes\.from_labels"),
        (NOISY, [[0, 1]], r"pate\.Votes\(counts=…\)"),
        (NOISY, pate.RecordVotes(counts=np.ones((2, 2), dtype=int)), r"pate\.Votes"),
        (pate.LaplaceCounts(scale=1.0), np.ones((2, 2)), r"pate\.count_record_votes"),
        (pate.LaplaceCounts(scale=1.0), VOTES, r"pate\.RecordVotes"),
    ],
)
def test_what_are_no_votes_is_refused_in_a_line_before_anything(
    ledger, tmp_path, mechanism, votes, remedy
):
    with pytest.raises(InvalidInput, match=remedy) as refused:
        ledger.release(mechanism, votes, name="labels-1")
    assert "\n" not in str(refused.value)
    assert ledger.charges() == []
    assert not (tmp_path / "patients.ledger.answers").exists()
