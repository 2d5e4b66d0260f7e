"""Hundreds of pipelines and thousands of ledgers killed at random moments; runs that race.

Nothing is lost, nothing is paid for twice, and every charge has one release.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess

import numpy as np
import pytest
from kills import Launcher, finished, kill_charging, kill_runs

from pate.accounting import Ledger

RACES, RACERS = 2, 6


@pytest.mark.parametrize(
    ("engine", "since", "kills"),
    [
        ("serial", "aggregate", 150),  # where charges are made
        ("serial", None, 40),
        ("processes:2", None, 20),
        ("gpus:cpu,cpu", "vote", 15),  # the same pool of workers
    ],
)
def test_pipelines_killed(project, engine, since, kills, rng):
    """With workers, a fault that one kill in ten meets is missed by 35 of them once in forty times;
    the moments around a charge, which chance hits rarely, are aimed at in ``tests/pipeline``.
    """
    with contextlib.closing(Launcher(project)) as launcher:
        found = kill_runs(project, launcher, engine=engine, since=since, kills=kills, rng=rng)
    assert len(found) > 3, "all kills hit the same stages"


@pytest.mark.parametrize("ledger", range(10))
def test_ledgers_killed(tmp_path, ledger, rng):
    """A fault that one kill in five hundred meets is missed by all of them once in fifty times."""
    charged, published = kill_charging(tmp_path, kills=200, rng=rng)
    assert charged >= published >= 100


def test_runs_that_race_for_one_budget(project, rng):
    """Six runs at once with settings of their own, and a budget for some of them.

    Whoever does not fit is refused in one line (exit code 3), and releases nothing; the ledger
    holds one charge for each release, within the budget.
    """
    project.write(privacy={"delta": 1e-3, "budget": 12.0, "sanitise": False})
    project.run("--quiet", stage="vote")
    for race in range(RACES):
        place = project.folder / f"race-{race}"
        shutil.copytree(project.folder, place, ignore=shutil.ignore_patterns("race-*"))
        racers = []
        for number in range(RACERS):
            scale = rng.choice([1.0, 2.0, 4.0]) + number / 100
            words = [
                "run",
                "tiny.toml",
                "--plugin-path",
                "plugins",
                "--engine",
                "serial",
                "--quiet",
            ]
            words += ["--out", f"runs/{number}", "--set", f"aggregate.scale={scale}"]
            racers.append(
                subprocess.Popen(
                    project.command(*words),
                    cwd=place,
                    # As another user: to this one, the records of the copies have a ledger.
                    env=project.environment() | {"XDG_DATA_HOME": str(place / "home")},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        ended = [(racer.communicate(timeout=300)[1], racer.returncode) for racer in racers]
        released = []
        for number, (said, code) in enumerate(ended):
            out = list((place / "runs" / str(number)).glob("released/aggregate/*/manifest.json"))
            assert code in (0, 3), said
            assert len(out) == (code == 0)
            if code:
                assert said.startswith("pate: ")
                assert said.count("\n") == 1
            released += out
        with Ledger.open(place / "data" / "ledgers" / "tiny.ledger") as ledger:
            charges = [charge.release for charge in ledger.charges()]
            assert ledger.spent().epsilon <= 12.0
        assert len(charges) == len(set(charges)) == len(released)
        assert 0 < len(released) < RACERS, "the budget was no limit, or too small for anybody"


def test_a_crowd_of_identical_runs(project):
    """Six times the same run at once: one draw, one charge, the same labels for all."""
    words = ("run", "tiny.toml", "--plugin-path", "plugins", "--engine", "serial", "--quiet")
    with contextlib.ExitStack() as stack:
        crowd = [
            stack.enter_context(
                subprocess.Popen(
                    project.command(*words), cwd=project.folder, env=project.environment()
                )
            )
            for _ in range(RACERS)
        ]
    assert [each.returncode for each in crowd] == [0] * RACERS
    assert sorted(release.split()[0] for release in project.charges()) == ["labels", "sanitised"]
    (released,) = finished(project, "aggregate")
    assert len(np.load(released.path / "labels.npy")) == 12
    assert json.loads((released.path / "manifest.json").read_text())
