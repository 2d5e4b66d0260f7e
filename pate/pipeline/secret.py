"""A secret key of each private data set, mixed into every fingerprint of a run.

Fingerprints name artifacts, stand in RELEASED manifests and in the ledger, and follow from private
records. Without a key, whoever knows all records but one could work out the fingerprint for every
guess of the last one, and compare.
"""

from __future__ import annotations

import os
from pathlib import Path

from pate._files import create_once
from pate.accounting.ledger.data_ledger import make_ledgers_folder
from pate.errors import LedgerError
from pate.pipeline.recipe import Recipe
from pate.pipeline.spending import ledger_path

_BYTES = 32


def key_path(recipe: Recipe, data_root: Path) -> Path:
    """Beside the ledger: every run of the data set uses the same key."""
    return ledger_path(recipe, data_root).with_suffix(".key")


def naming_key(recipe: Recipe, data_root: Path) -> str:
    """The key; drawn where there is none, and of two processes at once, the first one's stays.

    Guarantees:
        256 bits from the operating system in a file that only its owner can read: what is
        published of a run tells nothing of private records through its fingerprints.
    """
    path = key_path(recipe, data_root)
    try:
        if not path.exists():
            _make(path)
        key = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot keep a key at {path}: {error.strerror}") from error
    if len(key) != _BYTES:
        raise LedgerError(f"the key at {path} is damaged; restore it from a backup")
    return key.hex()


def _make(path: Path) -> None:
    make_ledgers_folder(path.parent)
    create_once(path, os.urandom(_BYTES))
