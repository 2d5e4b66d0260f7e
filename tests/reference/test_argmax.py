"""The cost of an index: certified suprema against exact divergences, brute force and real draws."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import beta

from pate.accounting import (
    Analysis,
    Conversion,
    GaussianNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    ThresholdCheck,
    argmax_divergence,
    compose,
    exact_divergence,
    guarantee_of_plan,
    log_moments,
)
from pate.accounting.argmax_divergence import gaussian_index, laplace_index, threshold_bit
from pate.accounting.moments import DEFAULT_MOMENTS, epsilon_at
from pate.errors import InvalidInput
from pate.mechanisms import ConfidentGnmax, GaussianNoisyMax, GumbelNoisyMax, LaplaceNoisyMax
from pate.votes import Votes

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "certify_argmax.py"
ORDERS = np.array([1.1, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 129.0, 1000.0])


@pytest.fixture(scope="module")
def certificate():
    spec = importlib.util.spec_from_file_location("certify_argmax", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["certify_argmax"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table():
    text = Path(argmax_divergence.__file__).with_suffix(".json").read_text(encoding="utf-8")
    return json.loads(text)


def event(**noise):
    return GaussianNoisyMaxAnswer(**noise) if "sigma" in noise else LaplaceNoisyMaxAnswer(**noise)


def bound(orders, **noise):
    return log_moments(event(**noise), orders - 1) / (orders - 1)


def histograms(rng, classes, count):
    """Random histograms, ties, near ties, leaders far ahead, empty ballots; 1 to 2 000 teachers."""
    for _ in range(count):
        teachers = int(rng.integers(1, 2001))
        kind = rng.integers(6)
        votes = np.zeros(classes, dtype=np.int64)
        if kind == 0:
            votes = rng.multinomial(teachers, rng.dirichlet(np.full(classes, rng.choice([0.1, 2]))))
        elif kind == 1:
            votes[:2] = teachers // 2, teachers - teachers // 2
        elif kind == 2:
            votes[:] = teachers // classes
            votes[rng.integers(classes)] += rng.integers(0, 30)
        elif kind == 3:
            votes[0] = teachers
        elif kind == 4:
            leaders = int(rng.integers(2, classes + 1))
            votes[:leaders] = np.maximum(teachers - rng.integers(0, 80, size=leaders), 0)
        yield votes


# --- never below the truth, and hardly above it ---------------------------------------------------


@pytest.mark.golden("argmax")
def test_exact_divergences_and_the_bound_above_them(case):
    noise = {"sigma" if case["kind"] == "gaussian" else "scale": case["noise"]}
    orders = np.array(case["orders"])
    forward, reverse = np.array(case["forward"]), np.array(case["reverse"])
    assert np.all(bound(orders, **noise) >= np.maximum(forward, reverse))
    moved = np.array(case["neighbour"]) - np.array(case["votes"])
    found = exact_divergence([case["votes"]], orders=orders, **noise, abstentions=bool(moved.sum()))
    assert np.all(found.forward[0] >= forward * (1 - 1e-8))  # the largest over all neighbours
    assert np.all(found.reverse[0] >= reverse * (1 - 1e-8))
    assert np.all(found.largest[0] >= np.maximum(forward, reverse) * (1 - 1e-8))
    if len(moved) == 2 and not moved.sum() and case["votes"][0] == case["votes"][1]:
        np.testing.assert_allclose(found.forward[0], forward, rtol=1e-8)  # all moves are alike
        np.testing.assert_allclose(found.reverse[0], reverse, rtol=1e-8)


@pytest.mark.golden("threshold")
def test_exact_divergences_of_a_check_and_the_bound_above_them(case):
    orders = np.array(case["orders"])
    worst = np.maximum(case["forward"], case["reverse"])
    most = log_moments(ThresholdCheck(sigma=case["noise"]), orders - 1) / (orders - 1)
    assert np.all(worst <= most)
    assert np.all(most <= orders / (2 * case["noise"] ** 2))
    p, q = (_normal_chances(case["away"] + shift) for shift in (0.0, 1 / case["noise"]))
    for at, order in enumerate(orders):
        assert _divergence(p, q, order) == pytest.approx(case["forward"][at], rel=1e-7, abs=1e-12)
        assert _divergence(q, p, order) == pytest.approx(case["reverse"][at], rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("sigma", [5.0, 40.0, 150.0])
def test_the_bound_on_a_check_is_within_five_percent_of_golden_ones(reference, sigma):
    cases = [each for each in reference("threshold")["cases"] if each["noise"] == sigma]
    ways = [each[way] for each in cases for way in ("forward", "reverse")]
    worst, orders = np.max(ways, axis=0), np.array(cases[0]["orders"])
    most = log_moments(ThresholdCheck(sigma=sigma), orders - 1) / (orders - 1)
    near = orders < 4 * sigma
    assert np.all(most[near] <= 1.05 * worst[near])


@pytest.mark.parametrize(
    "noise",
    [{"sigma": 240.5}, {"sigma": 4.0}, {"sigma": 1.0}, {"scale": 20.0}, {"scale": 3.0}],
    ids=str,
)
def test_brute_force_at_every_order_of_the_grid(noise):
    rng, orders = np.random.default_rng(77), DEFAULT_MOMENTS + 1
    most = bound(orders, **noise)
    for classes in (2, 3, 10):
        votes = np.array(list(histograms(rng, classes, 16)))
        exact = exact_divergence(votes, orders=orders, **noise, abstentions=True)
        assert np.all(exact.largest <= most), classes


def _brute_force(count, noise):
    rng = np.random.default_rng(count)
    worst = np.zeros(len(ORDERS))
    for classes in range(2, 11):
        votes = np.array(list(histograms(rng, classes, count)))
        exact = exact_divergence(votes, orders=ORDERS, **noise, abstentions=True)
        assert np.all(exact.largest <= bound(ORDERS, **noise)), (noise, classes)
        worst = np.maximum(worst, exact.largest.max(axis=0))
    return worst


NOISES = [{"sigma": 240.5}, {"sigma": 40.0}, {"sigma": 4.0}, {"scale": 40.0}, {"scale": 20.0}]


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_brute_force(noise):
    _brute_force(16, noise)


@pytest.mark.campaign
@pytest.mark.parametrize("noise", [*NOISES, {"sigma": 1.0}, {"scale": 3.0}], ids=str)
def test_brute_force_of_thousands(noise):
    _brute_force(800, noise)


def leads(largest):
    """Two classes and a third one, at every distance that matters."""
    steps = np.unique(np.round(np.concatenate([[0, 1], np.geomspace(1, largest, 36)])))
    base = 2 * largest
    return np.array(
        [
            [base, base - a, c]
            for a in steps
            for c in (0, base, base - a / 2, base - a, base - 1.1 * a, base - 2 * a)
        ]
    ).round().astype(np.int64).clip(0)  # fmt: skip


@pytest.mark.parametrize(
    "noise", [{"sigma": 240.5}, {"sigma": 115.3}, {"sigma": 20.0}, {"scale": 40.0}, {"scale": 20.0}]
)
def test_the_bound_is_within_five_percent_of_the_worst_votes(noise):
    """At orders of the grid, also where they exceed the table."""
    size = next(iter(noise.values()))
    orders = DEFAULT_MOMENTS[::9] + 1
    orders = orders[orders < (12 if "sigma" in noise else 8) * size]
    exact = exact_divergence(leads(int(24 * size)), orders=orders, **noise).largest
    most = bound(orders, **noise)
    assert np.all(exact <= most)
    assert np.all(most <= 1.05 * exact.max(axis=0))


def test_a_threshold_check_against_all_counts():
    for sigma in (3.0, 40.0):
        away = np.linspace(-8, 8, 4001)
        p, q = (_normal_chances(away + shift) for shift in (0.0, 1 / sigma))
        for order in ORDERS[4 * sigma > ORDERS]:
            one, other = (_divergence(a, b, order) for a, b in ((p, q), (q, p)))
            most = log_moments(ThresholdCheck(sigma=sigma), [order - 1])[0] / (order - 1)
            worst = max(one.max(), other.max())
            assert worst <= most <= 1.05 * worst
            assert most <= order / (2 * sigma**2)


def _normal_chances(x):
    return np.stack([ndtr(x), ndtr(-x)])


def _divergence(p, q, order):
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(order * np.log(p) - (order - 1) * np.log(q)) / (order - 1)


def test_the_published_figures_and_the_new_ones():
    """Targets: 0.245 and 1.53 (Gaussian), 2.7 and 1.27, for two classes 2.2 and 1.03 (Laplace)."""

    def epsilon(one, count, analysis):
        return compose([Repeated(one, count)], analysis=analysis).guarantee(delta=1e-5).epsilon

    rows = [
        (GaussianNoisyMaxAnswer(sigma=240.5), 191, 0.29996, 0.2364),
        (GaussianNoisyMaxAnswer(sigma=115.3), 1310, 1.8988, 1.4878),
        (LaplaceNoisyMaxAnswer(scale=20.0), 100, 4.7285, 2.1370),
        (LaplaceNoisyMaxAnswer(scale=40.0), 100, 2.1657, 1.0009),
        (LaplaceNoisyMaxAnswer(scale=20.0), 1000, 19.0536, 8.0734),
    ]
    for one, count, published, tight in rows:
        assert epsilon(one, count, Analysis.PUBLISHED) == pytest.approx(published, abs=6e-5)
        assert epsilon(one, count, Analysis.TIGHT) == pytest.approx(tight, abs=6e-5)
    for scale, most in ((20.0, 2.2), (40.0, 1.03)):
        total = 100 * laplace_index(scale, DEFAULT_MOMENTS, two_classes=True)
        given = {"delta": 1e-5, "conversion": Conversion.IMPROVED}
        assert epsilon_at(DEFAULT_MOMENTS, total, **given).min() <= most


def test_more_noise_never_costs_more():
    for index in (laplace_index, gaussian_index, threshold_bit):
        costs = [index(noise, DEFAULT_MOMENTS) for noise in np.geomspace(0.3, 1e5, 60)]
        assert np.all(np.diff(costs, axis=0) <= 0)


# --- mistakes that must not pass ------------------------------------------------------------------


def test_one_noise_for_that_of_a_difference_is_caught():
    """The difference of two counts has noise √2σ and moves by two; σ and one would give half."""
    orders = np.array([2.0, 9.0])
    exact = exact_divergence([[100, 100]], orders=orders, sigma=20.0).largest[0]
    assert np.all(gaussian_index(20.0, orders - 1, two_classes=True) / (orders - 1) >= exact)
    assert np.all(threshold_bit(20.0, orders - 1) / (orders - 1) < exact)


def test_classes_ignored_is_caught():
    """With three classes an answer may cost more than with two."""
    orders = np.array([40.0, 80.0])
    votes = [[24 + a, 40 + b, 24] for a in range(-8, 9, 2) for b in range(-8, 9, 2)]
    exact = exact_divergence(votes, orders=orders, scale=10.0).largest.max(axis=0)
    two = laplace_index(10.0, orders - 1, two_classes=True) / (orders - 1)
    assert np.all(exact <= bound(orders, scale=10.0))
    assert np.any(exact > two)


def test_one_direction_alone_is_caught(certificate, table):
    """The supremum over moves from the weaker class only lies below the truth."""
    kappa = 3.0
    one, other = (
        certificate.Region(excess=certificate.laplace_above(sign), box=(0.0, 18.0, 0.0, 1.0))
        for sign in (1, -1)
    )
    found = sorted(each.sampled(kappa, False) for each in (one, other))
    assert found[0] < 0.9 * found[1]
    at = np.interp(kappa, table["laplace"]["kappa"], table["laplace"]["psi"])
    assert math.log1p(found[1]) <= at < 1.01 * math.log1p(found[1])


TABLES = ["laplace", "laplace_two_classes", "gaussian", "gaussian_bit"]


@pytest.mark.campaign
@pytest.mark.parametrize("name", TABLES)
def test_the_start_of_the_table(certificate, table, name):
    ratio, _ = certificate.CASES[name].supremum(certificate.SMALLEST, all_smaller=True)
    assert table[name]["ratio"] == pytest.approx(ratio / certificate.SMALLEST**2, rel=1e-6)


@pytest.mark.parametrize("sample", [(24,), pytest.param((0, 35, 50), marks=pytest.mark.campaign)])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.sample(1)
def test_the_table_has_its_margin_and_is_certified(certificate, table, name, sample):
    """A sample of the table, certified again."""
    case, rows = certificate.CASES[name], table[name]
    assert table["margin"] == certificate.MARGIN == 1e-3
    assert rows["kappa"] == certificate.knots(case.largest)
    for at in sample:
        kappa, psi = rows["kappa"][at], rows["psi"][at]
        limit, _ = case.supremum(kappa)
        assert psi == pytest.approx(math.log1p(limit), rel=1e-6)
        regions, _ = case.regions(kappa, limit)
        found = math.log1p(max(each.sampled(kappa, False) for each in regions))
        assert psi >= found * (1 + 0.99e-3)
    slopes = np.diff(rows["psi"]) / np.diff(rows["kappa"])
    assert np.all(np.diff(slopes) > 0)  # convex, as ψ is


def test_a_bound_that_is_too_small_is_not_certified(certificate):
    (region,), _ = certificate.CASES["gaussian_bit"].regions(0.5, 0.1)
    found = region.sampled(0.5, False)
    region.certify(found * (1 + 1e-6), 0.5, False)
    with pytest.raises(SystemExit, match="not certified"):
        region.certify(found * (1 - 1e-6), 0.5, False)


# --- the certificate itself -----------------------------------------------------------------------


def test_functions_of_the_certificate_against_ball_arithmetic(certificate):
    flint = pytest.importorskip("flint")
    arb, acb = flint.arb, flint.acb
    flint.ctx.prec = 120
    root2 = arb(2).sqrt()

    def phi(z):
        return (-z * z / 2).exp() / (2 * arb.pi()).sqrt()

    def below(z):
        return (-z / root2).erfc() / 2

    def close(value, ball, relative):
        return abs(arb(float(value)) - ball) < relative * abs(ball)

    rng = np.random.default_rng(3)
    for x in np.concatenate([rng.uniform(-24, 24, 300), [0.0, -24.0, 24.0]]):
        exact = arb(float(x))
        ratio = phi(exact) / below(-exact)
        assert close(certificate.hazard(np.array(x)), ratio, certificate._FUNCTION)
        assert close(certificate.density(np.array(x)), phi(exact), certificate._FUNCTION)
        assert close(certificate.ndtr(x), below(exact), certificate._FUNCTION)
        excess = exact.exp() - 1 - exact
        assert x == 0 or close(certificate.exp_excess(np.array(x)), excess, certificate._FUNCTION)
    for d, m in zip(rng.uniform(-17, 17, 40), rng.uniform(-17, 17, 40), strict=True):
        x, y = (acb(float(m)) + acb(float(d))) / root2, (acb(float(m)) - acb(float(d))) / root2

        def integrand(u, _, x=x, y=y):
            one = (-(u - x) * (u - x) / 2).exp() / acb(2 * arb.pi()).sqrt()
            return one * ((y - u) / root2).erfc() / 2

        top = max(0.0, (m + abs(d)) / math.sqrt(2)) + 24
        integral = acb.integral(
            integrand, acb(0), acb(top), rel_tol=arb(2) ** -60, abs_tol=arb(2) ** -1200
        ).real
        value = certificate.gaussian_wins(np.array([d]), np.array([m]))[0]
        assert close(value, integral, certificate._INTEGRAL / 2), (d, m)


def test_enclosures_contain_the_truth(certificate):
    """On random boxes G and its slopes, sampled inside, lie in the intervals."""
    rng = np.random.default_rng(4)
    cases = [
        (certificate.laplace_above(1), (0.1, 8.0), (0.05, 0.9)),
        (certificate.laplace_above(-1), (0.1, 8.0), (0.05, 0.9)),
        (certificate.laplace_between(1), (0.1, 8.0), (0.05, 0.9)),
        (certificate.laplace_between(-1), (0.1, 8.0), (0.05, 0.9)),
        (certificate.laplace_below, (0.05, 0.9), (0.05, 0.9)),
        (certificate.gaussian, (-3.0, 3.0), (-2.0, 4.0)),
    ]
    step = 1e-5
    for excess, first, second in cases:
        low1, low2 = rng.uniform(*first, 60), rng.uniform(*second, 60)
        high1, high2 = low1 + 0.03, low2 + 0.03
        jet = excess((low1, high1, low2, high2), 0.8, False)
        at1, at2 = low1 + 0.01, low2 + 0.02

        def value(a, b, excess=excess):
            return excess((a, a, b, b), 0.8, False).value.high

        here = value(at1, at2)
        assert np.all((jet.value.low <= here) & (here <= jet.value.high * (1 + 1e-9)))
        for slope, one, two in (
            (jet.first, value(at1 + step, at2), value(at1 - step, at2)),
            (jet.second, value(at1, at2 + step), value(at1, at2 - step)),
        ):
            found = (one - two) / (2 * step)
            assert np.all(slope.low - 1e-5 <= found)
            assert np.all(found <= slope.high + 1e-5)


def test_the_closed_forms_of_laplace_noise_are_integrals(certificate):
    """Chances and flows of the proof note, by quadrature over the value of M or of the winner."""
    nodes, weights = np.polynomial.legendre.leggauss(60)

    def curve(z):
        tail = np.exp(-np.abs(z)) / 2
        return tail, np.where(z < 0, tail, 1 - tail)

    for x, y in ((0.4, 1.7), (2.0, 2.0), (-0.8, 1.1), (-2.0, -0.3), (0.0, 5.0)):
        edges = np.unique([0.0, max(x, 0.0), max(y, 0.0), max(y, 0.0) + 5, 60.0])
        parts = [(a + (b - a) * (nodes + 1) / 2, weights * (b - a) / 2)
                 for a, b in itertools.pairwise(edges)]  # fmt: skip
        u, w = (np.concatenate(each) for each in zip(*parts, strict=True))
        (fa, a), (fb, b) = curve(u - x), curve(u - y)
        m, started = np.exp(-u), -np.expm1(-u)
        p_a, p_o = np.sum(w * fa * b * started), np.sum(w * m * a * b)
        flows = [np.sum(w * 2 * fa * fb * started), np.sum(w * m * fa * b), np.sum(w * m * a * fb)]
        p_b = 1 - p_a - p_o
        for sign in (1, -1):
            scores = sign * np.array([
                -(flows[0] + flows[1]) / p_a, (flows[0] + flows[2]) / p_b,
                (flows[1] - flows[2]) / p_o,
            ])  # fmt: skip
            chances = np.array([p_a, p_b, p_o])
            expected = np.sum(chances * (np.exp(0.7 * scores) - 1 - 0.7 * scores))
            if x >= 0:
                at, excess = (y - x, math.exp(-x)), certificate.laplace_above(sign)
            elif y >= 0:
                at, excess = (y, math.exp(x)), certificate.laplace_between(sign)
            elif sign == 1:
                at, excess = (math.exp(x), math.exp(y)), certificate.laplace_below
            else:
                continue
            one, two = (np.array([each]) for each in at)
            found = excess((one, one, two, two), 0.7, False).value
            assert found.high[0] == pytest.approx(expected, rel=1e-9)


# --- real draws -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "quiet", "claim"),
    [
        (LaplaceNoisyMax(scale=4.0), LaplaceNoisyMax(scale=2.8), event(scale=4.0)),
        (GaussianNoisyMax(sigma=4.0), GaussianNoisyMax(sigma=2.8), event(sigma=4.0)),
    ],
)  # fmt: skip
def test_a_million_draws_do_not_refute_the_claim_and_refute_less_noise(mechanism, quiet, claim):
    """Clopper–Pearson at 1 in 10 000 for either vote count of the worst pair."""
    order, draws, rng = 4.0, 500_000, np.random.default_rng(11)
    most = log_moments(claim, [order - 1])[0] / (order - 1)

    def interval(which, votes):
        counts = np.broadcast_to(np.array(votes), (draws, 2))
        labels = which.release(Votes(counts=counts), rng=rng).labels
        hits = int(np.count_nonzero(labels == 0))
        return beta.ppf([5e-5, 1 - 5e-5], [hits, hits + 1], [draws - hits + 1, draws - hits])

    def lower(which):
        (low, _), (_, high) = interval(which, [50, 50]), interval(which, [49, 51])
        assert low > high
        p, q = np.array([low, 1 - low]), np.array([high, 1 - high])
        return max(_divergence(p, q, order), _divergence(q, p, order))

    assert 0.8 * most < lower(mechanism) < most
    assert lower(quiet) > most


@pytest.mark.parametrize(
    ("kind", "key"),
    [(LaplaceNoisyMax, "scale"), (GaussianNoisyMax, "sigma"), (GumbelNoisyMax, "scale")],
)
def test_a_million_draws_a_side_bound_epsilon_below_the_claim_unless_noise_is_cut(kind, key):
    """ε of one answer at δ from the event that separates the worst pair best (Clopper–Pearson)."""
    delta, draws, rng = 0.02, 1_000_000, np.random.default_rng(17)
    mechanism, quiet = kind(**{key: 4.0}), kind(**{key: 2.8})
    claim = guarantee_of_plan([mechanism.answer_event], delta=delta).epsilon
    leads = np.arange(-16.0, 17.0)
    chances = mechanism.win_chances(leads[:, None])  # that class 0 wins, by its lead
    gain = chances - math.exp(claim) * mechanism.win_chances(leads[:, None] - 2)
    lead = int(leads[np.argmax(gain)])

    def hits(which, ahead):
        votes = Votes(counts=np.broadcast_to(np.array([50 + ahead, 50]), (draws, 2)))
        return int(np.count_nonzero(which.release(votes, rng=rng).labels == 0))

    def lower(which):
        more, fewer = hits(which, lead), hits(which, lead - 2)
        least = beta.ppf(5e-5, more, draws - more + 1)
        most = beta.ppf(1 - 5e-5, fewer + 1, draws - fewer)
        return math.log((least - delta) / most)

    assert 0.85 * claim < lower(mechanism) < claim
    assert lower(quiet) > claim


def test_a_million_checks_a_side_bound_epsilon_below_the_claim_unless_noise_is_cut():
    """The checks of Confident-GNMax, at the count that separates the worst pair best."""
    delta, draws, rng = 0.02, 1_000_000, np.random.default_rng(5)
    claim = guarantee_of_plan([ThresholdCheck(sigma=2.0)], delta=delta).epsilon
    away = np.linspace(-4, 4, 161)  # of the threshold from the lower count, in votes
    gain = ndtr(-(away - 1) / 2) - math.exp(claim) * ndtr(-away / 2)
    threshold = 50 + float(away[np.argmax(gain)])

    def passed(sigma, count):
        mechanism = ConfidentGnmax(threshold=threshold, sigma1=sigma, sigma2=1.0)
        votes = Votes(counts=np.broadcast_to(np.array([count, 0]), (draws, 2)))
        return len(mechanism.release(votes, rng=rng).answered)

    def lower(sigma):
        more, fewer = passed(sigma, 51), passed(sigma, 50)
        least = beta.ppf(5e-5, more, draws - more + 1)
        most = beta.ppf(1 - 5e-5, fewer + 1, draws - fewer)
        return math.log((least - delta) / most)

    assert 0.85 * claim < lower(2.0) < claim
    assert lower(1.4) > claim


@pytest.mark.parametrize("noise", [{"sigma": 0.03}, {"scale": 0.05}])
def test_noise_whose_faint_outcomes_would_count_is_refused(noise):
    with pytest.raises(InvalidInput, match=r"0\.2 or more"):
        exact_divergence([[5, 5]], orders=[2.0], **noise)
