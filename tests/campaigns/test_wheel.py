"""The built wheel, installed into an empty environment and used outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# The notebook snippet of the README, and a shipped recipe.
SNIPPET = """
import pate
from sklearn.datasets import load_digits

assert "site-packages" in pate.__file__, pate.__file__
X, y = load_digits(return_X_y=True)
clf = pate.PATEClassifier(teachers=100, queries=100, epsilon=8.0, delta=1e-5, classes=range(10))
clf.fit(X[:1200] / 16, y[:1200], public=X[1200:1500] / 16)
assert clf.guarantee_.epsilon <= 8.0
assert clf.score(X[1500:] / 16, y[1500:]) > 0.5
run = pate.run("digits-teachers", set={"teachers.count": 20}, out="runs/d", data_root="data")
assert run.evaluation is not None
assert run.report().is_file()
"""


@pytest.mark.campaign
def test_the_wheel_works_outside_the_repository(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # Dependencies are those of this environment: installing them again takes minutes.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = tmp_path / "work"
    work.mkdir()
    outside = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for words in (
        ["python", "-c", SNIPPET], ["pate", "recipes"], ["dpsgd", "recipes"], ["pate", "--version"]
    ):  # fmt: skip
        command = [python.parent / words[0], *words[1:]]
        done = subprocess.run(command, cwd=work, env=outside, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
