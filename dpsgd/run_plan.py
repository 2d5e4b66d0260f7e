"""Lots, steps and noise of a recipe, worked out before its run starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsgd.calibrating import noise_for
from dpsgd.recipe import FeaturesSpec, Recipe
from dpsgd.schedules import Constant, Linear, Schedule
from pate.accounting import Event, Repeated
from pate.accounting.calibrate import dpsgd_step
from pate.errors import InvalidInput

_TOLERANCE = 1e-5  # of calibrated noise, relative; on the side of more noise


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Lots, steps and noise, all fixed before training; public."""

    lot_size: int
    sample_rate: float
    steps: int
    steps_in_epoch: int
    noise_multiplier: float
    learning_rate: Schedule
    prior: tuple[Event, ...]  # a private PCA
    public_rate: bool  # the recipe states the number of records

    @property
    def events(self) -> tuple[Event, ...]:
        make = dpsgd_step(self.sample_rate, public_rate=self.public_rate)
        step = make(self.noise_multiplier)
        return (*self.prior, Repeated(step, self.steps))


def plan_run(recipe: Recipe, *, records: int) -> RunPlan:
    """The plan for so many private records; where the recipe names an ε, its noise is found.

    Guarantees:
        Nothing here depends on what records hold. Where the recipe states ``training.records``,
        their true number decides nothing: costs are for one record added or removed. Where it does
        not, that number decides the sampling rate and counts as public: costs are for zero-out.
    """
    training = recipe.training
    public_rate = training.records is not None
    records = training.records or records
    lot_size = training.lot_size or max(1, round(math.sqrt(records)))  # Abadi et al. 2016, § 5.3
    if lot_size > records:
        raise InvalidInput(
            f"training.lot_size is {lot_size}, more than "
            f"{'training.records' if public_rate else 'there are private records'}; choose less"
        )
    in_epoch = math.ceil(records / lot_size)
    steps = training.steps or in_epoch * (training.epochs or 0)
    prior, rate = _pca_events(recipe.features, public_rate), lot_size / records
    privacy = recipe.privacy
    noise = privacy.noise_multiplier
    if noise is None:
        assert privacy.epsilon is not None  # the recipe was checked
        noise = noise_for(
            target_epsilon=privacy.epsilon,
            delta=privacy.delta,
            sample_rate=rate,
            steps=steps,
            accountant=privacy.accountant,
            prior=prior,
            tolerance=_TOLERANCE,
        )
    return RunPlan(
        lot_size=lot_size,
        sample_rate=rate,
        steps=steps,
        steps_in_epoch=in_epoch,
        noise_multiplier=noise,
        learning_rate=_schedule(recipe, in_epoch),
        prior=prior,
        public_rate=public_rate,
    )


def _pca_events(spec: FeaturesSpec, public_rate: bool) -> tuple[Event, ...]:
    """What the recipe's PCA costs, in the relation of the run; known before any record is read."""
    if spec.pca is None:
        return ()
    noise, rate = spec.pca.noise_multiplier, spec.pca.sample_rate
    return (dpsgd_step(rate, public_rate=public_rate)(noise),)


def _schedule(recipe: Recipe, in_epoch: int) -> Schedule:
    rate = recipe.training.learning_rate
    if rate.end is None or rate.epochs is None:
        return Constant(rate.start)
    return Linear(rate.start, rate.end, max(1, round(rate.epochs * in_epoch)))
