"""A draw, its charge and its answer as one operation: ``ledger.release(mechanism, votes, name=…)``.

An answer lies in a private folder beside the ledger, in a file of its own, before it is charged.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from pate._files import create_once, error_reason
from pate.accounting import Ledger, event_from_json, event_to_json
from pate.accounting.ledger.data_ledger import make_ledgers_folder, secret_key
from pate.errors import BudgetExceeded, InvalidInput, LedgerError, ReleaseConflict
from pate.mechanisms.mechanism import Mechanism, Release
from pate.randomness import secure_generator
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
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"name is {name[:60]!r}; use letters, digits, spaces, '.', '-' and '_', 100 at most"
        )
    if mechanism.uses_student:
        raise InvalidInput(f"{mechanism!r} asks a student between rounds; use pate.run for it")
    answers = votes.queries if most_answers is None else most_answers
    events = mechanism.caps(queries=votes.queries, answers=answers)
    file = ledger.path.with_name(f"{ledger.path.name}.answers") / f"{name}.json"
    keys = (*mechanism.required_keys(), *mechanism.optional_keys())
    settings = [(key, float(getattr(mechanism, key))) for key in keys]  # 20 is 20.0
    asked = (mechanism.name, settings, [event_to_json(event) for event in events])
    digest = votes_digest(votes, asked, key=secret_key(ledger.path.with_suffix(".key")))
    if not file.exists():
        if name in ledger.releases():
            raise LedgerError(
                f"the ledger at {ledger.path} has paid for {name!r}, and its answer is not at "
                f"{file}; restore it from a backup, or choose another name and pay again"
            )
        ledger.require_room(events)
        drawn = mechanism.release(votes, rng=secure_generator(), most_answers=answers)
        _store(file, drawn, digest)
    stored = _read(file)
    if stored["digest"] != digest:
        raise ReleaseConflict(
            f"{name!r} was drawn for other votes or settings; choose another name"
        )
    try:
        charge = ledger.charge(events, release=name, family=[stored["draw"]])
    except BudgetExceeded:
        file.unlink(missing_ok=True)  # nobody has seen it
        raise
    if stored["draw"] not in charge.settings:
        raise LedgerError(
            f"the ledger at {ledger.path} has paid for another draw of {name!r} than the one at "
            f"{file}; restore that one from a backup, or choose another name and pay again"
        )
    arrays = {each: np.array(stored[each], dtype=np.int64) for each in _ARRAYS}
    happened = tuple(event_from_json(text) for text in stored["events"])
    return Release(events=happened, asked=int(stored["asked"]), **arrays)


def votes_digest(votes: Votes, asked: tuple[Any, ...], *, key: bytes) -> str:
    """Name votes and what is asked of them under the data set's key: nobody can try out votes."""
    total = hashlib.blake2b(key=key, digest_size=20)
    total.update(repr((votes.counts.shape, *asked)).encode())
    total.update(np.ascontiguousarray(votes.counts, dtype="<i8").tobytes())
    return total.hexdigest()


def _store(file: Path, drawn: Release, digest: str) -> None:
    """Write an answer; of two processes at once, the first one's is kept."""
    record: dict[str, Any] = {each: getattr(drawn, each).tolist() for each in _ARRAYS}
    record |= {"digest": digest, "draw": secrets.token_hex(16), "asked": drawn.asked}
    record["events"] = [event_to_json(event) for event in drawn.events]
    try:
        make_ledgers_folder(file.parent)
        create_once(file, json.dumps(record).encode())
    except OSError as error:
        raise LedgerError(f"cannot keep an answer at {file}: {error_reason(error)}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(file.read_bytes())
        if record.keys() >= {*_ARRAYS, "digest", "draw", "asked", "events"}:
            return record
    except (OSError, ValueError, AttributeError):
        pass
    raise LedgerError(f"the answer at {file} cannot be read; restore it from a backup")
