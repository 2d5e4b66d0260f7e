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
from dpsgd.layers import UnsuitableModel
from dpsgd.losses import cross_entropy, squared_error
from pate.errors import InvalidInput

TOLERANCE = 1e-5


def naive(model, loss, inputs, targets, gradients, clipper, users=None):
    """Σ clipped gradients: each example (or user) alone through autograd, clipped by its norm."""
    users = torch.arange(len(targets)) if users is None else users
    sums = {
        parameter: torch.zeros_like(parameter) for group in gradients.groups for parameter in group
    }
    for user in users.unique():
        own = users == user
        value = loss(model(inputs[own]), targets[own]).sum()
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
    gradients.check(inputs, targets)
    norms = gradients._run(inputs, targets, per_layer=False)[1]
    typical = max(float(norms.median()), 1e-3)
    return [Flat(typical), PerLayer(typical / 2), Automatic(typical), AdaptiveQuantile(typical)]


def assert_exact(model, inputs, targets, loss=cross_entropy):
    for rule in rules(model, loss, inputs, targets):
        gradients = ClippedGradients(model, loss)
        expected = naive(model, loss, inputs, targets, gradients, rule.start(len(gradients.groups)))
        zero(model)
        gradients.add(inputs, targets, clipper=rule.start(len(gradients.groups)), step=0, scale=1.0)
        size = max(float(each.abs().max()) for each in expected.values())
        for parameter, each in expected.items():
            assert float((parameter.grad - each).abs().max()) <= TOLERANCE * max(size, 1.0), rule


def assert_exact_by_user(model, inputs, targets, loss=cross_entropy, sizes=(1, 3)):
    """Whatever the batches, which cut users in two: each user's sum is clipped once."""
    users = torch.tensor([0, 1, 1, 2, 2, 2, 3])[: len(targets)]
    for rule in rules(model, loss, inputs, targets)[:2]:  # the others change factors alone
        gradients = ClippedGradients(model, loss)
        start = rule.start(len(gradients.groups))
        expected = naive(model, loss, inputs, targets, gradients, start, users)
        size = max(float(each.abs().max()) for each in expected.values())
        for batch in sizes:
            zero(model)
            clipper = rule.start(len(gradients.groups))
            parts = [each.split(batch) for each in (inputs, targets, users)]
            gradients.add_by_user(zip(*parts, strict=True), clipper=clipper, step=0, scale=1.0)
            for parameter, each in expected.items():
                assert float((parameter.grad - each).abs().max()) <= TOLERANCE * max(size, 1.0)


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


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Bilinear(5, 5, 3)

    def forward(self, x):
        return self.both(x, x.flip(1))


class Reads(nn.Module):
    """A recurrent layer whose state at the end is not used."""

    def __init__(self):
        super().__init__()
        self.recur = nn.LSTM(5, 4, batch_first=True)
        self.read = nn.Linear(4, 3)

    def forward(self, x):
        return self.read(self.recur(x)[0][:, -1])


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
        nn.Sequential(
            nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), Sum("last"), nn.Linear(6, 3)
        ),
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
    "a layer without a rule": lambda: (
        nn.Sequential(nn.Linear(5, 4), Scale(4), nn.Linear(4, 3)),
        floats(6, 5),
    ),
    "a bilinear layer": lambda: (Product(), floats(6, 5)),
    "a recurrent layer": lambda: (Reads(), floats(6, 4, 5)),
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
@pytest.mark.sample(14)
def test_clipped_sums_are_those_of_one_example_at_a_time(name):
    torch.manual_seed(5)
    model, inputs = LAYERS[name]()
    if isinstance(inputs, tuple):
        inputs = floats(*inputs)
    classes = model(inputs).shape[1]
    targets = torch.randint(0, classes, (len(inputs),))
    assert_exact(model, inputs, targets)
    assert_exact_by_user(model, inputs, targets, sizes=(2,))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sample(10)
def test_a_batch_of_one(name):
    torch.manual_seed(6)
    model, inputs = LAYERS[name]()
    if isinstance(inputs, tuple):
        inputs = floats(*inputs)
    assert_exact(model, inputs[:1], torch.tensor([1]))


WIDTHS = st.integers(1, 6)


