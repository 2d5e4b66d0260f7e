"""An example without a finite gradient adds nothing, and changes nothing for the others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpsgd.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer
from dpsgd.gradients import ClippedGradients
from dpsgd.layers import rule_for
from dpsgd.losses import cross_entropy

BAD, LAST = [2, 5], 3  # examples of the last class, of four, are the bad ones
TARGETS = torch.tensor([0, 1, LAST, 2, 0, LAST, 1, 2])


def weighted(weight):
    """Cross-entropy times ``weight`` for the bad examples."""

    def loss(outputs, targets):
        return cross_entropy(outputs, targets) * torch.where(targets == LAST, weight, 1.0)

    return loss


class Scale(nn.Module):
    """A layer without a rule."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x):
        return x * self.scale


class Root(nn.Module):
    """A layer without a rule whose gradient at zero is not finite."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x):
        return (x.abs() * self.scale).sqrt()


class Tied(nn.Module):
    """One matrix in two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class OwnDropout(nn.Module):
    """Dropout that no look at the modules finds."""

    def forward(self, x):
        return functional.dropout(x, 0.3, training=True)


def head(size, *layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.4), nn.Linear(size, LAST + 1))


# name → what makes the model, and the shape of an example (None: five whole numbers below 9)
MODELS = {
    "linear": (lambda: head(5, nn.Linear(6, 5), nn.Tanh()), (6,)),
    "bias alone": (lambda: head(5, _frozen_weight(nn.Linear(6, 5))), (6,)),
    "linear laid out": (lambda: head(45, nn.Linear(2, 5)), (9, 2)),
    "linear over positions": (lambda: head(120, nn.Linear(40, 40)), (3, 40)),
    "convolution laid out": (lambda: head(108, nn.Conv2d(2, 3, 3)), (2, 8, 8)),
    "convolution": (lambda: head(32, nn.Conv2d(16, 32, 3)), (16, 3, 3)),
    "convolution 1d": (lambda: head(32, nn.Conv1d(16, 32, 5)), (16, 5)),
    "embedding": (lambda: head(30, nn.Embedding(9, 6)), None),
    "layer norm": (lambda: head(6, nn.LayerNorm(6)), (6,)),
    "rms norm": (lambda: head(6, nn.RMSNorm(6)), (6,)),
    "group norm": (lambda: head(36, nn.GroupNorm(2, 4)), (4, 3, 3)),
    "instance norm": (lambda: head(36, nn.InstanceNorm2d(4, affine=True)), (4, 3, 3)),
    "no rule": (lambda: head(6, Scale()), (6,)),
    "no rule, infinite at zero": (lambda: head(6, Root()), (6,)),
    "tied": (lambda: head(6, Tied()), (6,)),
    "own dropout": (lambda: head(5, nn.Linear(6, 5), OwnDropout()), (6,)),
}
RULES = [Flat(0.3), PerLayer(0.3), Automatic(0.3), AdaptiveQuantile(0.3)]


def _frozen_weight(layer):
    layer.weight.requires_grad_(False)
    return layer


def made(name):
    torch.manual_seed(1)
    make, shape = MODELS[name]
    model = make().train()
    inputs = torch.randint(0, 9, (8, 5)) if shape is None else torch.randn(8, *shape)
    return model, inputs


def summed(model, loss, inputs, rule, *, seed=3):
    """The clipped sum of one lot, whose dropout follows from the seed."""
    gradients = ClippedGradients(model, loss)
    trained = [each for group in gradients.groups for each in group]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    torch.manual_seed(seed)
    clipper = rule.start(len(gradients.groups))
    gradients.add(inputs, TARGETS, clipper=clipper, step=0, scale=1.0)
    return [each.grad.clone() for each in trained], clipper


@pytest.mark.parametrize("weight", [math.nan, math.inf])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sample(32)
def test_the_others_add_what_they_would_have_to_the_bit(name, rule, weight):
    """As if the bad examples had added exactly zero, under the same dropout."""
    model, inputs = made(name)
    expected, _ = summed(model, weighted(0.0), inputs, rule)
    found, _ = summed(model, weighted(weight), inputs, rule)
    assert any(bool(each.any()) for each in expected)
    assert all(map(torch.equal, found, expected))
    elsewhere, _ = summed(model, weighted(weight), inputs, rule, seed=4)
    assert not all(map(torch.equal, found, elsewhere)), "dropout does not show here"


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("name", [name for name, (_, shape) in MODELS.items() if shape])
@pytest.mark.sample(15)
def test_so_do_they_where_inputs_are_not_finite(name, poison):
    model, inputs = made(name)
    expected, _ = summed(model, weighted(0.0), inputs, Flat(0.3))
    for example in BAD:
        inputs[example].view(-1)[1] = poison
    found, _ = summed(model, weighted(math.nan), inputs, Flat(0.3))
    assert all(map(torch.equal, found, expected))


def test_every_rule_for_a_layer_is_tried():
    from dpsgd.layers import _RULES

    known = {type(each) for name in MODELS for each in made(name)[0].modules() if rule_for(each)}
    alike = {nn.Conv3d, nn.InstanceNorm1d, nn.InstanceNorm3d}  # the same rule as their neighbours
    assert known == set(_RULES) - alike


def test_an_adaptive_norm_does_not_count_them():
    model, inputs = made("linear")
    _, clipper = summed(model, weighted(math.nan), inputs, AdaptiveQuantile(1e9))
    assert float(clipper._excess) == (len(TARGETS) - len(BAD)) / 2


def test_one_pass_is_made_of_every_lot():
    """A second one would draw dropout again for everybody, because of one example."""
    model, inputs = made("linear")
    gradients = ClippedGradients(model, weighted(math.nan))
    gradients._exact = True
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    passes = []
    model.register_forward_hook(lambda *arguments: passes.append(1))
    gradients.add(inputs, TARGETS, clipper=Flat(1.0).start(1), step=0, scale=1.0)
    assert len(passes) == 1
