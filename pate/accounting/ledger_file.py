"""The ledger's file: SQLite with a write-ahead log, made whole or not at all, never replaced."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path

from pate.accounting import study_book
from pate.errors import LedgerError

_APPLICATION_ID = 0x50415445  # "PATE"
_VERSION = 1
_DRAFT = ".ledger-"
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
CREATE TABLE terms (only INTEGER PRIMARY KEY CHECK (only = 1), json TEXT NOT NULL);
CREATE TABLE charges (
    number INTEGER PRIMARY KEY,
    release TEXT NOT NULL UNIQUE,
    basis TEXT NOT NULL,
    charged_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE TABLE entries (
    charge INTEGER NOT NULL REFERENCES charges (number),
    event TEXT NOT NULL,
    count INTEGER NOT NULL CHECK (count > 0)
);
"""


def create(place: Path, terms: str) -> None:
    """Makes a whole ledger beside its place, then links it there: never a half-made one."""
    for suffix in ("-wal", "-shm"):
        if os.path.lexists(f"{place}{suffix}"):
            raise LedgerError(
                f"{place} is missing but its journal {place}{suffix} is there; restore the ledger "
                "from a backup"
            )
    if not place.parent.is_dir():
        raise LedgerError(f"the folder {place.parent} does not exist; create it first")
    try:
        with tempfile.TemporaryDirectory(
            prefix=_DRAFT, dir=place.parent, ignore_cleanup_errors=True
        ) as folder:
            draft = Path(folder) / "ledger"
            connection = sqlite3.connect(draft, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.executescript("BEGIN;" + _SCHEMA + study_book.TABLES + "COMMIT;")
                connection.execute("INSERT INTO terms VALUES (1, ?)", (terms,))
            finally:
                connection.close()  # the last connection folds the journal into the file
            draft.chmod(0o600)  # when something was paid for is its owner's business; also journals
            _sync(draft)
            with contextlib.suppress(FileExistsError):  # another process was first: use theirs
                os.link(draft, place)
            _sync(place.parent)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"cannot create a ledger at {place}: {error}") from error


def _remove_leftovers(place: Path) -> None:
    """Drops the draft of a creation that ended between its link and its clean-up."""
    for draft in place.parent.glob(f"{_DRAFT}*/ledger"):
        with contextlib.suppress(OSError):
            if draft.samefile(place):
                draft.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def connect(place: Path) -> sqlite3.Connection:
    if not place.is_file():
        raise LedgerError(f"{place} is not a ledger file")
    if not (place.stat().st_mode & 0o222 and os.access(place, os.W_OK)):
        raise LedgerError(f"the ledger at {place} is read-only; charges could not be recorded")
    if place.stat().st_nlink > 1:
        _remove_leftovers(place)
        if place.stat().st_nlink > 1:
            raise LedgerError(
                f"the ledger at {place} has a second name (a hard link); each name would keep "
                "its own journal: remove one"
            )
    connection: sqlite3.Connection | None = None
    try:
        uri = f"{place.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=60.0)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION_ID:
            raise LedgerError(f"{place} is not a ledger, or it is damaged; nothing was changed")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            raise LedgerError(
                f"the ledger at {place} has version {version}; this is for {_VERSION}"
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(place, sqlite3.DatabaseError(" ".join(verdict.split())))
        (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if journal != "wal":
            raise LedgerError(f"the ledger at {place} cannot use a write-ahead log ({journal})")
    except LedgerError:
        if connection is not None:
            connection.close()
        raise
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise failed(place, error) from error
    return connection


def failed(place: Path, error: sqlite3.Error) -> LedgerError:
    text = str(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return LedgerError(f"the ledger at {place} was used after closing or by another thread")
    if "locked" in text or "busy" in text:
        return LedgerError(f"the ledger at {place} is held by another process; try again")
    if "readonly" in text or "read-only" in text:
        return LedgerError(f"the ledger at {place} is read-only; charges could not be recorded")
    if "full" in text:
        return LedgerError(f"the disk is full; nothing was charged to the ledger at {place}")
    return damaged(place, error)


def damaged(place: Path, error: Exception) -> LedgerError:
    return LedgerError(
        f"the ledger at {place} cannot be read ({error}); it was left as it is: restore a backup, "
        "because what was spent is not known without it"
    )
