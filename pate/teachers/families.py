"""Families: teachers of one kind that are trained, and predict, all at once.

A class is a family if, besides ``fit`` and ``predict``, it offers

    family(self) -> Hashable                      equal for teachers that may be taken together
    fit_many(teachers, shards) -> list            for each teacher a PateError, or None
    predict_many(teachers, X) -> labels           (teachers, n); may be left out

The last two are called on the class. In both lists None stands for a missing teacher: its place is
kept and the answer for it is ignored. After an exception from a whole call, each member is tried
again in its place, the other places empty, and by itself if that fails too: ``fit_many`` and
``fit`` must then start from scratch.

Guarantees that a user's own class must give:
    ``fit_many`` sees several shards, and must not mix them: what teacher j learns, down to the
    last bit, follows from shard j, its place and the number of places. Otherwise one record would
    change several teachers, and no ε stated by this package would hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import OutOfMemory, PateError, TeacherError
from pate.teachers.placement import isolated_randomness
from pate.teachers.protocol import (
    Teacher,
    checked_labels,
    checked_shard,
    guarded,
    predict_labels,
    train,
)
from pate.untrusted import is_ours

Shard = tuple[ArrayLike, ArrayLike]
_T = TypeVar("_T")


def group_families(teachers: Sequence[Teacher | None]) -> list[list[int]]:
    """Return the places of each family of teachers.

    An ordinary teacher is alone; a missing one is in no family.

    >>> from pate.teachers.linear import RidgeTeacher
    >>> a, b, c = (RidgeTeacher(classes=3, alpha=alpha) for alpha in (1.0, 2.0, 1.0))
    >>> group_families([a, b, None, c])
    [[0, 3], [1]]
    """
    found: dict[Hashable, list[int]] = {}
    for place, teacher in enumerate(teachers):
        if teacher is not None:
            found.setdefault(_kind(teacher, place), []).append(place)
    return list(found.values())


def train_many(
    teachers: Sequence[Teacher | None],
    shards: Sequence[Shard | None],
    *,
    seeds: Sequence[int] | None = None,
    private: bool = True,
) -> list[PateError | None]:
    """Fit teachers of one family, each to its own shard; return an error or None for each.

    ``seeds``, one for each place, are for models that draw from process-wide generators; a family
    as a whole uses the first.

    Guarantees:
        A teacher fails because of its own shard alone: if a family cannot be trained as a whole,
        each member is trained in its place among empty ones, which gives the same teacher to the
        last bit, so that a failure on one shard does not even change how others are rounded. A
        member that cannot be trained in this way is trained by itself. Output and warnings are
        dropped, and with ``private`` errors name places in code only, as in
        :func:`pate.teachers.protocol.train`. A device without memory for one of them is no
        teacher's failure: OutOfMemory is raised, and none is tried again.
    """
    seeds = range(len(teachers)) if seeds is None else seeds
    found: list[PateError | None] = [None] * len(teachers)
    fit: list[Teacher | None] = list(teachers)
    ready: list[Shard | None] = [None] * len(teachers)
    for place, teacher in enumerate(teachers):
        shard = shards[place] if teacher is not None else None
        if shard is None:
            fit[place] = None
            continue
        try:
            ready[place] = checked_shard(*shard)
        except PateError as error:
            found[place], fit[place] = error, None
    with isolated_randomness(seeds[0]):
        reports = _fit_family(fit, ready, private=private)
    for place, teacher in enumerate(fit):
        shard = ready[place]
        if teacher is None or shard is None:
            continue
        mine = reports
        if mine is None:
            with isolated_randomness(seeds[0]):
                mine = _fit_family(_only(fit, place), _only(ready, place), private=private)
        if mine is not None:
            found[place] = mine[place]
            continue
        try:
            with isolated_randomness(seeds[place]):
                train(teacher, *shard, private=private)
        except OutOfMemory:
            raise
        except PateError as error:
            found[place] = error
    return found


def predict_many_labels(
    teachers: Sequence[Teacher | None],
    X: ArrayLike,
    *,
    classes: int,
    seeds: Sequence[int] | None = None,
    private: bool = True,
) -> list[NDArray[np.int64] | PateError | None]:
    """Return, for each teacher of one family, its labels for every record or an error.

    ``seeds`` are as in :func:`train_many`.

    Guarantees:
        As in :func:`pate.teachers.protocol.predict_labels`: an invalid prediction never becomes a
        vote, and changes no other teacher's, not even its rounding: after a failure each teacher
        predicts in its place, as in :func:`train_many`.
    """
    records = np.asarray(X)
    seeds = range(len(teachers)) if seeds is None else seeds
    with isolated_randomness(seeds[0]):
        answers = _predict_family(teachers, records, private=private)
    found: list[NDArray[np.int64] | PateError | None] = [None] * len(teachers)
    for place, teacher in enumerate(teachers):
        if teacher is None:
            continue
        mine = answers
        if mine is None:
            with isolated_randomness(seeds[0]):
                mine = _predict_family(_only(teachers, place), records, private=private)
        try:
            if mine is None:
                with isolated_randomness(seeds[place]):
                    found[place] = predict_labels(
                        teacher, records, classes=classes, private=private
                    )
            else:
                found[place] = checked_labels(mine[place], records=len(records), classes=classes)
        except OutOfMemory:
            raise
        except PateError as error:
            found[place] = error
    return found


def _only(members: Sequence[_T | None], place: int) -> list[_T | None]:
    """Return one member in its place, the others replaced by None."""
    return [each if number == place else None for number, each in enumerate(members)]


def _kind(teacher: Any, place: int) -> Hashable:
    if all(callable(getattr(teacher, name, None)) for name in ("family", "fit_many")):
        try:
            key = guarded("family", teacher.family, private=True)
            hash(key)
        except (PateError, TypeError):  # no usable key: it is alone
            return (place,)
        return type(teacher), key
    return (place,)


def _fit_family(
    teachers: Sequence[Teacher | None], shards: Sequence[Shard | None], *, private: bool
) -> list[PateError | None] | None:
    """Return the reports of a family's ``fit_many``, or None if it has none or fails."""
    cls = _family_of(teachers, "fit_many")
    if cls is None:
        return None
    try:
        reports = guarded("fit_many", lambda: list(cls.fit_many(teachers, shards)), private=private)
    except OutOfMemory:
        raise
    except PateError:
        return None
    valid = len(reports) == len(teachers) and all(
        each is None or isinstance(each, PateError) for each in reports
    )
    if valid and private and not is_ours(cls.__module__):  # its text may quote a record
        reports = [
            each and TeacherError(f"fit_many reported {type(each).__name__}") for each in reports
        ]
    return reports if valid else None


def _predict_family(
    teachers: Sequence[Teacher | None], records: NDArray[Any], *, private: bool
) -> NDArray[Any] | None:
    cls = _family_of(teachers, "predict_many")
    if cls is None:
        return None
    try:
        answers = guarded(
            "predict_many",
            lambda: np.asarray(cls.predict_many(teachers, records)),
            private=private,
        )
    except OutOfMemory:
        raise
    except PateError:
        return None
    found: NDArray[Any] | None = answers if answers.shape[:1] == (len(teachers),) else None
    return found


def _family_of(teachers: Sequence[Teacher | None], method: str) -> Any:
    """Return the class of a family if it has the method and more than one place."""
    cls = next((type(teacher) for teacher in teachers if teacher is not None), None)
    return cls if len(teachers) > 1 and callable(getattr(cls, method, None)) else None
