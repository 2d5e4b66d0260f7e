"""Who may see what."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """PUBLIC < RELEASED < PRIVATE.

    Guarantees:
        Something RELEASED can come from something PRIVATE only with a charge in the ledger.

    >>> Level.PRIVATE > Level.RELEASED > Level.PUBLIC
    True
    """

    PUBLIC = 0  # known to everybody: public inputs
    RELEASED = 1  # paid for: noised labels, the student, its guarantee
    PRIVATE = 2  # shards, teachers, votes, and everything worked out from them

    @property
    def folder(self) -> str:
        return self.name.lower()
