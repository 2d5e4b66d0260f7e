"""The teacher protocol, families of teachers, and the guarded calls by which models are used.

A model that trains on private records may print a record, warn about a label, or quote a value in
an exception. Guarded calls drop all of it, and check predictions before they count.

Teachers of one kind may be trained, and predict, all at once. A class is such a family if, besides
``fit`` and ``predict``, it offers

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

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.errors import OutOfMemory, PateError, TeacherError
from pate.teachers.placement import isolated_randomness, out_of_memory, short_of_memory
from pate.untrusted import is_ours, run_untrusted

Shard = tuple[ArrayLike, ArrayLike]


@runtime_checkable
class Teacher(Protocol):
    """Any object that learns from records with labels 0 … classes − 1 and predicts such labels."""

    def fit(self, X: Any, y: Any) -> Any: ...

    def predict(self, X: Any) -> ArrayLike: ...


def train(
    teacher: Teacher,
    X: ArrayLike,
    y: ArrayLike,
    *,
    private: bool = True,
    weights: ArrayLike | None = None,
) -> None:
    """Fit a teacher to its shard: records (n, …), labels (n,).

    ``weights`` of the records count where the model's ``fit`` takes a ``sample_weight``.

    Guarantees:
        With ``private`` an error names the place in the code where the model failed and never its
        message; output and warnings of the model are dropped.
    """
    records, labels = checked_shard(X, y)
    given = {}
    if weights is not None and "sample_weight" in inspect.signature(teacher.fit).parameters:
        given = {"sample_weight": np.asarray(weights)}
    guarded("fit", lambda: teacher.fit(records, labels, **given), private=private)


def checked_shard(X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return records and labels as arrays; raise the rule they break."""
    records, labels = np.asarray(X), np.asarray(y)
    if len(labels) == 0:
        raise TeacherError("its shard holds no records; use fewer teachers")
    if labels.ndim != 1 or len(records) != len(labels):
        raise TeacherError(f"records {records.shape} and labels {labels.shape} do not match")
    if labels.dtype.kind not in "iu":
        raise TeacherError(f"labels have type {labels.dtype}; they must be whole numbers")
    return records, labels.astype(np.int64, copy=False)


def predict_labels(
    teacher: Teacher, X: ArrayLike, *, classes: int, private: bool = True
) -> NDArray[np.int64]:
    """Return one label in 0 … classes − 1 for every record.

    Guarantees:
        An invalid prediction raises :class:`TeacherError` and never becomes a vote, so a teacher
        casts at most one vote on a query. The message holds no predicted value.
    """
    records = np.asarray(X)
    answer = guarded("predict", lambda: np.asarray(teacher.predict(records)), private=private)
    return checked_labels(answer, records=len(records), classes=classes)


def checked_labels(answer: NDArray[Any], *, records: int, classes: int) -> NDArray[np.int64]:
    """Return predictions as labels; raise the rule they break."""
    if answer.shape != (records,):
        raise TeacherError(
            f"predict returned shape {answer.shape}; it must return one label for each record, "
            f"shape ({records},)"
        )
    if answer.dtype.kind not in "iufb":
        raise TeacherError(f"predict returned type {answer.dtype}; labels are whole numbers")
    if answer.dtype.kind == "f" and not np.array_equal(answer, np.trunc(answer)):  # NaN too
        raise TeacherError("predict returned fractions or NaN; labels are whole numbers")
    if records and not (answer.min() >= 0 and answer.max() < classes):
        raise TeacherError(
            f"predict returned a class that does not exist; labels are 0 … {classes - 1}"
        )
    return answer.astype(np.int64)


def probabilities(teacher: Any, X: ArrayLike, *, classes: int) -> NDArray[np.float64]:
    """Return ``predict_proba`` with a column for every class, also those the model never saw."""
    records = np.asarray(X)
    answer = guarded(
        "predict_proba",
        lambda: np.asarray(teacher.predict_proba(records), dtype=np.float64),
        private=False,
    )
    seen = np.asarray(getattr(teacher, "classes_", np.arange(classes)))
    if answer.shape != (len(records), len(seen)):
        raise TeacherError(
            f"predict_proba returned shape {answer.shape}; it must be ({len(records)}, {len(seen)})"
        )
    table = np.zeros((len(records), classes))
    table[:, checked_labels(seen, records=len(seen), classes=classes)] = answer
    return table


