"""Costs as people read them: rounded up, by little, and everywhere alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate._format import format_epsilon, format_epsilon_fixed, round_up

VALUES = [*np.exp(np.random.default_rng(5).uniform(-12, 14, size=300)), 9999.9, 99999.5, 1e-7]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_rounded_up_by_little_and_alike(value):
    shown = format_epsilon(value)
    assert value * (1 - 1e-12) <= float(shown) <= value * 1.01
    assert float(format_epsilon_fixed(value)) == float(shown)
    assert value * (1 - 1e-12) <= float(format_epsilon_fixed(value, places=3)) < value + 1e-3
    if value >= 1e-4:
        assert "e" not in shown


@pytest.mark.parametrize(
    ("value", "short", "long"),
    [(12.0, "12", "12.0"), (0.3, "0.3", "0.300"), (2.5, "2.5", "2.50"), (7e4, "70000", "70000")],
)
def test_what_floats_do_not_know_is_no_cost(value, short, long):
    """As 0.1 + 0.2, or a sum of moments, comes out a little above what it is."""
    noisy = np.nextafter(value, math.inf)
    assert noisy > value
    for each in (value, noisy, value * (1 + 4e-13)):
        assert (format_epsilon(each), format_epsilon_fixed(each)) == (short, long)
        assert float(format_epsilon_fixed(each, places=1)) == value
    real = value * (1 + 1e-11)
    assert float(format_epsilon(real)) > value
    assert float(format_epsilon_fixed(real)) > value
    assert float(format_epsilon_fixed(real, places=1)) > value


def test_none_and_all():
    assert (
        format_epsilon(0.0),
        format_epsilon_fixed(0.0),
        format_epsilon_fixed(0.0, places=2),
    ) == ("0", "0", "0.00")
    assert (
        format_epsilon(math.inf),
        format_epsilon_fixed(math.inf),
        format_epsilon_fixed(math.inf, places=2),
    ) == ("∞", "∞", "∞")
    assert round_up(1.23456, digits=2) == round_up(1.23456, places=1) == round_up(1.3)
