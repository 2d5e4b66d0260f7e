"""Schedules worked out by hand, Graham's bounds, and an order that breaks them."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pate.engines.task import READ_AHEAD
from pate.errors import InvalidInput

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
_spec = importlib.util.spec_from_file_location("simulation", BENCHMARKS / "simulation.py")
simulation = importlib.util.module_from_spec(_spec)
sys.modules["simulation"] = simulation  # for its dataclass
_spec.loader.exec_module(simulation)
Job, simulate = simulation.Job, simulation.simulate


def known(*seconds):
    """Jobs whose durations were known before."""
    return [Job(each, each) for each in seconds]


@pytest.mark.parametrize(
    ("seconds", "slots", "makespan", "lower_bound"),
    [
        ([], 3, 0, 0),
        ([5], 1, 5, 5),
        ([5], 4, 5, 5),
        ([1, 1, 1], 2, 2, 1.5),
        ([1, 2, 3, 4], 2, 5, 5),  # 4 and 3, then 2 beside 4's rest, then 1
        ([3, 3, 2, 2, 2], 2, 7, 6),  # Graham's example for two: 3+3 and 2+2+2 would be 6
        ([5, 5, 4, 4, 3, 3, 3], 3, 11, 9),  # and for three
    ],
)
def test_longest_first_by_hand(seconds, slots, makespan, lower_bound):
    found = simulate(known(*seconds), slots=slots)
    assert (found.makespan, found.lower_bound) == (makespan, lower_bound)
    assert (found.tasks, found.busy) == (len(seconds), sum(seconds))
    assert found.utilisation == (sum(seconds) / (slots * makespan) if seconds else 1)
    assert found.ratio == (makespan / lower_bound if seconds else 1)


def test_weights_decide_the_order_and_seconds_the_time():
    """Two slots; the long job was thought to be short, so it comes last."""
    assert simulate([Job(1, 4), Job(3, 2), Job(2, 2)], slots=2).makespan == 6
    assert simulate([Job(3, 4), Job(1, 2), Job(2, 2)], slots=2).makespan == 4


def test_a_window_sees_no_further():
    """The long job comes last; only who can see it starts with it."""
    jobs = known(1, 1, 1, 1, 4)
    assert simulate(jobs, slots=2, read_ahead=5).makespan == 4
    assert simulate(jobs, slots=2, read_ahead=1).makespan == 6


def test_every_task_costs_its_overhead():
    found = simulate(known(1, 1, 1, 1), slots=2, overhead=0.25)
    assert (found.makespan, found.lower_bound, found.utilisation) == (2.5, 2, 0.8)


def shortest_possible(seconds, slots):
    """By trying everything."""
    shares = itertools.product(range(slots), repeat=len(seconds))
    return min(
        max(
            sum(t for t, slot in zip(seconds, share, strict=True) if slot == each)
            for each in range(slots)
        )
        for share in shares
    )


def within_graham(jobs, slots):
    """Whether a schedule is at most 4/3 − 1/(3 slots) of the shortest; exact, in whole numbers."""
    shortest = shortest_possible([job.seconds for job in jobs], slots)
    return 3 * slots * simulate(jobs, slots=slots).makespan <= (4 * slots - 1) * shortest


few = st.lists(st.integers(1, 20), min_size=1, max_size=7)


@given(few, st.integers(1, 3))
@example([3, 3, 2, 2, 2], 2)  # where the bound is reached
def test_longest_first_is_within_four_thirds(seconds, slots):
    assert within_graham(known(*seconds), slots)


def test_shortest_first_is_not():
    """The same check notices an order that is upside down."""
    assert not within_graham([Job(-t + 9, t) for t in (1, 1, 2)], 2)


@given(
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 50)), min_size=1, max_size=400),
    st.integers(1, 70),
    st.integers(1, 300),
)
def test_no_order_is_worse_than_graham_says(pairs, slots, read_ahead):
    found = simulate([Job(*pair) for pair in pairs], slots=slots, read_ahead=read_ahead)
    assert slots * found.makespan <= found.busy + (slots - 1) * found.longest
    assert found.makespan >= found.lower_bound
    assert found.tasks == len(pairs)
    assert found.busy == sum(seconds for _, seconds in pairs)


def test_jobs_are_read_as_they_are_needed():
    """Memory is that of the window, whatever the number of jobs."""

    def peak(count):
        tracemalloc.start()
        try:
            assert simulate((Job(n % 7, 1 + n % 5) for n in range(count)), slots=8).tasks == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(READ_AHEAD)
    # A list of all jobs would take 50 times as much; other threads allocate a little meanwhile.
    assert peak(100 * READ_AHEAD) < 2 * peak(2 * READ_AHEAD)


def test_the_last_short_ones_fill_the_gaps():
    """A window that moves along keeps the lightest for the end: 100 000 teachers, 64 slots."""
    jobs = (Job(240, 3 + n % 11) for n in range(3125))
    assert simulate(jobs, slots=64).ratio < 1.05
    assert simulate((Job(t, t) for t in range(3125, 0, -1)), slots=64).ratio < 1.001


@pytest.mark.parametrize("slots", [0, -1, 1.5, True])
def test_slots_that_mean_nothing(slots):
    with pytest.raises(InvalidInput, match="slots is"):
        simulate([], slots=slots)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_seconds_that_mean_nothing(seconds):
    with pytest.raises(InvalidInput, match="job 0 took"):
        simulate([Job(1, seconds)])
