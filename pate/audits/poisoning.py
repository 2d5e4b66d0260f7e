"""Poisoning: two data sets that differ by chosen records, and many short trainings on either.

For DP-SGD a ladder of attackers (Nasr, Songs, Thakurta, Papernot & Carlini 2021), who see more and
more: the final model's loss on the poisoned records, which is the back door of Jagielski, Ullman &
Oprea 2020; the final weights; every step; and last an attacker who chooses the gradient itself. For
PATE the poisoned shard: records that turn the votes of the teachers that they reach.

All trainings of an audit are its own: none is charged, and nothing of them may be released.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dpsgd import Trainer
from pate._validate import check_whole
from pate.accounting import compose
from pate.audits.findings import FIRM, Finding
from pate.audits.gradients import canary_scores, toss
from pate.audits.statistics import epsilon_at_least, likelihood_scores
from pate.ensemble import train_teachers, vote
from pate.errors import InvalidInput
from pate.mechanisms import Mechanism
from pate.randomness import Randomness
from pate.votes import Votes

_SOURCES = ("Jagielski, Ullman & Oprea 2020", *("Nasr et al. 2021",) * 3)
_KNOWLEDGE = (
    "the final model's loss on the poisoned records",
    "the final weights and the first ones",
    "the noised sum of every step",
    "the noised sum of every step, for a gradient of the attacker's own",
)
_ATTACKS = ("back door", "final weights", "every step", "chosen gradient")
_INSERTED = 500  # gradients of the attacker's own in one training
_SURE = {"error": 1 - FIRM}


def audit_poisoning(
    make_model: Callable[[], nn.Module],
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    poison: tuple[ArrayLike, ArrayLike],
    trainings: int = 200,
    sample_rate: float,
    noise_multiplier: float,
    max_grad_norm: float,
    steps: int,
    delta: float,
    learning_rate: float = 0.5,
    confidence: float = 0.95,
    insecure_seed: int | None = None,
) -> tuple[Finding, ...]:
    """Train many models by DP-SGD with and without poisoned records; climb a ladder of attackers.

    Parameters
    ----------
    make_model : callable
        Returns the untrained model, the same each time.
    inputs, targets : array-like
        The records, and their classes.
    poison : pair of array-like
        Inputs and classes of the poisoned records, such as one input with a trigger, several times.
    trainings : int, default=200
        The number of trainings with them, and of trainings without.
    sample_rate, noise_multiplier, max_grad_norm, steps, delta
        As in :func:`~pate.audits.gradients.audit_dpsgd`.
    learning_rate : float, default=0.5
        That of plain SGD.
    confidence : float, default=0.95
        The probability with which each bound holds.
    insecure_seed : int, optional
        Seeds lots and noise, for tests.

    Returns
    -------
    tuple of Finding
        One for each attacker, from the weakest to the strongest. The bounds are for one record,
        however many are poisoned; the last is for one chosen gradient.

    Guarantees:
        Trainings are independent, so :func:`~pate.audits.statistics.epsilon_at_least` holds for the
        group of poisoned records. Chosen gradients are in coordinates of their own, which makes
        those of one training independent as well.
    """
    check_whole("trainings", trainings, least=4)
    clean = np.asarray(inputs, np.float32), np.asarray(targets)
    bad = np.asarray(poison[0], np.float32), np.asarray(poison[1])
    if len(bad[0]) != len(bad[1]) or not len(bad[0]):
        raise InvalidInput(f"{len(bad[0])} poisoned inputs and {len(bad[1])} targets do not match")
    agreed = len(clean[1]) + len(bad[1])
    settings: dict[str, Any] = {
        "lot_size": sample_rate * agreed,
        "noise_multiplier": noise_multiplier,
        "max_grad_norm": max_grad_norm,
        "delta": delta,
    }
    claimed = 0.0
    seen: list[NDArray[np.float64]] = []
    for side in (0, 1):
        data = tuple(map(np.concatenate, zip(clean, bad, strict=True))) if side == 0 else clean
        observer = _Observer(make_model(), torch.from_numpy(bad[0]), torch.from_numpy(bad[1]))
        optimizer = torch.optim.SGD(observer.model.parameters(), lr=learning_rate)
        trainer = Trainer(
            observer.model,
            optimizer,
            dataset=data,
            records=agreed,
            insecure_seed=None if insecure_seed is None else insecure_seed + side,
            **settings,
        )
        optimizer.register_step_pre_hook(observer.watch)
        rows = []
        for _ in range(trainings):  # plain SGD remembers nothing but the weights
            observer.restart()
            for _ in range(steps):
                trainer.step()
            rows.append(observer.scores())
        claimed = trainer.spending.guarantee(steps).epsilon
        seen.append(np.array(rows).T)
    inserted = _inserted(make_model, clean, trainings, steps, insecure_seed, sample_rate, settings)
    samples = [*zip(seen[0], seen[1], strict=True), inserted]
    found = []
    for rung, (one, other) in enumerate(samples):
        copies = len(bad[1]) if rung < 3 else 1
        known: dict[str, Any] = {"delta": delta, "error": 1 - confidence, "copies": copies}
        found.append(
            Finding(
                attack=f"{_ATTACKS[rung]}, {copies} poisoned",
                target="DP-SGD training",
                knowledge=_KNOWLEDGE[rung],
                source=_SOURCES[rung],
                epsilon=epsilon_at_least(one, other, **known),
                delta=delta,
                confidence=confidence,
                firm_epsilon=epsilon_at_least(one, other, **known | _SURE),
                largest_possible=_largest(len(one), **known),
                values={"claimed ε": claimed, "runs": float(len(one))},
            )
        )
    return tuple(found)


def _largest(runs: int, **known: Any) -> float:
    """Return the bound if every run gave itself away."""
    return epsilon_at_least(np.ones(runs), np.zeros(runs), **known)


class _Observer:
    """An attacker who follows a training along the gradient of the poisoned records."""

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        self.model = model
        self._inputs, self._targets = inputs, targets
        self._state = copy.deepcopy(model.state_dict())
        self._start = self._weights()
        self._first = self._direction()
        self._along = 0.0

    def restart(self) -> None:
        """Restore the first weights, before another training."""
        self.model.load_state_dict(self._state)
        self._along = 0.0

    def watch(self, *_: Any) -> None:
        noised = torch.cat([_flat(each.grad) for each in self.model.parameters()])
        self._along += float(noised @ self._direction())

    def scores(self) -> tuple[float, float, float]:
        """Return the scores of the first three attackers, larger where poison was in."""
        with torch.no_grad():
            loss = float(self._loss())
        moved = float((self._start - self._weights()) @ self._first)
        return -loss, moved, self._along

    def _loss(self) -> Tensor:
        return nn.functional.cross_entropy(self.model(self._inputs), self._targets)

    def _direction(self) -> Tensor:
        parameters = list(self.model.parameters())
        with torch.enable_grad():
            gradients = torch.autograd.grad(self._loss(), parameters)
        direction = torch.cat([_flat(each) for each in gradients])
        return torch.div(direction, direction.norm().clamp_min(1e-12))

    def _weights(self) -> Tensor:
        return torch.cat([_flat(each.detach()) for each in self.model.parameters()])


def _flat(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.reshape(-1).clone()


def _inserted(
    make_model: Callable[[], nn.Module],
    clean: tuple[NDArray[Any], NDArray[Any]],
    trainings: int,
    steps: int,
    insecure_seed: int | None,
    sample_rate: float,
    settings: dict[str, Any],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return scores of chosen gradients that were in and that were not, as many of either."""
    present, absent = [], []
    for training in range(max(1, trainings // 50)):
        seed = None if insecure_seed is None else insecure_seed + 2 + training
        coins = toss(_INSERTED, insecure_seed=seed)
        scores, _ = canary_scores(
            make_model(),
            *clean,
            coins=coins,
            sample_rate=sample_rate,
            noise_multiplier=settings["noise_multiplier"],
            max_grad_norm=settings["max_grad_norm"],
            steps=steps,
            delta=settings["delta"],
            insecure_seed=seed,
        )
        present.append(scores[coins])
        absent.append(scores[~coins])
    one, other = np.concatenate(present), np.concatenate(absent)
    least = min(len(one), len(other))
    return one[:least], other[:least]


def audit_poisoned_shard(
    inputs: ArrayLike,
    labels: ArrayLike,
    *,
    poison: tuple[ArrayLike, ArrayLike],
    queries: ArrayLike,
    mechanism: Mechanism,
    classes: int,
    teachers: int,
    model: Any = "ridge",
    releases: int = 20_000,
    delta: float,
    confidence: float = 0.95,
    random_state: int = 0,
    insecure_seed: int | None = None,
) -> Finding:
    """Train teachers with and without poisoned records, and tell the released labels apart.

    Shards and seeds are the same in both trainings, so only the shards that the poison reaches
    differ. The noise, which is all that is left to chance, is drawn many times.

    Parameters
    ----------
    inputs, labels : array-like
        The private records, and their classes 0 … ``classes`` − 1.
    poison : pair of array-like
        Inputs and classes of the poisoned records.
    queries : array-like
        The public inputs that are asked about in each release.
    mechanism : Mechanism
        The mechanism that answers.
    classes, teachers, model
        As in :func:`pate.train_teachers`.
    releases : int, default=20000
        How often the answers are drawn, with the poison and without.
    delta : float
        δ of the bound.
    confidence : float, default=0.95
        The probability with which the bound holds.
    random_state : int, default=0
        Seeds the partition and the teachers.
    insecure_seed : int, optional
        Seeds the noise, for tests.

    Returns
    -------
    Finding
        The bound for one record; ``values`` holds the claimed ε of one release.

    Guarantees:
        Releases are independent, so :func:`~pate.audits.statistics.epsilon_at_least` holds for the
        group of poisoned records.

    >>> rng = np.random.default_rng(0)
    >>> records = rng.normal(size=(200, 2))
    >>> labels = (records[:, 0] > 0).astype(int)
    >>> from pate import LaplaceNoisyMax
    >>> finding = audit_poisoned_shard(
    ...     records, labels, poison=([[0.1, 90.0]], [0]), queries=[[0.1, 90.0]],
    ...     mechanism=LaplaceNoisyMax(scale=1.0), classes=2, teachers=4, delta=1e-6,
    ...     insecure_seed=0)
    >>> round(finding.epsilon, 1), round(finding.values["claimed ε"], 1)
    (1.3, 2.0)
    """
    check_whole("releases", releases, least=4)
    clean = np.asarray(inputs, np.float64), np.asarray(labels).astype(np.int64)
    bad = np.asarray(poison[0], np.float64), np.asarray(poison[1]).astype(np.int64)
    asked = np.asarray(queries, np.float64)
    rng = Randomness.open(insecure_seed=insecure_seed).generator
    runs = []
    for data in (tuple(map(np.concatenate, zip(clean, bad, strict=True))), clean):
        ensemble = train_teachers(
            model, *data, teachers=teachers, classes=np.arange(classes), random_state=random_state
        )
        counts = vote(ensemble, asked).counts
        runs.append(_answers(mechanism, counts, releases, rng))
    events = mechanism.caps(queries=len(asked), answers=len(asked))
    scores = likelihood_scores(runs[0], runs[1], kinds=len(asked) * (classes + 1))
    known: dict[str, Any] = {"delta": delta, "error": 1 - confidence, "copies": len(bad[1])}
    return Finding(
        attack=f"poisoned shard, {len(bad[1])} poisoned",
        target="released labels",
        knowledge="released labels, and all records but the poisoned",
        source="Jagielski, Ullman & Oprea 2020, for PATE",
        epsilon=epsilon_at_least(*scores, **known),
        delta=delta,
        confidence=confidence,
        firm_epsilon=epsilon_at_least(*scores, **known | _SURE),
        largest_possible=_largest(releases, **known),
        values={
            "claimed ε": compose(events).guarantee(delta=delta).epsilon,
            "releases": float(releases),
        },
    )


def _answers(
    mechanism: Mechanism,
    counts: NDArray[np.int64],
    releases: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return what each release answered, (releases, queries), by numbers that name queries too."""
    queries, classes = counts.shape
    given = mechanism.release(Votes(counts=np.tile(counts, (releases, 1))), rng=rng)
    found = np.zeros(releases * queries, dtype=np.int64)
    found[given.answered] = 1 + given.labels
    return np.asarray(found.reshape(releases, queries) + np.arange(queries) * (classes + 1))
