"""The noise of private convex learning, taken off the released weights again.

Each test compares the noise's squared length (or length) with its exact law, for noise that is
right, two thirds and three halves as large: all noise is in proportion to ``data_norm``, so a
``data_norm`` of 2/3 or 3/2 (with rows that keep every one of them) gives wrong noise. Right noise
is within 5 standard deviations but for one seed in 1.7 million; wrong noise is 14 or more away on
average, so being within 5 has a probability below 1e-9; that it is beyond 10 is asserted.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import kstest

from dpsgd.convex import (
    NoisyGradientDescent,
    ObjectivePerturbation,
    OutputPerturbation,
    perturbation,
)
from dpsgd.convex.estimator import spherical_noise
from dpsgd.convex.perturbation import calibrate_objective, calibrate_output
from pate.randomness import insecure_generator, secure_generator

COLUMNS = 2000  # each a draw of the noise
COUNT = 50
SIZES = pytest.mark.parametrize(
    "size", [1.0, pytest.param(2 / 3, id="too little"), pytest.param(3 / 2, id="too much")]
)

_draw = np.random.default_rng(21)
ROWS = _draw.normal(size=(COUNT, COLUMNS))
ROWS *= 0.6 / np.linalg.norm(ROWS, axis=1, keepdims=True)
LABELS = _draw.integers(2, size=COUNT)
SIGNED = ROWS * np.where(LABELS == 1, 1, -1)[:, None]


def fitted(kind, *, size, **given):
    usual = {"classes": [0, 1], "fit_intercept": False, "data_norm": size, "insecure_seed": 22}
    return kind(**usual | given).fit(ROWS, LABELS).coef_[0]


def minimiser(strength):
    """By Newton in the span of the records, written apart from the package."""
    inner = SIGNED @ SIGNED.T
    share = np.full(COUNT, 0.5)  # w = Σ shareᵢ uᵢ/(nΛ), shareᵢ = expit(−wᵀuᵢ)
    for _ in range(50):
        margins = inner @ share / (COUNT * strength)
        chance = expit(-margins)
        slope = np.eye(COUNT) + (chance * (1 - chance))[:, None] * inner / (COUNT * strength)
        share = share - np.linalg.solve(slope, share - chance)
    return share @ SIGNED / (COUNT * strength)


def holds(away, size):
    """Right noise lies near, wrong noise far away."""
    return away < 5 if size == 1 else away > 10


def gaussian_away(noise, sigma):
    """‖noise‖²/σ² is chi-square: mean d, variance 2d."""
    size = len(noise)
    return abs(float(noise @ noise) / sigma**2 - size) / math.sqrt(2 * size)


def spherical_away(noise, rate):
    """rate·‖noise‖ is Gamma(d): mean d, variance d."""
    size = len(noise)
    return abs(rate * float(np.linalg.norm(noise)) - size) / math.sqrt(size)


def output_noise(delta):
    return calibrate_output(
        epsilon=1.0, delta=delta, records=COUNT, regularisation=0.1, gradient_norm=1.0
    )


@SIZES
def test_output_perturbation_has_the_right_gaussian_noise(size):
    given = fitted(OutputPerturbation, size=size, delta=1e-5, regularisation=0.1)
    assert holds(gaussian_away(given - minimiser(0.1), output_noise(1e-5).sigma), size)


@SIZES
def test_output_perturbation_has_the_right_pure_noise(size):
    given = fitted(OutputPerturbation, size=size, regularisation=0.1)
    assert holds(spherical_away(given - minimiser(0.1), output_noise(0.0).rate), size)


def tilt_behind(weights, strength):
    """b from the weights: the objective's gradient is zero at them."""
    return SIGNED.T @ expit(-SIGNED @ weights) - COUNT * strength * weights


@SIZES
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_objective_perturbation_has_the_right_tilt(size, delta):
    """Λ is so large that the determinant's share of ε (κ = 1e-4) plays no part."""
    strength = 50.0
    noise = calibrate_objective(
        epsilon=1.0,
        delta=delta,
        records=COUNT,
        regularisation=strength,
        lipschitz=1.0,
        smoothness=0.25,
        row_norm=1.0,
    )
    given = fitted(ObjectivePerturbation, size=size, delta=delta, regularisation=strength)
    tilt = tilt_behind(given, strength)
    away = gaussian_away(tilt, noise.sigma) if delta else spherical_away(tilt, noise.rate)
    assert holds(away, size)


@SIZES
def test_objective_perturbation_covers_the_solver_with_the_right_noise(size, monkeypatch):
    """A solver that is as far off as it may be: its answer is 0, its tolerance a thousand."""
    monkeypatch.setattr(perturbation, "RELATIVE_TOLERANCE", 1e3)
    monkeypatch.setattr(perturbation, "minimise", lambda risk, tolerance: np.zeros(risk.size))
    given = fitted(ObjectivePerturbation, size=size, regularisation=50.0)
    tilt_rate = (0.99 - math.log1p(0.25 / (COUNT * 50.0))) / 2
    tolerance = 1e3 * (1 + COLUMNS / tilt_rate / COUNT)
    assert holds(spherical_away(given, 0.01 / (2 * tolerance / 50.0)), size)


@SIZES
def test_a_step_of_descent_has_the_right_noise(size):
    """One step from zero: weights = −(Σ gradients + noise)·rate/records."""
    model = NoisyGradientDescent(
        epsilon=1.0, delta=1e-5, classes=[0, 1], fit_intercept=False, data_norm=size,
        records=40, steps=1, radius=1e9, learning_rate=2.0, insecure_seed=23,
    ).fit(ROWS, LABELS)  # fmt: skip
    noise = -model.coef_[0] * 40 / 2.0 + SIGNED.sum(axis=0) / 2
    assert holds(gaussian_away(noise, model.calibration_.noise_multiplier), size)


def test_every_step_of_descent_draws_noise_of_its_own():
    """Without influence of the data (rows of zeros) T steps add up to T independent draws."""
    model = NoisyGradientDescent(
        epsilon=1.0, delta=1e-5, classes=[0, 1], fit_intercept=False, records=1, steps=9,
        radius=1e9, learning_rate=1.0, iterate="last", insecure_seed=24,
    ).fit(np.zeros_like(ROWS), LABELS)  # fmt: skip
    sigma = model.calibration_.noise_multiplier
    assert gaussian_away(model.coef_[0], 3 * sigma) < 5
    for wrong in (1, 9):  # noise drawn once, or the same noise nine times
        assert gaussian_away(model.coef_[0], wrong * sigma) > 10


@pytest.mark.parametrize("make", [lambda: insecure_generator(25), secure_generator])
@pytest.mark.parametrize("size", [1, 3])
def test_spherical_noise_has_the_law_of_its_density(make, size):
    """Kolmogorov–Smirnov of the length (Gamma) and, in three dimensions, of a coordinate of the
    direction (uniform). Fails right noise once in 1e9; lengths 2/3 and 3/2 as large always."""
    rng = make()
    noise = np.array([spherical_noise(size, rate=0.5, rng=rng) for _ in range(6000)])
    lengths = np.linalg.norm(noise, axis=1)
    assert kstest(0.5 * lengths, "gamma", args=(size,)).pvalue > 1e-9
    for wrong in (2 / 3, 3 / 2):
        assert kstest(0.5 * wrong * lengths, "gamma", args=(size,)).pvalue < 1e-9
    if size == 3:
        for column in (noise / lengths[:, None]).T:
            assert kstest((column + 1) / 2, "uniform").pvalue > 1e-9
