"""Engines by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pate.engines import engine_names, make_engine, register_engine, registry
from pate.engines.processes import ProcessEngine, usable_cores
from pate.engines.serial import SerialEngine
from pate.errors import InvalidInput


def test_names():
    assert make_engine("serial") == SerialEngine()
    assert make_engine("processes") == ProcessEngine(workers=usable_cores())
    assert make_engine("processes:3") == ProcessEngine(workers=3)
    assert [make_engine(name).name for name in engine_names()] == list(engine_names())


@pytest.mark.parametrize("text", ["", "threads", "Serial", "processes 4", "gpus:0"])
def test_an_unknown_engine_is_told_the_known_ones(text):
    with pytest.raises(InvalidInput, match="choose one of: serial, processes"):
        make_engine(text)


@pytest.mark.parametrize("option", ["", "0", "-1", "x", "1.5", "1_0", " 2", "٣", "²"])
def test_the_number_of_workers_is_a_whole_number(option):
    with pytest.raises(InvalidInput, match="the number of workers, such as 'processes:4'"):
        make_engine(f"processes:{option}")


def test_serial_takes_no_number():
    with pytest.raises(InvalidInput, match="takes no number"):
        make_engine("serial:2")


@pytest.mark.parametrize("workers", [0, -1, 1.0, True])
def test_workers_are_checked_in_python_too(workers):
    with pytest.raises(InvalidInput, match="workers is"):
        ProcessEngine(workers=workers)


def test_the_registry_is_open(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    options = []
    register_engine("gpus", lambda option: options.append(option) or SerialEngine())
    make_engine("gpus")
    make_engine("gpus:0,1")
    assert options == [None, "0,1"]
    with pytest.raises(InvalidInput, match="serial, processes, gpus"):
        make_engine("ray")


@pytest.mark.parametrize("name", ["serial", "", "a:b"])
def test_a_name_that_cannot_be_used(name):
    with pytest.raises(InvalidInput, match=r"already|cannot name an engine"):
        register_engine(name, lambda option: SerialEngine())


def test_the_package_is_light():
    heavy = ["torch", "numpy", "rich", "multiprocessing", "subprocess", "socket"]
    code = f"import pate.engines, sys; print([m for m in {heavy!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
