"""Chance of one teacher's own, also for models that draw from what Python, numpy or torch share.

A worker trains one teacher after another. What the first draws from a generator that all share
would decide what the next one gets: the answer would depend on the engine, and on who came before.

>>> import random
>>> def draw(seed):
...     with own_randomness(seed):
...         return random.random()
>>> draw(1) == draw(1), draw(1) == draw(2)
(True, False)
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Inside, generators that a process shares start from ``seed``; outside they are as before.

    Guarantees:
        What a teacher draws follows from its seed and its own shard: another teacher's records
        change neither where a shared generator stands nor, so, this teacher.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (what others may use)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        with _torch_from(seed):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextlib.contextmanager
def _torch_from(seed: int) -> Iterator[None]:
    """The same for torch, where it is loaded; one that loads it begins with torch's own seed."""
    if "torch" not in sys.modules:
        yield
        return
    from pate.teachers.placing import seeded_torch

    with seeded_torch(seed):
        yield
