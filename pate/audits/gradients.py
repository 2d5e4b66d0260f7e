"""Gradient canaries: one training by DP-SGD that audits itself, for an attacker inside it.

A canary is a record whose gradient is a multiple of one unit vector, far longer than the clipping
norm, so that its clipped gradient has exactly that norm (a Dirac canary; Nasr, Songs, Thakurta,
Papernot & Carlini 2021; Steinke, Nasr & Jagielski 2023). Each canary owns a coordinate that no
other record reaches: a row of an embedding that is trained beside the model and contributes zero to
every output. Lots, gradients, clipping, noise and optimiser are those of :class:`dpsgd.Trainer`.

The attacker sees the noised sum of every step, knows all settings and all other records, and adds
up the log-likelihood ratio of "in" over "out" along each canary's coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dpsgd import Trainer
from pate._validate import check_delta, check_positive, check_whole
from pate.accounting import Event, Repeated, SampledGaussian
from pate.accounting.loss_distributions import pld_deltas, pld_guarantee
from pate.audits.findings import FIRM, Finding
from pate.audits.statistics import (
    audit_one_run,
    contradicts_trade_off,
    largest_epsilon,
    right_guesses,
)
from pate.errors import InvalidInput
from pate.randomness import Randomness

_OTHER_SEED = 1 << 30
_STEEP = 1e4  # the factor by which a canary's gradient exceeds usual clipping norms
_EPSILONS = np.concatenate([np.linspace(0, 10, 81), np.linspace(10.5, 40, 60)])  # of a trade-off
_FINE = 1.005  # the ratio to which a noise multiplier is searched for
_LITTLE = 0.1  # the share of the error for a second number of guesses
_FARTHEST = 16.0  # the largest ratio between a searched noise multiplier and the claimed one


def audit_dpsgd(
    model: nn.Module,
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    canaries: int = 20_000,
    sample_rate: float,
    noise_multiplier: float,
    max_grad_norm: float,
    steps: int,
    delta: float,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    loss: Any = "cross_entropy",
    batch_size: int | None = None,
    confidence: float = 0.95,
    insecure_seed: int | None = None,
) -> Finding:
    """Train once with gradient canaries among the records, and bound ε from what each step shows.

    The model is trained in place. The training is one of its own, for the audit alone: it is not
    charged, and nothing of it may be released.

    Parameters
    ----------
    model : torch.nn.Module
        The model, whose first dimension of outputs is the records.
    inputs, targets : array-like
        The private records, as :class:`dpsgd.Trainer` takes them.
    canaries : int, default=20000
        The number of canaries, each in or out by a fair coin.
    sample_rate : float
        The probability of a record to be in a lot.
    noise_multiplier, max_grad_norm : float
        The noise over the clipping norm, and that norm.
    steps : int
        The number of steps.
    delta : float
        δ of the claim and of the bounds.
    optimizer : callable, optional
        Makes the optimiser of some parameters; by default SGD with a learning rate of 0.1.
    loss, batch_size
        As in :class:`dpsgd.Trainer`.
    confidence : float, default=0.95
        The probability with which the bound holds.
    insecure_seed : int, optional
        Seeds coins, lots and noise, for tests.

    Returns
    -------
    Finding
        ``epsilon`` is for DP-SGD with this sampling: with so many right guesses the noise
        multiplier cannot be larger than one whose ε is this. ``values`` holds the claimed ε and
        the bound for any (ε, δ)-private mechanism, which is smaller.

    Guarantees:
        A noise multiplier is contradicted if its trade-off function is, by
        :func:`~pate.audits.statistics.contradicts_trade_off`. That function is bounded from below
        by :func:`trade_off_of`, so no sound noise multiplier is contradicted with more than the
        stated probability. Numbers of guesses are fixed before the training, by a simulation that
        knows the settings alone; the two of them share the error (Bonferroni).
    """
    check_whole("canaries", canaries, least=1)
    # A canary that few lots hold is found if it is in; that it is out remains doubtful.
    outs = 0.0 if sample_rate < 0.5 else 0.5
    bound = partial(
        _epsilon_of_noise,
        canaries=canaries,
        around=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
    )
    # The number of guesses follows from a simulation, so from public settings alone. Beside it,
    # with a tenth of the error, are as many as a contradiction of any claim may need.
    numbers = _guesses(canaries)
    simulated, tossed = _simulated(canaries, sample_rate, noise_multiplier, steps)
    tried = right_guesses(simulated, tossed, guesses=numbers, outs=outs)
    cautious = [(number, _less_luck(right, number), 1 - confidence) for number, right in tried]
    _, (best, _) = bound(cautious)
    shares = {numbers[0]: _LITTLE, best: 1 - _LITTLE} if best != numbers[0] else {best: 1.0}
    largest = bound([(each, each, share * (1 - confidence)) for each, share in shares.items()])[0]
    if largest == 0:
        raise InvalidInput(
            f"{canaries} canaries can show no ε with a confidence of {confidence:g}; use more"
        )
    coins = toss(canaries, insecure_seed=insecure_seed)
    scores, events = canary_scores(
        model,
        inputs,
        targets,
        coins=coins,
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        steps=steps,
        delta=delta,
        optimizer=optimizer,
        loss=loss,
        batch_size=batch_size,
        insecure_seed=insecure_seed,
    )
    claimed = pld_guarantee(events, delta=delta).epsilon
    counted = right_guesses(scores, coins, guesses=list(shares), outs=outs)

    def shown(pairs: Iterable[tuple[int, int]], error: float) -> tuple[float, tuple[int, int]]:
        return bound([(number, right, error * shares[number]) for number, right in pairs])

    epsilon, (guesses, right) = shown(counted, 1 - confidence)
    known: dict[str, Any] = {"delta": delta, "confidence": confidence, "guesses": best}
    anyhow = 0.0
    if largest_epsilon(canaries, **known) > 0:
        anyhow = audit_one_run(scores, coins, outs=outs, **known).epsilon
    return Finding(
        attack="gradient canaries",
        target="DP-SGD training",
        knowledge="the noised sum of every step, all settings and all other records",
        source="Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri 2024",
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        firm_epsilon=shown(counted, 1 - max(confidence, FIRM))[0],
        largest_possible=largest,
        values={
            "claimed ε": claimed,
            "ε without the form of DP-SGD": anyhow,
            "canaries": float(canaries),
            "guesses": float(guesses),
            "right guesses": float(right),
        },
        note="The bound is the ε of DP-SGD with as much noise as the guesses allow.",
        publishable=insecure_seed is None,  # seeded lots follow from the number of records
    )


def canary_scores(
    model: nn.Module,
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    coins: NDArray[np.bool_],
    sample_rate: float,
    noise_multiplier: float,
    max_grad_norm: float,
    steps: int,
    delta: float,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    loss: Any = "cross_entropy",
    batch_size: int | None = None,
    insecure_seed: int | None = None,
) -> tuple[NDArray[np.float64], tuple[Event, ...]]:
    """Train once with the canaries whose coin is True; return all scores, and the training's cost.

    Parameters
    ----------
    coins : array of bool, shape (canaries,)
        Whether each canary is in.
    model, inputs, targets, sample_rate, noise_multiplier, max_grad_norm, steps, delta, \
    optimizer, loss, batch_size, insecure_seed
        As in :func:`audit_dpsgd`.
    """
    check_whole("steps", steps, least=1)
    check_positive("noise_multiplier", noise_multiplier)
    check_delta(delta)
    canaries = len(coins)
    packed, labels = _with_canaries(np.asarray(inputs), np.asarray(targets), np.flatnonzero(coins))
    audited = _AuditedModel(model, shape=np.asarray(inputs).shape[1:], canaries=canaries)
    records = len(np.asarray(targets)) + canaries
    lot_size = sample_rate * records
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    trained = make([each for each in audited.parameters() if each.requires_grad])
    trainer = Trainer(
        audited,
        trained,
        dataset=(packed, labels),
        records=records,
        lot_size=lot_size,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        delta=delta,
        loss=loss,
        batch_size=batch_size,
        insecure_seed=insecure_seed,
    )
    scores = np.zeros(canaries)

    def watch(*_: Any) -> None:
        gradient = audited.canaries.weight.grad
        assert gradient is not None
        seen = -gradient[1:, 0].double().numpy() * (lot_size / max_grad_norm)
        scores[:] += _log_likelihood_ratio(seen, sample_rate, noise_multiplier)

    hook = trained.register_step_pre_hook(watch)
    try:
        trainer.fit(steps=steps)
    finally:
        hook.remove()
    return scores, trainer.spending.events(steps)


def toss(canaries: int, *, insecure_seed: int | None = None) -> NDArray[np.bool_]:
    """Return a fair coin for each canary; seeded ones are not those of the training's own seed."""
    seed = None if insecure_seed is None else insecure_seed + _OTHER_SEED
    return np.asarray(Randomness.open(insecure_seed=seed).generator.random(canaries) < 0.5)


