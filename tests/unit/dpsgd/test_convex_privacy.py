"""The bounds of convex learning against brute force: minimisers, densities, hockey sticks.

The brute force is written apart from the package: losses by their values, minimisers by Newton on
weighted distinct records, densities by change of variables on a grid.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal

from dpsgd.convex import Huber, Logistic, NoisyGradientDescent
from dpsgd.convex.descent import gradient_sum
from dpsgd.convex.estimator import BoundedRecords, scaled_rows
from dpsgd.convex.losses import Margins, RegularisedRisk, minimise, score_loss
from dpsgd.convex.perturbation import calibrate_objective, calibrate_output, tilt_delta
from pate.accounting.composition import gaussian_delta
from pate.errors import ConditionsFail

LOSSES = {"logistic": Logistic(), "huber": Huber(width=0.3)}


def records(rows, labels, classes):
    return BoundedRecords(
        rows=np.asarray(rows, dtype=float),
        labels=np.asarray(labels),
        classes=np.arange(classes),
        row_norm=1.0,
    )


def some_records(seed, *, count, columns, classes):
    rng = np.random.default_rng(seed)
    rows = scaled_rows(rng.normal(size=(count, columns)), 1.0)
    return records(rows, rng.integers(classes, size=count), classes)


def with_one_replaced(data, seed):
    """A neighbour: any place, any row of norm at most one (often exactly one), any label."""
    rng = np.random.default_rng(seed)
    rows, labels = data.rows.copy(), data.labels.copy()
    place = rng.integers(len(rows))
    rows[place] = rng.choice(
        [-rows[place], scaled_rows(9 * rng.normal(size=(1, rows.shape[1])), 1.0)[0]]
    )
    labels[place] = rng.integers(len(data.classes))
    return records(rows, labels, len(data.classes))


def solve(data, loss, *, regularisation, tolerance=1e-11, tilt=None):
    risk = RegularisedRisk(
        rows=data.rows, loss=score_loss(data, loss), regularisation=regularisation, tilt=tilt
    )
    return minimise(risk, tolerance=tolerance)


def loss_value(flat, data, name, regularisation):
    """The objective by its value, from the definitions in the papers."""
    binary = len(data.classes) == 2
    scores = data.rows @ flat.reshape(1 if binary else len(data.classes), -1).T
    if name == "logistic" and not binary:
        each = logsumexp(scores, axis=1) - scores[np.arange(len(scores)), data.labels]
    else:
        positive = 1 if binary else np.arange(len(data.classes))
        margins = np.where(data.labels[:, None] == positive, 1, -1) * scores
        if name == "logistic":
            each = np.logaddexp(0, -margins).sum(axis=1)
        else:
            h = 0.3
            middle = (1 + h - margins) ** 2 / (4 * h)
            each = np.where(margins > 1 + h, 0, np.where(margins < 1 - h, 1 - margins, middle)).sum(
                axis=1
            )
    return each.mean() + regularisation / 2 * flat @ flat


# --- the solver ---------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_the_solver_finds_what_a_general_optimiser_finds(name, classes):
    data = some_records(1, count=40, columns=3, classes=classes)
    found = solve(data, LOSSES[name], regularisation=0.02)
    other = minimize(
        loss_value, np.zeros_like(found), args=(data, name, 0.02), method="BFGS", tol=1e-9
    ) if name == "logistic" else minimize(
        loss_value, np.zeros_like(found), args=(data, name, 0.02), method="Powell",
        options={"xtol": 1e-10, "ftol": 1e-15, "maxiter": 200_000},
    )  # fmt: skip
    assert loss_value(found, data, name, 0.02) <= other.fun + 1e-13
    np.testing.assert_allclose(found, other.x, atol=2e-6 if name == "logistic" else 2e-4)


@settings(max_examples=30)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["logistic", "huber"]),
    st.sampled_from([2, 4]),
    st.floats(-5, 1),
    st.floats(-3, 4),
)
def test_the_solver_reaches_its_tolerance_far_and_wide(seed, name, classes, log_reg, log_tilt):
    """Regularisation from 1e-5 to 10 and tilts from 1e-3 to 1e4 times a record's gradient."""
    data = some_records(seed, count=30, columns=4, classes=classes)
    loss = score_loss(data, LOSSES[name])
    tilt = 10**log_tilt * np.random.default_rng(seed).normal(size=loss.outputs * 4)
    tolerance = 1e-11 * (1 + 4 * 10**log_tilt)
    risk = RegularisedRisk(rows=data.rows, loss=loss, regularisation=10**log_reg, tilt=tilt)
    found = minimise(risk, tolerance=tolerance)
    assert np.linalg.norm(risk.gradient(found)) <= tolerance


