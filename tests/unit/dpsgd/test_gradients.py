"""Clipped sums against the plainest thing there is: autograd, one example at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpsgd.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer
from dpsgd.gradients import ClippedGradients
from dpsgd.losses import cross_entropy, squared_error
from dpsgd.recording import UnsuitableModel
from pate.errors import InvalidInput

TOLERANCE = 1e-5


def naive(model, loss, inputs, targets, gradients, clipper):
    """Σ clipped gradients: each example alone through autograd, clipped by its own norm."""
    sums = {
        parameter: torch.zeros_like(parameter) for group in gradients.groups for parameter in group
    }
    for index in range(len(targets)):
        one = tuple(each[index : index + 1] for each in inputs)
        value = loss(model(*one), targets[index : index + 1]).sum()
        grads = dict(
            zip(sums, torch.autograd.grad(value, list(sums), allow_unused=True), strict=True)
        )
        grads = {p: torch.zeros_like(p) if g is None else g for p, g in grads.items()}
        lengths = [
            math.sqrt(sum(float(grads[p].double().square().sum()) for p in group))
            for group in gradients.groups
        ]
        if not clipper.per_layer:
            lengths = [math.hypot(*lengths)]
        factors = clipper.factors(torch.tensor(lengths).unsqueeze(1), 0)[:, 0]
        for number, group in enumerate(gradients.groups):
            for parameter in group:
                sums[parameter] += factors[number if clipper.per_layer else 0] * grads[parameter]
    return sums


def zero(model):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def rules(model, loss, inputs, targets):
    """Rules whose norms lie among the gradients', so that some are clipped and some are not."""
    gradients = ClippedGradients(model, loss)
    middle = Flat(1.0).start(1)
    norms = gradients.norms(inputs, targets, clipper=middle)
    typical = max(float(norms.median()), 1e-3)
    return [Flat(typical), PerLayer(typical / 2), Automatic(typical), AdaptiveQuantile(typical)]


def assert_exact(model, inputs, targets, loss=cross_entropy):
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    for rule in rules(model, loss, inputs, targets):
        gradients = ClippedGradients(model, loss)
        expected = naive(model, loss, inputs, targets, gradients, rule.start(len(gradients.groups)))
        zero(model)
        gradients.add(inputs, targets, clipper=rule.start(len(gradients.groups)), step=0, scale=1.0)
        size = max(float(each.abs().max()) for each in expected.values())
        for parameter, each in expected.items():
            assert float((parameter.grad - each).abs().max()) <= TOLERANCE * max(size, 1.0), rule


class Recurring(nn.Module):
    """A layer used three times."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(6, 6)
        self.read = nn.Linear(6, 3)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.step(x))
        return self.read(x)


class Tied(nn.Module):
    """An embedding whose matrix is the output layer's."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.mix = nn.Linear(5, 5)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.mix(self.embed(x).mean(1))))


class Scale(nn.Module):
    """A layer nobody has a rule for."""

    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x):
        return x * self.scale + self.scale.square().sum()


class Attend(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)
        self.read = nn.Linear(6, 3)

    def forward(self, x, mask=None):
        mixed, _ = self.attention(x, x, x, attn_mask=mask)
        return self.read(mixed.mean(1))


class Causal(Attend):
    def forward(self, x):
        hidden = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return super().forward(x, hidden)


