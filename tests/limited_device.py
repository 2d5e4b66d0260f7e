"""A device with little memory, for machines without a GPU.

Its tensors are on the processor. It reports ``free`` bytes as free, and a program that would need
more than ``real`` bytes fails as on a GPU that is out of memory.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

import torch

from pate.devices import use_device
from pate.teachers import torch_family, torch_teacher
from pate.teachers.placement import memory_need


@dataclass(frozen=True)
class LimitedDevice:
    """Stands in for :class:`pate.devices.Device`."""

    free: int = 2**30
    real: int = 2**30

    kind: ClassVar[str] = "limited"
    index: ClassVar[None] = None

    def __str__(self):
        return f"limited:{self.free}/{self.real}"

    def torch(self):
        return torch.device("cpu")

    def free_memory(self):
        return self.free


@contextlib.contextmanager
def limited_device(free=2**30, real=2**30):
    """Make a limited device the current one, and have torch teachers run out of its memory."""
    device = LimitedDevice(int(free), int(real))

    def claim(teacher, shape, networks, records):
        need = memory_need(teacher.module, teacher.training, tuple(shape))
        if need.bytes_for(networks, records=records) > device.real:
            raise torch.OutOfMemoryError(f"{device} is out of memory")

    program, train = torch_family._Program.__init__, torch_teacher.TorchTeacher._run
    convert = torch_teacher.TorchTeacher._records

    def limited_program(self, first, modules):
        width = torch_family._width(first.teacher.training.batch_size)
        claim(first.teacher, first.records.shape[1:], len(modules), width)
        program(self, first, modules)

    def limited_training(self, records, labels):
        claim(self, records.shape[1:], 1, self.training.batch_size + 1)
        train(self, records, labels)

    def limited_chunk(self, X):
        if sys._getframe(1).f_code.co_name == "compute":  # predictions of one chunk
            claim(self, X.shape[1:], 1, len(X))
        return convert(self, X)

    with (
        use_device(device),
        mock.patch.object(torch_family._Program, "__init__", limited_program),
        mock.patch.object(torch_teacher.TorchTeacher, "_run", limited_training),
        mock.patch.object(torch_teacher.TorchTeacher, "_records", limited_chunk),
    ):
        yield device