def test_a_solver_that_cannot_reach_its_tolerance_refuses():
    data = some_records(3, count=30, columns=4, classes=2)
    with pytest.raises(ConditionsFail, match="nothing was released"):
        solve(data, Logistic(), regularisation=0.01, tolerance=1e-30)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(-8, -1), st.floats(-3, 0))
def test_where_it_stops_the_minimiser_is_near(seed, log_tolerance, log_reg):
    """Within τ/Λ, by one dimension's root."""
    data = some_records(seed, count=12, columns=1, classes=2)
    signed = data.rows[:, 0] * np.where(data.labels == 1, 1, -1)
    strength = 10**log_reg

    def slope(w):
        return -(signed * expit(-w * signed)).mean() + strength * w

    exact = brentq(slope, -2 / strength, 2 / strength, xtol=1e-15, rtol=1e-14)
    found = solve(data, Logistic(), regularisation=strength, tolerance=10**log_tolerance)
    assert abs(found[0] - exact) <= 10**log_tolerance / strength


# --- how far one record moves the minimiser ------------------------------------------------------


@settings(max_examples=150)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["logistic", "huber"]),
    st.integers(2, 4),
    st.integers(1, 4),
    st.floats(-4, 1),
)
def test_no_neighbour_moves_the_minimiser_beyond_the_bound(seed, name, classes, columns, log_reg):
    data = some_records(seed, count=8, columns=columns, classes=classes)
    other = with_one_replaced(data, seed + 1)
    strength = 10**log_reg
    bound = calibrate_output(
        epsilon=1.0,
        delta=0.0,
        records=8,
        regularisation=strength,
        gradient_norm=score_loss(data, LOSSES[name]).lipschitz,
    )
    moved = np.linalg.norm(
        solve(data, LOSSES[name], regularisation=strength, tolerance=bound.tolerance)
        - solve(other, LOSSES[name], regularisation=strength, tolerance=bound.tolerance)
    )
    assert moved <= bound.sensitivity


def far_apart(count=400_000, reach=10.0, tilt=0.33):
    """Neighbours near the worst case: the crowd draws w far out along the first axis; the record
    that differs is badly misclassified, and pushes across, once up and once down."""
    strength = 1 / (1 + math.exp(reach)) / reach  # so that w lies near (reach, 0)
    crowd = np.tile([1.0, 0.0], (count - 1, 1))
    across = math.sqrt(1 - tilt**2)
    up = np.vstack([crowd, [[-tilt, across]]])
    down = np.vstack([crowd, [[-tilt, -across]]])
    labels = np.ones(count, dtype=int)
    return records(up, labels, 2), records(down, labels, 2), strength


def test_the_bound_on_the_minimiser_is_nearly_reached():
    up, down, strength = far_apart()
    moved = np.linalg.norm(
        solve(up, Logistic(), regularisation=strength)
        - solve(down, Logistic(), regularisation=strength)
    )
    bound = 2 / (400_000 * strength)
    assert 0.88 * bound < moved <= bound


@pytest.mark.parametrize(("size", "private"), [(1.0, True), (2 / 3, False)])
def test_output_noise_of_two_thirds_breaks_epsilon(size, private):
    """The largest log-ratio of exp(−rate·‖w − minimiser‖) is rate times the distance."""
    up, down, strength = far_apart()
    noise = calibrate_output(
        epsilon=1.0, delta=0.0, records=400_000, regularisation=strength, gradient_norm=1.0
    )
    centres = [solve(d, Logistic(), regularisation=strength) for d in (up, down)]
    direction = centres[1] - centres[0]
    places = centres[0] + np.linspace(-3, 3, 601)[:, None] * direction
    lengths = [np.linalg.norm(places - centre, axis=1) for centre in centres]
    largest = np.abs(noise.rate / size * (lengths[0] - lengths[1])).max()
    assert (largest <= 1.0) == private
    assert largest > 0.88


