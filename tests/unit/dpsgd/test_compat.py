"""Own training loops: the steps of the trainer, bit by bit, and refusals of what they are not."""

from __future__ import annotations

import copy
import math
import types

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import dpsgd
from dpsgd.compat import PrivacyEngine
from pate.errors import BudgetExceeded, InvalidInput, PateError

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
WORDS = torch.randint(0, 9, (60, 6), generator=torch.Generator().manual_seed(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.states = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, words):
        return self.head(self.states(self.words(words))[0][:, -1])


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))


def images():
    head = [nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten()]
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), *head, nn.Linear(8, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def private(model, *, inputs=X, labels=Y, lot=12, seed=3, optimizer=sgd, **more):
    engine = PrivacyEngine(insecure_seed=seed)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=lot, shuffle=True)
    settings = {"noise_multiplier": 1.2, "max_grad_norm": 0.7, **more}
    made = engine.make_private(
        module=model, optimizer=optimizer(model), data_loader=loader, **settings
    )
    return engine, *made


def first_gradient(model, *, lots=1, reduction="mean", **more):
    """Return all gradients of a lot, as one vector."""
    _, model, optimizer, loader = private(model, loss_reduction=reduction, **more)
    for _, (inputs, labels) in zip(range(lots), loader, strict=False):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels, reduction=reduction).backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("optimizer", [sgd, lambda model: torch.optim.Adam(model.parameters())])
@pytest.mark.parametrize(
    ("make", "inputs", "lot"),
    [(mlp, X, 12), (images, X, 12), (Recurrent, WORDS, 12), (mlp, X, 1)],
    ids=["mlp", "images", "recurrent", "empty lots"],
)
@pytest.mark.sample(4)
def test_a_loop_takes_the_steps_of_the_trainer(make, inputs, lot, optimizer, reduction):
    torch.manual_seed(5)
    model = make()
    twin = copy.deepcopy(model)
    settings = {"max_grad_norm": 0.7, "noise_multiplier": 1.2, "insecure_seed": 3, "delta": 1e-3}
    trainer = dpsgd.Trainer(
        twin, optimizer(twin), dataset=(inputs, Y), lot_size=lot, **settings
    ).fit(epochs=2)
    engine, model, optimiser, loader = private(
        model, inputs=inputs, lot=lot, optimizer=optimizer, loss_reduction=reduction
    )
    sizes = []
    for _ in range(2):
        for batch, labels in loader:
            optimiser.zero_grad()
            cross_entropy(model(batch), labels, reduction=reduction).backward()
            optimiser.step()
            sizes.append(engine._run._size)
    assert len(sizes) == engine.steps == trainer.steps == 2 * len(loader)
    assert (lot > 1) != (0 in sizes)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
        if reduction == "sum":
            assert torch.equal(one, other)
    assert engine.guarantee(delta=1e-3) == trainer.epsilon()
    assert engine.get_epsilon(1e-3) == trainer.epsilon().epsilon
    assert not engine.guarantee(delta=1e-3).publishable  # seeded


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e9, math.inf])
def test_one_example_moves_the_sum_by_at_most_the_norm(size, reduction):
    """With 60 examples or the first 59, the first lot of the others and the noise are the same."""
    inputs, labels = X.clone(), Y.clone()
    inputs[-1] = size * X[-1]
    settings = {"reduction": reduction, "lot": 59, "records": 59, "noise_multiplier": 1.0}
    torch.manual_seed(0)
    model = mlp()
    model[2].p = 0.0
    whole = first_gradient(copy.deepcopy(model), inputs=inputs, labels=labels, **settings)
    without = first_gradient(
        copy.deepcopy(model), inputs=inputs[:-1], labels=labels[:-1], **settings
    )
    moved = float((whole - without).norm())
    assert moved <= 0.7 / 59 * 1.001
    if 1 < size < math.inf:
        assert moved >= 0.7 / 59 * 0.999  # clipped, not dropped
    if size == math.inf:
        assert moved == 0


def test_noise_is_added_once_with_the_right_scale():
    wide = nn.Linear(2000, 2, bias=False)
    zeros = torch.zeros(60, 2000)
    gradients = first_gradient(
        wide, inputs=zeros, labels=Y, noise_multiplier=3.0, example_inputs=torch.randn(4, 2000)
    )
    assert float(gradients.std()) == pytest.approx(3.0 * 0.7 / 12, rel=0.08)


def test_gradients_of_lots_add_up_until_they_are_zeroed():
    _, model, optimizer, loader = private(mlp())
    lots, last = [], None
    for inputs, labels in loader:
        cross_entropy(model(inputs), labels).backward()
        now = model[0].weight.grad.clone()
        lots.append(now if last is None else now - last)
        last = now
    assert torch.allclose(model[0].weight.grad, sum(lots))
    optimizer.step()


@pytest.mark.campaign
def test_a_target_is_met_and_never_passed():
    model, engine = mlp(), PrivacyEngine(accountant="prv")
    made = engine.make_private_with_epsilon(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(TensorDataset(X, Y), batch_size=12),
        target_epsilon=3.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.0,
        poisson_sampling=True,
    )
    model, optimizer, loader = made
    for _ in range(2):
        for inputs, labels in loader:
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    assert 2.9 < engine.get_epsilon(1e-3) <= 3.0
    assert engine.guarantee().epsilon == engine.get_epsilon(1e-3)
    assert engine.guarantee().publishable
    with pytest.raises(BudgetExceeded, match="past the target 3"):
        next(iter(loader))
    assert engine.steps == 10


def test_evaluation_copies_and_state_are_as_usual():
    engine, model, optimizer, loader = private(mlp(), records=100)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for inputs, labels in loader:
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    schedule.step()
    model.eval()
    outputs = model(X)
    assert not outputs.requires_grad
    twin = copy.deepcopy(model)
    assert torch.equal(twin(X), outputs)
    model.train()
    with torch.no_grad():
        model(X)
    fresh = mlp()
    fresh.load_state_dict(model.state_dict())
    assert engine.guarantee(delta=1e-3).neighbours.value == "add-remove"
    assert len(loader) == 9  # ⌈100 / 12⌉


def test_a_loader_with_workers_and_dictionaries():
    class Named(torch.utils.data.Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, index):
            return {"x": X[index], "y": Y[index], "name": str(index)}

    model, engine = mlp(), PrivacyEngine()
    settings = {"module": model, "optimizer": sgd(model), "noise_multiplier": 1.0}
    loader = DataLoader(Named(), batch_size=2, num_workers=1)
    with pytest.raises(InvalidInput, match="give example_inputs="):
        engine.make_private(**settings, data_loader=loader, max_grad_norm=1.0)
    model, optimizer, loader = engine.make_private(
        **settings, data_loader=loader, max_grad_norm=1.0, example_inputs=torch.randn(4, 6)
    )
    for batch in loader:
        optimizer.zero_grad()
        cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        empty = engine._run._size == 0
        assert not empty or (float(batch["x"].abs().sum()), batch["name"]) == (0.0, [""])
    assert engine.steps == 30


# --- refusals -------------------------------------------------------------------------------------


def twice(model, x, y):
    cross_entropy(model(x), y).backward()
    cross_entropy(model(x), y).backward()


def again(model, x, y):
    loss = cross_entropy(model(x), y)
    loss.backward()
    loss.backward()


def penalty(model, x, y):
    weights = sum(each.square().sum() for each in model.parameters())
    (cross_entropy(model(x), y) + weights).backward()


def own_weight(model, x, y):
    weight = torch.ones((), requires_grad=True)
    (weight * cross_entropy(model(x), y)).backward()


def around(model, x, y):
    cross_entropy(model[3](model[0](x)), y).backward()


def evaluating(model, x, y):
    model.eval()
    cross_entropy(model(x), y).backward()


def two_crops(model, x, y):
    cross_entropy(model(torch.cat([x, x])), torch.cat([y, y])).backward()


def contrastive(model, x, y):
    outputs = model(x)
    cross_entropy(outputs @ outputs.T, torch.arange(len(x))).backward()


def centred(model, x, y):
    outputs = model(x)
    ((outputs - outputs.mean(0)) ** 2).mean().backward()


