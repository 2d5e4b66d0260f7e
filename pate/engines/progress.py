"""How far a stage has come: a bar on a terminal, JSON lines for a log, or nothing.

Guarantees:
    * Only the stage's name, counts and times are shown: nothing that depends on a record, a vote
      or a prediction.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, final

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LOG_EVERY_SECONDS = 1.0


class Progress(Protocol):
    """Is told when work is done."""

    def advance(self, count: int = 1) -> None:
        """``count`` more pieces of work are done."""
        ...


@contextmanager
def terminal_progress(
    title: str, total: int, *, quiet: bool, json_logs: bool, done: int = 0
) -> Iterator[Progress]:
    """Shows progress on stderr while the block runs.

    A bar with the count, the rate and the time left if stderr is a terminal; with ``json_logs``
    a JSON line now and then (at most one a second) and one at the end, terminal or not; nothing
    if ``quiet``, or if stderr is no terminal. ``done`` is what an earlier run has finished: it
    counts as done, but not towards the rate.
    """
    stream = sys.stderr
    if quiet or stream is None:
        yield _Silence()
    elif json_logs:
        log = _JsonLines(title, total, done=done, stream=stream)
        try:
            yield log
        finally:
            log.write()
    elif stream.isatty():
        with _rich_progress() as bar:
            yield _Bar(bar, title, total=total, done=done)
    else:
        yield _Silence()


@final
class _Silence:
    def advance(self, count: int = 1) -> None:
        """Nobody wants to know."""


@final
class _JsonLines:
    def __init__(self, title: str, total: int, *, done: int, stream: TextIO) -> None:
        self._title, self._total, self._done, self._stream = title, total, done, stream
        self._start = self._written = time.monotonic()

    def advance(self, count: int = 1) -> None:
        self._done += count
        if time.monotonic() - self._written >= LOG_EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        record = {
            "stage": self._title,
            "done": self._done,
            "total": self._total,
            "seconds": round(self._written - self._start, 3),
        }
        try:
            self._stream.write(json.dumps(record) + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # whoever reads the log has gone; the work has not
            pass


@final
class _Bar:
    def __init__(self, bar: RichProgress, title: str, *, total: int, done: int) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=total, completed=done, before=done)

    def advance(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)


def _rich_progress() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Pace(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = int(task.completed - task.fields["before"])
            seconds = (task.finished_time if task.finished else task.elapsed) or 0.0
            return Text(pace(done, left=int(task.remaining or 0), seconds=seconds))

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Pace(),
        console=Console(stderr=True),
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # never out of a pipe
    )


def pace(done: int, *, left: int, seconds: float) -> str:
    """The rate so far, over the whole run, and the time left at that rate.

    Over the whole run, because a task can take longer than any window one would choose.

    >>> pace(20, left=30, seconds=4.0)
    '5.0/s, 0:00:06 left'
    >>> pace(2, left=8, seconds=50.0)
    '25.0 s each, 0:03:20 left'
    >>> pace(50, left=0, seconds=10.0)
    '5.0/s, took 0:00:10'
    """
    if done <= 0 or seconds <= 0:
        return ""
    rate = done / seconds
    speed = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
    if left <= 0:
        return f"{speed}, took {_clock(seconds)}"
    return f"{speed}, {_clock(left / rate)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
