"""Output and objective perturbation: noise on a regularised minimiser, or inside its objective.

The proof of objective perturbation, for losses of a margin, one record replaced, any dimension:
write u = y·x for a record, so its loss is φ(wᵀu), with φ′ in [−L, 0], φ″ in [0, c] and ‖u‖ ≤ R.
Let w minimise

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpsgd.convex.estimator import (
    BoundedRecords,
    PrivateLinearClassifier,
    PrivateWeights,
    rounded,
    spherical_noise,
)
from dpsgd.convex.losses import (
    RELATIVE_TOLERANCE,
    FloatArray,
    MarginLoss,
    Margins,
    RegularisedRisk,
    as_loss,
    minimise,
    score_loss,
    signs_of,
)
from pate._validate import check_positive
from pate.accounting import ApproximateDP, Event, Gaussian, Guarantee, Neighbours, PureDP, Repeated
from pate.accounting.composition import SMALLEST_EPSILON, gaussian_delta, gaussian_noise
from pate.accounting.events import ForReplacement
from pate.errors import InvalidInput

_SOLVER_SHARE = 0.01  # of ε, for the distance between the solver's answer and the minimiser


class _PerturbedClassifier(PrivateLinearClassifier):
    """A regularised, smooth minimisation."""

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        regularisation: float = 0.01,
        loss: str | MarginLoss = "logistic",
        data_norm: float = 1.0,
        clip_rows: bool = False,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        insecure_seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.regularisation = regularisation
        self.loss = loss
        self.data_norm = data_norm
        self.clip_rows = clip_rows
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.insecure_seed = insecure_seed

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_positive("regularisation", self.regularisation)
        as_loss(self.loss, smooth=True)


# --- output perturbation --------------------------------------------------------------------------


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
class OutputPerturbation(_PerturbedClassifier):
    """Regularised linear classification; the minimiser is released with noise.

    Minimises (1/n) Σ loss + Λ/2 ‖w‖², where Λ is ``regularisation``. Two classes have one vector of
    weights. More have one each: softmax for the logistic loss, whose gradient has norm at most
    √2·‖x‖ (derived in :class:`dpsgd.convex.losses.Softmax`), and one against the rest, learnt
    jointly, for other losses (√K·L·‖x‖ for K classes).

    Parameters
    ----------
    delta : float, default=0.0
        δ of one call of ``fit``; 0 for pure differential privacy.
    regularisation : float, default=0.01
        Λ, above zero.
    loss : {'logistic', 'huber'} or MarginLoss, default='logistic'
        The loss of a margin; its derivative must be Lipschitz, so the plain hinge is refused.
    epsilon, classes, data_norm, clip_rows, fit_intercept, intercept_scaling, insecure_seed :
        As in :class:`dpsgd.convex.estimator.PrivateLinearClassifier`, like all attributes.

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
        (epsilon, delta), regularisation = self._target(), float(self.regularisation)
        noise = calibrate_output(
            epsilon=epsilon,
            delta=delta,
            records=len(records.rows),
            regularisation=regularisation,
            gradient_norm=loss.lipschitz * records.row_norm,
        )
        risk = RegularisedRisk(rows=records.rows, loss=loss, regularisation=regularisation)
        best = minimise(risk, tolerance=noise.tolerance)
        drawn, scale = _draw(risk.size, noise, rng)
        event: Event = PureDP(epsilon=epsilon)
        if noise.sigma is not None:
            event = Gaussian(noise_multiplier=noise.sigma / noise.sensitivity)
        return PrivateWeights(
            weights=rounded(best + drawn, spread=scale).reshape(loss.outputs, -1),
            events=(ForReplacement(event),),
            guarantee=Guarantee(epsilon=epsilon, delta=delta, neighbours=Neighbours.REPLACE_ONE),
            calibration=noise,
        )


# --- objective perturbation -----------------------------------------------------------------------


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
class ObjectivePerturbation(_PerturbedClassifier):
    """Regularised linear classification of a randomly tilted objective.

    Usually more accurate than output perturbation: the noise is inside, where the data's own
    curvature dampens it. Minimises (1/n) Σ loss + Λ′/2 ‖w‖² + bᵀw/n, with Λ′ ≥ ``regularisation``
    as small as ε allows (``calibration_`` holds it). With K > 2 classes each is learnt against the
    rest with (ε/K, δ/K), which add up by basic composition.

    Parameters
    ----------
    delta : float, default=0.0
        δ of one call of ``fit``; 0 for pure differential privacy.
    regularisation : float, default=0.01
        The smallest Λ to use, above zero; raised where ε is too small for it.
    loss : {'logistic', 'huber'} or MarginLoss, default='logistic'
        The loss of a margin; its derivative must be Lipschitz, so the plain hinge is refused.
    epsilon, classes, data_norm, clip_rows, fit_intercept, intercept_scaling, insecure_seed :
        As in :class:`dpsgd.convex.estimator.PrivateLinearClassifier`, like all attributes.

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
            regularisation=self.regularisation,
            lipschitz=loss.lipschitz,
            smoothness=loss.smoothness,
            row_norm=records.row_norm,
        )
        weights = [
            _tilted(records, Margins(loss, signs[:, [k]]), noise, rng) for k in range(outputs)
        ]
        each: Event = ForReplacement(
            PureDP(epsilon=epsilon) if delta == 0 else ApproximateDP(epsilon=epsilon, delta=delta)
        )
        return PrivateWeights(
            weights=np.stack(weights),
            events=(each if outputs == 1 else Repeated(each, outputs),),
            guarantee=Guarantee(
                epsilon=whole_epsilon, delta=whole_delta, neighbours=Neighbours.REPLACE_ONE
            ),
            calibration=noise,
        )

    def _probabilities(self, scores: FloatArray) -> FloatArray:
        each = np.maximum(expit(scores), np.finfo(float).tiny)
        return np.asarray(each / each.sum(axis=1, keepdims=True))


def _tilted(
    records: BoundedRecords,
    margins: Margins,
    noise: ObjectiveCalibration,
    rng: np.random.Generator,
) -> FloatArray:
    """Return the weights of one margin: tilt, minimise, cover the solver's distance, round."""
    count, columns = records.rows.shape
    tilt, scale = _draw(columns, noise, rng)
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


def _draw(
    size: int, noise: OutputCalibration | ObjectiveCalibration, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    """Draw the calibrated noise; return it with its scale, which is public."""
    if noise.sigma is not None:
        return rng.normal(scale=noise.sigma, size=size), noise.sigma
    assert noise.rate is not None
    return spherical_noise(size, rate=noise.rate, rng=rng), 1 / noise.rate
