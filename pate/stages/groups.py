"""Which teachers one task takes: enough to make its own cost invisible, few enough to share out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pate.teachers import TeachersSpec, model_for

_MOST = 32
_LINEAR = {"ridge": 64, "logistic": 64}  # so cheap that more of them make one task
_SHARES = 8  # and at least so many tasks, where there are teachers enough


class Run(NamedTuple):
    """Groups that an engine takes together, and how long each may last."""

    groups: list[list[int]]
    timeout: float | None


def groups(spec: TeachersSpec) -> list[list[int]]:
    """All teachers, in groups of one model.

    A group lasts as long as its members may together. A time limit is for one teacher: so models
    that are not known to be quick are alone where there is one.

    >>> groups(TeachersSpec(count=5, model="ridge"))
    [[0], [1], [2], [3], [4]]
    >>> [len(group) for group in groups(TeachersSpec(count=100, model="ridge"))]
    [12, 12, 12, 12, 12, 12, 12, 12, 4]

    Guarantees:
        Groups follow from the public section alone, never from data, failures, engines or what a
        killed run left: who is computed beside whom may decide how the last bit is rounded.
    """
    entries: dict[str, list[int]] = {}
    for number in range(spec.count):
        model = model_for(spec, number)
        entries.setdefault(model.model_dump_json(), []).append(number)
    found: list[list[int]] = []
    for numbers in entries.values():
        name = model_for(spec, numbers[0]).model
        most = _LINEAR.get(name, 1 if spec.timeout else _MOST)
        size = max(1, min(most, spec.count // _SHARES))
        found += [numbers[start : start + size] for start in range(0, len(numbers), size)]
    return found


def runs(found: Iterable[list[int]], *, timeout: float | None) -> Iterator[Run]:
    """Groups by how long they may last: ``timeout`` for each member.

    >>> list(runs([[0, 1], [2, 3], [4]], timeout=10))
    [Run(groups=[[0, 1], [2, 3]], timeout=20), Run(groups=[[4]], timeout=10)]
    """
    sizes: dict[int, list[list[int]]] = {}
    for group in found:
        sizes.setdefault(0 if timeout is None else len(group), []).append(group)
    for size, same in sizes.items():
        yield Run(same, None if timeout is None else timeout * size)


def alone(numbers: Iterable[int]) -> list[list[int]]:
    """Each teacher in a group of its own."""
    return [[number] for number in numbers]
