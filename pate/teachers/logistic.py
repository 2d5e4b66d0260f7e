"""``logistic``: multinomial logistic regression, many shards in one run of L-BFGS."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from pate._validate import check_positive, check_whole
from pate.teachers.linear import Array, LinearTeacher

_MEMORY = 8  # pairs of steps and gradient differences that L-BFGS keeps
_SUFFICIENT = 1e-4  # a step must achieve this share of the decrease that its slope predicts
_TINY = 1e-12  # relative to the features, added so that a Cholesky factor exists


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
