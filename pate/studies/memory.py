"""The most memory that a piece of work took, with all processes it started."""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self, final

_PROC = Path("/proc")
_EVERY = 0.1  # seconds
_LEAST_REST = 30  # times as long as a sample took: what is measured must not be slowed by it


@final
class PeakMemory:
    """Samples memory while its ``with`` block runs.

    What counts is the proportional share (PSS) of this process and of all that descend from it:
    pages that several of them share count once. Samples are 100 ms apart, or more where taking one
    is slow, so that a short peak may be missed. Where the system does not tell, it is the largest
    that this process ever was.

    >>> with PeakMemory() as peak:
    ...     kept = bytearray(1_000_000)
    >>> peak.megabytes > 1
    True
    """

    def __init__(self) -> None:
        self._most = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._watch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._watch.join()
        self._sample()

    @property
    def megabytes(self) -> float:
        """The most so far, in MB of a million bytes."""
        return (self._most or _largest_ever()) / 1e6

    def _look(self) -> None:
        rest = _EVERY
        while not self._over.wait(rest):
            start = time.perf_counter()
            self._sample()
            rest = max(_EVERY, _LEAST_REST * (time.perf_counter() - start))

    def _sample(self) -> None:
        self._most = max(self._most, sum(map(_share_of, _family(os.getpid()))))


def _family(root: int) -> list[int]:
    """A process and all that descend from it, as far as they can be seen."""
    children: dict[int, list[int]] = {}
    for process in filter(str.isdecimal, _listed()):
        try:
            with open(f"{_PROC}/{process}/stat", "rb") as file:  # quicker than by Path
                stat = file.read()
        except OSError:
            continue  # it has just ended
        parent = stat.rpartition(b")")[2].split()[1]  # a name may hold brackets and blanks
        children.setdefault(int(parent), []).append(int(process))
    family = [root]
    for member in family:  # it grows while it is read
        family += children.get(member, [])
    return family


def _listed() -> list[str]:
    try:
        return os.listdir(_PROC)
    except OSError:
        return []  # a system that does not tell


def _share_of(process: int) -> int:
    """Bytes of one process, shared pages in proportion; 0 where the system does not tell."""
    try:
        text = (_PROC / str(process) / "smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, flags=re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def _largest_ever() -> int:
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest
