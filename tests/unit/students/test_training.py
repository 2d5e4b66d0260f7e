"""The loop: it learns, stops by what it is told, and goes on from a checkpoint bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pate.errors import TeacherError
from pate.students.training import (
    Checkpoint,
    Epoch,
    batches,
    fit_table,
    initialise,
    run_epochs,
    soft_cross_entropy,
)
from pate.teachers.placement import seeded_torch
from pate.teachers.spec import Training
from pate.teachers.torch_teacher import TorchTeacher


def made(**training):
    with seeded_torch(0):
        net = nn.Sequential(
            nn.LazyLinear(16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
        )
    spec = Training(**{"optimizer": "adamw", "lr": 0.02, "batch_size": 16, **training})
    return initialise(TorchTeacher(net, training=spec, classes=3, seed=0), torch.zeros(2, 5))


def data(n=90):
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(n) % 3
    inputs = torch.eye(3, 5)[labels] * 2 + torch.randn(n, 5, generator=generator)
    return inputs, nn.functional.one_hot(labels, 3).float(), labels


def noisy(batch, generator):
    return batch + 0.1 * torch.randn(batch.shape, generator=generator)


def fit(teacher, *, epochs=6, **settings):
    inputs, targets, _ = data()
    fit_table(teacher, inputs, targets, augment=noisy, epochs=epochs, seed=5, **settings)
    return teacher


def weights(teacher):
    return torch.cat([v.double().flatten() for v in teacher.module.state_dict().values()])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_it_learns_and_repeats_itself(optimizer, average):
    inputs, _, labels = data()
    once = fit(made(optimizer=optimizer), average=average)
    assert (once.module(inputs).argmax(dim=1) == labels).float().mean() > 0.8
    again = fit(made(optimizer=optimizer), average=average)
    assert torch.equal(weights(once), weights(again))


class Killed(Exception):
    pass


@pytest.mark.parametrize("average", [0.0, 0.9])
@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.sample(4)
def test_a_checkpoint_goes_on_bit_for_bit(optimizer, scored, average, tmp_path):
    inputs, _, labels = data()

    def score(module):
        with torch.no_grad():
            return float((module(inputs).argmax(dim=1) == labels).float().mean())

    settings = {"average": average, "score": score if scored else None, "patience": 9}
    whole = fit(made(optimizer=optimizer), **settings)
    checkpoint = Checkpoint(path=tmp_path / "deep" / "epochs.safetensors", identity="me")
    passed = []

    def advance(count):
        passed.append(count)
        if sum(passed) == 3:
            raise Killed

    with pytest.raises(Killed):
        fit(made(optimizer=optimizer), checkpoint=checkpoint, advance=advance, **settings)
    told = []
    rest = fit(made(optimizer=optimizer), checkpoint=checkpoint, advance=told.append, **settings)
    assert told == [3, 1, 1, 1]
    assert torch.equal(weights(rest), weights(whole))
    told.clear()
    over = fit(made(optimizer=optimizer), checkpoint=checkpoint, advance=told.append, **settings)
    assert told == [6]
    assert torch.equal(weights(over), weights(whole))


def test_other_checkpoints_count_for_nothing(tmp_path):
    path = tmp_path / "epochs.safetensors"
    whole = weights(fit(made()))

    def again(identity="me", name="round 1"):
        told = []
        checkpoint = Checkpoint(path=path, identity=identity)
        teacher = fit(made(), checkpoint=checkpoint, name=name, advance=told.append)
        assert torch.equal(weights(teacher), whole)
        return told[0]

    assert again() == 0
    assert again() == 6
    assert again(name="round 2") == 0
    assert again(name="round 2") == 6
    assert again(identity="other", name="round 2") == 0
    path.write_bytes(path.read_bytes()[:-100])
    assert again(identity="other", name="round 2") == 0
    assert not list(tmp_path.glob(".*-*"))


def test_stopping_keeps_the_best_epoch():
    scores = iter([0.2, 0.7, 0.6, 0.7, 0.7, 0.9])
    seen, told = [], []

    def score(module):
        seen.append(torch.cat([v.double().flatten() for v in module.state_dict().values()]))
        return next(scores)

    stopped = fit(made(), score=score, patience=3, advance=told.append)
    assert len(seen) == 5  # nothing beat 0.7 in three epochs
    assert torch.equal(weights(stopped), seen[4])  # the last among equals
    assert sum(told) == 6


def test_the_average_is_smoother_than_the_weights():
    plain, averaged = fit(made()), fit(made(), average=0.9)
    assert not torch.equal(weights(plain), weights(averaged))
    torch.testing.assert_close(weights(plain), weights(averaged), rtol=0.5, atol=0.5)


def test_the_rate_rises_and_falls():
    module, rates = nn.Linear(2, 1), []

    def losses(epoch: Epoch):
        for _ in range(10):
            before = module.weight.detach().clone()
            yield module.weight.sum()
            rates.append(float((before - module.weight.detach()).abs().max()))

    run_epochs(
        module, losses, epochs=4, steps=10, training=Training(lr=0.1, optimizer="adam"), seed=0
    )
    assert rates[0] == pytest.approx(0.01, rel=1e-3)
    assert max(rates) == pytest.approx(0.1, rel=1e-2)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] < 0.001


def test_soft_targets_and_smoothing():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
    hard = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])
    entropy = nn.functional.cross_entropy
    classes = torch.tensor([0, 2])
    each = entropy(logits, classes, reduction="none")
    torch.testing.assert_close(soft_cross_entropy(logits, hard), each)
    smooth = entropy(logits, classes, label_smoothing=0.2)
    torch.testing.assert_close(soft_cross_entropy(logits, hard, smoothing=0.2).mean(), smooth)


@pytest.mark.parametrize(("n", "size"), [(1, 4), (5, 4), (9, 4), (128, 128), (129, 128)])
def test_batches_hold_everything_once(n, size):
    parts = batches(torch.arange(n), size)
    assert torch.equal(torch.cat(parts), torch.arange(n))
    assert len(parts) == math.ceil(n / size)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert n == 1 or min(map(len, parts)) > 1


def test_a_rate_that_is_too_large_is_named():
    with pytest.raises(TeacherError, match=r"not finite in epoch .*; lower 'lr'"):
        fit(made(lr=1e30, optimizer="sgd"))
