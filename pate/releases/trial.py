"""The trial of a student in a process of its own, which isolates its caller from it.

A file can be made to crash its reader or to exhaust memory. The trial loads the student as
:func:`pate.load_student` does and lets it predict one full batch, within limits; what passes takes
no more memory afterwards, because no size in a student depends on a record's values.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

_MEMORY = 3 * 2**30  # bytes, beside four times those of the release
_SECONDS = 120  # of the processor; three times as many by the clock
_START = "import sys; sys.path[:] = {path!r}; from pate.releases.trial import main; main()"
_WORKS = "works"


def trial_problem(
    folder: Path, *, plugin_path: Path | None = None, trust: bool = False
) -> str | None:
    """Return how a student fails in a trial, in one line; None if it works."""
    path = [each for each in sys.path if each]  # not the folder one happens to be in
    arguments = [str(folder.resolve()), "" if plugin_path is None else str(plugin_path.resolve())]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _START.format(path=path), *arguments, "trust" * trust],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=3 * _SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {3 * _SECONDS} s"
    except OSError as error:
        return f"no process could be started to try it ({error.strerror})"
    if done.returncode < 0:
        number = -done.returncode
        if number == signal.SIGXCPU:
            return f"it took more than {_SECONDS} s of the processor"
        return f"its process was ended by signal {number}"
    try:
        answer = json.loads(done.stdout.decode().splitlines()[-1])
    except (ValueError, IndexError):
        return f"its process ended with code {done.returncode} and without an answer"
    return None if answer == _WORKS else str(answer)


def main() -> None:
    """Try the student in the folder given as an argument, in this process."""
    folder, plugin_path, trust = sys.argv[1:]
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a model's output is not the answer
    if not trust:
        _limit(_MEMORY + 4 * sum(each.stat().st_size for each in Path(folder).rglob("*")))
    try:
        _try(Path(folder), Path(plugin_path) if plugin_path else None, trust=bool(trust))
        answer = _WORKS
    except MemoryError:
        answer = "it needs too much memory"
    except (Exception, SystemExit) as error:
        answer = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    os.write(output, f"\n{json.dumps(answer)}\n".encode())


def _limit(memory: int) -> None:
    """Limit memory and time, and forbid core dumps and large files."""
    try:
        import resource
    except ImportError:  # not on every system
        return
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 2**20),  # libraries test whether they can write at all
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_DATA, memory),
    ):
        with contextlib.suppress(OSError, ValueError):  # a stricter limit is set already
            resource.setrlimit(kind, (most, most))


def _try(folder: Path, plugin_path: Path | None, *, trust: bool) -> None:
    import numpy as np

    from pate.releases.schema import read_header
    from pate.releases.student import load_student, open_student, rows_of

    header = read_header(folder)
    if trust:
        student = load_student(folder, plugin_path, trust=True)
    else:
        student = open_student(folder, header)
    records = np.random.default_rng(0).normal(size=(rows_of(student.shape), *student.shape))
    records[: len(records) // 2] = 0
    with np.errstate(all="ignore"):
        records = records.astype(student.dtype)
    student.predict(records)
    if hasattr(student, "predict_proba"):
        student.predict_proba(records)
