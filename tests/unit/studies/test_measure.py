"""Time and memory of work: kept with the run, also over failures and kills."""

from __future__ import annotations

import stat
import subprocess
import sys
import time

import pytest

from pate.studies import measure
from pate.studies.measure import Measure, Measures, PeakMemory


def test_a_measure_is_kept(tmp_path):
    measures = Measures(tmp_path)
    assert measures.find("teach", "abc") is None
    with measures.measured("teach", "abc"):
        time.sleep(0.05)
    found = measures.find("teach", "abc")
    assert found is not None
    assert 0.05 <= found.seconds < 30
    assert found.megabytes > 10
    assert found.whole
    assert measures.find("teach", "abd") is None
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700


def fail(measures, nap):
    with measures.measured("teach", "abc"):
        time.sleep(nap)
        raise KeyError("gone")


def test_what_a_failure_took_is_added(tmp_path):
    measures = Measures(tmp_path)
    for _ in range(2):
        with pytest.raises(KeyError):
            fail(measures, 0.05)
        assert measures.find("teach", "abc") is None
    with measures.measured("teach", "abc"):
        pass
    found = measures.find("teach", "abc")
    assert found is not None
    assert found.seconds >= 0.1
    assert found.whole


def test_what_was_killed_took_longer(tmp_path):
    measures = Measures(tmp_path)
    with measures.measured("teach", "abc"):
        (file,) = (tmp_path / "private" / "measured").iterdir()
        mark = file.read_bytes()
    file.write_bytes(mark)  # as a kill would leave it
    assert measures.find("teach", "abc") is None
    with measures.measured("teach", "abc"):
        pass
    found = measures.find("teach", "abc")
    assert found is not None
    assert not found.whole


def test_measures_add_up():
    one = Measure(seconds=1.0, megabytes=5.0)
    other = Measure(seconds=2.0, megabytes=4.0, whole=False)
    assert one + other == Measure(seconds=3.0, megabytes=5.0, whole=False)


@pytest.mark.parametrize("damage", ["", "[", "[]", "3", '{"done": true}', '{"done": true, "x": 1}'])
def test_a_damaged_measure_is_none(tmp_path, damage):
    measures = Measures(tmp_path)
    with measures.measured("teach", "abc"):
        pass
    (file,) = (tmp_path / "private" / "measured").iterdir()
    file.write_text(damage)
    assert measures.find("teach", "abc") is None


# In a process of its own: what others of the family give back meanwhile would count.
WITH_CHILD = """
import subprocess, sys, time
from pate.studies.measure import PeakMemory

size = 120_000_000
code = f"import time; kept = bytearray({size}); print('made', flush=True); time.sleep(60)"
with PeakMemory() as alone:
    pass
enough = alone.megabytes + 0.9 * size / 1e6
with PeakMemory() as peak:
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"made\\n"
    end = time.monotonic() + 100
    while peak.megabytes < enough and time.monotonic() < end:
        time.sleep(0.05)
    child.kill()
    child.wait()
print(peak.megabytes > enough)
"""


def test_peak_memory_counts_children_and_what_is_gone_again():
    done = subprocess.run(
        [sys.executable, "-c", WITH_CHILD], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"


def test_peak_memory_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_PROC", tmp_path)
    with PeakMemory() as peak:
        pass
    assert peak.megabytes > 10
