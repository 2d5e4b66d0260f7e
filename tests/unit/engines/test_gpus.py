"""Which devices the engine of GPUs has, as they are written and as they are found."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pate.devices import Device, pinned
from pate.engines import make_engine
from pate.engines.worker_pool import GpuEngine
from pate.errors import InvalidInput


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many GPUs, as far as torch says."""

    def has(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return has


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("gpus", ("cuda:0", "cuda:1")),
        ("gpus@2", ("cuda:0", "cuda:1", "cuda:0", "cuda:1")),
        ("gpus:0", ("cuda:0",)),
        ("gpus:1,0", ("cuda:1", "cuda:0")),
        ("gpus:cuda:1", ("cuda:1",)),
        ("gpus:0,1@3", ("cuda:0", "cuda:1") * 3),
        ("gpus:0,0", ("cuda:0", "cuda:0")),
        ("gpus:cpu,cuda:0", ("cpu", "cuda:0")),
        ("gpus:cpu@2", ("cpu", "cpu")),
    ],
)
def test_devices_as_they_are_written(machine, text, devices):
    machine(cuda=2)
    engine = make_engine(text)
    assert engine.devices == devices
    assert engine.slots == len(devices)


def test_apple(machine):
    machine(mps=True)
    assert make_engine("gpus").devices == make_engine("gpus:mps").devices == ("mps",)


def test_no_gpu_at_all(machine):
    machine()
    words = "no GPU was found; use 'processes', or name slots: 'gpus:cpu,cpu'"
    for text in ("gpus", "gpus@2"):
        with pytest.raises(InvalidInput, match=words):
            make_engine(text)
    with pytest.raises(InvalidInput, match=words):
        GpuEngine(devices=())


def test_a_gpu_that_is_not_there(machine):
    machine(cuda=2)
    with pytest.raises(InvalidInput, match="no GPU 'cuda:2' was found, there is cuda:0, cuda:1;"):
        make_engine("gpus:0,2")
    with pytest.raises(InvalidInput, match="no GPU 'mps' was found"):
        make_engine("gpus:mps")
    machine()
    with pytest.raises(InvalidInput, match="no GPU 'cuda:0' was found, there is none; name others"):
        make_engine("gpus:0")


@pytest.mark.parametrize("option", ["x", "0,", ",", "0;1", "0 1", "-1", "cpu:0"])
def test_what_is_no_device(option):
    with pytest.raises(InvalidInput, match="is not a device"):
        make_engine(f"gpus:{option}")


@pytest.mark.parametrize("option", [":cpu@", ":cpu@0", ":cpu@-1", ":cpu@x", ":cpu@1@2", "@"])
def test_what_is_no_number_of_workers(option):
    with pytest.raises(InvalidInput, match="is not a number of workers; write the devices after"):
        make_engine(f"gpus{option}")


def test_nothing_is_named():
    with pytest.raises(InvalidInput, match="no device is named after 'gpus:'"):
        make_engine("gpus:")


@pytest.mark.parametrize("workers", [0, -1, 1.0, True])
def test_workers_are_checked_in_python_too(workers):
    with pytest.raises(InvalidInput, match="workers_each is"):
        GpuEngine(devices=("cpu",), workers_each=workers)


def test_slots_on_the_processor_need_no_torch():
    code = (
        "import sys; from pate.engines import make_engine; make_engine('gpus:cpu,cpu@2'); "
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("visible", "index", "expected"),
    [
        (None, 3, "3"),
        ("5", 0, "5"),
        ("6,2", 1, "2"),
        ("GPU-8932f937,MIG-3eb87630, GPU-c0ffee", 2, "GPU-c0ffee"),
    ],
)
def test_a_worker_sees_its_gpu_only(visible, index, expected):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert pinned(Device("cuda", index), environment=environment, sharers=3) == {
        "PATE_DEVICE": "cuda:0",
        "PATE_DEVICE_SHARERS": "3",
        "CUDA_VISIBLE_DEVICES": expected,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


@pytest.mark.parametrize(("visible", "index"), [("", 0), ("4,5", 2)])
def test_a_gpu_that_this_process_may_not_see(visible, index):
    with pytest.raises(InvalidInput, match="by its place in that list, from 0 on"):
        pinned(Device("cuda", index), environment={"CUDA_VISIBLE_DEVICES": visible})


def test_the_processor_needs_nothing_hidden():
    told = {"PATE_DEVICE": "cpu", "PATE_DEVICE_SHARERS": "1"}
    assert pinned(Device("cpu"), environment={"CUDA_VISIBLE_DEVICES": "0"}) == told
