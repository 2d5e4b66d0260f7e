"""Seeds for the many uses of one."""

from __future__ import annotations

import hashlib


def sub_seed(seed: int, *names: object) -> int:
    """A seed of its own for every use, below 2³².

    >>> sub_seed(0, "round", 1) == sub_seed(0, "round", 2)
    False
    """
    text = " ".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
