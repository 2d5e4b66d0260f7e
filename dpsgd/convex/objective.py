"""Objective perturbation: add a random linear term to the objective, then minimise.

The proof, for losses of a margin, one record replaced, any dimension: write u = y·x for a
record, so its loss is φ(wᵀu), with φ′ in [−L, 0], φ″ in [0, c] and ‖u‖ ≤ R. Let w minimise

    Σ φ(wᵀuᵢ) + (nΛ′/2) ‖w‖² + bᵀw,        so that  b = b_D(w) = −Σ φ′(wᵀuᵢ) uᵢ − nΛ′ w.

For given data w ↔ b is one to one and Lipschitz both ways, so w has the density
ν(b_D(w))·det A_D(w), where ν is the density of b and A_D = Σ φ″ uᵢuᵢᵀ + nΛ′ I (almost everywhere,
which is why kinks of φ′, as Huber's, do no harm). Between neighbours D and D′:

* *Determinants.* Without the record that differs, both A are one matrix B ⪰ nΛ′ I, and
  det A_D / det A_D′ = (1 + φ″ uᵀB⁻¹u) / (1 + φ″ u′ᵀB⁻¹u′) ≤ 1 + cR²/(nΛ′). Its logarithm is κ.
* *Noise, δ = 0.* v = b_D′(w) − b_D(w) is a difference of two gradients, ‖v‖ ≤ 2LR. With
  ν ∝ exp(−β‖b‖) the ratio of ν is at most exp(2LRβ). So ε = κ + 2LRβ.
* *Noise, δ > 0.* With ν = N(0, σ²I) the log-ratio of ν is g(v) = (2bᵀv + ‖v‖²)/(2σ²), and v
  depends on b: it is not one Gaussian mechanism. But v = a′u′ − au with a, a′ in [0, L], and g is
  convex in v, so g(v) ≤ max of g at 0, Lu′, −Lu and L(u′ − u): vectors that do not depend on b.
  Each alone is a Gaussian mechanism, of shift at most LR, LR and 2LR, and g(0) = 0. With δ_G the
  exact δ of a Gaussian mechanism (Balle & Wang 2018, Theorem 8) and ε′ = ε − κ ≥ 0,

      δ ≤ E[(1 − exp(ε′ − max g))₊] ≤ δ_G(2LR/σ, ε′) + 2 δ_G(LR/σ, ε′).

* *The solver.* It finds a point w̃ within r = τ/Λ′ of w. Given w, those of D and D′ lie within 2r
  of each other, so noise of rate ε₂/(2r) on w̃ costs ε₂ on top of w, which is not released
  (approximate minima perturbation, Iyengar et al. 2019, Algorithm 1, with noise for δ = 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import expit

from dpsgd.convex.estimator import (
    PerturbedClassifier,
    PrivateWeights,
    gaussian_noise_vector,
    rounded,
    spherical_noise,
)
from dpsgd.convex.inputs import BoundedRecords, FloatArray
from dpsgd.convex.losses import Margins, as_loss, signs_of
from dpsgd.convex.solver import RELATIVE_TOLERANCE, RegularisedRisk, minimise
from pate.accounting import ApproximateDP, Event, Guarantee, Neighbours, PureDP, Repeated
from pate.accounting.composition import SMALLEST_EPSILON, gaussian_delta, gaussian_noise
from pate.accounting.events import ForReplacement
from pate.errors import InvalidInput

_SOLVER_SHARE = 0.01  # of ε, for the distance between the solver's answer and the minimiser


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveCalibration:
    """The public numbers behind the noise; one of ``rate`` and ``sigma`` is set."""

    regularisation: float  # Λ′: what was asked for, or more where ε is too small for it
    determinant_epsilon: float  # κ
    tilt_epsilon: float  # ε′: what is left for the noise b
    rate: float | None  # δ = 0: b has density ∝ exp(−rate·‖b‖)
    sigma: float | None  # δ > 0: b ~ N(0, sigma²)
    output_epsilon: float  # ε₂


def calibrate_objective(
    *,
    epsilon: float,
    delta: float,
    records: int,
    regularisation: float,
    lipschitz: float,
    smoothness: float,
    row_norm: float,
) -> ObjectiveCalibration:
    """Return the noise of the linear term, and the regularisation that it needs.

    Guarantees:
        * The argument at the head of this module. It is Chaudhuri, Monteleoni & Sarwate 2011,
          Algorithm 2 and Theorem 9, with κ for their 2 log(1 + c/(nΛ)): leaving out the record
          that differs saves the factor 2. For δ > 0 the algorithm is that of Kifer, Smith &
          Thakurta 2012, Theorem 2; their constants are not used, since the step from a shift that
          depends on b to a Gaussian tail needs the argument above.
        * Where κ would take more than half of ε, Λ is raised (by public numbers only) until it
          takes half, as Algorithm 2 does; so ε′ is always above zero.

    >>> public = dict(records=1000, lipschitz=1.0, smoothness=0.25, row_norm=1.0)
    >>> found = calibrate_objective(epsilon=1.0, delta=0.0, regularisation=0.01, **public)
    >>> found.regularisation, round(found.determinant_epsilon, 4), round(1 / found.rate, 4)
    (0.01, 0.0247, 2.0719)
    """
    epsilon, delta = float(epsilon), float(delta)  # a NumPy single would round what follows
    regularisation, row_norm = float(regularisation), float(row_norm)
    lipschitz, smoothness = float(lipschitz), float(smoothness)
    output = _SOLVER_SHARE * epsilon
    main = epsilon - output
    bend = smoothness * row_norm**2 / records
    strength = max(regularisation, bend / math.expm1(min(main / 2, 700.0)))
    determinant = math.log1p(bend / strength)
    left = main - determinant
    shift = 2 * lipschitz * row_norm
    pure = delta == 0
    if not pure and left < SMALLEST_EPSILON:
        raise InvalidInput(
            f"epsilon leaves {left:g} for Gaussian noise, and below {SMALLEST_EPSILON:g} its δ is "
            "not computed exactly; raise epsilon, or set delta=0"
        )
    return ObjectiveCalibration(
        regularisation=strength,
        determinant_epsilon=determinant,
        tilt_epsilon=left,
        rate=left / shift if pure else None,
        sigma=None if pure else shift * _tilt_noise(left, delta=delta),
        output_epsilon=output,
    )


def tilt_delta(noise_multiplier: float, *, epsilon: float) -> float:
    """Return δ_G(2LR/σ, ε) + 2 δ_G(LR/σ, ε), with ``noise_multiplier`` = σ/(2LR)."""
    whole = gaussian_delta(noise_multiplier, epsilon=epsilon)
    return whole + 2 * gaussian_delta(2 * noise_multiplier, epsilon=epsilon)


def _tilt_noise(epsilon: float, *, delta: float) -> float:
    """Return the smallest noise multiplier with ``tilt_delta`` ≤ δ, from the safe side."""
    low = gaussian_noise(epsilon, delta=delta)  # without the two smaller shifts: too little
    high = gaussian_noise(epsilon, delta=delta / 3)  # as if all three were the larger: enough
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        enough = tilt_delta(middle, epsilon=epsilon) <= delta
        low, high = (low, middle) if enough else (middle, high)
    return high


@final
class ObjectivePerturbation(PerturbedClassifier):
    """Regularised linear classification of a randomly tilted objective.

    Usually more accurate than output perturbation: the noise is inside, where the data's own
    curvature dampens it. Minimises (1/n) Σ loss + Λ′/2 ‖w‖² + bᵀw/n, with Λ′ ≥ ``regularisation``
    as small as ε allows (``calibration_`` holds it). With K > 2 classes each is learnt against the
    rest with (ε/K, δ/K), which add up by basic composition.

    Parameters
    ----------
    epsilon : float, default=1.0
        ε of one call of ``fit``.
    delta : float, default=0.0
        δ of one call of ``fit``; 0 for pure differential privacy.
    classes : sequence of labels
        All possible labels, two or more. Public: they are never read off the data.
    regularisation : float, default=0.01
        The smallest Λ to use, above zero; raised where ε is too small for it.
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
    calibration_ : ObjectiveCalibration
        The public numbers behind the noise.

    Guarantees:
        (ε, δ)-DP for replacing one record; the number of records is public. See
        :func:`calibrate_objective` for theorems and proof. The loss must have a Lipschitz
        derivative: the plain hinge is refused.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2)) / 4
    >>> y = (X @ [2.0, -1.0] > 0).astype(int)
    >>> model = ObjectivePerturbation(epsilon=1.0, classes=[0, 1], clip_rows=True).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), model.guarantee_.delta
    (True, 0.0)
    """

    def _learn(self, records: BoundedRecords, rng: np.random.Generator) -> PrivateWeights:
        loss, signs = as_loss(self.loss, smooth=True), signs_of(records)
        outputs = signs.shape[1]
        whole_epsilon, whole_delta = self._target()
        epsilon, delta = whole_epsilon / outputs, whole_delta / outputs
        noise = calibrate_objective(
            epsilon=epsilon,
            delta=delta,
            records=len(records.rows),
            regularisation=self._regularisation(),
            lipschitz=loss.lipschitz,
            smoothness=loss.smoothness,
            row_norm=records.row_norm,
        )
        weights = np.stack([
            _perturbed(records, Margins(loss, signs[:, [k]]), noise, rng=rng)
            for k in range(outputs)
        ])  # fmt: skip
        each: Event = ForReplacement(
            PureDP(epsilon=epsilon) if delta == 0 else ApproximateDP(epsilon=epsilon, delta=delta)
        )
        return PrivateWeights(
            weights=weights,
            events=(each if outputs == 1 else Repeated(each, outputs),),
            guarantee=Guarantee(
                epsilon=whole_epsilon, delta=whole_delta, neighbours=Neighbours.REPLACE_ONE
            ),
            calibration=noise,
        )

    def _probabilities(self, scores: FloatArray) -> FloatArray:
        each = np.maximum(expit(scores), np.finfo(float).tiny)
        return np.asarray(each / each.sum(axis=1, keepdims=True))


def _perturbed(
    records: BoundedRecords,
    margins: Margins,
    noise: ObjectiveCalibration,
    *,
    rng: np.random.Generator,
) -> FloatArray:
    """Return the weights of one margin: tilt, minimise, cover the solver's distance, round."""
    count, columns = records.rows.shape
    if noise.sigma is not None:
        tilt = gaussian_noise_vector(columns, sigma=noise.sigma, rng=rng)
        scale = noise.sigma
    else:
        assert noise.rate is not None
        tilt = spherical_noise(columns, rate=noise.rate, rng=rng)
        scale = 1 / noise.rate
    typical = scale * columns / count  # public: no less than the mean length of tilt/n
    tolerance = RELATIVE_TOLERANCE * (margins.lipschitz * records.row_norm + typical)
    risk = RegularisedRisk(
        rows=records.rows, loss=margins, regularisation=noise.regularisation, tilt=tilt / count
    )
    found = minimise(risk, tolerance=tolerance)
    apart = 2 * tolerance / noise.regularisation
    cover = spherical_noise(columns, rate=noise.output_epsilon / apart, rng=rng)
    steepest = noise.regularisation + float(margins.loss.smoothness) * records.row_norm**2
    return rounded(found + cover, spread=scale / (count * steepest))
