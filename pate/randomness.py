"""Sources of noise: entropy of the operating system, stretched by a cipher.

Noise that can be predicted can be subtracted again, so a statistical generator with a short seed
(NumPy's default) is not enough: a guarantee needs a stream indistinguishable from random.

Floating point: Laplace and Gaussian noise in doubles is not the noise of the theorems to the last
bit, and the least significant bits of a *published* noised number can give the number away
(Mironov 2012). Noised counts of record votes are published: their noise is drawn in whole numbers
(:func:`discrete_laplace`, :func:`discrete_gaussian`). Other code that publishes a noised number
documents its countermeasure. What leaves a voting mechanism is which class was largest and whether
a threshold was passed, which depend on those bits with a probability of about 2⁻⁵² times the
largest count over the noise; the far tails that doubles cannot reach (Laplace noise ends at some 37
scales) weigh about as little. Both vanish beside any δ in use. Counts are whole numbers, and a tie
after noise has a probability of the same order.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from pate._validate import check_whole
from pate.errors import InvalidInput

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


def bernoulli_exp(
    numerators: NDArray[np.int64], denominator: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return True with the exact chance e^{−numerator/denominator}, by whole random numbers alone.

    Guarantees:
        Canonne, Kamath & Steinke 2020, Algorithm 1. For γ ≤ 1 the first k at which a coin of chance
        γ/k falls on tails is odd with chance Σ (−γ)^k/k! = e^{−γ}; a larger γ is split into ones
        and a rest. ``Generator.integers`` is uniform (it rejects what would bias it).

    >>> drawn = bernoulli_exp(np.full(100_000, 2), 3, insecure_generator(0))
    >>> round(float(drawn.mean()), 2), round(float(np.exp(-2 / 3)), 2)
    (0.51, 0.51)
    """
    ones, rest = np.divmod(numerators, denominator)
    held = _bernoulli_exp_to_one(rest, denominator, rng)
    while (going := np.flatnonzero(held & (ones > 0))).size:
        held[going] = _bernoulli_exp_to_one(np.ones_like(going), 1, rng)
        ones[going] -= 1
    return held


