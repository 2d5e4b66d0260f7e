"""What must hold for every event and every vote."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate.accounting import (
    ApproximateDP,
    Conversion,
    Gaussian,
    GaussianNoisyMaxAnswer,
    Guarantee,
    GumbelNoisyMaxAnswer,
    Laplace,
    LaplaceNoisyMaxAnswer,
    Neighbours,
    PureDP,
    Repeated,
    SampledGaussian,
    SmoothRelease,
    ThresholdCheck,
    ZeroConcentrated,
    compose,
    event_from_json,
    event_to_json,
    gaussian_total,
    integer_moments,
    laplace_total,
    log_moments,
    pld_guarantee,
)
from pate.accounting.bounded_range import gumbel_total
from pate.accounting.calibrate import DpsgdAccountant, Method
from pate.accounting.events import Event, ForReplacement, tally
from pate.accounting.moments import DEFAULT_MOMENTS, LogMoments, epsilon_at, log_moment_at
from pate.errors import InvalidInput, UnsupportedEvent

MOMENTS = np.array([0.3, 1.0, 2.0, 3.5, 8.0, 32.0])

noise = st.floats(0.3, 1e4)
deltas = st.floats(1e-12, 0.1)
replaced = st.one_of(
    noise.map(lambda x: LaplaceNoisyMaxAnswer(scale=x)),
    noise.map(lambda x: GaussianNoisyMaxAnswer(sigma=x)),
    noise.map(lambda x: GumbelNoisyMaxAnswer(scale=x)),
    noise.map(lambda x: ThresholdCheck(sigma=x)),
    st.floats(0.01, 3).map(lambda x: PureDP(epsilon=x)),
    st.floats(1e-6, 3).map(lambda x: ZeroConcentrated(rho=x)),
    noise.map(lambda x: Gaussian(noise_multiplier=x)),
    noise.map(lambda x: Laplace(noise_multiplier=x)),
)
steps = st.builds(
    SampledGaussian, sample_rate=st.floats(1e-6, 1.0), noise_multiplier=st.floats(0.5, 50)
)
restated = st.one_of(
    st.floats(0.01, 3).map(lambda x: ForReplacement(PureDP(epsilon=x))),
    noise.map(lambda x: ForReplacement(Gaussian(noise_multiplier=x))),
)
any_event = st.one_of(
    replaced,
    restated,
    steps,
    st.builds(ApproximateDP, epsilon=st.floats(0.01, 3), delta=st.floats(1e-12, 0.5)),
    st.builds(SmoothRelease, beta=st.floats(1e-4, 0.1), sigma=noise),
)
histograms = st.integers(2, 12).flatmap(
    lambda m: st.lists(
        st.lists(st.integers(0, 300), min_size=m, max_size=m).filter(any), min_size=1, max_size=5
    )
)

BY_NOISE = {
    "lnmax": lambda x: LaplaceNoisyMaxAnswer(scale=x),
    "gnmax": lambda x: GaussianNoisyMaxAnswer(sigma=x),
    "gumbel": lambda x: GumbelNoisyMaxAnswer(scale=x),
    "check": lambda x: ThresholdCheck(sigma=x),
    "gaussian": lambda x: Gaussian(noise_multiplier=x),
    "laplace": lambda x: Laplace(noise_multiplier=x),
    "dpsgd": lambda x: SampledGaussian(sample_rate=0.03, noise_multiplier=x),
    "dpsgd, all": lambda x: SampledGaussian(sample_rate=1.0, noise_multiplier=x),
}


@pytest.mark.parametrize("kind", BY_NOISE)
@given(low=st.floats(0.4, 1e3), factor=st.floats(1.001, 50))
@pytest.mark.sample(4)
def test_more_noise_never_costs_more(kind, low, factor):
    loud = log_moments(BY_NOISE[kind](low * factor), MOMENTS)
    quiet = log_moments(BY_NOISE[kind](low), MOMENTS)
    assert np.all(loud <= quiet * (1 + 1e-12))


@given(votes=histograms, low=st.floats(0.5, 200), factor=st.floats(1.01, 20))
def test_data_dependent_is_at_most_data_independent(votes, low, factor):
    for total, event in (
        (laplace_total(votes, scale=low, moments=MOMENTS), LaplaceNoisyMaxAnswer(scale=low)),
        (gaussian_total(votes, sigma=low, moments=MOMENTS), GaussianNoisyMaxAnswer(sigma=low)),
        (gumbel_total(votes, scale=low, moments=MOMENTS), GumbelNoisyMaxAnswer(scale=low)),
    ):
        independent = compose([Repeated(event, len(votes))], MOMENTS)
        assert np.all(total.values <= independent.values * (1 + 1e-12))
        assert np.all(total.values >= 0)
        assert total.data_dependent
        assert not independent.data_dependent


@given(events=st.lists(replaced | restated, min_size=1, max_size=6), data=st.data())
def test_order_does_not_matter_to_the_last_bit(events, data):
    shuffled = data.draw(st.permutations(events))
    np.testing.assert_array_equal(compose(events).values, compose(shuffled).values)


@given(event=st.one_of(replaced, restated, steps), count=st.integers(1, 10**6))
def test_repeats_multiply(event, count):
    one = compose([event], MOMENTS).values
    np.testing.assert_array_equal(compose([Repeated(event, count)], MOMENTS).values, count * one)
    np.testing.assert_array_equal(log_moments(Repeated(event, count), MOMENTS), count * one)
    few = compose([event] * 5, MOMENTS).values
    np.testing.assert_array_equal(few, compose([Repeated(event, 5)], MOMENTS).values)
    nested = compose([Repeated(Repeated(event, 2), 3)], MOMENTS).values
    np.testing.assert_array_equal(nested, 6 * one)


@given(events=st.lists(replaced, min_size=1, max_size=4), delta=deltas, factor=st.floats(1.1, 100))
def test_epsilon_falls_as_delta_grows(events, delta, factor):
    total = compose(events)
    looser = min(delta * factor, 0.9)
    for conversion in Conversion:
        small = total.guarantee(delta=delta, conversion=conversion).epsilon
        assert total.guarantee(delta=looser, conversion=conversion).epsilon <= small


@given(events=st.lists(replaced, min_size=1, max_size=4), delta=deltas)
def test_the_improved_conversion_is_never_worse(events, delta):
    total = compose(events)
    improved = total.guarantee(delta=delta, conversion=Conversion.IMPROVED)
    assert improved.epsilon <= total.guarantee(delta=delta, conversion=Conversion.CLASSIC).epsilon


@given(events=st.lists(replaced, min_size=1, max_size=3), more=replaced, delta=deltas)
def test_another_event_never_makes_it_cheaper(events, more, delta):
    less = compose(events).guarantee(delta=delta).epsilon
    assert compose([*events, more]).guarantee(delta=delta).epsilon >= less * (1 - 1e-12)


@given(event=any_event, count=st.integers(0, 10**9))
def test_json_round_trip_is_exact(event, count):
    for item in (event, Repeated(event, count), Repeated(Repeated(event, 2), count)):
        assert event_from_json(event_to_json(item)) == item


@given(epsilon=st.floats(0.05, 20), delta=deltas)
def test_conversion_and_its_inverse_agree(epsilon, delta):
    for conversion in Conversion:
        room = log_moment_at(MOMENTS, epsilon, delta=delta, conversion=conversion)
        usable = room > 1e-3
        back = epsilon_at(MOMENTS[usable], room[usable], delta=delta, conversion=conversion)
        told_apart = back > 0
        np.testing.assert_allclose(back[told_apart], epsilon, rtol=1e-9)


def test_unknown_events_raise():
    class Mystery(Event):
        pass

    for use in (
        lambda: compose([Mystery()]),
        lambda: log_moments(Mystery(), MOMENTS),
        lambda: event_to_json(Mystery()),
        lambda: event_from_json('{"event": "Mystery"}'),
        lambda: compose(["a string"]),
        lambda: compose([ApproximateDP(epsilon=1.0, delta=1e-6)]),
        lambda: pld_guarantee([PureDP(epsilon=1.0)], delta=1e-5),
    ):
        with pytest.raises(UnsupportedEvent):
            use()
    for text in ("", "[]", "{}", '{"event": "PureDP"}', '{"event": "PureDP", "epsilonn": 1}'):
        with pytest.raises(InvalidInput):
            event_from_json(text)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "20"])
def test_noise_must_be_a_positive_number(bad):
    for make in (
        *BY_NOISE.values(),
        lambda x: PureDP(epsilon=x),
        lambda x: ZeroConcentrated(rho=x),
    ):
        with pytest.raises(InvalidInput):
            make(bad)


@pytest.mark.parametrize("bad", [-1, 1.5, True])
def test_counts_must_be_whole(bad):
    with pytest.raises(InvalidInput):
        Repeated(PureDP(epsilon=1.0), bad)


def test_neighbouring_relations_do_not_mix():
    with pytest.raises(InvalidInput, match="neighbours"):
        compose(
            [
                LaplaceNoisyMaxAnswer(scale=20.0),
                SampledGaussian(sample_rate=0.1, noise_multiplier=1.0),
            ]
        )
    plain = compose([Gaussian(noise_multiplier=1.0), LaplaceNoisyMaxAnswer(scale=20.0)])
    assert plain.neighbours is Neighbours.REPLACE_ONE


def test_undefined_moments_are_refused():
    for values in ([np.nan], [-1e-9]):
        with pytest.raises(InvalidInput):
            LogMoments(moments=np.array([1.0]), values=np.array(values))
    for epsilon in (math.nan, -0.1):
        with pytest.raises(InvalidInput):
            Guarantee(epsilon=epsilon, delta=1e-5)
    with pytest.raises(InvalidInput):
        compose([PureDP(epsilon=1.0)], [1.0]) + compose([PureDP(epsilon=1.0)], [2.0])


def test_nothing_costs_nothing():
    assert compose([]).guarantee(delta=1e-5).epsilon == 0.0


def test_the_default_grid_does_not_floor_small_epsilons():
    assert DEFAULT_MOMENTS[-1] >= 1024
    one = compose([GaussianNoisyMaxAnswer(sigma=5000.0)])
    for conversion in Conversion:
        found = one.guarantee(delta=1e-5, conversion=conversion)
        # 2√(ρ log 1/δ) + ρ with ρ = 1/σ², the optimum over all real λ of the classic conversion
        assert found.epsilon <= (2 * math.sqrt(math.log(1e5)) / 5000 + 1 / 5000**2) * 1.02
        assert found.moment < DEFAULT_MOMENTS[-1]


def test_pure_composition_is_an_upper_limit():
    """Ten (ε, 0)-DP answers cost at most 10ε, whatever δ; the grid must come close to it."""
    found = compose([Repeated(PureDP(epsilon=0.5), 10)]).guarantee(delta=1e-30)
    assert found.epsilon <= 5.0 * (1 + 1e-3)


@given(votes=histograms, sigma=st.floats(1, 100))
def test_class_names_do_not_matter(votes, sigma):
    table = np.array(votes)
    turned = np.roll(table, 1, axis=1)[::-1]
    for total in (
        lambda v: laplace_total(v, scale=sigma, moments=MOMENTS).values,
        lambda v: gaussian_total(v, sigma=sigma, moments=MOMENTS).values,
    ):
        np.testing.assert_array_equal(total(table), total(turned))


@given(votes=histograms, scale=st.floats(1, 100))
def test_totals_are_sums_of_rows(votes, scale):
    whole = laplace_total(votes, scale=scale, moments=MOMENTS).values
    rows = sum(laplace_total([row], scale=scale, moments=MOMENTS).values for row in votes)
    np.testing.assert_allclose(whole, rows, rtol=1e-12)


def test_tally_is_the_same_for_every_grouping():
    a, b = PureDP(epsilon=0.1), LaplaceNoisyMaxAnswer(scale=3.0)
    ways = [[a, b, a], [Repeated(a, 2), b], [b, Repeated(Repeated(a, 1), 2), Repeated(b, 0)]]
    for one, other in itertools.pairwise(ways):
        assert list(tally(one).items()) == list(tally(other).items())


@given(event=st.one_of(replaced, steps))
def test_whole_moments_may_be_written_without_a_point(event):
    """An integer array once made NumPy round costs down; now it is the same as a float one."""
    whole = log_moments(event, [1, 2, 8])
    assert whole.dtype == np.float64
    np.testing.assert_array_equal(whole, log_moments(event, [1.0, 2.0, 8.0]))


def test_integer_moments_need_one():
    with pytest.raises(InvalidInput):
        integer_moments(0)
    with pytest.raises(InvalidInput):
        compose([], [0.0])


# --- what is stated for a replaced record --------------------------------------------------------

OPEN = [
    Gaussian(noise_multiplier=2.0),
    Laplace(noise_multiplier=2.0),
    PureDP(epsilon=0.5),
    ZeroConcentrated(rho=0.1),
]
STEP = SampledGaussian(sample_rate=0.1, noise_multiplier=1.0)


@pytest.mark.parametrize("inner", OPEN, ids=lambda inner: type(inner).__name__)
def test_stating_the_relation_changes_the_relation_alone(inner):
    stated = ForReplacement(inner)
    assert inner.neighbours is Neighbours.AS_STATED
    np.testing.assert_array_equal(log_moments(stated, MOMENTS), log_moments(inner, MOMENTS))
    total = compose([Repeated(stated, 3), inner, PureDP(epsilon=0.1)])
    assert total.neighbours is Neighbours.REPLACE_ONE
    assert total.guarantee(delta=1e-5).neighbours is Neighbours.REPLACE_ONE
    np.testing.assert_array_equal(
        compose([Repeated(stated, 4)]).values, compose([Repeated(inner, 4)]).values
    )
    assert compose([stated, LaplaceNoisyMaxAnswer(scale=9.0)]).neighbours is Neighbours.REPLACE_ONE
    for events in ([stated, STEP], [STEP, Repeated(stated, 2)]):
        with pytest.raises(InvalidInput, match="do not add up"):
            compose(events)
    assert len({stated, ForReplacement(inner), inner}) == 2
    assert tally([stated, inner, Repeated(stated, 2)]) == {stated: 3, inner: 1}


def test_loss_distributions_of_what_is_stated():
    for inner in OPEN[:2]:
        plain = pld_guarantee([inner], delta=1e-5)
        found = pld_guarantee([ForReplacement(inner)], delta=1e-5)
        assert (plain.neighbours, found.neighbours) == ("as-stated", "replace-one")
        assert found.epsilon == plain.epsilon
        with pytest.raises(InvalidInput, match="do not add up"):
            pld_guarantee([ForReplacement(inner), STEP], delta=1e-5)
    with pytest.raises(InvalidInput, match="use the moments accountant"):
        pld_guarantee([ForReplacement(Gaussian(noise_multiplier=0.01))], delta=1e-5)
    for inner in (PureDP(epsilon=1.0), ApproximateDP(epsilon=1.0, delta=1e-6)):
        with pytest.raises(UnsupportedEvent):
            pld_guarantee([ForReplacement(inner)], delta=1e-5)
    with pytest.raises(UnsupportedEvent, match="ApproximateDP"):
        compose([ForReplacement(ApproximateDP(epsilon=1.0, delta=1e-6))])
    abadi = DpsgdAccountant(delta=1e-5, method=Method.ABADI)
    with pytest.raises(UnsupportedEvent, match="not a DP-SGD step"):
        abadi.guarantee([ForReplacement(Gaussian(noise_multiplier=1.0))])


@pytest.mark.parametrize(
    "inner",
    [STEP, LaplaceNoisyMaxAnswer(scale=1.0), Repeated(PureDP(epsilon=1.0), 2),
     ForReplacement(PureDP(epsilon=1.0)), None, 3],
)  # fmt: skip
def test_a_relation_that_is_not_open_cannot_be_restated(inner):
    with pytest.raises(InvalidInput, match="leave the relation open"):
        ForReplacement(inner)


def test_what_is_stated_is_written_and_read():
    event = ForReplacement(ApproximateDP(epsilon=0.1, delta=1e-7))
    text = event_to_json(event)
    inner = '{"delta": 1e-07, "epsilon": 0.1, "event": "ApproximateDP"}'
    assert text == f'{{"event": "ForReplacement", "of": {inner}}}'
    assert event_from_json(text) == event
    step = event_to_json(STEP)
    for bad in ('{"event": "ForReplacement"}', f'{{"event": "ForReplacement", "of": {step}}}'):
        with pytest.raises(InvalidInput):
            event_from_json(bad)
