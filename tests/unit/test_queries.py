"""The inputs asked about: each at most once, by public things and released answers only."""

from __future__ import annotations

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.queries import Chooser, cover, near_inputs


@pytest.fixture
def arc():
    """Directions from one axis to the other in even steps: near inputs have near numbers."""
    angles = np.linspace(0, np.pi / 2, 601)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def never():
    raise AssertionError("features were read")


@pytest.mark.parametrize("how", ["first", "random", "diverse", "uncertain"])
def test_the_first_are_distinct_and_the_same_for_every_count(arc, how):
    chooser = Chooser(how=how, inputs=601, features=lambda: arc)
    everything = chooser.first(601)
    assert sorted(everything) == list(range(601))
    assert everything.dtype == np.int64
    for count in (0, 5, 60):
        np.testing.assert_array_equal(chooser.first(count), everything[:count])
    np.testing.assert_array_equal(chooser.next(7, asked=everything[:9]), everything[9:16])


def test_first_and_random_read_no_features():
    assert Chooser(how="first", inputs=9, features=never).first(4).tolist() == [0, 1, 2, 3]
    orders = {
        tuple(Chooser(how="random", inputs=9, features=never, seed=seed).first(9))
        for seed in (1, 1, 2)
    }
    assert len(orders) == 2
    assert tuple(range(9)) not in orders


@pytest.mark.parametrize("how", ["first", "random", "diverse"])
def test_only_uncertain_looks_at_answers(arc, how):
    chooser = Chooser(how=how, inputs=601, features=lambda: arc)
    asked = chooser.first(10)
    plain = chooser.next(20, asked=asked)
    for labels in (np.zeros(10, dtype=np.int64), np.arange(10) % 3):
        told = chooser.next(20, asked=asked, rows=asked, labels=labels, classes=3)
        np.testing.assert_array_equal(told, plain)


@pytest.mark.parametrize(
    ("labels", "middle"),
    [([0, 0, 1, 1], 300), ([1, 1, 0, 0], 300), ([0, 1, 1, 1], 100), ([1, 1, 1, 0], 500)],
)
def test_uncertain_asks_first_between_the_classes(arc, labels, middle):
    chooser = Chooser(how="uncertain", inputs=601, features=lambda: arc)
    asked = np.array([0, 200, 400, 600])
    chosen = chooser.next(3, asked=asked, rows=asked, labels=np.array(labels), classes=2)
    assert len({*chosen, *asked}) == 7
    assert abs(chosen[0] - middle) < 20


def test_where_all_is_sure_the_choice_is_a_diverse_one(arc):
    chooser = Chooser(how="uncertain", inputs=601, features=lambda: arc)
    asked = np.array([0, 200, 400, 600])
    chosen = chooser.next(5, asked=asked, rows=asked, labels=np.zeros(4, dtype=int), classes=2)
    np.testing.assert_array_equal(chosen, chooser.next(5, asked=asked))


def test_uncertain_without_an_answer_goes_on_covering(arc):
    chooser = Chooser(how="uncertain", inputs=601, features=lambda: arc)
    asked = chooser.first(8)
    none = np.empty(0, dtype=np.int64)
    chosen = chooser.next(5, asked=asked, rows=none, labels=none, classes=3)
    np.testing.assert_array_equal(chosen, chooser.first(13)[8:])


def test_one_input():
    chooser = Chooser(how="uncertain", inputs=1, features=lambda: np.ones((1, 2)))
    assert chooser.first(1).tolist() == [0]
    none = chooser.next(1, asked=np.array([0]), rows=np.array([0]), labels=np.array([1]), classes=2)
    assert none.tolist() == []


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="10 queries are more than the 9 public inputs"):
        Chooser(how="first", inputs=9, features=never).first(10)
    with pytest.raises(InvalidInput, match="3 features do not go with 9"):
        Chooser(how="diverse", inputs=9, features=lambda: np.eye(3)).first(2)


# --- covering inputs: the greedy choice, as a plain search finds it -------------------------------


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
