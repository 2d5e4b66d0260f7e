"""The published ε of a plan: the smallest of all accountants, each covering the same events."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pate.accounting import (
    Accountant,
    Analysis,
    Conversion,
    ForReplacement,
    Gaussian,
    GaussianNoisyMaxAnswer,
    GumbelNoisyMaxAnswer,
    Laplace,
    LaplaceNoisyMaxAnswer,
    PureDP,
    Repeated,
    SampledGaussian,
    SmoothRelease,
    ThresholdCheck,
    compose,
    guarantee_of_plan,
    pld_guarantee,
)
from pate.accounting.bounded_range import bounded_range_epsilon
from pate.accounting.composition import gaussian_delta
from pate.accounting.plan_guarantee import plan_fits
from pate.artifacts.results import StatedGuarantee
from pate.errors import InvalidInput

GUMBEL = [Repeated(GumbelNoisyMaxAnswer(scale=209.0), 191)]
CHECKED = [
    Repeated(ThresholdCheck(sigma=150.0), 500),
    Repeated(GaussianNoisyMaxAnswer(sigma=40.0), 100),
]
STEPS = [Repeated(SampledGaussian(sample_rate=0.01, noise_multiplier=2.0), 500)]
PLANS = {
    "gumbel": (GUMBEL, Accountant.ADAPTIVE_RANGE),
    "one answer": ([GaussianNoisyMaxAnswer(sigma=40.0)], Accountant.GAUSSIAN),
    "gaussian": ([Repeated(Gaussian(noise_multiplier=10.0), 25)], Accountant.GAUSSIAN),
    "replaced": ([ForReplacement(Gaussian(noise_multiplier=4.0))], Accountant.GAUSSIAN),
    "checked": (CHECKED, Accountant.MOMENTS),
    "lnmax": ([Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 100)], Accountant.MOMENTS),
    "steps": (STEPS, Accountant.PLD),
    "laplace": ([Repeated(Laplace(noise_multiplier=10.0), 50)], Accountant.PLD),
    "mixed": ([*STEPS, Gaussian(noise_multiplier=4.0)], Accountant.PLD),
    "sanitised": ([*CHECKED, SmoothRelease(beta=0.001, sigma=40.0)], Accountant.MOMENTS),
    "two scales": ([*GUMBEL, GumbelNoisyMaxAnswer(scale=20.0)], Accountant.MOMENTS),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_smallest_is_taken_and_recorded(name):
    events, accountant = PLANS[name]
    found = guarantee_of_plan(events, delta=1e-5)
    moments = compose(events).guarantee(delta=1e-5)
    assert found.accountant is accountant
    assert found.neighbours is moments.neighbours
    if accountant is Accountant.MOMENTS:
        assert found == moments
    else:
        assert found.epsilon < moments.epsilon
        assert found.moment is None
        assert found.conversion is None
    # It is found again by its name, and read back from JSON.
    assert guarantee_of_plan(events, delta=1e-5, accountant=accountant) == found
    record = json.loads(json.dumps(found.as_json()))
    assert record.get("accountant", "moments") == accountant.value
    assert StatedGuarantee.from_json(record).guarantee == found
    assert StatedGuarantee.of(found).as_json() == record


@pytest.mark.parametrize("name", PLANS)
def test_the_papers_figures_are_by_moments(name):
    events, _ = PLANS[name]
    for settings in (
        {"analysis": Analysis.PUBLISHED},
        {"conversion": Conversion.CLASSIC},
        {"moments": [8.0, 16.0]},
    ):
        found = guarantee_of_plan(events, delta=1e-5, **settings)
        conversion = settings.pop("conversion", Conversion.IMPROVED)
        total = compose(events, settings.pop("moments", None), **settings)
        assert found == total.guarantee(delta=1e-5, conversion=conversion)


def test_each_accountant_gives_its_own_figure():
    def epsilon(events, **settings):
        return guarantee_of_plan(events, delta=1e-5, **settings).epsilon

    fixed = bounded_range_epsilon(2 / 209, count=191, delta=1e-5, adaptive=False)
    adaptive = bounded_range_epsilon(2 / 209, count=191, delta=1e-5)
    # Who does not say that the queries are fixed gets the figure that covers them if they are not.
    assert fixed == epsilon(GUMBEL, adaptive=False) < adaptive == epsilon(GUMBEL)
    assert guarantee_of_plan(GUMBEL, delta=1e-5, adaptive=False).accountant == "bounded-range"
    assert epsilon(STEPS) == pld_guarantee(STEPS, delta=1e-5).epsilon
    # 25 mechanisms of multiplier 10 are one of multiplier 2; √2/40 and 1/150 are lengths in L2.
    one = epsilon(PLANS["gaussian"][0])
    assert 0.99e-5 < gaussian_delta(2.0, epsilon=one) <= 1e-5
    whole = (500 / 150**2 + 2 * 100 / 40**2) ** -0.5
    both = epsilon(CHECKED, accountant=Accountant.GAUSSIAN)
    assert 0.99e-5 < gaussian_delta(whole, epsilon=both) <= 1e-5
    # Where δ is too small to be of use, the sum of pure costs is the smallest.
    pure = guarantee_of_plan([Repeated(PureDP(epsilon=0.5), 3)], delta=1e-300)
    assert (pure.accountant, pure.epsilon) == (Accountant.PURE, 1.5)


def test_an_accountant_that_does_not_cover_the_events_is_refused():
    for events, accountant in (
        (CHECKED, Accountant.BOUNDED_RANGE),
        (GUMBEL, Accountant.GAUSSIAN),
        (STEPS, Accountant.PURE),
        (CHECKED, Accountant.PLD),
    ):
        with pytest.raises(InvalidInput, match="does not cover"):
            guarantee_of_plan(events, delta=1e-5, accountant=accountant)


def test_outside_the_range_of_an_accountant_log_moments_remain():
    for events, delta in (
        (GUMBEL, 1e-12),  # δ below what binomial sums resolve
        ([SampledGaussian(sample_rate=0.01, noise_multiplier=0.01)], 1e-5),
        ([Repeated(GumbelNoisyMaxAnswer(scale=0.001), 3)], 1e-5),
        ([], 1e-5),
    ):
        found = guarantee_of_plan(events, delta=delta, adaptive=True)
        assert found == compose(events).guarantee(delta=delta)


@pytest.mark.parametrize("name", ["gumbel", "one answer", "gaussian", "checked", "lnmax"])
def test_a_search_stops_where_the_published_figure_does(name):
    events, _ = PLANS[name]
    epsilon = guarantee_of_plan(events, delta=1e-5, adaptive=False).epsilon
    assert plan_fits(events, epsilon=epsilon * (1 + 1e-6), delta=1e-5, adaptive=False)
    assert not plan_fits(events, epsilon=epsilon * (1 - 1e-6), delta=1e-5, adaptive=False)


def test_a_search_leaves_out_what_takes_long():
    moments = compose(GUMBEL).guarantee(delta=1e-5).epsilon
    for slow in ({}, {"adaptive": False, "by_moments": True}):
        assert not plan_fits(GUMBEL, epsilon=0.99 * moments, delta=1e-5, **slow)
        assert plan_fits(GUMBEL, epsilon=moments, delta=1e-5, **slow)


def test_loss_distributions_are_loaded_only_where_they_are_used():
    code = (
        "import sys, pate\n"
        "from pate.accounting import *\n"
        "guarantee_of_plan([Repeated(GaussianNoisyMaxAnswer(sigma=40), 9)], delta=1e-5)\n"
        "guarantee_of_plan([Repeated(LaplaceNoisyMaxAnswer(scale=40), 9)], delta=1e-5)\n"
        "sys.exit('dp_accounting' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_event_has_its_cost_in_a_fresh_process():
    code = (
        "from pate.accounting import GumbelNoisyMaxAnswer, SampledGaussian, compose\n"
        "for event in (GumbelNoisyMaxAnswer(scale=20.0),\n"
        "              SampledGaussian(sample_rate=0.1, noise_multiplier=1.0)):\n"
        "    print(compose([event]).guarantee(delta=1e-5).epsilon > 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.split() == ["True", "True"], run.stderr
