"""Progress of a stage: a bar on a terminal or in a notebook, JSON lines for a log, or nothing.

Guarantees:
    * Only the stage's name, counts and times are shown: no record, vote or prediction, and of no
      teacher by itself. How often work was tried again and how long it takes may still follow from
      records: both are for the person who runs the stage, and in no artifact.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from html import escape
from typing import TYPE_CHECKING, Protocol, TextIO, final

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_LOG_SECONDS = 1.0
_TEXT_WIDTH = 68  # beside a bar


class Progress(Protocol):
    """Receives the progress of one stage."""

    def advance(self, count: int = 1) -> None: ...  # so many more items are done

    def retried(self, count: int) -> None: ...  # so many items were, or will be, retried


class Show(Protocol):
    """Opens the progress of a stage: its title, items in all, items done, and slots."""

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
    """Show progress on stderr, or below the cell of a notebook, while the block runs.

    On a terminal, a bar with the count, slots, the rate, the time left and retries; in a notebook
    one line that changes in place; with ``json_logs``, wherever it is, at most one JSON line a
    second and one at the end; nothing if ``quiet``, or anywhere else. ``done`` counts what an
    earlier run has finished; it does not count towards the rate. Without ``slots`` none are shown.
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
    elif _in_notebook():
        line = _NotebookLine(title, total, done=done, slots=slots)
        try:
            yield line
        finally:
            line.close()
    else:
        yield Silence()


@final
class Silence:
    """Shows nothing."""

    def advance(self, count: int = 1) -> None: ...

    def retried(self, count: int) -> None: ...


class _Written:
    """Progress that is written now and then."""

    every: float  # seconds

    def __init__(self, title: str, total: int, *, done: int, slots: int | None) -> None:
        self._title, self._total, self._slots = title, total, slots
        self._before = self._done = done
        self._retries = 0
        self._start = self._written = time.monotonic()

    def advance(self, count: int = 1) -> None:
        self._done += count
        self._write_if_due()

    def retried(self, count: int) -> None:
        self._retries += count
        self._write_if_due()

    def _write_if_due(self) -> None:
        if time.monotonic() - self._written >= self.every:
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        self._write(self._written - self._start)

    def _write(self, seconds: float) -> None:
        raise NotImplementedError


@final
class _NotebookLine(_Written):
    """One output of a cell, replaced as work proceeds.

    What stays in the notebook is the count: how long private stages took is not for its readers.
    """

    every = 0.25
    _over = False

    def __init__(self, title: str, total: int, *, done: int, slots: int | None) -> None:
        from IPython.display import display

        super().__init__(title, total, done=done, slots=slots)
        self._handle = display(self, display_id=True)  # type: ignore[no-untyped-call]

    def _write(self, seconds: float) -> None:
        self._handle.update(self)

    def close(self) -> None:
        self._over = True
        self.write()

    def __repr__(self) -> str:
        if self._over:
            return f"{self._title} {self._done}/{self._total}"
        seconds = time.monotonic() - self._start
        parts = _pace_parts(
            self._done - self._before,
            left=self._total - self._done,
            seconds=seconds,
            slots=self._slots,
            retries=self._retries,
        )
        return f"{self._title} {self._done}/{self._total} {parts}".rstrip()

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._done}" max="{max(self._total, 1)}"></progress>'
        return f"{bar} <code>{escape(repr(self))}</code>"


def _in_notebook() -> bool:
    """Return whether this is the kernel of a notebook, which shows displays."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@final
class _JsonLines(_Written):
    every = _LOG_SECONDS

    def __init__(
        self, title: str, total: int, *, done: int, slots: int | None, stream: TextIO
    ) -> None:
        super().__init__(title, total, done=done, slots=slots)
        self._stream = stream

    def _write(self, seconds: float) -> None:
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
        except (OSError, ValueError):  # the log's reader is gone; the work continues
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
            text = _pace_parts(
                done,
                left=int(task.remaining or 0),
                seconds=seconds,
                slots=task.fields["slots"],
                retries=task.fields["retries"],
            )
            return Text(text, no_wrap=True)

    console = Console(stderr=True)
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=max(8, min(40, console.width - _TEXT_WIDTH))),
        MofNCompleteColumn(),
        Pace(),
        console=console,
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),  # never out of a pipe
    )


def _pace_parts(done: int, *, left: int, seconds: float, slots: int | None, retries: int) -> str:
    parts = (
        _count(slots or 0, "slot", "slots"),
        pace(done, left=left, seconds=seconds),
        _count(retries, "retry", "retries"),
    )
    return ", ".join(part for part in parts if part)


def pace(done: int, *, left: int, seconds: float) -> str:
    """Return the rate over the whole run and the time left at that rate.

    Over the whole run, because one task can take longer than any window.

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
    """Return a number with its noun, or nothing for zero.

    >>> _count(1, "slot", "slots"), _count(3, "slot", "slots"), _count(0, "slot", "slots")
    ('1 slot', '3 slots', '')
    """
    return f"{number} {one if number == 1 else more}" if number else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
