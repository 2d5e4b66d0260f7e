"""From private votes to released labels: noisy-max variants, their plans, and secure randomness.

    AggregateSpec → make_mechanism → plan_caps → release(votes, rng) → labels and public events

A mechanism is a frozen value that holds public parameters only; votes and randomness are handed
to :meth:`~pate.mechanisms.mechanism.Mechanism.release`, which returns the events it caused.

>>> spec = AggregateSpec(mechanism="lnmax", scale=20.0)
>>> plan = plan_caps(voting_mechanism(spec), spec, epsilon=5.0, delta=1e-5, available_queries=1000)
>>> plan.answers
442
"""

from pate.mechanisms.checked import ConfidentGnmax, InteractiveGnmax, student_baseline
from pate.mechanisms.counts import CountMechanism, CountRelease, GaussianCounts, LaplaceCounts
from pate.mechanisms.gumbel import GumbelNoisyMax
from pate.mechanisms.mechanism import BaseMechanism, Mechanism, Release
from pate.mechanisms.noisy_max import GaussianNoisyMax, LaplaceNoisyMax
from pate.mechanisms.spec import (
    COUNT_MECHANISMS,
    MECHANISMS,
    AggregateSpec,
    OpenAggregateSpec,
    Plan,
    count_mechanism,
    make_mechanism,
    plan_caps,
    plan_table,
    voting_mechanism,
)
from pate.randomness import Randomness, insecure_generator, secure_generator

__all__ = [
    "COUNT_MECHANISMS",
    "MECHANISMS",
    "AggregateSpec",
    "BaseMechanism",
    "ConfidentGnmax",
    "CountMechanism",
    "CountRelease",
    "GaussianCounts",
    "GaussianNoisyMax",
    "GumbelNoisyMax",
    "InteractiveGnmax",
    "LaplaceCounts",
    "LaplaceNoisyMax",
    "Mechanism",
    "OpenAggregateSpec",
    "Plan",
    "Randomness",
    "Release",
    "count_mechanism",
    "insecure_generator",
    "make_mechanism",
    "plan_caps",
    "plan_table",
    "secure_generator",
    "student_baseline",
    "voting_mechanism",
]