class Sum(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.flatten(2).mean(2) if self.dims == "last" else x.mean(1)


def conv(kind, **options):
    dims = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[kind]
    layer = kind(4, 6, 3, **options)
    return nn.Sequential(layer, nn.Tanh(), Sum("last"), nn.Linear(6, 3)), (5, 4, *[7] * dims)


def floats(*shape):
    return torch.randn(*shape)


LAYERS = {
    "linear": lambda: (nn.Linear(5, 3), floats(6, 5)),
    "linear without bias": lambda: (nn.Linear(5, 3, bias=False), floats(6, 5)),
    "mlp": lambda: (nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3)), floats(6, 5)),
    "in place": lambda: (
        nn.Sequential(nn.Linear(5, 20), nn.ReLU(inplace=True), nn.Linear(20, 3)),
        floats(6, 5),
    ),
    "linear on a few wide positions": lambda: (
        nn.Sequential(nn.Linear(20, 30), nn.Tanh(), Sum("first"), nn.Linear(30, 3)),
        floats(6, 3, 20),
    ),
    "linear on many narrow positions": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), Sum("first"), nn.Linear(4, 3)),
        floats(6, 30, 3),
    ),
    "linear on two dimensions of positions": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        floats(6, 2, 3, 3),
    ),
    "conv1d": lambda: conv(nn.Conv1d),
    "conv2d": lambda: conv(nn.Conv2d),
    "conv3d": lambda: conv(nn.Conv3d),
    "conv2d strided, padded, dilated": lambda: conv(nn.Conv2d, stride=2, padding=2, dilation=2),
    "conv2d uneven": lambda: conv(nn.Conv2d, stride=(2, 1), padding=(0, 2)),
    "conv2d same": lambda: conv(nn.Conv2d, padding="same", dilation=2),
    "conv2d circular": lambda: conv(nn.Conv2d, padding=1, padding_mode="circular"),
    "conv2d reflect": lambda: conv(nn.Conv2d, padding=1, padding_mode="reflect"),
    "conv2d in groups": lambda: conv(nn.Conv2d, groups=2, bias=False),
    "conv2d depthwise": lambda: (
        nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Tanh(), Sum("last"), nn.Linear(8, 3)),
        (5, 4, 6, 6),
    ),
    "conv2d with few positions": lambda: (
        nn.Sequential(nn.Conv2d(8, 12, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
        (5, 8, 3, 3),
    ),
    "conv2d with few positions, in groups": lambda: (
        nn.Sequential(
            nn.Conv2d(24, 36, 3, groups=2, padding=1, stride=2), nn.Tanh(), nn.Flatten(),
            nn.Linear(144, 3),
        ),
        (5, 24, 3, 3),
    ),
    "embedding": lambda: (
        nn.Sequential(nn.Embedding(7, 5), Sum("first"), nn.Linear(5, 3)),
        torch.randint(0, 7, (6, 4)),
    ),
    "embedding with padding": lambda: (
        nn.Sequential(nn.Embedding(4, 5, padding_idx=2), nn.Flatten(), nn.Linear(20, 3)),
        torch.randint(0, 4, (6, 4)),
    ),
    "embedding of one word": lambda: (
        nn.Sequential(nn.Embedding(4, 5), nn.Linear(5, 3)),
        torch.randint(0, 4, (6,)),
    ),
    "layer norm": lambda: (
        nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)),
        floats(6, 5),
    ),
    "layer norm over two dimensions": lambda: (
        nn.Sequential(nn.LayerNorm((3, 4)), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        floats(6, 2, 3, 4),
    ),
    "rms norm": lambda: (
        nn.Sequential(nn.Linear(5, 8), nn.RMSNorm(8), nn.Tanh(), Sum("first"), nn.Linear(8, 3)),
        floats(6, 4, 5),
    ),
    "group norm": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), Sum("last"), nn.Linear(6, 3)),
        (5, 4, 7, 7),
    ),
    "group norm of features": lambda: (
        nn.Sequential(nn.Linear(5, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
        floats(6, 5),
    ),
    "instance norm": lambda: (
        nn.Sequential(
            nn.Conv2d(4, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU(), Sum("last"),
            nn.Linear(6, 3),
        ),
        (5, 4, 7, 7),
    ),
    "a layer used three times": lambda: (Recurring(), floats(6, 6)),
    "a convolution used twice": lambda: (
        (lambda layer: nn.Sequential(layer, nn.Tanh(), layer, Sum("last"), nn.Linear(4, 3)))(
            nn.Conv2d(4, 4, 3)
        ),
        (5, 4, 7, 7),
    ),
    "tied weights": lambda: (Tied(), torch.randint(0, 7, (6, 4))),
    "a layer without a rule": lambda: (nn.Sequential(nn.Linear(5, 4), Scale(4), nn.Linear(4, 3)), floats(6, 5)),
    "a bilinear layer": lambda: (
        type("Two", (nn.Module,), {
            "__init__": lambda self: (nn.Module.__init__(self), setattr(self, "two", nn.Bilinear(5, 5, 3)))[0],
            "forward": lambda self, x: self.two(x, x.flip(1)),
        })(),
        floats(6, 5),
    ),
    "attention": lambda: (Attend(), floats(6, 4, 6)),
    "attention with a mask as large as the batch": lambda: (Causal(), floats(6, 6, 6)),
    "a transformer layer": lambda: (
        nn.Sequential(
            nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), Sum("first"),
            nn.Linear(6, 3),
        ),
        floats(6, 4, 6),
    ),
    "transposed convolution": lambda: (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.Tanh(), Sum("last"), nn.Linear(6, 3)),
        (5, 4, 4, 4),
    ),
    "weight norm": lambda: (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Linear(4, 3)),
        floats(6, 5),
    ),
    "weight norm without bias": lambda: (
        nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(5, 4, bias=False)), nn.Linear(4, 3)
        ),
        floats(6, 5),
    ),
    "frozen first layer": lambda: (
        nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3)),
        floats(6, 5),
    ),
    "frozen last layer": lambda: (
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3).requires_grad_(False)),
        floats(6, 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_clipped_sums_are_those_of_one_example_at_a_time(name):
    torch.manual_seed(5)
    model, inputs = LAYERS[name]()
    if isinstance(inputs, tuple):
        inputs = floats(*inputs)
    classes = model(inputs).shape[1]
    assert_exact(model, inputs, torch.randint(0, classes, (len(inputs),)))


@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_of_one(name):
    torch.manual_seed(6)
    model, inputs = LAYERS[name]()
    if isinstance(inputs, tuple):
        inputs = floats(*inputs)
    assert_exact(model, inputs[:1], torch.tensor([1]))
