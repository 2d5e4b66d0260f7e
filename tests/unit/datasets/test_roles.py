"""Rows that two tables share, found by hashes and confirmed by their values."""

from __future__ import annotations

import numpy as np
import pytest

from pate.datasets import roles
from pate.datasets.roles import require_apart, shared_rows
from pate.datasets.spec import DataSpec
from pate.datasets.table import Splits, Table, divide


def table(features, **keys):
    return Table(features=features, labels=None, **keys)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(3,), (2, 2), (1,)])
def test_shared_rows_are_those_that_a_set_finds(kind, shape, monkeypatch):
    """Of few values, so that many rows are equal; in blocks of a few rows."""
    monkeypatch.setattr(roles, "_BYTES_AT_ONCE", 64)
    rng = np.random.default_rng(1)
    one, other = (rng.integers(-2, 3, size=(count, *shape)).astype(kind) for count in (40, 70))
    known = {tuple(row.ravel()) for row in one}
    expected = sum(tuple(row.ravel()) in known for row in other)
    assert expected > 0
    assert shared_rows(table(one), table(other)) == expected
    assert shared_rows(table(np.asfortranarray(one)), table(other[::-1])) == expected


def test_doubles_that_differ_in_one_bit_are_different_rows():
    rows = np.random.default_rng(2).normal(size=(50, 4))
    near = rows.copy()
    near[:, 2] = np.nextafter(near[:, 2], 9.0)
    assert shared_rows(table(rows), table(near)) == 0
    assert shared_rows(table(rows), table(rows.astype(np.float32))) == 50
    assert shared_rows(table(rows), table(rows.astype(np.float32).astype(np.float64))) == 50


def test_rows_with_missing_values_are_compared_too():
    """NaN is not equal to itself: a file with gaps in every row seemed to share none."""
    rows = np.random.default_rng(2).normal(size=(50, 4))
    rows[np.arange(50), np.arange(50) % 4] = np.nan
    other = rows.copy()
    other[:10, 0] = 7.0  # of these, three rows had their gap there
    other[20:][np.isnan(other[20:])] *= -1  # another bit pattern of the same
    assert shared_rows(table(rows), table(other)) == 40
    assert shared_rows(table(rows), table(rows.astype(np.float32))) == 50
    assert shared_rows(table(rows), table(rows.astype(np.float32).astype(np.float64))) == 50
    filled = np.nan_to_num(rows, nan=7.0)
    assert shared_rows(table(rows), table(filled)) == 0


def test_a_collision_of_hashes_is_no_shared_row(monkeypatch):
    monkeypatch.setattr(roles, "_hashes", lambda rows, kind: np.zeros(len(rows), dtype=np.uint64))
    assert shared_rows(table(np.zeros((1, 2))), table(np.ones((3, 2)))) == 0


def test_exact_copies_and_groups_of_one_pool_are_on_one_side():
    """Copies have no names to tell them apart; and a person is never half private."""
    rows = np.random.default_rng(3).integers(0, 3, size=(300, 3)).astype(float)
    amounts = [("test", 60), ("public", 60), ("private", None)]
    parts = divide(table(rows), amounts, seed=0, where="pool")
    spec = DataSpec(name="mine", source="x.csv", accept_unprotected=True)
    splits = Splits(**parts, class_names=("a", "b"), pooled=True)
    assert set(require_apart(spec, splits).values()) == {0}
    groups = tuple(f"p{row % 20}" for row in range(300))
    parts = divide(table(rows, groups=groups), amounts, seed=0, where="pool")
    owners = [set(part.groups or ()) for part in parts.values()]
    assert sum(map(len, owners)) == 20
    splits = Splits(**parts, class_names=("a", "b"), pooled=True)
    assert sum(require_apart(spec, splits).values()) > 0  # of other people: only counted
