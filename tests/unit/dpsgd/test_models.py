"""Tempered sigmoids, and activations by name."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from torch import nn

from dpsgd.models import ACTIVATIONS, TemperedSigmoid
from dpsgd.recipe import Activation
from pate.errors import InvalidInput

GRID = torch.linspace(-12, 12, 2001)


def test_with_its_defaults_it_is_tanh():
    assert torch.allclose(TemperedSigmoid()(GRID), torch.tanh(GRID), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("s", "t", "o"), [(2.0, 2.0, 1.0), (1.58, 3.0, 0.71), (0.5, 0.1, -2.0)])
def test_value_and_gradient_are_those_of_the_formula(s, t, o):
    x = GRID.double().requires_grad_()
    y = TemperedSigmoid(scale=s, temperature=t, offset=o)(x)
    expected = s / (1 + torch.exp(-t * x.detach())) - o
    assert torch.allclose(y, expected, rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(y.sum(), x)
    share = (expected + o) / s
    assert torch.allclose(slope, s * t * share * (1 - share), rtol=1e-9, atol=1e-12)
    few = torch.tensor([-1.0, 0.3, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(TemperedSigmoid(s, t, o), (few,))


def test_it_is_bounded_and_finite_far_out():
    x = torch.tensor([-1e30, 1e30], requires_grad=True)
    y = TemperedSigmoid(scale=3.0, temperature=4.0, offset=1.0)(x)
    assert y.tolist() == [-1.0, 2.0]
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.tolist() == [0.0, 0.0]


def test_it_has_no_parameters_and_says_what_it_is():
    layer = TemperedSigmoid(temperature=3.0)
    assert list(layer.parameters()) == []
    assert repr(layer) == "TemperedSigmoid(scale=2.0, temperature=3.0, offset=1.0)"
    assert repr(copy.deepcopy(layer)) == repr(layer)


@pytest.mark.parametrize(
    "given",
    [
        {"scale": 0},
        {"temperature": -1.0},
        {"offset": float("nan")},
        {"scale": "a"},
        {"offset": None},
    ],
)
def test_bad_numbers_are_refused(given):
    with pytest.raises(InvalidInput, match=f"{next(iter(given))} is"):
        TemperedSigmoid(**given)


def test_every_name_is_a_new_layer_of_the_same_shape():
    for name in ACTIVATIONS:
        layer = ACTIVATIONS[name]()
        assert layer is not ACTIVATIONS[name]()
        assert layer(GRID).shape == GRID.shape
        assert not any(parameter.requires_grad for parameter in layer.parameters())
    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "elu": nn.ELU}
    for name, kind in kinds.items():
        assert type(ACTIVATIONS[name]()) is kind
    assert type(ACTIVATIONS["tempered-sigmoid"]()) is TemperedSigmoid


def test_recipes_know_the_same_names():
    """So that a wrong one is refused as the recipe is read, before anything is charged."""
    assert get_args(Activation) == tuple(ACTIVATIONS)
