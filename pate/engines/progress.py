"""How far a stage has come: a bar on a terminal, JSON lines for a log, or nothing.

Guarantees:
    * Only the stage's name, counts and times are shown: no record, vote or prediction, and of no
      teacher by itself. How often work was tried again and how long it takes may still follow from
      records: both are for whoever runs the stage, and in no artifact.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO, final

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LOG_EVERY_SECONDS = 1.0
WORDS_WIDTH = 68  # what stands beside a bar


class Progress(Protocol):
    """Is told when work is done."""

    def advance(self, count: int = 1) -> None:
        """``count`` more pieces of work are done."""
        ...

    def retried(self, count: int) -> None:
        """``count`` pieces of work were, or will be, tried once more."""
        ...


class Show(Protocol):
    """Makes somebody to tell: of what, of how many, how many are done, and in how many slots."""

    def __call__(
        self, title: str, total: int, done: int, slots: int | None = None, /
    ) -> AbstractContextManager[Progress]: ...


@contextmanager
def terminal_progress(
    title: str,
    total: int,
    *,
    quiet: bool,
    json_logs: bool,
    done: int = 0,
    slots: int | None = None,
) -> Iterator[Progress]:
    """Shows progress on stderr while the block runs.

    A bar with the count, slots, the rate, the time left and retries if stderr is a terminal; with
    ``json_logs`` a JSON line now and then (at most one a second) and one at the end, terminal or
    not; nothing if ``quiet``, or if stderr is no terminal. ``done`` is what an earlier run has
    finished: it counts as done, but not towards the rate. Without ``slots`` none are shown.
    """
    stream = sys.stderr
    if quiet or stream is None:
        yield Silence()
    elif json_logs:
        log = _JsonLines(title, total, done=done, slots=slots, stream=stream)
        try:
            yield log
        finally:
            log.write()
    elif stream.isatty():
        with _rich_progress() as bar:
            yield _Bar(bar, title, total=total, done=done, slots=slots)
    else:
        yield Silence()


@final
class Silence:
    """Shows nothing."""

    def advance(self, count: int = 1) -> None:
        """Nobody wants to know."""

    def retried(self, count: int) -> None:
        """Nor this."""


@final
class _JsonLines:
    def __init__(
        self, title: str, total: int, *, done: int, slots: int | None, stream: TextIO
    ) -> None:
        self._title, self._total, self._slots, self._stream = title, total, slots, stream
        self._before = self._done = done
        self._retries = 0
        self._start = self._written = time.monotonic()

    def advance(self, count: int = 1) -> None:
        self._done += count
        self._write_now_and_then()

    def retried(self, count: int) -> None:
        self._retries += count
        self._write_now_and_then()

    def _write_now_and_then(self) -> None:
        if time.monotonic() - self._written >= LOG_EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        seconds = self._written - self._start
        rate = (self._done - self._before) / seconds if seconds > 0 else 0.0
        left = self._total - self._done
        record = {
            "stage": self._title,
            "done": self._done,
            "total": self._total,
            "slots": self._slots,
            "seconds": round(seconds, 3),
            "rate": round(rate, 3),  # a second
            "left_seconds": round(left / rate, 3) if rate > 0 else None,
            "retries": self._retries,
        }
        try:
            self._stream.write(json.dumps(record) + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # whoever reads the log has gone; the work has not
            pass


@final
class _Bar:
    def __init__(
        self, bar: RichProgress, title: str, *, total: int, done: int, slots: int | None
    ) -> None:
        self._bar, self._retries = bar, 0
        self._task = bar.add_task(
            title, total=total, completed=done, before=done, slots=slots, retries=0
        )

    def advance(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)

    def retried(self, count: int) -> None:
        self._retries += count
        self._bar.update(self._task, retries=self._retries)


def _rich_progress() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Pace(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = int(task.completed - task.fields["before"])
            seconds = (task.finished_time if task.finished else task.elapsed) or 0.0
            parts = (
                _count(task.fields["slots"] or 0, "slot", "slots"),
                pace(done, left=int(task.remaining or 0), seconds=seconds),
                _count(task.fields["retries"], "retry", "retries"),
            )
            return Text(", ".join(part for part in parts if part), no_wrap=True)

    console = Console(stderr=True)
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=max(8, min(40, console.width - WORDS_WIDTH))),
        MofNCompleteColumn(),
        Pace(),
        console=console,
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


def _count(number: int, one: str, more: str) -> str:
    """A number of things in words, and of none nothing.

    >>> _count(1, "slot", "slots"), _count(3, "slot", "slots"), _count(0, "slot", "slots")
    ('1 slot', '3 slots', '')
    """
    return f"{number} {one if number == 1 else more}" if number else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
