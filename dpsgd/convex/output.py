"""Output perturbation: minimise, then add noise as large as one record can move the minimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from dpsgd.convex.estimator import (
    PerturbedClassifier,
    PrivateWeights,
    gaussian_noise_vector,
    rounded,
    spherical_noise,
)
from dpsgd.convex.inputs import BoundedRecords
from dpsgd.convex.losses import as_loss, score_loss
from dpsgd.convex.solver import RELATIVE_TOLERANCE, RegularisedRisk, minimise
from pate.accounting import Event, Gaussian, Guarantee, Neighbours, PureDP
from pate.accounting.composition import gaussian_noise
from pate.accounting.events import ForReplacement


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCalibration:
    """The public numbers behind the noise; one of ``rate`` and ``sigma`` is set."""

    tolerance: float  # τ: the gradient's norm at which the solver stops
    sensitivity: float  # how far apart two neighbours' approximate minimisers can lie
    rate: float | None  # δ = 0: noise of density ∝ exp(−rate·‖b‖)
    sigma: float | None  # δ > 0: Gaussian noise


def calibrate_output(
    *, epsilon: float, delta: float, records: int, regularisation: float, gradient_norm: float
) -> OutputCalibration:
    """Return the noise for a minimiser of ``records`` losses with gradients of norm at most G.

    Guarantees:
        * Chaudhuri, Monteleoni & Sarwate 2011, Lemma 7 and Corollary 8: the exact minimisers of
          neighbours (one record replaced) lie within 2G/(nΛ). For if F and F′ are their
          objectives, ∇F′ at F's minimiser is a difference of two records' gradients over n, at
          most 2G/n, and F′ is Λ-strongly convex.
        * The solver stops at ‖∇F‖ ≤ τ, which is within τ/Λ of the minimiser: 2τ/Λ is added.
        * δ = 0: their Theorem 6. δ > 0: the exact Gaussian calibration, Balle & Wang 2018,
          Theorem 8.

    >>> public = dict(records=1000, regularisation=0.01, gradient_norm=1.0)
    >>> round(calibrate_output(epsilon=1.0, delta=0.0, **public).sensitivity, 6)
    0.2
    """
    epsilon, delta = float(epsilon), float(delta)  # a NumPy single would round what follows
    regularisation, gradient_norm = float(regularisation), float(gradient_norm)
    tolerance = RELATIVE_TOLERANCE * gradient_norm
    sensitivity = 2 * (gradient_norm / records + tolerance) / regularisation
    pure = delta == 0
    return OutputCalibration(
        tolerance=tolerance,
        sensitivity=sensitivity,
        rate=epsilon / sensitivity if pure else None,
        sigma=None if pure else sensitivity * gaussian_noise(epsilon, delta=delta),
    )


@final
class OutputPerturbation(PerturbedClassifier):
    """Regularised linear classification; the minimiser is released with noise.

    Minimises (1/n) Σ loss + Λ/2 ‖w‖², where Λ is ``regularisation``. Two classes have one vector of
    weights. More have one each: softmax for the logistic loss, whose gradient has norm at most
    √2·‖x‖ (derived in :class:`dpsgd.convex.losses.Softmax`), and one against the rest, learnt
    jointly, for other losses (√K·L·‖x‖ for K classes).

    Parameters
    ----------
    epsilon : float, default=1.0
        ε of one call of ``fit``.
    delta : float, default=0.0
        δ of one call of ``fit``; 0 for pure differential privacy.
    classes : sequence of labels
        All possible labels, two or more. Public: they are never read off the data.
    regularisation : float, default=0.01
        Λ, above zero.
    loss : {'logistic', 'huber'} or MarginLoss, default='logistic'
        The loss of a margin; its derivative must be Lipschitz, so the plain hinge is refused.
    data_norm : float, default=1.0
        A public bound on the Euclidean norm of a row of features.
    clip_rows : bool, default=False
        Scale longer rows to ``data_norm``, when fitting and when predicting; otherwise a longer
        row is refused when fitting.
    fit_intercept : bool, default=True
        Learn an intercept, as the weight of an appended constant column.
    intercept_scaling : float, default=1.0
        The value of that column; it counts in the norm of a row.
    insecure_seed : int or None, default=None
        Draw the noise from this seed. Such a model is not private; for tests only.

    Attributes
    ----------
    coef_ : ndarray of shape (outputs, n_features)
        The released weights: one row for two classes, else one for each class.
    intercept_ : ndarray of shape (outputs,)
        The released intercepts; zeros without ``fit_intercept``.
    classes_ : ndarray
        The classes, sorted.
    n_features_in_ : int
        The number of features seen by ``fit``.
    guarantee_ : pate.accounting.Guarantee
        (ε, δ) of this fit, with the relation for which it holds.
    events_ : tuple of Event
        The accounting events of this fit, to compose with others.
    calibration_ : OutputCalibration
        The public numbers behind the noise.

    Guarantees:
        (ε, δ)-DP for replacing one record; the number of records is public. Chaudhuri, Monteleoni
        & Sarwate 2011, Algorithm 1 and Theorem 6; see :func:`calibrate_output`.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2)) / 4
    >>> y = (X @ [2.0, -1.0] > 0).astype(int)
    >>> model = OutputPerturbation(epsilon=1.0, classes=[0, 1], clip_rows=True).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), model.guarantee_.neighbours.value
    (True, 'replace-one')
    """

    def _learn(self, records: BoundedRecords, rng: np.random.Generator) -> PrivateWeights:
        loss = score_loss(records, as_loss(self.loss, smooth=True))
        (epsilon, delta), regularisation = self._target(), self._regularisation()
        noise = calibrate_output(
            epsilon=epsilon,
            delta=delta,
            records=len(records.rows),
            regularisation=regularisation,
            gradient_norm=loss.lipschitz * records.row_norm,
        )
        risk = RegularisedRisk(rows=records.rows, loss=loss, regularisation=regularisation)
        best = minimise(risk, tolerance=noise.tolerance)
        event: Event
        if noise.sigma is not None:
            event = Gaussian(noise_multiplier=noise.sigma / noise.sensitivity)
            drawn = gaussian_noise_vector(risk.size, sigma=noise.sigma, rng=rng)
            spread = noise.sigma
        else:
            assert noise.rate is not None
            event = PureDP(epsilon=epsilon)
            drawn = spherical_noise(risk.size, rate=noise.rate, rng=rng)
            spread = 1 / noise.rate
        weights = rounded(best + drawn, spread=spread)
        return PrivateWeights(
            weights=weights.reshape(loss.outputs, -1),
            events=(ForReplacement(event),),
            guarantee=Guarantee(epsilon=epsilon, delta=delta, neighbours=Neighbours.REPLACE_ONE),
            calibration=noise,
        )
