"""Kill -9 at any moment: what was paid is released once, and a second run ends complete."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from pate.accounting import Ledger
from pate.artifacts import Store
from pate.stages.catalogue import STAGES

KILLS = 15  # in each half
WORDS = ("run", "tiny.toml", "--plugin-path", "plugins", "--engine")
RELEASES = {"aggregate": "pending-labels", "account": "pending-sanitised"}

SLEEPER = '''
import time
import numpy as np


class Sleeper:
    """Learns the commonest label, slowly; notes each training in a file."""

    def __init__(self, classes, journal, nap):
        self.classes, self.journal, self.nap = classes, journal, nap
        self.label = 0

    def fit(self, X, y):
        time.sleep(self.nap)
        self.label = int(np.bincount(y, minlength=self.classes).argmax())
        with open(self.journal, "a") as file:
            file.write("trained\\n")

    def predict(self, X):
        return np.full(len(X), self.label)
'''

# Python and what a run imports are loaded once, by a run that is let through; then every run is a
# forked process in a group of its own. So kills fall on the work, not on seconds of importing.
LAUNCHER = """
import contextlib, io, json, os, sys
from pate.cli import main

def run(words):
    sys.argv = ["pate", *words]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)

def child(words, said):
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(said, os.O_WRONLY), 1)
        code = run(words)
        sys.stdout.flush()
    finally:
        os._exit(code)

with contextlib.redirect_stdout(io.StringIO()):
    assert run(json.loads(sys.stdin.readline())) == 0
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        child(*json.loads(line))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Launcher:
    """Starts the command again and again, one process at a time, without loading it again."""

    def __init__(self, project):
        self.said = project.folder / "said"  # where a run's words come out
        os.mkfifo(self.said)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER],
            cwd=project.folder,
            env=project.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._tell([*WORDS, "serial"]) == "ready"

    def _tell(self, order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self):
        return self.process.stdout.readline().strip()

    def start(self, engine):
        return Launched(self, int(self._tell([[*WORDS, engine], str(self.said)])))

    def close(self):
        self.process.communicate(timeout=60)


class Launched:
    """A run that a launcher forked, to be treated as if it were a ``Popen``."""

    def __init__(self, launcher, pid):
        self.launcher, self.pid = launcher, pid
        # opening waits for the other end, which is opened once the run has a group of its own
        self.stdout = os.fdopen(os.open(launcher.said, os.O_RDONLY), "rb")

    def wait(self):
        return int(self.launcher.hear())


