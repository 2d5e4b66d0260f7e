"""Kill -9 at any moment: what was paid is released once, and a second run ends complete."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter

import numpy as np
import pytest

from pate.accounting import Ledger
from pate.artifacts import Store
from pate.stages import STAGES

KILLS = 30
WORDS = ("run", "tiny.toml", "--plugin-path", "plugins", "--engine", "processes:2")
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


def start(project):
    """The command in a process group of its own."""
    return subprocess.Popen(
        project.command(*WORDS),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_group(process):
    """Ends the command and all its workers at once; True if it was still running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    running = process.wait() == -signal.SIGKILL
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


def test_killed_thirty_times(project):
    """Moments are spread evenly over the duration of an undisturbed run, which is measured.

    A killed run is started again and killed again, up to three times; then it is let through to
    its end, audited whole, and a new one begins from nothing.
    """
    began = time.perf_counter()
    assert start(project).wait() == 0
    duration = time.perf_counter() - began
    audit(project)

    rng = random.Random(30)
    shares = [(number + rng.random()) / KILLS for number in range(KILLS)]
    rng.shuffle(shares)
    found: Counter[str] = Counter()
    kills = attempts = in_a_row = 0
    while kills < KILLS:
        attempts += 1
        assert attempts < 3 * KILLS, "most runs ended before they were killed"
        if in_a_row == 0:
            shutil.rmtree(project.run_folder)
            shutil.rmtree(project.ledger.parent)
        began = time.perf_counter()
        process = start(project)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(shares[kills] * duration)
        took = time.perf_counter() - began
        if kill_group(process):
            kills += 1
            in_a_row = (in_a_row + 1) % 3
            paid, drawn = audit(project), drawn_bytes(project)
            done = [stage.name for stage in STAGES if finished(project, stage.name)]
            found[done[-1] if done else "nothing"] += 1
            if in_a_row == 0:
                complete(project, paid, drawn)
        else:  # it was through before its moment: the same moment again, from nothing
            assert len(audit(project)) == 2
            duration = took if in_a_row == 0 else duration
            in_a_row = 0
    assert len(found) > 2, "all kills hit the same stage"
    print(f"\n{kills} kills in runs of {duration:.1f} s; the last finished stage: {dict(found)}")


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
        f"sys.argv = ['pate', *{WORDS[:-1]!r}, 'serial']\n"
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
    first, second = start(project), start(project)
    assert (first.wait(), second.wait()) == (0, 0)
    paid = audit(project)
    assert sorted(release.split()[0] for release in paid) == ["labels", "sanitised"]
    assert len(np.load(finished(project, "aggregate")[0].path / "labels.npy")) == 12
