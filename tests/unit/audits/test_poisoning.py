"""Poisoned records: bounds for one record from a group, and the ladder of attackers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from pate.audits.poisoning import audit_poisoned_shard, audit_poisoning
from pate.audits.statistics import epsilon_at_least
from pate.errors import InvalidInput
from pate.mechanisms import ConfidentGnmax, LaplaceNoisyMax

RECORDS = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
LABELS = np.arange(30) % 2


def line():
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def test_a_ladder_of_attackers_stays_below_the_claim():
    trigger = np.array([[0.0, 0.0, 5.0]]).repeat(2, axis=0)
    found = audit_poisoning(
        line,
        RECORDS,
        LABELS,
        poison=(trigger, [1, 1]),
        trainings=60,
        sample_rate=0.5,
        noise_multiplier=0.5,
        max_grad_norm=1.0,
        steps=2,
        delta=1e-3,
        confidence=0.999,
        insecure_seed=1,
    )
    assert [each.attack for each in found] == [
        "back door, 2 poisoned",
        "final weights, 2 poisoned",
        "every step, 2 poisoned",
        "chosen gradient, 1 poisoned",
    ]
    for each in found:
        assert 0 <= each.epsilon <= each.largest_possible
        assert each.epsilon < each.values["claimed ε"]
    assert found[-1].epsilon > 0


def test_the_observer_starts_every_training_afresh():
    """With hardly any noise all trainings on one data set give the same scores."""
    seen = []

    def recorded(one, other, **known):
        seen.append((np.asarray(one), np.asarray(other)))
        return epsilon_at_least(one, other, **known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pate.audits.poisoning.epsilon_at_least", recorded)
        audit_poisoning(
            line,
            RECORDS,
            LABELS,
            poison=(np.full((1, 3), 3.0), [0]),
            trainings=4,
            sample_rate=1.0,
            noise_multiplier=0.1,
            max_grad_norm=1e-3,
            steps=2,
            delta=1e-3,
            insecure_seed=2,
        )
    for one, other in seen[:6:2]:  # each is followed by the largest possible
        gap = one.mean() - other.mean()
        assert gap > 5 * max(one.std(), other.std())


def test_a_group_shares_the_bound():
    one, other = np.ones(1000), np.zeros(1000)
    single, group = (epsilon_at_least(one, other, delta=1e-9, copies=k) for k in (1, 4))
    assert group == pytest.approx(single / 4, rel=1e-3)
    assert epsilon_at_least(one, other, delta=0.2, copies=4) < group / 4  # δ grows with the group


@pytest.mark.parametrize(
    "mechanism",
    [LaplaceNoisyMax(scale=1.0), ConfidentGnmax(threshold=4.0, sigma1=2.0, sigma2=1.0)],
)
@pytest.mark.parametrize("poisoned", [1, 2])
def test_a_poisoned_shard_shows_less_than_is_claimed(mechanism, poisoned):
    far = np.full((poisoned, 3), 50.0) + np.arange(poisoned)[:, None]
    found = audit_poisoned_shard(
        RECORDS,
        np.ones(30),
        poison=(far, np.zeros(poisoned)),
        queries=far,
        mechanism=mechanism,
        model=KNeighborsClassifier(n_neighbors=1),
        classes=2,
        teachers=5,
        delta=1e-6,
        confidence=0.999,
        insecure_seed=3,
    )
    assert 0 < found.firm_epsilon < found.epsilon < found.values["claimed ε"]
    assert found.epsilon < found.largest_possible
    assert found.contradicts(0.9 * found.firm_epsilon)


def test_poison_must_match():
    with pytest.raises(InvalidInput, match="1 poisoned inputs and 2 targets"):
        audit_poisoning(
            line,
            RECORDS,
            LABELS,
            poison=(np.zeros((1, 3)), [0, 1]),
            sample_rate=0.5,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            steps=1,
            delta=1e-3,
        )
    assert torch.is_grad_enabled()
