"""Noise for gradients: its sources, and what its digits can and cannot guarantee.

Secure noise turns bytes of OpenSSL's generator (AES-256 in counter mode as in NIST SP 800-90A,
seeded by the operating system, reseeded as it goes and after a fork, its key replaced after every
request so that the past cannot be recovered) into Gaussian numbers by the transform of Box & Muller
1958. The generator of :mod:`pate.randomness` (ChaCha20 through numpy) is as safe; 800 000 numbers
took it 14 ms on one thread, this one 8 ms and torch's own fast generator 3 ms.

Floating point. The noised sum of a lot is published, through the weights, unlike the noised counts
of PATE; hence these notes on its digits.

* **Tails.** The radius comes from 64 bits, and reaches 9.4 standard deviations; what a true
  Gaussian pair has beyond that is 2⁻⁶⁴, so that even 10¹² numbers leave out less than 10⁻⁷ in all.
  A generator with 24 bits, as in single precision, ends at 5.8.
* **Steps.** Numbers are computed in doubles and rounded once to the precision of the parameters, so
  that no value of single precision near the noise is left out for lack of random bits.
* **Not covered.** The theorems are about real numbers. A sum of gradients and noise in single
  precision is rounded, and which of the possible roundings occurs can depend on the gradients in
  the last bits (Mironov 2012 shows it for Laplace noise, Jin et al. 2022 for Gaussian noise in
  DP-SGD, each attacking one noised value). Here a gradient is added to noise that was rounded
  before, an optimiser averages and rounds again, and only weights are published; that makes the
  known attacks harder and is not a proof. An exact remedy is discrete noise on integers (Canonne,
  Kamath & Steinke 2020), which this package does not have.
"""

from __future__ import annotations

import contextlib
import math
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from dpsgd.sampling import generator_state, restore_generator
from pate._validate import check_choice
from pate.errors import InvalidInput
from pate.randomness import insecure_generator

SEEDED = "seeded noise: not private"
_NOISE, _DROPOUT = 1, 2  # purposes of derived seeds; the sampler uses the seed itself
_BLOCK = 1 << 15  # pairs of numbers computed at a time: doubles that stay in the cache


class _FromBytes:
    """Gaussian numbers from a source of uniform bytes, by Box & Muller's transform in doubles.

    ``caveat`` is the reason why a source is not private, if any.
    """

    caveat: str | None = None

    def __init__(self, source: Callable[[int], bytes]) -> None:
        self._bytes = source
        self._uniform = torch.empty(2 * _BLOCK, dtype=torch.float64)
        self._cosine = torch.empty(_BLOCK, dtype=torch.float64)

    def fill(self, tensors: Sequence[Tensor], stds: Sequence[float]) -> None:
        """Fill each tensor with independent N(0, std²)."""
        for tensor, std in zip(tensors, stds, strict=True):
            if tensor.device.type == "cpu" and tensor.is_contiguous():
                self._draw(tensor.view(-1), std)
            else:
                drawn = torch.empty(tensor.shape, dtype=tensor.dtype)
                self._draw(drawn.view(-1), std)
                tensor.copy_(drawn)

    def normal(self) -> float:
        """Draw one number from N(0, 1)."""
        one = torch.empty(1, dtype=torch.float64)
        self._draw(one, 1.0)
        return float(one)

    def _draw(self, out: Tensor, std: float) -> None:
        for start in range(0, len(out), 2 * _BLOCK):
            block = out[start : start + 2 * _BLOCK]
            pairs = (len(block) + 1) // 2
            words = np.frombuffer(self._bytes(16 * pairs), dtype=np.int64)
            uniform = self._uniform[: 2 * pairs]
            np.multiply(words, 2.0**-63, out=uniform.numpy())  # uniform on [−1, 1]
            radius, angle = uniform[:pairs], uniform[pairs:].mul_(math.pi)
            # |0| would have an infinite radius; half a step replaces it.
            radius.abs_().clamp_(min=2.0**-64).log_().mul_(-2.0).sqrt_().mul_(std)
            cosine = torch.cos(angle, out=self._cosine[:pairs])
            block[:pairs] = cosine.mul_(radius)
            block[pairs:] = angle.sin_().mul_(radius)[: len(block) - pairs]

    def state(self) -> dict[str, Any]:
        """Return the state of a seeded source; that of a secure one is never stored."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned; a secure source is opened anew."""


