"""Soft labels from noised counts: right labels, honest confidence, nothing from pure noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pate.artifacts.results import SoftLabels
from pate.errors import InvalidInput
from pate.students.count_smoothing import smooth_counts

INPUTS, CLASSES = 600, 3


def blobs(seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=INPUTS)
    return 4 * np.eye(CLASSES)[labels] + rng.normal(size=(INPUTS, CLASSES)), labels


def table(labels: NDArray[np.int64], *, votes: int, scale: float) -> NDArray[np.int64]:
    rng = np.random.default_rng(1)
    noise = np.rint(rng.laplace(scale=scale, size=(len(labels), CLASSES))).astype(np.int64)
    return votes * np.eye(CLASSES, dtype=np.int64)[labels] + noise


def smoothed(counts: NDArray[np.int64], features: NDArray[np.float64], scale: float) -> SoftLabels:
    cells = np.arange(len(features))
    return smooth_counts(counts, units=1, features=features, cells=cells, variance=2 * scale**2)


def test_smoothing_finds_labels_that_noise_hides() -> None:
    features, labels = blobs()
    counts = table(labels, votes=4, scale=8.0)
    soft = smoothed(counts, features, 8.0)
    assert (counts.argmax(axis=1) == labels).mean() < 0.6
    right = soft.probabilities.argmax(axis=1) == labels
    assert right.mean() > 0.95
    assert right[soft.confidence.argsort()[-300:]].mean() > right.mean()
    assert np.allclose(soft.probabilities.sum(axis=1), 1)
    assert np.array_equal(soft.confidence, soft.probabilities.max(axis=1))


def test_the_amount_follows_the_noise() -> None:
    """Narrow stripes on a circle: a long walk, which noise needs, mixes them."""
    angles = 2 * np.pi * np.arange(INPUTS) / INPUTS
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels = np.arange(INPUTS) // 20 % CLASSES
    exact = smoothed(table(labels, votes=20, scale=0.01), features, 0.01)
    noisy = smoothed(table(labels, votes=20, scale=20.0), features, 20.0)
    rights = [(each.probabilities.argmax(axis=1) == labels).mean() for each in (exact, noisy)]
    assert rights[0] > 0.97 > rights[1] > 0.6


@pytest.mark.parametrize("seed", range(5))
def test_pure_noise_gives_equal_shares(seed: int) -> None:
    features, _ = blobs(seed)
    rng = np.random.default_rng(seed)
    counts = np.rint(rng.laplace(scale=10.0, size=(INPUTS, CLASSES))).astype(np.int64)
    assert np.allclose(smoothed(counts, features, 10.0).probabilities, 1 / CLASSES)


def test_inputs_of_one_cell_and_units() -> None:
    """Two inputs share a cell, and a vote counts three units."""
    features, labels = blobs()
    order = labels.argsort(kind="stable")
    cells = np.empty(INPUTS, dtype=np.int64)
    cells[order] = np.arange(INPUTS) // 2
    counts = np.zeros((INPUTS // 2, CLASSES), dtype=np.int64)
    np.add.at(counts, (cells, labels), 9)
    soft, tripled = (
        smooth_counts(n * counts, units=n, features=features, cells=cells, variance=n * n * 8.0)
        for n in (1, 3)
    )
    assert (soft.probabilities.argmax(axis=1) == labels).mean() > 0.95
    assert np.allclose(soft.probabilities, tripled.probabilities)


def clustered(votes: int, scale: float, seed: int) -> tuple[SoftLabels, NDArray[np.int64]]:
    """Soft labels where every class has one cell, which no other cell predicts."""
    features, labels = blobs()
    noise = np.random.default_rng(seed).laplace(scale=scale, size=(CLASSES, CLASSES))
    counts = votes * np.eye(CLASSES, dtype=np.int64) + np.rint(noise).astype(np.int64)
    variance = 2 * scale**2
    found = smooth_counts(counts, units=1, features=features, cells=labels, variance=variance)
    return found, labels


def test_a_cluster_that_no_other_predicts_keeps_its_votes() -> None:
    soft, labels = clustered(200, 10.0, seed=1)
    assert (soft.probabilities.argmax(axis=1) == labels).mean() > 0.98
    exact, labels = clustered(200, 0.0, seed=1)
    assert (exact.probabilities.argmax(axis=1) == labels).mean() > 0.98


def test_pure_noise_in_clusters_gives_equal_shares() -> None:
    found = [clustered(0, 10.0, seed)[0].probabilities for seed in range(8)]
    assert sum(bool(np.allclose(each, 1 / CLASSES)) for each in found) >= 7


@pytest.mark.parametrize(
    ("counts", "cells"),
    [
        (np.zeros((3, 2)), np.arange(3)),
        (np.zeros((3, 2), dtype=int), np.arange(2)),
        (np.zeros((2, 2), dtype=int), np.arange(3)),
    ],
)
def test_what_does_not_fit_is_refused(counts: NDArray[np.int64], cells: NDArray[np.int64]) -> None:
    with pytest.raises(InvalidInput):
        smooth_counts(counts, units=1, features=np.eye(3), cells=cells, variance=1.0)
