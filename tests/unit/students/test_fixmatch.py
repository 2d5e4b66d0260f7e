"""FixMatch: which guesses are learnt from, and how they keep to the shares of classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pate.students.semi_supervised import align_distribution, expected_shares, prepare
from pate.students.spec import StudentSpec
from pate.students.train import StudentData, Tools, train_student


def made(labels=(0, 1, 2, 0), **settings):
    truth = np.arange(60) % 3
    inputs = np.eye(3, 5)[truth] * 3 + np.random.default_rng(1).normal(size=(60, 5))
    data = StudentData(inputs=inputs, rows=np.arange(len(labels)), labels=labels, classes=3)
    spec = StudentSpec(
        model="mlp",
        params={"hidden": [8]},
        method="fixmatch",
        epochs=3,
        batch_size=20,
        fixmatch=settings,
    )
    return spec, data


def weights(spec, data):
    student = train_student(spec, data)
    return torch.cat([v.double().flatten() for v in student.module.state_dict().values()])


def test_alignment_brings_the_mean_to_the_goal():
    guess = torch.rand(500, 4, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    goal = torch.tensor([0.1, 0.2, 0.3, 0.4])
    moved = align_distribution(guess, average=guess.mean(dim=0), goal=goal)
    torch.testing.assert_close(moved.sum(dim=1), torch.ones(500))
    torch.testing.assert_close(moved.mean(dim=0), goal, rtol=0, atol=0.01)
    same = align_distribution(guess, average=goal, goal=goal)
    torch.testing.assert_close(same, guess)


def test_alignment_survives_a_class_that_is_never_said():
    moved = align_distribution(
        torch.tensor([[1.0, 0.0], [0.5, 0.5]]),
        average=torch.tensor([1.0, 0.0]),
        goal=torch.tensor([0.5, 0.5]),
    )
    assert torch.isfinite(moved).all()
    torch.testing.assert_close(moved[0], torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("trust", "shares"),
    [(0, [0.75, 0.25, 0]), (4, [0.625, 0.375, 0]), (1e9, [0.5, 0.5, 0])],
)
def test_shares_are_those_of_the_labels_drawn_towards_equal(trust, shares):
    spec, data = made(labels=[0, 0, 1, 0])
    task = prepare(spec, data, Tools(spec=spec, classes=3))
    torch.testing.assert_close(expected_shares(task, trust=trust), torch.tensor(shares))


def test_every_setting_matters():
    basis = weights(*made(confidence=0.4))
    assert torch.equal(basis, weights(*made(confidence=0.4)))
    for changes in (
        {"confidence": 1.0},
        {"weight": 0.5},
        {"labelled": 2},
        {"strong": "none"},
        {"noise": 1.0},
        {"align": False},
        {"trust": 0.0},
    ):
        found = weights(*made(**({"confidence": 0.4} | changes)))
        assert not torch.equal(found, basis), changes


def test_what_is_unsure_has_no_say():
    """At a confidence that nothing reaches, the unlabelled part weighs nothing."""
    for weight in (0.0, 7.0):
        found = weights(*made(confidence=1.0, align=False, weight=weight))
        if weight == 0.0:
            basis = found
    torch.testing.assert_close(found, basis, rtol=0, atol=0)
