"""Least squares as a run of a recipe: one noised release in place of steps.

The noise is drawn, and the model written to the checkpoint, which is private; then the charge is
made; then the model is published. So a killed run, or a copy of its folder, holds the one draw that
is paid for, and never makes another.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsgd import checkpoint as files
from dpsgd.convex.least_squares import INTERCEPT, calibrate_squares, noised_weights, sum_squares
from dpsgd.curves import Row
from dpsgd.features import Inputs
from dpsgd.models import BoundedLinear
from dpsgd.noise import SEEDED
from dpsgd.plan import FitPlan, FitPlans, Spending
from dpsgd.recipe import DpsgdRecipe
from dpsgd.runs import RunPlan
from dpsgd.schedules import Constant
from dpsgd.users import Users
from pate.accounting import Guarantee, Ledger, event_to_json
from pate.errors import InvalidInput
from pate.randomness import Randomness


@final
class LeastSquaresTrainer:
    """The counterpart of :class:`dpsgd.trainer.Trainer` for ``training.method = "least-squares"``.

    Guarantees:
        One Gaussian mechanism of sensitivity 1 (:func:`dpsgd.convex.least_squares.sum_squares`),
        for one record added or removed; for all records of one user where the recipe protects
        users, each of whom adds the mean over their records. :attr:`model` has released weights
        only after :meth:`fit` was paid for.
    """

    def __init__(
        self,
        model: BoundedLinear,
        *,
        recipe: DpsgdRecipe,
        plan: RunPlan,
        inputs: Inputs,
        ledger: Ledger,
        checkpoint: Path,
        study: str | None,
        settings: Iterable[str],
        again: bool,
        insecure_seed: int | None,
    ) -> None:
        self.model = model
        self.history: list[Row] = []
        self.steps = 0
        self._recipe, self._plan, self._inputs, self._ledger = recipe, plan, inputs, ledger
        self._checkpoint, self._insecure_seed = checkpoint, insecure_seed
        self._study, self._settings, self._again = study, tuple(settings), again
        self._group = (recipe.data.group or "groups") if plan.by_user else None
        self._spending = Spending(
            sample_rate=plan.sample_rate,
            noise_multiplier=Constant(plan.noise_multiplier),
            delta=recipe.privacy.delta,
            accountant=recipe.privacy.accountant,
            prior=plan.prior,
            caveats=() if insecure_seed is None else (SEEDED,),
            public_rate=plan.public_rate,
            per_user=plan.by_user,
        )
        self._guarantee = self._spending.guarantee(plan.steps)

    def planned(self) -> Guarantee:
        """Return (ε, δ) of everything the run releases."""
        return self._guarantee

    def fit(
        self, *, evaluate: Callable[[Any], float] | None, report: Callable[[Row], None]
    ) -> None:
        """Draw once, or read the draw of a killed run back; pay for it; then put it into use."""
        # Of the draw: whoever resumes states and pays for its noise, and for no other.
        drawn = {
            "events": [event_to_json(event) for event in self._plan.events],
            "delta": self._recipe.privacy.delta,
        }
        if self._checkpoint.exists():
            weights, record = files.read(self._checkpoint)
            plans = FitPlans.from_json(record["plans"])
            if "events" in record:
                stored = {name: record.get(name) for name in drawn}
                files.require_same(self._checkpoint, stored, drawn)
            elif not plans.releases <= self._ledger.releases():
                raise InvalidInput(
                    f"{self._checkpoint} is of an earlier version, which did not record its noise, "
                    "and is not paid for: choose another --out"
                )
        else:
            whole = FitPlan(
                request="steps", value=1, first=0, end=1, name=secrets.token_hex(12), why=None
            )
            weights, plans = self._draw(), FitPlans((whole,))
            record = {"revision": secrets.token_hex(12), "plans": plans.as_json()} | drawn
            files.write(self._checkpoint, weights, record)
        plans.charge(
            self._ledger,
            self._spending,
            study=self._study,
            settings=self._settings,
            again=self._again,
            group=self._group,
        )
        self.steps = self._plan.steps
        self.model.load_state_dict(weights)
        row = Row(
            epoch=1,
            step=1,
            epsilon=self.planned().epsilon,
            accuracy=None if evaluate is None else evaluate(self.model),
            learning_rate=0.0,
            clip_bound=self.model.norm,
            seconds=0.0,
        )
        self.history.append(row)
        report(row)

    def _draw(self) -> dict[str, Tensor]:
        """Return the weights of a fresh draw."""
        rows, labels = self._inputs.features.numpy(), self._inputs.labels.numpy()
        each: NDArray[np.float64] | None = None
        if self._plan.by_user:
            assert self._inputs.groups is not None  # the plan was made of them
            users = Users(
                self._inputs.groups, records=len(rows), per_user=self._recipe.training.per_user
            )
            used, owner = users.records_of(np.arange(len(users)))
            rows, labels = rows[used], labels[used]
            each = 1 / np.bincount(owner)[owner]
        classes, norm = self._inputs.classes, self.model.norm
        share = self._recipe.training.intercept
        constant = (INTERCEPT if share is None else share) * norm
        products, targets = sum_squares(
            rows, labels, classes=classes, norm=norm, intercept=constant or None, weights=each
        )
        public = calibrate_squares(
            self._plan.noise_multiplier, columns=len(products), classes=classes
        )
        rng = Randomness.open(insecure_seed=self._insecure_seed).generator
        weights = noised_weights(products, targets, public, rng=rng) / np.hypot(norm, constant)
        bias = weights[:, -1] * constant if constant else np.zeros(classes)
        weights = weights[:, :-1] if constant else weights
        return {
            "weight": torch.from_numpy(weights.astype(np.float32)),
            "bias": torch.from_numpy(bias.astype(np.float32)),
        }
