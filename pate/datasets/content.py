"""Keyed digests of the user's own private data: of the file, and of the records in it.

The file's digest is the same whatever columns a recipe names; that of the records is the same in
another format, in another order, and however one file is split into private, public and test.
Records that differ in any value have another digest: files that are almost the same are not
recognised.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from pate.accounting.ledger.data_set import shares_budget
from pate.accounting.ledger.known_records import records_key, require_one_ledger
from pate.datasets.own import find_file, is_entry
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits


def content_digests(
    spec: DataSpec, splits: Splits, *, root: Path, draw_key: bool = True
) -> frozenset[str]:
    """Return the digests by which private records are recognised; none for a named set.

    Guarantees:
        They are HMACs under a key of the user. They are for that user's data folder alone.
    """
    key = records_key(draw=draw_key) if spec.own else None
    if key is None:
        return frozenset()
    digests = {_digest(key, "records", _rows(spec, splits, key))}
    name, files = spec.source or spec.private_path or "", list[Path]()
    if not is_entry(name):
        path = find_file(spec, name, root)
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    if files:
        digests.add(_digest(key, "files", map(_file_digest, files)))
    return frozenset(digests)


def require_own_ledger(
    spec: DataSpec,
    splits: Splits,
    *,
    root: Path,
    ledger: Path,
    spend: bool | None,
    report: Callable[[str], None],
    remember: bool = True,
) -> None:
    """Refuse as :func:`require_one_ledger`, for the data of a recipe: before each new charge.

    Releases that are not private have no budget, and named sets are known by their names.
    """
    if spec.own and shares_budget(ledger):
        digests = content_digests(spec, splits, root=root, draw_key=remember)
        require_one_ledger(ledger, digests, spend=spend, report=report, remember=remember)


def _digest(key: bytes, kind: str, parts: Iterable[bytes]) -> str:
    """Return a digest of parts in any order."""
    return hmac.new(key, kind.encode() + b"".join(sorted(parts)), "sha256").hexdigest()


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _rows(spec: DataSpec, splits: Splits, key: bytes) -> Iterator[bytes]:
    """Yield a digest of each private record; of all records, where they come from one file."""
    tables = [splits.private]
    if spec.source is not None:
        tables += [splits.public, splits.test]
    for table in tables:
        features = np.asarray(table.features).reshape(len(table.features), -1)
        for row, record in enumerate(features):
            label = "" if table.labels is None else splits.class_names[int(table.labels[row])]
            values = np.asarray(record)
            if values.dtype.kind in "biuf":  # the same numbers, whatever the precision of the file
                content = np.ascontiguousarray(values, dtype="<f8").tobytes()
            else:
                content = repr(values.tolist()).encode()
            content += label.encode()
            yield hashlib.blake2b(content, key=key, digest_size=16).digest()
