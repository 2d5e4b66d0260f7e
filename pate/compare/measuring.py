"""How long work took and how much memory, kept in private with the run.

How long training took follows from the records it saw: such figures are for the run's owner.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

from pate.artifacts import Level
from pate.pipeline.stage import Context, Stage
from pate.studies import PeakMemory
from pate.studies.files import write_owned

_ID = 20  # characters of a fingerprint that name a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What a piece of work took."""

    seconds: float
    megabytes: float
    whole: bool = True  # False: it was killed before, and what that took is not in it

    def __add__(self, other: Self) -> Self:
        """One after the other."""
        return type(self)(
            seconds=self.seconds + other.seconds,
            megabytes=max(self.megabytes, other.megabytes),
            whole=self.whole and other.whole,
        )


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of a run folder, by the name of the work and what it was made from."""

    folder: Path

    def find(self, work: str, made_from: str) -> Measure | None:
        """None where it was never done here, or never to its end."""
        return self._read(work, made_from, done=True)

    @contextmanager
    def measured(self, work: str, made_from: str) -> Iterator[None]:
        """Measures its block, and adds what failed attempts took before.

        A mark is left at once: what is killed is known to be begun, and to have taken longer.
        """
        file = self._file(work, made_from)
        file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        failed = self._read(work, made_from, done=False)
        before = failed or Measure(seconds=0.0, megabytes=0.0, whole=not file.exists())
        write_owned(file, b"{}\n")
        start, done = time.perf_counter(), False
        peak = PeakMemory()
        try:
            with peak:
                yield
            done = True
        finally:
            took = Measure(seconds=time.perf_counter() - start, megabytes=peak.megabytes)
            write_owned(file, json.dumps(asdict(before + took) | {"done": done}).encode())

    def _read(self, work: str, made_from: str, *, done: bool) -> Measure | None:
        try:
            told = json.loads(self._file(work, made_from).read_text())
            return Measure(**told) if told.pop("done", None) is done else None
        except (OSError, ValueError, TypeError, AttributeError):
            return None  # a measure is no result: without it a cell stays empty

    def timed(self, stage: Stage) -> Stage:
        """A stage that is measured whenever it is run."""

        def run(context: Context) -> None:
            with self.measured(stage.name, context.made_from):
                stage.run(context)

        return replace(stage, run=run)

    def _file(self, work: str, made_from: str) -> Path:
        return self.folder / Level.PRIVATE.folder / "measured" / f"{work}-{made_from[:_ID]}.json"


@cache
def warm_up() -> None:
    """Takes one step of torch, so that its first use, once a process, is in nobody's time."""
    import torch

    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.func.vmap(torch.func.grad(torch.sin))(torch.zeros(1))
    torch.optim.SGD([weight], lr=1.0).step()