@st.composite
def networks(draw):
    """A small network of random layers, and a batch for it."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    examples = draw(st.integers(1, 7))
    kind = draw(st.sampled_from(["flat", "sequence", "image", "words"]))
    layers: list[nn.Module] = []
    if kind == "words":
        width, positions = draw(WIDTHS), draw(st.integers(1, 5))
        inputs = torch.randint(0, 4, (examples, positions))
        layers.append(nn.Embedding(4, width, padding_idx=draw(st.sampled_from([None, 1]))))
        kind = "sequence"
    elif kind == "image":
        width, size = draw(st.integers(1, 3)), draw(st.integers(4, 7))
        inputs = floats(examples, width, size, size)
    else:
        width = draw(WIDTHS)
        shape = (width,) if kind == "flat" else (draw(st.integers(1, 8)), width)
        inputs = floats(examples, *shape)
    for _ in range(draw(st.integers(0, 3))):
        layers.append(draw(st.sampled_from([nn.Tanh(), nn.Identity(), nn.ReLU(inplace=True)])))
        wide = draw(WIDTHS)
        if kind == "image":
            groups = math.gcd(width, wide) if draw(st.booleans()) else 1
            layers.append(nn.Conv2d(width, wide, draw(st.integers(1, 3)), padding=1,
                                    stride=draw(st.integers(1, 2)), groups=groups,
                                    bias=draw(st.booleans())))  # fmt: skip
            layers.append(draw(st.sampled_from([nn.GroupNorm(1, wide), nn.Identity()])))
        else:
            layers.append(nn.Linear(width, wide, bias=draw(st.booleans())))
            layers.append(draw(st.sampled_from([nn.LayerNorm(wide), nn.Identity(), Scale(wide)])))
        width = wide
    layers += {"flat": [], "sequence": [Sum("first")], "image": [Sum("last")]}[kind]
    layers.append(nn.Linear(width, 3))
    return nn.Sequential(*layers), inputs, torch.randint(0, 3, (examples,))


@pytest.mark.campaign
@settings(max_examples=12, deadline=None)
@given(networks())
def test_random_networks_are_exact(network):
    assert_exact(*network)
    assert_exact_by_user(*network)


@pytest.mark.campaign
@settings(max_examples=100, deadline=None)
@given(networks())
def test_many_random_networks_are_exact(network):
    assert_exact(*network)


def test_other_losses_and_doubles_are_exact():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    assert_exact(model, floats(5, 4).double(), floats(5, 2).double(), loss=squared_error)


def test_batches_of_any_size_add_up_to_the_whole():
    torch.manual_seed(3)
    model, inputs = cnn_and_batch()
    targets = torch.randint(0, 3, (len(inputs),))
    gradients = ClippedGradients(model, cross_entropy)
    sums = []
    for size in (11, 4, 1, 10):
        zero(model)
        clipper = Flat(0.1).start(len(gradients.groups))
        for start in range(0, 11, size):
            part = slice(start, start + size)
            gradients.add(inputs[part], targets[part], clipper=clipper, step=0, scale=0.5)
        sums.append([parameter.grad.clone() for parameter in model.parameters()])
    for other in sums[1:]:
        for one, two in zip(sums[0], other, strict=True):
            assert torch.allclose(one, two, atol=1e-6)
    assert any(bool(each.abs().max() > 1e-3) for each in sums[0])


def cnn_and_batch():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    )
    return model, floats(11, 2, 5, 5)


def test_an_empty_batch_changes_nothing():
    model = nn.Linear(3, 2)
    zero(model)
    gradients = ClippedGradients(model, cross_entropy)
    none = (torch.empty(0, 3), torch.empty(0, dtype=torch.long))
    gradients.add(*none, clipper=Flat(1.0).start(1), step=0, scale=1.0)
    assert float(model.weight.grad.abs().max()) == 0


def test_what_is_there_already_is_added_to():
    model = nn.Linear(3, 2)
    gradients = ClippedGradients(model, cross_entropy)
    batch = (floats(4, 3), torch.tensor([0, 1, 0, 1]))
    zero(model)
    gradients.add(*batch, clipper=Flat(1.0).start(1), step=0, scale=1.0)
    once = model.weight.grad.clone()
    model.weight.grad.fill_(7.0)
    gradients.add(*batch, clipper=Flat(1.0).start(1), step=0, scale=1.0)
    assert torch.allclose(model.weight.grad, once + 7, atol=1e-6)


@pytest.mark.parametrize("poison", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("rule", [Flat(1.0), PerLayer(1.0), Automatic(), AdaptiveQuantile()])
def test_an_example_without_a_finite_gradient_adds_nothing(poison, rule):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs, targets = floats(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    gradients = ClippedGradients(model, cross_entropy)
    zero(model)
    gradients.add(inputs, targets, clipper=rule.start(2), step=0, scale=1.0)
    zero(model)
    keep = torch.arange(6) != 4
    gradients.add(inputs[keep], targets[keep], clipper=rule.start(2), step=0, scale=1.0)
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    inputs[4, 1] = poison
    zero(model)
    gradients.add(inputs, targets, clipper=rule.start(2), step=0, scale=1.0)
    for parameter, each in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, each, atol=1e-6)


def test_a_batch_of_nothing_but_poison_adds_nothing():
    model = nn.Linear(3, 2)
    zero(model)
    gradients = ClippedGradients(model, cross_entropy)
    gradients._exact = True
    inputs = torch.full((4, 3), math.nan)
    gradients.add(inputs, torch.zeros(4, dtype=torch.long), clipper=Flat(1.0).start(1), step=0,
                  scale=1.0)  # fmt: skip
    assert float(model.weight.grad.abs().max()) == 0


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6, 1e12])
def test_no_example_adds_more_than_the_bound(size):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    for rule, bound in ((Flat(0.3), 0.3), (Automatic(0.3), 0.3), (PerLayer(0.3), 0.3 * 2**0.5)):
        gradients = ClippedGradients(model, cross_entropy)
        for index in range(20):
            zero(model)
            clipper = rule.start(2)
            one = size * torch.randn(1, 3)
            gradients.add(one, torch.tensor([index % 4]), clipper=clipper, step=0, scale=1.0)
            squares = [float(each.grad.double().square().sum()) for each in model.parameters()]
            assert math.sqrt(sum(squares)) <= bound * (1 + 1e-6)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    model.train()
    zero(model)
    weights = [parameter.clone() for parameter in model.parameters()]
    gradients = ClippedGradients(model, cross_entropy)
    gradients.add(floats(5, 3), torch.ones(5, dtype=torch.long), clipper=Flat(1.0).start(2), step=0,
                  scale=1.0)  # fmt: skip
    assert model[1].inplace
    assert model.training
    assert all(module.training for module in model.modules())
    assert [each.requires_grad for each in model.parameters()] == [True, False, True, True]
    assert not any(module._forward_hooks for module in model.modules())
    assert all(map(torch.equal, weights, model.parameters()))
    assert float(model[0].bias.grad.abs().max()) == 0  # frozen


class Mixes(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Outside(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)

    def forward(self, x):
        return self.embed(x) @ self.embed.weight


class InPlace(nn.Module):
    """Changes the output of a layer, and, optionally, its input."""

    def __init__(self, given=False):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.given = given

    def forward(self, x):
        x = self.layer(x).relu_()
        y = self.last(x)
        if self.given:
            x.add_(1)
        y += 1
        return y.tanh_()


def test_outputs_changed_in_place_are_exact():
    torch.manual_seed(12)
    assert_exact(InPlace(), floats(6, 4), torch.randint(0, 4, (6,)))


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1).mean(1)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.layer, x, use_reentrant=False)


UNSUITABLE = {
    "examples mixed": (nn.Sequential(nn.Linear(4, 4), Mixes(), nn.Linear(4, 4)), (6, 4), "change"),
    "a weight outside its layer": (Outside(), (6, 4), "used outside"),
    "changed in place": (InPlace(given=True), (6, 4), "in place"),
    "positions first": (SequenceFirst(), (6, 5, 4), "first dimension"),
    "as many positions as examples": (SequenceFirst(), (6, 6, 4), "first dimension"),
    "as many positions as are compared": (SequenceFirst(), (6, 3, 4), "first dimension"),
    "no parameters": (nn.Tanh(), (6, 4), "no parameter"),
    "nothing used": (nn.ModuleDict({"a": nn.Linear(2, 2)}), (6, 4), None),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_models_that_cannot_be_exact_are_refused(name):
    torch.manual_seed(7)
    model, shape, reason = UNSUITABLE[name]
    if reason is None:
        model.forward = lambda x: x

    def run():
        gradients = ClippedGradients(model, cross_entropy)
        zero(model)
        clipper = Flat(1.0).start(len(gradients.groups))
        targets = torch.zeros(6, dtype=torch.long)
        gradients.add(floats(*shape), targets, clipper=clipper, step=0, scale=1.0)

    with pytest.raises(UnsuitableModel, match=reason or "does not depend"):
        run()


def test_recomputed_layers_are_exact():
    torch.manual_seed(8)
    assert_exact(Checkpointed(), floats(6, 4), torch.randint(0, 4, (6,)))


def test_a_loss_that_averages_is_refused():
    gradients = ClippedGradients(nn.Linear(4, 4), nn.functional.cross_entropy)
    with pytest.raises(InvalidInput, match="one number for each example"):
        gradients.add(floats(6, 4), torch.zeros(6, dtype=torch.long), clipper=Flat(1.0).start(1),
                      step=0, scale=1.0)  # fmt: skip


def test_dropout_in_a_layer_without_a_rule_is_refused_and_elsewhere_is_fine():
    torch.manual_seed(9)
    attends = Attend(dropout=0.5)
    zero(attends)
    batch = (floats(6, 4, 6), torch.zeros(6, dtype=torch.long))
    gradients = ClippedGradients(attends, cross_entropy)
    with pytest.raises(InvalidInput, match="one example at a time"):
        gradients.add(*batch, clipper=Flat(1.0).start(2), step=0, scale=1.0)
    drops = nn.Sequential(nn.Linear(4, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    zero(drops)
    ClippedGradients(drops, cross_entropy).add(
        floats(6, 4),
        torch.zeros(6, dtype=torch.long),
        clipper=Flat(1.0).start(2),
        step=0,
        scale=1.0,
    )
    assert bool((drops[2].weight.grad.abs().sum(0) > 0).any())


# --- what must not get past clipping --------------------------------------------------------------


def longest(model, inputs, clipper_of, loss=cross_entropy):
    """The most that one of these examples adds, however small its own gradient looks."""
    gradients = ClippedGradients(model, loss)
    gradients._exact = True
    added = []
    for one in inputs:
        zero(model)
        clipper = clipper_of(len(gradients.groups))
        gradients.add(one.unsqueeze(0), torch.tensor([0]), clipper=clipper, step=0, scale=1.0)
        squares = [float(each.grad.double().square().sum()) for each in model.parameters()]
        added.append(math.sqrt(sum(squares)))
    return max(added)


class Difference(nn.Module):
    """Two positions whose gradients nearly cancel."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer = layer
        self.read = nn.Linear(width, 2).requires_grad_(False)

    def forward(self, x):
        hidden = self.layer(x).flatten(2) if x.dim() > 3 else self.layer(x).transpose(1, 2)
        return self.read(hidden[:, :, 0] - hidden[:, :, -1])


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("kind", ["linear", "convolution", "embedding"])
def test_positions_that_nearly_cancel_are_clipped_all_the_same(kind, size):
    """A length that is a small difference of large numbers must not come out as nothing."""
    torch.manual_seed(13)
    if kind == "linear":
        model = Difference(nn.Linear(64, 64, bias=False), 64)
        base = size * torch.randn(30, 1, 64)
        inputs = (base + size * 1e-4 * torch.randn(30, 2, 64)).clone()
    elif kind == "convolution":
        model = Difference(nn.Conv2d(16, 64, 3, bias=False), 64)
        inputs = size * (torch.randn(30, 16, 1, 1) + 1e-4 * torch.randn(30, 16, 3, 4))
    else:
        model = Difference(nn.Embedding(3, 8), 8)
        with torch.no_grad():
            model.read.weight.mul_(size)
            model.layer.weight.mul_(1e-3)
        inputs = torch.zeros(30, 2, dtype=torch.long)
    assert longest(model, inputs, lambda groups: Flat(0.5).start(groups)) <= 0.5 * (1 + 1e-5)
    gradients = ClippedGradients(model, cross_entropy)
    gradients._exact = True
    zero(model)
    gradients.add(
        inputs, torch.zeros(30, dtype=torch.long), clipper=Flat(0.5).start(1), step=0, scale=1.0
    )
    assert float(model.layer.weight.grad.norm()) <= 30 * 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("positions", [None, 3])
