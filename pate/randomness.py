"""Sources of noise: entropy of the operating system, stretched by a cipher.

Noise that can be predicted can be subtracted again, so a statistical generator with a short seed
(NumPy's default) is not enough: a guarantee needs a stream indistinguishable from random.

Floating point: Laplace and Gaussian noise in doubles is not the noise of the theorems to the last
bit, and the least significant bits of a *published* noised number can give the number away
(Mironov 2012). No mechanism of :mod:`pate.mechanisms` publishes one; code that does documents its
countermeasure. What leaves a voting mechanism is which class was largest and whether a threshold
was passed, which depend on those bits with a probability around 2⁻⁵⁰; the far tails that doubles
cannot reach (Laplace noise ends at some 37 scales) weigh about as little. Both vanish beside any δ
in use. Counts are whole numbers, and a tie after noise has a probability of the same order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from pate._validate import check_whole

_KEY_BYTES = 32
_ROUNDS = 20


def secure_generator() -> np.random.Generator:
    """Return a new generator that nobody can predict: ChaCha20 under a 256-bit key of the OS.

    Returns
    -------
    numpy.random.Generator
        For one release. ``Generator`` methods work as usual.

    Guarantees:
        * The key is ``os.urandom(32)``, set as it is (no seeding step shrinks it), and kept
          nowhere but in the generator. ChaCha with 20 rounds is Bernstein 2008.
        * Create it in the process that draws from it, use it for one release and drop it: a forked
          or copied generator would repeat its noise.

    >>> a, b = secure_generator(), secure_generator()
    >>> bool((a.integers(1 << 62, size=4) == b.integers(1 << 62, size=4)).any())
    False
    """
    from randomgen import ChaCha  # type: ignore[import-untyped]

    key = int.from_bytes(os.urandom(_KEY_BYTES), "little")
    return np.random.Generator(ChaCha(key=key, rounds=_ROUNDS))


def insecure_generator(seed: int) -> np.random.Generator:
    """Return a repeatable generator, for tests only: whoever knows the seed can subtract the noise.

    >>> insecure_generator(7).integers(100) == insecure_generator(7).integers(100)
    np.True_
    """
    return np.random.default_rng(check_whole("the insecure seed", seed, most=None))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Randomness:
    """A generator, and whether releases that use it are private.

    >>> Randomness.open().secure, Randomness.open(insecure_seed=3).verdict
    (True, 'not private')
    """

    generator: np.random.Generator
    secure: bool  # whether nobody can predict the generator

    @classmethod
    def open(cls, *, insecure_seed: int | None = None) -> Self:
        """Return secure randomness, or, for tests, a seeded generator that is marked insecure."""
        if insecure_seed is None:
            return cls(generator=secure_generator(), secure=True)
        return cls(generator=insecure_generator(insecure_seed), secure=False)

    @property
    def verdict(self) -> str:
        """The word for manifests, reports and the screen."""
        return "private" if self.secure else "not private"
