"""Exactly-once release: prepare in private → charge → publish."""

from __future__ import annotations

from collections.abc import Callable

from pate.accounting import Event, Ledger
from pate.artifacts import Artifact, Draft, Level
from pate.errors import LedgerError
from pate.pipeline.stage import Context


class SpendNeeded(LedgerError):
    """Going on would pay again; the user must say so with ``--spend``."""

    exit_code = 3


def release_once(
    context: Context,
    *,
    kind: str,
    ledger: Ledger,
    events: tuple[Event, ...],
    prepare: Callable[[Draft], None],
    publish: Callable[[Artifact, Draft], None],
) -> None:
    """Draws an answer, pays for it, and only then lets it out.

    Guarantees:
        * A crash before the charge costs nothing: nothing was published, and the stored answer (or
          none) goes on. A crash after it is finished on the next run, with the stored answer: noise
          is drawn once for each charge.
        * Where the charge is in the ledger and the answer is lost, a second draw would be a second
          release under one payment: it is refused, unless the user says ``--spend``.
    """
    made_from = _drawn(context, kind, ledger, prepare)
    answer = context.store.open(_pending(kind), made_from)
    if events:
        ledger.charge(events, release=_release_id(kind, made_from))
    with context.draft(Level.RELEASED) as draft:
        publish(answer, draft)
        draft.facts["drawn"] = made_from


def drawn_before(context: Context, kind: str, ledger: Ledger) -> list[Artifact]:
    """Answers of this kind that were paid for in this run."""
    charged = _charged(ledger)
    return [
        answer
        for answer in context.store.all(_pending(kind))
        if _release_id(kind, answer.manifest["made_from"]) in charged
    ]


def _drawn(context: Context, kind: str, ledger: Ledger, prepare: Callable[[Draft], None]) -> str:
    """The fingerprint of a drawn answer that is to be paid for, or was and is still here."""
    charged = _charged(ledger)
    for attempt in range(len(charged) + 1):
        made_from = context.made_from if attempt == 0 else f"{attempt:04d}{context.made_from}"
        if context.store.find(_pending(kind), made_from) is not None:
            return made_from
        if _release_id(kind, made_from) not in charged:
            with context.store.draft(
                _pending(kind), made_from, level=Level.PRIVATE, inputs=context.provenance
            ) as draft:
                prepare(draft)
            return made_from
        if not context.options.spend:
            raise SpendNeeded(
                f"the ledger at {ledger.path} has already paid for this release, and its answer "
                "is not in this run; to draw a new one and pay again, add --spend"
            )
    raise AssertionError("one release more than was charged is not charged")


def _pending(kind: str) -> str:
    return f"pending-{kind}"


def _release_id(kind: str, made_from: str) -> str:
    return f"{kind} {made_from[:40]}"


def _charged(ledger: Ledger) -> set[str]:
    return {charge.release for charge in ledger.charges()}
