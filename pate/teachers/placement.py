"""Devices of torch modules: where a module runs, how much memory it takes, and its randomness.

First weights and orders of records are drawn on the CPU, so they are the same on every device.
``ridge``, ``logistic`` and scikit-learn's models always run on the CPU.

Guarantees:
    Sizes follow from public things alone: the architecture, the shape of a record, the recipe and
    the device. Private records stay in host memory, and batches have the recipe's size. Otherwise
    one more record in a shard could make a program narrower, and so change how other teachers are
    rounded: one record would reach more than one teacher's vote.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import random
import sys
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np

from pate.devices import Device, current_device, is_out_of_memory
from pate.errors import OutOfMemory

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pate.teachers.spec import Training


def device_of(module: nn.Module) -> torch.device:
    """Return the device that holds the module's parameters."""
    import torch

    return next((p.device for p in module.parameters()), torch.device("cpu"))


def working_device(module: nn.Module) -> torch.device:
    """Return the current device; if the user chose none by an engine, the one its factory chose."""
    chosen = current_device()
    return device_of(module) if chosen.kind == "cpu" else chosen.torch()


@contextlib.contextmanager
def placed(module: nn.Module) -> Iterator[torch.device]:
    """Move the module to its working device, and back afterwards.

    So a device holds one module at a time, and modules are saved and copied in host memory.
    """
    home, place = device_of(module), working_device(module)
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
    """Seed torch's generators of the CPU and the current device; restore them afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]), _seeded_device(current_device(), seed):
        torch.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def _seeded_device(device: Device, seed: int) -> Iterator[None]:
    """Seed the device's own generator, from which layers such as dropout draw."""
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
    """Make CUDA choose its kernels by shapes alone, and only deterministic ones."""
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


@contextlib.contextmanager
def isolated_randomness(seed: int) -> Iterator[None]:
    """Seed the process-wide generators of Python, numpy and torch; restore them afterwards.

    >>> def draw(seed):
    ...     with isolated_randomness(seed):
    ...         return random.random()
    >>> draw(1) == draw(1), draw(1) == draw(2)
    (True, False)

    Guarantees:
        A teacher's draws follow from its seed and its own shard: another teacher's records do not
        change the state of a shared generator, and so do not change this teacher.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (what others may use)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        # A model that loads torch starts from torch's own seed.
        with seeded_torch(seed) if "torch" in sys.modules else contextlib.nullcontext():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


SHARE = 0.8  # of free memory; the rest is for torch itself, and for fragmentation
_UNKNOWN = 32  # times a record: activations of one record, where they cannot be measured

_T = TypeVar("_T")
# Kept for the process: the next program of the same shape does not hit the same limit.
_SIZES: dict[Hashable, int] = {}  # sizes that fit, by device, architecture and shape


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes that training a network takes, estimated from above.

    >>> Need(network=1000, record=10).bytes_for(2, records=33)
    2660
    """

    network: int  # weights, gradients, optimizer state and the copies of a step
    record: int  # of a batch: itself, and its activations for the gradient

    def bytes_for(self, networks: int, *, records: int) -> int:
        """Return the bytes of a program of ``networks`` with ``records`` each."""
        return networks * (self.network + records * self.record)

    def widest(self, free: int, *, records: int) -> int:
        """Return how many networks fit; at least one, which is then tried."""
        return max(1, int(SHARE * free) // self.bytes_for(1, records=records))


def memory_key(module: nn.Module, training: Training, shape: tuple[int, ...]) -> Hashable:
    """Return a key that is equal where the same memory is needed on the current device."""
    tensors = [*module.parameters(), *module.buffers()]
    shapes = tuple((_shape(each), each.dtype, each.requires_grad) for each in tensors)
    return str(current_device()), type(module), shapes, shape, training.model_dump_json()


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    import torch

    return () if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape)


def _bytes(tensor: torch.Tensor) -> int:
    return math.prod(_shape(tensor)) * tensor.element_size()


def memory_need(module: nn.Module, training: Training, shape: tuple[int, ...]) -> Need:
    """Return the memory that training a module takes, measured with made-up records.

    Lazy layers must have their sizes.
    """
    weights = [_bytes(each) for each in module.parameters()]
    trained = [_bytes(each) for each in module.parameters() if each.requires_grad]
    buffers = sum(_bytes(each) for each in module.buffers())
    state = 1 if training.optimizer == "sgd" else 2
    # In a step one parameter at a time is kept with its state, and two more are computed.
    step = (3 + state) * max(trained, default=0)
    return Need(
        network=sum(weights) + buffers + (1 + state) * sum(trained) + step,
        record=_activation_bytes(module, shape),
    )


def _activation_bytes(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Return twice the activations that torch keeps: the backward pass computes as much again."""
    import torch

    found: dict[int, int] = {}
    probe = copy.deepcopy(module).train()
    records = torch.zeros(2, *shape, device=device_of(probe))  # zeros are valid codes, too
    size = records.numel() * records.element_size()
    own = {p.untyped_storage().data_ptr() for p in [*probe.parameters(), *probe.buffers()]}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            found[memory.data_ptr()] = memory.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    try:
        with seeded_torch(0), torch.enable_grad(), hooks:
            output = probe(records).untyped_storage()
            found[output.data_ptr()] = output.nbytes()
    except Exception:  # it may reject made-up records: that is no failure
        return _UNKNOWN * size // len(records)
    return (size + 2 * sum(found.values())) // len(records)


def short_of_memory(error: BaseException) -> bool:
    """Return whether a device, and not the host, is out of memory.

    >>> short_of_memory(MemoryError())
    False
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, MemoryError) or current_device().kind == "cpu":
        return False
    return is_out_of_memory(error)


def largest_fitting(work: Callable[[int], _T], most: Callable[[], int], *, kind: Hashable) -> _T:
    """Run ``work`` with the largest size that fits: ``most()`` at first, halved while it does not.

    The work starts from scratch with each size. Other errors propagate; if not even size 1 fits,
    :class:`OutOfMemory` is raised.

    >>> import torch
    >>> def work(size):
    ...     if size > 3: raise torch.OutOfMemoryError
    ...     return size
    >>> [largest_fitting(work, lambda: 12, kind="example") for _ in range(2)]
    [3, 3]
    """
    size = _SIZES.get(kind) or most()
    while True:
        try:
            found = work(size)
        except Exception as error:
            if not short_of_memory(error):
                raise
        else:
            if current_device().kind != "cpu":
                _SIZES[kind] = size
            return found
        # Only here: while the error was alive, its traceback held the memory to be released.
        _release_memory(current_device())
        if size == 1:
            raise out_of_memory()
        size //= 2
        _SIZES[kind] = size


def out_of_memory() -> OutOfMemory:
    """Return the error for a device that is too small; it blames no teacher."""
    return OutOfMemory(
        f"{current_device()} has not enough memory for one network and one batch, and no teacher "
        "is to blame; let fewer workers share the GPU (such as --engine gpus:0@1), or choose a "
        "smaller 'batch_size'"
    )


def _release_memory(device: Device) -> None:
    """Return cached memory of torch to the device."""
    import torch

    gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()
    elif device.kind == "mps":
        torch.mps.empty_cache()
