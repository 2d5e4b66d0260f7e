"""What is printed inside :func:`pate.untrusted.silence` does not come out, then or later.

In a process of its own, whose output goes into files: there C's buffers, and Python's, hold back
what is written until they are full or the process ends.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TALK = {
    "print": 'print("loud"); print("loud", file=sys.stderr)',
    "the first streams": 'sys.__stdout__.write("loud"); sys.__stderr__.write("loud")',
    "puts": 'C.puts(b"loud")',
    "printf": 'C.printf(b"loud")',  # without an end of line
    "write": 'os.write(1, b"loud"); os.write(2, b"loud")',
    "a child": "subprocess.run([sys.executable, '-c', 'print(\"loud\")'], check=True)",
    "warnings": 'warnings.warn("loud")',
    "logs": 'logging.getLogger("it").warning("loud")',
    "an error": 'print("loud"); sys.__stdout__.write("loud"); C.printf(b"loud"); fail()',
}
PROGRAM = """
import ctypes, logging, os, subprocess, sys, warnings
from pate.untrusted import silence

C = ctypes.CDLL(None)


def fail():
    raise ArithmeticError("loud")


print("before", end=" ")
C.printf(b"C before ")
try:
    with silence():
        {talk}
except ArithmeticError:
    pass
print("after", end=" ")
C.printf(b"C after ")
print("after", end="", file=sys.stderr)
"""


def heard(tmp_path, talk):
    """The output and the errors of a program that prints inside."""
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    files = tmp_path / "out", tmp_path / "err"
    with files[0].open("wb") as out, files[1].open("wb") as err:
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(talk=talk)],
            stdout=out,
            stderr=err,
            env=plain,
            timeout=300,
            check=True,
        )
    return [file.read_text() for file in files]


@pytest.mark.parametrize("way", TALK)
def test_what_is_printed_inside_never_comes_out(tmp_path, way):
    out, err = heard(tmp_path, TALK[way])
    assert "loud" not in out + err
    # What was said before and after is all there.
    assert sorted(out.split()) == ["C", "C", "after", "after", "before", "before"]
    assert err == "after"


def test_what_was_printed_before_is_not_dropped(tmp_path):
    """It was still in buffers when the way out was closed, and comes before the rest."""
    out, _ = heard(tmp_path, "pass")
    assert out.index("before") < out.index("after")
    assert out.index("C before") < out.index("C after")
    assert out.index("C before") < out.index("after")


def test_all_of_it_would_be_heard_otherwise(tmp_path):
    """The check above can fail: the same words outside come out."""
    for way, talk in TALK.items():
        if way != "an error":
            out, err = heard(tmp_path, f"pass\n    {talk}")
            assert "loud" in out + err, way
