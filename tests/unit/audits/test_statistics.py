"""Lower bounds on ε: published numbers, another implementation, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from pate.accounting.composition import gaussian_epsilon
from pate.audits.statistics import (
    FAMILIES,
    audit_one_run,
    clopper_pearson,
    contradicts_trade_off,
    epsilon_at_least,
    event_epsilon,
    largest_epsilon,
    one_run_epsilon,
    one_run_p_value,
    right_guesses,
)
from pate.errors import InvalidInput

# Canaries, guesses, right ones, δ, error; p-value at ε = 1.5, ε of the one-run bound, and ε of the
# f-DP bound with a Gaussian trade-off, by jax_privacy 2.0.0 (jax_privacy.auditing).
JAX_PRIVACY = [
    (1000, 100, 75, 1e-4, 0.05, 0.9686808678240915, 0.672984729773335, 0.841723703717428),
    (100000, 1510, 1439, 1e-5, 0.05, 0.008346403530431647, 2.6758509126062022, 3.309083523975045),
    (1000, 1000, 900, 1e-5, 0.05, 0.00018602899067612366, 2.020645594168416, 3.7793385785758598),
    (5000, 500, 480, 1e-5, 0.01, 0.0011164357300785103, 2.6204171916448735, 3.4890042240755643),
    (200, 200, 200, 0.0, 0.05, 3.202321697941608e-18, 4.193629990018742, None),
]


@pytest.mark.parametrize("case", JAX_PRIVACY, ids=lambda case: f"{case[2]} of {case[1]}")
def test_one_run_bounds_agree_with_jax_privacy(case):
    canaries, guesses, right, delta, error, p_value, epsilon, gaussian = case
    known = {"canaries": canaries, "guesses": guesses, "right": right, "delta": delta}
    assert one_run_p_value(epsilon=1.5, **known) == pytest.approx(p_value, rel=1e-9)
    found = one_run_epsilon(confidence=1 - error, **known)
    assert found == pytest.approx(epsilon, abs=1e-6)
    if gaussian is not None:
        found = one_run_epsilon(confidence=1 - error, family="gaussian", **known)
        assert found == pytest.approx(gaussian, abs=1e-6)


def test_one_run_bounds_are_the_published_ones():
    """Steinke, Nasr & Jagielski 2023: an example of appendix D, and section 7 (truncated)."""
    found = one_run_epsilon(canaries=1000, guesses=100, right=75, delta=1e-4, confidence=0.95)
    assert round(found, 3) == 0.673
    found = one_run_epsilon(canaries=10**5, guesses=1510, right=1439, delta=1e-5, confidence=0.95)
    assert math.floor(1000 * found) == 2675


def test_without_delta_the_p_value_is_that_of_randomised_response():
    for epsilon in (0.0, 1.0, 3.0):
        found = one_run_p_value(canaries=50, guesses=20, right=17, epsilon=epsilon, delta=0.0)
        assert found == pytest.approx(binom.sf(16, 20, 1 / (1 + math.exp(-epsilon))))
    closed = -math.log(0.05 ** (-1 / 16) - 1)  # all of 16 right
    assert largest_epsilon(16, delta=0.0, guesses=16) == pytest.approx(closed, abs=1e-8)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_p_value_grows_with_epsilon(delta):
    """Otherwise the end of the contradicted values would be no bound."""
    for guesses, right in [(500, 300), (500, 450), (500, 500), (40, 31), (40, 40)]:
        known = {"canaries": 500, "guesses": guesses, "right": right, "delta": delta}
        values = [one_run_p_value(epsilon=e, **known) for e in np.linspace(0, 8, 161)]
        below = [value for value in values if value < 0.5]
        assert values[: len(below)] == below == sorted(below)


# Audits of known mechanisms: how often the bound exceeds the truth, and how close it comes.


def randomised_response(rng, coins, epsilon):
    """The most that an ε-private mechanism can say about every coin."""
    truthful = rng.random(coins.shape) < 1 / (1 + math.exp(-epsilon))
    return (coins == truthful).astype(float)


def gaussian(rng, coins, mu):
    return mu * coins + rng.normal(size=coins.shape)


@pytest.mark.parametrize(("guesses", "threshold"), [(None, None), (100, 0.5)])
def test_a_bound_on_randomised_response_is_rarely_too_large(guesses, threshold):
    """With a confidence of 80 %: at most 200 ± 13 of 1000 audits are wrong; six standard errors."""
    rng, truth, wrong = np.random.default_rng(1), 1.0, 0
    for _ in range(1000):
        coins = rng.random(100) < 0.5
        scores = randomised_response(rng, coins, truth)
        known = {"delta": 0.0, "confidence": 0.8, "guesses": guesses, "threshold": threshold}
        wrong += audit_one_run(scores, coins, **known).epsilon > truth
    assert wrong <= 276
    assert guesses is None or wrong > 100  # the bound is sharp: a slip either way would show


@pytest.mark.parametrize(("family", "share"), [("approximate", 0.45), ("gaussian", 0.6)])
@pytest.mark.sample(1)
def test_a_bound_on_gaussian_scores_is_sound_and_near(family, share):
    rng = np.random.default_rng(2)
    truth = gaussian_epsilon(1.0, delta=1e-5)
    known = {"delta": 1e-5, "family": family}
    coins = rng.random(20_000) < 0.5
    assert share * truth < audit_one_run(gaussian(rng, coins, 1.0), coins, **known).epsilon < truth
    wrong = 0
    for _ in range(100):
        coins = rng.random(300) < 0.5
        bound = audit_one_run(gaussian(rng, coins, 1.0), coins, confidence=0.8, **known)
        wrong += bound.epsilon > truth
    assert wrong <= 44  # 20 ± 4, six standard errors


def test_many_canaries_come_near_the_truth():
    rng = np.random.default_rng(3)
    coins = rng.random(100_000) < 0.5
    scores = randomised_response(rng, coins, 2.0)
    bound = audit_one_run(scores, coins, delta=0.0, threshold=0.5)
    assert 1.95 < bound.epsilon < 2.0 < bound.largest_possible


def test_a_mechanism_that_is_not_differentially_private_is_exposed():
    coins = np.random.default_rng(4).random(1000) < 0.5
    for family in FAMILIES:
        known = {"delta": 1e-5, "family": family, "threshold": 0.5}
        bound = audit_one_run(coins.astype(float), coins, **known)
        assert bound.epsilon == bound.largest_possible > 5
        assert bound.guesses == bound.right


def test_copies_share_the_bound():
    """Three copies of a canary: ε of one is about a third, and never more."""
    known = {"canaries": 1000, "guesses": 500, "right": 480, "delta": 1e-9, "confidence": 0.95}
    for family in FAMILIES:
        one, three = (one_run_epsilon(copies=n, family=family, **known) for n in (1, 3))
        assert 0.2 * one < three < 0.4 * one
    assert one_run_epsilon(copies=3, **known | {"delta": 0.0}) == pytest.approx(
        one_run_epsilon(**known | {"delta": 0.0}) / 3, abs=1e-8
    )


def test_equal_scores_say_nothing_whatever_the_order_of_the_canaries():
    coins = np.arange(1000) < 500
    assert audit_one_run(np.zeros(1000), coins, delta=1e-5).epsilon < 0.2
    assert audit_one_run(np.zeros(1000), ~coins, delta=1e-5).epsilon < 0.2


def test_guesses_may_be_of_those_that_are_in_alone():
    coins = np.random.default_rng(6).random(100) < 0.5
    scores = np.where(coins, np.arange(100), 0.0)
    assert right_guesses(scores, coins, guesses=[10, 4], outs=0.0) == ((10, 10), (4, 4))
    ((_, right),) = right_guesses(-scores, coins, guesses=10, outs=1.0)
    assert right == 0


def test_a_trade_off_of_perfect_privacy_is_contradicted_and_of_none_is_not():
    known = {"canaries": 100, "guesses": 100, "right": 80, "error": 0.01}
    assert contradicts_trade_off(lambda alarm: 1 - alarm, **known)
    assert not contradicts_trade_off(lambda alarm: 0.0, **known)


def test_clopper_pearson_covers():
    """Exactly, by summing over all outcomes."""
    for p in (0.01, 0.3, 0.5, 0.97):
        hits = np.arange(41)
        lower, upper = clopper_pearson(hits, 40, error=0.05)
        weights = binom.pmf(hits, 40, p)
        assert weights[lower > p].sum() <= 0.05
        assert weights[upper < p].sum() <= 0.05


def test_the_error_of_two_samples_is_a_parameter():
    rng = np.random.default_rng(5)
    one, other = rng.normal(1, 1, 4000), rng.normal(0, 1, 4000)
    loose, strict = (epsilon_at_least(one, other, delta=1e-3, error=e) for e in (0.05, 1e-6))
    assert 0 < strict < loose < gaussian_epsilon(1.0, delta=1e-3)
    assert event_epsilon(0, 100, 100, delta=0.0, error=0.1) == -math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": np.zeros(4)}, r"4 canaries can show no ε with a confidence of 0\.95"),
        ({"scores": np.full(100, np.nan)}, "not finite"),
        ({"included": np.ones(100, dtype=bool)}, "100 of 100 canaries were in"),
        ({"included": np.zeros(100)}, "one boolean"),
        ({"guesses": 101}, "guesses is"),
        ({"guesses": []}, "guesses is empty"),
        ({"confidence": 0.2}, "confidence is"),
        ({"family": "laplace"}, "family is"),
        ({"delta": -0.1}, "delta is"),
    ],
)
def test_what_would_give_a_wrong_bound_is_refused(arguments, message):
    scores = arguments.pop("scores", np.arange(100.0))
    known = {"included": np.arange(len(scores)) % 2 == 0, "delta": 1e-5} | arguments
    with pytest.raises(InvalidInput, match=message):
        audit_one_run(scores, **known)


def test_two_samples_must_be_alike():
    with pytest.raises(InvalidInput, match="as many runs"):
        epsilon_at_least(np.zeros(5), np.zeros(6), delta=0.1)