def _bernoulli_exp_to_one(
    numerators: NDArray[np.int64], denominator: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    odd = np.zeros(len(numerators), dtype=bool)
    going, k = np.arange(len(numerators)), 1
    while going.size:
        heads = rng.integers(k * denominator, size=going.size) < numerators[going]
        odd[going[~heads]] = k % 2 == 1
        going, k = going[heads], k + 1
    return odd


def discrete_laplace(
    scale: Fraction, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return whole numbers z with chances in exact proportion to e^{−|z|/scale}.

    Parameters
    ----------
    scale
        The b of the noise: a ratio of whole numbers above zero, both below 2⁵⁰.
    shape
        The shape of the array of independent draws.
    rng
        The source of randomness; whole numbers alone are drawn from it.

    Guarantees:
        Canonne, Kamath & Steinke 2020, Algorithm 2 with s/t = 1/scale: exact, but for the far tail
        beyond 2⁶² (a chance below e^{−2¹²}), where 64 bits end.

    >>> drawn = discrete_laplace(Fraction(3, 2), (100_000,), insecure_generator(0))
    >>> p = float(np.exp(-2 / 3))
    >>> round(float(drawn.var()), 1), round(2 * p / (1 - p) ** 2, 1)
    (4.3, 4.3)
    """
    t, s = _ratio(scale)
    if max(t, s) >= _LARGEST_TERM:
        raise InvalidInput(f"the scale is {scale}; round it by representable_scale")
    draws = np.zeros(int(np.prod(shape)), dtype=np.int64)
    going = np.arange(draws.size)
    while going.size:
        low = rng.integers(t, size=going.size)
        size = low + t * _geometric(going.size, rng)
        negative = rng.integers(2, size=going.size).astype(bool)
        whole = size // s
        kept = bernoulli_exp(low, t, rng) & ~(negative & (whole == 0))
        draws[going[kept]] = np.where(negative, -whole, whole)[kept]
        going = going[~kept]
    return draws.reshape(shape)


def polya(
    scale: Fraction, parts: int, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return whole numbers of which ``parts`` independent ones add up to a geometric number.

    The difference of two such sums is :func:`discrete_laplace` noise of this scale, exactly: a
    difference of two draws is one party's share of it.

    Parameters
    ----------
    scale
        The b of the sum: a ratio of whole numbers above zero, both below 2⁵⁰.
    parts
        How many draws add up to it.
    shape
        The shape of the array of independent draws.
    rng
        The source of randomness; whole numbers alone are drawn from it.

    Guarantees:
        With p = e^{−1/scale} and r = 1/parts, z has the chance Γ(z + r)/(Γ(r) z!) (1 − p)^r p^z, a
        negative binomial (Pólya) law: the r add up, and r = 1 is geometric. A geometric draw z is
        kept with the chance Π_{i=1…z} (i − 1 + r)/i ≤ 1, one coin of whole numbers for each i, so
        that what is kept is in exact proportion to it. Exact where :func:`discrete_laplace` is.

    >>> drawn = polya(Fraction(4), 3, (3, 20_000), insecure_generator(0)).sum(axis=0)
    >>> round(float(drawn.mean()), 1), round(1 / float(np.expm1(1 / 4)), 1)
    (3.5, 3.5)
    """
    check_whole("parts", parts, least=1, most=1 << 20)
    wanted = math.prod(shape)
    found = [np.empty(0, dtype=np.int64)]
    missing = wanted
    while missing > 0:
        z = _geometric_of(scale, min(4 * missing + 64, _AT_ONCE), rng)
        kept = np.ones(len(z), dtype=bool)
        going, i = np.flatnonzero(z > 0), 1
        while going.size:
            heads = rng.integers(parts * i, size=going.size) < parts * (i - 1) + 1
            kept[going[~heads]] = False
            going, i = going[heads], i + 1
            going = going[z[going] >= i]
        found.append(z[kept])
        missing -= int(kept.sum())
    return np.concatenate(found)[:wanted].reshape(shape)


def _geometric_of(scale: Fraction, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return whole numbers z ≥ 0 with chances in proportion to e^{−z/scale}.

    Canonne, Kamath & Steinke 2020, Algorithm 2 without its sign.
    """
    t, s = _ratio(scale)
    if max(t, s) >= _LARGEST_TERM:
        raise InvalidInput(f"the scale is {scale}; round it by representable_scale")
    draws = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while going.size:
        low = rng.integers(t, size=going.size)
        kept = bernoulli_exp(low, t, rng)
        draws[going[kept]] = (low[kept] + t * _geometric(int(kept.sum()), rng)) // s
        going = going[~kept]
    return draws


def discrete_gaussian(
    variance: Fraction, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return whole numbers z with chances in exact proportion to e^{−z²/(2·variance)}.

    Parameters
    ----------
    variance
        The σ² of the noise: a ratio that :func:`representable_variance` returns.
    shape
        The shape of the array of independent draws.
    rng
        The source of randomness; whole numbers alone are drawn from it.

    Guarantees:
        Canonne, Kamath & Steinke 2020, Algorithm 3: a discrete Laplace draw y of scale
        t = ⌊σ⌋ + 1 is kept with the exact chance e^{−(|y| − σ²/t)²/(2σ²)}. Where |y| is beyond
        64·t, proposed with a chance below e^{−63}, it is never kept: its chance is below e^{−1000}.

    >>> drawn = discrete_gaussian(Fraction(9, 4), (100_000,), insecure_generator(0))
    >>> round(float(drawn.var()), 1)
    2.3
    """
    a, b = _ratio(variance)
    if representable_variance(variance) != variance:
        raise InvalidInput(f"the variance is {variance}; round it by representable_variance")
    t = math.isqrt(a // b) + 1
    if variance >= _LARGE_VARIANCE:  # of a whole σ, which is as good a t
        t, a, b = t - 1, t - 1, 1
        part, whole = 1, 2 * t * t  # (|y| − σ)²/(2σ²)
    else:
        part, whole = t * b, 2 * a * b * t * t  # (|y|·t·b − a)²/(2abt²), in 63 bits
    draws = np.zeros(int(np.prod(shape)), dtype=np.int64)
    going = np.arange(draws.size)
    while going.size:
        y = discrete_laplace(Fraction(t), (going.size,), rng)
        near = np.minimum(np.abs(y), 64 * t)
        kept = bernoulli_exp((near * part - a) ** 2, whole, rng)
        kept &= np.abs(y) <= 64 * t
        draws[going[kept]] = y[kept]
        going = going[~kept]
    return draws.reshape(shape)


def representable_scale(scale: float | Fraction) -> Fraction:
    """Return the next scale, never below, whose ratio :func:`discrete_laplace` can take.

    A multiple of 2⁻²⁰, or of 2⁻³⁸ below one; above 2³⁰ a coarser one, of which there are 2⁵⁰.

    >>> representable_scale(2.5), float(representable_scale(0.1)) >= 0.1
    (Fraction(5, 2), True)
    """
    exact = Fraction(scale)
    unit = 1 << (20 if exact >= 1 else 38)
    while unit > 1 and math.ceil(exact * unit) >= _LARGEST_TERM:
        unit //= 2
    rounded = Fraction(math.ceil(exact * unit), unit)
    if rounded >= _LARGEST_TERM:
        raise InvalidInput(f"the scale of the noise is {float(exact):g} units; it is below 2⁵⁰")
    return rounded


def representable_variance(variance: float | Fraction) -> Fraction:
    """Return the next variance, never below, whose ratio :func:`discrete_gaussian` can take.

    Below 2²² a multiple of a power of two, of at least 2⁻²⁴, that leaves 21 bits; above it the
    square of a whole σ, up to 2²⁵.

    >>> representable_variance(2.25), representable_variance(10.0**8 + 1)
    (Fraction(9, 4), Fraction(100020001, 1))
    """
    exact = Fraction(variance)
    if exact >= _LARGE_VARIANCE:
        root = math.isqrt(math.ceil(exact) - 1) + 1
        if root > _LARGEST_SIGMA:
            raise InvalidInput(f"σ of the noise is {root:g} units; it must be at most 2²⁵")
        return Fraction(root * root)
    unit = 1
    while exact * unit * 2 < _LARGE_VARIANCE and unit < _FINEST:
        unit *= 2
    return Fraction(math.ceil(exact * unit), unit)


_LARGEST_TERM = 1 << 50  # of a ratio: 2¹² times it is a whole number of 64 bits
_LARGE_VARIANCE, _FINEST, _LARGEST_SIGMA = 1 << 22, 1 << 24, 1 << 25
_AT_ONCE = 1 << 18  # draws that are tried together


def _geometric(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return how often a coin of chance 1/e falls on heads before it first falls on tails."""
    heads = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while going.size:
        going = going[_bernoulli_exp_to_one(np.ones_like(going), 1, rng)]
        heads[going] += 1
    return heads


def _ratio(value: Fraction) -> tuple[int, int]:
    if not isinstance(value, Fraction) or value <= 0:
        raise InvalidInput(f"the noise is {value!r}; it must be a ratio above zero")
    return value.numerator, value.denominator


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
