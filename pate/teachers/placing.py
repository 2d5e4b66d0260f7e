"""Where a module works: on the device of this worker, and at home before and after.

First weights and orders of records are drawn on the processor, so they are the same on every
device. Only ``ridge``, ``logistic`` and scikit-learn's models do not move: they are for the
processor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pate.devices import Device, current_device

if TYPE_CHECKING:
    import torch
    from torch import nn


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters are now."""
    import torch

    return next((p.device for p in module.parameters()), torch.device("cpu"))


def workplace(module: nn.Module) -> torch.device:
    """Where the module is to work: the current device, or where its factory put it.

    A factory has a say only where the user has not chosen a device by an engine.

    >>> import torch
    >>> workplace(torch.nn.Linear(2, 2))
    device(type='cpu')
    """
    chosen = current_device()
    return device_of(module) if chosen.kind == "cpu" else chosen.torch()


@contextlib.contextmanager
def placed(module: nn.Module) -> Iterator[torch.device]:
    """Inside, the module is where it works; afterwards where it was, whatever happens.

    So no device holds more than the one module at work, and what is saved or copied is in host
    memory.
    """
    home, place = device_of(module), workplace(module)
    if place == home:
        yield place
        return
    try:
        module.to(place)
        yield place
    finally:
        module.to(home)


@contextlib.contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """Inside, the generators of the processor and of the current device start from ``seed``.

    Outside they are as they were.
    """
    import torch

    with torch.random.fork_rng(devices=[]), _seeded_device(current_device(), seed):
        torch.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def _seeded_device(device: Device, seed: int) -> Iterator[None]:
    """The device's own generator, from which layers such as dropout draw there."""
    import torch

    if device.kind == "cuda":
        with torch.random.fork_rng(devices=[device.index]), torch.cuda.device(device.index):
            torch.cuda.manual_seed(seed)
            yield
    elif device.kind == "mps":
        before = torch.mps.get_rng_state()
        torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            torch.mps.set_rng_state(before)
    else:
        yield


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Inside, CUDA chooses its kernels by shapes alone, and such as repeat to the bit."""
    if current_device().kind != "cuda":
        yield
        return
    import torch

    settings = torch.backends.cudnn
    before = settings.deterministic, settings.benchmark
    settings.deterministic, settings.benchmark = True, False
    try:
        yield
    finally:
        settings.deterministic, settings.benchmark = before
