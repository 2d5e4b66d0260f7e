"""Figures that papers print, through the command line a person would use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pate.accounting.composition import sampled_gaussian_strong


def pate(*arguments):
    run = subprocess.run(
        [sys.executable, "-m", "pate", *map(str, arguments)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(("largest", "expected"), [(8, 2.043), (32, 1.5086)])
@pytest.mark.sample(1)
def test_lnmax_on_the_published_votes(published_votes, largest, expected):
    report = pate(
        "epsilon", "lnmax", "--votes", published_votes, "--scale", 20, "--delta", 1e-5,
        "--queries", 100, "--max-moment", largest, "--conversion", "classic",
        "--analysis", "published", "--json",
    )  # fmt: skip
    assert report["data_dependent"]["epsilon"] == pytest.approx(expected, abs=5e-5 * expected)
    assert report["data_dependent"]["publishable"] is False
    assert report["data_independent"]["epsilon"] == pytest.approx(5.302585, abs=1e-6)
    assert report["queries"] == 100


def test_confident_on_the_published_votes(published_votes):
    report = pate(
        "epsilon", "confident", "--votes", published_votes, "--threshold", 200, "--sigma1", 150,
        "--sigma2", 40, "--queries", 640, "--delta", 1e-5, "--conversion", "classic",
        "--analysis", "published", "--json",
    )  # fmt: skip
    assert report["expected_answered"] == pytest.approx(282.7, abs=0.05)
    assert report["data_dependent"]["epsilon"] == pytest.approx(2.00, abs=0.005)


def test_abadi():
    report = pate(
        "epsilon", "dpsgd", "--sample-rate", 0.01, "--noise-multiplier", 4, "--steps", 10_000,
        "--delta", 1e-5, "--accountant", "abadi", "--json",
    )  # fmt: skip
    assert report["epsilon"] == pytest.approx(1.2586, abs=5e-5)
    assert report["moment"] == 19


def test_strong_composition():
    found = sampled_gaussian_strong(
        sample_rate=0.01, noise_multiplier=4.0, steps=10_000, delta=1e-5
    )
    assert found == pytest.approx(9.34, abs=0.005)