def guarded(name: str, call: Callable[[], Any], *, private: bool, silent: bool = True) -> Any:
    """Run a model's own code: its output is dropped, its exceptions become one sentence.

    A device that is out of memory is no model's fault: OutOfMemory is raised.
    """

    def called() -> Any:
        try:
            return call()
        except Exception as error:
            if not short_of_memory(error):
                raise
        raise out_of_memory()

    return run_untrusted(name, called, private=private, error=TeacherError, silent=silent)


# ------------------------------------------------------------------ families


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
        dropped, and with ``private`` errors name places in code only, as in :func:`train`. A device
        without memory for one of them is no teacher's failure: OutOfMemory is raised, and none is
        tried again.
    """
    invalid: dict[int, PateError] = {}
    members: list[tuple[Teacher, Shard] | None] = [None] * len(teachers)
    for place, (teacher, shard) in enumerate(zip(teachers, shards, strict=True)):
        if teacher is not None and shard is not None:
            try:
                members[place] = teacher, checked_shard(*shard)
            except PateError as error:
                invalid[place] = error
    found = _together_or_alone(
        members,
        seeds,
        together=lambda some: _fit_family(some, private=private),
        accept=lambda report: report,
        alone=lambda member: train(member[0], *member[1], private=private),
    )
    return [invalid.get(place, error) for place, error in enumerate(found)]


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
        As in :func:`predict_labels`: an invalid prediction never becomes a vote, and changes no
        other teacher's, not even its rounding: after a failure each teacher predicts in its place,
        as in :func:`train_many`.
    """
    records = np.asarray(X)
    return _together_or_alone(
        teachers,
        seeds,
        together=lambda some: _predict_family(some, records, private=private),
        accept=lambda answer: checked_labels(answer, records=len(records), classes=classes),
        alone=lambda each: predict_labels(each, records, classes=classes, private=private),
    )


def _together_or_alone(
    members: Sequence[Any],
    seeds: Sequence[int] | None,
    *,
    together: Callable[[Sequence[Any]], Any],
    accept: Callable[[Any], Any],
    alone: Callable[[Any], Any],
) -> list[Any]:
    """Return the answer or the error of each member: of all at once, in its place, or alone.

    ``together`` returns None where members cannot be taken together.
    """
    seeds = range(len(members)) if seeds is None else seeds
    with isolated_randomness(seeds[0]):
        answers = together(members)
    found: list[Any] = [None] * len(members)
    for place, member in enumerate(members):
        if member is None:
            continue
        mine = answers
        if mine is None:
            only = [member if other == place else None for other in range(len(members))]
            with isolated_randomness(seeds[0]):
                mine = together(only)
        try:
            if mine is not None:
                found[place] = accept(mine[place])
            else:
                with isolated_randomness(seeds[place]):
                    found[place] = alone(member)
        except OutOfMemory:
            raise
        except PateError as error:
            found[place] = error
    return found


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
    members: Sequence[tuple[Teacher, Shard] | None], *, private: bool
) -> list[PateError | None] | None:
    teachers = [member and member[0] for member in members]
    shards = [member and member[1] for member in members]
    reports = _call_family(teachers, "fit_many", shards, convert=list, private=private)
    if reports is None or len(reports) != len(teachers):
        return None
    if not all(each is None or isinstance(each, PateError) for each in reports):
        return None
    home = next(type(teacher).__module__ for teacher in teachers if teacher is not None)
    if private and not is_ours(home):  # its text may quote a record
        return [
            each and TeacherError(f"fit_many reported {type(each).__name__}") for each in reports
        ]
    return list(reports)


def _predict_family(
    teachers: Sequence[Teacher | None], records: NDArray[Any], *, private: bool
) -> NDArray[Any] | None:
    answers = _call_family(teachers, "predict_many", records, convert=np.asarray, private=private)
    return None if answers is None or answers.shape[:1] != (len(teachers),) else answers


def _call_family(
    teachers: Sequence[Teacher | None],
    method: str,
    argument: Any,
    *,
    convert: Callable[[Any], Any],
    private: bool,
) -> Any:
    """Return the answer of a family's own method; None if it fails, or there is no family."""
    cls: Any = next((type(teacher) for teacher in teachers if teacher is not None), None)
    call = getattr(cls, method, None)
    if len(teachers) < 2 or not callable(call):
        return None
    try:
        return guarded(method, lambda: convert(call(teachers, argument)), private=private)
    except OutOfMemory:
        raise
    except PateError:
        return None
