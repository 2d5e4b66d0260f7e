"""The engine of GPUs: worker processes, each pinned to a device of a list.

The list is names of devices (:mod:`pate.devices`). ``cpu`` is one too: such a slot behaves the
same way, so a plan can be tried where there is no GPU.

>>> read_option("cpu,cpu@2")
(('cpu', 'cpu'), 2)
>>> GpuEngine(devices=("cpu", "cpu"), workers_each=2).slots
4
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import ClassVar, final

from pate.devices import parse_device
from pate.engines.crew import CrewEngine, require_sane
from pate.errors import InvalidInput

HOW = "write the devices after a colon, such as 'gpus:0,1', or 'gpus:0,1@3' for 3 workers on each"


def visible_gpus() -> tuple[str, ...]:
    """All GPUs that torch can use in this process: those of CUDA, or else Apple's."""
    found = _cuda_devices() or _mps_devices()
    if not found:
        raise InvalidInput("no GPU was found; use 'processes', or name slots: 'gpus:cpu,cpu'")
    return found


@final
@dataclass(frozen=True, slots=True)
class GpuEngine(CrewEngine):
    """Runs tasks in fresh interpreters, ``workers_each`` of them on every device of the list.

    A worker sees its own GPU only. Tasks go to whichever worker is free; see
    :mod:`pate.engines.crew` for what happens to one that is lost.
    """

    devices: tuple[str, ...] = field(default_factory=visible_gpus)  # one for each slot, once made
    workers_each: InitVar[int] = 1

    name: ClassVar[str] = "gpus"

    def __post_init__(self, workers_each: int) -> None:
        if isinstance(workers_each, bool) or not isinstance(workers_each, int) or workers_each < 1:
            raise InvalidInput(
                f"workers_each is {workers_each!r}; it must be a whole number, 1 or more"
            )
        require_sane(workers_each)
        if not self.devices:
            raise InvalidInput("no device is named; name one or more, such as ('cuda:0', 'cuda:1')")
        names = tuple(str(parse_device(text)) for text in self.devices)
        _refuse_missing(names)
        # All devices once, then all of them again: few tasks still use every GPU.
        object.__setattr__(self, "devices", names * workers_each)


def from_option(option: str | None) -> GpuEngine:
    """The engine that ``gpus:OPTION`` names; without devices, all that can be seen."""
    if option == "":
        raise InvalidInput(f"no device is named after 'gpus:'; {HOW}")
    named, workers_each = read_option(option or "")
    return GpuEngine(named or visible_gpus(), workers_each)


def read_option(option: str) -> tuple[tuple[str, ...], int]:
    """Devices and workers on each: ``0,1@3``, ``cpu,cpu``, ``@2``.

    >>> read_option("0,1@3"), read_option("cuda:1"), read_option("@2")
    ((('0', '1'), 3), (('cuda:1',), 1), ((), 2))
    """
    named, at, count = option.partition("@")
    if at and not (count.isascii() and count.isdecimal() and int(count) > 0):
        raise InvalidInput(f"{count!r} is not a number of workers; {HOW}")
    return tuple(named.split(",")) if named else (), int(count) if at else 1


def _refuse_missing(names: tuple[str, ...]) -> None:
    """Asks torch, but only where a GPU is named."""
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
