"""Schedules and losses."""

from __future__ import annotations

import math

import pytest
import torch

from dpsgd.losses import LOSSES, per_example_loss
from dpsgd.schedules import Constant, Exponential, Linear, Piecewise, as_schedule
from pate.errors import InvalidInput


def test_linear_ends_where_it_says_and_stays():
    rate = Linear(0.1, 0.052, steps=1000)
    assert rate(0) == 0.1
    assert rate(500) == pytest.approx(0.076)
    assert rate(1000) == rate(10**9) == 0.052


def test_exponential_is_straight_in_the_logarithm():
    rate = Exponential(1.0, 1e-4, steps=4)
    assert [rate(step) for step in range(6)] == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-4, 1e-4])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Constant(0), "above zero"),
        (lambda: Constant(math.inf), "finite"),
        (lambda: Linear(1.0, -1.0, steps=3), "above zero"),
        (lambda: Linear(1.0, 2.0, steps=0), "1 or more"),
        (lambda: Linear(1.0, 2.0, steps=2.5), "whole number"),
        (lambda: Piecewise(()), "start at step 0"),
        (lambda: Piecewise(((1, 1.0),)), "start at step 0"),
        (lambda: Piecewise(((0, 1.0), (5, 2.0), (5, 3.0))), "later than the last"),
        (lambda: as_schedule(True), "neither"),
        (lambda: as_schedule(None), "neither"),
        (lambda: per_example_loss("crossentropy"), "must be one of cross_entropy, binary"),
    ],
)
def test_mistakes(make, reason):
    with pytest.raises(InvalidInput, match=reason):
        make()


def test_every_loss_is_one_number_for_each_example():
    torch.manual_seed(0)
    words = torch.randn(3, 7, 5), torch.randint(0, 7, (3, 5))
    losses = LOSSES["cross_entropy"](*words)
    assert losses.shape == (3,)
    one = torch.nn.functional.cross_entropy(words[0][1].T, words[1][1], reduction="sum")
    assert float(losses[1]) == pytest.approx(float(one), rel=1e-5)
    logits, truth = torch.randn(4, 1), torch.tensor([0, 1, 1, 0])
    expected = -torch.log(torch.sigmoid(torch.where(truth == 1, logits[:, 0], -logits[:, 0])))
    assert torch.allclose(LOSSES["binary_cross_entropy"](logits, truth), expected, atol=1e-6)
    assert LOSSES["squared_error"](torch.zeros(2, 3), torch.ones(2, 3)).tolist() == [3.0, 3.0]


def test_describing():
    schedules = [
        Constant(0.1), Linear(1, 0.5, 10), Exponential(1, 0.5, 10), Piecewise(((0, 1.0), (9, 2.0)))
    ]  # fmt: skip
    assert [each.describe() for each in schedules] == [
        "0.1",
        "1 to 0.5 over 10 steps",
        "1 to 0.5 by equal factors over 10 steps",
        "1 from step 0, 2 from step 9",
    ]
