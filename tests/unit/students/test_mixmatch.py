"""MixMatch: sharpening, mixing, and settings that matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pate.students.semi_supervised import mixup, sharpen
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, train_student


def weights(**settings):
    truth = np.arange(60) % 3
    inputs = np.eye(3, 5)[truth] * 3 + np.random.default_rng(1).normal(size=(60, 5))
    data = StudentData(inputs=inputs, rows=[0, 1, 2, 3], labels=[0, 1, 2, 0], classes=3)
    spec = StudentSpec(
        model="mlp",
        params={"hidden": [8]},
        method="mixmatch",
        epochs=3,
        batch_size=20,
        mixmatch=settings,
    )
    student = train_student(spec, data)
    return torch.cat([v.double().flatten() for v in student.module.state_dict().values()])


def test_sharpening():
    table = torch.rand(50, 5, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    torch.testing.assert_close(sharpen(table, temperature=1.0), table)
    half = sharpen(table, temperature=0.5)
    torch.testing.assert_close(half, table**2 / (table**2).sum(dim=1, keepdim=True))
    hard = sharpen(table, temperature=1e-3)
    assert torch.equal(hard.argmax(dim=1), table.argmax(dim=1))
    assert float(hard.max(dim=1).values.mean()) > 0.95
    certain = torch.tensor([[1.0, 0.0], [1e-30, 1.0]])
    torch.testing.assert_close(sharpen(certain, temperature=0.1), certain.round())


@pytest.mark.parametrize("shape", [(3,), (4, 4), (4, 4, 2)])
def test_mixing_is_of_pairs_inputs_and_targets_alike(shape):
    """An input that holds its own target in every number still does after mixing."""
    n = 200
    targets = torch.rand(n, 1, generator=torch.Generator().manual_seed(0))
    inputs = targets.view(n, *[1] * len(shape)).expand(n, *shape)
    generator = torch.Generator().manual_seed(1)
    found, said = mixup(inputs, targets, alpha=0.75, generator=generator)
    torch.testing.assert_close(found, said.view(n, *[1] * len(shape)).expand(n, *shape))
    assert not torch.equal(said, targets)


def test_the_own_part_is_at_least_a_half():
    own = torch.eye(300)
    _, said = mixup(own, own, alpha=0.75, generator=torch.Generator().manual_seed(0))
    parts = said.diagonal()
    assert float(parts.min()) >= 0.5
    assert float(parts.min()) < 0.55
    torch.testing.assert_close(said.sum(dim=1), torch.ones(300))
    # Of Beta(α, α), the larger part is nearer to one the smaller α is.
    _, little = mixup(own, own, alpha=0.05, generator=torch.Generator().manual_seed(0))
    assert float(little.diagonal().mean()) > float(parts.mean()) + 0.1


def test_every_setting_matters():
    basis = weights()
    assert torch.equal(basis, weights())
    for changes in (
        {"guesses": 3},
        {"temperature": 1.0},
        {"alpha": 0.1},
        {"weight": 10.0},
        {"ramp": 0.0},
        {"labelled": 2},
        {"noise": 0.0},
    ):
        assert not torch.equal(weights(**changes), basis), changes
