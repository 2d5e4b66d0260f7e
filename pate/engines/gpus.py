"""The GPU engine: worker processes, each pinned to one device.

Devices are named as in :mod:`pate.devices`. ``cpu`` is one too: such a slot behaves the same way,
so that a plan can be tried without a GPU.

>>> read_option("cpu,cpu@2")
(('cpu', 'cpu'), 2)
>>> GpuEngine(devices=("cpu", "cpu"), workers_each=2).slots
4
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import ClassVar, final

from pate.devices import parse_device
from pate.engines.worker_pool import WorkerPoolEngine, check_worker_count
from pate.errors import InvalidInput

_USAGE = (
    "write the devices after a colon, such as 'gpus:0,1', or 'gpus:0,1@3' for 3 workers on each"
)


def visible_gpus() -> tuple[str, ...]:
    """Return all GPUs that torch can use in this process: those of CUDA, or else Apple's."""
    found = _cuda_devices() or _mps_devices()
    if not found:
        raise InvalidInput("no GPU was found; use 'processes', or name slots: 'gpus:cpu,cpu'")
    return found


@final
@dataclass(frozen=True, slots=True)
class GpuEngine(WorkerPoolEngine):
    """Run tasks in fresh interpreters, each of which sees one device only.

    Parameters
    ----------
    devices
        Names of devices; by default all GPUs of this machine.
    workers_each
        The number of workers on every device.
    """

    devices: tuple[str, ...] = field(default_factory=visible_gpus)  # one for each slot, once made
    workers_each: InitVar[int] = 1

    name: ClassVar[str] = "gpus"

    def __post_init__(self, workers_each: int) -> None:
        check_worker_count("workers_each", workers_each)
        if not self.devices:
            raise InvalidInput("no device is named; name one or more, such as ('cuda:0', 'cuda:1')")
        names = tuple(str(parse_device(text)) for text in self.devices)
        _check_present(names)
        # All devices once, then all of them again: few tasks still use every GPU.
        object.__setattr__(self, "devices", names * workers_each)


def from_option(option: str | None) -> GpuEngine:
    """Return the engine that ``gpus:OPTION`` names; without devices, on all visible ones."""
    if option == "":
        raise InvalidInput(f"no device is named after 'gpus:'; {_USAGE}")
    named, workers_each = read_option(option or "")
    return GpuEngine(named or visible_gpus(), workers_each)


def read_option(option: str) -> tuple[tuple[str, ...], int]:
    """Parse devices and the workers on each: ``0,1@3``, ``cpu,cpu``, ``@2``.

    >>> read_option("0,1@3"), read_option("cuda:1"), read_option("@2")
    ((('0', '1'), 3), (('cuda:1',), 1), ((), 2))
    """
    named, at, count = option.partition("@")
    if at and not (count.isascii() and count.isdecimal() and int(count) > 0):
        raise InvalidInput(f"{count!r} is not a number of workers; {_USAGE}")
    return tuple(named.split(",")) if named else (), int(count) if at else 1


def _check_present(names: tuple[str, ...]) -> None:
    """Reject GPUs that torch does not find; torch is imported only if a GPU is named."""
    wanted = [name for name in names if parse_device(name).kind in ("cuda", "mps")]
    seen = _cuda_devices() + _mps_devices() if wanted else ()
    for name in wanted:
        if name not in seen:
            there = f"there is {', '.join(seen)}" if seen else "there is none"
            raise InvalidInput(f"no GPU {name!r} was found, {there}; name others, or 'cpu'")


def _cuda_devices() -> tuple[str, ...]:
    import torch

    return tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))


def _mps_devices() -> tuple[str, ...]:
    import torch

    return ("mps",) if torch.backends.mps.is_available() else ()
