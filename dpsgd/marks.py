"""How far the noise of a paid run was drawn, written down beside the ledger.

A checkpoint can be copied, or brought back from a backup. Going on from one that is not the last
would draw steps again whose results were seen, for a charge that paid for one drawing. So the
revision of a run's last checkpoint is kept where its charge is, and any other is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from dpsgd.whole_file import write_whole
from pate.artifacts import StoreError
from pate.errors import LedgerError


@final
class Marks:
    """One file for each paid plan, in a folder beside the ledger."""

    def __init__(self, ledger: Path) -> None:
        self._folder = ledger.with_name(f"{ledger.name}.runs")

    def require(self, plan: str, *, revision: str | None, before: str | None, paid: bool) -> None:
        """Refuses to go on with a plan from any checkpoint but its last.

        ``before`` is the revision that the checkpoint took the place of: a crash may have come
        between the two writings, and then nothing of the later one was seen.
        """
        try:
            last = (self._folder / plan).read_text().strip()
        except FileNotFoundError:
            if not paid:
                return
            raise LedgerError(
                f"{self._folder} lacks the record of how far this run was drawn; going on could "
                "draw steps a second time: begin a new run, which costs anew"
            ) from None
        except OSError as error:
            raise StoreError(f"cannot read {self._folder}: {error.strerror}") from error
        if last not in (revision, before):
            raise LedgerError(
                "this checkpoint is not the last of its run (a copy, or an old one brought back); "
                "steps after it were drawn already, and drawing them again costs again: go on from "
                "the last checkpoint, or begin a new run"
            )

    def write(self, plan: str, revision: str) -> None:
        """Puts the revision on disk, before anything it holds is shown."""
        file = self._folder / plan
        write_whole(file, f"{revision}\n".encode(), what=f"the record of a run, {file}")
