"""Division of one pool into private, public and test records, by a keyed hash of each name.

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
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pate.datasets.table import Table, content_names, record_ids
from pate.errors import InvalidInput

Rows = NDArray[np.intp]


def divide(
    table: Table,
    amounts: Sequence[tuple[str, int | float | None]],
    *,
    seed: int,
    where: str,
) -> dict[str, Table]:
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
        taken = left if amount is None else _take(left, names, amount, role=role, seed=seed)
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


def divide_in_order(
    table: Table, amounts: Sequence[tuple[str, int | float | None]], *, where: str
) -> dict[str, Table]:
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


def _names(table: Table, amounts: Sequence[tuple[str, int | float | None]]) -> Sequence[str]:
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
