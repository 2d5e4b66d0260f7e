"""Labels spread over a graph: against dense algebra, and where labels are wrong or missing."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pate.students.propagation import neighbour_graph, propagate


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return data.data / 16, data.target


def blobs(n=60, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % classes
    centres = np.eye(classes, 5) * 4
    return centres[truth] + 0.3 * rng.normal(size=(n, 5)), truth


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_graph_is_that_of_the_nearest(metric):
    X, _ = blobs()
    graph = neighbour_graph(X.astype(np.float32), neighbours=4, metric=metric).toarray()
    Z = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
    gaps = ((Z[:, None] - Z) ** 2).sum(axis=2) + np.diag(np.full(len(X), np.inf))
    mine = np.zeros_like(gaps, dtype=bool)
    np.put_along_axis(mine, gaps.argsort(axis=1)[:, :4], True, axis=1)
    np.testing.assert_array_equal(graph > 0, mine | mine.T)
    np.testing.assert_allclose(graph, graph.T, rtol=1e-14)
    assert np.linalg.eigvalsh(graph).max() == pytest.approx(1)


@pytest.mark.parametrize("alpha", [0.5, 0.99])
def test_conjugate_gradients_solve_the_system(alpha):
    X, truth = blobs()
    rows = np.array([0, 1, 2, 3, 5])
    said = propagate(X, rows, truth[rows], classes=3, neighbours=6, alpha=alpha)
    graph = neighbour_graph(X.astype(np.float32), neighbours=6).toarray()
    known = np.zeros((len(X), 3))
    known[rows, truth[rows]] = 1
    known /= known.sum(axis=0)
    dense = np.linalg.solve(np.eye(len(X)) - alpha * graph, known)
    np.testing.assert_allclose(said, dense / dense.sum(axis=1, keepdims=True), atol=1e-6)


def test_one_label_for_each_class_is_enough_for_blobs():
    X, truth = blobs()
    said = propagate(X, [0, 1, 2], truth[:3], classes=3)
    np.testing.assert_array_equal(said.argmax(axis=1), truth)
    np.testing.assert_allclose(said.sum(axis=1), 1)


def test_a_wrong_label_is_overruled_by_those_around_it():
    X, truth = blobs()
    labels = truth[:30].copy()
    labels[0] = 1
    said = propagate(X, np.arange(30), labels, classes=3)
    np.testing.assert_array_equal(said.argmax(axis=1), truth)


def test_it_knows_more_digits_than_the_nearest_label(digits):
    X, y = digits
    said = propagate(X, np.arange(50), y[:50], classes=10).argmax(axis=1)
    nearest = ((X[:, None] - X[:50]) ** 2).sum(axis=2).argmin(axis=1)
    assert (said == y).mean() > (y[nearest] == y).mean() + 0.05


def test_where_no_label_arrives_the_shares_are_said():
    X = np.concatenate([np.eye(2), np.eye(2) + 5, 50 + np.eye(2)]) @ np.array([[1.0, 0], [0, 1]])
    said = propagate(
        X, [0, 1, 2], [0, 0, 1], classes=3, neighbours=1, metric="euclidean", alpha=0.9
    )
    np.testing.assert_allclose(said[4:], [[2 / 3, 1 / 3, 0]] * 2)


def test_balance_moves_classes_towards_their_shares(digits):
    X, y = digits
    rows = np.flatnonzero((y < 2) & (np.arange(len(y)) < 400))
    skew = np.concatenate([rows[y[rows] == 0], rows[y[rows] == 1][:4]])
    plain = propagate(X, skew, y[skew], classes=2)
    balanced = propagate(X, skew, y[skew], classes=2, balance=True)
    assert balanced[:, 1].sum() < plain[:, 1].sum()


def test_one_input_alone():
    np.testing.assert_array_equal(propagate(np.ones((1, 3)), [0], [1], classes=2), [[0, 1]])
