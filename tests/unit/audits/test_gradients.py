"""Gradient canaries: exact where there is no noise, and near the claim in one training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from dpsgd import Trainer
from pate.accounting import Repeated, SampledGaussian
from pate.audits.gradients import (
    _log_likelihood_ratio,
    audit_dpsgd,
    canary_scores,
    toss,
    trade_off_of,
)
from pate.audits.statistics import contradicts_trade_off, right_guesses
from pate.errors import InvalidInput

RECORDS = np.random.default_rng(0).normal(size=(50, 2, 3))
LABELS = np.arange(50) % 4


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def test_without_noise_every_canary_is_found():
    coins = toss(200, insecure_seed=1)
    known = {"sample_rate": 1.0, "max_grad_norm": 0.3, "steps": 3, "delta": 1e-3}
    scores, _ = canary_scores(
        network(), RECORDS, LABELS, coins=coins, noise_multiplier=0.05, insecure_seed=1, **known
    )
    assert np.array_equal(scores > 0, coins)
    # Each step adds exactly the clipping norm: (1 − ½)/z² in, −½/z² out, up to the noise.
    assert scores[coins].mean() == pytest.approx(3 * 0.5 / 0.05**2, rel=0.02)
    assert scores[~coins].mean() == pytest.approx(-3 * 0.5 / 0.05**2, rel=0.02)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        ("cross_entropy", LABELS),
        ("squared_error", np.eye(4)[LABELS]),
        ("binary_cross_entropy", np.eye(4)[LABELS]),
    ],
)
def test_canaries_suit_every_loss(loss, targets):
    coins = toss(50, insecure_seed=2)
    known = {"sample_rate": 1.0, "max_grad_norm": 0.3, "steps": 1, "delta": 1e-3, "loss": loss}
    scores, _ = canary_scores(
        network(), RECORDS, targets, coins=coins, noise_multiplier=0.05, insecure_seed=2, **known
    )
    assert np.array_equal(scores > 0, coins)


def test_the_model_learns_as_without_canaries():
    """No noise to speak of, lots of all records: the weights move as those of a plain trainer."""
    audited, plain = network(), network()
    known = {"noise_multiplier": 1e-6, "max_grad_norm": 0.3, "delta": 1e-3, "insecure_seed": 3}
    canary_scores(
        audited, RECORDS, LABELS, coins=np.ones(10, bool), sample_rate=1.0, steps=2, **known
    )
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    Trainer(plain, optimizer, dataset=(RECORDS, LABELS), records=60, lot_size=60, **known).fit(
        steps=2
    )
    for one, other in zip(audited.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_finding_stays_below_the_claim_and_shows_what_could_be_found():
    known = {"sample_rate": 1.0, "max_grad_norm": 0.3, "steps": 2, "delta": 1e-5}
    found = audit_dpsgd(
        network(), RECORDS, LABELS, canaries=3000, noise_multiplier=2.0, insecure_seed=4, **known
    )
    anyhow = found.values["ε without the form of DP-SGD"]
    assert 0 < anyhow < found.epsilon < found.values["claimed ε"] < found.largest_possible
    assert found.confidence == 0.95


def test_sound_sampling_is_rarely_contradicted_by_its_own_trade_off():
    """Of 200 audits with an error of 20 %, 40 ± 6 at most; a quarter of the noise is found."""
    rng, rate, steps, canaries = np.random.default_rng(5), 0.2, 10, 400
    step = SampledGaussian(sample_rate=rate, noise_multiplier=0.8)
    trade_off = trade_off_of([Repeated(step, steps)])
    wrong = {}
    for noise in (0.8, 0.2):
        wrong[noise] = 0
        for _ in range(200):
            coins = rng.random(canaries) < 0.5
            present = coins & (rng.random((steps, canaries)) < rate)
            seen = present + noise * rng.normal(size=present.shape)
            scores = _log_likelihood_ratio(seen, rate, noise).sum(axis=0)
            ((guesses, right),) = right_guesses(scores, coins, guesses=200)
            known = {"canaries": canaries, "guesses": guesses, "right": right}
            wrong[noise] += contradicts_trade_off(trade_off, error=0.2, **known)
    assert wrong[0.8] <= 76
    assert wrong[0.2] >= 180


def test_inputs_and_targets_must_match():
    with pytest.raises(InvalidInput, match="50 inputs and 49 targets"):
        audit_dpsgd(
            network(),
            RECORDS,
            LABELS[1:],
            sample_rate=1.0,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            steps=1,
            delta=1e-3,
        )


@pytest.mark.campaign
def test_one_training_shows_half_of_its_epsilon():
    """The digits, 200 steps with lots of a tenth of all records, ε = 5.05 at δ = 1e-5."""
    inputs, labels = load_digits(return_X_y=True)
    torch.manual_seed(0)
    found = audit_dpsgd(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        inputs / 16,
        labels,
        canaries=50_000,
        sample_rate=0.1,
        noise_multiplier=1.5,
        max_grad_norm=1.0,
        steps=200,
        delta=1e-5,
        insecure_seed=0,
    )
    assert 0.5 * found.values["claimed ε"] < found.epsilon < found.values["claimed ε"]