def test_softmax_gradients_are_bounded_by_root_two_and_come_near_it():
    rng = np.random.default_rng(5)
    data = some_records(5, count=4000, columns=3, classes=4)
    loss = score_loss(data, Logistic())
    lengths = np.linalg.norm(loss.slopes(20 * rng.normal(size=(4000, 4))), axis=1)
    assert 0.999 * loss.lipschitz < lengths.max() <= loss.lipschitz * (1 + 1e-12)
    assert loss.lipschitz == math.sqrt(2)


# --- objective perturbation by exact densities ----------------------------------------------------


class Tilted:
    """The exact density of objective perturbation's minimiser, for weighted distinct u = y·x."""

    def __init__(self, distinct, weights, *, strength, loss):
        self.distinct = np.asarray(distinct, dtype=float)
        self.weights = np.asarray(weights, dtype=float)
        self.pull = self.weights.sum() * strength
        self.loss = loss

    def tilt(self, w):
        slopes = self.loss.derivative(w @ self.distinct.T) * self.weights
        return -slopes @ self.distinct - self.pull * w

    def log_det(self, w):
        bends = self.loss.curvature(w @ self.distinct.T) * self.weights
        matrices = np.einsum("gk,ki,kj->gij", bends, self.distinct, self.distinct)
        return np.linalg.slogdet(matrices + self.pull * np.eye(self.distinct.shape[1]))[1]


def calibrated(count, strength, *, epsilon, delta, smoothness=0.25):
    found = calibrate_objective(
        epsilon=epsilon,
        delta=delta,
        records=count,
        regularisation=strength,
        lipschitz=1.0,
        smoothness=smoothness,
        row_norm=1.0,
    )
    return found, epsilon - found.output_epsilon


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["logistic", "huber"]),
    st.integers(1, 2),
    st.floats(-4, 0),
    st.floats(-1.5, 1),
)
def test_density_ratios_of_neighbours_stay_within_epsilon(seed, name, columns, log_reg, log_eps):
    """δ = 0, on a grid of weights; ε from 0.03 to 10, also where Λ has to be raised."""
    loss, rng = LOSSES[name], np.random.default_rng(seed)
    shared = scaled_rows(rng.normal(size=(5, columns)), 1.0)
    first, second = scaled_rows(9 * rng.normal(size=(2, columns)), 1.0)
    noise, budget = calibrated(
        6, 10**log_reg, epsilon=10**log_eps, delta=0.0, smoothness=loss.smoothness
    )
    assert noise.regularisation >= 10**log_reg
    assert noise.tilt_epsilon > 0
    w = rng.normal(size=(3000, columns)) * 10 ** rng.uniform(-2, 2, size=(3000, 1))
    logs = []
    for record in (first, second):
        data = Tilted(
            np.vstack([shared, record]), np.ones(6), strength=noise.regularisation, loss=loss
        )
        logs.append(data.log_det(w) - noise.rate * np.linalg.norm(data.tilt(w), axis=1))
    assert np.abs(logs[0] - logs[1]).max() <= budget * (1 + 1e-9)


@pytest.mark.parametrize(("size", "private"), [(1.0, True), (2 / 3, False)])
def test_the_pure_bound_is_nearly_reached_and_two_thirds_of_the_noise_break_it(size, private):
    """At w = (−10, 0) the crowd turns b across the axis; the two records push up and down."""
    count, reach, lean, tilt = 1000, 10.0, 0.1, 0.35
    pull = 1 / (1 + math.exp(lean * reach))
    strength = lean * pull / reach
    noise, budget = calibrated(count, strength, epsilon=1.0, delta=0.0)
    assert noise.regularisation == strength
    across, w = math.sqrt(1 - tilt**2), np.array([[-reach, 0.0]])
    logs = []
    for side in (across, -across):
        data = Tilted(
            [[-lean, math.sqrt(1 - lean**2)], [tilt, side]],
            [count - 1, 1],
            strength=strength,
            loss=Logistic(),
        )
        rate = noise.rate / size
        logs.append(float(data.log_det(w)[0] - rate * np.linalg.norm(data.tilt(w))))
    assert (abs(logs[0] - logs[1]) <= budget) == private
    assert abs(logs[0] - logs[1]) > 0.8 * budget


