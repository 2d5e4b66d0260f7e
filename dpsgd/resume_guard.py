"""A record of how far the noise of a paid run was drawn, beside the ledger.

A checkpoint can be copied, or restored from a backup. Resuming from one that is not the last, or
from two copies at once, would draw steps a second time for a charge that paid for one draw. So each
plan has a file beside its charge, with a line for every checkpoint: the process that draws holds an
exclusive lock on it, and appends a line only after the one that it read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from pate._files import error_reason, exclusive_lock, sync
from pate.artifacts import StoreError
from pate.errors import LedgerError


@final
class ResumeGuard:
    """The records of all plans that were charged to one ledger, in a folder beside it.

    Guarantees:
        One charge pays for one draw of every step, however often a checkpoint is copied: the
        charge is for one run of Abadi et al. 2016, Algorithm 1, and two would compose to more.
    """

    def __init__(self, ledger: Path) -> None:
        place = ledger.resolve()  # a charge has one record, whatever links lead to its ledger
        self._folder = place.with_name(f"{place.name}.runs")

    @contextlib.contextmanager
    def held(self, plan: str) -> Iterator[Mark]:
        """Lock the record of a plan: no other process draws for it until the block ends.

        The operating system releases the lock of a process that is killed.
        """
        path = self._folder / plan
        busy = LedgerError(
            "another process is training this run, from its checkpoint or a copy of it, and one "
            "charge pays for one draw; wait for it to end"
        )
        with contextlib.ExitStack() as stack:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A process that is about to be refused holds the lock for a moment, too.
                stack.enter_context(exclusive_lock(path, busy=busy, patience=1.0))
                sync(self._folder)
            except OSError as error:
                raise _unwritable(path, error) from error
            yield Mark(path)

    def admit(
        self, plan: str, *, revision: str, before: str | None, paid: Callable[[], bool]
    ) -> None:
        """Refuse the checkpoint ``revision`` of an unfinished plan unless it is the last.

        ``before`` is the revision that it replaced. A crash may have come between the checkpoint
        and its line in the record; nothing of it was shown then, and it becomes the last one now.
        """
        mark = Mark(self._folder / plan)
        mark.require(revision, before, paid=paid)
        if mark.last is not None and mark.last != revision:
            with self.held(plan) as mark:
                mark.require(revision, before, paid=paid)
                if mark.last != revision:
                    mark.prepare(revision)
                    mark.commit()


@final
class Mark:
    """The record of one plan: the revisions of its checkpoints, of which the last one counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = self._prepared = self._read()

    def require(self, *revisions: str | None, paid: Callable[[], bool]) -> None:
        """Refuse to resume a plan from any checkpoint but its last."""
        if self.last is None:
            if paid():
                raise LedgerError(
                    f"{self.path.parent} lacks the record of how far this run was drawn; resuming "
                    "could draw steps a second time: start a new run, which costs again"
                )
        elif self.last not in revisions:
            raise LedgerError(
                "this checkpoint is not the last of its run (a copy, or an old one restored); "
                "steps after it were drawn already, and drawing them again costs again: resume "
                "from the last checkpoint, or start a new run"
            )

    def prepare(self, revision: str) -> None:
        """Write the line of a checkpoint that is about to be written; it counts once committed.

        Raises :class:`LedgerError`, and changes nothing, if the record is no longer as it was
        read: another process has drawn for this plan.
        """
        try:
            with self.path.open("r+b") as file:
                lines = _complete(file.read())
                if _last(lines) not in (self.last, self._prepared):  # ours, if interrupted
                    raise LedgerError(
                        "another process has trained this run meanwhile, and one charge pays for "
                        "one draw; what was drawn here since its last checkpoint is dropped"
                    )
                file.seek(len(lines))
                file.truncate()
                file.write(revision.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._prepared = revision

    def commit(self) -> None:
        """Make the prepared line count: its checkpoint is on disk, and may be shown from now on."""
        try:
            with self.path.open("ab") as file:
                file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.last = self._prepared

    def settle(self, revision: str) -> None:
        """Commit the prepared line if its checkpoint is the one on disk, which is shown next."""
        if revision == self._prepared != self.last:
            self.commit()

    def _read(self) -> str | None:
        try:
            return _last(_complete(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from error


def _complete(content: bytes) -> bytes:
    """Return the lines that were written completely."""
    return content[: content.rfind(b"\n") + 1]


def _last(lines: bytes) -> str | None:
    """Return the last line.

    >>> _last(b"one\\ntwo\\n"), _last(b"")
    ('two', None)
    """
    return lines.split()[-1].decode(errors="replace") if lines.strip() else None


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write the record of a run, {path}: {error_reason(error)}")
