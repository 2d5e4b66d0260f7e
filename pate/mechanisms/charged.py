"""A draw, its charge and its answer as one operation: ``ledger.release(mechanism, votes, name=…)``.

An answer lies in a private folder beside the ledger, in a file of its own, before it is charged.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._files import create_once, error_reason
from pate.accounting import Event, Ledger, Neighbours, event_from_json, event_to_json
from pate.accounting.ledger.data_ledger import make_ledgers_folder, secret_key
from pate.artifacts.results import NoisedCounts
from pate.errors import BudgetExceeded, InvalidInput, LedgerError, ReleaseConflict
from pate.mechanisms.counts import CountMechanism, CountRelease
from pate.mechanisms.mechanism import BaseMechanism, Mechanism, Release
from pate.mechanisms.noise_shares import NoiseShare
from pate.randomness import secure_generator
from pate.record_votes import RecordVotes, unnamed_group
from pate.votes import Votes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")
_ARRAYS = ("labels", "answered", "kept", "kept_labels")


def release_once(
    mechanism: Mechanism,
    votes: Votes,
    *,
    ledger: Ledger,
    name: str,
    most_answers: int | None = None,
) -> Release:
    """Draw answers, charge their caps and return them; see :meth:`pate.Ledger.release`."""
    if not isinstance(votes, Votes):
        raise InvalidInput(
            f"votes are a {type(votes).__name__}; give pate.Votes.from_labels(labels, classes=…) "
            "for an array of (teachers, queries) predictions, or pate.Votes(counts=…) for one of "
            "(queries, classes) counts"
        )
    if mechanism.uses_student:
        raise InvalidInput(f"{mechanism!r} asks a student between rounds; use pate.run for it")
    answers = votes.queries if most_answers is None else most_answers
    events = mechanism.caps(queries=votes.queries, answers=answers)

    def draw() -> dict[str, Any]:
        drawn = mechanism.release(votes, rng=secure_generator(), most_answers=answers)
        record: dict[str, Any] = {each: getattr(drawn, each).tolist() for each in _ARRAYS}
        record["events"] = [event_to_json(event) for event in drawn.events]
        return record | {"asked": drawn.asked}

    stored = _drawn_once(
        _asked_for(mechanism),
        votes.counts,
        events,
        draw,
        ledger=ledger,
        name=name,
        needs=(*_ARRAYS, "asked"),
    )
    arrays = {each: np.array(stored[each], dtype=np.int64) for each in _ARRAYS}
    happened = tuple(event_from_json(text) for text in stored["events"])
    return Release(events=happened, asked=int(stored["asked"]), **arrays)


def release_table_once(
    mechanism: CountMechanism, votes: RecordVotes, *, ledger: Ledger, name: str
) -> CountRelease:
    """Noise a table, charge it and return it; see :meth:`pate.Ledger.release`."""
    if not isinstance(votes, RecordVotes):
        raise InvalidInput(
            f"votes are a {type(votes).__name__}; give pate.count_record_votes(…), or "
            "pate.RecordVotes(counts=…) for an array of (cells, classes) counts (with "
            "components=True for one of Components.count)"
        )
    mechanism.require_norm(components=votes.components)
    events = mechanism.events(reach=votes.reach, per_user=votes.per_user)
    group = None if votes.per_user is None else votes.group or unnamed_group(name)

    def draw() -> dict[str, Any]:
        drawn = mechanism.release(votes, rng=secure_generator())
        record = {"counts": drawn.table.counts.tolist(), "variance": drawn.table.variance}
        return record | {"events": [event_to_json(event) for event in drawn.events]}

    asked = _asked_for(mechanism)
    stored = _drawn_once(
        (*asked, votes.grid) if votes.components else asked,
        votes.counts,
        events,
        draw,
        ledger=ledger,
        name=name,
        needs=("counts", "variance"),
        records=votes.neighbours,
        group=group,
    )
    table = NoisedCounts(
        counts=np.array(stored["counts"], dtype=np.int64).reshape(votes.counts.shape),
        units=votes.reach * votes.grid,
        variance=float(stored["variance"]),
    )
    return CountRelease(table=table, events=events)


def release_share_once(
    share: NoiseShare,
    counts: NDArray[np.int64],
    *,
    events: tuple[Event, ...],
    ledger: Ledger,
    name: str,
    bound_to: tuple[str, ...],
    records: Neighbours,
    group: str | None,
) -> NDArray[np.int64]:
    """Add a share of noise to a party's counts, charge the sum, and return them: done once.

    ``events`` are the cost of the sum that they become part of, under the relation ``records``. A
    name whose answer is bound to something else (``bound_to``) is refused, whatever the counts are.
    What is returned is private by itself: it leaves the party masked, by a secure aggregation.
    """

    def draw() -> dict[str, Any]:
        noised = counts + share.noise(counts.shape, secure_generator())
        return {"counts": noised.tolist(), "events": [event_to_json(event) for event in events]}

    stored = _drawn_once(
        (repr(share), *bound_to),
        counts,
        events,
        draw,
        ledger=ledger,
        name=name,
        needs=("counts",),
        records=records,
        group=group,
    )
    return np.array(stored["counts"], dtype=np.int64).reshape(counts.shape)


def _asked_for(mechanism: BaseMechanism) -> tuple[Any, ...]:
    """Return a mechanism and its settings, for the digest of what is asked."""
    keys = (*mechanism.required_keys(), *mechanism.optional_keys())
    return mechanism.name, [(key, float(getattr(mechanism, key))) for key in keys]  # 20 is 20.0


def _drawn_once(
    asked_for: tuple[Any, ...],
    counts: NDArray[np.int64],
    events: tuple[Event, ...],
    draw: Callable[[], dict[str, Any]],
    *,
    ledger: Ledger,
    name: str,
    needs: Collection[str],
    records: Neighbours | None = None,
    group: str | None = None,
) -> dict[str, Any]:
    """Return what is stored under a name, drawn now if nothing is, once it is charged."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"name is {name[:60]!r}; use letters, digits, spaces, '.', '-' and '_', 100 at most"
        )
    file = ledger.path.with_name(f"{ledger.path.name}.answers") / f"{name}.json"
    asked = (*asked_for, [event_to_json(event) for event in events])
    digest = votes_digest(counts, asked, key=secret_key(ledger.path.with_suffix(".key")))
    if not file.exists():
        if name in ledger.releases():
            raise LedgerError(
                f"the ledger at {ledger.path} has paid for {name!r}, and its answer is not at "
                f"{file}; restore it from a backup, or choose another name and pay again"
            )
        ledger.require_room(events, records=records)
        _store(file, draw() | {"digest": digest, "draw": secrets.token_hex(16)})
    stored = _read(file, needs)
    if stored["digest"] != digest:
        raise ReleaseConflict(
            f"{name!r} was drawn for other votes or settings; choose another name"
        )
    try:
        charge = ledger.charge(
            events, release=name, family=[stored["draw"]], records=records, group=group
        )
    except BudgetExceeded:
        file.unlink(missing_ok=True)  # nobody has seen it
        raise
    if stored["draw"] not in charge.settings:
        raise LedgerError(
            f"the ledger at {ledger.path} has paid for another draw of {name!r} than the one at "
            f"{file}; restore that one from a backup, or choose another name and pay again"
        )
    return stored


def votes_digest(counts: NDArray[np.int64], asked: tuple[Any, ...], *, key: bytes) -> str:
    """Name votes and what is asked of them under the data set's key: nobody can try out votes."""
    total = hashlib.blake2b(key=key, digest_size=20)
    total.update(repr((counts.shape, *asked)).encode())
    total.update(np.ascontiguousarray(counts, dtype="<i8").tobytes())
    return total.hexdigest()


def _store(file: Path, record: dict[str, Any]) -> None:
    """Write an answer; of two processes at once, the first one's is kept."""
    try:
        make_ledgers_folder(file.parent)
        create_once(file, json.dumps(record).encode())
    except OSError as error:
        raise LedgerError(f"cannot keep an answer at {file}: {error_reason(error)}") from error


def _read(file: Path, needs: Collection[str]) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(file.read_bytes())
        if record.keys() >= {*needs, "digest", "draw", "events"}:
            return record
    except (OSError, ValueError, AttributeError):
        pass
    raise LedgerError(f"the answer at {file} cannot be read; restore it from a backup")
