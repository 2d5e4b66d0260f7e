"""Time and memory that work took, kept in the private part of a run's folder.

How long training took follows from the records it saw: such numbers are for the run's owner.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self, final

from pate.artifacts import Level
from pate.pipeline.stage import Context, Stage
from pate.studies.tables import write_private_file

_ID = 20  # characters of a fingerprint that name a file
_PROC = Path("/proc")
_INTERVAL = 0.1  # seconds between samples
_LEAST_REST = 30  # times as long as a sample took: sampling must not slow what is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The time and memory of a piece of work."""

    seconds: float
    megabytes: float
    whole: bool = True  # False: it was killed before, and that time is missing

    def __add__(self, other: Self) -> Self:
        """Return the measure of one after the other."""
        return type(self)(
            seconds=self.seconds + other.seconds,
            megabytes=max(self.megabytes, other.megabytes),
            whole=self.whole and other.whole,
        )


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures in a run's folder, by the name of the work and its fingerprint."""

    folder: Path

    def find(self, work: str, made_from: str) -> Measure | None:
        """Return a measure; None where the work was never finished here."""
        return self._read(work, made_from, done=True)

    @contextmanager
    def measured(self, work: str, made_from: str) -> Iterator[None]:
        """Measure the block, and add what failed attempts took before.

        A file is left at once, so that a kill is known: the work then took longer than recorded.
        """
        file = self._file(work, made_from)
        file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        failed = self._read(work, made_from, done=False)
        before = failed or Measure(seconds=0.0, megabytes=0.0, whole=not file.exists())
        write_private_file(file, b"{}\n")
        start, done = time.perf_counter(), False
        peak = PeakMemory()
        try:
            with peak:
                yield
            done = True
        finally:
            took = Measure(seconds=time.perf_counter() - start, megabytes=peak.megabytes)
            write_private_file(file, json.dumps(asdict(before + took) | {"done": done}).encode())

    def timed(self, stage: Stage) -> Stage:
        """Return the stage, measured whenever it runs."""

        def run(context: Context) -> None:
            with self.measured(stage.name, context.made_from):
                stage.run(context)

        return replace(stage, run=run)

    def _read(self, work: str, made_from: str, *, done: bool) -> Measure | None:
        try:
            content = json.loads(self._file(work, made_from).read_text())
            return Measure(**content) if content.pop("done", None) is done else None
        except (OSError, ValueError, TypeError, AttributeError):
            return None  # no result depends on a measure: a cell stays empty

    def _file(self, work: str, made_from: str) -> Path:
        return self.folder / Level.PRIVATE.folder / "measured" / f"{work}-{made_from[:_ID]}.json"


@cache
def warm_up() -> None:
    """Take one step of torch, so that no measure includes its first use in a process."""
    import torch

    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.func.vmap(torch.func.grad(torch.sin))(torch.zeros(1))
    torch.optim.SGD([weight], lr=1.0).step()


@final
class PeakMemory:
    """The peak memory of this process and its descendants while a ``with`` block runs.

    Proportional set sizes (PSS) are summed, so that shared pages count once; a short peak between
    two samples is missed. Without ``/proc`` it is the largest that this process ever was.

    >>> with PeakMemory() as peak:
    ...     kept = bytearray(1_000_000)
    >>> peak.megabytes > 1
    True
    """

    def __init__(self) -> None:
        self._most = 0
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sampler.join()
        self._sample()

    @property
    def megabytes(self) -> float:
        """The peak so far, in units of a million bytes."""
        if self._most:
            return self._most / 1e6
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (largest if sys.platform == "darwin" else 1024 * largest) / 1e6

    def _watch(self) -> None:
        rest = _INTERVAL
        while not self._over.wait(rest):
            start = time.perf_counter()
            self._sample()
            rest = max(_INTERVAL, _LEAST_REST * (time.perf_counter() - start))

    def _sample(self) -> None:
        self._most = max(self._most, sum(map(_proportional_set_size, _family(os.getpid()))))


def _family(root: int) -> list[int]:
    """Return a process and all its descendants, as far as they are visible."""
    children: dict[int, list[int]] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            content = stat.read_bytes()
        except OSError:
            continue  # it has just ended
        parent = content.rpartition(b")")[2].split()[1]  # a name may hold brackets and blanks
        children.setdefault(int(parent), []).append(int(stat.parent.name))
    family = [root]
    for member in family:  # it grows while it is read
        family += children.get(member, [])
    return family


def _proportional_set_size(process: int) -> int:
    """Return the bytes of one process, shared pages in proportion; 0 where it is unknown."""
    try:
        text = (_PROC / str(process) / "smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, flags=re.MULTILINE)
    return 1024 * int(found[1]) if found else 0
