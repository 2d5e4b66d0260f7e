"""The form of every data set: a table of records, and one table for each of the three roles."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Splits:
    """The three roles. No record has two of them.

    ``class_names`` are public, and so is their number: see :mod:`pate.datasets.parts`.
    """

    private: Table  # labelled; the records the guarantee is about
    public: Table  # inputs for the teachers to label; its own labels are for `evaluate` alone
    test: Table  # labelled; public
    class_names: tuple[str, ...]

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
