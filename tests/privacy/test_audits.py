"""Audits: the real mechanisms and the real trainer on worst-case neighbours, with secure noise.

Each audit gives a lower bound on ε (:mod:`pate.audits.statistics`) that exceeds a sound claim in
one of a million runs. With the noise halved behind the claim's back the same audit must exceed it.
Power: with halved noise the mean of the bound lies 6 or more of its standard deviations above the
claim (measured: 10 to 27 for votes, 6.5 and 18 for trainings; ``test_the_power_of_the_audits``
measures it again), so that the fault is missed with a probability far below 1e-3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from randomgen import ChaCha
from torch import nn

from dpsgd import Trainer
from dpsgd.noise import SecureNoise, SeededNoise
from dpsgd.step import PrivateStep
from pate.accounting import compose
from pate.audits.statistics import epsilon_at_least, likelihood_scores
from pate.mechanisms import (
    ConfidentGnmax,
    GaussianNoisyMax,
    InteractiveGnmax,
    LaplaceNoisyMax,
    insecure_generator,
    secure_generator,
)
from pate.votes import Votes

DELTA = 0.01
FAULT = pytest.mark.parametrize("noise", ["right", "halved"])


class Halved(np.random.Generator):
    """A generator whose noise is half as large as it is asked for."""

    def laplace(self, loc=0.0, scale=1.0, size=None):
        return super().laplace(loc, scale / 2, size)

    def normal(self, loc=0.0, scale=1.0, size=None):
        return super().normal(loc, scale / 2, size)


@dataclass(frozen=True, kw_only=True)
class VotingAudit:
    """``answers`` queries with the same votes, asked in ``runs`` independent releases."""

    mechanism: Any
    one: tuple[int, ...]  # votes; one record moves one teacher's vote
    other: tuple[int, ...]
    answers: int
    runs: int = 200_000
    student: tuple[float, ...] | None = None

    def claim(self):
        events = self.mechanism.caps(queries=self.answers, answers=self.answers)
        return compose(list(events)).guarantee(delta=DELTA).epsilon

    def bound(self, *, halved, seed=None):
        """With halved noise, that of a seed if one is given."""
        seeds = np.random.SeedSequence(seed).spawn(2)
        rngs = [Halved(ChaCha(each)) if halved else secure_generator() for each in seeds]
        outcomes = list(map(self._outcomes, (self.one, self.other), rngs))
        kinds = 1 + len(self.one)
        return epsilon_at_least(*likelihood_scores(*outcomes, kinds=kinds), delta=DELTA)

    def _outcomes(self, votes, rng):
        """Of every query: 0 where it was not answered, else 1 + the label."""
        asked = self.runs * self.answers
        more = {} if self.student is None else {"student": np.tile(self.student, (asked, 1))}
        given = self.mechanism.release(
            Votes(counts=np.tile(np.array(votes, dtype=np.int64), (asked, 1))),
            rng=rng,
            **more,
        )
        outcomes = np.zeros(asked, dtype=np.int64)
        outcomes[given.answered] = 1 + given.labels
        return outcomes.reshape(self.runs, self.answers)


# Checks alone: answers have noise so large that they cost nothing. Answers alone: thousands of
# votes pass every check, whose noise is large beside one record.
CHECKS = {"threshold": 12.0, "sigma1": 1.5, "sigma2": 1e4}
ANSWERS = {"threshold": 1.0, "sigma1": 100.0, "sigma2": 2.0}

VOTING = {
    "lnmax, one answer": VotingAudit(
        mechanism=LaplaceNoisyMax(scale=1.0), one=(3, 0), other=(2, 1), answers=1
    ),
    "lnmax, two answers": VotingAudit(
        mechanism=LaplaceNoisyMax(scale=1.0), one=(2, 0), other=(1, 1), answers=2
    ),
    "gnmax, one answer": VotingAudit(
        mechanism=GaussianNoisyMax(sigma=1.5), one=(3, 0), other=(2, 1), answers=1
    ),
    "gnmax, two answers": VotingAudit(
        mechanism=GaussianNoisyMax(sigma=2.0), one=(3, 0), other=(2, 1), answers=2
    ),
    "confident, check": VotingAudit(
        mechanism=ConfidentGnmax(**CHECKS), one=(10, 2), other=(11, 1), answers=1
    ),
    "confident, two answers": VotingAudit(
        mechanism=ConfidentGnmax(**ANSWERS), one=(5003, 5000), other=(5002, 5001), answers=2
    ),
    # A student that is sure of the third class: the others lead by all their votes.
    "interactive, check": VotingAudit(
        mechanism=InteractiveGnmax(**CHECKS),
        one=(10, 2, 0),
        other=(11, 1, 0),
        answers=1,
        student=(0.0, 0.0, 1.0),
    ),
    "interactive, two answers": VotingAudit(
        mechanism=InteractiveGnmax(**ANSWERS),
        one=(5003, 5000, 0),
        other=(5002, 5001, 0),
        answers=2,
        student=(0.0, 0.0, 1.0),
    ),
}


@dataclass(frozen=True, kw_only=True)
class TrainerAudit:
    """Many canaries in one training, each the only record that reaches its own two weights.

    Canary i is the only record whose feature i is not zero; half of them, drawn by lot, are zeroed
    out, so that nothing but noise reaches their weights. Sampling, clipping and noise of different
    canaries are independent, so one training is as many audits as there are canaries. The score is
    the movement of a canary's weights along the only direction that its gradient can have.
    """

    share: float  # of the records in a lot, on average
    steps: int
    noise_multiplier: float
    canaries: int = 1000
    trainings: int = 128
    records: int | None = None  # of each canary, which is then a user of so many records

    def bound_and_claim(self, *, seed=None):
        """With secure noise, or with that of a seed."""
        present, absent, claims = [], [], set()
        for number in range(self.trainings):
            own = None if seed is None else seed * self.trainings + number
            rng = secure_generator() if own is None else insecure_generator(own)
            there = np.zeros(self.canaries, dtype=bool)
            there[rng.permutation(self.canaries)[::2]] = True
            moved, claim = self._train(torch.from_numpy(there), seed=own)
            present.append(moved[there])
            absent.append(moved[~there])
            claims.add(claim)
        (claim,) = claims
        found = epsilon_at_least(np.concatenate(present), np.concatenate(absent), delta=DELTA)
        return found, claim

    def _train(self, there, *, seed):
        model = nn.Linear(self.canaries, 2, bias=False)
        nn.init.zeros_(model.weight)
        inputs = torch.diag(100.0 * there)  # far beyond the norm that a gradient is clipped to
        inputs = inputs.repeat(self.records or 1, 1)
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=1e-5),  # so small that gradients stay there
            dataset=(inputs, torch.zeros(len(inputs), dtype=torch.long)),
            groups=None if self.records is None else np.arange(len(inputs)) % self.canaries,
            lot_size=self.share * self.canaries,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=0.7,
            delta=DELTA,
            insecure_seed=seed,
        ).fit(steps=self.steps)
        weights = model.weight.detach().double().numpy()
        return weights[0] - weights[1], trainer.epsilon().epsilon


TRAINING = {
    "four steps on all records": TrainerAudit(share=1.0, steps=4, noise_multiplier=2.0),
    "a step on half of them": TrainerAudit(share=0.5, steps=1, noise_multiplier=1.0),
}
# Gradients of all records are laid out, and there are as many weights as canaries.
BY_USER = TrainerAudit(
    share=0.5, steps=1, noise_multiplier=1.0, canaries=200, trainings=320, records=3
)


def halve(monkeypatch):
    """Noise of half the size, for whoever asks."""
    fill = SecureNoise.fill
    for kind in (SecureNoise, SeededNoise):  # of which this is one and the same
        monkeypatch.setattr(
            kind, "fill", lambda self, to, stds: fill(self, to, [std / 2 for std in stds])
        )


@FAULT
@pytest.mark.parametrize("audit", VOTING.values(), ids=VOTING)
def test_answers_keep_their_epsilon(audit, noise):
    bound = audit.bound(halved=noise == "halved")
    assert (bound > audit.claim()) == (noise == "halved"), f"ε ≥ {bound}, claimed {audit.claim()}"
    assert bound > 0.3 * audit.claim()  # the audit sees most of what is there


@FAULT
@pytest.mark.parametrize("audit", TRAINING.values(), ids=TRAINING)
@pytest.mark.campaign
def test_a_training_keeps_its_epsilon(audit, noise, monkeypatch):
    if noise == "halved":
        halve(monkeypatch)
    bound, claim = audit.bound_and_claim()
    assert (bound > claim) == (noise == "halved"), f"ε ≥ {bound}, claimed {claim}"
    assert bound > 0.3 * claim


@pytest.mark.parametrize("fault", [None, "halved noise", "records clipped one by one"])
@pytest.mark.campaign
def test_a_training_by_users_keeps_the_epsilon_of_one_user(fault, monkeypatch):
    if fault == "halved noise":
        halve(monkeypatch)
    elif fault is not None:
        monkeypatch.setattr(
            PrivateStep,
            "_add_users",
            lambda self, lot, step: self._add_records(self.users.records_of(lot)[0], step),
        )
    bound, claim = BY_USER.bound_and_claim()
    assert (bound > claim) == (fault is not None), f"ε ≥ {bound}, claimed {claim}"
    assert bound > 0.3 * claim


@pytest.mark.campaign
@pytest.mark.parametrize("audit", [*VOTING.values(), *TRAINING.values()], ids=[*VOTING, *TRAINING])
def test_the_power_of_the_audits(audit, monkeypatch):
    """Halved noise: the bound lies 3.5 standard deviations or more above the claim on average.

    A bound is a smooth function of two binomial counts of a hundred or more, so close to normal:
    it falls below the claim with a probability of at most 3e-4. The standard deviation of a few
    runs is itself uncertain, which is why 3.5 is asked for where 6 are there, and seeds are given.
    """
    if isinstance(audit, VotingAudit):
        claim, bounds = audit.claim(), [audit.bound(halved=True, seed=n) for n in range(20)]
    else:
        halve(monkeypatch)
        found = [audit.bound_and_claim(seed=n) for n in range(5)]
        claim, bounds = found[0][1], [bound for bound, _ in found]
    mean, spread = np.mean(bounds), np.std(bounds, ddof=1)
    print(f"\nclaimed {claim:.3f}, found {mean:.3f} ± {spread:.3f}")
    assert min(bounds) > claim
    assert mean - claim > 3.5 * spread
