"""Theorems before moments: against exact sums, each other, and the definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from oracles import optimal
from scipy.stats import norm

from pate.accounting import (
    Analysis,
    ApproximateDP,
    Gaussian,
    Laplace,
    LaplaceNoisyMaxAnswer,
    PureDP,
    Repeated,
    SampledGaussian,
    compose,
    log_moments,
    pld_guarantee,
)
from pate.accounting.composition import (
    AdvancedRule,
    advanced,
    amplify,
    basic,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_epsilon_classic,
    gaussian_noise,
    group,
    kairouz_closed,
)
from pate.accounting.events import ForReplacement
from pate.accounting.loss_distributions import PLD_MARGIN
from pate.errors import InvalidInput, UnsupportedEvent


def exact_delta_of_responses(epsilon, count, total, fail=0.0):
    """δ of ``count`` randomised responses by listing every outcome."""
    true = math.exp(epsilon) / (1 + math.exp(epsilon))
    one = {"yes": (1 - fail) * true, "no": (1 - fail) * (1 - true), "sure": fail, "never": 0.0}
    other = {"yes": (1 - fail) * (1 - true), "no": (1 - fail) * true, "sure": 0.0, "never": fail}
    delta = 0.0
    for outcome in itertools.product(one, repeat=count):
        p = math.prod(one[symbol] for symbol in outcome)
        q = math.prod(other[symbol] for symbol in outcome)
        delta += max(0.0, p - math.exp(total) * q)
    return delta


@pytest.mark.parametrize("epsilon", [0.1, 0.7, 2.0])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("fail", [0.0, 1e-3])
@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_optimal_composition_is_exact(epsilon, count, fail, delta):
    found = optimal(epsilon, count=count, delta=delta, each_delta=fail)
    assert exact_delta_of_responses(epsilon, count, found, fail) <= delta * (1 + 1e-9)
    if found > 0:
        assert exact_delta_of_responses(epsilon, count, found * 0.999, fail) > delta


@given(epsilon=st.floats(0.001, 1.0), count=st.integers(1, 3000), delta=st.floats(1e-12, 1e-2))
def test_optimal_beats_every_closed_form(epsilon, count, delta):
    best = optimal(epsilon, count=count, delta=delta)
    assert best <= kairouz_closed(epsilon, count=count, slack=delta) * (1 + 1e-9)
    assert best <= advanced(epsilon, count=count, slack=delta) * (1 + 1e-9)
    assert best <= count * epsilon * (1 + 1e-9)
    tanh = advanced(epsilon, count=count, slack=delta, rule=AdvancedRule.TANH)
    assert tanh <= advanced(epsilon, count=count, slack=delta)
    by_moments = compose([Repeated(PureDP(epsilon=epsilon), count)]).guarantee(delta=delta)
    assert best <= by_moments.epsilon * (1 + 1e-9)


def test_basic_composition_adds_up():
    events = [Repeated(ApproximateDP(epsilon=0.1, delta=1e-7), 10), PureDP(epsilon=0.5)]
    epsilon, delta = basic(events)
    assert epsilon == pytest.approx(1.5)
    assert delta == pytest.approx(1e-6)
    assert basic([]) == (0.0, 0.0)
    with pytest.raises(UnsupportedEvent):
        basic([Gaussian(noise_multiplier=1.0)])


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 800.0])
def test_amplification_by_sampling(rate, epsilon):
    found, delta = amplify(epsilon, 1e-6, sample_rate=rate)
    assert delta == pytest.approx(rate * 1e-6)
    assert found <= epsilon
    if epsilon < 700:
        assert math.expm1(found) == pytest.approx(rate * math.expm1(epsilon))
        # Randomised response behind Poisson sampling attains it: (1−q)·½ + q·p against ½.
        p = math.exp(epsilon) / (1 + math.exp(epsilon))
        mixed = (1 - rate) * (1 - p) + rate * p
        assert math.log(mixed / (1 - p)) == pytest.approx(found)
    else:
        assert found >= epsilon + math.log(rate)
    assert amplify(701.0, 0.0, sample_rate=1e-303)[0] == pytest.approx(3.3523, abs=1e-4)
    assert amplify(701.0, 0.0, sample_rate=1e-310)[0] > 0
    with pytest.raises(InvalidInput):
        amplify(1.0, 0.0, sample_rate=1.5)


@pytest.mark.parametrize(
    "use",
    [
        lambda: amplify(-1.0, 0.0, sample_rate=0.5),
        lambda: amplify(math.nan, 0.0, sample_rate=0.5),
        lambda: group(1.0, -1e-9, size=3),
        lambda: group(1.0, 0.0, size=0),
        lambda: advanced(math.inf, count=3, slack=1e-5),
    ],
)
def test_arguments_are_checked(use):
    with pytest.raises(InvalidInput):
        use()


def test_a_large_group_is_not_an_overflow():
    assert group(100.0, 1e-9, size=10) == (1000.0, 1.0)


def test_group_privacy():
    assert group(0.5, 0.0, size=4) == (2.0, 0.0)
    epsilon, delta = group(0.5, 1e-6, size=3)
    assert epsilon == 1.5
    assert delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)))
    # The Gaussian for a group of three is the Gaussian with a third of the noise: exactly.
    exact = gaussian_delta(2.0 / 3, epsilon=3 * 1.0)
    assert group(1.0, gaussian_delta(2.0, epsilon=1.0), size=3)[1] >= exact


def test_zero_concentrated():
    loose = 0.5 + 2 * math.sqrt(0.5 * math.log(1e5))  # Bun & Steinke 2016, Proposition 1.3
    by_moments = compose([Gaussian(noise_multiplier=1.0)]).guarantee(delta=1e-5)
    assert gaussian_epsilon(1.0, delta=1e-5) <= by_moments.epsilon <= loose


@pytest.mark.parametrize("multiplier", [0.05, 0.3, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_the_gaussian_is_exact(multiplier, delta):
    epsilon = gaussian_epsilon(multiplier, delta=delta)
    if epsilon == 0:  # so much noise that δ covers everything
        assert 2 * norm.cdf(1 / (2 * multiplier)) - 1 <= delta
        return
    # The definition: sup over events, which for two Gaussians is a half line.
    cut = epsilon * multiplier + 1 / (2 * multiplier)
    log_second = epsilon + norm.logsf(cut)
    log_first = norm.logsf(cut - 1 / multiplier)
    attained = math.exp(log_first) * -math.expm1(log_second - log_first)
    assert attained == pytest.approx(delta, rel=1e-6)
    assert attained <= delta * (1 + 1e-11)  # this formula rounds too
    if gaussian_epsilon_classic(multiplier, delta=delta) < 1:
        assert epsilon <= gaussian_epsilon_classic(multiplier, delta=delta)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_the_analytic_calibration(epsilon, delta):
    noise = gaussian_noise(epsilon, delta=delta)
    assert gaussian_delta(noise, epsilon=epsilon) <= delta
    assert gaussian_delta(noise * (1 - 1e-6), epsilon=epsilon) > delta
    assert gaussian_epsilon(noise, delta=delta) == pytest.approx(epsilon, rel=1e-6)
    if epsilon < 1:  # where the classic formula holds
        assert noise < math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@pytest.mark.parametrize("multiplier", [0.5, 3.0, 40.0, 1e4])
def test_laplace_moments_by_integration(multiplier):
    t = 1 / multiplier
    moments = np.array([0.3, 1.0, 4.5, 20.0])
    found = log_moments(Laplace(noise_multiplier=multiplier), moments)
    node, weight = np.polynomial.legendre.leggauss(400)
    pieces = [(-60.0, 0.0), (0.0, t), (t, 60.0 + t)]
    for moment, value in zip(moments, found, strict=True):
        excess = 0.0  # of E_P[(P/Q)^λ] over one, so that a tiny cost keeps its digits
        for low, high in pieces:
            x = (high + low) / 2 + (high - low) / 2 * node
            loss = np.abs(x - t) - np.abs(x)
            p = np.exp(-np.abs(x)) / 2
            excess += np.sum(weight * p * (np.expm1(moment * loss) - 0.0)) * (high - low) / 2
        if multiplier < 100:
            assert value == pytest.approx(math.log1p(excess), rel=1e-7)
        assert value <= moment * t
        assert value <= 0.5 * t**2 * moment * (moment + 1) * (1 + 1e-9)
        assert value >= 0.4 * min(t**2 * moment * (moment + 1), moment * t) * (1 - 3 * t)


def test_pld_agrees_with_the_exact_gaussian_and_pure_limits():
    found = pld_guarantee([Repeated(Gaussian(noise_multiplier=4.0), 4)], delta=1e-5)
    exact = gaussian_epsilon(2.0, delta=1e-5)
    assert exact <= found.epsilon <= exact + 1e-3
    answers = [Repeated(LaplaceNoisyMaxAnswer(scale=20.0), 100)]
    tight = pld_guarantee(answers, delta=1e-5).epsilon
    published = compose(answers, analysis=Analysis.PUBLISHED)
    assert tight <= published.guarantee(delta=1e-5).epsilon
    # Two Laplace mechanisms leak less than the worst (0.1, 0)-DP mechanism.
    assert tight <= optimal(0.1, count=100, delta=1e-5) * (1 + 1e-3)
    assert pld_guarantee([], delta=1e-5).epsilon == 0.0


def test_pld_stays_above_its_own_rounding():
    """The noise of a step, moved by less than any processor can tell, stands for another one."""
    for delta, steps in ((1e-5, 1000), (2e-9, 10_000)):
        without = PLDAccountant(value_discretization_interval=1e-4)
        sampled = PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0))
        without.compose(sampled, steps)
        noise = [4 + i * 1e-12 for i in range(-2, 3)]
        alike = [SampledGaussian(sample_rate=0.01, noise_multiplier=each) for each in noise]
        moved = [pld_guarantee([Repeated(s, steps)], delta=delta).epsilon for s in alike]
        assert min(moved) >= without.get_epsilon(delta) + PLD_MARGIN / 2
        assert max(moved) - min(moved) <= PLD_MARGIN
        assert max(moved) <= without.get_epsilon(delta) + 1e-3


def test_pld_refuses_a_delta_within_its_rounding():
    step = SampledGaussian(sample_rate=0.01, noise_multiplier=4.0)
    with pytest.raises(InvalidInput, match="added up in floats: use the moments accountant"):
        pld_guarantee([Repeated(step, 10_000)], delta=1e-12)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, math.nan])
def test_delta_is_checked(bad):
    for use in (
        lambda: compose([PureDP(epsilon=1.0)]).guarantee(delta=bad),
        lambda: pld_guarantee([Gaussian(noise_multiplier=1.0)], delta=bad),
        lambda: gaussian_epsilon(1.0, delta=bad),
        lambda: advanced(0.1, count=3, slack=bad),
    ):
        with pytest.raises(InvalidInput):
            use()


@pytest.mark.parametrize("epsilon", [-1.0, 1e-300, 1e-9, 9.9e-7, math.nan])
def test_the_exact_gaussian_refuses_an_epsilon_that_rounding_would_spoil(epsilon):
    with pytest.raises(InvalidInput, match="rounding"):
        gaussian_delta(3.0, epsilon=epsilon)
    with pytest.raises(InvalidInput, match="rounding"):
        gaussian_noise(epsilon, delta=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("multiplier", [0.5, 30.0, 3e3, 3e6])
def test_the_exact_gaussian_keeps_its_digits_down_to_the_smallest_epsilon(epsilon, multiplier):
    """Against the mean of (1 − e^{ε−L})₊ by quadrature, a sum without cancellation."""
    start = epsilon * multiplier + 1 / (2 * multiplier) - 1 / multiplier  # where L passes ε
    node, weight = np.polynomial.legendre.leggauss(200)
    x = start + (node + 1) * 7
    excess = -np.expm1(-(x - start) / multiplier)
    expected = 7 * np.sum(weight * norm.pdf(x) * excess)
    assert gaussian_delta(multiplier, epsilon=epsilon) == pytest.approx(expected, rel=1e-6)


def test_a_small_epsilon_is_rounded_up():
    for multiplier in (1e9, 4e8):
        delta = gaussian_delta(multiplier, epsilon=0.0)
        assert gaussian_epsilon(multiplier, delta=delta * (1 + 1e-9)) == 0.0
        assert gaussian_epsilon(multiplier, delta=delta * (1 - 1e-3)) == 1e-6


@pytest.mark.parametrize("number", [np.float16, np.float32, np.float64, np.int64])
def test_numbers_of_numpy_are_taken_as_they_are(number):
    for value in (number(2), number(1)):
        assert gaussian_noise(value, delta=1e-7) == gaussian_noise(float(value), delta=1e-7)
        assert gaussian_delta(value, epsilon=value) == gaussian_delta(
            float(value), epsilon=float(value)
        )


def test_basic_composition_reads_what_is_stated_for_a_replaced_record():
    events = [ForReplacement(PureDP(epsilon=0.5)), PureDP(epsilon=0.25)]
    assert basic(events) == (0.75, 0.0)
    assert basic([Repeated(ForReplacement(ApproximateDP(epsilon=1.0, delta=0.1)), 2)]) == (2.0, 0.2)
    with pytest.raises(UnsupportedEvent, match="Gaussian is not stated"):
        basic([ForReplacement(Gaussian(noise_multiplier=1.0))])
