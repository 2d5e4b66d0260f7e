"""Devices by name, what they say of their memory, and how a shortage is recognised."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pate.devices import Device, current_device, is_out_of_memory, parse_device, use_device
from pate.errors import InvalidInput

MIB = 2**20


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("cpu")),
        ("mps", Device("mps")),
        ("0", Device("cuda", 0)),
        ("cuda:12", Device("cuda", 12)),
    ],
)
def test_a_device_is_spelled_as_it_is_read(text, device):
    assert parse_device(text) == device
    assert parse_device(str(device)) == device


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "-1", "cuda", "cuda:", "cuda:x", "٣", " 0", "CPU", "cpu:0"],
)
def test_what_is_no_device(text):
    with pytest.raises(InvalidInput, match="is not a device; use a GPU's number such as 0"):
        parse_device(text)


def test_the_device_of_a_worker_and_of_a_block(monkeypatch):
    assert current_device() == Device("cpu")
    monkeypatch.setenv("PATE_DEVICE", "cuda:0")
    assert current_device() == Device("cuda", 0)
    with use_device(Device("mps")):
        assert current_device() == Device("mps")
    assert current_device() == Device("cuda", 0)


def test_torch_knows_them_too():
    assert Device("cuda", 3).torch() == torch.device("cuda:3")
    assert Device("mps").torch() == torch.device("mps")
    assert Device("cpu").torch() == torch.device("cpu")


def test_the_processor_has_no_limit():
    assert Device("cpu").free_memory() is None


@pytest.mark.parametrize(
    ("sharers", "free", "used", "kept", "expected"),
    [
        (None, 60, 0, 0, 60),
        (None, 50, 10, 20, 60),  # what torch keeps for itself, it can use again
        ("2", 60, 0, 0, 50),  # half of all
        ("2", 60, 30, 30, 20),
        ("4", 10, 20, 20, 5),
        ("2", 5, 20, 20, 30),  # whatever the other one has taken just now
        ("2", 10, 70, 70, 0),
    ],
)
def test_the_free_memory_of_cuda(monkeypatch, sharers, free, used, kept, expected):
    if sharers:
        monkeypatch.setenv("PATE_DEVICE_SHARERS", sharers)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (free, 100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda place: used)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: kept)
    shares = []
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, place: shares.append((share, str(place))),
    )
    assert Device("cuda", 0).free_memory() == expected
    assert shares == ([(1 / int(sharers), "cuda:0")] if sharers else [])


def test_the_free_memory_of_mps(monkeypatch):
    mps = SimpleNamespace(recommended_max_memory=lambda: 90, driver_allocated_memory=lambda: 50)
    monkeypatch.setattr(torch, "mps", mps)
    assert Device("mps").free_memory() == 40
    monkeypatch.setenv("PATE_DEVICE_SHARERS", "2")
    assert Device("mps").free_memory() == 0


@pytest.mark.parametrize("allocate", [lambda: torch.empty(2**58), lambda: np.empty(2**58)])
def test_a_real_shortage_is_recognised(allocate):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
    ],
)
def test_shortages_of_devices_that_are_not_here(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: device-side assert"), ValueError("out of memory"), OSError()],
)
def test_other_errors_are_no_shortage(error):
    assert not is_out_of_memory(error)


def test_devices_are_named_without_torch():
    code = (
        "import sys; from pate.devices import parse_device as p, is_out_of_memory; "
        "p('0'), is_out_of_memory(RuntimeError()); "
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
