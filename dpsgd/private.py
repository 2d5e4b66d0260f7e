"""``make_private``: a trainer for a target ε, with the argument names of Opacus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from dpsgd.data import as_records, optional_count
from dpsgd.plan import noise_for
from dpsgd.sampling import rate_of
from dpsgd.schedules import Schedule
from dpsgd.trainer import Trainer
from dpsgd.users import as_users
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
    groups: Sequence[Any] | NDArray[Any] | None = None,
    per_user: int | None = None,
    users: int | None = None,
    accountant: str = "moments",
    prior_events: Iterable[Event] = (),
    **more: Any,
) -> Trainer:
    """Return a trainer whose ``fit(epochs=epochs)`` ends within ``target_epsilon``.

    The noise is the smallest that does, computed before training. With a target the trainer is a
    filter as well: no step beyond the target is ever taken.

    Parameters
    ----------
    model : torch.nn.Module
        The model to train, in place.
    optimizer : torch.optim.Optimizer
        An optimiser of the model's parameters.
    dataset : pair of arrays or tensors, or torch.utils.data.Dataset
        The private examples, as in :class:`dpsgd.Trainer`.
    target_delta : float
        δ of the guarantee.
    epochs : int
        The number of epochs that the noise is computed for; pass the same number to ``fit``.
    max_grad_norm : float or Schedule, optional
        The clipping norm; or pass ``clipping``.
    target_epsilon : float, optional
        ε of the whole run, ``prior_events`` included. Give it or ``noise_multiplier``.
    noise_multiplier : float or Schedule, optional
        The noise over the clipping norm.
    lot_size : float, optional
        The expected size of a lot; by default √examples, or √users (Abadi et al. 2016, Section
        5.3).
    records : int, optional
        An agreed, public number of examples, as in :class:`dpsgd.Trainer`.
    groups, per_user, users : optional
        The user of each example, and more on users, as in :class:`dpsgd.Trainer`.
    accountant : {"moments", "pld", "abadi"}, default="moments"
        The accountant.
    prior_events : iterable of Event, optional
        Costs paid beside the steps, such as those of :class:`dpsgd.PrivatePCA`.
    **more
        Further arguments of :class:`dpsgd.Trainer`.

    Returns
    -------
    Trainer

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
    records = optional_count("records", records)
    size = len(as_records(dataset))
    owners = as_users(groups, records=size, per_user=per_user, users=users)
    count = (records or size) if owners is None else (users or len(owners))
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
        groups=groups,
        per_user=per_user,
        users=users,
        noise_multiplier=noise_multiplier,
        delta=target_delta,
        max_grad_norm=max_grad_norm,
        accountant=accountant,
        prior_events=prior,
        **more,
    )
