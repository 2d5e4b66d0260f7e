"""Kill -9 at any moment: what was paid is released once, and a second run ends complete."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kills import (
    RELEASES,
    WORDS,
    audit,
    charges,
    complete,
    drafts,
    drawn_bytes,
    finished,
    kill_group,
    published,
    start,
)

from pate.api import make_options, prepare_run

SLEEPER = '''
import time
from pathlib import Path
import numpy as np


class Sleeper:
    """Learns the commonest label and notes it; after six trainings, once it may go on."""

    def __init__(self, classes, journal, go_on):
        self.classes, self.journal, self.go_on = classes, journal, go_on
        self.label = 0

    def fit(self, X, y):
        noted = Path(self.journal)
        while noted.exists() and noted.read_text().count("trained") >= 6:
            if Path(self.go_on).exists():
                break
            time.sleep(0.01)
        self.label = int(np.bincount(y, minlength=self.classes).argmax())
        with open(self.journal, "a") as file:
            file.write("trained\\n")

    def predict(self, X):
        return np.full(len(X), self.label)
'''


@pytest.mark.parametrize("stage", ["aggregate", "account"])
@pytest.mark.parametrize("moment", ["drawn", "charged", "published"])
@pytest.mark.sample(3)
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
        command, cwd=project.folder, env=project.environment(), capture_output=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    paid, drawn = audit(project), drawn_bytes(project)
    assert len(finished(project, pending)) == 1
    assert len(published(project, stage)) == (moment == "published")
    kinds = [release.split()[0] for release in paid]
    assert (pending.removeprefix("pending-") in kinds) == (moment != "drawn")
    project.run("--quiet")
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
    """In the middle of twelve teachers: the second run trains those that the first did not."""
    journal, go_on = project.folder / "journal", project.folder / "go-on"
    project.plugin("sleeper", SLEEPER)
    params = {"journal": str(journal), "go_on": str(go_on)}
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
    go_on.touch()
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


def test_a_recipe_is_written_by_many_at_once(tmp_path):
    """None of them takes away, or reads half of, what another one writes."""
    options = make_options(data_root=tmp_path / "data")
    run = prepare_run("digits", out=tmp_path / "run", options=options)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(run._write_recipe) for _ in range(200)]:
            done.result()
    written = {file.name: json.loads(file.read_text()) for file in run.folder.iterdir()}
    assert set(written) == {"home.json", "noise.json", "recipe.json"}
    assert written["recipe.json"]["data"]["name"] == "digits"
