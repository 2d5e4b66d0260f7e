"""The SQLite file of a ledger: tables, versions, atomic creation, and errors in words."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pate._files import exclusive_lock, sync
from pate.accounting.ledger import running_total, studies
from pate.errors import LedgerError

_APPLICATION_ID = 0x50415445  # "PATE"
_VERSION = 2
T = TypeVar("T")

_PATIENCE_SECONDS = 60.0  # to wait for other processes
_DRAFT = ".ledger-"
_ROOM = 1 << 20  # bytes: with less left on the disk, a failure is taken for want of room
_FIRST = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = 1;
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
# Since version 2: running totals, and the relation between records that a charge holds for.
_SECOND = f"""
{studies.TABLES}
{running_total.TABLES}
ALTER TABLE charges ADD COLUMN records TEXT;
CREATE INDEX entries_of_charge ON entries (charge);
CREATE INDEX charges_of_settings ON settings (digest);
PRAGMA user_version = {_VERSION};
"""
# Which charges protect all records of a group, and by which column; the others protect single
# records, and so do those of a process that does not know this table.
_GROUPS = """
CREATE TABLE IF NOT EXISTS groups (
    charge INTEGER PRIMARY KEY REFERENCES charges (number),
    name TEXT NOT NULL
)
"""
# A process of version 1 that has the file open may charge, but keeps no total: rebuild it.
_WITHOUT_TOTAL = """
CREATE TRIGGER without_total AFTER INSERT ON entries
BEGIN UPDATE running SET formulas = ''; END
"""


def create(place: Path, terms: str) -> None:
    """Create a ledger under a temporary name, then link it to its place.

    It is linked only after its content was committed, checked and synced to disk. So a full disk, a
    crash or another process that creates the same one leave either a whole ledger or none.
    """
    if not place.parent.is_dir():
        raise LedgerError(f"the folder {place.parent} does not exist; create it first")
    try:
        with exclusive_lock(place.parent):
            _sweep(place.parent)
            if os.path.lexists(place):
                return  # another process was first: use theirs
            for suffix in ("-wal", "-shm"):
                # A journal without a ledger; or with one that another process has just linked.
                if os.path.lexists(f"{place}{suffix}") and not os.path.lexists(place):
                    raise LedgerError(
                        f"{place} is missing but its journal {place}{suffix} is there; restore the "
                        "ledger from a backup"
                    )
            with tempfile.TemporaryDirectory(
                prefix=_DRAFT, dir=place.parent, ignore_cleanup_errors=True
            ) as folder:
                draft = Path(folder) / "ledger"
                _write(draft, terms)
                with contextlib.suppress(FileExistsError):
                    os.link(draft, place)
                sync(place.parent)
    except sqlite3.Error as error:
        raise LedgerError(f"cannot create a ledger at {place}: {error}") from error
    except OSError as error:
        raise LedgerError(f"cannot create a ledger at {place}: {error.strerror}") from error


def _write(draft: Path, terms: str) -> None:
    """Write a ledger without charges whose journal is folded in.

    With a rollback journal, COMMIT fails unless everything was written. A write-ahead log is folded
    in on closing, where a failure goes unreported.
    """
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        _run(connection, _FIRST + _SECOND)
        connection.execute(_WITHOUT_TOTAL)
        connection.execute("INSERT INTO terms VALUES (1, ?)", (terms,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
    draft.chmod(0o600)  # when something was paid for is its owner's business; also journals
    sync(draft)
    connection = sqlite3.connect(f"{draft.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        (kept,) = connection.execute("SELECT json FROM terms").fetchone()
    finally:
        connection.close()
    if verdict != "ok" or kept != terms:
        raise sqlite3.DatabaseError("what was written does not read back; is the disk full?")


def _run(connection: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";"):  # one by one: a script would end the transaction
        connection.execute(statement)


def _sweep(folder: Path) -> None:
    """Remove the drafts of killed creations; the folder is locked, so none is in progress."""
    for draft in folder.glob(f"{_DRAFT}*"):
        shutil.rmtree(draft, ignore_errors=True)


def connect(place: Path, *, totals: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    """Open and check a ledger; migrate one of version 1 to version 2.

    ``totals`` computes the running totals of a migrated ledger, in the same transaction.
    """
    if not place.is_file():
        raise LedgerError(f"{place} is not a ledger file")
    if not (place.stat().st_mode & 0o222 and os.access(place, os.W_OK)):
        raise LedgerError(f"the ledger at {place} is read-only; charges could not be recorded")
    if any(place.parent.glob(f"{_DRAFT}*")):
        with contextlib.suppress(OSError), exclusive_lock(place.parent):
            _sweep(place.parent)
    if place.stat().st_nlink > 1:
        raise LedgerError(
            f"the ledger at {place} has a second name (a hard link); each name would keep "
            "its own journal: remove one"
        )
    try:
        return retry_while_busy(lambda: _open(place, totals))
    except sqlite3.Error as error:
        raise failed(place, error) from error


def copy_charges(place: Path, target: Path) -> None:
    """Copy a ledger with all of its charges; some may be in its log only while others have it open.

    The copy is to look at: it never takes the place of a ledger. The ledger is left as it is, also
    a log that a crash has left: whoever opens it next folds that in.
    """
    # Closed by the last reader that may write, a log is folded in; one that may not leaves an empty
    # log where there was none.
    mode = "ro" if os.path.lexists(f"{place}-wal") else "rw"
    address = f"{place.absolute().as_uri()}?mode={mode}"
    try:
        with (
            contextlib.closing(
                sqlite3.connect(address, uri=True, timeout=_PATIENCE_SECONDS)
            ) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
    except sqlite3.Error as error:
        raise failed(place, error) from error


def retry_while_busy(call: Callable[[], T]) -> T:
    """Return the result of a call that changes nothing if it fails, once the file is free.

    While the last of several connections closes, SQLite reports "locked" without waiting.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return call()
        except sqlite3.Error as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _open(place: Path, totals: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    uri = f"{place.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_PATIENCE_SECONDS)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION_ID:
            raise LedgerError(f"{place} is not a ledger, or it is damaged; nothing was changed")
        version = _version(connection)
        if version not in (1, _VERSION):
            raise LedgerError(
                f"the ledger at {place} has version {version}; this is for {_VERSION}"
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise damaged(place, sqlite3.DatabaseError(" ".join(verdict.split())))
        (journal,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if journal != "wal":
            raise LedgerError(f"the ledger at {place} cannot use a write-ahead log ({journal})")
        if version == 1:
            _migrate(connection, totals)
        connection.execute(_GROUPS)
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _migrate(connection: sqlite3.Connection, totals: Callable[[sqlite3.Connection], None]) -> None:
    """Apply all of version 2 in one transaction: a crash leaves version 1."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) == 1:  # no other process was first
            _run(connection, _SECOND)
            connection.execute(_WITHOUT_TOTAL)
            totals(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def failed(place: Path, error: sqlite3.Error) -> LedgerError:
    """Return an error of SQLite in words, with a remedy."""
    text = str(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return LedgerError(f"the ledger at {place} was used after closing or by another thread")
    if _is_busy(error):
        return LedgerError(f"the ledger at {place} is held by another process; try again")
    if "readonly" in text or "read-only" in text:
        return LedgerError(f"the ledger at {place} is read-only; charges could not be recorded")
    if "full" in text or (_no_content(error) and _room_beside(place) < _ROOM):
        return LedgerError(
            f"the disk is full; nothing was charged to the ledger at {place}: free some space and "
            "try again"
        )
    if _no_content(error):
        return LedgerError(
            f"the ledger at {place} cannot be reached ({error}); nothing was charged: check the "
            "disk and try again"
        )
    return damaged(place, error)


def _no_content(error: sqlite3.Error) -> bool:
    """Return whether reading or writing failed, which implies nothing about the content."""
    code = getattr(error, "sqlite_errorcode", 0)
    cut_short = code == sqlite3.SQLITE_IOERR_SHORT_READ
    return not cut_short and code & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _room_beside(place: Path) -> int:
    try:
        disk = os.statvfs(place.parent)
    except OSError:
        return _ROOM
    return disk.f_bavail * disk.f_frsize


def damaged(place: Path, error: Exception) -> LedgerError:
    """Return the error for a file whose content cannot be trusted."""
    return LedgerError(
        f"the ledger at {place} cannot be read ({error}); it was left as it is: restore a backup, "
        "because what was spent is not known without it"
    )