def test_a_tiny_gradient_times_a_huge_input_is_measured(positions):
    """Its square is zero in single precision, and what it would add is not."""
    layer = nn.Linear(64, 64, bias=False)
    read = nn.Linear(64, 2, bias=False).requires_grad_(False)
    with torch.no_grad():
        layer.weight.zero_()[0, 0] = 1.0
        read.weight.zero_()[1, 0] = -1.0
    between = nn.Identity() if positions is None else Sum("first")
    model = nn.Sequential(layer, between, read)
    one = torch.zeros(64) if positions is None else torch.zeros(positions, 64)
    one[..., 0], one[..., 1] = 54.0, 5e18
    grad = torch.autograd.grad(
        cross_entropy(model(one.unsqueeze(0)), torch.tensor([0])).sum(), layer.weight
    )[0]
    assert 1e-6 < float(grad.double().norm()) < 1e-3
    inputs = one.unsqueeze(0)
    assert longest(model, inputs, lambda groups: Flat(1e-7).start(groups)) <= 1e-7 * (1 + 1e-5)


def test_an_argument_that_all_share_is_not_cut_up_when_it_is_as_long_as_the_batch():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))

        def forward(self, x, table):
            return (x * self.scale) @ table

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.biased = Biased()
            self.register_buffer("table", torch.randn(5, 5))

        def forward(self, x):
            return self.biased(x, self.table)

    torch.manual_seed(14)
    model = Model()
    for examples in (3, 4, 5, 6):
        assert_exact(model, floats(examples, 5), torch.randint(0, 5, (examples,)))


