"""Writes the page of a run: whole or not at all, and the private one for its owner only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pate._files import write_atomically
from pate.pipeline.runner import Run
from pate.report.facts import gather
from pate.report.page import build_page

_NAME = "report.html"


def write_report(run: Run, file: Path | None = None, *, private: bool = False) -> Path:
    """Writes the page of a finished run and returns its place.

    Without ``file`` the public page is the run's ``report.html``, the private one
    ``private/report.html``.

    Guarantees:
        The public page is made from RELEASED and PUBLIC artifacts only. The private one is stamped,
        and a file of mode 0600.
    """
    facts = gather(run)
    if private:
        from pate.report.private import gather_private

        facts = replace(facts, private=gather_private(run))
    place = file or (run.folder / "private" / _NAME if private else run.folder / _NAME)
    write_atomically(place, build_page(facts).encode(), mode=0o600 if private else 0o644)
    return place
