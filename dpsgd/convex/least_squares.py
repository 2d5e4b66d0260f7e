"""Least squares from noised sums: XᵀX and XᵀY are released once, and weights follow from them.

Rows are bounded in norm, so one Gaussian mechanism covers both sums whatever the number of classes
and of records: no steps, no lots, no learning rate. Where ε is small, or records are few beside the
features, that is the strongest linear model here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsgd.convex.estimator import (
    BoundedRecords,
    PrivateLinearClassifier,
    PrivateWeights,
    rounded,
    scaled_rows,
)
from dpsgd.convex.losses import FloatArray
from dpsgd.pca import LARGEST_WIDTH
from pate._validate import check_delta, check_positive
from pate.accounting import Guarantee, Neighbours
from pate.accounting.calibrate import dpsgd_step
from pate.accounting.composition import gaussian_noise
from pate.errors import InvalidInput

SHARE = 0.25  # of the squared sensitivity, for XᵀX
RIDGE = 0.5  # over the spectral norm of the noise of XᵀX
INTERCEPT = 0.3  # the constant column over the norm of a row of features

_GRID = 1 << 14  # coordinates of a row over its norm are whole multiples of 1/_GRID
_CHUNK = 1 << 20  # numbers of a table converted at a time


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SquaresCalibration:
    """The public numbers behind the noise; rows count in units of their largest norm."""

    noise_multiplier: float  # of both sums together, whose sensitivity is 1 after weighing
    products_sigma: float  # of a diagonal entry of XᵀX; off the diagonal it is 1/√2 of that
    targets_sigma: float  # of an entry of XᵀY
    ridge: float  # λ, added to every eigenvalue


def calibrate_squares(
    noise_multiplier: float,
    *,
    columns: int,
    classes: int,
    share: float = SHARE,
    ridge: float = RIDGE,
) -> SquaresCalibration:
    """Return the noise of each sum, and the ridge that suits it, from public numbers alone.

    Guarantees:
        A row x of norm at most 1 with the target y, a one-hot vector of K classes less its mean
        1/K, so that ‖y‖² = 1 − 1/K, adds xxᵀ to XᵀX and xyᵀ to XᵀY. Let s = ``share``. The
        vector of √s·xxᵀ (its diagonal, and √2 times what is above it, whose norm is that of the
        matrix) and of √((1 − s)/(1 − 1/K))·xyᵀ has the squared norm

            s·‖x‖⁴ + (1 − s)·‖x‖² ≤ 1,

        with equality at ‖x‖ = 1. So its sum over records has L2 sensitivity 1 where one is added or
        removed, and N(0, noise_multiplier²) on each coordinate is one Gaussian mechanism. Divided
        by the factors again, that is the noise stated here. (Sufficient statistics: Vu & Slavković
        2009; with a ridge that follows from the noise: Wang 2018, "AdaSSP".)

    >>> public = calibrate_squares(3.0, columns=50, classes=2, share=0.5)
    >>> round(public.products_sigma, 3), round(public.targets_sigma, 3), round(public.ridge, 2)
    (4.243, 3.0, 21.21)
    """
    products = noise_multiplier / math.sqrt(share)
    return SquaresCalibration(
        noise_multiplier=noise_multiplier,
        products_sigma=products,
        targets_sigma=noise_multiplier * math.sqrt((1 - 1 / classes) / (1 - share)),
        # Wigner 1958: the spectral norm of such noise is about σ·√(2·columns).
        ridge=ridge * products * math.sqrt(2 * columns),
    )


def sum_squares(
    rows: NDArray[Any],
    labels: NDArray[Any],
    *,
    classes: int,
    norm: float,
    intercept: float | None = None,
    weights: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return XᵀX and XᵀY of rows over their largest norm; PRIVATE.

    ``norm`` bounds a row of features, and longer ones are scaled to it; ``intercept`` is the value
    of a column appended to them. ``weights`` are 1/m for each of the m records of a user.

    Guarantees:
        * Each row is scaled on its own. One that is not finite counts as zero, intercept included.
        * Coordinates are cut towards zero to multiples of 2⁻¹⁴: a squared norm in units of the grid
          is a whole number below 2²⁸·(1 + 10⁻¹²) < 2²⁸ + 1, so the norm is at most 1 to the last
          bit. Sums of up to 2²⁵ records without weights are exact before they are centred: no
          rounding depends on who else is in the data.
        * With ``weights``, a user adds the mean of what their records would add, whose norm is
          at most the largest of theirs: the sensitivity of one record is that of one user.
    """
    flat = rows.reshape(len(rows), -1)
    columns = flat.shape[1] + (intercept is not None)
    if columns > LARGEST_WIDTH:
        raise InvalidInput(
            f"rows have {columns} features, and least squares takes at most {LARGEST_WIDTH}, for "
            "a matrix of their products; reduce them first"
        )
    longest = math.hypot(norm, intercept or 0.0)
    products, sums = np.zeros((columns, columns)), np.zeros((columns, classes))
    step = max(1, _CHUNK // columns)
    for start in range(0, len(flat), step):
        chunk = slice(start, start + step)
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would reveal a record
            part = np.array(flat[chunk], dtype=np.float64)
        finite = np.isfinite(part).all(axis=1)
        part[~finite] = 0.0
        part = scaled_rows(part, norm)
        if intercept is not None:
            part = np.column_stack([part, np.where(finite, intercept, 0.0)])
        part = np.trunc(part * (_GRID / longest))
        targets = np.eye(classes)[labels[chunk]]
        if weights is None:
            products += part.T @ part
            sums += part.T @ targets
        else:
            products += (part * weights[chunk, None]).T @ part
            sums += (part * weights[chunk, None]).T @ targets
    sums /= _GRID
    return products / _GRID**2, sums - sums.mean(axis=1, keepdims=True)


def noised_weights(
    products: FloatArray,
    targets: FloatArray,
    public: SquaresCalibration,
    *,
    rng: np.random.Generator,
) -> FloatArray:
    """Return weights (classes, columns) that sum to zero over classes, from sums plus noise.

    The arguments are overwritten.

    Guarantees:
        The noise is that of :func:`calibrate_squares`, drawn once. The noised sums are rounded to a
        public grid, some millionth of the noise, against what low bits of doubles can reveal
        (:func:`dpsgd.convex.estimator.rounded`); all that follows is computed from them alone.
    """
    diagonal, beside = public.products_sigma, public.products_sigma / math.sqrt(2)
    for i in range(len(products)):
        products[i, i] += diagonal * rng.standard_normal()
        products[i, i + 1 :] += beside * rng.standard_normal(len(products) - i - 1)
        products[i, i:] = rounded(products[i, i:], spread=beside)
        products[i + 1 :, i] = products[i, i + 1 :]
    targets += public.targets_sigma * rng.standard_normal(targets.shape)
    weights = ridge_weights(
        products, rounded(targets, spread=public.targets_sigma), ridge=public.ridge
    )
    return np.asarray(weights - weights.mean(axis=0))


def ridge_weights(products: FloatArray, targets: FloatArray, *, ridge: float) -> FloatArray:
    """Return ((XᵀX)₊ + ridge·I)⁻¹ XᵀY, transposed; negative eigenvalues, which are noise, are zero.

    >>> ridge_weights(np.diag([3.0, -1.0]), np.array([[8.0], [2.0]]), ridge=1.0)
    array([[2., 2.]])
    """
    values, vectors = np.linalg.eigh(products)
    scaled = (vectors.T @ targets) / (np.maximum(values, 0.0) + ridge)[:, None]
    return np.asarray((vectors @ scaled).T)


@final
class NoisyLeastSquares(PrivateLinearClassifier):
    """Least squares on centred one-hot targets, from noised sums of products.

    Releases XᵀX and XᵀY once, with Gaussian noise, and solves for the weights with a ridge that
    follows from the noise. For small ε this is the most accurate learner here; it
    needs no tuning, and its cost does not grow with the number of classes.

    Parameters
    ----------
    delta : float, default=1e-5
        δ of one call of ``fit``; above zero.
    share : float, default=0.25
        The part of the squared sensitivity that goes to XᵀX, between 0 and 1. A smaller one makes
        XᵀY more exact: better where records are few.
    ridge : float, default=0.5
        The ridge, over the spectral norm that the noise of XᵀX has about.
    intercept_scaling : float, default=0.3
        The value of the constant column; it counts in the norm of a row. A smaller one leaves
        more of that norm to the features, and is better where classes are about as frequent.
    epsilon, classes, data_norm, clip_rows, fit_intercept, insecure_seed :
        As in :class:`dpsgd.convex.estimator.PrivateLinearClassifier`, like all attributes.

    Guarantees:
        (ε, δ)-DP with δ > 0 for adding or removing one record: one Gaussian mechanism of L2
        sensitivity 1 (proved at :func:`calibrate_squares`) with the exact noise of Balle & Wang
        2018, Theorem 8. Everything else is post-processing. Neither noise nor ridge depends on
        the number of records.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2)) / 4
    >>> y = (X @ [2.0, -1.0] > 0).astype(int)
    >>> model = NoisyLeastSquares(epsilon=0.5, classes=[0, 1], clip_rows=True).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), model.guarantee_.neighbours.value
    (True, 'add-remove')
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        share: float = SHARE,
        ridge: float = RIDGE,
        data_norm: float = 1.0,
        clip_rows: bool = False,
        fit_intercept: bool = True,
        intercept_scaling: float = INTERCEPT,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.share = share
        self.ridge = ridge
        self.data_norm = data_norm
        self.clip_rows = clip_rows
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.insecure_seed = insecure_seed

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_delta(self.delta)
        check_positive("share", self.share)
        check_positive("ridge", self.ridge)
        if not self.share < 1:
            raise InvalidInput(f"share is {self.share}; it must lie between 0 and 1")

    def _learn(self, records: BoundedRecords, rng: np.random.Generator) -> PrivateWeights:
        epsilon, delta = self._target()
        classes, columns = len(records.classes), records.rows.shape[1]
        public = calibrate_squares(
            gaussian_noise(epsilon, delta=delta),
            columns=columns,
            classes=classes,
            share=float(self.share),
            ridge=float(self.ridge),
        )
        products, targets = sum_squares(
            records.rows, records.labels, classes=classes, norm=records.row_norm
        )
        weights = noised_weights(products, targets, public, rng=rng) / records.row_norm
        return PrivateWeights(
            weights=weights[1:] - weights[:1] if classes == 2 else weights,
            events=(dpsgd_step(1.0, public_rate=True)(public.noise_multiplier),),
            guarantee=Guarantee(epsilon=epsilon, delta=delta, neighbours=Neighbours.ADD_REMOVE),
            calibration=public,
        )

    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Return the scores plus 1/K, cut at zero, as probabilities of the K classes."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([-scores, scores]) / 2
        chances = np.maximum(scores + 1 / scores.shape[1], 0.0)
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))
