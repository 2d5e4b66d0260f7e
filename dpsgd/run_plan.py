"""Lots, steps and noise of a recipe, worked out before its run starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpsgd.calibrating import noise_for
from dpsgd.recipe import FeaturesSpec, Recipe
from dpsgd.schedules import Constant, Linear, Schedule
from pate.accounting import Event, Repeated, SampledGaussian
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

    @property
    def events(self) -> tuple[Event, ...]:
        step = dpsgd_step(self.sample_rate)(self.noise_multiplier)
        return (*self.prior, Repeated(step, self.steps))


def plan_run(recipe: Recipe, *, records: int) -> RunPlan:
    """The plan for so many private records; where the recipe names an ε, its noise is found.

    Guarantees:
        Nothing here depends on what records hold. Their *number* counts as public, as in all of
        the literature on DP-SGD: it decides the sampling rate.
    """
    training = recipe.training
    lot_size = training.lot_size or max(1, round(math.sqrt(records)))  # Abadi et al. 2016, § 5.3
    if lot_size > records:
        raise InvalidInput(
            f"training.lot_size is {lot_size} and there are fewer private records; choose less"
        )
    in_epoch = math.ceil(records / lot_size)
    steps = training.steps or in_epoch * (training.epochs or 0)
    prior, rate = _pca_events(recipe.features), lot_size / records
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
    )


def _pca_events(spec: FeaturesSpec) -> tuple[Event, ...]:
    """What the recipe's PCA costs; known before any record is read."""
    if spec.pca is None:
        return ()
    noise, rate = spec.pca.noise_multiplier, spec.pca.sample_rate
    return (SampledGaussian(sample_rate=rate, noise_multiplier=noise),)


def _schedule(recipe: Recipe, in_epoch: int) -> Schedule:
    rate = recipe.training.learning_rate
    if rate.end is None or rate.epochs is None:
        return Constant(rate.start)
    return Linear(rate.start, rate.end, max(1, round(rate.epochs * in_epoch)))
