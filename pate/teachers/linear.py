"""Linear teachers: one score for each class, the largest wins; hundreds are trained at once.

A family of linear teachers trains in stacks of shards of equal size and votes through one matrix
product. numpy passes the matrices of a stack to LAPACK and BLAS one after another.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dposv  # here: threads are counted once it is loaded

from pate._validate import check_positive, check_whole
from pate.errors import PateError, TeacherError

Array = NDArray[np.float64]
Shard = tuple[ArrayLike, ArrayLike]

STACK_BYTES = 16 * 2**20  # of records, as double precision, in one stack
SCORE_BYTES = 4 * 2**20  # of scores in one matrix product


class LinearTeacher(abc.ABC):
    """Predicts the class of the largest ``X @ weights + intercept``; X is flattened to (n, d).

    A class its shard never saw has the intercept −∞ and is never predicted.

    Guarantees:
        A teacher's weights are, to the last bit, those it gets when trained alone: a stack holds
        shards of one size, without padding, and every matrix in it is worked on by itself. So not
        even rounding lets a record, or the size of a shard, reach another teacher.
    """

    def __init__(self, *, classes: int) -> None:
        self.classes = check_whole("classes", classes, least=1)
        self.weights: NDArray[np.float32] = np.zeros((0, classes), np.float32)
        self.intercept: NDArray[np.float32] = np.zeros(classes, np.float32)

    def fit(self, X: ArrayLike, y: ArrayLike) -> LinearTeacher:
        (error,) = self.fit_many([self], [(X, y)])
        if error is not None:
            raise error
        return self

    def decision(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the scores, (n, classes)."""
        scores: NDArray[np.float32] = self._records(X) @ self.weights + self.intercept
        return scores

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the class of the largest score; the first of equals."""
        return np.asarray(self.decision(X).argmax(axis=1), dtype=np.int64)

    def family(self) -> Hashable:
        """Return a key that teachers must share to be trained together."""
        return type(self), self.classes, self._settings()

    @classmethod
    def fit_many(
        cls, teachers: Sequence[LinearTeacher | None], shards: Sequence[Shard | None]
    ) -> list[PateError | None]:
        """Train teachers of one :meth:`family`; return an error or None for each."""
        found: list[PateError | None] = [None] * len(teachers)
        sizes: dict[tuple[int, int], list[int]] = {}
        given = {
            number: (teacher, shard)
            for number, (teacher, shard) in enumerate(zip(teachers, shards, strict=True))
            if teacher is not None and shard is not None
        }
        for number, (_, (X, _)) in given.items():
            records, *features = np.shape(X)
            sizes.setdefault((records, math.prod(features)), []).append(number)
        stacks = [
            (shape, part)
            for shape, numbers in sizes.items()
            for part in _parts(numbers, STACK_BYTES // (8 * max(1, math.prod(shape))))
        ]

        def fit(stack: tuple[tuple[int, int], list[int]]) -> None:
            shape, part = stack
            errors = _fit_stack([given[number] for number in part], shape=shape)
            for number, error in zip(part, errors, strict=True):
                found[number] = error

        _side_by_side(fit, stacks)
        return found

    @classmethod
    def predict_many(
        cls, teachers: Sequence[LinearTeacher | None], X: ArrayLike
    ) -> NDArray[np.int64]:
        """Return labels (teachers, n); the row of a missing teacher is meaningless.

        Guarantees:
            All scores come from one product, whose rounding follows from its shape and a teacher's
            place in it. A missing teacher keeps its place, so that it changes no other's vote.
        """
        present = [teacher for teacher in teachers if teacher is not None]
        labels = np.zeros((len(teachers), len(np.asarray(X))), np.int64)
        if not present:
            return labels
        records, classes = present[0]._records(X), present[0].classes
        shape = (records.shape[1], len(teachers), classes)
        weights, intercepts = np.zeros(shape, np.float32), np.zeros(shape[1:], np.float32)
        for place, teacher in enumerate(teachers):
            if teacher is not None:
                weights[:, place], intercepts[place] = teacher.weights, teacher.intercept
        table = weights.reshape(len(weights), -1)
        rows = max(1, SCORE_BYTES // (4 * len(teachers) * classes))

        def predict(start: int) -> None:
            scores = (records[start : start + rows] @ table).reshape(-1, *intercepts.shape)
            scores += intercepts
            labels[:, start : start + rows] = scores.argmax(axis=2).T

        _side_by_side(predict, range(0, len(records), rows))
        return labels

    @abc.abstractmethod
    def _settings(self) -> Hashable:
        """Return the parameters that decide what is learned."""

    @abc.abstractmethod
    def _solve(self, X: Array, targets: Array) -> tuple[Array, Array]:
        """Return weights (m, d, classes) and intercepts (m, classes) of m shards.

        ``X`` (m, n, d) has mean 0 in every shard and may be overwritten; ``targets``, of shape
        (m, n, classes), is 1 at the label and 0 elsewhere. Called on one teacher for its family.
        """

    def _records(self, X: ArrayLike) -> NDArray[np.float32]:
        records = np.asarray(X, dtype=np.float32)
        if records.ndim != 2:
            records = records.reshape(len(records), math.prod(records.shape[1:]))
        return records


def _side_by_side(work: Callable[[Any], None], pieces: Sequence[Any]) -> None:
    """Run each piece on one thread, as many at once as BLAS may use.

    So results do not depend on the number of threads, by which BLAS would round differently.
    """
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(user_api="blas")
    threads = max((each["num_threads"] for each in libraries.info()), default=1)
    with libraries.limit(limits=1):
        if min(threads, len(pieces)) < 2:
            for piece in pieces:
                work(piece)
            return
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(work, pieces):  # also raises what a piece raised
                pass


def _parts(numbers: list[int], size: int) -> Iterator[list[int]]:
    size = max(1, size)
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _fit_stack(
    given: Sequence[tuple[LinearTeacher, Shard]], *, shape: tuple[int, int]
) -> list[PateError | None]:
    teachers = [teacher for teacher, _ in given]
    classes = teachers[0].classes
    X: Array = np.empty((len(teachers), *shape))
    targets: Array = np.zeros((len(teachers), shape[0], classes))
    errors: list[PateError | None] = [None] * len(teachers)
    for place, (_, (records, labels)) in enumerate(given):
        X[place] = np.asarray(records).reshape(shape)
        known = np.asarray(labels)
        if shape[0] == 0 or not 0 <= int(known.min()) <= int(known.max()) < classes:
            errors[place] = TeacherError(f"a label does not exist; labels are 0 … {classes - 1}")
            continue
        targets[place, np.arange(shape[0]), known] = 1.0
    with np.errstate(all="ignore"):
        means = X.mean(axis=1)
        X -= means[:, None]
        weights, intercepts = teachers[0]._solve(X, targets)
        intercepts = intercepts - (means[:, None] @ weights)[:, 0]
    stored, starts = weights.astype(np.float32), intercepts.astype(np.float32)
    starts[~targets.any(axis=1)] = -np.inf
    seen = np.isfinite(starts) | ~targets.any(axis=1)
    fine = np.isfinite(stored).all(axis=(1, 2)) & seen.all(axis=1)
    for place, teacher in enumerate(teachers):
        if errors[place] is None and not fine[place]:
            errors[place] = TeacherError(
                "its weights are not finite; features must be finite numbers of moderate size"
            )
        if errors[place] is None:
            # Copies: a view would keep the whole stack in memory.
            teacher.weights, teacher.intercept = stored[place].copy(), starts[place].copy()
    return errors


@final
class RidgeTeacher(LinearTeacher):
    """Ridge regression from features to indicators of the classes.

    Minimises, over weights W and a free intercept, the sum over the shard's n records of
    |indicator − prediction|², plus λ|W|². λ is ``alpha`` times the mean squared distance of a
    record from the mean of its shard, so ``alpha`` means the same in any unit of the features.
    Nothing in it is random. The default suits features of some hundred dimensions and shards of 60
    to 240 records. With fewer records than features the n × n equations between records are
    solved, otherwise those between features.

    Parameters
    ----------
    classes : int
        The number of classes; labels are 0 … classes − 1.
    alpha : float
        The penalty, relative to the spread of the shard's records; positive.

    >>> X = np.array([[0.0, 1.0], [0.2, 0.9], [1.0, 0.1], [0.8, 0.0]])
    >>> RidgeTeacher(classes=3).fit(X, [2, 2, 0, 0]).predict([[0.1, 1.0], [1.0, 0.0]])
    array([2, 0])

    Guarantees:
        λ, like the weights, follows from the teacher's own shard alone.
    """

    def __init__(self, *, classes: int, alpha: float = 0.1) -> None:
        super().__init__(classes=classes)
        self.alpha = check_positive("alpha", alpha)

    def _settings(self) -> Hashable:
        return self.alpha

    def _solve(self, X: Array, targets: Array) -> tuple[Array, Array]:
        shares = targets.mean(axis=1)
        centred = targets - shares[:, None]
        across = X.swapaxes(1, 2)
        between_records = X.shape[1] <= X.shape[2]
        gram = X @ across if between_records else across @ X
        unit = np.trace(gram, axis1=1, axis2=2) / X.shape[1]
        diagonal = np.arange(gram.shape[1])
        # If all records are equal there is nothing to learn but the shares of classes.
        gram[:, diagonal, diagonal] += (self.alpha * np.where(unit > 0, unit, 1.0))[:, None]
        if between_records:
            return across @ _solved(gram, centred), shares
        return _solved(gram, across @ centred), shares


def _solved(matrices: Array, right: Array) -> Array:
    """Solve for symmetric positive definite matrices by Cholesky; NaN where one is not."""
    answers = np.empty_like(right)
    for matrix, side, answer in zip(matrices, right, answers, strict=True):
        # Transposed, a symmetric matrix is in the order LAPACK wants, and is not copied.
        _, found, info = dposv(matrix.T, side, lower=1, overwrite_a=1)
        answer[:] = found if info == 0 else np.nan
    return answers
