"""``make_private``: a trainer from a target, with the argument names of Opacus."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dpsgd.calibrating import noise_for
from dpsgd.choices import check_count
from dpsgd.records import as_records
from dpsgd.sampling import rate_of
from dpsgd.schedules import Schedule
from dpsgd.trainer import Trainer
from pate.accounting import Event
from pate.errors import InvalidInput


def make_private(
    *,
    model: nn.Module,
    optimizer: Optimizer,
    dataset: Any,
    target_delta: float,
    epochs: int,
    max_grad_norm: float | Schedule | None = None,
    target_epsilon: float | None = None,
    noise_multiplier: float | Schedule | None = None,
    lot_size: float | None = None,
    records: int | None = None,
    accountant: str = "moments",
    prior_events: Iterable[Event] = (),
    **more: Any,
) -> Trainer:
    """A trainer whose ``fit(epochs=epochs)`` ends within ``target_epsilon`` at ``target_delta``.

    The noise is the smallest that does, with what was paid before counted in (``prior_events``);
    or give a ``noise_multiplier``. A lot holds √examples on average unless ``lot_size`` is given
    (Abadi et al. 2016, Section 5.3). ``records`` is an agreed number of examples to work from in
    place of the true one; it and ``more`` go to :class:`dpsgd.trainer.Trainer` as they are. With a
    target the trainer is a filter as well: no step beyond the target is ever taken.

    >>> import numpy as np, torch
    >>> model = nn.Linear(2, 2)
    >>> trainer = make_private(
    ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     dataset=(np.eye(2).repeat(50, 0), np.arange(100) // 50),
    ...     target_epsilon=1.0, target_delta=1e-3, epochs=2, max_grad_norm=1.0)
    >>> 0.999 < trainer.fit(epochs=2).epsilon().epsilon <= 1.0
    True
    """
    if (target_epsilon is None) == (noise_multiplier is None):
        raise InvalidInput("give exactly one of target_epsilon and noise_multiplier")
    check_count("records", records)
    count = len(as_records(dataset)) if records is None else records
    if lot_size is None:
        lot_size = max(1, round(math.sqrt(count)))
    prior = tuple(prior_events)
    if target_epsilon is not None:
        noise_multiplier = noise_for(
            target_epsilon=target_epsilon,
            delta=target_delta,
            sample_rate=rate_of(count, lot_size),
            steps=epochs * math.ceil(count / lot_size),
            accountant=accountant,
            prior=prior,
        )
        more.setdefault("max_epsilon", target_epsilon)
    return Trainer(
        model,
        optimizer,
        dataset=dataset,
        lot_size=lot_size,
        records=records,
        noise_multiplier=noise_multiplier,
        delta=target_delta,
        max_grad_norm=max_grad_norm,
        accountant=accountant,
        prior_events=prior,
        **more,
    )
