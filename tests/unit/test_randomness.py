"""Noise nobody can guess: the cipher is the real one, and its key is the system's."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.randomness import Randomness, insecure_generator, secure_generator

# The keystream of ChaCha20 with a zero nonce, from counter zero (Bernstein; RFC 8439, A.1).
ZERO_KEY = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
COUNTING_KEY = "39fd2b7dd9c5196a8dbd0377b8dc4a498a35d86fbcde6accb2cc7d4cd8ea2492"


@pytest.mark.parametrize(
    ("key", "stream"), [(bytes(32), ZERO_KEY), (bytes(range(32)), COUNTING_KEY)]
)
def test_all_256_bits_of_the_system_are_the_key_of_chacha20(monkeypatch, key, stream):
    asked = []
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or key)
    assert secure_generator().bytes(32).hex() == stream
    assert asked == [32]


def test_no_entropy_no_generator(monkeypatch):
    def dry(size):
        raise NotImplementedError("no randomness source")

    monkeypatch.setattr(os, "urandom", dry)
    with pytest.raises(NotImplementedError):
        secure_generator()
    assert not Randomness.open(insecure_seed=1).secure  # a seeded one does not need it


def test_no_two_generators_are_alike_in_one_process_or_two():
    draws = {secure_generator().bytes(16) for _ in range(50)}
    code = "from pate.randomness import secure_generator as s; print(s().bytes(16).hex())"
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        draws.add(bytes.fromhex(run.stdout.strip()))
    assert len(draws) == 52


def test_neither_global_nor_seeded_state_reaches_it():
    np.random.seed(1)  # noqa: NPY002
    one = secure_generator().bytes(16)
    np.random.seed(1)  # noqa: NPY002
    assert secure_generator().bytes(16) != one


def test_a_seed_repeats_and_is_marked():
    assert insecure_generator(2**63 + 1).bytes(8) == insecure_generator(2**63 + 1).bytes(8)
    assert insecure_generator(5).bytes(8) == insecure_generator(5).bytes(8)
    assert insecure_generator(5).bytes(8) != insecure_generator(6).bytes(8)
    seeded, secure = Randomness.open(insecure_seed=0), Randomness.open()
    assert (seeded.secure, seeded.verdict) == (False, "not private")
    assert (secure.secure, secure.verdict) == (True, "private")
    assert type(secure.generator.bit_generator).__name__ == "ChaCha"


def test_the_key_shows_in_no_text(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda size: b"\x41" * size)
    text = repr(Randomness.open())
    assert "ChaCha" in text
    assert "41414141" not in text
    assert str(int.from_bytes(b"\x41" * 32, "little")) not in text


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, None])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(InvalidInput, match="insecure seed"):
        insecure_generator(seed)
