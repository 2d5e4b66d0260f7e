"""Tables of records, and the division of one pool into private, public and test records.

Guarantees:
    * The roles are disjoint, and the same seed gives the same split on every machine.
    * A **share** is decided record by record, from that record's name and the seed alone, so the
      number taken is close to the share and not exactly it. Adding or removing a record changes
      no other record's role.
    * A **count** takes the records whose hash is smallest. Removing a private record then changes
      no other record's role either, since it was not among the smallest; except under a count for
      ``private``, where the next record moves up into its place (replace-one, not add/remove).
    * Where the table has groups, a group is never divided, so that nobody is half private; nor
      are exact copies of one record, which could otherwise change roles when one of them goes.
      A count then takes whole groups until it is reached.
    * The seed is public. It decides who is protected, not how much noise is drawn.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput

ROLES = ("private", "public", "test")
Rows = NDArray[np.intp]
_ROWS_AT_ONCE = 4096
Amounts = Sequence[tuple[str, int | float | None]]  # by role: a count, a share, or all


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Records with numeric features and class numbers; as private as their source.

    >>> Table(features=np.zeros((3, 2)), labels=np.array([0, 1, 1])).records
    3
    """

    features: NDArray[Any]  # (n, ...), numbers; images are (n, h, w) or (n, h, w, c)
    labels: NDArray[np.int64] | None  # 0 … classes − 1
    ids: tuple[str, ...] | None = None  # stable names of the records; None: see record_ids
    groups: tuple[str, ...] | None = None  # whose record it is, where a group column was named

    def __post_init__(self) -> None:
        if self.features.ndim < 2:
            raise InvalidInput(
                f"features of shape {self.features.shape} hold no row for each record; "
                "give an array of two or more dimensions"
            )
        if self.labels is not None and self.labels.ndim != 1:
            raise InvalidInput(
                f"labels of shape {self.labels.shape} are not one class for each record; "
                "give a flat list of classes"
            )
        for name, column in (("labels", self.labels), ("ids", self.ids), ("groups", self.groups)):
            if column is not None and len(column) != self.records:
                raise InvalidInput(
                    f"there are {len(column)} {name} for {self.records} records; "
                    "give one for each record"
                )

    @property
    def records(self) -> int:
        return int(self.features.shape[0])

    def take(self, rows: NDArray[np.intp]) -> Table:
        """Return these rows, in this order."""
        return Table(
            features=self.features[rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=None if self.ids is None else tuple(self.ids[row] for row in rows),
            groups=None if self.groups is None else tuple(self.groups[row] for row in rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of features: of numbers, or of categories. PUBLIC."""

    name: str | None  # None: its owner does not publish it
    categories: tuple[str, ...] | None = None  # None: numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Splits:
    """The three roles. No record has two of them.

    ``class_names`` are public, and so is their number: see :mod:`pate.datasets.parts`.
    """

    private: Table  # labelled; the records the guarantee is about
    public: Table  # inputs for the teachers to label; its own labels are for `evaluate` alone
    test: Table  # labelled; public
    class_names: tuple[str, ...]
    pooled: bool = False  # of the user's own data: all three were divided from one pool
    columns: tuple[Column, ...] | None = None  # of a table; public
    unused: tuple[str, ...] = ()  # columns of public or test records that private ones lack

    @property
    def categories(self) -> tuple[int, ...]:
        """The number of categories of each column, 0 for numbers; empty without categories."""
        found = tuple(len(each.categories or ()) for each in self.columns or ())
        return found if any(found) else ()

    @property
    def classes(self) -> int:
        return len(self.class_names)


def record_ids(table: Table) -> list[str]:
    """Return a name for each record that does not depend on its position in the table.

    Guarantees:
        * Without ids of its own a record is named by the SHA-256 of its features and label;
          exact copies are numbered in order. Removing a record leaves every other name as it was,
          except those of later exact copies (which are indistinguishable). Keyed-hash partitioning
          needs this to hold for add/remove neighbours.
        * The names are as private as the records: a digest of a record can be guessed.

    >>> table = Table(features=np.array([[1.0], [2.0], [1.0]]), labels=np.array([0, 1, 0]))
    >>> [name[:8] + name[64:] for name in record_ids(table)]
    ['6f45787d', '1ade95af', '6f45787d-1']
    """
    seen: Counter[str] = Counter()
    names = []
    for name in content_names(table):
        names.append(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def content_names(table: Table) -> list[str]:
    """Return names in which exact copies share one, so that no name depends on other records."""
    if table.ids is not None:
        return list(table.ids)
    features = table.features
    little = features.dtype.newbyteorder("<")
    kind = f"{little.str}{features.shape[1:]}".encode()
    names = []
    for row in range(table.records):
        digest = hashlib.sha256(kind)
        digest.update(features[row].astype(little, copy=False).tobytes())
        if table.labels is not None:
            digest.update(int(table.labels[row]).to_bytes(8, "little", signed=True))
        names.append(digest.hexdigest())
    return names


def check_splits(splits: Splits, *, where: str) -> Splits:
    """Return the splits if private and test records are labelled and every label is a class."""
    for role in ROLES:
        table: Table = getattr(splits, role)
        labels = table.labels
        if labels is None and role != "public":
            raise InvalidInput(f"the {role} records of {where} have no labels; they need them")
        check_features(table.features, where=where, missing=splits.columns is not None)
        if table.features.shape[1:] != splits.private.features.shape[1:]:
            raise InvalidInput(
                f"the {role} records of {where} have another shape than its private ones; "
                "make them agree"
            )
        if labels is not None and (
            labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= splits.classes
        ):
            raise InvalidInput(
                f"the {role} labels of {where} are not whole numbers from 0 to "
                f"{splits.classes - 1}, one for each record"
            )
    if splits.private.labels is not None and np.unique(splits.private.labels).size < 2:
        raise InvalidInput(
            f"the private records of {where} are all of one class; classification needs 2 or more"
        )
    return splits


def check_features(
    features: NDArray[Any],
    *,
    where: str,
    columns: Sequence[str] | None = None,
    missing: bool = False,
) -> None:
    """Refuse features that are not a row of finite numbers for each record.

    With ``missing`` a number may be NaN.
    """
    if features.size == 0:
        raise InvalidInput(f"{where} holds no records")
    if features.ndim < 2:
        raise InvalidInput(
            f"the features of {where} have shape {features.shape}; "
            "give a row of numbers for each record"
        )
    if features.dtype.kind not in "iuf":
        raise InvalidInput(f"the features of {where} are {features.dtype}, not numbers")
    for start in range(0, len(features), _ROWS_AT_ONCE):
        block = features[start : start + _ROWS_AT_ONCE]
        finite = ~np.isinf(block) if missing else np.isfinite(block)
        if not finite.all():
            at = "a feature"
            if columns is not None:
                at = f"column {columns[int(np.flatnonzero(~finite.all(axis=0))[0])]!r}"
            what = "infinity" if missing else "NaN or infinity"
            raise InvalidInput(f"{at} of {where} holds {what}; fill it in or remove those records")


def divide(table: Table, amounts: Amounts, *, seed: int, where: str) -> dict[str, Table]:
    """Take each role's amount in turn from the remaining records; ``None`` takes all of them.

    The public and test roles come in the order of their hashes, so that the first of them are a
    fair sample even where the file was sorted; private records keep the order of the file.

    >>> pool = Table(features=np.arange(10.0)[:, None], labels=None)
    >>> parts = divide(pool, [("test", 2), ("public", 3), ("private", None)], seed=0, where="pool")
    >>> [part.records for part in parts.values()]
    [2, 3, 5]
    """
    names = _names(table, amounts)
    left = np.arange(table.records)
    parts: dict[str, Table] = {}
    for role, amount in amounts:
        if amount is None:
            taken = left
        elif role == "private" and isinstance(amount, int):
            # For one record replaced by another in its place: by places, whatever stands there.
            places = np.arange(len(left))
            taken = left[_take(places, list(map(str, places)), amount, role=role, seed=seed)]
        else:
            taken = _take(left, names, amount, role=role, seed=seed)
        if isinstance(amount, int) and len(taken) < amount:
            raise InvalidInput(
                f"{role} asks for {amount} records and {where} has {len(left)} left for it "
                f"of {table.records}; ask for less"
            )
        if not len(taken):
            why = "ask for less elsewhere" if amount is None or not len(left) else "ask for more"
            raise InvalidInput(f"no record of {where} is left for {role}; {why}")
        left = np.setdiff1d(left, taken, assume_unique=True)
        if role == "private":
            taken = np.sort(taken)
        untouched = amount is None and len(taken) == table.records
        parts[role] = table if untouched else table.take(taken)
    return parts


def divide_in_order(table: Table, amounts: Amounts, *, where: str) -> dict[str, Table]:
    """Take the first records for ``public`` and the last for ``test``, in the order of the file.

    For a part in which no record is private: positions in the file need no protection.

    >>> pool = Table(features=np.arange(10.0)[:, None], labels=None)
    >>> parts = divide_in_order(pool, [("public", 3), ("test", 2)], where="pool")
    >>> parts["public"].features.ravel().tolist(), parts["test"].features.ravel().tolist()
    ([0.0, 1.0, 2.0], [8.0, 9.0])
    """
    counts = {
        role: round(amount * table.records) if isinstance(amount, float) else amount or 0
        for role, amount in amounts
    }
    if sum(counts.values()) > table.records or not all(counts.values()):
        asked = " and ".join(f"{count} for {role}" for role, count in counts.items())
        raise InvalidInput(f"{where} has {table.records} records, and {asked} are asked for")
    rows = np.arange(table.records)
    return {
        "public": table.take(rows[: counts["public"]]),
        "test": table.take(rows[table.records - counts["test"] :]),
    }


def cap(table: Table, amount: int | float | None, *, role: str, seed: int, where: str) -> Table:
    """Return at most this amount of a table that has one role already."""
    if isinstance(amount, int) and amount >= table.records:
        return table
    return divide(table, [(role, amount)], seed=seed, where=where)[role]


def _names(table: Table, amounts: Amounts) -> Sequence[str]:
    """Return the names to hash: records of one name share a role."""
    if all(amount is None for _, amount in amounts):
        return ()
    if table.groups is not None:
        return table.groups
    # Between two public roles, or within the private one, copies need not stay together.
    private = len(amounts) > 1 and any(role == "private" for role, _ in amounts)
    return content_names(table) if private else record_ids(table)


def _take(left: Rows, names: Sequence[str], amount: int | float, *, role: str, seed: int) -> Rows:
    hashes = _hashes([names[row] for row in left], role=role, seed=seed)
    order = np.argsort(hashes, kind="stable")
    if isinstance(amount, float):
        chosen = int(np.count_nonzero(hashes.astype(np.float64) < amount * 2.0**64))
    else:
        chosen = min(amount, len(left))
        ranked = hashes[order]
        while 0 < chosen < len(left) and ranked[chosen] == ranked[chosen - 1]:
            chosen += 1  # the rest of the last group
    taken: Rows = left[order[:chosen]]
    return taken


def _hashes(names: Sequence[str], *, role: str, seed: int) -> NDArray[np.uint64]:
    key = hashlib.blake2b(f"pate split {seed} {role}".encode(), digest_size=32).digest()
    return np.array(
        [
            int.from_bytes(hashlib.blake2b(name, digest_size=8, key=key).digest(), "big")
            for name in (each.encode(errors="surrogatepass") for each in names)
        ],
        dtype=np.uint64,
    )