def test_dropout_after_a_poisoned_example_poisons_nobody_else():
    torch.manual_seed(15)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    inputs = floats(8, 4)
    inputs[5] = math.nan
    inputs[6, 0] = 1e30  # finite or not, as dropout will have it
    gradients = ClippedGradients(model, cross_entropy)
    gradients._exact = True
    for _ in range(40):
        zero(model)
        gradients.add(
            inputs, torch.zeros(8, dtype=torch.long), clipper=Flat(1.0).start(1), step=0, scale=1.0
        )
        assert bool(torch.isfinite(model[1].weight.grad).all())


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: cross_entropy(o, t) / torch.bincount(t, minlength=4)[t],
        lambda o, t: cross_entropy(o, t) / len(t),
        lambda o, t: cross_entropy(o - o.mean(0), t),
    ],
)
def test_a_loss_that_ties_examples_together_is_refused(loss):
    torch.manual_seed(16)
    model = nn.Linear(4, 4)
    zero(model)
    gradients = ClippedGradients(model, loss)
    gradients._exact = True  # found in any batch, not only in the first
    with pytest.raises(InvalidInput, match="changes with the others"):
        gradients.add(floats(6, 4), torch.tensor([0, 1, 2, 0, 0, 3]),
                      clipper=Flat(1.0).start(1), step=0, scale=1.0)  # fmt: skip


