"""The stages of a run while it runs: a live table on a terminal, or a line for each."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pate.engines.progress import Progress, pace

if TYPE_CHECKING:
    from rich.table import Table

    from pate.pipeline.runner import PipelineRun
    from pate.pipeline.stage import StageEvent

Seconds = dict[str, float]  # of each stage that ran


@contextmanager
def shown_stages(
    run: PipelineRun, *, until: str | None, live: bool, verbose: bool
) -> Iterator[tuple[PipelineRun, Seconds]]:
    """Show the stages of a run that is executed in the block; yield that run, and their times.

    With ``live``, and if both outputs are terminals, in a table that changes in place. Otherwise
    each stage is a line; with ``verbose`` also why it runs and how long it took.
    """
    if live and not verbose and _is_terminal():
        table = _LiveTable(run.names_until(until))
        shown = replace(
            run.options, report=table.report, progress=table.progress, on_stage=table.on_stage
        )
        with table.on_screen():
            yield replace(run, options=shown), table.seconds
        return
    seconds: Seconds = {}

    def on_stage(event: StageEvent) -> None:
        if event.state == "done":
            seconds[event.stage] = event.seconds
            if not verbose:
                return
        line = f"{event.stage}: {event.state}"
        if verbose and event.state == "done":
            line += f" in {duration(event.seconds)}"
        elif verbose and event.state == "running":
            line += f" ({event.why()})"
        run.options.report(line)

    yield replace(run, options=replace(run.options, on_stage=on_stage)), seconds


def _is_terminal() -> bool:
    if not all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        return False
    from rich.console import Console

    return not Console(stderr=True).is_dumb_terminal


class _LiveTable:
    """A row for each stage: its state, its time, and the count and pace of its items."""

    def __init__(self, stages: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.seconds: Seconds = {}
        self._states = dict.fromkeys(stages, "waiting")
        self._counts: dict[str, _Count] = {}
        self._running, self._start = "", 0.0
        console = Console(stderr=True, markup=False, highlight=False)
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=4)

    @contextmanager
    def on_screen(self) -> Iterator[None]:
        """Show the table; it stays when the block ends, however that ends."""
        with self._live:
            try:
                yield
            finally:
                if self._running:
                    self.seconds[self._running] = time.monotonic() - self._start
                    self._states[self._running] = "stopped"
                    self._running = ""

    def report(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(text, soft_wrap=True)

    def on_stage(self, event: StageEvent) -> None:
        self._states[event.stage] = event.state
        self._running = event.stage if event.state == "running" else ""
        self._start = time.monotonic()
        if event.state == "done":
            self.seconds[event.stage] = event.seconds
        self._live.refresh()

    @contextmanager
    def progress(
        self, title: str, total: int, done: int, slots: int | None = None, /
    ) -> Iterator[Progress]:
        self._counts[self._running] = count = _Count(total, done=done, slots=slots)
        try:
            yield count
        finally:
            count.stop()

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        for column in ("stage", "state", "time", "count"):
            table.add_column(justify="right" if column == "time" else "left", no_wrap=True)
        for stage, state in self._states.items():
            seconds = self.seconds.get(stage)
            if stage == self._running:
                seconds = time.monotonic() - self._start
            took = "" if seconds is None else duration(seconds)
            style = {"running": "bold", "waiting": "dim", "done before": "dim"}.get(state)
            table.add_row(stage, state, took, str(self._counts.get(stage, "")), style=style)
        return table


class _Count:
    """The items of a stage that are done; its text is for the table."""

    def __init__(self, total: int, *, done: int, slots: int | None) -> None:
        self._total, self._slots = total, slots
        self._before = self._done = done
        self._retries, self._start = 0, time.monotonic()
        self._over = False

    def advance(self, count: int = 1) -> None:
        self._done += count

    def retried(self, count: int) -> None:
        self._retries += count

    def stop(self) -> None:
        self._over = True

    def __str__(self) -> str:
        parts = [f"{self._done} of {self._total}"]
        if not self._over:
            seconds, left = time.monotonic() - self._start, self._total - self._done
            parts.append(pace(self._done - self._before, left=left, seconds=seconds))
            parts.append(f"{self._slots} at a time" if (self._slots or 0) > 1 else "")
        parts.append(f"{self._retries} tried again" if self._retries else "")
        return ", ".join(filter(None, parts))


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(0.04), duration(59.96), duration(3725)
    ('0.0 s', '60.0 s', '62 min')
    """
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
