"""Devices: the processor or a GPU, where the tensors of a worker are.

A worker gets its device when it starts; torch models that are trained or asked in it use it.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from pate.errors import InvalidInput

if TYPE_CHECKING:
    import torch

VARIABLE = "PATE_DEVICE"  # set for a worker when it is started
SHARERS = "PATE_DEVICE_SHARERS"  # and how many workers have this device
_VISIBLE = "CUDA_VISIBLE_DEVICES"

# Messages of allocators that raise a plain RuntimeError: MPS, CUDA's libraries, the processor's.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "_STATUS_ALLOC_FAILED")

_chosen: contextvars.ContextVar[Device | None] = contextvars.ContextVar("device", default=None)


@final
@dataclass(frozen=True, slots=True)
class Device:
    """One place for tensors: the processor, or a GPU."""

    kind: Literal["cpu", "cuda", "mps"]
    index: int | None = None

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def torch(self) -> torch.device:
        """Return torch's device. On a GPU that workers share, torch keeps to this one's share."""
        import torch

        place = torch.device(str(self))
        if self.kind == "cuda" and _sharers() > 1:
            torch.cuda.set_per_process_memory_fraction(1 / _sharers(), place)
        return place

    def free_memory(self) -> int | None:
        """Return how many bytes this process may still use; None on the processor: no limit.

        Guarantees:
            Where several workers have one GPU, each has its share of it, whatever the others do
            at that moment: what they do, and when, follows from private shards.
        """
        if self.kind == "cpu":
            return None
        import torch

        if self.kind == "mps":
            most = int(torch.mps.recommended_max_memory()) // _sharers()
            return max(0, most - int(torch.mps.driver_allocated_memory()))
        place = self.torch()
        free, total = torch.cuda.mem_get_info(place)
        used, kept = torch.cuda.memory_allocated(place), torch.cuda.memory_reserved(place)
        mine = total // _sharers() if _sharers() > 1 else free + kept
        return max(0, mine - used)


def parse_device(text: str) -> Device:
    """Return the device a user names: ``0`` or ``cuda:0``, ``mps``, ``cpu``.

    >>> [str(parse_device(text)) for text in ("0", "cuda:1", "mps", "cpu")]
    ['cuda:0', 'cuda:1', 'mps', 'cpu']
    >>> parse_device("gpu")
    Traceback (most recent call last):
    pate.errors.InvalidInput: 'gpu' is not a device; use a GPU's number such as 0, 'mps' or 'cpu'
    """
    if text in ("cpu", "mps"):
        return Device("cpu" if text == "cpu" else "mps")
    number = text.removeprefix("cuda:")
    if number.isascii() and number.isdecimal():
        return Device("cuda", int(number))
    raise InvalidInput(f"{text!r} is not a device; use a GPU's number such as 0, 'mps' or 'cpu'")


def current_device() -> Device:
    """Return the device of this worker, or of the block that chose one."""
    return _chosen.get() or parse_device(os.environ.get(VARIABLE, "cpu"))


@contextlib.contextmanager
def use_device(device: Device) -> Iterator[None]:
    """Make this the current device inside the block."""
    token = _chosen.set(device)
    try:
        yield
    finally:
        _chosen.reset(token)


def use_first(names: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Make the first of an engine's devices the current one inside the block, as for its teachers.

    There is one student, so one device is enough; like the engine, it is no part of a cache key.
    """
    return use_device(parse_device(next(iter(names), "cpu")))


def pinned(
    device: Device, *, sharers: int = 1, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return variables to add to ``environment`` for a worker that sees this device only.

    The GPU becomes the first and only one of its worker; its number counts among those that this
    process may see itself.

    >>> added = pinned(Device("cuda", 1), environment={"CUDA_VISIBLE_DEVICES": "4,GPU-8932f937"})
    >>> added["CUDA_VISIBLE_DEVICES"], added["PATE_DEVICE"]
    ('GPU-8932f937', 'cuda:0')
    """
    added = {VARIABLE: str(device), SHARERS: str(sharers)}
    if device.kind != "cuda":
        return added
    index = device.index or 0
    name = str(index)
    if (listed := environment.get(_VISIBLE)) is not None:
        entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
        if index >= len(entries):
            raise InvalidInput(
                f"{_VISIBLE} is {listed!r}, so there is no {device}; "
                "name a GPU by its place in that list, from 0 on"
            )
        name = entries[index]
    # The workspace makes products of matrices the same each time.
    return added | {VARIABLE: "cuda:0", _VISIBLE: name, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a shortage of memory, on any device.

    >>> is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9 GiB)"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not match")), is_out_of_memory(MemoryError())
    (False, True)
    """
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")  # an error of torch comes from a torch that is there
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def _sharers() -> int:
    return max(1, int(os.environ.get(SHARERS, "1")))
