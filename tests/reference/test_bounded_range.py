"""Gumbel noisy-max against exact enumeration, and bounded-range composition against brute force."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binomtest

from pate.accounting import GumbelNoisyMaxAnswer, Repeated, ZeroConcentrated, compose, log_moments
from pate.accounting.bounded_range import (
    bounded_range_epsilon,
    bounded_range_log_moments,
    gumbel_total,
)
from pate.errors import InvalidInput
from pate.mechanisms import GumbelNoisyMax, insecure_generator
from pate.votes import Votes

MOMENTS = np.array([0.3, 1.0, 2.5, 8.0, 32.0, 400.0])


def chances(votes, scale):
    weights = np.exp((np.array(votes) - max(votes)) / scale)
    return weights / weights.sum()


def neighbours(votes):
    """All histograms after one teacher moves, casts or withholds its vote."""
    classes = range(len(votes))
    for gone, kept in itertools.product([None, *classes], [None, *classes]):
        moved = list(votes)
        if gone is not None:
            moved[gone] -= 1
        if kept is not None:
            moved[kept] += 1
        if gone != kept and min(moved) >= 0:
            yield moved


def moment(p, q, order):
    return np.log(np.sum(p * (p / q) ** order))


def histograms(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        classes = int(rng.integers(2, 11))
        teachers = int(rng.integers(1, 400))
        shares = rng.dirichlet(np.full(classes, rng.choice([0.1, 1.0, 10.0])))
        yield rng.multinomial(teachers, shares).tolist(), float(np.exp(rng.uniform(0, 5)))
    for classes in range(2, 11):
        yield [50] * classes, 10.0
        yield [51, *[50] * (classes - 1)], 2.0


def test_no_histogram_costs_more_than_the_bound():
    for votes, scale in histograms(1, 150):
        p = chances(votes, scale)
        cap = log_moments(GumbelNoisyMaxAnswer(scale=scale), MOMENTS)
        for other in neighbours(votes):
            q = chances(other, scale)
            with np.errstate(over="ignore"):
                both = [[moment(*pair, m) for m in MOMENTS] for pair in ((p, q), (q, p))]
            both = np.where(np.isfinite(both), both, 0.0)  # beyond doubles: shown by others
            assert np.all(np.array(both) <= cap * (1 + 1e-9) + 1e-12)


def test_the_bound_is_reached_by_two_classes():
    """The worst lead of real-valued counts costs the bound, to ten digits."""
    for scale in (0.7, 5.0, 40.0):
        leads = np.linspace(-20 * scale, 20 * scale, 200_001)
        p, q = 1 / (1 + np.exp(-leads / scale)), 1 / (1 + np.exp(-(leads - 2) / scale))
        for order in (1.0, 8.0, 64.0):
            exact = np.log(p * (p / q) ** order + (1 - p) * ((1 - p) / (1 - q)) ** order).max()
            bound = log_moments(GumbelNoisyMaxAnswer(scale=scale), [order])[0]
            assert exact <= bound * (1 + 1e-9)
            assert exact >= bound * (1 - 1e-4)


@pytest.mark.parametrize("width", [1e-6, 1e-3, 0.05, 1.0, 8.0, 60.0])
def test_the_closed_form_has_its_digits_and_is_never_below(width):
    values = bounded_range_log_moments(width, MOMENTS)
    with mpmath.workdps(60):
        for order, value in zip(MOMENTS, values, strict=True):
            eta, lam = mpmath.mpf(width), mpmath.mpf(order)
            c = mpmath.exp(-lam * eta)
            x = lam * (mpmath.exp(eta) - c) / ((lam + 1) * (1 - c))
            exact = mpmath.log(x**lam * (mpmath.exp(eta) - c - x * (1 - c)) / mpmath.expm1(eta))
            assert exact <= mpmath.mpf(float(value))
            assert value <= float(exact) * (1 + 1e-3) + 1e-9


def test_it_is_at_most_the_published_concentrated_bound_and_pure_dp():
    for scale in (0.5, 4.0, 209.0):
        event = GumbelNoisyMaxAnswer(scale=scale)
        published = log_moments(ZeroConcentrated(rho=1 / (2 * scale**2)), MOMENTS)
        assert np.all(log_moments(event, MOMENTS) <= published)
        assert np.all(log_moments(event, MOMENTS) <= 2 / scale * MOMENTS * (1 + 1e-12) + 1e-9)


def exact_moment(votes, other, scale, order):
    """To 50 digits, since the chances of rare classes cancel in doubles."""
    with mpmath.workdps(50):
        one, two = ([mpmath.exp(mpmath.mpf(n) / scale) for n in row] for row in (votes, other))
        p, q = ([weight / mpmath.fsum(row) for weight in row] for row in (one, two))
        return float(
            mpmath.log(mpmath.fsum(a * (a / b) ** order for a, b in zip(p, q, strict=True)))
        )


def test_the_data_dependent_cost_is_the_worst_neighbour():
    for votes, scale in itertools.islice(histograms(2, 12), 0, None, 2):
        votes = votes[:4]
        raised = [n + 1 for n in votes]  # the same chances, and every vote can be withheld
        for order in (0.3, 8.0, 100.0):
            given = float(gumbel_total([votes], scale=scale, moments=[order]).values[0])
            worst = max(exact_moment(raised, each, scale, order) for each in neighbours(raised))
            assert worst <= given <= worst * (1 + 1e-6) + 1e-10


def hockey_stick(ends, width, epsilon):
    """The exact divergence of independent randomised responses with these upper ends."""
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=len(ends)):
        first = second = 1.0
        for low, t in zip(outcome, ends, strict=True):
            s = math.expm1(t) / math.expm1(width)
            other = math.exp(width - t) * s
            first *= s if low else 1 - s
            second *= other if low else 1 - other
        total += max(0.0, first - math.exp(epsilon) * second)
    return total


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [0.1, 0.7, 2.0])
def test_no_choice_of_ends_exceeds_optimal_composition_and_one_reaches_it(count, width):
    rng = np.random.default_rng(count)
    for delta in (0.003, 0.03):
        epsilon = bounded_range_epsilon(width, count=count, delta=delta, adaptive=False)
        if epsilon == 0:
            continue
        found = 0.0
        for _ in range(300):
            found = max(found, hockey_stick(rng.uniform(0, width, count), width, epsilon))
        assert found <= delta
        same = [hockey_stick([t] * count, width, epsilon) for t in np.linspace(0, width, 2001)]
        assert max(same) <= delta
        assert max(same) >= delta * (1 - 1e-3)


def test_optimal_composition_is_below_moments_and_where_it_was_published():
    for scale, count in ((209.0, 191), (100.0, 1310), (20.0, 100), (10.0, 100)):
        moments = compose([Repeated(GumbelNoisyMaxAnswer(scale=scale), count)])
        optimal = bounded_range_epsilon(2 / scale, count=count, delta=1e-5, adaptive=False)
        assert optimal < moments.guarantee(delta=1e-5).epsilon
    assert bounded_range_epsilon(2 / 209, count=191, delta=1e-5, adaptive=False) <= 0.22
    assert bounded_range_epsilon(0.5, count=1, delta=1e-5, adaptive=False) <= 0.5
    with pytest.raises(InvalidInput, match="delta is 1e-12"):
        bounded_range_epsilon(0.1, count=10, delta=1e-12, adaptive=False)


@pytest.mark.parametrize("cut", [1.0, 0.7])
def test_draws_of_the_worst_pair_contradict_the_claim_only_if_noise_is_cut(cut):
    """Confidence 1 − 1e-6: ε of one answer from the rarest answer of either neighbour."""
    scale, draws = 1.0, 20_000
    mechanism = GumbelNoisyMax(scale=scale * cut)
    hits = []
    for row in ([1, 4], [2, 3]):  # the loss of the rare answer is near its end, 2/scale
        votes = Votes(counts=np.tile(np.array(row), (draws, 1)))
        hits.append(int((mechanism.release(votes, rng=insecure_generator(3)).labels == 0).sum()))
    rare = binomtest(hits[0], draws).proportion_ci(1 - 1e-6).high
    often = binomtest(hits[1], draws).proportion_ci(1 - 1e-6).low
    assert (math.log(often / rare) > 2 / scale) == (cut < 1)


def adaptive_divergence(count, width, epsilon, ends):
    """The divergence of the best adaptive choice among some upper ends: below the supremum."""
    chance = np.expm1(ends) / math.expm1(width)

    def value(left, s):
        if left == 0:
            return np.maximum(-np.expm1(-s), 0.0)
        high = value(left - 1, s[..., None] + ends)
        low = value(left - 1, s[..., None] + ends - width)
        return ((1 - chance) * high + chance * low).max(axis=-1)

    return float(value(count, np.array(-epsilon)))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("width", [0.1, 0.7, 2.0])
def test_no_adaptive_choice_exceeds_the_recursion_and_one_reaches_it(count, width):
    ends = np.linspace(0, width, {1: 4001, 2: 401, 3: 101}[count])
    for delta in (1e-4, 0.003, 0.03):
        epsilon = bounded_range_epsilon(width, count=count, delta=delta)
        if epsilon == 0:
            continue
        assert adaptive_divergence(count, width, epsilon, ends) <= delta
        assert adaptive_divergence(count, width, epsilon - 0.001 * width, ends) > delta


@pytest.mark.parametrize(("width", "count"), [(2 / 209, 191), (0.1, 100), (0.4, 7), (1.0, 4)])
def test_adaptive_composition_lies_between_a_fixed_plan_and_moments(width, count):
    for delta in (1e-8, 1e-5, 1e-3):
        fixed, adaptive = (
            bounded_range_epsilon(width, count=count, delta=delta, adaptive=each)
            for each in (False, True)
        )
        total = compose([Repeated(GumbelNoisyMaxAnswer(scale=2 / width), count)])
        assert fixed <= adaptive <= total.guarantee(delta=delta).epsilon * (1 + 1e-4)
        assert adaptive <= fixed * 1.01


@pytest.mark.parametrize("adaptive", [False, True])
def test_more_of_anything_costs_more(adaptive):
    def cost(width, count, delta):
        return bounded_range_epsilon(width, count=count, delta=delta, adaptive=adaptive)

    assert np.all(np.diff([cost(0.2, n, 1e-5) for n in range(6)]) > 0)
    assert np.all(np.diff([cost(w, 4, 1e-5) for w in np.geomspace(0.01, 2, 8)]) > 0)
    assert np.all(np.diff([cost(0.2, 9, d) for d in np.geomspace(1e-9, 1e-2, 12)]) < 0)


def recursion(width, count, delta, cells):
    """A direct search over one fixed grid of losses, with t on the grid: below the supremum."""
    step, side = width / cells, count * cells
    s = step * np.arange(-side, side + 1)
    t = step * np.arange(cells + 1)
    low = np.expm1(t) / math.expm1(width)
    curve = np.maximum(-np.expm1(-s), 0.0)
    for _ in range(count):
        far = 1 - np.exp(-step * np.arange(1, cells + 1)) * (1 - curve[-1])
        wide = np.concatenate([np.zeros(cells), curve, far])
        up, down = (wide[start + np.arange(cells + 1)[:, None] + np.arange(len(s))]
                    for start in (cells, 0))  # fmt: skip
        curve = ((1 - low[:, None]) * up + low[:, None] * down).max(axis=0)
    return -s[np.flatnonzero(curve <= delta)[-1]] - step


@pytest.mark.parametrize(("width", "count"), [(0.02, 12), (0.1, 12), (0.5, 8)])
def test_the_recursion_is_above_all_choices_of_one_grid_and_finer_ones_come_down_to_it(
    width, count
):
    for delta in (1e-7, 1e-3):
        coarse, fine = (
            bounded_range_epsilon(width, count=count, delta=delta, fineness=each)
            for each in (1.0, 4.0)
        )
        assert fine <= coarse <= fine * (1 + 1e-4)
        assert recursion(width, count, delta, 12) <= fine <= coarse


@pytest.mark.parametrize(
    ("scale", "count", "delta", "before"),
    [
        (209, 191, 1e-5, 0.21737189029810425),
        (100, 1310, 1e-5, 1.3983206345702592),
        (40, 100, 1e-5, 0.9270382828435682),
        (2, 40, 1e-5, 17.45050854684232),
        (10, 300, 1e-8, 10.755612036670328),
        (1, 4, 1e-3, 6.734604533349389),
    ],
)
def test_adaptive_figures_are_where_a_slower_recursion_had_them(scale, count, delta, before):
    found = bounded_range_epsilon(2 / scale, count=count, delta=delta)
    assert before * (1 - 0.001) < found < before + 1e-4


def test_adaptive_series_beyond_the_grid_are_refused():
    with pytest.raises(InvalidInput, match="too many"):
        bounded_range_epsilon(0.1, count=100_000, delta=1e-5, adaptive=True)


@pytest.mark.golden("gumbel", "answer")
def test_golden_answers(case):
    p = chances(case["votes"], case["scale"])
    np.testing.assert_allclose(p, case["probabilities"], rtol=1e-12)
    cap = log_moments(GumbelNoisyMaxAnswer(scale=case["scale"]), case["moments"])
    assert np.all(np.array(case["forward"]) <= cap)
    assert np.all(np.array(case["reverse"]) <= cap)
    total = gumbel_total([case["votes"]], scale=case["scale"], moments=case["moments"])
    assert np.all(np.array(case["forward"]) <= total.values * (1 + 1e-9) + 1e-12)


@pytest.mark.golden("gumbel", "worst")
def test_golden_suprema(case):
    found = log_moments(GumbelNoisyMaxAnswer(scale=case["scale"]), case["moments"])
    exact = np.array(case["log_moments"])
    assert np.all(found >= exact)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-10)


@pytest.mark.golden("gumbel", "total")
def test_golden_totals(case):
    found = gumbel_total(case["votes"], scale=case["scale"], moments=case["moments"]).values
    exact = np.array(case["log_moments"])
    assert np.all(found >= exact)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-10)


@pytest.mark.golden("gumbel", "composed")
def test_golden_composition(case):
    width, count, delta = 2 / case["scale"], case["count"], case["delta"]
    found = bounded_range_epsilon(width, count=count, delta=delta, adaptive=False)
    assert case["epsilon"] * (1 - 1e-8) <= found <= case["epsilon"] * (1 + 1e-5)
    assert found <= bounded_range_epsilon(width, count=count, delta=delta, adaptive=True)


@pytest.mark.parametrize(("width", "count", "delta"), [(0.3, 60, 1e-10), (0.02, 20_000, 1e-9)])
def test_a_small_delta_leaves_optimal_composition_below_moments(width, count, delta):
    moments = compose([Repeated(GumbelNoisyMaxAnswer(scale=2 / width), count)])
    found = bounded_range_epsilon(width, count=count, delta=delta, adaptive=False)
    assert 0.8 < found / moments.guarantee(delta=delta).epsilon < 1


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32])
def test_counts_of_narrow_kinds_are_answered(kind):
    votes = Votes(counts=np.array([[200, 3], [1, 250]]).astype(kind))
    answer = GumbelNoisyMax(scale=0.5).release(votes, rng=insecure_generator(0))
    assert answer.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("width", "count", "delta"),
    [(20, 1, 1e-10), (20, 1, 1e-5), (18.7858, 1, 1.55e-10), (14, 1, 1e-9), (9.9, 2, 1e-10),
     (5, 3, 1e-10), (4.5, 4, 1e-9), (2, 8, 1e-10)],
)  # fmt: skip
def test_no_digits_are_lost_where_chances_are_close_to_one(width, count, delta):
    """δ at the returned ε, with 50 digits; it was up to 131 times the one that was asked for."""
    found = bounded_range_epsilon(width, count=count, delta=delta, adaptive=False)
    with mpmath.workdps(50):
        eta, epsilon = mpmath.mpf(width), mpmath.mpf(found)

        def at_most(most, chance):
            return mpmath.fsum(
                mpmath.binomial(count, k) * chance**k * (1 - chance) ** (count - k)
                for k in range(most + 1)
            )

        exact = mpmath.mpf(0)
        for most in range(count):
            t = min(max((epsilon + (most + 1) * eta) / (count + 1), mpmath.mpf(0)), eta)
            under = mpmath.expm1(t) / mpmath.expm1(eta)
            other = mpmath.exp(eta - t) * under
            shown = at_most(most, under) - mpmath.exp(epsilon) * at_most(most, other)
            exact = max(exact, shown)
        assert exact <= delta
        assert exact >= delta * (1 - 1e-5) or found == pytest.approx(count * width, rel=1e-12)
