"""A training step moves the weights by noise of the size that the account states, and no other.

The inputs are zero and there are no biases, so every gradient is zero and a step of SGD with a
learning rate of one moves each weight by its noise alone. The sum of squares of n weights over the
variance is chi-square with n degrees of freedom: its distance from n is given in standard
deviations. Right noise stays within 6 (one time in 5·10⁸ it would not; secure noise has no seed to
fix). Noise of two thirds or three halves the size is more than 25 away with these n.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpsgd import AdaptiveQuantile, Automatic, Flat, Linear, PerLayer, Trainer

RECORDS, LOT, Z = 64, 16, 1.7
SIZES = pytest.mark.parametrize(
    "size", [1.0, pytest.param(2 / 3, id="too little"), pytest.param(3 / 2, id="too much")]
)


def moved(clipping, *, noise_multiplier, **more):
    """By how much each layer's weights move in one step."""
    model = nn.Sequential(nn.Linear(60, 80, bias=False), nn.Linear(80, 60, bias=False))
    before = [each.detach().clone() for each in model.parameters()]
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        dataset=(torch.zeros(RECORDS, 60), torch.zeros(RECORDS, dtype=torch.long)),
        lot_size=LOT,
        clipping=clipping,
        noise_multiplier=noise_multiplier,
        delta=1e-5,
        **more,
    )
    trainer.step()
    return [(a.detach() - b).flatten() for a, b in zip(model.parameters(), before, strict=True)]


def away(values, std):
    """Standard deviations between the sum of squares and what it should be."""
    count = len(values)
    return abs(float((values.double() / std).square().sum()) - count) / math.sqrt(2 * count)


def holds(distance, size):
    return distance < 6 if size == 1 else distance > 20


@SIZES
@pytest.mark.parametrize("batch_size", [None, 1, 5], ids=["whole", "ones", "batches"])
@pytest.mark.parametrize(
    "source", [{}, {"noise": "fast"}, {"insecure_seed": 3}], ids=["secure", "fast", "seeded"]
)
@pytest.mark.sample(9)
def test_flat(size, source, batch_size):
    """Noise once for each lot: with sixteen batches of one it would be four times as large."""
    layers = moved(Flat(0.8), noise_multiplier=Z * size, batch_size=batch_size, **source)
    for values in layers:
        assert holds(away(values, Z * 0.8 / LOT), size)


@SIZES
@pytest.mark.parametrize("batch_size", [None, 3])
def test_per_layer(size, batch_size):
    first, second = moved(PerLayer((0.5, 2.0)), noise_multiplier=Z * size, batch_size=batch_size)
    # Two layers share the cost: each has √2 times the multiplier of the lot.
    assert holds(away(first, math.sqrt(2) * Z * 0.5 / LOT), size)
    assert holds(away(second, math.sqrt(2) * Z * 2.0 / LOT), size)


@SIZES
def test_per_layer_with_its_own_multipliers(size):
    rule = PerLayer((0.5, 2.0), noise_multipliers=(1.2 * size, 3.0 * size))
    first, second = moved(rule, noise_multiplier=None)
    assert holds(away(first, 1.2 * 0.5 / LOT), size)
    assert holds(away(second, 3.0 * 2.0 / LOT), size)


@SIZES
def test_automatic_and_adaptive(size):
    for values in moved(Automatic(max_norm=0.7), noise_multiplier=Z * size):
        assert holds(away(values, Z * 0.7 / LOT), size)
    left = ((Z**-2) - (2 * 10.0) ** -2) ** -0.5  # what the count leaves for the gradients
    for values in moved(AdaptiveQuantile(0.9), noise_multiplier=Z * size):
        assert holds(away(values, left * 0.9 / LOT), size)


@SIZES
def test_schedules(size):
    schedule = Linear(Z * size, 0.5, steps=50)
    for values in moved(Flat(Linear(0.8, 0.1, steps=9)), noise_multiplier=schedule):
        assert holds(away(values, Z * 0.8 / LOT), size)


def test_layers_and_steps_do_not_share_their_noise():
    one = moved(Flat(1.0), noise_multiplier=1.0)
    other = moved(Flat(1.0), noise_multiplier=1.0)
    count = 2000
    pairs = [(one[0], one[1]), (one[0], other[0]), (one[1], other[1]), (one[0][:-1], one[0][1:])]
    for a, b in pairs:
        correlation = float(torch.corrcoef(torch.stack([a[:count], b[:count]]))[0, 1])
        assert abs(correlation) < 6 / math.sqrt(count - 1)
