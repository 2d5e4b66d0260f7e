"""Exposure: its bound against a mechanism whose ranks are known exactly, and the example."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pate.audits.exposure import (
    exposure_attack,
    exposure_bits,
    most_exposed,
    most_mean_exposure,
    secret_ranks,
)
from pate.errors import InvalidInput


def test_ranks_and_bits_by_hand():
    losses = [[3.0, 1.0, 2.0, 4.0], [0.0, 0.0, 0.0, 0.0]]
    ranks = secret_ranks(losses, [2, 0])
    assert ranks.tolist() == [2, 4]  # ties count against the attack
    assert exposure_bits(ranks, candidates=4).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_the_bound_holds_for_randomised_response_and_is_near(epsilon, delta):
    """A model that publishes the secret by randomised response over R, or nothing of it.

    With its record the secret is put first with probability p, otherwise another candidate; without
    it the first is uniform. Probabilities of ranks are exact, for every k.
    """
    size = 64
    first = min(1.0, delta + (1 - delta) * math.exp(epsilon) / (math.exp(epsilon) + size - 1))
    # Replacing the record by none is closer than replacing it by another: ε holds a fortiori.
    chances = np.full(size, (1 - first) / (size - 1))
    chances[0] = first
    reached = np.cumsum(chances)
    bits = exposure_bits(np.arange(1, size + 1), candidates=size)
    allowed = most_exposed(bits, epsilon=epsilon, delta=delta, candidates=size)
    assert (reached <= allowed + 1e-12).all()
    mean = float(chances @ bits)
    most = most_mean_exposure(epsilon=epsilon, delta=delta, candidates=size)
    assert mean <= most + 1e-12
    if epsilon == 0 and delta == 0:
        assert mean == pytest.approx(most)


def test_the_mean_is_reached_by_the_likelihoods_of_the_region():
    """Ranks drawn with exactly the allowed probabilities have exactly the allowed mean."""
    size, epsilon, delta = 1000, 1.3, 1e-3
    ranks = np.arange(1, size + 1)
    bits = exposure_bits(ranks, candidates=size)
    reached = most_exposed(bits, epsilon=epsilon, delta=delta, candidates=size)
    chances = np.diff(reached, prepend=0.0)
    assert (chances >= -1e-12).all()
    assert reached[-1] == 1
    most = most_mean_exposure(epsilon=epsilon, delta=delta, candidates=size)
    assert float(chances @ bits) == pytest.approx(most, abs=1e-9)
    assert most <= (epsilon + 1) / math.log(2) + delta * math.log2(size)


def test_copies_are_a_group():
    alone = most_exposed([5.0], epsilon=0.6, delta=0.0, candidates=1024)
    three = most_exposed([5.0], epsilon=0.2, delta=0.0, candidates=1024, copies=3)
    assert three == pytest.approx(alone)
    assert most_exposed([9.0], epsilon=9, delta=0.5, candidates=1024, copies=40) == [1.0]


def test_the_bound_on_epsilon_needs_independent_trainings():
    rng = np.random.default_rng(0)
    losses, secrets = rng.normal(size=(200, 500)), rng.integers(0, 500, size=200)
    assert exposure_attack(losses, secrets).epsilon is None
    found = exposure_attack(losses, secrets, independent=True, confidence=0.999999)
    assert found.epsilon == 0.0  # nothing is memorised
    losses[np.arange(200), secrets] -= 8.0
    found = exposure_attack(losses, secrets, independent=True, delta=1e-5)
    assert 4 < found.firm_epsilon < found.epsilon <= found.largest_possible < math.log(100)
    assert found.contradicts(4.0)
    assert found.values["largest exposure in bits"] == pytest.approx(math.log2(500))


@pytest.mark.parametrize(
    ("losses", "secrets", "words"),
    [
        ([1.0, 2.0], [0], "for each secret and candidate"),
        ([[1.0, math.nan]], [0], "for each secret and candidate"),
        ([[1.0, 2.0]], [2], "not places of candidates"),
        ([[1.0, 2.0]], [0, 1], "not places of candidates"),
    ],
)
def test_bad_input(losses, secrets, words):
    with pytest.raises(InvalidInput, match=words):
        exposure_attack(losses, secrets)


@pytest.mark.campaign
def test_the_example_shows_what_is_memorised():
    example = Path(__file__).parents[3] / "examples" / "exposure.py"
    run = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    plain, private, fresh = (line.split() for line in run.stdout.splitlines()[-3:])
    assert float(plain[2]) > 8  # bits on average, of 13.3
    # 40 exposures have a standard error of 0.3 bits around at most what ε allows.
    assert float(private[4]) < float(private[-1])
    assert float(private[4]) < 4 > float(fresh[2])
