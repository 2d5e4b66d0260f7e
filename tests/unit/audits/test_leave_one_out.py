"""Exact leave-one-out against brute force: noise drawn, shards refitted, sums by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pate.accounting import ZeroConcentrated, compose
from pate.accounting.composition import gaussian_epsilon
from pate.accounting.exact_divergence import neighbour_chances, renyi_divergences
from pate.audits.leave_one_out import (
    component_exposure,
    record_exposure,
    shown_epsilon,
    teacher_exposure,
)
from pate.errors import ConditionsFail, InvalidInput
from pate.mechanisms import (
    ConfidentGnmax,
    GaussianCounts,
    GaussianNoisyMax,
    GumbelNoisyMax,
    InteractiveGnmax,
    LaplaceCounts,
    LaplaceNoisyMax,
)
from pate.mechanisms.mechanism import moved_counts
from pate.record_votes import GRID
from pate.teachers.linear import RidgeTeacher
from pate.votes import Votes

MECHANISMS = [
    LaplaceNoisyMax(scale=3.0),
    GaussianNoisyMax(sigma=4.0),
    GumbelNoisyMax(scale=3.0),
    ConfidentGnmax(threshold=9.0, sigma1=5.0, sigma2=4.0),
]
COUNTS = np.array([[9, 5, 2], [6, 6, 4], [16, 0, 0]])


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.name)
def test_chances_are_those_of_the_drawn_noise(mechanism):
    source, target = np.array([0, 1, 0]), np.array([1, -1, 2])
    both = mechanism.neighbour_chances(COUNTS, source, target)
    rng, draws = np.random.default_rng(3), 40_000
    for chances, votes in zip(both, (COUNTS, moved_counts(COUNTS, source, target)), strict=True):
        assert np.allclose(chances.sum(axis=1), 1, atol=1e-9)
        for row, expected in zip(votes, chances, strict=True):
            drawn = mechanism.release(Votes(counts=np.tile(row, (draws, 1))), rng=rng)
            seen = np.bincount(drawn.labels, minlength=3) / draws
            spread = 5 * np.sqrt(expected[:3] * (1 - expected[:3]) / draws) + 1e-4
            assert np.all(np.abs(seen - expected[:3]) < spread)


@pytest.mark.parametrize("noise", [{"sigma": 4.0}, {"scale": 3.0}], ids=str)
def test_every_move_of_a_vote_has_the_chances_of_the_moved_votes(noise):
    """The chances of a neighbour by ratios are those of its own votes by plain quadrature."""
    for a, b in itertools.product(range(-1, 3), repeat=2):
        source, target = np.full(3, a), np.full(3, b)
        possible = COUNTS[:, a] > 0 if a >= 0 else np.ones(3, bool)
        moved = moved_counts(COUNTS, source, target)[possible]
        _, there = neighbour_chances(COUNTS[possible], source[possible], target[possible], **noise)
        still = np.full(len(moved), -1)
        plain, same = neighbour_chances(moved, still, still, **noise)
        assert np.allclose(there, plain, rtol=1e-9, atol=1e-12)
        assert np.array_equal(plain, same)


def test_one_that_is_not_known_is_refused():
    mechanism = InteractiveGnmax(threshold=9.0, sigma1=5.0, sigma2=4.0)
    with pytest.raises(ConditionsFail, match="Interactive-GNMax are not known"):
        mechanism.neighbour_chances(COUNTS, np.zeros(3, int), np.ones(3, int))
    with pytest.raises(InvalidInput, match="one class, or −1"):
        neighbour_chances(COUNTS, [0, 1, 3], [0, 0, 0], sigma=1.0)


def project(rng, *, teachers=5, records=30, classes=3):
    centres = 1.2 * rng.normal(size=(classes, 4))
    y = rng.integers(0, classes, size=records)
    X = centres[y] + rng.normal(size=(records, 4))
    owner = np.append(np.arange(records - 1) % (teachers - 1), teachers - 1)  # the last: one record
    shards = [(X[owner == number], y[owner == number]) for number in range(teachers)]
    return shards, centres[rng.integers(0, classes, size=12)] + rng.normal(size=(12, 4))


def ridge_votes(shards, inputs, classes=3):
    cast = [RidgeTeacher(classes=classes).fit(*s).predict(inputs) for s in shards if len(s[1])]
    return np.stack([np.bincount(each, minlength=classes) for each in np.transpose(cast)])


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: each.name)
@pytest.mark.sample(1)
def test_realised_epsilon_is_that_of_refitting_everything(mechanism):
    """For every record: all teachers again without it, all chances, all divergences."""
    shards, inputs = project(np.random.default_rng(5))
    votes = ridge_votes(shards, inputs)
    given = {"make": lambda number: RidgeTeacher(classes=3), "votes": votes}
    found = teacher_exposure(shards, inputs, mechanism=mechanism, delta=0.0, **given)
    place, changing = 0, 0
    still = np.full(len(inputs), -1)
    here = mechanism.neighbour_chances(votes, still, still)[0]
    for number, (X, y) in enumerate(shards):
        for record in range(len(y)):
            without = list(shards)
            without[number] = (np.delete(X, record, axis=0), np.delete(y, record))
            there = mechanism.neighbour_chances(ridge_votes(without, inputs), still, still)[0]
            loss = np.log(here) - np.log(there)
            largest = max(loss.max(axis=1).sum(), (-loss).max(axis=1).sum())
            assert found.epsilons[place] == pytest.approx(largest, rel=1e-7, abs=1e-9)
            changing += largest > 1e-6
            place += 1
    assert place == len(found.epsilons) == 30
    assert 3 < changing < 30  # some records change votes, and some do not
    assert np.all((found.epsilons == 0) == (found.changed == 0))
    assert found.shown == pytest.approx(found.epsilons.max(), rel=1e-9)
    # At a δ the realised ε is less, between what is shown and the claim.
    at_delta = teacher_exposure(shards, inputs, mechanism=mechanism, delta=1e-3, **given)
    events = mechanism.caps(queries=len(inputs), answers=len(inputs))
    claimed = compose(events).guarantee(delta=1e-3).epsilon
    assert np.all(at_delta.epsilons <= found.epsilons)
    assert 0 < at_delta.shown <= at_delta.epsilons.max() <= claimed
    finding = at_delta.finding()
    assert not finding.contradicts(claimed)
    assert finding.contradicts(0.9 * at_delta.shown)


@pytest.mark.parametrize(("sigma1", "sigma2", "answers"), [(100.0, 1.0, 1), (200.0, 1.0, 2)])
def test_a_bound_counts_queries_that_are_always_asked_alone(sigma1, sigma2, answers):
    """Ten tied teachers, one of which changes every vote; later queries may never be asked."""
    mechanism = ConfidentGnmax(threshold=6.0, sigma1=sigma1, sigma2=sigma2)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(6, 2))

    class Fixed:
        """Votes for class 0 with its record, and for class 1 without it."""

        def fit(self, X, y):
            self.label = int(0 not in y)
            return self

        def predict(self, X):
            return np.full(len(X), self.label)

    shards = [(rng.normal(size=(2, 2)), np.array([0, 1]))]
    found = {
        asked: teacher_exposure(
            shards,
            inputs,
            make=lambda number: Fixed(),
            votes=np.full((6, 2), 5),
            mechanism=mechanism,
            delta=1e-5,
            always_asked=asked,
        )
        for asked in (answers, None)
    }
    events = mechanism.caps(queries=6, answers=answers)
    claimed = compose(events).guarantee(delta=1e-5).epsilon
    assert 0 < found[answers].shown <= claimed < found[None].shown
    assert np.array_equal(found[answers].epsilons, found[None].epsilons)


@pytest.mark.parametrize(
    ("reach", "epsilon"), [(1, 1.0), (1, 13.0), (1, 15.0), (30, 0.03), (300, 0.3), (1000, 0.1)]
)
def test_rounding_accuses_no_table(reach, epsilon):
    known = {"epsilon": epsilon, "delta": 0.0, "reach": reach, "per_user": None}
    mechanism = LaplaceCounts(scale=LaplaceCounts.least_noise(**known))
    (event,) = mechanism.events(reach=reach)
    cells = np.arange(2 * reach).reshape(2, reach)
    found = record_exposure(cells, [0, 1], mechanism=mechanism, delta=0.0, classes=2)
    assert (1 - 1e-9) * epsilon <= found.shown <= event.event.epsilon <= epsilon


def test_a_teacher_left_without_records_abstains_and_users_go_together():
    shards, inputs = project(np.random.default_rng(5))
    votes = ridge_votes(shards, inputs)
    given = {
        "make": lambda number: RidgeTeacher(classes=3),
        "votes": votes,
        "mechanism": GaussianNoisyMax(sigma=4.0),
        "delta": 1e-3,
    }
    alone = teacher_exposure(shards, inputs, left_out={4: [[0]]}, **given)
    assert alone.changed.tolist() == [len(inputs)]  # every vote of it is withdrawn
    user = teacher_exposure(shards, inputs, left_out={0: [[0, 1, 2], [3]]}, **given)
    assert len(user.epsilons) == 2


def test_an_interrupted_audit_resumes(tmp_path):
    shards, inputs = project(np.random.default_rng(5))
    made = []

    def make(number):
        made.append(number)
        if number == 3:
            raise KeyboardInterrupt
        return RidgeTeacher(classes=3)

    given = {
        "votes": ridge_votes(shards, inputs),
        "mechanism": LaplaceNoisyMax(scale=3.0),
        "delta": 1e-3,
    }
    with pytest.raises(KeyboardInterrupt):
        teacher_exposure(shards, inputs, make=make, folder=tmp_path / "kept", **given)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "kept").iterdir()} == {0o600}
    before = set(made)
    made.clear()

    def fine(number):
        made.append(number)
        return RidgeTeacher(classes=3)

    found = teacher_exposure(shards, inputs, make=fine, folder=tmp_path / "kept", **given)
    assert before == {0, 1, 2, 3}
    assert set(made) == {3, 4}
    whole = teacher_exposure(shards, inputs, make=fine, **given)
    assert np.array_equal(found.epsilons, whole.epsilons)


def test_shown_epsilon_of_randomised_response_is_exact():
    """k rounds of randomised response: δ(ε) is a sum over a binomial (Kairouz et al. 2015)."""
    from scipy.stats import binom

    epsilon, rounds, delta = 0.4, 12, 1e-3
    p = np.exp(epsilon) / (1 + np.exp(epsilon))
    pair = (np.array([p, 1 - p]), np.array([1 - p, p]))
    found = shown_epsilon([pair] * rounds, delta=delta)
    right = np.arange(rounds + 1)
    losses, chances = (2 * right - rounds) * epsilon, binom.pmf(right, rounds, p)

    def exceeded(at):
        return np.sum(chances * np.maximum(0, -np.expm1(at - losses)))

    assert exceeded(found) >= delta * (1 - 1e-9)  # never above the truth
    assert exceeded(found + 2e-3) < delta  # and not far below it
    assert shown_epsilon([pair] * rounds, delta=0.0) == pytest.approx(rounds * epsilon)
    assert shown_epsilon([], delta=delta) == 0


@pytest.mark.parametrize("reach", [1, 3])
def test_record_votes_by_brute_force(reach):
    """Sums over the noised counts of the very cells a record votes at."""
    cells, labels = np.arange(4 * reach).reshape(4, reach) % 7, np.array([0, 1, 1, 9])
    laplace = LaplaceCounts(scale=2.0)
    found = record_exposure(cells, labels, mechanism=laplace, delta=0.0, classes=2)
    assert found.epsilons[:3] == pytest.approx([0.5] * 3, rel=1e-12)
    assert found.epsilons[3] == 0  # its label is none: it casts no vote
    assert found.shown == pytest.approx(0.5, rel=1e-9)
    assert found.shown <= 0.5
    gaussian, order = GaussianCounts(sigma=1.5), 3.0
    values = np.arange(-22 * reach, 22 * reach + 2)
    variance = (1.5 * reach) ** 2
    p, q = (np.exp(-((values - shift) ** 2) / (2 * variance)) for shift in (0, 1))
    p, q = p / p.sum(), q / q.sum()
    exact = reach * np.log(np.sum(p**order * q ** (1 - order))) / (order - 1)
    here, there = gaussian.neighbour_chances(reach=reach, units=1)
    forward, reverse = renyi_divergences(here, there, [order])
    assert reach * forward[0] == pytest.approx(exact, rel=1e-9)
    assert reach * reverse[0] == pytest.approx(exact, rel=1e-9)
    given = record_exposure(cells, labels, mechanism=gaussian, delta=1e-5, classes=2)
    claimed = compose(gaussian.events(reach=reach)).guarantee(delta=1e-5).epsilon
    assert 0 < given.shown <= given.epsilons.max() <= claimed * (1 + 1e-12)  # it is all of it


def test_votes_along_components_show_what_their_lengths_cost():
    noise, whole = GaussianCounts(sigma=1.5), GRID
    votes = np.array([[whole, 0], [0, whole // 2], [0, 0], [whole * 3 // 5, whole * 4 // 5]])
    given = {"mechanism": noise, "delta": 1e-5, "classes": 2}
    found = component_exposure(votes, [0, 1, 1, 7], **given)
    claimed = compose(noise.events()).guarantee(delta=1e-5).epsilon
    assert found.epsilons[0] == pytest.approx(claimed, rel=1e-3)
    assert found.epsilons[0] <= claimed * (1 + 1e-12)
    assert 0 < found.epsilons[1] < found.epsilons[0]
    assert found.epsilons[2:].tolist() == [0, 0]  # no vote, and no class
    assert found.changed.tolist() == [1, 1, 0, 0]
    exact = gaussian_epsilon(1.5, delta=1e-5)
    assert exact * 0.99 < found.shown <= exact
    users = component_exposure(votes, [0, 0, 0, 0], **given, groups=["a", "a", "b", "b"])
    assert users.changed.tolist() == [2, 2]
    for shift, epsilon in zip((1.25, 1.0), users.epsilons, strict=True):
        rho = shift / (2 * 1.5**2)
        assert epsilon == pytest.approx(
            compose([ZeroConcentrated(rho=rho)]).guarantee(delta=1e-5).epsilon, rel=1e-3
        )


@pytest.mark.parametrize("units", [1, 2, 5])
def test_discrete_laplace_by_sums(units):
    here, there = LaplaceCounts(scale=1.75).neighbour_chances(reach=2, units=units)
    values = np.arange(-400, 401)
    p, q = (np.exp(-np.abs(values - shift) / 3.5) for shift in (0, units))
    exact = renyi_divergences(p / p.sum(), q / q.sum(), [2.0])[0]
    assert here.sum() == pytest.approx(1, rel=1e-12)
    assert renyi_divergences(here, there, [2.0])[0] == pytest.approx(exact, rel=1e-9)


def test_users_of_record_votes_count_together():
    cells, labels = np.array([[0], [0], [1], [2]]), np.array([1, 1, 0, 0])
    noise = LaplaceCounts(scale=2.0)
    given = {"mechanism": noise, "delta": 0.0, "classes": 2, "groups": ["a", "a", "a", "b"]}
    found = record_exposure(cells, labels, **given)
    assert found.epsilons == pytest.approx([1.5, 0.5])
    assert found.changed.tolist() == [2, 1]