def _guesses(canaries: int) -> list[int]:
    """Return numbers of guesses: the fewer, the likelier each is right."""
    return [canaries >> times for times in range(2, 9) if canaries >> times >= 16] or [canaries]


def _simulated(
    canaries: int, rate: float, noise: float, steps: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return scores and coins of canaries in a training that is only simulated."""
    rng = np.random.default_rng(0)
    coins, scores = rng.random(canaries) < 0.5, np.zeros(canaries)
    for _ in range(steps):
        seen = (coins & (rng.random(canaries) < rate)) + noise * rng.standard_normal(canaries)
        scores += _log_likelihood_ratio(seen, rate, noise)
    return scores, coins


def _less_luck(right: int, guesses: int) -> int:
    """Return a number of right guesses that is one standard deviation smaller."""
    return max(0, math.floor(right - math.sqrt(right * (guesses - right) / guesses)))


class _AuditedModel(nn.Module):
    """A model with a row of an embedding for each canary; the last feature is the canary's number.

    Number 0 is an ordinary record. A canary's outputs are zero, and their gradient reaches its row
    alone; the row's own value cancels, so that training does not change the canary.
    """

    def __init__(self, model: nn.Module, *, shape: tuple[int, ...], canaries: int) -> None:
        super().__init__()
        self.model = model
        self.canaries = nn.Embedding(canaries + 1, 1, padding_idx=0)
        self._shape = shape

    def forward(self, packed: Tensor) -> Tensor:
        number = packed[:, -1].long().clamp(0, self.canaries.num_embeddings - 1)
        outputs: Tensor = self.model(packed[:, :-1].reshape(len(packed), *self._shape))
        row = self.canaries(number)
        steep = _STEEP * (row - row.detach())
        first = torch.zeros_like(outputs[:1])
        first[:, :1] = 1.0
        return torch.where(number[:, None] == 0, outputs, steep * first)


def _with_canaries(
    inputs: NDArray[Any], targets: NDArray[Any], present: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return records and canaries that are present, in one array with the canaries' numbers."""
    if len(inputs) != len(targets) or not len(targets):
        raise InvalidInput(f"{len(inputs)} inputs and {len(targets)} targets do not match")
    packed = np.zeros((len(inputs) + len(present), math.prod(inputs.shape[1:]) + 1), np.float32)
    packed[: len(inputs), :-1] = inputs.reshape(len(inputs), -1)
    packed[len(inputs) :, -1] = present + 1
    # The loss must rise or fall with the first output at zero: class 0, or a value of one.
    own = np.full((len(present), *targets.shape[1:]), targets.dtype.kind == "f", targets.dtype)
    return packed, np.concatenate([targets, own])


def _log_likelihood_ratio(
    seen: NDArray[np.float64], rate: float, noise: float
) -> NDArray[np.float64]:
    """Of a sum N(0, noise²) to which 1 is added with probability ``rate``, over one without."""
    exponent = (seen - 0.5) / noise**2
    stay = math.log1p(-rate) if rate < 1 else -math.inf
    return np.asarray(np.logaddexp(stay, math.log(rate) + exponent))


def trade_off_of(events: Iterable[Event]) -> Callable[[float], float]:
    """Return the trade-off function of events that were fixed in advance, or one below it.

    Parameters
    ----------
    events
        As in :func:`~pate.accounting.loss_distributions.pld_guarantee`.

    Guarantees:
        Privacy at each of several pairs (ε, δ) is privacy by the largest of their trade-off
        functions max(0, 1 − δ − e^ε α, e^−ε(1 − δ − α)) (Dong, Roth & Su 2019, Proposition 2.11).

    >>> step = SampledGaussian(sample_rate=1.0, noise_multiplier=1.0)
    >>> round(trade_off_of([step])(0.05), 2)  # that of N(0, 1) and N(1, 1) is 0.74
    0.74
    """
    deltas, factors = np.array(pld_deltas(events, epsilons=_EPSILONS)), np.exp(_EPSILONS)

    def trade_off(alarm: float) -> float:
        steep, flat = 1 - deltas - factors * alarm, (1 - deltas - alarm) / factors
        return max(0.0, float(steep.max()), float(flat.max()))

    return trade_off


def _epsilon_of_noise(
    counted: Sequence[tuple[int, int, float]],
    *,
    canaries: int,
    around: float,
    sample_rate: float,
    steps: int,
    delta: float,
) -> tuple[float, tuple[int, int]]:
    """Return ε of the smallest noise multiplier that some guesses contradict, and these guesses.

    ``counted`` are numbers of guesses, of right ones among them, and the error that each of these
    tests may have. ε is 0 if nothing is contradicted.
    """

    def contradicted(multiplier: float) -> tuple[int, int] | None:
        trade_off = _trade_off(multiplier, sample_rate, steps)
        for guesses, right, error in counted:
            known: dict[str, Any] = {"guesses": guesses, "right": right, "error": error}
            if contradicts_trade_off(trade_off, canaries=canaries, **known):
                return guesses, right
        return None

    low, high = around, around
    if (best := contradicted(around)) is not None:
        while low > around / _FARTHEST and (found := contradicted(low / 2)) is not None:
            low, best = low / 2, found
        low, high = low / 2, low
    else:
        while (best := contradicted(high * 2)) is None:
            high *= 2
            if high > around * _FARTHEST:
                return 0.0, counted[0][:2]
        low, high = high, high * 2
    while high / low > _FINE:
        middle = math.sqrt(low * high)
        if (found := contradicted(middle)) is not None:
            high, best = middle, found
        else:
            low = middle
    return pld_guarantee(_steps_of(high, sample_rate, steps), delta=delta).epsilon, best


def _steps_of(noise_multiplier: float, sample_rate: float, steps: int) -> list[Event]:
    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
    return [Repeated(step, steps)]


@lru_cache(maxsize=256)  # the bounds of one audit try the same multipliers
def _trade_off(noise_multiplier: float, sample_rate: float, steps: int) -> Callable[[float], float]:
    return trade_off_of(_steps_of(noise_multiplier, sample_rate, steps))
