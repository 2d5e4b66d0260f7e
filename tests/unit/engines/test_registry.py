"""Engines by name."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import pate.engines
from pate.engines import engine_names, make_engine, register_engine
from pate.engines.worker import SerialEngine, usable_cores
from pate.engines.worker_pool import GpuEngine, ProcessEngine
from pate.errors import InvalidInput


def test_names():
    assert make_engine("serial") == SerialEngine()
    assert make_engine("processes") == ProcessEngine(workers=usable_cores())
    assert make_engine("processes:3") == ProcessEngine(workers=3)
    assert make_engine("gpus:cpu,cpu") == GpuEngine(devices=("cpu", "cpu"))
    assert engine_names() == ("serial", "processes", "gpus", "ray")
    texts = ("serial", "processes", "gpus:cpu")
    assert [make_engine(text).name for text in texts] == ["serial", "processes", "gpus"]


@pytest.mark.parametrize(
    ("option", "address"), [("", None), (":auto", "auto"), (":10.0.0.7:6379", "10.0.0.7:6379")]
)
def test_ray_gets_the_address(monkeypatch, option, address):
    module = ModuleType("pate.engines.ray")
    module.RayEngine = lambda address: ("ray", address)
    monkeypatch.setitem(sys.modules, "pate.engines.ray", module)
    assert make_engine(f"ray{option}") == ("ray", address)
    with pytest.raises(InvalidInput, match="write 'ray' for this machine, 'ray:auto', or"):
        make_engine("ray@2")


@pytest.mark.parametrize("text", ["", "threads", "Serial", "processes 4", "gpu:0", "gpu@2", ":2"])
def test_an_unknown_engine_is_told_the_known_ones(text):
    choices = r"is not an engine; choose one of: serial, processes \(processes:4\), gpus \(gpus:0,1"
    with pytest.raises(InvalidInput, match=choices):
        make_engine(text)


@pytest.mark.parametrize("option", ["", "0", "-1", "x", "1.5", "1_0", " 2", "٣", "²", "2@2"])
def test_the_number_of_workers_is_a_whole_number(option):
    with pytest.raises(InvalidInput, match="after a colon comes a whole number, such as 'proc"):
        make_engine(f"processes:{option}")


def test_an_at_sign_is_told_what_to_write():
    with pytest.raises(InvalidInput, match="'@2' is not a number of workers; after a colon"):
        make_engine("processes@2")


def test_serial_takes_no_number():
    with pytest.raises(InvalidInput, match="takes no number"):
        make_engine("serial:2")


@pytest.mark.parametrize("workers", [0, -1, 1.0, True])
def test_workers_are_checked_in_python_too(workers):
    with pytest.raises(InvalidInput, match="workers is"):
        ProcessEngine(workers=workers)


def test_the_registry_is_open(monkeypatch):
    monkeypatch.setattr(pate.engines, "_FACTORIES", dict(pate.engines._FACTORIES))
    options = []
    register_engine("slurm", lambda option: options.append(option) or SerialEngine())
    for text in ("slurm", "slurm:a:b@2", "slurm@2", "slurm:"):
        make_engine(text)
    assert options == [None, "a:b@2", "@2", ""]
    with pytest.raises(InvalidInput, match=r"ray \(ray:auto\), slurm$"):
        make_engine("pbs")


@pytest.mark.parametrize("name", ["serial", "", "a:b", "a@b"])
def test_a_name_that_cannot_be_used(name):
    with pytest.raises(InvalidInput, match=r"already|cannot name an engine"):
        register_engine(name, lambda option: SerialEngine())


def test_the_package_is_light():
    heavy = ["torch", "numpy", "rich", "multiprocessing", "subprocess", "socket"]
    code = f"import pate.engines, sys; print([m for m in {heavy!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
