"""Commands that are killed -9, and what must hold afterwards: for tests and campaigns alike."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections import Counter

from harness import CommandServer

from pate.accounting import (
    GaussianNoisyMaxAnswer,
    Guarantee,
    Ledger,
    Repeated,
    compose,
)
from pate.artifacts import Level, Store
from pate.artifacts.manifest import ORIGINS, read_manifest, verify
from pate.errors import BudgetExceeded
from pate.stages.catalogue import STAGES

WORDS = ("run", "tiny.toml", "--plugin-path", "plugins", "--engine")
RELEASES = {"aggregate": "pending-labels", "account": "pending-sanitised"}


class Launcher(CommandServer):
    """Starts the same run again and again; its output can be read while it goes on."""

    def __init__(self, project):
        super().__init__(project, ["pate", *WORDS, "serial"])
        self.said = project.folder / "said"  # where a run's words come out
        os.mkfifo(self.said)

    def start(self, engine):
        return Launched(self, self.fork("pate", *WORDS, engine, out=self.said))

    def run(self, engine="serial"):
        """A run that nobody disturbs."""
        launched = self.start(engine)
        with launched.stdout as said:
            said.read()
        assert launched.wait() == 0


class Launched:
    """A run that a launcher forked, to be treated as if it were a ``Popen``."""

    def __init__(self, launcher, pid):
        self.launcher, self.pid = launcher, pid
        # opening waits for the other end, which is opened once the run has a group of its own
        self.stdout = os.fdopen(os.open(launcher.said, os.O_RDONLY), "rb")

    def wait(self):
        return self.launcher.wait()


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


def undisturbed(launcher, engine):
    """How long each stage of a run takes."""
    process = launcher.start(engine)
    with process.stdout as said:
        began = [(line.split(b":")[0].decode(), time.perf_counter()) for line in said]
    ended = [*(moment for _, moment in began[1:]), time.perf_counter()]
    assert process.wait() == 0
    lasted = {name: end - start for (name, start), end in zip(began, ended, strict=True)}
    return {stage.name: lasted[stage.name] for stage in STAGES}


def kill_group(process):
    """Kill the command and wait for its workers; True if it was still running.

    Workers lead process groups of their own and exit within a second of their driver. Until then
    they hold the locks of their drafts, so the next command would leave those alone.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    running = process.wait() == -signal.SIGKILL
    process.stdout.close()
    deadline = time.monotonic() + 20
    while session_members(process.pid):
        assert time.monotonic() < deadline, "a worker outlived its driver"
        time.sleep(0.005)
    return running


def session_members(session):
    """The ids of the processes in a session, which a command's workers share with it."""
    members = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(ValueError, ProcessLookupError):
            if os.getsid(int(entry)) == session:
                members.append(int(entry))
    return members


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


def published(project, stage):
    """Folders of a stage that are in the open; a kill may come before their origin is written."""
    return sorted(project.run_folder.glob(f"released/{stage}/[!.]*"))


def same_answer(released, pending):
    """A release says what was drawn, byte for byte."""
    if pending.stage == "pending-labels":
        return all(
            (released / file.name).read_bytes() == file.read_bytes()
            for file in pending.path.glob("*.npy")
        )
    published = json.loads((released / "guarantees.json").read_text())["sanitised"]
    return published == json.loads((pending.path / "sanitised.json").read_text())


def audit(project):
    """At any moment: nothing is out that is not paid for, and nothing was paid for twice."""
    paid = charges(project)
    assert len(set(paid)) == len(paid)
    kinds = Counter(release.split()[0] for release in paid)
    assert kinds <= Counter({"labels": 1, "sanitised": 1})
    for stage, pending in RELEASES.items():
        drawn, out = finished(project, pending), published(project, stage)
        assert len(drawn) <= 1
        assert len(out) <= len(drawn)
        assert kinds[pending.removeprefix("pending-")] in {len(out), len(drawn)}
        for released in out:
            assert same_answer(released, drawn[0])
    for level in Level:  # no folder without a whole manifest
        for folder in (project.run_folder / level.folder).glob("*/[!.]*"):
            if folder.parent.name != ORIGINS:
                verify(folder, read_manifest(folder, stage=folder.parent.name, level=level))
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
    """After a run to its end: the same answers as before, one charge for each, no leftovers."""
    paid = audit(project)
    assert sorted(release.split()[0] for release in paid) == ["labels", "sanitised"]
    assert paid[: len(paid_before)] == paid_before
    assert drawn_before.items() <= drawn_bytes(project).items()
    assert not drafts(project)
    store = Store(root=project.run_folder, reader="evaluate")
    for stage in STAGES:
        (artifact,) = finished(project, stage.name)
        assert published(project, stage.name) in ([], [artifact.path])
        store.open(stage.name, artifact.manifest["made_from"])
    assert len(finished(project, "teacher")) == 6


def fresh(project):
    """A run folder and a ledger as if nothing had been."""
    shutil.rmtree(project.run_folder, ignore_errors=True)
    shutil.rmtree(project.ledger.parent, ignore_errors=True)


def kill_runs(project, launcher, *, engine, since, kills, rng):
    """Kills runs at moments spread over each stage as long as it takes; audits each time.

    ``since`` is the first stage that is hit. A killed run is started again and killed again, up to
    three times; then it is let through and audited whole. Returns how many runs had which stage
    finished last when they were killed.
    """
    fresh(project)
    lasted = undisturbed(launcher, engine)
    audit(project)
    fresh(project)
    stages = list(lasted)[list(lasted).index(since) if since else 0 :]
    rng.shuffle(stages)
    found: Counter[str] = Counter()
    killed = attempts = in_a_row = 0
    while killed < kills:
        attempts += 1
        assert attempts < 4 * kills, "most runs ended before they were killed"
        stage = stages[killed % len(stages)]
        process = launcher.start(engine)
        wait_for(process, stage)
        time.sleep(rng.random() * lasted[stage])
        if kill_group(process):
            killed += 1
            in_a_row += 1
            paid, drawn = audit(project), drawn_bytes(project)
            done = [stage.name for stage in STAGES if finished(project, stage.name)]
            found[done[-1] if done else "nothing"] += 1
            if in_a_row == 3 or killed == kills:
                launcher.run()
                complete(project, paid, drawn)
        else:  # it was through before its moment: an earlier one, from nothing
            assert len(audit(project)) == 2
            lasted[stage] *= 0.8
            in_a_row = 3
        if in_a_row == 3:
            fresh(project)
            in_a_row = 0
    print(f"\n{kills} kills; the last finished stage: {dict(found)}")
    return found


# --- a ledger alone -----------------------------------------------------------------------------

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


def audit_ledger(path, journal, budget):
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


def kill_charging(folder, *, kills, rng):
    """Kills processes that charge a ledger in a loop; audits it each time, and returns its figures.

    Every second process is let publish something first, however busy the machine is; each lives for
    up to 10 ms (more).
    """
    path, journal = folder / "ledger.db", folder / "published"
    budget = Guarantee(epsilon=50.0, delta=1e-5)
    Ledger.open(path, budget=budget).close()
    journal.touch()
    charged = published = 0
    for number in range(kills):
        before = journal.stat().st_size
        worker = fork.Process(target=charge_and_publish, args=(path, journal, number))
        worker.start()
        while number % 2 and journal.stat().st_size == before:
            assert worker.is_alive()
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.01))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        assert worker.exitcode == -signal.SIGKILL, "the budget ran out before the kill"
        charged, published = audit_ledger(path, journal, budget)
    return charged, published
