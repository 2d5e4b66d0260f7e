"""Which inputs are asked about: each at most once, by public things and released answers only."""

from __future__ import annotations

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.querying import Chooser


@pytest.fixture
def kinds_and_bridges():
    """Three directions (0, 1, 2), and a few inputs between 0 and 1 (3) and between 1 and 2 (4)."""
    rng = np.random.default_rng(5)
    kinds = rng.permutation(np.repeat([0, 1, 2, 3, 4], [36, 36, 36, 12, 12]))
    centres = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.7, 0.7, 0], [0, 0.7, 0.7]])
    return centres[kinds] + 0.08 * rng.normal(size=(len(kinds), 3)), kinds


def never():
    raise AssertionError("features were read")


@pytest.mark.parametrize("how", ["first", "random", "diverse", "uncertain"])
def test_the_first_are_distinct_and_the_same_for_every_count(kinds_and_bridges, how):
    features, _ = kinds_and_bridges
    chooser = Chooser(how=how, inputs=132, features=lambda: features)
    everything = chooser.first(132)
    assert sorted(everything) == list(range(132))
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
def test_only_uncertain_looks_at_answers(kinds_and_bridges, how):
    features, _ = kinds_and_bridges
    chooser = Chooser(how=how, inputs=132, features=lambda: features)
    asked = chooser.first(10)
    plain = chooser.next(20, asked=asked)
    for labels in (np.zeros(10, dtype=np.int64), np.arange(10) % 3):
        told = chooser.next(20, asked=asked, rows=asked, labels=labels, classes=3)
        np.testing.assert_array_equal(told, plain)


@pytest.mark.parametrize(
    ("classes", "bridge"), [([0, 1, 1], 3), ([1, 0, 0], 3), ([0, 0, 1], 4), ([1, 1, 0], 4)]
)
def test_uncertain_asks_between_the_classes(kinds_and_bridges, classes, bridge):
    features, kinds = kinds_and_bridges
    chooser = Chooser(how="uncertain", inputs=132, features=lambda: features)
    asked = np.concatenate([np.flatnonzero(kinds == kind)[:4] for kind in range(3)])
    labels = np.array(classes)[kinds[asked]]
    chosen = chooser.next(6, asked=asked, rows=asked, labels=labels, classes=2)
    assert not set(chosen) & set(asked)
    assert (kinds[chosen] == bridge).sum() >= 2  # they are 12 of 132
    assert 7 - bridge not in kinds[chosen]  # between two kinds of one class there is no doubt


def test_uncertain_without_an_answer_goes_on_covering(kinds_and_bridges):
    features, _ = kinds_and_bridges
    chooser = Chooser(how="uncertain", inputs=132, features=lambda: features)
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
