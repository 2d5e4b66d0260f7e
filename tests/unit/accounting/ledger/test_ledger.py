"""The ledger: terms, refusals, idempotence, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sqlite3
import stat
import subprocess

import pytest

from pate.accounting import (
    ApproximateDP,
    Basis,
    Conversion,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Guarantee,
    GumbelNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Ledger,
    Mode,
    Neighbours,
    Repeated,
    SampledGaussian,
    SmoothRelease,
    ThresholdCheck,
    compose,
    event_to_json,
)
from pate.accounting.calibrate import moments_epsilon, most
from pate.accounting.events import ForReplacement
from pate.accounting.ledger.terms import moment_for
from pate.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerError,
    MixedComposition,
    ReleaseConflict,
    UnsupportedEvent,
)

BUDGET = Guarantee(epsilon=2.0, delta=1e-5)
ANSWER = GaussianNoisyMaxAnswer(sigma=100.0)
CHECK = ThresholdCheck(sigma=150.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def fill(ledger, size=10):
    return fill_with(ledger, [Repeated(ANSWER, size)])


def fill_with(ledger, events):
    """Charges until refused; returns how many charges fitted."""
    for number in range(10_000):
        try:
            ledger.charge(events, release=f"fill-{number}")
        except BudgetExceeded:
            return number
    raise AssertionError("the budget never ran out")


@pytest.mark.parametrize(
    "event", [ANSWER, CHECK, GumbelNoisyMaxAnswer(scale=50.0), Gaussian(noise_multiplier=20.0)]
)
def test_a_total_names_its_analysis_as_a_plan_does(path, event):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([event], release="a")
        planned = compose([event]).guarantee(delta=1e-5)
        assert ledger.spent().analysis is ledger.guarantee().analysis is planned.analysis


def test_charges_add_up_at_the_fixed_moment(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        assert ledger.spent().epsilon == 0.0
        ledger.charge([Repeated(ANSWER, 40), Repeated(CHECK, 60)], release="a")
        ledger.charge([Repeated(ANSWER, 10)], release="b")
        moment = ledger.terms.budget.moment
        total = compose([Repeated(ANSWER, 50), Repeated(CHECK, 60)], [moment])
        expected = total.guarantee(delta=1e-5)
        assert ledger.spent().epsilon == expected.epsilon
        assert ledger.spent().moment == moment
    with Ledger.open(path) as again:  # another day
        assert again.spent().epsilon == expected.epsilon
        assert [charge.release for charge in again.charges()] == ["a", "b"]
        assert again.charges()[1].events == (Repeated(ANSWER, 10),)
        assert again.charges()[0].basis is Basis.FIXED_MOMENT


def test_the_filter_stops_before_the_budget(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        fitted = fill(ledger)
        spent = ledger.spent().epsilon
        assert 1.9 < spent <= 2.0
        with pytest.raises(BudgetExceeded) as refusal:
            ledger.charge([Repeated(ANSWER, 10)], release="one more")
        assert refusal.value.needed > 2.0
        assert refusal.value.spent == spent
        assert refusal.value.left == pytest.approx(2.0 - spent)
        assert ledger.spent().epsilon == spent
        assert len(ledger.charges()) == fitted
        assert ledger.guarantee().epsilon == 2.0  # not the lower running figure


def test_the_chosen_moment_wastes_little_of_the_budget(path):
    best = most(ANSWER, target=2.0, epsilon=moments_epsilon(delta=1e-5))
    assert best > 100
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([Repeated(ANSWER, math.ceil(0.99 * best))], release="a")
        with pytest.raises(BudgetExceeded):
            ledger.charge([Repeated(ANSWER, best // 50)], release="b")
    with pytest.raises(InvalidInput, match="pays for nothing"):
        moment_for(Guarantee(epsilon=1e-6, delta=1e-30, conversion=Conversion.CLASSIC))


def test_a_release_is_charged_once(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        first = ledger.charge([Repeated(ANSWER, 10)], release="labels")
        spent = ledger.spent().epsilon
        again = ledger.charge([ANSWER] * 10, release="labels")  # the same events, said differently
        assert again == first
        assert ledger.spent().epsilon == spent
        with pytest.raises(ReleaseConflict):
            ledger.charge([Repeated(ANSWER, 11)], release="labels")
        fill(ledger)
        assert ledger.charge([Repeated(ANSWER, 10)], release="labels") == first  # even when full


def test_the_odometer_reports_and_never_stops(path):
    budget = Guarantee(epsilon=math.inf, delta=1e-5)
    with Ledger.open(path, budget=budget, mode=Mode.ODOMETER) as ledger:
        assert ledger.guarantee().epsilon == 0.0
        readings = []
        for number in range(12):
            ledger.charge([Repeated(ANSWER, 4**number)], release=str(number))
            reading, running = ledger.guarantee().epsilon, ledger.spent().epsilon
            assert reading >= running  # a reading valid at all times costs something
            readings.append(reading)
        assert readings == sorted(readings)
        assert readings[-1] < 3 * running
    with pytest.raises(InvalidInput, match="filter"):
        Ledger.open(path.with_name("other.db"), budget=budget)


def test_a_plan_takes_its_best_moment_and_its_caps_hold(path):
    plan = [Repeated(CHECK, 300), Repeated(ANSWER, 100)]
    best = compose(plan).guarantee(delta=1e-5)
    with Ledger.open(path, budget=BUDGET, plan=plan) as ledger:
        assert ledger.terms.basis is Basis.PLAN
        assert ledger.guarantee().epsilon == best.epsilon
        assert ledger.guarantee().moment == best.moment
        ledger.charge([Repeated(CHECK, 200), Repeated(ANSWER, 90)], release="a")
        with pytest.raises(BudgetExceeded, match="allows 100"):
            ledger.charge([Repeated(CHECK, 10), Repeated(ANSWER, 11)], release="b")
        with pytest.raises(BudgetExceeded, match="allows 0"):
            ledger.charge([GaussianNoisyMaxAnswer(sigma=100.5)], release="c")
        ledger.charge([Repeated(CHECK, 100), Repeated(ANSWER, 10)], release="d")
        assert ledger.spent().epsilon == pytest.approx(best.epsilon, rel=1e-12)
        assert ledger.guarantee().epsilon == best.epsilon
    with Ledger.open(path, budget=BUDGET, plan=reversed(plan)) as ledger:
        assert len(ledger.charges()) == 2
    with pytest.raises(BudgetExceeded):
        Ledger.open(path.with_name("big.db"), budget=BUDGET, plan=[Repeated(ANSWER, 10**5)])
    with pytest.raises(InvalidInput, match="odometer"):
        Ledger.open(path.with_name("o.db"), budget=BUDGET, plan=plan, mode=Mode.ODOMETER)


def test_mixing_the_two_rules_is_refused(path):
    with Ledger.open(path, budget=BUDGET) as adaptive:
        adaptive.charge([ANSWER], release="a", relies_on=Basis.FIXED_MOMENT)
        with pytest.raises(MixedComposition):
            adaptive.charge([ANSWER], release="b", relies_on=Basis.PLAN)
        assert len(adaptive.charges()) == 1
    with pytest.raises(LedgerError, match="other terms"):
        Ledger.open(path, budget=BUDGET, plan=[Repeated(ANSWER, 10)])
    planned = path.with_name("planned.db")
    with Ledger.open(planned, budget=BUDGET, plan=[Repeated(ANSWER, 10)]) as ledger:
        with pytest.raises(MixedComposition):
            ledger.charge([ANSWER], release="a", relies_on=Basis.FIXED_MOMENT)
        assert ledger.charge([ANSWER], release="a").basis is Basis.PLAN


@pytest.mark.parametrize(
    "changed",
    [
        Guarantee(epsilon=3.0, delta=1e-5),
        Guarantee(epsilon=2.0, delta=1e-6),
        Guarantee(epsilon=2.0, delta=1e-5, moment=3.0),
        Guarantee(epsilon=2.0, delta=1e-5, conversion=Conversion.CLASSIC),
    ],
)
def test_terms_never_change(path, changed):
    Ledger.open(path, budget=BUDGET).close()
    Ledger.open(path, budget=BUDGET).close()
    with pytest.raises(LedgerError, match="other terms"):
        Ledger.open(path, budget=changed)


def test_neighbouring_relations_do_not_mix(path):
    budget = Guarantee(epsilon=2.0, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)
    with Ledger.open(path, budget=budget) as ledger:
        with pytest.raises(InvalidInput, match="neighbours"):
            ledger.charge([SampledGaussian(sample_rate=0.01, noise_multiplier=5.0)], release="s")
        ledger.charge([Gaussian(noise_multiplier=50.0)], release="g")
        assert len(ledger.charges()) == 1


def test_what_is_stated_for_a_replaced_record_needs_such_a_ledger(path, tmp_path):
    stated = ForReplacement(Gaussian(noise_multiplier=50.0))
    added = Guarantee(epsilon=2.0, delta=1e-5, neighbours=Neighbours.ADD_REMOVE)
    with Ledger.open(path, budget=added) as ledger:
        with pytest.raises(InvalidInput, match="neighbours"):
            ledger.charge([stated], release="s")
        assert ledger.charges() == []
        ledger.charge([SampledGaussian(sample_rate=0.01, noise_multiplier=5.0)], release="step")
    replaced = Guarantee(epsilon=2.0, delta=1e-5, neighbours=Neighbours.REPLACE_ONE)
    with Ledger.open(tmp_path / "other.db", budget=replaced) as ledger:
        ledger.charge([Repeated(stated, 2)], release="s")
        assert ledger.charge([stated, stated], release="s").number == 1  # the same, so once
        ledger.charge([ANSWER], release="a")
    with Ledger.open(tmp_path / "other.db") as again:
        assert again.charges()[0].events == (Repeated(stated, 2),)


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([ApproximateDP(epsilon=0.1, delta=1e-9)], UnsupportedEvent),
        ([], InvalidInput),
        ([Repeated(ANSWER, 0)], InvalidInput),
        (["free lunch"], UnsupportedEvent),
    ],
)
def test_what_cannot_be_accounted_for_is_not_charged(path, events, error):
    with Ledger.open(path, budget=BUDGET) as ledger:
        with pytest.raises(error):
            ledger.charge(events, release="x")
        assert ledger.charges() == []
        ledger.charge([ANSWER], release="the ledger still works")


def test_no_ledger_is_made_without_a_budget(path):
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.open(path)
    assert not path.exists()
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.open(path.parent / "nowhere" / "ledger.db", budget=BUDGET)


def test_it_is_durable_by_its_settings(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        connection = ledger._connection
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda p: p.write_bytes(b""), id="empty"),
        pytest.param(lambda p: p.write_bytes(b"not a database" * 500), id="not a database"),
        pytest.param(lambda p: p.write_bytes(p.read_bytes()[:5000]), id="cut short"),
        pytest.param(
            lambda p: p.write_bytes(p.read_bytes()[:4096] + os.urandom(len(p.read_bytes()) - 4096)),
            id="overwritten",
        ),
        pytest.param(lambda p: (p.unlink(), p.mkdir()), id="a folder"),
        pytest.param(lambda p: (p.unlink(), p.symlink_to("gone")), id="a dangling link"),
        pytest.param(lambda p: os.chmod(p, stat.S_IRUSR), id="read-only"),
    ],
)
def test_a_spoilt_file_is_an_error_and_is_left_as_it_is(path, spoil):
    with Ledger.open(path, budget=BUDGET) as ledger:
        for number in range(50):
            ledger.charge([ANSWER], release=f"release number {number}")
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    for budget in (None, BUDGET):  # a budget must not make a silent new ledger
        with pytest.raises(LedgerError) as error:
            Ledger.open(path, budget=budget)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_another_sqlite_file_is_not_a_ledger(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE terms (json TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger.open(path, budget=BUDGET)


def test_a_lost_file_with_its_journal_left_is_an_error(path):
    ledger = Ledger.open(path, budget=BUDGET)
    ledger.charge([ANSWER], release="a")
    path.unlink()
    with pytest.raises(LedgerError, match="missing"):
        Ledger.open(path, budget=BUDGET)
    ledger.close()


def occupy(filler):
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 1024)


def charge_many(ledger):
    for number in range(200):
        ledger.charge([ANSWER], release=f"after {number} " + "x" * 2000)


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 300 KB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        shutil.rmtree(place)


def leave_free(place, kilobytes):
    """Fills a disk but for so much."""
    filler = place / "filler"
    occupy(filler)
    os.truncate(filler, filler.stat().st_size - kilobytes * 1024)
    return filler


def test_a_full_disk_charges_nothing(small_disk):
    path = small_disk / "ledger.db"
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([ANSWER], release="before")
        filler = leave_free(small_disk, 0)
        with pytest.raises(LedgerError, match="disk"):
            charge_many(ledger)
        count = len(ledger.charges())
        filler.unlink()
        ledger.charge([ANSWER], release="room again")
        assert len(ledger.charges()) == count + 1
        total = compose([Repeated(ANSWER, count + 1)], [ledger.terms.budget.moment])
        assert ledger.spent().epsilon == total.guarantee(delta=1e-5).epsilon


def test_a_nearly_full_disk_makes_a_whole_ledger_or_none(small_disk):
    """Whatever room there is: a ledger that is there can be used once there is more."""
    path, made, said = small_disk / "ledger.db", [], []
    for kilobytes in range(40, 204, 4):
        filler = leave_free(small_disk, kilobytes)
        try:
            with Ledger.open(path, budget=BUDGET) as ledger:
                ledger.charge([ANSWER], release="at once")
            made.append(kilobytes)
        except LedgerError as error:
            said.append(str(error))
        filler.unlink()
        with Ledger.open(path, budget=BUDGET) as ledger:
            ledger.charge([ANSWER], release="at once")
            ledger.charge([ANSWER], release="later")
            assert len(ledger.charges()) == 2
            assert ledger._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert {each.name for each in small_disk.iterdir()} == {"ledger.db"}
        path.unlink()
    assert made, "there was never enough room"
    assert said, "there was always enough room"
    assert not any("\n" in each or "backup" in each for each in said)


def test_opening_on_a_full_disk_asks_for_room_and_not_for_a_backup(small_disk):
    path, said = small_disk / "ledger.db", []
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([ANSWER], release="before")
    for kilobytes in range(0, 60, 4):
        filler = leave_free(small_disk, kilobytes)
        try:
            Ledger.open(path).close()
        except LedgerError as error:
            said.append(str(error))
        filler.unlink()
        with Ledger.open(path) as ledger:
            assert len(ledger.charges()) == 1
    assert said, "there was always enough room"
    assert all("the disk is full" in each and "backup" not in each for each in said)


def test_the_ledger_holds_no_votes(path):
    """Its columns are all there is: ids, parameters of noise, counts, a time."""
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([Repeated(LaplaceNoisyMaxAnswer(scale=50.0), 3)], release="r")
        dump = "\n".join(ledger._connection.iterdump())
    assert '{"event": "LaplaceNoisyMaxAnswer", "scale": 50.0}' in dump.replace("''", "'")
    tables = {line.split('"')[1] for line in dump.splitlines() if line.startswith("INSERT")}
    assert tables == {"terms", "charges", "entries", "totals", "running"}


def test_one_event_written_in_two_ways_is_one_event(path):
    """50 and 50.0 are the same noise; counted apart, one would hide the other."""
    assert event_to_json(LaplaceNoisyMaxAnswer(scale=50)).endswith('"scale": 50.0}')
    with Ledger.open(path, budget=Guarantee(epsilon=4.0, delta=1e-5)) as ledger:
        ledger.charge([LaplaceNoisyMaxAnswer(scale=50)], release="whole")
        ledger.charge([LaplaceNoisyMaxAnswer(scale=50.0)], release="fraction")
        # A file in which they stand apart, however it came to be:
        ledger._connection.execute(
            "UPDATE entries SET event = replace(event, '50.0', '50') WHERE charge = 1"
        )
        assert fill_with(ledger, [Repeated(LaplaceNoisyMaxAnswer(scale=50.0), 400)]) < 5
        total = compose(
            [event for charge in ledger.charges() for event in charge.events],
            [ledger.terms.budget.moment],
        )
        assert ledger.spent().epsilon == total.guarantee(delta=1e-5).epsilon <= 4.0


def test_a_ledger_is_not_carried_over_a_fork(path):
    with Ledger.open(path, budget=BUDGET) as ledger:
        ledger.charge([ANSWER], release="parent")
        child = os.fork()
        if child == 0:
            try:
                ledger.charge([ANSWER], release="child")
            except LedgerError as error:
                os._exit(7 if "another process" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert [charge.release for charge in ledger.charges()] == ["parent"]


def test_a_second_name_is_refused_and_a_crashed_creation_is_not(path):
    Ledger.open(path, budget=BUDGET).close()
    os.link(path, path.with_name("other.db"))
    for name in (path, path.with_name("other.db")):
        with pytest.raises(LedgerError, match="second name"):
            Ledger.open(name)
    path.with_name("other.db").unlink()
    draft = path.with_name(".ledger-crashed")
    draft.mkdir()
    os.link(path, draft / "ledger")  # what a kill between link and clean-up leaves
    other = path.with_name(".ledger-killed")
    other.mkdir()
    (other / "ledger").write_bytes(b"half of one")  # and a kill before the link
    with Ledger.open(path) as ledger:
        ledger.charge([ANSWER], release="a")
    assert not draft.exists()
    assert not other.exists()


def test_small_mistakes_are_told(path):
    for release in ("", "two\nlines", "\udc80"):
        with Ledger.open(path, budget=BUDGET) as ledger, pytest.raises(InvalidInput, match="id"):
            ledger.charge([ANSWER], release=release)
    with pytest.raises(InvalidInput, match="together with a budget"):
        Ledger.open(path, plan=[ANSWER])
    with pytest.raises(InvalidInput, match="moment"):
        Guarantee(epsilon=1.0, delta=1e-5, moment=math.nan)
    ledger = Ledger.open(path)
    ledger.close()
    with pytest.raises(LedgerError, match="after closing"):
        ledger.charges()
    endless = Guarantee(epsilon=math.inf, delta=1e-5, moment=60.0)
    with Ledger.open(path.with_name("o.db"), budget=endless, mode=Mode.ODOMETER) as odometer:
        odometer.charge([SmoothRelease(beta=0.01, sigma=1.0)], release="no bound at this moment")
        assert odometer.guarantee().epsilon == math.inf
