"""Nearest neighbours, against all distances in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from pate.nearest_neighbours import directions, nearest


@pytest.fixture
def points():
    return np.random.default_rng(3).normal(size=(40, 6)).astype(np.float32)


def plain(points, among, count, *, without_own=False):
    gaps = ((points[:, None].astype(float) - among) ** 2).sum(axis=2)
    if without_own:
        np.fill_diagonal(gaps, np.inf)
    near = gaps.argsort(axis=1, kind="stable")[:, :count]
    return near, np.take_along_axis(gaps, near, axis=1)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("rows", [None, 7])
def test_as_all_distances_say(points, scale, rows):
    """Of any size: what counts as rounding is a share of the points' own squares."""
    near, squares = nearest(points * scale, points[:25] * scale, 5, rows=rows)
    expected, gaps = plain(points * scale, points[:25] * scale, 5)
    np.testing.assert_array_equal(near, expected)
    np.testing.assert_allclose(squares, gaps, rtol=1e-4, atol=1e-5 * scale**2)


def test_blocks_change_nothing(points, monkeypatch):
    whole = nearest(points, points, 4, own="never")
    monkeypatch.setattr("pate.nearest_neighbours._NUMBERS", 100)
    np.testing.assert_array_equal(nearest(points, points, 4, own="never")[0], whole[0])


def test_a_point_comes_first_among_its_doubles_or_never():
    doubles = np.repeat(np.array([[0.6, 0.8], [1.0, 0.0]], dtype=np.float32), 30, axis=0)
    first, squares = nearest(doubles, doubles, 3, own="first")
    np.testing.assert_array_equal(first[:, 0], np.arange(60))
    np.testing.assert_array_equal(squares, 0.0)
    never, squares = nearest(doubles, doubles, 3, own="never")
    assert not (never == np.arange(60)[:, None]).any()
    np.testing.assert_array_equal(squares, 0.0)
    np.testing.assert_array_equal(never // 30, np.arange(60)[:, None] // 30 * [[1, 1, 1]])


def test_never_finds_the_others(points):
    near, _ = nearest(points, points, 5, own="never")
    np.testing.assert_array_equal(near, plain(points, points, 5, without_own=True)[0])


def test_other_points_do_not_change_a_bit_where_rows_are_fixed(points):
    _, alone = nearest(points[:3], points, 6, rows=16)
    _, beside = nearest(np.concatenate([points[:3], 50 * points[10:]]), points, 6, rows=16)
    np.testing.assert_array_equal(alone, beside[:3])


def test_directions_of_huge_and_tiny_ones():
    found = directions(np.array([[3e38, 3e38], [1e-38, -1e-38], [0, 0]], dtype=np.float32))
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found, [[half, half], [half, -half], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["apart", "on a grid", "often the same"])
@pytest.mark.parametrize(("dimensions", "count", "own"), [(16, 101, "first"), (3, 5, "never")])
def test_of_many_points_it_finds_what_sorting_all_distances_finds(kind, dimensions, count, own):
    """Where distances are alike, too: what is left out of sight must not matter."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(3000, dimensions)).astype(np.float32)
    if kind == "on a grid":
        points = rng.integers(-2, 3, size=points.shape).astype(np.float32)
    if kind == "often the same":
        points = points[rng.integers(0, 20, size=len(points))]
    among = directions(points)
    near, squares = nearest(among[:200], among, count, rows=200, own=own)
    for one, places, apart in zip(among[:200], near, squares, strict=True):
        gaps = ((among - one) ** 2).sum(axis=1)
        assert len(set(places.tolist())) == count
        left = np.delete(gaps, [*places, *([] if own == "first" else [np.argmin(gaps)])])
        assert left.min() >= apart.max() - 1e-5
        assert np.all(np.diff(apart) >= 0)
        np.testing.assert_allclose(apart, gaps[places], atol=1e-5)