@final
class SecureNoise(_FromBytes):
    """Noise that nobody can predict or repeat; the default.

    Guarantees:
        Bytes come from OpenSSL's deterministic generator over the operating system's entropy. A
        program that distinguishes its output from randomness breaks AES-256. Its state is never
        stored.
    """

    def __init__(self) -> None:
        super().__init__(ssl.RAND_bytes)


@final
class SeededNoise(_FromBytes):
    """The same noise whenever the seed is the same: for tests."""

    caveat = SEEDED

    def __init__(self, seed: int) -> None:
        self._generator = insecure_generator(seed)
        super().__init__(self._generator.bytes)

    def state(self) -> dict[str, Any]:
        return generator_state(self._generator)

    def restore(self, state: dict[str, Any]) -> None:
        restore_generator(self._generator, state)


@final
class FastNoise:
    """Noise from torch's own generator: fast, statistically good, and not cryptographic.

    Who sees enough of its output can compute the rest; guarantees carry that caveat. It starts from
    the operating system's entropy, or from a seed in tests.
    """

    def __init__(self, *, seed: int | None = None, device: str | torch.device = "cpu") -> None:
        self._generator = torch.Generator(device)
        if seed is None:
            self._generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
            self.caveat = "noise from torch's fast generator, which is not cryptographic"
        else:
            self._generator.manual_seed(seed)
            self.caveat = SEEDED
        self._seeded = seed is not None

    def fill(self, tensors: Sequence[Tensor], stds: Sequence[float]) -> None:
        for tensor, std in zip(tensors, stds, strict=True):
            tensor.normal_(0.0, std, generator=self._generator)

    def normal(self) -> float:
        place = self._generator.device
        one = torch.empty(1, dtype=torch.float64, device=place)
        return float(one.normal_(generator=self._generator))

    def state(self) -> dict[str, Any]:
        if not self._seeded:
            return {}
        return {"torch": bytes(self._generator.get_state().tolist()).hex()}

    def restore(self, state: dict[str, Any]) -> None:
        if not self._seeded:
            return
        try:
            stored = bytearray(bytes.fromhex(state["torch"]))
            self._generator.set_state(torch.frombuffer(stored, dtype=torch.uint8))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(
                f"the state of the generator is damaged ({type(error).__name__})"
            ) from None


Noise = SecureNoise | SeededNoise | FastNoise


def choose_noise(noise: str, *, seed: int | None, device: torch.device) -> Noise:
    """Return the source of noise of this name, seeded in tests."""
    own = None if seed is None else _derived_seed(seed, _NOISE)
    if noise == "secure":
        return SecureNoise() if own is None else SeededNoise(own)
    check_choice("noise", noise, ["secure", "fast"])
    return FastNoise(seed=own, device=device)


@contextlib.contextmanager
def torch_seed(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators (CPU, and the device if given) inside the block; restore them."""
    forked = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=forked):
        torch.default_generator.manual_seed(seed)
        for each in forked:
            torch.cuda.default_generators[each.index or 0].manual_seed(seed)
        yield


def seeded_dropout(seed: int | None, step: int) -> contextlib.AbstractContextManager[None]:
    """Make dropout of a seeded run depend on seed and step alone."""
    if seed is None:
        return contextlib.nullcontext()
    return torch_seed(_derived_seed(seed, _DROPOUT, step))


def _derived_seed(seed: int, *purpose: int) -> int:
    """Return a seed for one purpose, derived from the seed of the run."""
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0] >> 1)
