"""make_private: noise for a target, with the argument names people know."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpsgd import PerLayer, make_private
from dpsgd.plan import noise_for
from pate.accounting import Gaussian, Repeated, SampledGaussian, compose, pld_guarantee
from pate.errors import BudgetExceeded, InvalidInput

X = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def private(**more):
    model = nn.Linear(4, 2)
    settings = {
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": (X, Y), "target_epsilon": 2.0, "target_delta": 1e-4, "epochs": 3,
        "max_grad_norm": 1.0, **more,
    }  # fmt: skip
    return make_private(**settings)


def test_the_target_is_met_and_nearly_used_up():
    trainer = private()
    assert trainer._step.lot_size == 20  # √400
    trainer.fit(epochs=3)
    assert 1.999 < trainer.epsilon().epsilon <= 2.0
    assert trainer.stopped_because is None
    assert trainer.epsilon().publishable
    trainer.fit(epochs=6)  # nothing goes beyond the target
    assert trainer.epsilon().epsilon <= 2.0
    assert "ε = 2" in trainer.stopped_because
    with pytest.raises(BudgetExceeded):
        trainer.step()


def test_what_came_before_is_counted_in():
    prior = (Gaussian(noise_multiplier=5.0),)
    trainer = private(prior_events=prior, lot_size=40).fit(epochs=3)
    z = trainer.spending.noise_multiplier.value
    steps = Repeated(SampledGaussian(sample_rate=0.1, noise_multiplier=z), 30)
    together = compose([*prior, steps]).guarantee(delta=1e-4).epsilon
    assert 1.999 < together <= 2.0
    assert trainer.epsilon().epsilon == together
    with pytest.raises(InvalidInput, match="before the steps costs"):
        private(prior_events=(Gaussian(noise_multiplier=1.0),))


@pytest.mark.campaign
def test_loss_distributions_need_less_noise():
    settings = {"target_epsilon": 0.7, "delta": 1e-4, "sample_rate": 0.2, "steps": 50}
    tight = noise_for(**settings, accountant="pld")
    assert 0.8 < tight / noise_for(**settings) < 1
    step = SampledGaussian(sample_rate=0.2, noise_multiplier=tight)
    assert 0.699 < pld_guarantee([Repeated(step, 50)], delta=1e-4).epsilon <= 0.7


def test_noise_may_be_given_instead_and_everything_else_passed_on():
    trainer = private(
        target_epsilon=None, noise_multiplier=1.1, max_grad_norm=None, clipping=PerLayer(1.0),
        lot_size=30, batch_size=8, noise="fast", loss="cross_entropy",
    )  # fmt: skip
    assert trainer.spending.noise_multiplier.value == 1.1
    assert trainer.max_epsilon is None
    assert trainer.fit(steps=2).epsilon().caveats


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target_epsilon": None}, "exactly one"),
        ({"noise_multiplier": 1.0}, "exactly one"),
        ({"epochs": 0}, "whole number, 1 or more"),
        ({"target_epsilon": -1.0}, "above zero"),
        ({"target_delta": 0.0}, "delta"),
        ({"dataset": (X[:0], Y[:0])}, "empty"),
        ({"lot_size": 500}, "larger than"),
        ({"accountant": "guess"}, "moments"),
    ],
)
def test_mistakes_are_refused(change, words):
    with pytest.raises(InvalidInput, match=words):
        private(**change)
