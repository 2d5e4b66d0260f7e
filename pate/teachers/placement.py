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


@contextlib.contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Inside, generators that a process shares start from ``seed``; outside they are as before.

    Guarantees:
        What a teacher draws follows from its seed and its own shard: another teacher's records
        change neither where a shared generator stands nor, so, this teacher.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (what others may use)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        with _torch_from(seed):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextlib.contextmanager
def _torch_from(seed: int) -> Iterator[None]:
    """The same for torch, where it is loaded; one that loads it begins with torch's own seed."""
    if "torch" not in sys.modules:
        yield
        return
    with seeded_torch(seed):
        yield


SHARE = 0.8  # of what is free; the rest is for what torch itself needs, and for gaps
_UNKNOWN = 32  # times a record: what a module keeps of one, where that cannot be found out

_T = TypeVar("_T")
_SIZES: dict[Hashable, int] = {}  # what fits, by device, architecture and shape
_NEEDS: dict[Hashable, Need] = {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Bytes that a network takes, estimated from above.

    >>> Need(network=1000, record=10).together(2, records=33)
    2660
    """

    network: int  # weights, gradients, optimizer state and the copies of a step
    record: int  # of a batch: itself, and what is kept of it for the gradient

    def together(self, networks: int, *, records: int) -> int:
        """For a program of so many networks, with so many records for each."""
        return networks * (self.network + records * self.record)

    def widest(self, free: int, *, records: int) -> int:
        """How many networks fit; at least one, which is then tried."""
        return max(1, int(SHARE * free) // self.together(1, records=records))


def kind_of(module: nn.Module, training: Training, shape: tuple[int, ...]) -> Hashable:
    """Equal where the same memory is needed on the current device."""
    tensors = [*module.parameters(), *module.buffers()]
    shapes = tuple((_shape(each), each.dtype, each.requires_grad) for each in tensors)
    return str(current_device()), type(module), shapes, shape, training.model_dump_json()


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    import torch

    return () if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape)


def _bytes(tensor: torch.Tensor) -> int:
    return math.prod(_shape(tensor)) * tensor.element_size()


def need_of(module: nn.Module, training: Training, shape: tuple[int, ...]) -> Need:
    """What training the module takes; layers have their sizes. Found out with made-up records."""
    kind = kind_of(module, training, shape)
    if kind not in _NEEDS:
        _NEEDS[kind] = _estimate(module, training, shape)
    return _NEEDS[kind]


def _estimate(module: nn.Module, training: Training, shape: tuple[int, ...]) -> Need:
    weights = [_bytes(each) for each in module.parameters()]
    trained = [_bytes(each) for each in module.parameters() if each.requires_grad]
    buffers = sum(_bytes(each) for each in module.buffers())
    state = 1 if training.optimizer == "sgd" else 2
    # In a step one parameter at a time is kept with its state, and two more are computed.
    step = (3 + state) * max(trained, default=0)
    return Need(
        network=sum(weights) + buffers + (1 + state) * sum(trained) + step,
        record=_kept_of_a_record(module, shape),
    )


def _kept_of_a_record(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Twice what torch keeps for the gradient: as much is computed on the way back."""
    import torch

    found: dict[int, int] = {}
    probe = copy.deepcopy(module).train()
    records = torch.zeros(2, *shape, device=device_of(probe))  # zeros are codes, too
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
            said = probe(records)
            found[said.untyped_storage().data_ptr()] = said.untyped_storage().nbytes()
    except Exception:  # it may not bear made-up records: that is no failure
        return _UNKNOWN * size // len(records)
    return (size + 2 * sum(found.values())) // len(records)


def short_of_memory(error: BaseException) -> bool:
    """Whether a device, and not the host, has run out of memory.

    >>> short_of_memory(MemoryError())
    False
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, MemoryError) or current_device().kind == "cpu":
        return False
    return is_out_of_memory(error)


def fitting(work: Callable[[int], _T], most: Callable[[], int], *, kind: Hashable) -> _T:
    """Does the work with the size that fits: ``most()`` at first, half of it while memory is short.

    The work is begun anew with each size. An error of another kind passes; at size 1 there is
    nothing left to halve, and :class:`OutOfMemory` is raised.

    >>> import torch
    >>> def work(size):
    ...     if size > 3: raise torch.OutOfMemoryError
    ...     return size
    >>> fitting(work, lambda: 12, kind="example"), fitting(work, lambda: 12, kind="example")
    (3, 3)
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
        # Only here: while the error was at hand, its traceback held what is to be given back.
        give_back(current_device())
        if size == 1:
            raise out_of_memory()
        size //= 2
        _SIZES[kind] = size


def out_of_memory() -> OutOfMemory:
    """What there is to say; no teacher is to blame."""
    return OutOfMemory(
        f"{current_device()} has not enough memory for one network and one batch, and no teacher "
        "is to blame; let fewer workers share the GPU (such as --engine gpus:0@1), or choose a "
        "smaller 'batch_size'"
    )


def give_back(device: Device) -> None:
    """Returns memory to the device that torch keeps for later."""
    import torch

    gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()
    elif device.kind == "mps":
        torch.mps.empty_cache()