@pytest.mark.parametrize("size", [1.0, 2 / 3])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (1.0, 0.01), (2.0, 0.001)])
def test_the_hockey_stick_of_the_gaussian_tilt_stays_within_delta(epsilon, delta, size):
    """Integrated over the plane of weights, near the worst case; the density integrates to one.

    With two thirds of the noise δ is exceeded, so the bound is not slack by that much.
    """
    count, reach, lean = 20_000_000, 10.0, 0.33
    strength = 1 / (1 + math.exp(reach)) / reach
    noise, budget = calibrated(count, strength, epsilon=epsilon, delta=delta)
    strength, across = noise.regularisation, math.sqrt(1 - lean**2)
    sigma = noise.sigma * size
    law = multivariate_normal(cov=sigma**2)
    pair = [
        Tilted([[1.0, 0.0], [-lean, side]], [count - 1, 1], strength=strength, loss=Logistic())
        for side in (across, -across)
    ]
    centre = brentq(lambda x: pair[0].tilt(np.array([[x, 0.0]]))[0, 0], 0, 50)
    along = math.exp(pair[0].log_det(np.array([[centre, 0.0]]))[0]) / (count * strength)
    xs = centre + np.linspace(-8, 8, 401) * sigma / along
    ys = np.linspace(-8, 8, 401) * sigma / (count * strength)
    grid = np.stack(np.meshgrid(xs, ys, indexing="ij"), axis=-1).reshape(-1, 2)
    cell = (xs[1] - xs[0]) * (ys[1] - ys[0])
    p, q = (
        np.exp(
            data.log_det(grid)
            + law.logpdf(data.tilt(grid)[:, 0])
            + law.logpdf(data.tilt(grid)[:, 1])
        )
        for data in pair
    )
    assert p.sum() * cell == pytest.approx(1, abs=1e-6)
    spent = max(
        np.maximum(p - math.exp(budget) * q, 0).sum() * cell,
        np.maximum(q - math.exp(budget) * p, 0).sum() * cell,
    )
    assert (spent <= delta) == (size == 1)


@settings(max_examples=40)
@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0.4, 3), st.just(0.0) | st.floats(1e-6, 3))
def test_a_shift_that_looks_at_the_noise_is_covered(cosine, length, noise_multiplier, epsilon):
    """E[(1 − exp(ε − max g))₊] by quadrature, the shift chosen for each b; u, u′ at any angle."""
    u = np.array([1.0, 0.0])
    other = length * np.array([cosine, math.sqrt(1 - cosine**2)])
    sigma = 2 * noise_multiplier
    ticks = np.linspace(-8, 8, 321)
    weight = np.exp(-(ticks**2) / 2)
    weight /= weight.sum()
    b = sigma * np.stack(np.meshgrid(ticks, ticks, indexing="ij"), axis=-1)
    shares = [(a, c) for a in np.linspace(0, 1, 5) for c in np.linspace(0, 1, 5)]
    shifts = [a * other - c * u for a, c in shares]
    worst = np.max([(2 * b @ v + v @ v) / (2 * sigma**2) for v in shifts], axis=0)
    spent = np.einsum("i,j,ij->", weight, weight, np.maximum(-np.expm1(epsilon - worst), 0))
    assert spent <= tilt_delta(noise_multiplier, epsilon=epsilon) * (1 + 1e-3) + 1e-12


def test_the_gaussian_tilt_is_calibrated_exactly():
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-9)):
        noise, _ = calibrated(1000, 0.01, epsilon=epsilon, delta=delta)
        multiplier = noise.sigma / 2  # L = R = 1
        assert tilt_delta(multiplier, epsilon=noise.tilt_epsilon) <= delta
        assert tilt_delta(multiplier * (1 - 1e-9), epsilon=noise.tilt_epsilon) > delta


def test_the_parts_of_epsilon_add_up_and_regularisation_rises_only_where_it_must():
    for epsilon in (0.001, 0.1, 1.0, 10.0):
        noise, _ = calibrated(100, 0.001, epsilon=epsilon, delta=0.0)
        parts = noise.determinant_epsilon + 2 * noise.rate + noise.output_epsilon
        assert parts == pytest.approx(epsilon, rel=1e-12)
        kappa = math.log1p(0.25 / (100 * 0.001))
        assert (noise.regularisation > 0.001) == (kappa > 0.99 * epsilon / 2)


