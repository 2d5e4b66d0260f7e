"""Least squares from noised sums: sensitivity by brute force, the solution, and what it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dpsgd.convex import NoisyLeastSquares
from dpsgd.convex.least_squares import (
    calibrate_squares,
    noised_weights,
    ridge_weights,
    sum_squares,
)
from pate.accounting import Neighbours, SampledGaussian, compose
from pate.accounting.calibrate import pld_guarantee
from pate.accounting.composition import gaussian_epsilon
from pate.errors import InvalidInput
from pate.randomness import insecure_generator, secure_generator

RNG = np.random.default_rng(4)
ROWS = RNG.normal(size=(60, 5))  # most are longer than one
ROWS[0] = [1.0, 0.0, 0.0, 0.0, 0.0]
ROWS[1] = 0.0
ROWS[2] *= 1e200
ROWS[3, 2] = np.inf
ROWS[4] /= 100


def weighed(products, targets, *, share, classes):
    """The vector that gets one noise on every coordinate, from the sums: written apart."""
    beside = math.sqrt(2) * products[np.triu_indices(len(products), 1)]
    factor = math.sqrt((1 - share) / (1 - 1 / classes))
    squares = math.sqrt(share) * np.concatenate([np.diag(products), beside])
    return np.concatenate([squares, factor * targets.ravel()])


# --- sensitivity ----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("intercept", [None, 0.3, 5.0])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.9])
def test_one_record_more_or_less_moves_the_sums_by_at_most_one(classes, intercept, share):
    labels = RNG.integers(classes, size=len(ROWS))

    def sums(kept):
        public = {"classes": classes, "norm": 1.0, "intercept": intercept}
        return weighed(
            *sum_squares(ROWS[kept], labels[kept], **public), share=share, classes=classes
        )

    whole = sums(np.arange(len(ROWS)))
    moved = [
        np.linalg.norm(whole - sums(np.delete(np.arange(len(ROWS)), gone)))
        for gone in range(len(ROWS))
    ]
    assert max(moved) <= 1 + 1e-12  # of this test's own sums
    assert max(moved) > 0.999  # no noise is wasted
    assert moved[3] == 0  # what is not finite counts as zero
    assert moved[2] == pytest.approx(1, abs=1e-3)  # scaled to the bound, like any other


def test_all_records_of_one_user_move_the_sums_by_at_most_one():
    users, labels = RNG.integers(12, size=60), RNG.integers(4, size=60)
    each = 1 / np.bincount(users)[users]

    def sums(kept):
        found = sum_squares(ROWS[kept], labels[kept], classes=4, norm=1.0, weights=each[kept])
        return weighed(*found, share=0.25, classes=4)

    whole = sums(np.full(60, True))
    moved = [np.linalg.norm(whole - sums(users != user)) for user in range(12)]
    assert 0.1 < max(moved) <= 1 + 1e-12
    # A user whose records are all the same moves them by as much as one record can.
    same = sum_squares(
        np.tile(ROWS[:1], (7, 1)), np.zeros(7, int), classes=4, norm=1.0, weights=np.full(7, 1 / 7)
    )
    assert np.linalg.norm(weighed(*same, share=0.25, classes=4)) == pytest.approx(1)


def test_rows_are_on_a_grid_and_their_sums_are_exact_in_any_order():
    rows = RNG.normal(size=(5000, 6)) * 3
    labels = RNG.integers(3, size=5000)
    order = RNG.permutation(5000)
    one = sum_squares(rows, labels, classes=3, norm=1.0)
    other = sum_squares(rows[order], labels[order], classes=3, norm=1.0)
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])
    longest = max(
        np.trace(sum_squares(row[None], np.zeros(1, int), classes=3, norm=1.0)[0])
        for row in rows[:500]
    )
    assert 0.999 < longest <= 1


def test_single_precision_rows_are_read_in_parts(monkeypatch):
    rows = RNG.normal(size=(50, 2, 3)).astype(np.float32)
    labels = RNG.integers(3, size=50)
    whole = sum_squares(rows, labels, classes=3, norm=2.0)
    monkeypatch.setattr("dpsgd.convex.least_squares._CHUNK", 40)
    parts = sum_squares(rows, labels, classes=3, norm=2.0)
    np.testing.assert_array_equal(whole[0], parts[0])
    np.testing.assert_array_equal(whole[1], parts[1])


# --- the solution ---------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5])
def test_without_noise_it_is_ridge_regression(classes):
    rows, labels = RNG.normal(size=(200, 6)), RNG.integers(classes, size=200)
    targets = np.eye(classes)[labels] - 1 / classes
    expected = Ridge(alpha=3.5, fit_intercept=False).fit(rows, targets).coef_
    found = ridge_weights(rows.T @ rows, rows.T @ targets, ridge=3.5)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_with_hardly_any_noise_the_estimator_agrees_with_scikit_learn(classes):
    rows = RNG.normal(size=(3000, 4))
    rows *= 2 / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 2)
    labels = np.digitize(rows[:, 0] - rows[:, 1] / 2, [0.0, 0.5, 1.0][: classes - 1])
    model = NoisyLeastSquares(
        epsilon=1e8, classes=range(classes), data_norm=2.0, clip_rows=True, insecure_seed=1
    ).fit(rows, labels)
    wide = np.column_stack([rows, np.full(3000, 0.3)])
    ridge = model.calibration_.ridge * (2**2 + 0.3**2)
    targets = np.eye(classes)[labels] - 1 / classes
    expected = Ridge(alpha=ridge, fit_intercept=False).fit(wide, targets).coef_
    if classes == 2:
        expected = expected[1:] - expected[:1]
    np.testing.assert_allclose(model.coef_, expected[:, :-1], atol=5e-3)
    np.testing.assert_allclose(model.intercept_, expected[:, -1] * 0.3, atol=5e-3)


def test_scores_plus_the_share_of_a_class_are_probabilities():
    model = NoisyLeastSquares(epsilon=1e6, classes=[0, 1, 2], clip_rows=True, insecure_seed=1)
    rows, labels = RNG.normal(size=(400, 3)), RNG.integers(3, size=400)
    scores = model.fit(rows, labels).decision_function(rows)
    np.testing.assert_allclose(scores.sum(axis=1), 0, atol=1e-9)
    inside = (scores > -1 / 3).all(axis=1)
    assert inside.any()
    np.testing.assert_allclose(model.predict_proba(rows)[inside], scores[inside] + 1 / 3)


def test_an_indefinite_matrix_still_gives_finite_weights():
    model = NoisyLeastSquares(epsilon=0.01, classes=[0, 1], clip_rows=True).fit(
        RNG.normal(size=(10, 40)), [0, 1] * 5
    )
    assert np.isfinite(model.coef_).all()


# --- noise and cost -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.0, 2 / 3, 3 / 2])
@pytest.mark.parametrize("make", [secure_generator, lambda: insecure_generator(5)])
def test_the_noise_is_the_stated_one(monkeypatch, size, make):
    """‖noise‖² over its variance is chi-square with mean d and variance 2d, in each part."""
    columns, classes, share = 90, 10, 0.3
    public = calibrate_squares(7.0 * size, columns=columns, classes=classes, share=share)
    drawn = []
    monkeypatch.setattr(
        "dpsgd.convex.least_squares.ridge_weights",
        lambda products, targets, ridge: drawn.append((products, targets)) or targets.T,
    )
    noised_weights(np.zeros((columns, columns)), np.zeros((columns, classes)), public, rng=make())
    ((products, targets),) = drawn
    np.testing.assert_array_equal(products, products.T)
    noise = weighed(products, targets, share=share, classes=classes) / 7.0
    squares = columns * (columns + 1) // 2
    for part in (noise[columns:squares], noise[squares:]):
        away = abs(part @ part - len(part)) / math.sqrt(2 * len(part))
        assert away < 5 if size == 1 else away > 7
    diagonal = noise[:columns]
    if size == 1:
        assert abs(diagonal @ diagonal - columns) / math.sqrt(2 * columns) < 5
        assert abs(noise.mean()) < 5 / math.sqrt(len(noise))


def test_the_ridge_is_in_proportion_to_the_norm_of_the_noise():
    rng = np.random.default_rng(3)
    beside = np.triu(rng.normal(size=(400, 400)), 1) / math.sqrt(2)
    noise = beside + beside.T + np.diag(rng.normal(size=400))
    public = calibrate_squares(1.0, columns=400, classes=10, share=1 / 4, ridge=1.0)
    assert np.linalg.norm(2 * noise, 2) == pytest.approx(public.ridge, rel=0.03)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-6), (8.0, 1e-4)])
def test_it_spends_its_target_exactly(epsilon, delta):
    rows, labels = RNG.normal(size=(50, 3)), RNG.integers(3, size=50)
    fitted = [
        NoisyLeastSquares(epsilon=epsilon, delta=delta, classes=[0, 1, 2], clip_rows=True).fit(
            *some
        )
        for some in ((rows, labels), (rows[:20], labels[:20]))
    ]
    model = fitted[0]
    assert model.calibration_ == fitted[1].calibration_  # the number of records decides nothing
    noise = model.calibration_.noise_multiplier
    step = SampledGaussian(sample_rate=1.0, noise_multiplier=noise, public_rate=True)
    assert model.events_ == (step,)
    assert (model.guarantee_.epsilon, model.guarantee_.delta) == (epsilon, delta)
    assert model.guarantee_.neighbours is Neighbours.ADD_REMOVE
    assert gaussian_epsilon(noise, delta=delta) == pytest.approx(epsilon, rel=1e-9)
    assert epsilon <= pld_guarantee(model.events_, delta=delta).epsilon < epsilon + 1e-3
    assert compose(model.events_).guarantee(delta=delta).epsilon >= epsilon


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"epsilon": 1e-7}, "epsilon is 1e-07"),
        ({"share": 0.0}, "share is 0.0"),
        ({"share": 1.0}, "share is 1.0; it must lie between 0 and 1"),
        ({"ridge": 0.0}, "ridge is 0.0"),
        ({"intercept_scaling": -1.0}, "intercept_scaling is -1.0"),
        ({"classes": None}, "classes is not given"),
        ({"clip_rows": False}, "longer than data_norm = 1"),
    ],
)
def test_bad_input_is_refused_in_one_line(given, words):
    model = NoisyLeastSquares(**{"classes": [0, 1], "clip_rows": True} | given)
    with pytest.raises(InvalidInput, match=words) as refused:
        model.fit(np.full((4, 2), 3.0), [0, 1, 0, 1])
    assert "\n" not in str(refused.value)


def test_too_many_features_are_refused():
    with pytest.raises(InvalidInput, match="8193 features, and least squares takes at most 8192"):
        sum_squares(np.zeros((1, 8192)), np.zeros(1, int), classes=2, norm=1.0, intercept=0.3)
