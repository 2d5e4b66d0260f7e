"""Many queries in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pate.mechanisms import (
    ConfidentGnmax,
    GaussianNoisyMax,
    InteractiveGnmax,
    LaplaceNoisyMax,
    insecure_generator,
)
from pate.votes import Votes

QUERIES, CLASSES = 400_000, 10


@pytest.mark.parametrize(
    "mechanism",
    [
        LaplaceNoisyMax(scale=10.0),
        GaussianNoisyMax(sigma=10.0),
        ConfidentGnmax(threshold=60.0, sigma1=20.0, sigma2=10.0),
        InteractiveGnmax(threshold=60.0, sigma1=20.0, sigma2=10.0),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_memory_is_a_block_and_the_answers_themselves(mechanism, tmp_path):
    """Votes on disk, 32 MB: noising all at once would take as much again, and more."""
    counts = np.lib.format.open_memmap(
        tmp_path / "votes.npy", mode="w+", dtype=np.int64, shape=(QUERIES, CLASSES)
    )
    counts[:, 3] = 100
    options = {}
    if isinstance(mechanism, InteractiveGnmax):
        options["student"] = np.broadcast_to(np.float32(0.1), (QUERIES, CLASSES))
    tracemalloc.start()
    given = mechanism.release(Votes(counts=counts), rng=insecure_generator(1), **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    answers = given.labels.nbytes + given.answered.nbytes
    assert len(given.labels) > 0.9 * QUERIES
    assert peak < 2.2 * answers + 12_000_000 < 32_000_000
