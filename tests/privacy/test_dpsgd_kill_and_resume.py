"""Training processes, really killed: one charge, one ε, and one draw of every step."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from dpsgd import Trainer
from pate.accounting import Guarantee, Ledger, Repeated, SampledGaussian, compose

EPOCHS, RECORDS, LOT, Z, DELTA = 6, 400, 20, 2.0, 1e-4
STEPS = EPOCHS * RECORDS // LOT

# Torch is loaded once; every run is a process of its own, killed after a random time.
PROGRAM = """
import hashlib, json, os, random, signal, sys, time
import torch
from torch import nn
from dpsgd import Trainer
from pate.accounting import Ledger

torch.set_num_threads(1)
checkpoint, ledger, journal = sys.argv[1:]

def digest(model):
    seen = hashlib.sha256()
    for value in model.parameters():
        seen.update(value.detach().numpy().tobytes())
    return seen.hexdigest()

def show(*line):  # whatever anybody gets to see of the run
    handle = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, (json.dumps(line) + "\\n").encode())
    os.fsync(handle)
    os.close(handle)

def make(**more):
    model = nn.Linear(20, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(400, 20), torch.randint(0, 3, (400,))
    return model, Trainer(model, optimizer, dataset=data, lot_size=20, max_grad_norm=1.0,
                          noise_multiplier=2.0, delta=1e-4, checkpoint_every=3, **more)

make(checkpoint=checkpoint + ".warm")[1].fit(steps=1)  # what is loaded once need not be again

def run():
    with Ledger.open(ledger) as opened:
        model, trainer = make(ledger=opened, checkpoint=checkpoint)
        show("started", trainer.steps, digest(model))

        def evaluate(model):
            show("seen", trainer.steps, digest(model))
            if trainer.steps and kills < 2:  # however busy the machine is, these two are killed
                time.sleep(600)
            return 0.5

        trainer.fit(epochs=6, evaluate=evaluate)
        show("done", trainer.steps, digest(model), trainer.epsilon().epsilon)

def start():
    child = os.fork()
    if not child:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return child

clock = random.Random(5)
kills = 0

def lines(beginning):
    return os.path.exists(journal) and open(journal).read().count(beginning)

while True:
    before = lines('["started"')
    child = start()
    while lines('["started"') == before or kills == 1 and not lines('["seen", 20,'):
        time.sleep(0.0005)  # until it has begun; the second, until the end of its first epoch
    time.sleep(clock.uniform(0.0, 0.02 * (1 + kills)))  # soon at first, so that some kills hit
    kills += 1
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    if code == 0 or '"done"' in open(journal).readlines()[-1]:  # killed after its last word
        break
    assert code == -signal.SIGKILL, code
assert os.waitstatus_to_exitcode(os.waitpid(start(), 0)[1]) == 0  # once more, after the end
"""


# Two copies of a run that was killed go on at the same moment; in each round at most one ends.
COPIES = """
import os, shutil, signal, sys, time
exec(open(sys.argv.pop(1)).read().split("def run():")[0])
from pate.errors import PateError

def run(path, journal, begin=None):
    def begun(model):
        if not trainer.steps:  # tried before the charge
            return 0.5
        if begin is None and os.path.exists(journal):  # in the middle until it is killed
            time.sleep(600)
        handle = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, (json.dumps([trainer.steps, digest(model)]) + "\\n").encode())
        os.close(handle)
        return 0.5

    while begin is not None and time.time() < begin:
        pass
    with Ledger.open(ledger) as opened:
        try:
            model, trainer = make(ledger=opened, checkpoint=path)
            trainer.fit(epochs=6, evaluate=begun)
        except PateError as error:
            return 2 if "one draw" in str(error) or "not the last" in str(error) else 3
    return 0

def start(*arguments):
    child = os.fork()
    if not child:
        code = 1
        try:
            code = run(*arguments)
        finally:
            os._exit(code)
    return child

