"""From private votes to released labels: noisy-max variants, their plans, and secure randomness.

    AggregateSpec → make_mechanism → plan_caps → release(votes, rng) → labels and public events

A mechanism is a frozen value that holds public parameters only; votes and randomness are handed
to :meth:`~pate.mechanisms.mechanism.Mechanism.release`, which returns the events it caused.

>>> spec = AggregateSpec(mechanism="lnmax", scale=20.0)
>>> plan = plan_caps(make_mechanism(spec), spec, epsilon=5.0, delta=1e-5, available_queries=1000)
>>> plan.answers
110
"""

from pate.mechanisms.checked import ConfidentGnmax, InteractiveGnmax, student_baseline
from pate.mechanisms.mechanism import Mechanism, Release
from pate.mechanisms.noisy_max import GaussianNoisyMax, LaplaceNoisyMax
from pate.mechanisms.spec import MECHANISMS, AggregateSpec, Plan, make_mechanism, plan_caps
from pate.randomness import Randomness, insecure_generator, secure_generator

__all__ = [
    "MECHANISMS",
    "AggregateSpec",
    "ConfidentGnmax",
    "GaussianNoisyMax",
    "InteractiveGnmax",
    "LaplaceNoisyMax",
    "Mechanism",
    "Plan",
    "Randomness",
    "Release",
    "insecure_generator",
    "make_mechanism",
    "plan_caps",
    "secure_generator",
    "student_baseline",
]
