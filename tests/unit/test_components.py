"""Votes along components: exact vectors of length one, whatever the other records are."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_digits

import pate
from pate.accounting import ForAddRemove, ZeroConcentrated
from pate.artifacts.results import NoisedCounts
from pate.audits.canaries import audit_pate
from pate.components import Components, load_places, make_places
from pate.errors import InvalidInput, ReleaseConflict
from pate.mechanisms import GaussianCounts, LaplaceCounts
from pate.randomness import insecure_generator
from pate.record_votes import GRID, RecordVotes, VotesSpec, automatic_components, count_along
from pate.students.component_labels import label_by_components

CLASSES = 4


def records(count=120, features=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, features)), rng.integers(CLASSES, size=count)


def by_hand(made, point):
    """The vote of one record, by whole numbers of unlimited size where sums are taken."""
    steps = np.rint((point - made.origin) / made.step).astype(int).astype(object)
    most = min(1 << 22, math.isqrt((1 << 51) // len(steps)))
    steps = [max(-most, min(most, each)) for each in steps]
    gaps = [
        sum((q - int(c)) ** 2 for q, c in zip(steps, row, strict=True)) for row in made.landmarks
    ]
    kernel = [round((1 << 19) / (1.0 + float(gap) * made.scale)) for gap in gaps]
    sums = [sum(k * int(t) for k, t in zip(kernel, row, strict=True)) for row in made.directions.T]
    cut = math.isqrt((1 << 52) // len(made))
    whole = [max(-cut, min(cut, round(s * u))) for s, u in zip(sums, made.units, strict=True)]
    length = math.sqrt(sum(each**2 for each in whole))
    return [math.trunc(each * (GRID / length)) for each in whole]


@pytest.mark.parametrize("features", [2, 7, 300])
def test_votes_are_those_of_exact_arithmetic(features):
    made = pate.make_components(records(60, features, seed=1)[0], components=9)
    points, _ = records(20, features, seed=2)
    points[:3] *= 1e6  # far beyond the grid: moved to its edge
    points[3] = records(60, features, seed=1)[0][5]  # at a landmark
    assert made.coordinates(points).tolist() == [by_hand(made, point) for point in points]


def test_a_vote_depends_neither_on_other_records_nor_on_their_number(monkeypatch):
    made = pate.make_components(records(300, 50, seed=1)[0], components=40)
    points, _ = records(700, 50, seed=2)
    together = made.coordinates(points)
    order = np.random.default_rng(3).permutation(len(points))
    assert (made.coordinates(points[order]) == together[order]).all()
    for place in range(0, 700, 53):
        assert (made.coordinates(points[place : place + 1]) == together[place]).all()
        rest = np.delete(np.arange(700), place)
        assert (made.coordinates(points[rest]) == together[rest]).all()
    labels = records(700, 50, seed=2)[1]
    whole = made.count(points, labels, classes=CLASSES)
    monkeypatch.setattr("pate.components._NUMBERS", 5000)  # other blocks
    assert (made.count(points, labels, classes=CLASSES) == whole).all()
    assert (count_along(together, labels, classes=CLASSES) == whole).all()
    with pytest.raises(InvalidInput, match="do not match"):
        made.count(points, labels[1:], classes=CLASSES)
    assert (made.coordinates(points) == together).all()
    assert (made.coordinates(np.asfortranarray(points)) == together).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e9, 1e200])
def test_no_vote_is_longer_than_one(scale):
    made = pate.make_components(records(100, seed=1)[0], components=30)
    points = records(3000, seed=2)[0] * scale
    squares = (made.coordinates(points) ** 2).sum(axis=1)
    assert squares.max() <= GRID**2
    assert squares.min() > 0.98 * GRID**2  # and little is cut off


def test_a_record_less_is_one_vector_less_in_its_own_class():
    made = pate.make_components(records(50, seed=1)[0], components=12)
    points, labels = records(80, seed=2)

    def table(kept):
        votes = pate.count_record_votes(points[kept], labels[kept], cells=made, classes=CLASSES)
        assert (votes.components, votes.reach, votes.grid) == (True, 1, GRID)
        return votes.counts

    everyone = np.arange(len(points))
    whole = table(everyone)
    for place in everyone:
        gone = whole - table(np.delete(everyone, place))
        assert set(np.nonzero(gone)[1]) == {labels[place]}
        assert 0.98 * GRID**2 < (gone**2).sum() <= GRID**2


@pytest.mark.parametrize("per_user", [1, 3])
def test_a_user_less_is_at_most_so_many_lengths_less(per_user):
    made = pate.make_components(records(50, seed=1)[0], components=12)
    points, labels = records(90, seed=2)
    points[:30], labels[:30] = points[0], 1  # whose votes add up in full
    users = np.array(["same"] * 30 + [f"user {n}" for n in np.arange(60) // 4])

    def table(kept):
        return pate.count_record_votes(
            *(points[kept], labels[kept]),
            cells=made,
            classes=CLASSES,
            groups=users[kept],
            per_user=per_user,
        )

    whole = table(np.arange(90))
    lengths = []
    for user in set(users):
        gone = whole.counts - table(np.flatnonzero(users != user)).counts
        lengths.append(math.sqrt((gone**2).sum()) / GRID)
    assert 0.98 * per_user < max(lengths) <= per_user
    (event,) = GaussianCounts(sigma=2.0).release(whole, rng=insecure_generator(0)).events
    assert event == ForAddRemove(ZeroConcentrated(rho=per_user**2 / 8), per_user=True)


def test_records_without_finite_features_or_a_class_cast_no_vote():
    made = pate.make_components(records(50, seed=1)[0], components=12)
    points, labels = records(6, seed=2)
    points[0, 2], points[1, 0], labels[2], labels[3] = np.nan, np.inf, CLASSES, -1
    votes = made.count(points, labels, classes=CLASSES)
    assert (votes == made.count(points[4:], labels[4:], classes=CLASSES)).all()
    assert count_along(made.coordinates(points[:0]), [], classes=2).tolist() == [[0, 0]] * 12


def test_components_survive_a_folder(tmp_path):
    public = records(60, seed=1)[0]
    for spec in (VotesSpec(by="records", components=8), VotesSpec(by="records", cells=8)):
        folder = tmp_path / str(spec.components)
        folder.mkdir()
        made = make_places(public, spec)
        made.save(folder)
        again = load_places(folder)
        assert type(again) is type(made)
        points, labels = records(50, seed=2)
        expected = made.count(points, labels, classes=CLASSES)
        assert (again.count(points, labels, classes=CLASSES) == expected).all()


def test_many_inputs_have_fewer_landmarks(monkeypatch):
    monkeypatch.setattr("pate.components._LANDMARKS", 30)
    public, points = records(200, seed=1)[0], records(40, seed=2)[0]
    public[100:] = public[:100]  # inputs that are equal
    made = pate.make_components(public, components=12)
    assert made.landmarks.shape == (30, 7)
    coordinates = made.coordinates(public)
    assert np.linalg.matrix_rank(coordinates) == 12
    again = pate.make_components(public, components=12)
    assert (made.coordinates(points) == again.coordinates(points)).all()


def test_public_inputs_spread_alike_along_all_components():
    made = pate.make_components(load_digits().data[:400] / 16, components=20)
    products = (made.coordinates(load_digits().data[:400] / 16) / GRID * math.sqrt(20)) ** 2
    assert products.mean(axis=0) == pytest.approx(np.ones(20), abs=0.35)


def test_the_rule_for_their_number():
    given = {"inputs": 9000, "classes": 10}
    assert automatic_components(60_000, **given, deviation=34.0) == 110
    assert automatic_components(60_000, **given, deviation=0.01) == 750
    assert automatic_components(100, **given, deviation=34.0) == 20
    assert automatic_components(100, inputs=40, classes=10, deviation=34.0) == 3
    spec = VotesSpec(by="records", components="auto", expected_records=60_000)
    resolved = spec.resolved(inputs=9000, classes=10, deviation=7.5)
    assert (resolved.components, resolved.expected_records) == (500, None)
    assert resolved.rows(inputs=9000) == 500


def test_noise_is_drawn_in_parts_of_a_vote_and_charged_for_whole_ones():
    zeros = RecordVotes(counts=np.zeros((400, 5), dtype=np.int64), components=True)
    for size in (2 / 3, 1.0, 3 / 2):
        release = GaussianCounts(sigma=3.0 * size).release(zeros, rng=insecure_generator(1))
        assert release.table.units == GRID
        spread = release.table.votes.std() / 3.0  # of 2 000 draws: ± 1.6 %
        assert bool(abs(spread - 1) < 0.08) is (size == 1.0)
        (event,) = release.events
        assert event.event.rho == pytest.approx(1 / (2 * (3.0 * size) ** 2), rel=1e-6)
        # The noise that was drawn is never less than what is charged for.
        assert GRID**2 / (2 * release.table.variance) <= event.event.rho


@pytest.mark.parametrize("shift", [(3, 4), (5, 0), (-2, 4), (1, 1)])
@pytest.mark.parametrize("order", [1.5, 2.0, 7.0])
def test_a_shift_in_several_directions_stays_within_its_length(shift, order):
    """Brute force: discrete Gaussian noise of two counts, and a record that moves both."""
    sigma, values = 2.5, np.arange(-90, 91)
    divergence = 0.0
    for each in shift:
        p, q = (-((values - s) ** 2) / (2 * sigma**2) for s in (each, 0))
        p, q = p - logsumexp(p), q - logsumexp(q)
        divergence += logsumexp(order * p + (1 - order) * q) / (order - 1)
    bound = order * sum(each**2 for each in shift) / (2 * sigma**2)
    assert divergence <= bound * (1 + 1e-9)
    assert divergence == pytest.approx(bound, rel=1e-3)


def test_labels_follow_from_the_sums_and_are_equal_where_noise_explains_all():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    made = pate.make_components(X[:300], components=20)
    votes = pate.count_record_votes(X[300:], y[300:], cells=made, classes=10)
    coordinates = made.coordinates(X[:300]) / GRID

    def labelled(sigma, seed=0):
        table = GaussianCounts(sigma=sigma).release(votes, rng=insecure_generator(seed)).table
        soft = pate.label_inputs(table, places=made, features=X[:300])
        again = label_by_components(
            table.votes, coordinates, deviation=math.sqrt(table.variance) / GRID
        )
        assert (soft.probabilities == again.probabilities).all()
        assert soft.probabilities.sum(axis=1) == pytest.approx(np.ones(300))
        return (soft.labels == y[:300]).mean(), soft.confidence.max()

    assert labelled(0.01)[0] > 0.75  # 300 inputs are few
    assert labelled(4.0)[0] > 0.7
    for seed in range(5):
        assert labelled(5000.0, seed)[1] == pytest.approx(0.1)


def test_a_classifier_takes_components():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    clf = pate.PATEClassifier(
        *(),
        votes="records",
        components="auto",
        expected_records=1200,
        epsilon=2.0,
        classes=range(10),
        student="supervised",
    ).fit(X[600:], y[600:], public=X[:300])
    assert clf.guarantee_.epsilon <= 2.0
    assert clf.guarantee_.delta == 1e-5
    assert clf.mechanism_.name == "gaussian-counts"
    assert clf.table_.counts.shape == (25, 10)
    assert (clf.labels_ == y[:300]).mean() > 0.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"components": 1}, "components: Input should be greater than or equal to 2"),
        ({"components": 2.5}, "components is 2.5; it must be a whole number"),
        ({"components": 5, "cells": 7}, "leave cells out"),
        ({"components": 5, "reach": 2}, "leave reach out"),
        ({"components": "auto"}, "needs expected_records"),
        ({"components": 5, "mechanism": "laplace-counts"}, "choose gaussian-counts"),
        ({"components": 5, "mechanism": LaplaceCounts(scale=1.0)}, "choose gaussian-counts"),
        (
            {"components": 5, "mechanism": GaussianCounts(sigma=9e3), "epsilon": None},
            "8192 at most",
        ),
        ({"components": 5, "epsilon": 0.5, "per_user": 2000, "groups": True}, "8192 at most"),
        ({"components": 40}, "there are 40 public inputs; lower it to 3 or so"),
        ({"components": 39, "constant": True}, "all public inputs are the same"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message, tmp_path):
    X, y = records(60, seed=2)
    public = records(40, seed=1)[0]
    if settings.pop("constant", False):
        public[:] = 1.0
    groups = np.arange(60) if settings.pop("groups", False) else None
    clf = pate.PATEClassifier(votes="records", classes=range(CLASSES), **settings)
    with pytest.raises(InvalidInput, match=message):
        clf.fit(X, y, public=public, groups=groups, ledger=tmp_path / "a.ledger")
    assert not (tmp_path / "a.ledger").exists()


def test_other_features_and_damaged_directions_are_refused():
    made = pate.make_components(records(50, seed=1)[0], components=12)
    with pytest.raises(InvalidInput, match="records have 3 features, and the components 7"):
        made.coordinates(np.zeros((2, 3)))
    parts = {each.name: getattr(made, each.name) for each in fields(made)}
    for wrong in (
        {"directions": made.directions * 2**20},
        {"directions": np.full_like(made.directions, -(2**63))},
        {"directions": made.directions / 2},
        {"units": made.units[:-1]},
        {"scale": math.inf},
    ):
        with pytest.raises(InvalidInput, match="do not allow for exact sums"):
            Components(**parts | wrong)
    with pytest.raises(InvalidInput, match="must be whole numbers"):
        made.count(np.zeros((2, 7)), [0, "x"], classes=2)
    with pytest.raises(InvalidInput, match="votes along components have none"):
        made.count(np.zeros((2, 7)), [0, 1], classes=2, reach=3)
    votes = RecordVotes(counts=np.zeros((4, 2), dtype=np.int64), components=True)
    with pytest.raises(InvalidInput, match="laplace-counts does not fit votes along components"):
        LaplaceCounts(scale=1.0).release(votes, rng=insecure_generator(0))
    with pytest.raises(InvalidInput, match="votes along components have none"):
        RecordVotes(counts=np.zeros((4, 2), dtype=np.int64), components=True, reach=2)


def test_a_ledger_keeps_a_table_of_sums(tmp_path):
    made = pate.make_components(records(50, seed=1)[0], components=12)
    votes = pate.count_record_votes(*records(80, seed=2), cells=made, classes=CLASSES)
    with pate.Ledger.open(
        tmp_path / "a.ledger", budget=pate.Guarantee(epsilon=8, delta=1e-5)
    ) as ledger:
        first = ledger.release(GaussianCounts(sigma=3.0), votes, name="sums")
        again = ledger.release(GaussianCounts(sigma=3.0), votes, name="sums")
        with pytest.raises(InvalidInput, match="choose gaussian-counts"):
            ledger.release(LaplaceCounts(scale=3.0), votes, name="others")
        assert len(ledger.charges()) == 1
        # The same numbers as counts of cells are other votes, with other noise.
        with pytest.raises(ReleaseConflict):
            ledger.release(GaussianCounts(sigma=3.0), RecordVotes(counts=votes.counts), name="sums")
    assert isinstance(first.table, NoisedCounts)
    assert first.table.units == GRID
    assert (first.table.counts == again.table.counts).all()


def test_sections_without_components_are_written_as_before():
    """Digests of settings, by which draws are recognised again, are those of earlier versions."""
    before = {"by": "records", "cells": 8, "expected_records": None, "reach": 1, "per_user": None}
    assert VotesSpec(by="records", cells=8).model_dump(mode="json") == before
    assert VotesSpec(by="records", components=8).model_dump(mode="json")["components"] == 8


def test_canaries_along_components_are_found_and_bound_what_is_claimed():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 5)), rng.integers(0, 3, 600)
    made = pate.make_components(rng.normal(size=(300, 5)), components=150)
    known = {"classes": 3, "delta": 1e-5, "canaries": 150, "components": made, "insecure_seed": 0}
    sound = audit_pate(X, y, mechanism=GaussianCounts(sigma=1.0), **known)
    assert 0.2 < sound.epsilon < sound.values["claimed ε"]
    loud = audit_pate(X, y, mechanism=GaussianCounts(sigma=0.2), **known)
    assert loud.epsilon > 2 * sound.epsilon


def test_canaries_split_their_votes_as_the_records_do():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 5)), rng.integers(0, 3, 600)
    known = {"classes": 3, "delta": 1e-5, "canaries": 300, "kind": "noise", "insecure_seed": 0}
    for reach in (1, 9):
        found = audit_pate(X, y, mechanism=GaussianCounts(sigma=0.5), reach=reach, **known)
        assert 0 < found.epsilon < found.values["claimed ε"]
