"""Which inputs are asked about: each at most once, by public things and released answers only."""

from __future__ import annotations

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.queries import Chooser


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
