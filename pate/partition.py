"""Record → teacher: disjoint shards that cover everything.

The default assigns a record by a keyed hash of its id (or of its user's id): no other record
influences it. So adding or removing a record, or replacing what stands under its id, moves no other
record to another teacher, and one teacher changes at most. A record without an id of its own is
named by what it holds; then to replace it is to remove one and add another, and two teachers may
change: the guarantee is stated for records added or removed. So it is with users: other records
under the same id change one teacher, another user in somebody's place changes two.

A shuffled equal split assigns a record by its place in the data. It is valid only for one record
*replaced* by another in the same place, whatever their ids: adding one would shift all others.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pate._format import PROTECTED_USERS
from pate.accounting import Neighbours
from pate.errors import InvalidInput
from pate.record_votes import capped


class PartitionSpec(BaseModel):
    """``[partition]``: the assignment of private records to teachers."""

    model_config = ConfigDict(extra="forbid")

    method: Literal["hash", "shuffle"] = Field(
        default="hash",
        description="By a keyed hash of the record's id, which protects a record added or removed; "
        "or a shuffled equal split, which protects a record replaced.",
    )
    by: Literal["record", "group"] | None = Field(
        default=None,
        description="Protect single records, or all records of a group: they go to one teacher. "
        "Default: groups where `data.group` names them, else records.",
    )
    key: str = Field(
        default="pate", min_length=1, description="Key of the hash or the shuffle; public."
    )

    @model_validator(mode="after")
    def _users_keep_their_teacher(self) -> Self:
        return self._hashed_users()

    def _hashed_users(self) -> Self:
        if self.method == "shuffle" and self.by == "group":
            raise ValueError(
                'by = "group", which data.group implies, needs method = "hash": a shuffle of users '
                'would move others along; to protect single records only, set by = "record"'
            )
        return self

    def settled(self, *, grouped: bool) -> Self:
        """Return the section with ``by`` decided: where data have groups, groups are protected.

        >>> [PartitionSpec(by=by).settled(grouped=True).by for by in (None, "record")]
        ['group', 'record']
        """
        if self.by is not None:
            return self
        by = "group" if grouped else "record"
        return self.model_copy(update={"by": by})._hashed_users()

    @property
    def neighbours(self) -> Neighbours:
        """The relation between data sets under which one teacher changes, and no more."""
        return Neighbours.ADD_REMOVE if self.method == "hash" else Neighbours.REPLACE_ONE

    def protects(self, *, named: bool) -> str:
        """Return in words whom the guarantee protects; ``named`` if records have their own ids.

        Without ids a record is known by its content, so that a replaced one is one record removed
        and another one added: two teachers change, as they do for a user replaced by another.
        """
        if self.method == "shuffle":
            return "one record replaced"
        if self.by == "group":
            return PROTECTED_USERS
        return f"one record added or removed{', or replaced under the same id' if named else ''}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shards:
    """The records of each teacher. PRIVATE."""

    order: NDArray[np.int64]  # records, shard after shard
    offsets: NDArray[np.int64]  # shard i is order[offsets[i] : offsets[i + 1]]
    slices: NDArray[np.int64] | None = None  # the same of all slices, shard after shard

    @property
    def count(self) -> int:
        return len(self.offsets) - 1

    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


def partition(
    ids: list[str],
    *,
    teachers: int,
    spec: PartitionSpec,
    groups: list[str] | None = None,
    slices: int = 1,
) -> Shards:
    """Split records into one shard for each teacher, and a shard into ``slices``.

    Guarantees:
        Every record is in exactly one shard, and in one slice of it: it reaches one teacher. With
        ``hash``, its shard and slice are functions of the key and its own (or its group's) id
        alone; with ``shuffle``, of the key, the number of records and its place among them. With
        ``hash`` a shard may be empty, and its teacher abstains: to refuse would reveal of one
        record whether it is there.

        No order within a shard follows from the number of a copy where that follows from records
        in other shards: from a replaced record, or from those of another group.

    >>> spec = PartitionSpec()
    >>> shards = partition([str(i) for i in range(100)], teachers=4, spec=spec)
    >>> sorted(shards.order.tolist()) == list(range(100))
    True
    """
    spec = spec.settled(grouped=groups is not None)
    if spec.method == "shuffle" and teachers > len(ids):  # their number is public there
        raise InvalidInput(
            f"{teachers} teachers are more than the private records; lower teachers.count"
        )
    if spec.by == "group" and groups is None:
        raise InvalidInput("partition.by is group, and the data has no group column")
    owners = groups if spec.by == "group" else None
    assign = _by_hash if spec.method == "hash" else _by_place
    assigned, part, turn = assign(ids, owners, teachers=teachers, key=spec.key)
    cut = assigned * slices + (part % np.uint64(slices)).astype(np.int64)
    order = np.lexsort((turn, cut))
    sizes = np.bincount(cut, minlength=teachers * slices)
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Shards(order=order.astype(np.int64), offsets=bounds[::slices], slices=bounds)


RECORD_SHARDS = 32  # of records that vote themselves: they only share the work
PLACES = 256  # of records in a batch of the encoder
# A record's name by its content, with the number of a copy (pate.datasets.table.record_ids).
_COPY = re.compile(r"([0-9a-f]{64})-[0-9]+")


def record_shards(
    ids: list[str],
    *,
    spec: PartitionSpec,
    groups: list[str] | None = None,
    per_user: int | None = None,
) -> tuple[Shards, NDArray[np.int64]]:
    """Split records that vote themselves, and give each a place in its batch, in the same order.

    With ``per_user`` only so many records of each group are in a shard: the first ones by a keyed
    hash of their ids. Exact copies may share an id.

    Guarantees:
        Shard, place and, within a group, whether a record votes are functions of the key and of the
        ids of its group alone: other records influence none of them. The number of a copy is left
        out of a name by content: it would follow from other people's equal records.
    """
    ids = _without_copies(ids)
    spec = spec.settled(grouped=groups is not None)
    owners = groups if spec.by == "group" else None
    if spec.by == "group" and owners is None:
        raise InvalidInput("partition.by is group, and the data has no group column")
    shards = partition(ids, teachers=RECORD_SHARDS, spec=spec, groups=groups)
    if owners is not None and per_user is not None:
        voting = np.zeros(len(ids), dtype=bool)
        voting[capped(_hashed(ids, f"{spec.key}/order"), owners, per_user)] = True
        kept = voting[shards.order]
        owner = np.repeat(np.arange(shards.count), shards.sizes())[kept]
        sizes = np.bincount(owner, minlength=shards.count)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        shards = Shards(order=shards.order[kept], offsets=offsets)
    places = (_hashed(ids, f"{spec.key}/place") % np.uint64(PLACES)).astype(np.int64)
    return shards, places[shards.order]


# Each record's teacher, a number that decides its slice, and its turn there.
Assigned = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[Any]]


def _without_copies(ids: list[str]) -> list[str]:
    return [_COPY.sub(r"\1", name) if _COPY.fullmatch(name) else name for name in ids]


def _by_hash(ids: list[str], groups: list[str] | None, *, teachers: int, key: str) -> Assigned:
    """Assign records by their hashed ids; they stand in the order of these, not of the file."""
    if groups is None:  # equal records have their numbers among themselves
        names, turns = ids, ids
    else:
        names, turns = groups, _without_copies(ids)
    assigned = (_hashed(names, key) % np.uint64(teachers)).astype(np.int64)
    return assigned, _hashed(names, f"{key}/slice"), _hashed(turns, f"{key}/order")


def _by_place(ids: list[str], groups: list[str] | None, *, teachers: int, key: str) -> Assigned:
    """Assign records by their place, and users as they first appear, whatever their names.

    (Were ids sorted first, a record replaced by one of another name would shift all between them.)
    """
    first: dict[str, int] = {}
    numbers = (
        np.arange(len(ids))
        if groups is None
        else np.array([first.setdefault(name, len(first)) for name in groups])
    )
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    turn = np.random.default_rng(seed).permutation(int(numbers.max()) + 1)[numbers]
    # Not by ids: those of later copies of a replaced record change.
    return turn % teachers, (turn // teachers).astype(np.uint64), turn


def _hashed(names: list[str], key: str) -> NDArray[np.uint64]:
    secret = hashlib.sha256(key.encode()).digest()
    digests = (
        hashlib.blake2b(name.encode(errors="surrogatepass"), key=secret, digest_size=8).digest()
        for name in names
    )
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)
