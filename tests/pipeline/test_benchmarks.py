"""Benchmarks that nobody has run for a while still run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.campaign
def test_engines(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "engines.py", "--quick", "--engines", "serial"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows[2:-1]] == [
        ("dispatch", "serial"),
        ("memory", "serial"),
        ("plan", "ridge"),
    ]
    assert not list(tmp_path.iterdir())
