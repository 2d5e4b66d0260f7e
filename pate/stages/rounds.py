"""Rounds of asking, each kept as soon as it is drawn, so that a run that was killed goes on.

All rounds are paid for by one charge before the first (``pay_first`` of
:func:`~pate.stages.releasing.release_once`), because answers of one round are looked at before the
next is drawn: by a student, or to choose what to ask. The charge pays for one drawing of each
round. So a round is stored in private, then marked as drawn beside the ledger, and only then
looked at; a round that is marked and not here is never drawn again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._files import create_once
from pate.accounting import Ledger, event_from_json, event_to_json
from pate.artifacts import Artifact, Draft, Level, StoreError, fingerprint
from pate.errors import LedgerError
from pate.mechanisms import Release
from pate.pipeline.stage import Context

_STAGE = "round"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """Inputs to ask about, in this order, and what came of it."""

    rows: NDArray[np.int64]  # of the public inputs; distinct, also from those of other rounds
    release: Release  # counts its queries from 0, the first of the rows
    shown: NDArray[Any] | None = None  # a student's probabilities of the rows (interactive)

    @property
    def asked(self) -> NDArray[np.int64]:
        return self.rows[: self.release.asked]

    @property
    def answered(self) -> NDArray[np.int64]:
        return self.rows[self.release.answered]

    @property
    def kept(self) -> NDArray[np.int64]:
        return self.rows[self.release.kept]


def labelled(rounds: list[Round]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every row with a released label so far, and the labels."""
    rows = [part for each in rounds for part in (each.answered, each.kept)]
    labels = [part for each in rounds for part in (each.release.labels, each.release.kept_labels)]
    return np.concatenate(rows), np.concatenate(labels)


def draw_once(
    context: Context, ledger: Ledger, *, course: str, number: int, draw: Callable[[], Round]
) -> Round:
    """A round of the course that was paid for under this name: as it was drawn, or drawn now.

    Guarantees:
        * What is returned is on disk and marked beside the ledger, under a token of its own. The
          mark is made in one step and only once; so of two drawings of one round (in a copy of the
          run folder, or by two processes) at most one is ever returned, to anybody.
        * A crash before the round is on disk shows nothing of it, so drawing it anew is the first
          drawing; a crash after it goes on with what is there.
    """
    made_from = fingerprint(context.made_from, course, number)
    mark = ledger.path.with_name(f"{ledger.path.name}.rounds") / f"{course}-{number}"
    if context.store.find(_STAGE, made_from) is None:
        if mark.exists():
            raise _drawn_elsewhere(context, number)
        drawn = draw()
        with context.store.draft(
            _STAGE, made_from, level=Level.PRIVATE, inputs=context.provenance
        ) as draft:
            _write(draft, drawn)
            draft.facts["token"] = secrets.token_hex(12)
    kept = context.store.open(_STAGE, made_from)  # of two processes at once, the first one's
    if not _claim(mark, str(kept.facts["token"])):
        raise _drawn_elsewhere(context, number)
    return _read(kept)


def _drawn_elsewhere(context: Context, number: int) -> LedgerError:
    begun = context.store.folder("begun-labels", Level.PRIVATE, context.made_from)
    return LedgerError(
        f"round {number + 1} of this release was drawn before, and what is here is not it (the run "
        "is a copy, or was brought back from one); go on in the folder where it was drawn, or "
        f"remove {begun} and add --spend to begin anew and pay again"
    )


def _claim(mark: Path, token: str) -> bool:
    """Whether the mark holds this token; it is written whole, and by whoever comes first."""
    try:
        mark.parent.mkdir(mode=0o700, exist_ok=True)
        create_once(mark, token.encode())
        return mark.read_text() == token
    except OSError as error:
        raise StoreError(
            f"cannot mark a round as drawn in {mark.parent}: {error.strerror}"
        ) from error


def _write(draft: Draft, drawn: Round) -> None:
    release = drawn.release
    arrays = {
        "rows": drawn.rows,
        "labels": release.labels,
        "answered": release.answered,
        "kept": release.kept,
        "kept_labels": release.kept_labels,
        "shown": drawn.shown,
    }
    for name, values in arrays.items():
        if values is not None:
            draft.save_array(f"{name}.npy", values)
    draft.save_json("events.json", [event_to_json(event) for event in release.events])
    draft.facts["asked"] = release.asked


def _read(kept: Artifact) -> Round:
    def array(name: str) -> NDArray[Any]:
        return np.array(kept.array(f"{name}.npy"))

    return Round(
        rows=array("rows"),
        release=Release(
            labels=array("labels"),
            answered=array("answered"),
            events=tuple(event_from_json(text) for text in kept.json("events.json")),
            asked=int(kept.facts["asked"]),
            kept=array("kept"),
            kept_labels=array("kept_labels"),
        ),
        shown=array("shown") if (kept.path / "shown.npy").is_file() else None,
    )