def test_output_noise_is_calibrated_exactly():
    public = {"records": 50, "regularisation": 0.1, "gradient_norm": 1.5}
    pure = calibrate_output(epsilon=0.7, delta=0.0, **public)
    assert pure.rate * pure.sensitivity == pytest.approx(0.7, rel=1e-14)
    assert pure.sensitivity == pytest.approx(2 * 1.5 / (50 * 0.1), rel=1e-8)
    assert pure.sensitivity > 2 * 1.5 / (50 * 0.1)  # the solver's tolerance is in it
    gauss = calibrate_output(epsilon=0.7, delta=1e-6, **public)
    multiplier = gauss.sigma / gauss.sensitivity
    assert gaussian_delta(multiplier, epsilon=0.7) <= 1e-6
    assert gaussian_delta(multiplier * (1 - 1e-9), epsilon=0.7) > 1e-6


# --- gradient descent ---------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(["logistic", "huber"]), st.integers(2, 4))
def test_one_record_moves_the_gradient_sum_by_at_most_its_bound(seed, name, classes):
    data = some_records(seed, count=9, columns=3, classes=classes)
    loss = score_loss(data, LOSSES[name])
    weights = 10 * np.random.default_rng(seed).normal(size=(loss.outputs, 3))
    less = records(data.rows[1:], data.labels[1:], classes)
    for bound in (loss.lipschitz, 0.2):  # as declared, and where clipping has to bite
        difference = gradient_sum(data.rows, loss, weights, gradient_norm=bound) - gradient_sum(
            less.rows, score_loss(less, LOSSES[name]), weights, gradient_norm=bound
        )
        assert np.linalg.norm(difference) <= bound * (1 + 1e-12)


def test_unclipped_gradient_sums_are_the_gradient():
    data = some_records(7, count=9, columns=3, classes=2)
    loss = Margins(Logistic(), np.where(data.labels == 1, 1.0, -1.0)[:, None])
    risk = RegularisedRisk(rows=data.rows, loss=loss, regularisation=0.0)
    weights = np.array([[0.3, -2.0, 1.0]])
    np.testing.assert_allclose(
        gradient_sum(data.rows, loss, weights, gradient_norm=1.0).ravel() / 9,
        risk.gradient(weights.ravel()),
        rtol=1e-12,
    )


class Textbook:
    """The logistic loss as one would write it down: at margins below −710 it is ∞/∞."""

    convex, lipschitz, smoothness = True, 1.0, 0.25

    def derivative(self, margins):
        return -np.exp(-margins) / (1 + np.exp(-margins))

    def curvature(self, margins):
        return np.exp(-margins) / (1 + np.exp(-margins)) ** 2


def test_a_record_at_which_the_loss_is_no_number_counts_as_nothing():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1000.0, 0.0]])
    data = records(rows, [1, 1, 1], 2)
    loss, weights = score_loss(data, Textbook()), np.array([[1.0, 0.0]])
    with np.errstate(all="ignore"):
        assert np.isnan(loss.slopes(rows @ weights.T)[2, 0])
    less = score_loss(records(rows[:2], [1, 1], 2), Textbook())
    found = gradient_sum(rows, loss, weights, gradient_norm=1000.0)  # and no warning is given
    np.testing.assert_array_equal(found, gradient_sum(rows[:2], less, weights, gradient_norm=1e3))


def test_one_record_cannot_turn_the_weights_into_no_numbers():
    """It is far on the wrong side of a crowd, where the textbook's loss overflows."""
    crowd = np.random.default_rng(0).uniform(400, 570, size=(2000, 3))
    rows, labels = np.vstack([crowd, -crowd[:1]]), np.ones(2001, dtype=int)
    public = {
        "classes": [0, 1], "records": 2000, "data_norm": 1000.0, "learning_rate": 0.1,
        "clip_rows": True, "delta": 1e-6, "steps": 10, "insecure_seed": 1,
    }  # fmt: skip
    for count in (2000, 2001):
        fitted = NoisyGradientDescent(loss=Textbook(), **public)
        assert np.isfinite(fitted.fit(rows[:count], labels[:count]).coef_).all()
