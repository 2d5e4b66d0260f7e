"""Where tensors are: the processor, a GPU, or a pretended one to test with.

A worker is told its device when it starts; models of torch that are trained or asked in it go
there. Anything else in this process is on the processor.

>>> [str(parse_device(text)) for text in ("0", "cuda:1", "mps", "cpu")]
['cuda:0', 'cuda:1', 'mps', 'cpu']
>>> str(current_device())
'cpu'
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
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

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_PRETENDED = re.compile(r"pretend:([0-9]+)([KMG]i)?B/([0-9]+)([KMG]i)?B", re.ASCII)
# How allocators that raise a plain RuntimeError put it: MPS, CUDA's libraries, the processor's.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "_STATUS_ALLOC_FAILED")

_chosen: contextvars.ContextVar[Device | None] = contextvars.ContextVar("device", default=None)


@final
@dataclass(frozen=True, slots=True)
class Device:
    """One place for tensors.

    A pretended device is for tests on machines without a GPU: its tensors are on the processor, it
    says that ``free`` bytes are free, and a :meth:`claim` for more than ``real`` fails as a GPU
    does that is out of memory.

    >>> device = parse_device("pretend:64MiB/8MiB")
    >>> device.free_memory(), str(device)
    (67108864, 'pretend:64MiB/8MiB')
    """

    kind: Literal["cpu", "cuda", "mps", "pretend"]
    index: int | None = None
    free: int = 0  # bytes; both of a pretended device only
    real: int = 0

    def __str__(self) -> str:
        if self.kind == "pretend":
            return f"pretend:{_size(self.free)}/{_size(self.real)}"
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def torch(self) -> torch.device:
        """What torch calls it. On a GPU that workers share, torch keeps to this worker's share."""
        import torch

        place = torch.device("cpu" if self.kind == "pretend" else str(self))
        if self.kind == "cuda" and _sharers() > 1:
            torch.cuda.set_per_process_memory_fraction(1 / _sharers(), place)
        return place

    def free_memory(self) -> int | None:
        """How many bytes this process may still use there; None on the processor: no limit.

        Guarantees:
            Where several workers have one GPU, each has its share of it, whatever the others do
            just then: what they do, and when, follows from private shards.
        """
        if self.kind == "cpu":
            return None
        if self.kind == "pretend":
            return self.free
        import torch

        if self.kind == "mps":
            most = int(torch.mps.recommended_max_memory()) // _sharers()
            return max(0, most - int(torch.mps.driver_allocated_memory()))
        place = self.torch()
        free, total = torch.cuda.mem_get_info(place)
        used, kept = torch.cuda.memory_allocated(place), torch.cuda.memory_reserved(place)
        mine = total // _sharers() if _sharers() > 1 else free + kept
        return max(0, mine - used)

    def claim(self, size: int) -> None:
        """Says how many bytes are about to be used; only a pretended device may refuse."""
        if self.kind == "pretend" and size > self.real:
            import torch

            raise torch.OutOfMemoryError(f"{self} is out of memory: {size} bytes were claimed")


def parse_device(text: str) -> Device:
    """The device a user names: ``0`` or ``cuda:0``, ``mps``, ``cpu``.

    >>> parse_device("gpu")
    Traceback (most recent call last):
    pate.errors.InvalidInput: 'gpu' is not a device; use a GPU's number such as 0, 'mps' or 'cpu'
    """
    if text in ("cpu", "mps"):
        return Device("cpu" if text == "cpu" else "mps")
    number = text.removeprefix("cuda:")
    if number.isascii() and number.isdecimal():
        return Device("cuda", int(number))
    if pretended := _PRETENDED.fullmatch(text):
        free, free_unit, real, real_unit = pretended.groups(default="")
        return Device(
            "pretend",
            free=int(free) * _UNITS[f"{free_unit}B"],
            real=int(real) * _UNITS[f"{real_unit}B"],
        )
    raise InvalidInput(f"{text!r} is not a device; use a GPU's number such as 0, 'mps' or 'cpu'")


def current_device() -> Device:
    """The device of this worker, or of the block that chose one."""
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
    """What to add to ``environment`` for a worker that is to see this device and no other.

    A GPU is the first and only one that its worker sees; its number counts among those that this
    process may see itself.

    >>> told = pinned(Device("cuda", 1), environment={"CUDA_VISIBLE_DEVICES": "4,GPU-8932f937"})
    >>> told["CUDA_VISIBLE_DEVICES"], told["PATE_DEVICE"]
    ('GPU-8932f937', 'cuda:0')
    """
    told = {VARIABLE: str(device), SHARERS: str(sharers)}
    if device.kind != "cuda":
        return told
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
    return told | {VARIABLE: "cuda:0", _VISIBLE: name, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less at a time could have worked, on whatever device it was.

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


def _size(count: int) -> str:
    """Bytes as they are spelled.

    >>> _size(64 * 2**20), _size(1000)
    ('64MiB', '1000B')
    """
    unit = max((u for u in _UNITS if count % _UNITS[u] == 0), key=_UNITS.__getitem__)
    return f"{count // _UNITS[unit]}{unit}"
