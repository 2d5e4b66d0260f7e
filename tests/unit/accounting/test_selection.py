"""The best of a random number of tries: against exact brute force, and against dp-accounting."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from pate.accounting import (
    Analysis,
    ApproximateDP,
    BestOfTries,
    Gaussian,
    Guarantee,
    Laplace,
    LaplaceNoisyMaxAnswer,
    Ledger,
    Neighbours,
    PureDP,
    Repeated,
    SampledGaussian,
    compose,
    event_from_json,
    event_to_json,
    log_moments,
    pld_guarantee,
)
from pate.accounting import selection as of_selection
from pate.accounting.events import tally
from pate.accounting.moments import DEFAULT_MOMENTS
from pate.accounting.selection import _chances, _spread
from pate.errors import InvalidInput, UnsupportedEvent

MOMENTS = np.array([0.1, 0.5, 1.0, 2.0, 3.5, 8.0, 32.0, 500.0])
MEANS = [1.5, 3.0, 10.0, 200.0]
SHAPES = [0.0, 0.5, 1.0, 2.0]


# --- exact brute force ----------------------------------------------------------------------------


def generating(share, gamma, shape):
    """E[share^K], as written in the paper (Definition 1 and what follows from it)."""
    if shape == 0:
        return math.log1p(-(1 - gamma) * share) / math.log(gamma)
    return ((1 - (1 - gamma) * share) ** -shape - 1) / (gamma**-shape - 1)


def best_of(chances, gamma, shape):
    """The exact law of the best of K outcomes; a later outcome is a better one."""
    below = np.minimum(np.concatenate([[0.0], np.cumsum(chances)]), 1.0)
    return np.array(
        [generating(b, gamma, shape) - generating(a, gamma, shape) for a, b in pairwise(below)]
    )


def moment(p, q, grid):
    """log E_p[(p/q)^λ], exactly."""
    with np.errstate(divide="ignore"):
        logp, logq = np.log(p), np.log(q)
    return logsumexp(logp + np.asarray(grid)[:, None] * (logp - logq), axis=1)


def both_ways(p, q, grid):
    return np.maximum(moment(p, q, grid), moment(q, p, grid))


@pytest.fixture
def known(monkeypatch):
    """Replaces the cost of one try by exact log-moments of two distributions."""

    def put(p, q):
        monkeypatch.setattr(of_selection, "_one_try", lambda event, grid, _: both_ways(p, q, grid))

    return put


def pairs():
    """Pairs of small distributions: random ones, and those for which a choice costs most."""
    rng = np.random.default_rng(5)
    for outcomes in (2, 3, 6):
        for spread in (0.3, 1.0, 3.0):
            p, q = (rng.dirichlet(np.full(outcomes, 1 / spread)) + 1e-9 for _ in range(2))
            yield p / p.sum(), q / q.sum()
    for epsilon in (0.01, 0.1, 1.0):
        for rare in (0.5, 0.1, 1e-3, 1e-5):  # a rare best outcome, and the same among the worst
            up = np.array([1 - rare, rare])
            down = np.array([1 - rare * math.exp(-epsilon), rare * math.exp(-epsilon)])
            yield up, down
            yield up[::-1], down[::-1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", MEANS)
def test_the_exact_choice_never_costs_more(known, mean, shape):
    x, _ = _spread(mean, shape)
    event = BestOfTries(candidates=[[PureDP(epsilon=1.0)]], mean_tries=mean, shape=shape)
    for p, q in pairs():
        known(p, q)
        exact = both_ways(*(best_of(each, math.exp(-x), shape) for each in (p, q)), MOMENTS)
        bound = log_moments(event, MOMENTS)
        assert np.all(exact <= bound * (1 + 1e-9) + 1e-12), (p, q)


def test_the_bound_is_nearly_reached(known):
    """So that a smaller one would be caught: λ → ∞ of a rare outcome costs (2 + η) ε."""
    epsilon = 0.05
    for shape in (0.0, 1.0):
        event = BestOfTries(candidates=[[PureDP(epsilon=1.0)]], mean_tries=10_000, shape=shape)
        x, _ = _spread(10_000, shape)
        worst = 0.0
        for rare in np.geomspace(1e-9, 1e-4, 30):
            p = np.array([0.5 * math.exp(-epsilon), rare * math.exp(epsilon), 0.0])
            q = np.array([0.5, rare, 0.0])
            p[2], q[2] = 1 - p.sum(), 1 - q.sum()
            p, q = p[[2, 1, 0]][::-1], q[[2, 1, 0]][::-1]  # the common one is the best
            known(p, q)
            exact = both_ways(
                *(best_of(each, math.exp(-x), shape) for each in (p, q)), DEFAULT_MOMENTS
            )
            worst = max(worst, float(np.max(exact / log_moments(event, DEFAULT_MOMENTS))))
        assert 0.3 < worst <= 1


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_that_a_rare_best_outcome_is_found_more_often_counts(known, shape):
    """At small λ the exact cost of one try grows by log E[K], nearly; with 100 digits."""
    x, mean = _spread(200.0, shape)
    event = BestOfTries(candidates=[[PureDP(epsilon=1.0)]], mean_tries=200.0, shape=shape)
    with mpmath.workdps(100):
        gamma = mpmath.exp(-mpmath.mpf(x))

        def law(rare):
            """The chances of the worse and of the better outcome, for the best of K."""
            if shape == 0:
                worse = mpmath.log(1 - (1 - gamma) * (1 - rare)) / mpmath.log(gamma)
            else:
                worse = (1 / (1 - (1 - gamma) * (1 - rare)) - 1) / (1 / gamma - 1)
            return worse, 1 - worse

        often, seldom = mpmath.mpf("1e-3"), mpmath.mpf("1e-60")
        known(np.array([0.999, 1e-3]), np.array([1.0, 1e-60]))
        for moment in (0.1, 0.2):
            terms = [p * (p / q) ** moment for p, q in zip(law(often), law(seldom), strict=True)]
            exact = float(mpmath.log(sum(terms)))
            bound = float(log_moments(event, [moment])[0])
            assert bound - 0.8 * math.log(mean) < exact <= bound


@pytest.mark.parametrize("shape", SHAPES)
def test_candidates_at_random_against_brute_force(shape):
    """Randomised responses of different ε: the joint law of the pick and the answer, exactly."""
    epsilons = [0.1, 0.7, 2.0]
    event = BestOfTries(
        candidates=[[PureDP(epsilon=each)] for each in epsilons], mean_tries=4.0, shape=shape
    )
    x, _ = _spread(4.0, shape)
    truths = [1 / (1 + math.exp(-each)) for each in epsilons]
    p = np.array([share / 3 for truth in truths for share in (truth, 1 - truth)])
    q = np.array([share / 3 for truth in truths for share in (1 - truth, truth)])
    rng = np.random.default_rng(7)
    one = both_ways(p, q, MOMENTS)
    assert np.all(one <= log_moments(event, MOMENTS))
    for _ in range(40):  # however outcomes are ordered
        order = rng.permutation(len(p))
        exact = both_ways(*(best_of(each[order], math.exp(-x), shape) for each in (p, q)), MOMENTS)
        assert np.all(exact <= log_moments(event, MOMENTS) * (1 + 1e-12))


def test_one_try_is_the_mean_of_the_moments():
    """The exact moment of a pick and its answer: pure log-moments are reached by no more."""
    events = [Gaussian(noise_multiplier=each) for each in (0.5, 2.0, 7.0)]
    event = BestOfTries(candidates=[[each] for each in events], mean_tries=2.0)
    expected = logsumexp([log_moments(each, MOMENTS) for each in events], axis=0) - math.log(3)
    np.testing.assert_allclose(
        of_selection._one_try(event, MOMENTS, Analysis.TIGHT), expected, rtol=1e-13
    )
    same = BestOfTries(candidates=[[events[0]]] * 7, mean_tries=2.0)
    np.testing.assert_array_equal(
        of_selection._one_try(same, MOMENTS, Analysis.TIGHT), log_moments(events[0], MOMENTS)
    )


# --- an independent implementation ----------------------------------------------------------------


@pytest.mark.parametrize("shape", [*SHAPES, 0.01])
@pytest.mark.parametrize("mean", MEANS)
def test_as_dp_accounting_has_it(mean, shape):
    """At all orders, up to its γ, which it works out to nine digits."""
    ours = [Repeated(Gaussian(noise_multiplier=9.0), 40), Laplace(noise_multiplier=3.0)]
    theirs = ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(9.0), 40), LaplaceDpEvent(3.0)])
    orders = np.concatenate([[1.0], DEFAULT_MOMENTS + 1])
    accountant = RdpAccountant(orders=orders)
    accountant.compose(RepeatAndSelectDpEvent(theirs, mean, shape))
    event = BestOfTries(candidates=[ours], mean_tries=mean, shape=shape)
    rdp = log_moments(event, DEFAULT_MOMENTS) / DEFAULT_MOMENTS
    monotone = np.minimum.accumulate(rdp[::-1])[::-1]  # it also uses that RDP grows with the order
    np.testing.assert_allclose(monotone, accountant._rdp[1:], rtol=3e-9)


def test_epsilon_as_dp_accounting_has_it():
    """Ten tries on average of 100 answers with σ = 20: 2.166 alone."""
    one = Repeated(Gaussian(noise_multiplier=20.0), 100)
    event = BestOfTries(candidates=[[one]], mean_tries=10.0)
    accountant = RdpAccountant(orders=np.concatenate([[1.0], DEFAULT_MOMENTS + 1]))
    tried = SelfComposedDpEvent(GaussianDpEvent(20.0), 100)
    accountant.compose(RepeatAndSelectDpEvent(tried, 10, 0))
    chosen = compose([event]).guarantee(delta=1e-5).epsilon
    assert chosen == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert chosen == pytest.approx(3.63854, abs=5e-6)


# --- the distribution of K ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*SHAPES, 1e-14, 10.0])
@pytest.mark.parametrize("mean", [1 + 1e-6, *MEANS])
def test_the_chances_are_those_of_the_definition(mean, shape):
    x, expected = _spread(mean, shape)
    tries, chances = map(np.array, zip(*_chances(mean, shape), strict=True))
    assert math.fsum(chances) == pytest.approx(1, abs=1e-12)
    assert math.fsum(tries * chances) == pytest.approx(mean, rel=1e-10)
    assert expected == pytest.approx(mean, rel=1e-12)
    assert expected >= mean
    assert list(tries[:3]) == [1, 2, 3]
    for share in (0.1, 0.5, 0.99):
        wanted = generating(share, math.exp(-x), shape if shape > 1e-9 else 0)
        assert math.fsum(chances * share**tries) == pytest.approx(wanted, rel=1e-7)


# --- the event ------------------------------------------------------------------------------------


answers = st.builds(
    Repeated,
    st.floats(0.5, 500).map(lambda b: LaplaceNoisyMaxAnswer(scale=b)),
    st.integers(1, 1000),
)
choices = st.builds(
    BestOfTries,
    candidates=st.lists(st.lists(answers, min_size=1, max_size=3), min_size=1, max_size=4),
    mean_tries=st.floats(1.001, 1000),
    shape=st.floats(0, 3),
)


@given(event=choices, data=st.data())
def test_json_keeps_it_and_order_does_not_matter(event, data):
    assert event_from_json(event_to_json(event)) == event
    shuffled = data.draw(st.permutations(event.candidates))
    again = BestOfTries(candidates=shuffled, mean_tries=event.mean_tries, shape=event.shape)
    assert again == event
    assert tally([again, event]) == {event: 2}


@given(event=choices, other=choices)
def test_it_adds_up_and_is_finite(event, other):
    total = compose([event, Repeated(other, 3)], MOMENTS)
    apart = log_moments(event, MOMENTS) + 3 * log_moments(other, MOMENTS)
    np.testing.assert_allclose(total.values, apart, rtol=1e-12)
    assert np.all(np.isfinite(total.values))
    assert total.neighbours is Neighbours.REPLACE_ONE
    assert not total.data_dependent


@given(event=choices)
def test_a_choice_costs_more_than_its_cheapest_candidate(event):
    cheapest = min(compose(each).guarantee(delta=1e-5).epsilon for each in event.candidates)
    assert compose([event]).guarantee(delta=1e-5).epsilon >= cheapest


@given(low=st.floats(1, 300), factor=st.floats(1.01, 20), mean=st.floats(1.01, 500))
def test_more_noise_never_costs_more_and_more_tries_never_less(low, factor, mean):
    def cost(scale, tries):
        other = [Repeated(LaplaceNoisyMaxAnswer(scale=30.0), 50)]
        one = [Repeated(LaplaceNoisyMaxAnswer(scale=scale), 100)]
        return log_moments(BestOfTries(candidates=[one, other], mean_tries=tries), MOMENTS)

    assert np.all(cost(low * factor, mean) <= cost(low, mean) * (1 + 1e-12))
    assert np.all(cost(low, mean) <= cost(low, mean * factor) * (1 + 1e-12))


@pytest.mark.parametrize("value", [1, 0, -3, math.nan, math.inf, "5", None, True, 1e6])
def test_a_mean_that_is_none(value):
    with pytest.raises(InvalidInput, match="mean_tries"):
        BestOfTries(candidates=[[PureDP(epsilon=1.0)]], mean_tries=value)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0", None, True, 11])
def test_a_shape_that_is_none(value):
    with pytest.raises(InvalidInput, match="shape"):
        BestOfTries(candidates=[[PureDP(epsilon=1.0)]], mean_tries=3, shape=value)


def test_what_cannot_be_chosen_among():
    with pytest.raises(InvalidInput, match="give one or more, each with events"):
        BestOfTries(candidates=[], mean_tries=3)
    with pytest.raises(InvalidInput, match="give one or more, each with events"):
        BestOfTries(candidates=[[Repeated(PureDP(epsilon=1.0), 0)]], mean_tries=3)
    inner = BestOfTries(candidates=[[PureDP(epsilon=1.0)]], mean_tries=3)
    with pytest.raises(InvalidInput, match="cannot itself"):
        BestOfTries(candidates=[[inner]], mean_tries=3)
    steps = SampledGaussian(sample_rate=0.1, noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match="do not add up"):
        BestOfTries(candidates=[[LaplaceNoisyMaxAnswer(scale=5.0)], [steps]], mean_tries=3)


def test_it_fails_closed(tmp_path):
    stated = BestOfTries(candidates=[[ApproximateDP(epsilon=1.0, delta=1e-6)]], mean_tries=3)
    with pytest.raises(UnsupportedEvent):
        compose([stated])
    event = BestOfTries(candidates=[[PureDP(epsilon=1.0)]], mean_tries=3)
    with pytest.raises(UnsupportedEvent):
        pld_guarantee([event], delta=1e-5)
    for text in (
        '{"event": "BestOfTries", "candidates": [], "mean_tries": 3.0, "shape": 0.0}',
        '{"event": "BestOfTries", "candidates": 3, "mean_tries": 3.0, "shape": 0.0}',
        '{"event": "BestOfTries", "candidates": [[{"event": "PureDP", "epsilon": 1}]]}',
        '{"event": "BestOfTries", "candidates": [["PureDP"]], "mean_tries": 3.0, "shape": 0.0}',
    ):
        with pytest.raises(InvalidInput):
            event_from_json(text)


def test_the_ledger_takes_it(tmp_path):
    event = BestOfTries(
        candidates=[[Repeated(LaplaceNoisyMaxAnswer(scale=50.0), 100)]], mean_tries=10
    )
    with Ledger.open(tmp_path / "ledger", budget=Guarantee(epsilon=6, delta=1e-5)) as ledger:
        ledger.charge([event], release="first")
        spent = ledger.spent().epsilon
        assert spent >= compose([event]).guarantee(delta=1e-5).epsilon * (1 - 1e-12)
    with Ledger.open(tmp_path / "ledger") as again:
        assert again.charges()[0].events == (Repeated(event, 1),)
        assert again.spent().epsilon == spent
