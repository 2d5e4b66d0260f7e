"""Covering inputs: the greedy choice, as a plain search finds it; few settings, all of them."""

from __future__ import annotations

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.queries import cover, near_inputs


def blobs(sizes, *, seed=0, spread=0.1):
    """Directions around axes: so many of each, shuffled; and which axis each belongs to."""
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    points = spread * rng.normal(size=(len(kinds), len(sizes)))
    points[np.arange(len(kinds)), kinds] += 1.0
    return points, kinds


def worth(likeness, chosen, weights):
    best = likeness[:, chosen].max(axis=1) if len(chosen) else np.zeros(len(likeness))
    return float(weights @ best)


def plain_greedy(likeness, count, *, weights, already=()):
    """The definition: every input is tried at every step."""
    taken = []
    for _ in range(count):
        before = [*already, *taken]
        left = [n for n in range(len(likeness)) if n not in before]
        gains = [worth(likeness, [*before, n], weights) for n in left]
        taken.append(left[int(np.argmax(gains))])
    return taken


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("already", [[], [3, 40]])
@pytest.mark.parametrize("weighted", [False, True])
def test_lazy_is_plain(seed, already, weighted):
    points, _ = blobs([30, 20, 10], seed=seed)
    graph = near_inputs(points, neighbours=12)
    weights = np.ones(60)
    if weighted:
        weights = np.random.default_rng(seed).integers(0, 9, size=60) / 8
    expected = plain_greedy(graph.toarray(), 25, weights=weights, already=already)
    found = cover(graph, 25, weights=weights if weighted else None, already=already)
    assert found.tolist() == expected


def test_the_beginning_does_not_depend_on_how_many_are_wanted():
    graph = near_inputs(blobs([50, 50])[0], neighbours=10)
    everything = cover(graph, 100)
    assert sorted(everything) == list(range(100))
    for count in (0, 1, 7, 99):
        np.testing.assert_array_equal(cover(graph, count), everything[:count])
    np.testing.assert_array_equal(cover(graph, 500), everything)
    np.testing.assert_array_equal(cover(graph, 9, already=everything[:20]), everything[20:29])


def test_every_kind_comes_before_a_second_of_one():
    points, kinds = blobs([400, 60, 30, 10], spread=0.03)
    chosen = cover(near_inputs(points, neighbours=500), 4)
    assert sorted(kinds[chosen]) == [0, 1, 2, 3]


def test_odd_ones_come_last():
    points, _ = blobs([100, 100], spread=0.05)
    points = np.concatenate([points, [[-1.0, -0.2]]])  # like nobody
    order = cover(near_inputs(points, neighbours=20), 201).tolist()
    assert order.index(200) > 10


def test_weights_lead_to_what_counts():
    points, kinds = blobs([50, 50, 50], spread=0.05)
    chosen = cover(near_inputs(points, neighbours=20), 5, weights=(kinds == 1).astype(float))
    assert set(kinds[chosen]) == {1}


def test_likeness_is_symmetric_and_blind_to_length():
    points, _ = blobs([40, 40])
    graph = near_inputs(points, neighbours=8)
    assert abs(graph - graph.T).max() == 0
    assert (graph.diagonal() == 1).all()
    assert graph.min() >= 0
    assert graph.max() <= 1
    scaled = near_inputs(points * np.geomspace(1e-12, 1e12, 80)[:, None], neighbours=8)
    assert abs(graph - scaled).max() < 1e-3


def test_blocks_change_nothing(monkeypatch):
    points = blobs([80, 40])[0].reshape(120, 1, 2)
    whole = near_inputs(points, neighbours=9)
    monkeypatch.setattr("pate.nearest_neighbours._NUMBERS", 1000)
    assert abs(whole - near_inputs(points, neighbours=9)).max() < 1e-6


@pytest.mark.parametrize(
    "points",
    [
        np.ones((1, 3)),  # one input
        np.zeros((5, 3)),  # nothing in any
        np.repeat([[1.0, 2.0]], 300, axis=0),  # more doubles than neighbours
        np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        np.array([[np.float32(3e38), 3e38], [1.0, -1.0]]),  # squares beyond float32
    ],
    ids=["one", "zeros", "doubles", "a zero", "huge"],
)
def test_odd_features_give_an_order(points):
    order = cover(near_inputs(points), len(points))
    assert sorted(order) == list(range(len(points)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_no_numbers_are_refused(bad):
    with pytest.raises(InvalidInput, match="NaN or infinite"):
        near_inputs([[1.0, bad], [0.0, 1.0]])


def test_doubles_are_covered_by_one():
    points = np.concatenate([np.repeat([[1.0, 0.3, 0.2]], 50, axis=0), np.eye(3)[1:]])
    assert set(cover(near_inputs(points), 3)) >= {50, 51}