clock = random.Random(7)
ended = []
for number in range(int(os.environ["ROUNDS"])):
    first, second = (f"{checkpoint}.{number}.{name}" for name in "ab")
    shown = f"{journal}.{number}"
    child = start(first, shown)
    while not os.path.exists(shown):
        time.sleep(0.0005)
    if clock.random() < 0.5:
        shutil.copy(first, second)  # of the live run
    time.sleep(clock.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not os.path.exists(second):
        shutil.copy(first, second)
    begin = time.time() + 0.02
    children = [start(path, shown, begin) for path in (first, second)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    ended.append(sorted(codes))
    seen = {}
    for at, weights in map(json.loads, open(shown)):
        seen.setdefault(at, set()).add(weights)
    assert all(len(each) == 1 for each in seen.values()), (number, codes, seen)
print(json.dumps(ended))
"""


@pytest.mark.campaign
def test_of_two_copies_resumed_together_at_most_one_ends(tmp_path):
    """Real processes, several rounds; whatever was shown of a step, it was one draw."""
    rounds = 25
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = tmp_path / "ledger.db"
    Ledger.open(path, budget=Guarantee(epsilon=200.0, delta=DELTA)).close()
    command = [sys.executable, "-c", COPIES, str(program), str(tmp_path / "run"), str(path),
               str(tmp_path / "journal")]  # fmt: skip
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=300,
        env=os.environ | {"ROUNDS": str(rounds)},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    ends = json.loads(finished.stdout.splitlines()[-1])
    assert {tuple(each) for each in ends} == {(0, 2)}, ends
    with Ledger.open(path) as ledger:
        assert len(ledger.charges()) == rounds


@pytest.mark.campaign
def test_killed_at_any_moment_a_run_costs_what_it_would_have(tmp_path):
    checkpoint, path, journal = (tmp_path / name for name in ("run", "ledger.db", "journal"))
    Ledger.open(path, budget=Guarantee(epsilon=30.0, delta=DELTA)).close()
    command = [sys.executable, "-c", PROGRAM, str(checkpoint), str(path), str(journal)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    kills = finished.stdout.split().count("-9")
    assert kills >= 2, "it ended too soon to be killed"

    shown = [json.loads(line) for line in journal.read_text().splitlines()]
    step = SampledGaussian(sample_rate=LOT / RECORDS, noise_multiplier=Z)
    uninterrupted = make(None, steps_of=LOT).fit(epochs=EPOCHS).epsilon().epsilon
    assert uninterrupted == compose([Repeated(step, STEPS)]).guarantee(delta=DELTA).epsilon
    ends = [line for line in shown if line[0] == "done"]
    assert len(ends) == 2
    assert all((at, epsilon) == (STEPS, uninterrupted) for _, at, _, epsilon in ends)
    with Ledger.open(path) as ledger:
        assert [each.events for each in ledger.charges()] == [(Repeated(step, STEPS),)]

    # No step that was ever shown has two outcomes. (Step 0 is each process's own random start.)
    outcomes = {}
    for _, at, digest, *_ in shown:
        outcomes.setdefault(at, set()).add(digest)
    assert all(len(digests) == 1 for at, digests in outcomes.items() if at)
    assert set(outcomes) >= {STEPS * epoch // EPOCHS for epoch in range(1, EPOCHS + 1)}
    resumed_at = sorted({at for kind, at, *_ in shown if kind == "started"} - {STEPS})
    assert len(resumed_at) > 1, "every process was killed before its first checkpoint"
    print(f"\n{kills} kills; went on at steps {resumed_at}; one charge")


def make(path, *, ledger=None, steps_of=10):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    records = RECORDS if path is None else 50
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=(torch.ones(records, 4), torch.zeros(records, dtype=torch.long)),
        lot_size=steps_of,
        max_grad_norm=1.0,
        noise_multiplier=Z,
        delta=DELTA,
        ledger=ledger,
        checkpoint=path,
    )


class Crash(BaseException):
    pass


def crash(*arguments, **more):
    raise Crash


@pytest.mark.parametrize("moments", [["plan"], ["charge"], ["plan", "charge", "plan", "charge"]])
def test_a_crash_around_the_charge_is_one_charge(tmp_path, monkeypatch, moments):
    """The plan is on disk and the charge is not, or both are and no step was taken."""
    path = tmp_path / "run"
    budget = Guarantee(epsilon=30.0, delta=DELTA)
    with Ledger.open(tmp_path / "ledger.db", budget=budget) as ledger:
        names = set()
        for moment in moments:
            trainer = make(path, ledger=ledger)
            with monkeypatch.context() as patch, contextlib.suppress(Crash):
                if moment == "plan":
                    patch.setattr(Ledger, "charge", crash)
                else:
                    patch.setattr(trainer, "_carry_out", crash)
                trainer.fit(epochs=2)
                raise AssertionError("it did not crash")
            names |= {trainer._plans.last.release}
        assert make(path, ledger=ledger).fit(epochs=2).steps == 10
        assert {each.release for each in ledger.charges()} == names
        assert len(names) == 1


def test_a_plan_that_was_never_paid_may_be_changed(tmp_path, monkeypatch):
    path = tmp_path / "run"
    budget = Guarantee(epsilon=30.0, delta=DELTA)
    with Ledger.open(tmp_path / "ledger.db", budget=budget) as ledger:
        killed = make(path, ledger=ledger)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "charge", crash)
            with pytest.raises(Crash):
                killed.fit(epochs=400)
        trainer = make(path, ledger=ledger).fit(epochs=1)
        (charge,) = ledger.charges()
        assert sum(each.count for each in charge.events) == 5
        assert trainer.planned() == trainer.epsilon()