class MixesBackwards(nn.Module):
    """In training mode, ties the examples together on the way back only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.layer(x)
        if self.training:
            hidden.register_hook(lambda grad: grad / grad.norm())
        return hidden * 2


class Remembers(nn.Module):
    """Takes the mean of one batch off the next."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mean = torch.zeros(4)

    def forward(self, x):
        hidden = self.layer(x) * self.mean.sum().exp()
        if self.training:
            self.mean = x.detach().mean(0)
        return hidden


@pytest.mark.parametrize("model", [MixesBackwards(), Remembers()])
def test_what_happens_in_training_mode_only_is_found(model):
    torch.manual_seed(17)
    zero(model)
    model.train()
    gradients = ClippedGradients(model, cross_entropy)
    with pytest.raises(UnsuitableModel, match=r"ordinary differentiation|the second time"):
        gradients.add(floats(6, 4), torch.zeros(6, dtype=torch.long),
                      clipper=Flat(1.0).start(1), step=0, scale=1.0)  # fmt: skip


def test_chance_that_is_no_dropout_layer_is_not_mistaken_for_a_fault():
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.dropout(self.layer(x), 0.5, training=self.training)

    torch.manual_seed(18)
    model = Random().train()
    zero(model)
    gradients = ClippedGradients(model, cross_entropy)
    gradients.add(floats(6, 4), torch.zeros(6, dtype=torch.long),
                  clipper=Flat(1.0).start(1), step=0, scale=1.0)  # fmt: skip
    assert gradients._exact


def test_something_put_into_a_layer_is_trained_with_it():
    torch.manual_seed(19)
    layer = nn.Linear(4, 3)
    layer.extra = nn.Linear(4, 3, bias=False)
    layer.register_forward_hook(lambda module, args, output: output + module.extra(args[0]))
    assert_exact(layer, floats(6, 4), torch.randint(0, 3, (6,)))
