"""The odometer against every adversary there is: exact enumeration over small mechanisms."""

from __future__ import annotations

import functools
import math

import pytest

from pate.accounting import Conversion, Gaussian, Guarantee, Ledger, Mode, Repeated, compose
from pate.accounting.moments import odometer_epsilon
from pate.errors import InvalidInput

LAMBDAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def two_sided(epsilon):
    """Randomised response: Pr of either output, for one data set and for its neighbour."""
    yes = math.exp(epsilon) / (1 + math.exp(epsilon))
    return ((yes, 1 - yes), (1 - yes, yes))


def rare(here, there):
    """An output that is rare, and rarer for the neighbour."""
    return ((here, 1 - here), (there, 1 - there))


MENUS = [
    (two_sided(0.2), two_sided(0.5), two_sided(1.5)),
    (rare(0.3, 0.1), two_sided(0.4)),
    (rare(0.02, 0.002), two_sided(0.3)),
]


def log_moment(mechanism, moment):
    pairs = list(zip(*mechanism, strict=True))
    both = [sum(p ** (moment + 1) / q**moment for p, q in pairs) for pairs in
            (pairs, [(q, p) for p, q in pairs])]  # fmt: skip
    return math.log(max(both))


def excess(epsilon, loss):
    return max(0.0, 1 - math.exp(min(0.0, epsilon - loss)))


def worst(menu, read, *, steps, at_all_times=None):
    """The most that any adversary gets out of (at most) ``steps`` mechanisms from a menu.

    It picks each mechanism, and when to stop, by all outputs before. ``read`` makes ε of the
    totals at LAMBDAS. Without ``at_all_times`` it gets the hockey-stick divergence at the ε it
    stops at; with it, the expectation of the largest value of that function over all times.
    """
    costs = [[log_moment(each, moment) for moment in LAMBDAS] for each in menu]

    @functools.cache
    def value(counts, loss, left, top):
        totals = [
            sum(n * cost for n, cost in zip(counts, column, strict=True))
            for column in zip(*costs, strict=True)
        ]
        epsilon = read(totals)
        here = at_all_times(epsilon, loss) if at_all_times else excess(epsilon, loss)
        best = top = max(top, here) if at_all_times else here
        for number, (mine, other) in enumerate(menu if left else ()):
            after = tuple(n + (i == number) for i, n in enumerate(counts))
            kept = top if at_all_times else 0.0
            best = max(best, sum(
                p * value(after, round(loss + math.log(p / q), 12), left - 1, kept)
                for p, q in zip(mine, other, strict=True)
            ))  # fmt: skip
        return best

    return value((0,) * len(menu), 0.0, steps, 0.0)


def at(moment, delta, conversion):
    place = LAMBDAS.index(moment)
    return lambda totals: odometer_epsilon(
        totals[place], moment=moment, delta=delta, conversion=conversion
    )


def at_the_best(delta, conversion):
    readers = [at(moment, delta, conversion) for moment in LAMBDAS]
    return lambda totals: min(read(totals) for read in readers)


@pytest.mark.parametrize("conversion", Conversion)
@pytest.mark.parametrize("delta", [0.2, 0.01])
@pytest.mark.parametrize("menu", MENUS)
@pytest.mark.sample(4)
def test_it_holds_whenever_an_adversary_stops(menu, delta, conversion):
    found = [worst(menu, at(each, delta, conversion), steps=8) for each in LAMBDAS]
    assert max(found) <= delta * (1 + 1e-9)
    if conversion is Conversion.IMPROVED:
        assert max(found) > 0.9 * delta  # and there is nothing left to give away


@pytest.mark.parametrize("menu", MENUS)
def test_the_best_moment_afterwards_is_no_guarantee(menu):
    """The planted fault: λ chosen by what was charged."""
    assert worst(menu, at_the_best(0.01, Conversion.IMPROVED), steps=9) > 1.2 * 0.01


@pytest.mark.parametrize("menu", MENUS)
def test_delta_shared_out_over_moments_is_one(menu):
    share = 0.2 / len(LAMBDAS)
    assert worst(menu, at_the_best(share, Conversion.IMPROVED), steps=8) <= 0.2


@pytest.mark.parametrize("menu", MENUS)
def test_all_times_at_once_need_the_classic_conversion(menu):
    """Ville's inequality is about the event that the loss ever passes its reading."""
    delta = 0.05

    def passed(epsilon, loss):
        return float(loss > epsilon + 1e-9)

    found = [
        worst(menu, at(each, delta, Conversion.CLASSIC), steps=7, at_all_times=passed)
        for each in LAMBDAS
    ]
    assert max(found) <= delta * (1 + 1e-9)
    improved = at(2.0, delta, Conversion.IMPROVED)
    assert worst(menu, improved, steps=7, at_all_times=passed) > delta
    assert worst(menu, improved, steps=7, at_all_times=excess) > delta


def test_what_is_tiny_is_not_called_nothing():
    """ε = 0 for a total variation below δ holds for a bound fixed in advance, and only there."""
    reading = odometer_epsilon(1e-9, moment=8.0, delta=1e-3, conversion=Conversion.IMPROVED)
    assert reading > 0
    assert compose([Gaussian(noise_multiplier=1e5)], [8.0]).guarantee(delta=1e-3).epsilon == 0


@pytest.mark.parametrize(
    ("log_moment", "moment", "delta"),
    [(math.nan, 8.0, 1e-5), (-1.0, 8.0, 1e-5), (1.0, 0.0, 1e-5), (1.0, 8.0, 0.0)],
)
def test_what_makes_no_sense_is_refused(log_moment, moment, delta):
    with pytest.raises(InvalidInput):
        odometer_epsilon(log_moment, moment=moment, delta=delta, conversion=Conversion.IMPROVED)


def test_one_planned_release_costs_by_the_ledger_what_its_plan_says(tmp_path):
    """The λ of the ledger is the plan's best one, so there is nothing to lose."""
    plan = [Repeated(Gaussian(noise_multiplier=40.0), 300)]
    stated = compose(plan).guarantee(delta=1e-5)
    terms = Guarantee(epsilon=math.inf, delta=1e-5, moment=stated.moment)
    with Ledger.open(tmp_path / "ledger", budget=terms, mode=Mode.ODOMETER) as ledger:
        ledger.charge(plan, release="labels")
        assert ledger.guarantee().epsilon == stated.epsilon == ledger.spent().epsilon
