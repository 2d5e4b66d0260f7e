"""From what a user chooses to the parts a trainer is made of; each choice is checked here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch

from dpsgd.clipping import Clipping, Flat
from dpsgd.noise import FastNoise, Noise, SecureNoise, SeededNoise
from dpsgd.sampling import Lots, PoissonLots, ShuffledLots
from dpsgd.schedules import Schedule, as_schedule
from pate.errors import InvalidInput

T = TypeVar("T")

_NOISE, _DROPOUT = 1, 2  # the sampler has the seed itself


def choose_clipping(max_grad_norm: float | Schedule | None, clipping: Clipping | None) -> Clipping:
    """One norm for the whole gradient, or a rule.

    >>> choose_clipping(1.0, None)
    Flat(max_norm=Constant(value=1.0))
    """
    if max_grad_norm is not None and clipping is None:
        return Flat(as_schedule(max_grad_norm))
    if max_grad_norm is None and clipping is not None:
        return clipping
    raise InvalidInput("give exactly one of max_grad_norm and clipping")


def choose_multiplier(noise_multiplier: float | Schedule | None, rule: Clipping) -> Schedule:
    """The noise multiplier of a lot: the trainer's, or that of a rule which brings its own."""
    joint = rule.joint_noise_multiplier
    if noise_multiplier is None:
        if joint is None:
            raise InvalidInput("give a noise_multiplier, or a clipping rule that brings its own")
        return as_schedule(joint)
    if joint is not None:
        raise InvalidInput(
            "the clipping rule brings noise multipliers of its own; leave out noise_multiplier"
        )
    return as_schedule(noise_multiplier)


def choose_lots(
    sampling: str,
    *,
    records: int,
    public_records: int | None,
    lot_size: float,
    generator: np.random.Generator,
) -> Lots:
    makers: dict[str, Callable[..., Lots]] = {"poisson": PoissonLots, "shuffle": ShuffledLots}
    make = _one_of("sampling", sampling, makers)
    return make(records, lot_size, generator, public_records=public_records)


def choose_noise(noise: str, *, seed: int | None, device: torch.device) -> Noise:
    own = None if seed is None else _derived(seed, _NOISE)
    makers: dict[str, Callable[[], Noise]] = {
        "secure": lambda: SecureNoise() if own is None else SeededNoise(own),
        "fast": lambda: FastNoise(seed=own, device=device),
    }
    return _one_of("noise", noise, makers)()


@contextlib.contextmanager
def same_chance(seed: int | None, step: int) -> Iterator[None]:
    """In a seeded run dropout, too, is the same whenever step and seed are."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_derived(seed, _DROPOUT, step))
        yield


def check_count(name: str, value: int | None) -> None:
    """A whole number from 1 on, where one is given."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and value >= 1):
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number, 1 or more")


def _one_of(name: str, value: str, known: dict[str, T]) -> T:
    if value not in known:
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    return known[value]


def _derived(seed: int, *purpose: int) -> int:
    """A seed for one purpose, from the seed of the run."""
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0] >> 1)
