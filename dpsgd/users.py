"""Users: people who own several records, and count as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dpsgd.data import optional_count
from dpsgd.sampling import IntArray
from pate.accounting import Event
from pate.errors import InvalidInput


@final
class Users:
    """The records of each user; users are numbered in the order of their first records.

    Of a user with more than ``per_user`` records, that many are used in the whole run.

    Guarantees:
        Which records of a user are used follows from ``per_user`` and from how many they have, and
        not from any other user: adding or removing a user changes no other user's records.

    >>> users = Users(["ann", "bob", "ann"], records=3)
    >>> len(users), users.records_of(np.array([0, 1]))
    (2, (array([0, 2, 1]), array([0, 0, 1])))
    """

    def __init__(
        self, groups: Sequence[Any] | NDArray[Any], *, records: int, per_user: int | None = None
    ) -> None:
        numbers = _numbered(groups)
        if len(numbers) != records:
            raise InvalidInput(
                "groups and the data set differ in length; give the user of each record, in order"
            )
        self.per_user = per_user
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers)
        if per_user is not None:
            starts = np.cumsum(counts) - counts
            kept = np.ones(len(order), dtype=bool)
            for start, count in zip(starts, counts, strict=True):
                if count > per_user:
                    dropped = np.random.default_rng(count).permutation(count)[per_user:]
                    kept[start + dropped] = False
            order, counts = order[kept], np.minimum(counts, per_user)
        self._order = order.astype(np.int64)
        self._counts = counts.astype(np.int64)
        self._starts = np.cumsum(self._counts) - self._counts

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def records(self) -> int:
        """The number of records that are used."""
        return len(self._order)

    def records_of(self, users: IntArray) -> tuple[IntArray, IntArray]:
        """Return the records of some users, user after user, and for each the place of its user."""
        counts = self._counts[users]
        places = np.repeat(np.arange(len(users)), counts)
        within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._order[np.repeat(self._starts[users], counts) + within], places


def as_users(
    groups: Sequence[Any] | NDArray[Any] | None,
    *,
    records: int,
    per_user: int | None,
    users: int | None,
) -> Users | None:
    """Return the users of some records; None without ``groups``, which the others need."""
    for name, value in (("per_user", per_user), ("users", users)):
        if optional_count(name, value) is not None and groups is None:
            raise InvalidInput(f"{name} is for users; give groups=, the user of each record")
    return None if groups is None else Users(groups, records=records, per_user=per_user)


def require_user_level(records: int | None, prior: Sequence[Event]) -> None:
    """Refuse what is about single records where lots are drawn of users."""
    if records is not None:
        raise InvalidInput(
            f"records is {records}, and with groups= lots are drawn of users; give users=, their "
            "agreed number"
        )
    if prior:
        raise InvalidInput(
            "prior_events are for one record, such as those of a private PCA, and with groups= the "
            "guarantee is for all records of one user; leave out one of them"
        )


def _numbered(groups: Sequence[Any] | NDArray[Any]) -> IntArray:
    """Return the number of each record's user."""
    names = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    first: dict[Any, int] = {}
    try:
        if any(name is None or name != name for name in names):
            raise InvalidInput("a record has no group; name the user of every record")
        numbers = [first.setdefault(name, len(first)) for name in names]
    except TypeError:
        raise InvalidInput(
            "groups are not one name or number for each record; give a list or an array of them"
        ) from None
    return np.array(numbers, dtype=np.int64)