def start(project, engine="processes:2"):
    """The command in a process group of its own."""
    return subprocess.Popen(
        project.command(*WORDS, engine),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for(process, stage):
    """Until the command comes to a stage, or ends."""
    for line in process.stdout:
        if line.startswith(f"{stage}:".encode()):
            return


def undisturbed(launcher, engine, *, since=None):
    """How long a run takes, all of it or from a stage on."""
    process = launcher.start(engine)
    began = time.perf_counter()
    if since is not None:
        wait_for(process, since)
        began = time.perf_counter()
    with process.stdout as said:
        said.read()
    assert process.wait() == 0
    return time.perf_counter() - began


def kill_group(process):
    """Ends the command and all its workers at once; True if it was still running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    running = process.wait() == -signal.SIGKILL
    process.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return running
        time.sleep(0.005)
    raise AssertionError("a worker outlived SIGKILL")


def charges(project):
    """What was charged, and the ledger is whole."""
    if not project.ledger.exists():
        return []
    with Ledger.open(project.ledger) as ledger:
        assert ledger._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [charge.release for charge in ledger.charges()]


def finished(project, stage):
    """Finished artifacts of a stage, as the store sees them."""
    return Store(root=project.run_folder, reader="evaluate").all(stage)


def same_answer(released, pending):
    """A release says what was drawn, byte for byte."""
    if pending.stage == "pending-labels":
        return all(
            (released.path / file.name).read_bytes() == file.read_bytes()
            for file in pending.path.glob("*.npy")
        )
    published = json.loads((released.path / "guarantees.json").read_text())["sanitised"]
    return published == json.loads((pending.path / "sanitised.json").read_text())


def audit(project):
    """At any moment: nothing is out that is not paid for, and nothing was paid for twice."""
    paid = charges(project)
    assert len(set(paid)) == len(paid)
    kinds = Counter(release.split()[0] for release in paid)
    assert kinds <= Counter({"labels": 1, "sanitised": 1})
    for stage, pending in RELEASES.items():
        drawn, out = finished(project, pending), finished(project, stage)
        assert len(drawn) <= 1
        assert len(out) <= len(drawn)
        assert kinds[pending.removeprefix("pending-")] in {len(out), len(drawn)}
        for released in out:
            assert same_answer(released, drawn[0])
    for artifact in project.run_folder.glob("*/*/[!.]*"):  # no folder without a whole manifest
        assert artifact in {whole.path for whole in finished(project, artifact.parent.name)}
    return paid


def drafts(project):
    return list(project.run_folder.glob("*/*/.draft-*"))


def drawn_bytes(project):
    """Everything that was drawn so far: it must never be drawn again."""
    return {
        str(file): file.read_bytes()
        for pending in RELEASES.values()
        for artifact in finished(project, pending)
        for file in sorted(artifact.path.iterdir())
    }


def complete(project, paid_before, drawn_before):
    """A run again, to its end: the same answers, one charge for each, and no leftovers."""
    project.run("--quiet")
    paid = audit(project)
    assert sorted(release.split()[0] for release in paid) == ["labels", "sanitised"]
    assert paid[: len(paid_before)] == paid_before
    assert drawn_before.items() <= drawn_bytes(project).items()
    assert not drafts(project)
    store = Store(root=project.run_folder, reader="evaluate")
    for stage in STAGES:
        (artifact,) = finished(project, stage.name)
        store.open(stage.name, artifact.manifest["made_from"])
    assert len(finished(project, "teacher")) == 6


@pytest.fixture
def launcher(project):
    with contextlib.closing(Launcher(project)) as made:
        yield made


def fresh(project):
    """A run folder and a ledger as if nothing had been."""
    shutil.rmtree(project.run_folder, ignore_errors=True)
    shutil.rmtree(project.ledger.parent, ignore_errors=True)


@pytest.mark.parametrize(("engine", "since"), [("processes:2", None), ("serial", "aggregate")])
def test_killed_thirty_times(project, launcher, engine, since):
    """Thirty kills in two halves, at random moments of an undisturbed run's measured duration.

    One half is spread over the whole run, which spends most of its time on teachers; the other
    over what comes from ``aggregate`` on, where charges are made. A killed run is started again
    and killed again, up to three times; then it is let through and audited whole.
    """
    fresh(project)
    duration = undisturbed(launcher, engine, since=since)
    audit(project)
    fresh(project)
    rng = random.Random(30)
    shares = [(number + rng.random()) / KILLS for number in range(KILLS)]
    rng.shuffle(shares)
    found: Counter[str] = Counter()
    kills = attempts = in_a_row = 0
    while kills < KILLS:
        attempts += 1
        assert attempts < 4 * KILLS, "most runs ended before they were killed"
        process = launcher.start(engine)
        if since is not None:
            wait_for(process, since)
        time.sleep(shares[kills] * duration)
        if kill_group(process):
            kills += 1
            in_a_row += 1
            paid, drawn = audit(project), drawn_bytes(project)
            done = [stage.name for stage in STAGES if finished(project, stage.name)]
            found[done[-1] if done else "nothing"] += 1
            if in_a_row == 3 or kills == KILLS:
                complete(project, paid, drawn)
        else:  # it was through before its moment: an earlier one, from nothing
            assert len(audit(project)) == 2
            duration *= 1 if in_a_row and in_a_row < 3 else 0.8
            in_a_row = 3
        if in_a_row == 3:
            fresh(project)
            in_a_row = 0
    assert len(found) > 1, "all kills hit the same stage"
    print(f"\n{kills} kills over {duration:.2f} s; the last finished stage: {dict(found)}")


@pytest.mark.parametrize("stage", ["aggregate", "account"])
@pytest.mark.parametrize("moment", ["drawn", "charged", "published"])
def test_killed_on_either_side_of_the_charge(project, stage, moment):
    """The moments that matter most are too short to be hit by chance: the process ends itself."""
    pending = RELEASES[stage]
    before = {
        "drawn": "Ledger.charge = die",
        "charged": "charge = Ledger.charge\n"
        "Ledger.charge = lambda *a, **k: (charge(*a, **k), die())",
        "published": "publish = store._publish\n"
        f"store._publish = lambda w, f, **k: (publish(w, f, **k), "
        f"f.parent.name == '{stage}' and die())",
    }[moment]
    if stage == "account" and moment != "published":  # the first charge is the labels'
        project.run("--quiet", stage="aggregate")
    code = (
        "import os, signal, sys\n"
        "from pate.accounting import Ledger\n"
        "from pate.artifacts import store\n"
        "from pate.cli import main\n"
        "def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{before}\n"
        f"sys.argv = ['pate', *{WORDS!r}, 'serial']\n"
        "main()\n"
    )
    command = [project.command()[0], "-c", code]
    done = subprocess.run(
        command, cwd=project.folder, env=project.environment(), capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    paid, drawn = audit(project), drawn_bytes(project)
    assert len(finished(project, pending)) == 1
    assert len(finished(project, stage)) == (moment == "published")
    kinds = [release.split()[0] for release in paid]
    assert (pending.removeprefix("pending-") in kinds) == (moment != "drawn")
    complete(project, paid, drawn)


def test_a_lost_answer_is_not_drawn_again_for_free(project):
    project.run("--quiet")
    paid = charges(project)
    shutil.rmtree(project.run_folder)
    refused = project.run("--quiet", code=3)
    assert "--spend" in refused.stderr
    assert charges(project) == paid
    assert not finished(project, "aggregate")
    project.run("--quiet", "--spend")
    again = charges(project)
    assert again[: len(paid)] == paid
    assert len(again) > len(paid)


def test_killed_while_teaching(project):
    """Twelve teachers of 0.2 s each: the second run trains those that the first did not."""
    journal = project.folder / "journal"
    project.plugin("sleeper", SLEEPER)
    params = {"journal": str(journal), "nap": 0.2}
    project.write(teachers={"count": 12, "model": "sleeper:Sleeper", "params": params})
    process = start(project)
    deadline = time.monotonic() + 60
    while len(finished(project, "teacher")) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert kill_group(process)
    time.sleep(1.5)  # workers have groups of their own, and see within 0.2 s that they are alone
    kept = {artifact.path: artifact.path.stat().st_mtime_ns for artifact in
            finished(project, "teacher")}  # fmt: skip
    assert 4 <= len(kept) < 12
    assert not charges(project)
    journal.unlink()
    project.run("--quiet", "--json-logs", stage="teach")
    assert journal.read_text().count("trained") == 12 - len(kept)
    assert len(finished(project, "teacher")) == 12
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert not drafts(project)


def test_half_written_drafts_are_nothing(project):
    """What a kill leaves behind, with a manifest or without, is neither read nor kept."""
    project.run("--quiet", stage="partition")
    (partition,) = finished(project, "partition")
    leftovers = [
        partition.path.parent / ".draft-whole",
        project.run_folder / "private" / "vote" / ".draft-whole",
        project.run_folder / "released" / "aggregate" / ".draft-half",
    ]
    for leftover in leftovers:
        leftover.mkdir(parents=True)
        if leftover.name == ".draft-whole":
            shutil.copytree(partition.path, leftover, dirs_exist_ok=True)
    status = project.pate("status", "runs/tiny", "--plugin-path", "plugins").stdout
    lines = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in
             status.splitlines() if line.startswith("│")}  # fmt: skip
    assert lines["partition"] == "done"
    assert lines["vote"].startswith("missing")
    assert [len(finished(project, stage)) for stage in ("partition", "vote", "aggregate")] == [
        1,
        0,
        0,
    ]
    project.run("--quiet")
    assert not drafts(project)
    assert len(finished(project, "vote")) == 1


def test_two_runs_at_once_pay_once(project):
    """Both end well, with one draw, one charge, and the same labels."""
    with start(project) as first, start(project) as second:
        first.communicate()
        second.communicate()
    assert (first.returncode, second.returncode) == (0, 0)
    paid = audit(project)
    assert sorted(release.split()[0] for release in paid) == ["labels", "sanitised"]
    assert len(np.load(finished(project, "aggregate")[0].path / "labels.npy")) == 12
