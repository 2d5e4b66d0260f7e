"""Clipping rules: how long a clipped gradient is, and what noise the lot then needs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpsgd.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer
from dpsgd.schedules import Linear, Piecewise
from pate.errors import InvalidInput

POSITIVE = st.floats(1e-3, 1e3)


def joint(bounds, stds):
    """1/z² = Σ (bound / std)²."""
    return sum((bound / std) ** 2 for bound, std in zip(bounds, stds, strict=True)) ** -0.5


@given(norm=POSITIVE, length=st.floats(0, 1e20), noise=POSITIVE)
def test_no_gradient_is_longer_than_the_bound(norm, length, noise):
    for rule in (Flat(norm), PerLayer(norm), Automatic(norm), AdaptiveQuantile(initial=norm)):
        clipper = rule.start(1)
        factor = float(clipper.factors(torch.tensor([[length]], dtype=torch.float64), 0))
        (bound,) = clipper.bounds(0)
        assert bound == pytest.approx(norm)
        assert factor * length <= bound * (1 + 1e-12)
        if isinstance(rule, Flat) and length <= norm:
            assert factor == 1  # short gradients stay as they are


@given(
    norms=st.lists(POSITIVE, min_size=1, max_size=6),
    noise=POSITIVE,
    data=st.data(),
)
def test_noise_of_all_layers_together_is_worth_the_lots_multiplier(norms, noise, data):
    groups = len(norms)
    own = data.draw(st.lists(st.floats(0.1, 10), min_size=groups, max_size=groups))
    shared = PerLayer(tuple(norms)).start(groups)
    assert joint(norms, shared.noise_stds(0, noise)) == pytest.approx(noise)
    rule = PerLayer(tuple(norms), noise_multipliers=tuple(own))
    apart = rule.start(groups)
    stds = apart.noise_stds(0, rule.joint_noise_multiplier)
    assert stds == pytest.approx([s * c for s, c in zip(own, norms, strict=True)])
    assert joint(norms, stds) == pytest.approx(rule.joint_noise_multiplier)
    assert joint(norms, apart.noise_stds(0, noise)) == pytest.approx(noise)


def test_per_layer_factors_are_the_layers_own():
    clipper = PerLayer((1.0, 4.0)).start(2)
    assert clipper.per_layer
    factors = clipper.factors(torch.tensor([[2.0, 0.5], [2.0, 8.0]]), 0)
    assert factors.tolist() == [[0.5, 1.0], [1.0, 0.5]]


def test_schedules_move_the_norm_and_its_noise_together():
    clipper = Flat(Linear(4.0, 1.0, steps=3)).start(5)
    assert [clipper.bounds(step)[0] for step in (0, 1, 3, 9)] == [4.0, 3.0, 1.0, 1.0]
    assert clipper.noise_stds(0, 2.0) == (8.0,)
    assert clipper.noise_stds(9, 2.0) == (2.0,)
    assert float(clipper.factors(torch.tensor([[4.0]]), 0)) == 1.0
    assert float(clipper.factors(torch.tensor([[4.0]]), 9)) == 0.25
    layers = PerLayer(Piecewise(((0, 2.0), (5, 1.0)))).start(2)
    assert layers.bounds(4) == (2.0, 2.0)
    assert layers.bounds(5) == (1.0, 1.0)


# --- the adaptive norm ----------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "count_noise"), [(1.0, 5.0), (1.0, None), (40.0, None)])
def test_gradients_and_count_together_cost_the_lots_multiplier(noise, count_noise):
    clipper = AdaptiveQuantile(initial=3.0, count_noise=count_noise).start(4)
    (std,) = clipper.noise_stds(0, noise)
    used = count_noise or max(10.0, noise)
    assert (3.0 / std) ** 2 + (0.5 / used) ** 2 == pytest.approx(noise**-2)


def test_one_example_moves_the_count_by_half():
    clipper = AdaptiveQuantile(initial=1.0, learning_rate=1.0, count_noise=7.0).start(1)
    moved = []
    for norms in ([0.5], [2.0], []):
        clipper.restore({"max_norm": 1.0})
        clipper.noise_stds(0, 1.0)
        if norms:
            clipper.factors(torch.tensor([norms]), 0)
        clipper.end_lot(0, lot_size=10.0, normal=lambda: 0.0)
        moved.append(-math.log(clipper.bounds(0)[0]) * 10.0)  # 10 · (share − ½)
    assert moved == pytest.approx([0.5, -0.5, 0.0])


def test_the_count_has_its_own_noise():
    clipper = AdaptiveQuantile(initial=1.0, learning_rate=1.0, count_noise=3.0).start(1)
    clipper.noise_stds(0, 1.0)
    clipper.end_lot(0, lot_size=10.0, normal=lambda: 1.0)
    assert -math.log(clipper.bounds(0)[0]) == pytest.approx(0.3)


def test_the_norm_finds_the_quantile():
    generator = torch.Generator().manual_seed(3)
    clipper = AdaptiveQuantile(initial=0.01, quantile=0.7, count_noise=10.0).start(1)
    for step in range(300):
        clipper.noise_stds(step, 1.0)
        for _ in range(3):  # in batches
            clipper.factors(torch.rand(1, 200, generator=generator) * 5, step)
        normal = float(torch.randn((), generator=generator))
        clipper.end_lot(step, lot_size=600.0, normal=lambda value=normal: value)
    assert clipper.bounds(0)[0] == pytest.approx(3.5, rel=0.1)
    other = AdaptiveQuantile(initial=0.01, quantile=0.7).start(1)
    other.restore(clipper.state())
    assert other.bounds(0) == clipper.bounds(0)


def test_an_interrupted_lot_is_forgotten():
    clipper = AdaptiveQuantile(initial=1.0, count_noise=3.0).start(1)
    clipper.noise_stds(0, 1.0)
    clipper.factors(torch.full((1, 50), 0.1), 0)
    clipper.restore(clipper.state())
    clipper.end_lot(0, lot_size=50.0, normal=lambda: 0.0)
    assert clipper.bounds(0)[0] == pytest.approx(1.0)


def test_a_wild_draw_moves_the_norm_by_a_factor_e_at_most():
    clipper = AdaptiveQuantile(initial=1.0, count_noise=1e9).start(1)
    clipper.noise_stds(0, 1.0)
    clipper.end_lot(0, lot_size=1.0, normal=lambda: -8.0)
    assert clipper.bounds(0)[0] == pytest.approx(math.e)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Flat(0.0).start(1), "above zero"),
        (lambda: Flat(math.nan).start(1), "above zero"),
        (lambda: Flat("1").start(1), "neither a number nor a schedule"),
        (lambda: PerLayer((1.0, 2.0)).start(3), "has 2 numbers, and the model has 3"),
        (lambda: PerLayer(1.0, noise_multipliers=(1.0,)).start(2), "has 1 numbers"),
        (lambda: PerLayer(1.0, noise_multipliers=(1.0, 0.0)), "above zero"),
        (lambda: Automatic(stability=0.0), "stability is 0.0"),
        (lambda: AdaptiveQuantile(quantile=1.0), "quantile is 1.0"),
        (lambda: AdaptiveQuantile(initial=-1.0), "initial is -1.0"),
        (
            lambda: AdaptiveQuantile(count_noise=0.5).start(1).noise_stds(0, 1.0),
            "more than half",
        ),
    ],
)
def test_mistakes(make, reason):
    with pytest.raises(InvalidInput, match=reason):
        make()
