"""Calibration meets its target, from the safe side, for every mechanism."""

from __future__ import annotations

import math
import sys

import pytest
from dp_accounting.pld import privacy_loss_distribution
from oracles import gnmax, lnmax

from pate.accounting import Conversion, Repeated, SampledGaussian, most, smallest_noise
from pate.accounting.calibrate import _noise_near, dpsgd_step, moments_epsilon
from pate.accounting.loss_distributions import pld_deltas
from pate.accounting.moments import DEFAULT_MOMENTS
from pate.errors import InvalidInput

MECHANISMS = {"lnmax": lnmax, "gnmax": gnmax, "dpsgd": dpsgd_step(0.02)}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("target", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("conversion", list(Conversion))
def test_the_smallest_noise(name, target, conversion):
    make = MECHANISMS[name]
    epsilon = moments_epsilon(delta=1e-6, conversion=conversion, moments=DEFAULT_MOMENTS[::12])
    noise = smallest_noise(make, count=200, target=target, epsilon=epsilon, tolerance=1e-7)
    assert epsilon([Repeated(make(noise), 200)]) <= target
    assert epsilon([Repeated(make(noise * (1 - 1e-6)), 200)]) > target


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_most_answers(name):
    event = MECHANISMS[name](30.0)
    epsilon = moments_epsilon(delta=1e-6)
    count = most(event, target=1.5, epsilon=epsilon)
    assert count > 0
    assert epsilon([Repeated(event, count)]) <= 1.5
    assert epsilon([Repeated(event, count + 1)]) > 1.5


def test_what_cannot_be_met():
    epsilon = moments_epsilon(delta=1e-6, conversion=Conversion.CLASSIC, moments=[1.0])
    with pytest.raises(InvalidInput, match="no noise"):
        smallest_noise(gnmax, count=1, target=0.1, epsilon=epsilon)
    with pytest.raises(InvalidInput, match="above zero"):
        smallest_noise(gnmax, count=1, target=0.0, epsilon=epsilon)
    assert most(gnmax(0.1), target=0.5, epsilon=moments_epsilon(delta=1e-6)) == 0


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize(
    "cost",
    [
        lambda noise: 3.7 / noise,
        lambda noise: (0.2 / noise) ** 4,
        lambda noise: math.exp(80.0 - noise),
        lambda noise: 1.001 - 1e-4 * noise,
        lambda noise: 5.0 if noise < 17.0 else 1e-6,
        lambda noise: max(0.0, math.inf if noise < 2.0 else 30.0 - 3.0 * noise),
    ],
)
def test_noise_near_a_start_is_the_least_and_soon_found(cost, tolerance):
    asked = []

    def price(noise):
        asked.append(noise)
        return cost(noise)

    for start in (0.5, 1.0, 40.0):
        asked.clear()
        noise = _noise_near(start, price, tolerance)
        assert cost(noise) <= 1.0
        assert cost(noise * (1 - tolerance)) > 1.0
        assert len(asked) < 60


def test_no_noise_is_near_where_none_is_enough():
    assert _noise_near(1.0, lambda noise: 1.5, 1e-4) is None


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("noise", [0.5, 1.0, 30.0])
def test_loss_distributions_of_gaussian_noise_are_those_of_dp_accounting(rate, noise):
    step = SampledGaussian(sample_rate=rate, noise_multiplier=noise)
    epsilons = [0.0, 1e-3, 0.1, 1.0, 4.0]
    peer = privacy_loss_distribution.identity(value_discretization_interval=1e-2).compose(
        privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=1e-2
        )
    )
    found = pld_deltas([step], epsilons=epsilons, discretisation=1e-2)
    expected = [peer.get_delta_for_epsilon(each) + sys.float_info.epsilon for each in epsilons]
    assert found == pytest.approx(expected, rel=1e-12)
