"""The people behind the three roles: nobody is on two sides, and whoever is not protected is known.

The guarantee is about private records. Whoever is in a public or test record is not protected, and
whoever is in a private record *and* in a public one only seems to be. So both are refused for the
user's own data before anything is released, unless the recipe accepts the first.

These checks look at private records: a refusal, and its number, are for the owner of the data
(docs/explanation/sharp-edges.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate._format import printable
from pate.datasets.own import is_entry
from pate.datasets.spec import DataSpec
from pate.datasets.table import ROLES, Splits, Table
from pate.errors import InvalidInput

_BYTES_AT_ONCE = 1 << 24  # of the features that are hashed in one piece


def require_accepted(spec: DataSpec) -> None:
    """Refuse one file for all three roles, unless the recipe accepts that; no file is read.

    >>> require_accepted(DataSpec(name="digits"))  # a named set is public
    """
    if spec.source is not None and not is_entry(spec.source):
        _require_accepted(spec)


def _require_accepted(spec: DataSpec) -> None:
    if not spec.accept_unprotected:
        raise InvalidInput(
            f"the public and test records of {spec.name} come from the same source as the private "
            "ones, and the people in them are not protected: give private_path, public_path and "
            "test_path instead of source, or accept it with data.accept_unprotected = true"
        )


def unprotected_people(spec: DataSpec) -> str | None:
    """Return a sentence on the people whom no guarantee covers; None for named sets, all public.

    >>> unprotected_people(DataSpec(name="digits")) is None
    True
    """
    if not spec.own:
        return None
    together = "" if spec.source is None else ", and all of them come from one source"
    return (
        "The people in public and test records are not protected: the guarantee is about private "
        f"records alone{together}."
    )


def require_named_groups(spec: DataSpec, splits: Splits, *, protected: bool, section: str) -> None:
    """Refuse groups that the user's own code returned and that nobody asked to protect."""
    if splits.private.groups is not None and spec.group is None and not protected:
        raise InvalidInput(
            f'{spec.source} returned groups: name them with group = "groups" in [data], and all '
            "records of a group are protected together; to protect single records only, also set "
            f'by = "record" in [{section}]'
        )


def require_apart(spec: DataSpec, splits: Splits) -> dict[str, int]:
    """Refuse own data in which a record has two roles; return how many equal rows were let pass.

    Records are compared by their groups and ids where both sides have them, and then equal rows
    are different people: they are counted, by role, and not refused. Otherwise equal rows (labels
    aside) are the same record. Ids of images are their paths, which name nobody. One pool was
    divided here (:func:`pate.datasets.table.divide`): its groups and its exact copies are on one
    side, and equal rows are only counted.
    """
    if not spec.own:
        return {}
    if splits.pooled:
        _require_accepted(spec)
    if splits.unused:
        raise InvalidInput(
            f"the private file of {spec.name} has no column {printable(splits.unused[0])!r}, which "
            "public or test records have; add it there, or name the columns to use in features"
        )
    equal: dict[str, int] = {}
    for first, second in combinations(ROLES, 2):
        one, other = getattr(splits, first), getattr(splits, second)
        where = _where(spec, second)
        told_apart = splits.pooled
        for key in ("groups", "ids"):
            names, others = getattr(one, key), getattr(other, key)
            if splits.pooled or names is None or others is None:
                continue
            if key == "ids" and spec.id is None and not is_entry(spec.source or ""):
                continue  # paths of images
            shared = _shared_names(names, others)
            if shared:
                raise InvalidInput(
                    f"{_records(shared, where, 'has', 'have')} {key} of {first} records; remove "
                    f"them there, or, if they are other people, give them {key} of their own"
                )
            told_apart = True
        rows = shared_rows(one, other)
        if rows and not told_apart:
            raise InvalidInput(
                f"{_records(rows, where, 'is', 'are')} among the {first} records too; remove them "
                "there, or, if equal rows are different people, name an id column (data.id) in both"
            )
        if first == "private":
            equal[f"{second}_records_equal_to_private_ones"] = rows
    return equal