def ignored(model, x, y):
    y = y.clone()
    y[0] = -100
    cross_entropy(model(x), y).backward()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (twice, "runs twice in one lot"),
        (again, "call it once for each lot"),
        (penalty, "weight_decay"),
        (own_weight, "the module's output alone"),
        (around, "past clipping and noise"),
        (evaluating, "does not require grad"),
        (two_crops, "in a batch of"),
        (ignored, "divisor depends"),
        (lambda m, x, y: cross_entropy(m(x), y, weight=torch.tensor([1.0, 9.0])).backward(),
         "class weights"),
        (lambda m, x, y: cross_entropy(m(x), y, reduction="sum").backward(),
         'give loss_reduction="sum"'),
        (lambda m, x, y: (cross_entropy(m(x), y, reduction="none").sum() / len(y)).backward(),
         'give loss_reduction="sum"'),
        (lambda m, x, y: cross_entropy(m(x), y, reduction="none")[1:].mean().backward(),
         "a mask"),
        (lambda m, x, y: cross_entropy(m(x), y, reduction="none").backward(), r"use \.mean\(\)"),
        (lambda m, x, y: cross_entropy(m(x), y, reduction="none").max().backward(),
         "in a way that can be checked"),
        (lambda m, x, y: cross_entropy(m(x), y).backward(retain_graph=True), "no arguments"),
        (contrastive, "changes with the others in its lot"),
        (centred, "changes with the others in its lot"),
    ],
)  # fmt: skip
def test_a_loss_that_would_not_be_private(loss, message):
    engine, model, _, loader = private(mlp())
    inputs, labels = next(iter(loader))
    with pytest.raises((PateError, RuntimeError), match=message):
        loss(model, inputs, labels)
    assert engine.steps == 1  # it counts


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: ((out - y[:, None]) ** 2).mean(),
        lambda out, y: ((out - y[:, None]) ** 2).sum(1).mean(),
        lambda out, y: ((out - y[:, None]) ** 2).mean(-1).mean(0),
        lambda out, y: nn.functional.mse_loss(out[:, 0], y.float()) + cross_entropy(out, y) / 2,
        lambda out, y: nn.BCEWithLogitsLoss()(out[:, 1], y.float()),
        lambda out, y: cross_entropy(torch.stack([out, out], 2), torch.stack([y, y], 1)),
        lambda out, y: nn.SmoothL1Loss()(out[:, 0], y.float()),
        lambda out, y: out.relu().mean(),
    ],
)
def test_means_that_are_over_the_examples(loss):
    _, model, optimizer, loader = private(mlp())
    for inputs, labels in loader:
        loss(model(inputs), labels).backward()
        optimizer.step()


def test_steps_and_passes_out_of_order():
    engine, model, optimizer, loader = private(mlp())
    with pytest.raises(InvalidInput, match="outside a lot"):
        model(X)
    inputs, _ = next(iter(loader))
    with pytest.raises(InvalidInput, match=r"comes before loss\.backward"):
        optimizer.step()
    failing = model.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(inputs)
    failing.remove()
    assert all(each.requires_grad for each in model.parameters())
    with pytest.raises(InvalidInput, match="has a model already"):
        engine.make_private(
            module=model, optimizer=optimizer, data_loader=DataLoader(TensorDataset(X, Y)),
            noise_multiplier=1.0, max_grad_norm=1.0,
        )  # fmt: skip
    with pytest.raises(InvalidInput, match="private already"):
        private(model)
    private(copy.deepcopy(model))  # a copy is a model of its own


class Boxed(nn.Module):
    """Returns its output in a dictionary or, in training on demand, in an object."""

    def __init__(self):
        super().__init__()
        self.inside, self.box = mlp(), dict

    def forward(self, x):
        return self.box(logits=self.inside(x))


def test_outputs_may_be_in_a_dictionary_but_not_hidden_in_an_object():
    _, model, optimizer, loader = private(Boxed())
    for number, (inputs, labels) in enumerate(loader):
        if number == 2:
            model.box = types.SimpleNamespace
            with pytest.raises(InvalidInput, match="returns a SimpleNamespace"):
                model(inputs)
            break
        cross_entropy(model(inputs)["logits"], labels).backward()
        optimizer.step()


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"poisson_sampling": False}, "for Poisson sampling"),
        ({"clipping": "per_layer"}, "dpsgd.Trainer"),
        ({"grad_sample_mode": "ghost"}, "leave it out"),
        ({"max_grad_norm": [1.0, 2.0]}, "PerLayer"),
        ({"loss_reduction": "none"}, "loss_reduction"),
        ({"noise_multiplier": 0.0}, "above zero"),
        ({"clip": 1}, "no argument 'clip'"),
    ],
)
def test_arguments_that_cannot_be_honoured(more, message):
    with pytest.raises(InvalidInput, match=message):
        private(mlp(), **more)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Endless(), batch_size=4), "map-style"),
        (DataLoader(TensorDataset(X, Y), sampler=WeightedRandomSampler([1.0] * 60, 60)), "sampler"),
        (DataLoader(TensorDataset(X, Y), batch_size=None), "batch_size"),
        ([(X, Y)], "give a torch DataLoader"),
    ],
)
def test_loaders_that_cannot_be_honoured(loader, message):
    model = mlp()
    with pytest.raises(InvalidInput, match=message):
        PrivacyEngine().make_private(
            module=model, optimizer=sgd(model), data_loader=loader, noise_multiplier=1.0,
            max_grad_norm=1.0,
        )  # fmt: skip


def test_models_are_checked_as_for_the_trainer():
    mixing = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(PateError, match="replaces it by GroupNorm"):
        private(mixing)
    with pytest.raises(InvalidInput, match="call make_private first"):
        PrivacyEngine().get_epsilon(1e-3)
    with pytest.raises(InvalidInput, match="accountant"):
        PrivacyEngine(accountant="gdp")
