"""Which teachers one task takes: enough to make its own cost invisible, few enough to share out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pate.teachers.spec import TeachersSpec, model_for

_MOST = 32
_LINEAR = {"ridge": 64, "logistic": 64}  # so cheap that more of them make one task
_SHARES = 8  # and at least so many tasks, where there are teachers enough


class Work(NamedTuple):
    """One task: a group, and those of it that are asked for; the others only keep their places."""

    group: list[int]
    wanted: list[int]

    @property
    def name(self) -> str:
        """Another one for other work in the same run.

        >>> Work([0, 2, 4], [0, 4]).name, Work([0, 2, 4], [4]).name
        ('0-4-of-3', '0-4-of-3-only-4')
        """
        places = f"{self.group[0]}-{self.group[-1]}-of-{len(self.group)}"
        return f"{places}-only-{self.wanted[0]}" if len(self.wanted) == 1 else places

    def again(self, lost: list[int]) -> list[Work]:
        """What to try after a worker was lost: each in its place, then by itself, then nothing.

        Guarantees:
            In its place among empty ones a teacher is, to the last bit, what it is in its group.
            So another member's trouble does not change how it is rounded.

        >>> Work([3, 4, 5], [3, 4, 5]).again([4, 5])
        [Work(group=[3, 4, 5], wanted=[4]), Work(group=[3, 4, 5], wanted=[5])]
        >>> Work([3, 4, 5], [4]).again([4]), Work([4], [4]).again([4])
        ([Work(group=[4], wanted=[4])], [])
        """
        if len(self.wanted) > 1:
            return [Work(self.group, [number]) for number in lost]
        return alone(lost) if len(self.group) > 1 else []


class Run(NamedTuple):
    """Work that an engine takes together, and how long each piece may last."""

    work: list[Work]
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


def asked_for(found: Iterable[list[int]], numbers: Iterable[int]) -> list[Work]:
    """The groups that hold one of these teachers, and which they hold.

    >>> asked_for([[0, 1], [2, 3]], [3])
    [Work(group=[2, 3], wanted=[3])]
    """
    wanted = set(numbers)
    work = [Work(group, [n for n in group if n in wanted]) for group in found]
    return [piece for piece in work if piece.wanted]


def runs(work: Iterable[Work], *, timeout: float | None) -> Iterator[Run]:
    """Work by how long it may last: ``timeout`` for each member of a group.

    >>> work = asked_for([[0, 1], [2, 3], [4]], range(5))
    >>> [([piece.group for piece in run.work], run.timeout) for run in runs(work, timeout=10)]
    [([[0, 1], [2, 3]], 20), ([[4]], 10)]
    """
    sizes: dict[int, list[Work]] = {}
    for piece in work:
        sizes.setdefault(0 if timeout is None else len(piece.group), []).append(piece)
    for size, same in sizes.items():
        yield Run(same, None if timeout is None else timeout * size)


def alone(numbers: Iterable[int]) -> list[Work]:
    """Each teacher in a group of its own."""
    return [Work([number], [number]) for number in numbers]