def equal_rows_notes(equal: Mapping[str, int]) -> list[str]:
    """Return a sentence for each role that has rows of private records under other names.

    For the owner's screen alone: the number follows from private records.

    >>> equal_rows_notes({"public_records_equal_to_private_ones": 0})
    []
    """
    return [
        f"{count} {key.partition('_')[0]} {'record has' if count == 1 else 'records have'} the "
        "very features of a private record, under another id or group: if "
        f"{'it is of a person' if count == 1 else 'any is of a person'} who is private, too, that "
        "person is not protected; remove such records there (for your eyes only: the number "
        "follows from private records)"
        for key, count in equal.items()
        if count
    ]


def _where(spec: DataSpec, role: str) -> str:
    path = getattr(spec, f"{role}_path")
    return f"the {role} part of {spec.name}" if path is None else str(path)


def _records(count: int, where: str, one: str, many: str) -> str:
    return (
        f"{count} record of {where} {one}" if count == 1 else f"{count} records of {where} {many}"
    )


def _shared_names(names: Sequence[str], others: Sequence[str]) -> int:
    known = set(names)
    return sum(each in known for each in others)


def shared_rows(one: Table, other: Table) -> int:
    """Return how many records of ``other`` have the features of a record of ``one``.

    Both are compared at single precision if one of them has no more; −0 is 0, and a missing value
    is as good as another.

    >>> pool = np.array([[1.0, 2.0], [-0.0, 3.0]])
    >>> same = Table(features=np.array([[0.0, 3.0], [3.0, 0.0]], dtype=np.float32), labels=None)
    >>> shared_rows(Table(features=pool, labels=None), same)
    1
    """
    single = any(_is_single(each.features) for each in (other, one))
    kind: np.dtype[np.floating[Any]] = np.dtype(np.float32 if single else np.float64)
    known, found = _hashes(one.features, kind), _hashes(other.features, kind)
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known, found, sorter=order)
    at[at == len(known)] = 0
    candidates = np.flatnonzero(known[order[at]] == found)
    step = max(1, _BYTES_AT_ONCE // other.features[0].nbytes)
    count = 0
    for start in range(0, len(candidates), step):  # equal hashes may be those of different rows
        rows = candidates[start : start + step]
        here, there = one.features[order[at[rows]]], other.features[rows]
        count += int((_words(here, kind) == _words(there, kind)).all(axis=1).sum())
    return count


def _is_single(features: NDArray[np.generic]) -> bool:
    """Return whether single precision holds every value: they may be a copy that lost the rest."""
    if features.dtype == np.float32:
        return True
    step = max(1, _BYTES_AT_ONCE // features[0].nbytes)
    blocks = (features[start : start + step] for start in range(0, len(features), step))
    return all(
        np.array_equal(block.astype(np.float32), block, equal_nan=block.dtype.kind == "f")
        for block in blocks
    )


def _words(rows: NDArray[np.generic], kind: np.dtype[np.floating[Any]]) -> NDArray[Any]:
    """Return the bits of each value: one pattern for zeros, and one for missing values."""
    flat = rows.reshape(len(rows), -1).astype(kind, copy=False)
    plain = np.add(flat, kind.type(0), order="C")  # −0 becomes 0
    plain[np.isnan(plain)] = np.nan
    return plain.view(f"u{kind.itemsize}")


def _hashes(features: NDArray[np.generic], kind: np.dtype[np.floating[Any]]) -> NDArray[np.uint64]:
    """Return 64 bits for each row, a block of rows at a time: equal rows have equal ones."""
    columns = int(np.prod(features.shape[1:]))
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, size=columns, dtype=np.uint64)
    odd = rng.integers(0, 2**64, size=columns, dtype=np.uint64) | np.uint64(1)
    hashes = np.empty(len(features), dtype=np.uint64)
    rows = max(1, _BYTES_AT_ONCE // (8 * columns))
    for start in range(0, len(features), rows):
        words = _words(features[start : start + rows], kind).astype(np.uint64)
        # The finaliser of MurmurHash3: doubles that differ in their high bits alone differ in all.
        words ^= keys
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
            words ^= words >> np.uint64(shift)
            words *= np.uint64(factor)
        words ^= words >> np.uint64(33)
        hashes[start : start + rows] = words @ odd
    return hashes
