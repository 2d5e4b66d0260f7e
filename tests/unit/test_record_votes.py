"""Record votes: exact cells, one vote of each record, whatever the other records are."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

import pate
from pate.accounting import Neighbours
from pate.datasets.table import Table, record_ids
from pate.devices import Device, use_device
from pate.errors import InvalidInput
from pate.partition import PLACES, PartitionSpec, record_shards
from pate.record_votes import (
    Cells,
    RecordVotes,
    automatic_cells,
    capped,
    count_record_votes,
    count_votes,
    make_cells,
    on_grid,
)

CLASSES = 4


def records(count=120, features=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, features)), rng.integers(CLASSES, size=count)


def by_hand(cells, points, reach):
    """The nearest cells by whole numbers of unlimited size, first the nearest, then the first."""
    grid = on_grid(points, origin=cells.origin, step=cells.step).astype(int).astype(object)
    gaps = [[int(((q - c) ** 2).sum()) for c in cells.centres.astype(object)] for q in grid]
    return [sorted(range(len(cells)), key=lambda n, row=row: (row[n], n))[:reach] for row in gaps]


@pytest.mark.parametrize("reach", [1, 3])
@pytest.mark.parametrize("features", [1, 7, 300])
def test_cells_are_the_nearest_by_exact_arithmetic(reach, features):
    public, _ = records(40, features, seed=1)
    points, _ = records(60, features, seed=2)
    points[:5] *= 1e6  # far beyond the grid: moved to its edge
    points[5] = public[3]  # at a cell
    points[6] = (public[3] + public[4]) / 2  # about as near to two
    cells = make_cells(public)
    assert cells.nearest(points, reach=reach).tolist() == by_hand(cells, points, reach)


def devices():
    import torch

    return [Device("cpu"), *([Device("cuda", 0)] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("reach", [1, 3])
def test_cells_are_the_same_on_every_device(reach, monkeypatch):
    monkeypatch.setattr("pate.record_votes._NUMBERS", 2000)  # several blocks
    public, _ = records(50, 100, seed=1)
    public[40:] = public[:10]  # equally near cells
    points, _ = records(200, 100, seed=2)
    points[:49] = (public[:49] + public[1:]) / 2
    points[50] = np.nan
    cells = make_cells(public)
    own = cells.nearest(points, reach=reach)
    for device in devices():
        assert (cells.nearest(points, reach=reach, device=device) == own).all()
        with use_device(device):
            assert (cells.nearest(points, reach=reach) == own).all()


def test_a_device_that_rounds_is_refused(monkeypatch):
    import torch

    exact = torch.Tensor.__matmul__
    rounded = lambda a, b: exact(a.float(), b.float()).double()  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    cells = make_cells(records(50, 100)[0])
    with pytest.raises(InvalidInput, match="cpu rounds sums of doubles"):
        cells.nearest(records(5, 100)[0], device=Device("cpu"))


def test_probabilities_of_teachers_are_features_like_any_others():
    """Near probabilities are near records: a model of public data may be the encoder."""
    rng = np.random.default_rng(0)
    public = rng.dirichlet(np.ones(CLASSES) / 3, size=200)
    private = rng.dirichlet(np.ones(CLASSES) / 3, size=2000)
    votes = count_record_votes(
        private, private.argmax(axis=1), cells=make_cells(public), classes=CLASSES
    )
    voted = votes.counts.sum(axis=1) > 0
    assert votes.counts.sum() == 2000
    assert (votes.counts.argmax(axis=1) == public.argmax(axis=1))[voted].mean() > 0.9


def test_equally_near_cells_are_taken_in_order():
    cells = make_cells([[1.0], [3.0], [1.0], [3.0]])
    assert cells.nearest([[2.0], [1.0], [3.1]]).ravel().tolist() == [0, 0, 1]
    assert cells.nearest([[2.0], [3.0]], reach=3).tolist() == [[0, 1, 2], [1, 3, 0]]


def test_a_cell_depends_neither_on_other_records_nor_on_their_number():
    """The same record alone, in any place and beside any others."""
    public, _ = records(500, 50, seed=1)
    points, _ = records(900, 50, seed=2)
    points[::3] = (public[:300] + public[1:301]) / 2  # between two cells, where rounding decides
    cells = make_cells(public)
    together = cells.nearest(points, reach=2)
    order = np.random.default_rng(3).permutation(len(points))
    assert (cells.nearest(points[order], reach=2) == together[order]).all()
    for place in range(0, 900, 37):
        assert (cells.nearest(points[place : place + 1], reach=2) == together[place]).all()
        rest = np.delete(np.arange(900), place)
        assert (cells.nearest(points[rest], reach=2) == together[rest]).all()


@pytest.mark.parametrize("cells", [None, 12])
@pytest.mark.parametrize("reach", [1, 5])
def test_a_record_less_is_one_vote_less_in_its_own_cells(cells, reach):
    public, _ = records(30, seed=1)
    points, labels = records(80, seed=2)
    made = make_cells(public, cells=cells)

    def table(kept):
        votes = count_record_votes(
            points[kept], labels[kept], cells=made, classes=CLASSES, reach=reach
        )
        return votes.counts

    everyone = np.arange(len(points))
    whole = table(everyone)
    assert whole.sum() == reach * len(points)
    for place in everyone:
        gone = whole - table(np.delete(everyone, place))
        assert sorted(gone[gone != 0]) == [1] * reach  # units: one vote in all
        assert set(np.nonzero(gone)[1]) == {labels[place]}


@pytest.mark.parametrize("per_user", [1, 2, 5])
def test_a_user_less_is_at_most_so_many_votes_less(per_user):
    public, _ = records(30, seed=1)
    points, labels = records(90, seed=2)
    users = np.array([f"user {n}" for n in np.random.default_rng(4).integers(25, size=90)])
    made = make_cells(public)

    def table(kept):
        votes = count_record_votes(
            points[kept],
            labels[kept],
            cells=made,
            classes=CLASSES,
            reach=2,
            groups=users[kept],
            per_user=per_user,
        )
        assert votes.neighbours is Neighbours.USER_ADD_REMOVE
        return votes.counts

    whole = table(np.arange(90))
    sizes = []
    for user in np.unique(users):
        gone = whole - table(np.flatnonzero(users != user))
        assert (gone >= 0).all()  # nobody else's record comes in
        assert gone.sum() == 2 * min(per_user, (users == user).sum())
        sizes.append(int(gone.sum()))
    assert max(sizes) == 2 * per_user


def test_no_entry_renames_the_other_users():
    """One user more is one vote more, whatever the type of their name or of their features."""
    cells = make_cells([[float(n)] for n in range(100)])
    rng = np.random.default_rng(2)
    points = [[int(n)] for n in rng.integers(100, size=300)]
    labels = rng.integers(CLASSES, size=300)
    users = [n // 10 if n % 2 else float(n // 10) for n in range(300)]

    def table(more=(), label=(), user=()):
        return count_record_votes(
            [*points, *more],
            np.append(labels, label).astype(int),
            cells=cells,
            classes=CLASSES,
            groups=[*users, *user],
        ).counts

    whole = table()
    assert whole.sum() == 30
    for name, point in (("new", [5]), ("new", [5.5]), (31.5, [5]), (2**70, [2**70])):
        assert np.abs(table([point], [0], [name]) - whole).sum() == 1


@pytest.mark.parametrize("nobody", [None, float("nan"), pytest.param("NA", id="pandas")])
def test_a_record_without_an_owner_is_refused(nobody):
    nobody = pytest.importorskip("pandas").NA if nobody == "NA" else nobody
    with pytest.raises(InvalidInput, match="missing"):
        count_record_votes(
            [[0.0], [1.0]],
            [0, 1],
            cells=make_cells([[0.0], [1.0]]),
            classes=2,
            groups=["ann", nobody],
        )


@pytest.mark.parametrize("label", [-1, 2**62, 2**63 + 1])
def test_a_label_outside_the_classes_casts_no_vote_of_a_user(label):
    labels = np.array([label, 1], dtype=np.uint64 if label > 2**62 else np.int64)
    cells = make_cells([[0.0], [1.0]])
    votes = count_record_votes([[0.0], [1.0]], labels, cells=cells, classes=2, groups=["a", "b"])
    assert votes.counts.tolist() == [[0, 0], [0, 1]]


def test_records_that_cannot_vote_change_nothing():
    public, _ = records(20, seed=1)
    points, labels = records(50, seed=2)
    cells = make_cells(public)
    whole = count_record_votes(points, labels, cells=cells, classes=CLASSES).counts
    odd = np.array([[np.nan] * 7, [np.inf] + [0.0] * 6, [0.0] * 7, [0.0] * 7])
    more = np.concatenate([odd[:2], points, odd[2:]])
    given = np.concatenate([[0, 1], labels, [CLASSES, -1]])
    assert (count_record_votes(more, given, cells=cells, classes=CLASSES).counts == whole).all()
    assert whole.shape == (20, CLASSES)  # whatever the labels are


def test_caps_follow_from_each_user_alone():
    order, groups = ["b", "a", "c", "d", "a"], ["x", "x", "x", "y", "y"]
    assert capped(order, groups, 1).tolist() == [1, 4]
    assert capped(order[:3], groups[:3], 1).tolist() == [1]


def test_shards_of_records_move_nobody_else():
    ids = [f"record {n}" for n in range(300)]
    users = [f"user {n % 40}" for n in range(300)]
    shards, places = record_shards(ids, spec=PartitionSpec(), groups=users, per_user=3)
    assert len(shards.order) == 120 == len(places)
    assert places.max() < PLACES
    where = {ids[n]: place for n, place in zip(shards.order, places, strict=True)}
    for user in ("user 0", "user 17"):
        kept = [n for n in range(300) if users[n] != user]
        fewer, theirs = record_shards(
            [ids[n] for n in kept],
            spec=PartitionSpec(),
            groups=[users[n] for n in kept],
            per_user=3,
        )
        now = {ids[kept[n]]: place for n, place in zip(fewer.order, theirs, strict=True)}
        assert now == {name: where[name] for name in now}
        assert len(now) == 117


def test_copies_of_other_users_choose_nobody_s_records():
    """Copies are numbered in order, so a user who leaves renames equal records of others."""
    points = np.tile(np.arange(8.0)[:, None], (6, 1))
    users = [f"user {n // 8}" for n in range(48)]  # each has one copy of all eight

    def voting(kept):
        table = Table(features=points[kept], labels=np.zeros(len(kept), dtype=np.int64))
        shards, places = record_shards(
            record_ids(table),
            spec=PartitionSpec(),
            groups=[users[n] for n in kept],
            per_user=2,
        )
        return {int(kept[n]): int(place) for n, place in zip(shards.order, places, strict=True)}

    whole = voting(np.arange(48))
    assert len(whole) == 12
    for user in range(6):
        rest = voting(np.array([n for n in range(48) if n // 8 != user]))
        assert rest == {n: place for n, place in whole.items() if n // 8 != user}


def test_cells_are_stored_as_they_are(tmp_path):
    public, _ = records(30, seed=1)
    cells = make_cells(public, cells=5)
    assert len(cells) == 5
    assert set(cells.members) == set(range(5))
    cells.save(tmp_path)
    again = Cells.load(tmp_path)
    points, _ = records(20, seed=2)
    assert (again.nearest(points) == cells.nearest(points)).all()


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: make_cells([[np.nan]]), "finite features"),
        (lambda: make_cells([[0.0], [1.0]], cells=3), "there are 2 public inputs"),
        (lambda: make_cells([[0.0], [1.0]]).nearest([[0.0, 1.0]]), "2 features"),
        (lambda: make_cells([[0.0], [1.0]]).nearest([[0.0]], reach=3), "there are 2 cells"),
        (lambda: RecordVotes(counts=np.zeros((2, 1), dtype=int)), "whole counts"),
        (lambda: RecordVotes(counts=np.zeros((2, 2), dtype=int), per_user=0), "per_user"),
        (lambda: count_votes(np.array([[0]]), [0, 1], classes=2), "do not match"),
    ],
)
def test_what_cannot_be_counted_is_refused(call, rule):
    with pytest.raises(InvalidInput, match=rule):
        call()


def test_automatic_cells_follow_from_public_numbers():
    given = {"inputs": 300, "classes": 10}
    found = [automatic_cells(1200, deviation=each, **given) for each in (60.0, 14.1, 7.0, 4.7, 1.4)]
    assert found == [20, 21, 42, 63, None]  # two of each class; 1200/(4·deviation); every input
    assert automatic_cells(1200, inputs=30, classes=10, deviation=14.1) is None
    assert automatic_cells(1200, deviation=0.0, **given) is None
    with pytest.raises(InvalidInput, match="expected_records is 0"):
        automatic_cells(0, deviation=1.0, **given)


def test_at_a_small_epsilon_automatic_cells_tell_classes_apart():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    given = {"votes": "records", "epsilon": 0.1, "classes": range(10), "student": "supervised"}
    made = pate.PATEClassifier(**given, cells="auto", expected_records=1200, insecure_seed=0)
    fitted = made.fit(X[600:], y[600:], public=X[:300])
    assert fitted.table_.counts.shape == (21, 10)
    assert (fitted.labels_ == y[:300]).mean() > 0.5  # 0.1 where all 300 inputs are cells
    fewer = clone(made).fit(X[900:], y[900:], public=X[:300])
    assert fewer.table_.counts.shape == (21, 10)  # the number of private records decides nothing
    for wrong in ({"cells": "auto"}, {"expected_records": 1200}):
        with pytest.raises(InvalidInput, match="expected_records"):
            pate.PATEClassifier(**given, **wrong).fit(X[600:], y[600:], public=X[:300])
