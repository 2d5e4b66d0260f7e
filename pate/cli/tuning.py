"""Who looks at private votes is told so, and leaves a trace (:mod:`pate.report.caveats`)."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

import typer

from pate.report.caveats import LOOKS


def note_private_votes(path: Path) -> None:
    """Says so where a vote file lies in a run's private folder, and leaves a line there."""
    run = _run_of(path)
    if run is None:
        return
    typer.echo(
        f"pate: {path} holds private votes; settings chosen by what follows are tuned on private "
        "data, and no ε accounts for that: `pate plan` chooses without them",
        err=True,
    )
    with contextlib.suppress(OSError):  # a copy one may only read
        line = json.dumps({"when": datetime.now(UTC).isoformat(timespec="seconds")})
        with (run / "private" / LOOKS).open("a") as file:
            file.write(line + "\n")


def _run_of(path: Path) -> Path | None:
    """The run in whose private folder a file lies."""
    for folder in path.absolute().parents:
        if folder.name == "private" and (folder.parent / "recipe.json").is_file():
            return folder.parent
    return None
