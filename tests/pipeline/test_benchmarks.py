"""Benchmarks that nobody has run for a while still run."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(tmp_path, *words):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / words[0], *words[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
    return [line.split() for line in done.stdout.splitlines()]


def test_tightness(tmp_path):
    """The table of what an index costs: published bounds, certified ones, exact ones."""
    rows = run(tmp_path, "tightness.py", "--table")[1:]
    kinds = [(row[0].rstrip(","), row[1]) for row in rows]
    assert [kind for kind, _ in kinds] == [
        *["LNMax"] * 3,
        *["GNMax"] * 2,
        "checks",
        *["Gumbel"] * 2,
    ]
    for row in rows:
        published, tight, stated, adaptive, *exact = map(float, row[5:-1])
        assert 0 < stated <= adaptive <= tight <= published
        if exact:  # of two classes, if there is an analysis of these; and of the worst votes found
            assert 0.9 * tight < exact[-1] <= exact[0] <= tight
    stated = [float(row[7]) for row in rows]
    assert np.all(np.array(stated) <= [2.2, 1.03, 8.1, 0.245, 1.53, np.inf, 0.22, 1.4])


@pytest.mark.campaign
def test_engines(tmp_path):
    rows = run(tmp_path, "engines.py", "--quick", "--engines", "serial")
    assert [(row[0], row[1]) for row in rows[2:-1]] == [
        ("dispatch", "serial"),
        ("memory", "serial"),
        ("plan", "ridge"),
    ]


@pytest.mark.campaign
def test_record_votes(tmp_path):
    words = ("--quick", "--splits", "1", "--draws", "1", "--epsilons", "1,4")
    rows = run(tmp_path, "record_votes.py", *words)
    assert [row[1] for row in rows[3:]] == ["1", "4"]
    assert all(float(row[3]) > float(row[8]) for row in rows[3:])  # records, and teachers


def test_choose_settings(monkeypatch):
    """Every candidate is a recipe that can be read, and no two of a key are alike."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("choose_settings")
    for name, task in script.read_tasks().items():
        grid = script.grid_of(task)
        start = [alternatives[0] for alternatives in grid]
        for place, alternatives in enumerate(grid):
            found = []
            for each in alternatives:
                chosen = (*start[:place], each, *start[place + 1 :])
                candidate = script.recipes(name, task, chosen)
                assert len(candidate) == len(task.get("epsilons", [1]))
                assert candidate not in found
                found.append(candidate)


@pytest.mark.campaign
def test_audits(tmp_path):
    rows = run(tmp_path, "audits.py", "rates", "--records", "240")
    assert [row[0] for row in rows] == ["25", "240"]
    assert all(float(row[4].replace(",", "")) > 0 for row in rows)
