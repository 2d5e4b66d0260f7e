"""``ridge`` and ``logistic``: one score for each class, the largest wins; hundreds at once.

A family of linear teachers trains in stacks of shards of equal size and votes through one matrix
product. numpy passes the matrices of a stack to LAPACK and BLAS one after another.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
_MEMORY = 8  # pairs of steps and gradient differences that L-BFGS keeps
_SUFFICIENT = 1e-4  # a step must achieve this share of the decrease that its slope predicts
_TINY = 1e-12  # relative to the features, added so that a Cholesky factor exists


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


# ------------------------------------------------------------------ logistic regression


@final
class LogisticTeacher(LinearTeacher):
    """Multinomial logistic regression: cross entropy of the shard plus ½λ|W|², free intercept.

    λ is ``alpha`` times the mean squared distance of a record from the mean of its shard, as in
    ``ridge``. The solution is that of scikit-learn's ``LogisticRegression(C=1/λ)``, also where a
    shard holds two classes, which it penalises as one difference. A shard's iterations end when
    another step would gain less than about ``tol``² of the mean loss, or after ``max_iter``.
    Nothing in it is random.

    Parameters
    ----------
    classes : int
        The number of classes; labels are 0 … classes − 1.
    alpha : float
        The penalty, relative to the spread of the shard's records; positive.
    tol : float
        The tolerance; positive.
    max_iter : int
        The most iterations; 1 or more.

    >>> X = np.array([[0.0, 1.0], [0.2, 0.9], [1.0, 0.1], [0.8, 0.0]])
    >>> LogisticTeacher(classes=3).fit(X, [2, 2, 0, 0]).predict([[0.1, 1.0], [1.0, 0.0]])
    array([2, 0])
    """

    def __init__(
        self, *, classes: int, alpha: float = 0.03, tol: float = 5e-3, max_iter: int = 200
    ) -> None:
        super().__init__(classes=classes)
        self.alpha = check_positive("alpha", alpha)
        self.tol = check_positive("tol", tol)
        self.max_iter = check_whole("max_iter", max_iter, least=1)

    def _settings(self) -> Hashable:
        return self.alpha, self.tol, self.max_iter

    def _solve(self, X: Array, targets: Array) -> tuple[Array, Array]:
        seen = targets.any(axis=1)
        unit = np.square(X).sum(axis=(1, 2)) / X.shape[1]
        unit = np.where(unit > 0, unit, 1.0)
        # scikit-learn models two classes by one column of weights: on two columns w and −w the
        # same penalty is |2w|² = 2 (|w|² + |−w|²).
        penalty = np.where(seen.sum(axis=1) == 2, 2.0, 1.0) * self.alpha * unit
        factor = _rotated(X) if X.shape[1] < X.shape[2] else None
        problem = _Problem(
            X=X if factor is None else factor,
            targets=targets,
            unseen=np.where(seen, 0.0, -np.inf),
            penalty=penalty,
        )
        solution = _minimise(problem, tol=self.tol, max_iter=self.max_iter)
        weights = solution[:, :-1]
        if factor is not None:  # rotated back: the shortest weights with the same scores
            weights = X.swapaxes(1, 2) @ np.linalg.solve(factor.swapaxes(1, 2), weights)
        return weights, solution[:, -1]


def _rotated(X: Array) -> Array:
    """Return records (m, n, n) with the same inner products: n features in place of d > n.

    Neither the loss nor the penalty changes under a rotation of the features.
    """
    gram = X @ X.swapaxes(1, 2)
    diagonal = np.arange(gram.shape[1])
    size = np.trace(gram, axis1=1, axis2=2) / len(diagonal)
    gram[:, diagonal, diagonal] += (_TINY * size + np.finfo(float).tiny)[:, None]
    return np.asarray(np.linalg.cholesky(gram), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Problem:
    """m problems of one shape: weights and, in the last row, intercepts are (m, d + 1, classes)."""

    X: Array  # (m, n, d), of mean 0
    targets: Array  # (m, n, classes)
    unseen: Array  # (m, classes): −∞ for classes that are not there
    penalty: Array  # (m,)

    def take(self, those: NDArray[np.bool_]) -> _Problem:
        return _Problem(
            X=self.X[those],
            targets=self.targets[those],
            unseen=self.unseen[those],
            penalty=self.penalty[those],
        )

    def scores(self, w: Array) -> Array:
        table: Array = self.X @ w[:, :-1] + (w[:, -1] + self.unseen)[:, None]
        return table

    def value(self, w: Array) -> tuple[Array, Array]:
        """Return the mean loss with its penalty, (m,), and its gradient."""
        records = self.X.shape[1]
        scores = self.scores(w)
        chances, logs = _softmax(scores)
        own = np.where(self.targets > 0, scores, 0.0).sum(axis=2)
        strength = self.penalty / records
        loss = (logs - own).sum(axis=1) / records
        loss += 0.5 * strength * _dot(w[:, :-1], w[:, :-1])
        chances -= self.targets
        chances /= records
        gradient = np.empty_like(w)
        gradient[:, :-1] = self.X.swapaxes(1, 2) @ chances
        gradient[:, :-1] += strength[:, None, None] * w[:, :-1]
        gradient[:, -1] = chances.sum(axis=1)
        return loss, gradient

    def metric(self) -> Array:
        """Return the inverse of a bound on the second derivative, (m, d, d), equal for all classes.

        ½(XᵀX/n) + penalty is above the curvature of the loss everywhere (Böhning, 1992); L-BFGS
        learns the rest.
        """
        records, features = self.X.shape[1:]
        bound = self.X.swapaxes(1, 2) @ self.X / (2 * records)
        diagonal = np.arange(features)
        bound[:, diagonal, diagonal] += (self.penalty / records)[:, None]
        return np.linalg.inv(bound)


def _softmax(scores: Array) -> tuple[Array, Array]:
    """Return probabilities over the last axis, and the logarithm of the sum of exponentials."""
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - top)
    sums = powers.sum(axis=-1, keepdims=True)
    powers /= sums
    return powers, (np.log(sums) + top)[..., 0]


def _dot(a: Array, b: Array) -> Array:
    """Return inner products over all but the first axis; each row by itself."""
    product: Array = (a * b).reshape(len(a), -1).sum(axis=1)
    return product


def _minimise(problem: _Problem, *, tol: float, max_iter: int) -> Array:
    """Run L-BFGS on all problems at once; a converged one is removed and not touched again."""
    shape = (len(problem.X), problem.X.shape[2] + 1, problem.targets.shape[2])
    answer: Array = np.zeros(shape)
    active = np.arange(len(answer))
    w = answer.copy()
    loss, gradient = problem.value(w)
    metric = problem.metric()
    pairs: list[tuple[Array, Array, Array]] = []
    for _ in range(max_iter):
        step = _direction(gradient, pairs, metric)
        slope = _dot(gradient, step)
        going = -slope > tol**2
        if not going.all():
            answer[active[~going]] = w[~going]
            active, problem, metric = active[going], problem.take(going), metric[going]
            w, loss, gradient = w[going], loss[going], gradient[going]
            step, slope = step[going], slope[going]
            pairs = [(s[going], y[going], r[going]) for s, y, r in pairs]
        if not len(active):
            return answer
        w_next, loss_next, gradient_next = _search(problem, w, loss, step=step, slope=slope)
        s, y = w_next - w, gradient_next - gradient
        curvature = _dot(s, y)
        usable = curvature > 0  # otherwise the pair is left out: its weight is 0
        pairs.append((s, y, np.where(usable, 1.0 / np.where(usable, curvature, 1.0), 0.0)))
        del pairs[:-_MEMORY]
        w, loss, gradient = w_next, loss_next, gradient_next
    answer[active] = w
    return answer


def _direction(gradient: Array, pairs: list[tuple[Array, Array, Array]], metric: Array) -> Array:
    """Return the search direction: the two loops of L-BFGS, started from the metric."""
    q = gradient.copy()
    weights: list[Array] = []
    for s, y, r in reversed(pairs):
        weights.append(r * _dot(s, q))
        q -= weights[-1][:, None, None] * y
    step = np.empty_like(q)
    step[:, :-1] = metric @ q[:, :-1]
    step[:, -1] = 2 * q[:, -1]  # the bound on the intercepts' curvature is ½
    for (s, y, r), a in zip(pairs, reversed(weights), strict=True):
        step += (a - r * _dot(y, step))[:, None, None] * s
    return -step


def _search(
    problem: _Problem, w: Array, loss: Array, *, step: Array, slope: Array
) -> tuple[Array, Array, Array]:
    """Halve the steps of problems whose loss did not decrease enough."""
    length = np.ones(len(w))
    w_next = w + step
    loss_next, gradient_next = problem.value(w_next)
    for _ in range(30):
        allowed = loss + _SUFFICIENT * length * slope
        late = ~(loss_next <= allowed + 1e-15 * np.abs(loss))
        if not late.any():
            break
        length[late] *= 0.5
        w_next[late] = w[late] + length[late, None, None] * step[late]
        loss_next[late], gradient_next[late] = problem.take(late).value(w_next[late])
    return w_next, loss_next, gradient_next
