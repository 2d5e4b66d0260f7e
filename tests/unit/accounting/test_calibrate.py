"""Calibration meets its target, from the safe side, for every mechanism."""

from __future__ import annotations

import pytest
from oracles import gnmax, lnmax

from pate.accounting import Conversion, Repeated, most, smallest_noise
from pate.accounting.calibrate import dpsgd_step, moments_epsilon
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
