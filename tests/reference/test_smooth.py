"""Smooth sensitivity against independent arrays, exhaustive truth, and our own brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from oracles import expected_release

from pate.accounting import Conversion, ReleasePlan, SmoothRelease, log_moments
from pate.accounting.noisy_max import (
    answer_weights,
    checked_statistic,
    gaussian_from_log_q,
    gaussian_log_q,
    laplace_from_log_q,
    laplace_log_q,
)
from pate.accounting.smooth import (
    GnmaxSensitivity,
    discounted_max,
    gnmax_cost,
    lnmax_cost,
    threshold_at_distances,
    threshold_cost,
)
from pate.errors import ConditionsFail


@pytest.mark.golden("smooth_sensitivity", "gnmax_local_sensitivity")
def test_gnmax_local_sensitivity(case):
    analysis = GnmaxSensitivity(
        sigma=case["sigma"], order=case["order"], classes=case["num_classes"]
    )
    assert analysis.log_q0 == pytest.approx(case["logq0"], rel=1e-9)
    assert analysis.log_q1 == pytest.approx(case["logq1"], rel=1e-9)
    assert analysis.conditions() == tuple(case["conditions_C5_C6"])
    found = analysis.at_distances(np.array(case["votes"]))
    np.testing.assert_allclose(found, case["local_sensitivity_at_distance"], rtol=1e-9, atol=1e-18)
    for beta, expected in zip(case["betas"], case["smooth_sensitivity"], strict=True):
        assert discounted_max(found, beta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.golden("smooth_sensitivity", "logq0")
def test_where_the_data_dependent_bound_takes_over(case):
    for i, order in enumerate(case["orders"]):
        for row, classes in zip(case["logq1"], case["num_classes"], strict=True):
            analysis = GnmaxSensitivity(sigma=case["sigma"], order=order, classes=classes)
            assert analysis.log_q0 == pytest.approx(case["logq0"][i], rel=1e-9)
            assert analysis.log_q1 == pytest.approx(row[i], rel=1e-9)


@pytest.mark.golden("smooth_sensitivity", "threshold_local_sensitivity")
def test_threshold_local_sensitivity(case):
    largest, teachers = max(case["votes"]), case["num_teachers"]
    found = threshold_at_distances(
        largest,
        teachers=teachers,
        threshold=case["threshold"],
        sigma=case["sigma1"],
        order=case["order"],
    )
    expected = np.array(case["local_sensitivity_at_distance"])
    covered = max(largest, teachers - largest)  # the peer stops one short of the far end
    np.testing.assert_allclose(found[:covered], expected[:covered], rtol=1e-9, atol=1e-14)
    assert np.all(found >= expected - 1e-14)
    for beta, smooth in zip(case["betas"], case["smooth_sensitivity"], strict=True):
        assert discounted_max(found, beta) == pytest.approx(smooth, rel=1e-9, abs=1e-14)


def theorem_23(beta, sigma, order):
    """RDP of a smooth release as Papernot et al. 2018 print it; too small towards order 1/(2β)."""
    spread = -0.5 * math.log(1 - 2 * order * beta) + beta * order
    return order * math.exp(2 * beta) / sigma**2 + spread / (order - 1)


def price(beta, sigma, order):
    moment = np.array([order - 1])
    return float(log_moments(SmoothRelease(beta=beta, sigma=sigma), moment)[0] / moment[0])


def divergence(order, *, spread, other, apart):
    """Rényi divergence of N(0, spread²) from N(apart, other²) by integration."""
    x = np.linspace(-60 * spread, 60 * spread, 400_001)
    log_p = -(x**2) / (2 * spread**2) - math.log(spread)
    log_q = -((x - apart) ** 2) / (2 * other**2) - math.log(other)
    log_terms = order * log_p + (1 - order) * log_q - 0.5 * math.log(2 * math.pi)
    return (np.logaddexp.reduce(log_terms) + math.log(x[1] - x[0])) / (order - 1)


@pytest.mark.golden("smooth_sensitivity", "gnss_rdp")
def test_price_of_a_smooth_release(case):
    """The printed formula is reproduced; what we charge is the exact worst case."""
    for row in case["rows"]:
        beta, sigma, order = row["beta"], row["sigma_ss"], row["order"]
        assert theorem_23(beta, sigma, order) == pytest.approx(row["rdp"], rel=1e-12)
        if beta == 0:
            assert price(1e-13, sigma, order) == pytest.approx(order / (2 * sigma**2), rel=1e-6)
        elif order * beta <= 0.15:  # where the printed formula is safe, ours is no dearer
            assert price(beta, sigma, order) <= row["rdp"]


@pytest.mark.parametrize(
    ("order", "beta", "sigma"),
    [
        (5, 0.08, 2.0),
        (20, 0.02, 8.0),
        (20, 0.01, 8.0),
        (10, 0.03, 4.0),
        (3, 0.1, 2.0),
        (2, 0.2, 1.0),
    ],
)
def test_the_price_is_the_exact_worst_case(order, beta, sigma):
    """Over every ratio of smooth sensitivities that neighbours may have, by integration."""
    worst = 0.0
    for ratio in np.exp(np.linspace(-beta, beta, 9)):
        apart = min(1.0, ratio)
        worst = max(worst, divergence(order, spread=sigma, other=ratio * sigma, apart=apart))
    assert price(beta, sigma, order) == pytest.approx(worst, rel=1e-6)


def test_the_printed_price_is_below_the_truth():
    """Why Theorem 23 is not used: at order 20, β = 0.4/order it is half of the exact value."""
    exact = divergence(20, spread=8.0, other=math.exp(-0.02) * 8.0, apart=math.exp(-0.02))
    assert theorem_23(0.02, 8.0, 20) < 0.6 * exact
    assert price(0.02, 8.0, 20) >= exact * (1 - 1e-9)


def test_a_smooth_release_has_no_bound_at_high_orders():
    found = log_moments(SmoothRelease(beta=0.01, sigma=5.0), np.array([10.0, 49.4, 49.6, 500.0]))
    assert np.isfinite(found[:2]).all()
    assert np.isinf(found[2:]).all()


@pytest.mark.golden("smooth_sensitivity", "release")
def test_release(case, recipe_votes):
    if (
        case["data_independent_always_optimal_step1"]
        and case["data_independent_always_optimal_step2"]
    ):
        return
    votes, order = recipe_votes(case), case["order"]
    confident = case["threshold"] is not None
    statistic = checked_statistic(votes)
    weights = None
    if confident:
        check = {"threshold": case["threshold"], "sigma": case["sigma1"]}
        weights = answer_weights(statistic, **check, answered=None)
        assert weights.sum() == pytest.approx(case["expected_answered"], rel=1e-12)
    if case["conditions_C5_C6"] != [True, True]:
        with pytest.raises(ConditionsFail, match="C6"):
            gnmax_cost(votes, sigma=case["sigma2"], order=order, weights=weights)
        return
    cost = gnmax_cost(votes, sigma=case["sigma2"], order=order, weights=weights)
    if confident:
        cost += threshold_cost(statistic, teachers=case["num_teachers"], **check, order=order)
    assert cost.value == pytest.approx(case["rdp_at_order"], rel=1e-9)
    expected = np.array(case["expected_local_sensitivity_at_distance"])
    assert np.all(cost.local_sensitivity[: len(expected)] >= expected * (1 - 1e-9))
    if case["data_independent_always_optimal_step1"]:
        np.testing.assert_allclose(cost.local_sensitivity[: len(expected)], expected, rtol=1e-9)

    # The peer's parameters and figures, re-derived from our costs and sensitivities.
    def objective(beta):
        smooth = cost.smooth_sensitivity(beta)
        sigma = (order * math.exp(2 * beta) / smooth) ** (1 / 3)
        return theorem_23(beta, sigma, order) + 2 * smooth * sigma, beta, sigma, smooth

    _, beta, sigma, smooth = min(
        objective(beta) for beta in np.arange(0.3 / order, 0.495 / order, 0.01 / order)
    )
    assert beta == pytest.approx(case["beta_opt"], rel=1e-9)
    assert sigma == pytest.approx(case["sigma_ss"], rel=1e-9)
    assert smooth == pytest.approx(case["smooth_sensitivity"], rel=1e-9)
    assert smooth * sigma == pytest.approx(case["release_noise_std"], rel=1e-9)
    printed = theorem_23(beta, sigma, order)
    assert printed == pytest.approx(case["rdp_cost_of_release"], rel=1e-9)
    tail = math.log(1 / case["delta"]) / (order - 1)
    assert cost.value + tail == pytest.approx(case["eps_before_ss"], rel=1e-9)
    assert cost.value + tail + printed == pytest.approx(case["eps_with_ss"], rel=1e-9)

    plan = ReleasePlan.default(order=order)
    result = expected_release(cost, plan=plan, delta=case["delta"], conversion=Conversion.CLASSIC)
    assert result.exact.epsilon == pytest.approx(case["eps_before_ss"], rel=1e-9)
    assert result.with_price.epsilon == pytest.approx(case["eps_before_ss"] + plan.rdp, rel=1e-9)


@pytest.mark.golden("smooth_sensitivity", "exact_smooth_sensitivity_bruteforce")
def test_bounds_are_at_least_the_exhaustive_truth(case):
    analysis = GnmaxSensitivity(
        sigma=case["sigma"], order=case["order"], classes=case["num_classes"]
    )
    assert analysis.conditions() == tuple(case["conditions_C5_C6"])
    bound = np.append(analysis.at_distances(np.array(case["votes"])), analysis.plateau)
    exact = np.array(case["exact_max_local_sensitivity_at_exact_distance"])
    peer = np.array(case["peer_local_sensitivity_bound_at_distance"])
    assert np.all(bound[:-1] >= peer * (1 - 1e-9))
    if case["conditions_C5_C6"] == [True, True]:
        assert np.all(bound >= exact - 1e-12)
        for beta, smooth in zip(case["betas"], case["exact_smooth_sensitivity"], strict=True):
            assert discounted_max(bound, beta) >= smooth - 1e-12
    else:
        # The textbook value is too small here; the door must be shut.
        assert any(case["peer_is_below_exact"])
        with pytest.raises(ConditionsFail):
            analysis.require_conditions()


@pytest.mark.golden("smooth_sensitivity", "lnmax_2017_smooth_sensitivity")
def test_lnmax_bound_covers_the_walk_of_the_2017_code(case):
    scale = 1 / case["gamma"]
    moments = np.array(case["l"], dtype=float)
    walk = [np.array(case["votes"])]
    while walk[-1][0] >= walk[-1][1]:
        walk.append(walk[-1] + np.array([-1, 1] + [0] * (len(walk[-1]) - 2)))
    costs = laplace_from_log_q(laplace_log_q(walk, scale=scale), scale=scale, moments=moments)
    steps = np.diff(costs, axis=0)
    for i, moment in enumerate(moments):
        local = case["local_sensitivity_of_log_moment"][i]
        assert steps[0, i] == pytest.approx(local, rel=1e-9, abs=1e-15)
        bound = lnmax_cost([case["votes"]], scale=scale, order=moment + 1)
        assert bound.local_sensitivity[0] * moment >= local * (1 - 1e-9)
        smooth = bound.smooth_sensitivity(case["beta"]) * moment
        assert smooth >= case["smooth_sensitivity_of_log_moment"][i] * (1 - 1e-9)


# --- several queries at once: brute force over all ways teachers can vote -------------------------


def exhaustive(teachers, classes, queries, cost_of, beta):
    """Exact smooth sensitivity of a summed cost, over every joint way of voting.

    A teacher's vote on all queries is one symbol of classes^queries; a data set is a multiset of
    symbols, and neighbours differ in one symbol.
    """
    symbols = list(itertools.product(range(classes), repeat=queries))
    states = [
        state
        for state in itertools.product(range(teachers + 1), repeat=len(symbols))
        if sum(state) == teachers
    ]
    index = {state: i for i, state in enumerate(states)}
    histograms = np.zeros((len(states), queries, classes), dtype=int)
    for i, state in enumerate(states):
        for symbol, count in zip(symbols, state, strict=True):
            for query, label in enumerate(symbol):
                histograms[i, query, label] += count
    values = cost_of(histograms.reshape(-1, classes)).reshape(len(states), queries).sum(axis=1)
    table = np.array(states)
    distance = np.abs(table[:, None] - table[None]).sum(axis=2) // 2
    local = np.zeros(len(states))
    for i in index.values():
        local[i] = np.max(np.abs(values[distance[i] == 1] - values[i]))
    smooth = np.max(local[None] * np.exp(-beta * distance), axis=1)
    return histograms, values, smooth


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_two_gnmax_queries_together(beta):
    sigma, order, teachers = 2.0, 2.0, 8
    moment = np.array([order - 1])

    def cost_of(votes):
        log_q = gaussian_log_q(votes, sigma=sigma)
        return gaussian_from_log_q(log_q, sigma=sigma, moments=moment)[:, 0] / moment

    histograms, values, exact = exhaustive(teachers, 2, 2, cost_of, beta)
    for votes, value, truth in zip(histograms, values, exact, strict=True):
        bound = gnmax_cost(votes, sigma=sigma, order=order)
        assert bound.value == pytest.approx(value, rel=1e-12)
        assert bound.smooth_sensitivity(beta) >= truth - 1e-12


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_two_laplace_queries_together(beta):
    scale, order, teachers = 1.5, 3.0, 7
    moment = np.array([order - 1])

    def cost_of(votes):
        log_q = laplace_log_q(votes, scale=scale)
        return laplace_from_log_q(log_q, scale=scale, moments=moment)[:, 0] / moment

    histograms, values, exact = exhaustive(teachers, 2, 2, cost_of, beta)
    for votes, value, truth in zip(histograms, values, exact, strict=True):
        bound = lnmax_cost(votes, scale=scale, order=order)
        assert bound.value == pytest.approx(value, rel=1e-12)
        assert bound.smooth_sensitivity(beta) >= truth - 1e-12


@pytest.mark.parametrize("votes", [[10, 1, 1], [4, 4, 4], [7, 3, 2], [12, 0, 0], [6, 6, 0]])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5])
def test_laplace_with_three_classes(votes, beta):
    scale, order, teachers = 2.0, 4.0, 12
    moment = np.array([order - 1])

    def cost_of(table):
        log_q = laplace_log_q(table, scale=scale)
        return laplace_from_log_q(log_q, scale=scale, moments=moment)[:, 0] / moment

    histograms, _, exact = exhaustive(teachers, 3, 1, cost_of, beta)
    at = next(i for i, h in enumerate(histograms) if h[0].tolist() == votes)
    bound = lnmax_cost([votes], scale=scale, order=order)
    assert bound.smooth_sensitivity(beta) >= exact[at] - 1e-12


def with_abstentions(teachers, classes):
    """Every histogram of so many teachers, of whom any may abstain, and its neighbours."""
    cells = itertools.product(range(teachers + 1), repeat=classes)
    tables = [votes for votes in cells if sum(votes) <= teachers]
    known = set(tables)
    units = [tuple(row) for row in np.eye(classes, dtype=int).tolist()]
    nothing = (0,) * classes
    changes = [(a, b) for a in [nothing, *units] for b in [nothing, *units] if a != b]
    for votes in tables:
        moved = (tuple(np.array(votes) - a + b) for a, b in changes)
        yield votes, [each for each in moved if each in known]


@pytest.mark.parametrize(
    ("teachers", "classes", "cost"),
    [
        (12, 2, lambda v, k: gnmax_cost([v], sigma=2.0, order=2.0, teachers=k)),
        (11, 3, lambda v, k: gnmax_cost([v], sigma=2.0, order=2.0, teachers=k)),
        (8, 3, lambda v, k: lnmax_cost([v], scale=1.5, order=3.0, teachers=k)),
        (
            9,
            2,
            lambda v, k: threshold_cost(
                np.array([float(max(v))]), teachers=k, threshold=6.0, sigma=1.5, order=4.0
            ),
        ),
    ],
    ids=["gnmax of two", "gnmax of three", "lnmax", "check"],
)
def test_every_teacher_may_abstain(teachers, classes, cost):
    """One step is bounded, and what is d steps away from here is d + 1 steps from a neighbour."""
    costs = {votes: cost(votes, teachers) for votes, _ in with_abstentions(teachers, classes)}
    assert len({each.value for each in costs.values()}) > 2  # the votes matter
    for votes, neighbours in with_abstentions(teachers, classes):
        here = costs[votes]
        assert len(here.local_sensitivity) == teachers + 2
        for other in neighbours:
            there = costs[other]
            assert abs(here.value - there.value) <= here.local_sensitivity[0] * (1 + 1e-9) + 1e-15
            assert np.all(
                here.local_sensitivity[:-1] <= there.local_sensitivity[1:] * (1 + 1e-9) + 1e-15
            )


def test_checks_of_two_queries_need_sensitivities_within_a_distance():
    """At exactly distance d the sum over queries is too small; within distance d it is not."""
    teachers, check = 30, {"threshold": 16.0, "sigma": 2.0, "order": 10.0}
    statistic = np.array([16.0, 24.0])
    exactly = sum(threshold_at_distances(int(s), teachers=teachers, **check) for s in statistic)
    within = threshold_cost(statistic, teachers=teachers, **check).local_sensitivity
    assert np.all(within[:teachers] >= exactly - 1e-15)
    assert np.any(within[:teachers] > exactly * 1.01)

    from pate.accounting.smooth import _threshold_costs

    costs = _threshold_costs(teachers, check["threshold"], check["sigma"], check["order"])
    step = np.abs(np.diff(costs))
    local = np.maximum(np.append(step, 0), np.insert(step, 0, 0))
    for d in range(10):
        reach = [local[max(0, int(s) - d) : int(s) + d + 1].max() for s in statistic]
        assert within[d] >= sum(reach) - 1e-15


def test_small_sigma_is_refused_because_another_cost_is_charged():
    with pytest.raises(ConditionsFail, match="another cost"):
        GnmaxSensitivity(sigma=1.0, order=1.5, classes=3).require_conditions()


def test_votes_that_can_never_agree_enough_have_a_public_cost():
    cost = gnmax_cost([[5, 3, 2], [10, 0, 0]], sigma=40.0, order=8.0)
    assert cost.value == cost.ceiling == 2 * 8.0 / 40.0**2
    assert cost.smooth_sensitivity(0.01) == 0.0


def random_neighbours(rng, teachers, classes):
    """Votes near unanimity or near a tie, and the same with one vote moved."""
    sure = rng.random() < 0.5
    votes = np.zeros(classes, dtype=int)
    votes[0] = teachers - (rng.integers(0, 2) if sure else teachers // 2)
    votes[1] = teachers - votes[0]
    moved = votes.copy()
    source = int(rng.choice(np.flatnonzero(votes)))
    moved[source] -= 1
    moved[(source + 1) % classes] += 1
    return votes, moved


@pytest.mark.parametrize("seed", range(4))
def test_smooth_sensitivities_are_smooth(seed):
    """S(D) ≤ e^β S(D′) for neighbours, above all at the ends of what votes can reach."""
    rng = np.random.default_rng(seed)
    for _ in range(150):
        teachers, classes = int(rng.integers(2, 40)), int(rng.integers(2, 5))
        votes, moved = random_neighbours(rng, teachers, classes)
        order, beta = float(rng.uniform(1.2, 8)), float(rng.uniform(0.0, 0.3))
        scale = float(np.exp(rng.uniform(-0.5, 3.5)))
        for cost in (
            lambda v, b=scale, a=order: lnmax_cost([v], scale=b, order=a),
            lambda v, b=scale, a=order, k=teachers: threshold_cost(
                np.array([float(v.max())]), teachers=k, threshold=0.7 * k, sigma=b, order=a
            ),
        ):
            here, there = cost(votes), cost(moved)
            one, other = here.smooth_sensitivity(beta), there.smooth_sensitivity(beta)
            assert one <= math.exp(beta) * other * (1 + 1e-9) + 1e-300
            assert other <= math.exp(beta) * one * (1 + 1e-9) + 1e-300
            assert abs(here.value - there.value) <= min(one, other) * (1 + 1e-9) + 1e-15
            assert here.local_sensitivity.any() == there.local_sensitivity.any()


def test_neighbours_at_the_end_of_the_range_are_told_apart_by_no_branch():
    order = 1.9318590214483957
    beta = ReleasePlan.default(order=order).beta
    one, other = (
        lnmax_cost([votes], scale=32.520645167609494, order=order).smooth_sensitivity(beta)
        for votes in ([35, 0], [34, 1])
    )
    assert one <= math.exp(beta) * other * (1 + 1e-9)
    assert other <= math.exp(beta) * one * (1 + 1e-9)
