"""Costs of steps: the same figure everywhere, and searches that end on the right side."""

from __future__ import annotations

import json
import sys

import pytest

from dpsgd.cli import main
from dpsgd.plan import Spending
from dpsgd.schedules import Constant, Linear, Piecewise
from pate.accounting import Gaussian, Repeated, SampledGaussian, compose
from pate.accounting.calibrate import moments_epsilon, most
from pate.accounting.events import tally
from pate.errors import InvalidInput, UnsupportedEvent

Q, Z, DELTA = 0.02, 1.3, 1e-5


def spending(noise=Z, **more):
    schedule = Constant(noise) if isinstance(noise, float) else noise
    return Spending(**{"sample_rate": Q, "noise_multiplier": schedule, "delta": DELTA, **more})


@pytest.mark.parametrize("accountant", ["moments", "abadi", "pld"])
def test_epsilon_is_what_the_command_line_prints(accountant, monkeypatch, capsys):
    command = ["dpsgd", "epsilon", "--sample-rate", str(Q), "--json", "--accountant", accountant]
    command += ["--noise-multiplier", str(Z), "--steps", "700", "--delta", str(DELTA)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    printed = json.loads(capsys.readouterr().out)
    given = spending(accountant=accountant).guarantee(700)
    assert given.epsilon == printed["epsilon"]
    assert given.neighbours == printed["neighbours"] == "zero-out"
    public = spending(accountant=accountant, public_rate=True).guarantee(700)
    assert (public.epsilon, public.neighbours) == (given.epsilon, "add-remove")


def test_no_steps_cost_nothing_and_what_came_before_counts():
    assert spending().guarantee(0).epsilon == 0
    prior = (Gaussian(noise_multiplier=4.0),)
    alone = compose(prior).guarantee(delta=DELTA).epsilon
    assert spending(prior=prior).guarantee(0).epsilon == alone
    step = SampledGaussian(sample_rate=Q, noise_multiplier=Z)
    both = compose([*prior, Repeated(step, 50)]).guarantee(delta=DELTA)
    assert spending(prior=prior).guarantee(50).epsilon == both.epsilon
    with pytest.raises(UnsupportedEvent, match="Gaussian"):
        spending(prior=prior, accountant="abadi").guarantee(50)


def test_caveats_reach_every_figure():
    marked = spending(caveats=("for comparison",))
    for figure in (marked.guarantee(5), marked.guarantee(0), marked.odometer(5)):
        assert figure.caveats == ("for comparison",)
        assert not figure.publishable
    assert spending().guarantee(5).publishable


@pytest.mark.parametrize("epsilon", [0.7, 2.0])
def test_most_steps_is_exact(epsilon):
    step = SampledGaussian(sample_rate=Q, noise_multiplier=Z)
    expected = most(step, target=epsilon, epsilon=moments_epsilon(delta=DELTA))
    assert spending().most_steps(epsilon) == expected
    assert spending().most_steps(epsilon, at_most=expected - 1) == expected - 1
    assert spending().most_steps(epsilon, at_most=0) == 0


def test_most_steps_with_costs_before_it_and_on_a_schedule():
    falling = spending(Linear(1.5, 1.4, steps=300), prior=(Gaussian(noise_multiplier=5.0),))
    steps = falling.most_steps(2.0, at_most=5000)
    assert 100 < steps < 5000
    assert falling.guarantee(steps).epsilon <= 2.0 < falling.guarantee(steps + 1).epsilon
    assert spending(prior=(Gaussian(noise_multiplier=0.1),)).most_steps(1.0) == 0
    assert spending(0.3).most_steps(0.1) == 0


def test_most_steps_by_loss_distributions():
    tight = spending(6.0, sample_rate=0.2, accountant="pld")
    steps = tight.most_steps(1.0, at_most=100_000)
    assert steps >= spending(6.0, sample_rate=0.2).most_steps(1.0)
    assert tight.guarantee(steps).epsilon <= 1.0 < tight.guarantee(steps + 1).epsilon


def test_a_schedule_is_accounted_for_step_by_step():
    pieces = spending(Piecewise(((0, 2.0), (10, 1.0))))
    slow = SampledGaussian(sample_rate=Q, noise_multiplier=2.0)
    fast = SampledGaussian(sample_rate=Q, noise_multiplier=1.0)
    assert tally(pieces.events(25)) == {slow: 10, fast: 15}
    assert tally(pieces.events(12, first=8)) == {slow: 2, fast: 2}
    assert tally(spending().events(12, first=8)) == tally(spending().events(4))
    assert pieces.events(3, first=3) == ()


def test_a_sliding_multiplier_is_used_as_it_is_accounted_for():
    sliding = spending(Linear(4.0, 1.0, steps=200))
    used = [sliding.multiplier(step) for step in range(250)]
    asked = [sliding.noise_multiplier(step) for step in range(250)]
    assert all(ask <= use * (1 + 1e-7) for ask, use in zip(asked, used, strict=True))
    assert all(use <= ask * 1.01 * (1 + 1e-9) for ask, use in zip(asked, used, strict=True))
    events = tally(sliding.events(250))
    assert sum(events.values()) == 250
    assert {event.noise_multiplier for event in events} == set(used)
    assert len(events) < 150
    assert spending().multiplier(7) == Z


def test_the_odometer_costs_more_than_a_plan_and_rises():
    one = spending()
    readings = [one.odometer(steps).epsilon for steps in (0, 1, 100, 1000, 10_000)]
    assert readings[0] == 0
    assert readings == sorted(readings)
    for steps, reading in zip((1, 100, 1000, 10_000), readings[1:], strict=True):
        assert reading > one.guarantee(steps).epsilon
    assert spending(moment=20.0).odometer(100).moment == 20.0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"accountant": "guess"}, "moments"),
        ({"delta": 0.0}, "delta"),
        ({"sample_rate": 1.5}, "rate"),
    ],
)
def test_nonsense_is_refused(change, word):
    with pytest.raises(InvalidInput, match=word):
        spending(**change)
    with pytest.raises(InvalidInput, match="above zero"):
        spending().most_steps(0.0)
