"""Profiles: what they count, how they are simulated, and who wins once there is noise."""

from __future__ import annotations

import numpy as np
import pytest

from pate.accounting.moments import FloatArray
from pate.errors import InvalidInput
from pate.mechanisms import LaplaceNoisyMax
from pate.planner.profile import (
    Profile,
    accuracy_at,
    leads,
    parse_accuracies,
    right_with_gaussian,
    simulated,
)


def _right_with_laplace(profile: Profile, scale: float) -> FloatArray:
    return LaplaceNoisyMax(scale=scale).win_chances(leads(profile))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return simulated(teachers=120, accuracy=0.7, classes=6, inputs=300, seed=5)


def test_figures_of_a_profile() -> None:
    made = Profile(counts=np.array([[6, 2, 2], [1, 8, 1], [0, 0, 10]]), truth=np.array([0, 0, 2]))
    assert (made.teachers, made.classes, made.inputs) == (10, 3, 3)
    assert made.teacher_accuracy == pytest.approx((0.6 + 0.1 + 1.0) / 3)
    assert made.plurality_accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize("noise", [2.0, 25.0, 150.0])
def test_the_chance_of_a_right_answer_is_that_of_drawing(profile: Profile, noise: float) -> None:
    rng = np.random.default_rng(1)
    for chance, draw in (
        (right_with_gaussian, rng.normal),
        (_right_with_laplace, rng.laplace),
    ):
        trials = 400
        right = np.zeros(profile.inputs)
        for _ in range(trials):
            noised = profile.counts + draw(scale=noise, size=profile.counts.shape)
            right += noised.argmax(axis=1) == profile.truth
        expected = chance(profile, noise)
        error = np.sqrt((expected * (1 - expected)).sum() / trials) / profile.inputs
        assert right.mean() / trials == pytest.approx(expected.mean(), abs=4 * error + 1e-5)
        worst = np.abs(right / trials - expected) - 5 * np.sqrt(expected * (1 - expected) / trials)
        assert worst.max() < 1e-2


def test_no_noise_and_endless_noise() -> None:
    made = Profile(counts=np.array([[7, 3, 0], [1, 8, 1]]), truth=np.array([0, 2]))
    for chance in (right_with_gaussian, _right_with_laplace):
        np.testing.assert_allclose(chance(made, 1e-6), [1.0, 0.0], atol=1e-9)
        np.testing.assert_allclose(chance(made, 1e8), [1 / 3, 1 / 3], atol=1e-4)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("accuracy", [0.6, 0.9])
def test_simulated_teachers_are_as_accurate_as_said(classes: int, accuracy: float) -> None:
    made = simulated(teachers=200, accuracy=accuracy, classes=classes, inputs=6000)
    assert made.teacher_accuracy == pytest.approx(accuracy, abs=0.02)
    assert made.plurality_accuracy > accuracy
    again = simulated(teachers=200, accuracy=accuracy, classes=classes, inputs=6000)
    np.testing.assert_array_equal(made.counts, again.counts)


def test_accuracies_that_are_none() -> None:
    for text in ("good", "1.2", "5=0", "x=0.5"):
        with pytest.raises(InvalidInput, match="--accuracy"):
            parse_accuracies([text], own=10)
    with pytest.raises(InvalidInput, match="guessing among 10 classes"):
        simulated(teachers=10, accuracy=0.1, classes=10)


def test_errors_follow_the_number_of_teachers() -> None:
    known = {100: 0.9, 400: 0.8}
    assert accuracy_at(100, known, classes=10) == pytest.approx(0.9)
    assert accuracy_at(200, known, classes=10) == pytest.approx(1 - 0.1 * 2**0.5)
    assert accuracy_at(1600, known, classes=10) == pytest.approx(0.6)
    assert accuracy_at(25, known, classes=10) == pytest.approx(0.95)
    assert accuracy_at(10**6, known, classes=10) == pytest.approx(0.105)
