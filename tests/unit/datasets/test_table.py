"""Tables, names of records, and the split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate.datasets.table import Table, cap, divide, record_ids
from pate.errors import InvalidInput


def table(rows=60, groups=None, ids=None):
    rng = np.random.Generator(np.random.PCG64(7))
    return Table(
        features=rng.normal(size=(rows, 3)),
        labels=np.arange(rows, dtype=np.int64) % 2,
        ids=ids,
        groups=groups,
    )


def without(pool, row):
    return pool.take(np.delete(np.arange(pool.records), row))


AMOUNTS = [("test", 10), ("public", 15), ("private", None)]
SHARES = [("test", 0.2), ("public", 0.3), ("private", None)]


def test_ids_of_its_own_are_kept():
    assert record_ids(table(2, ids=("a", "b"))) == ["a", "b"]


@given(row=st.integers(0, 59))
def test_removing_a_record_renames_no_other(row):
    names = record_ids(table())
    assert len(set(names)) == 60
    assert record_ids(without(table(), row)) == names[:row] + names[row + 1 :]


def test_exact_copies_are_numbered_and_a_label_tells_records_apart():
    pool = Table(features=np.ones((4, 2)), labels=np.array([0, 1, 0, 0]))
    names = record_ids(pool)
    assert names[2:] == [f"{names[0]}-1", f"{names[0]}-2"]
    assert names[1] != names[0]
    assert len(set(names)) == 4


def test_names_do_not_depend_on_the_machine():
    little = Table(features=np.arange(6, dtype="<f4").reshape(3, 2), labels=None)
    big = Table(features=np.arange(6, dtype=">f4").reshape(3, 2), labels=None)
    fortran = Table(features=np.asfortranarray(little.features), labels=None)
    assert record_ids(little) == record_ids(big) == record_ids(fortran)
    assert record_ids(little)[0].startswith("6946d0fd")
    flat = Table(features=np.zeros((1, 4)), labels=None)
    square = Table(features=np.zeros((1, 2, 2)), labels=None)
    assert record_ids(flat) != record_ids(square)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"labels": np.zeros(4, dtype=np.int64)}, "4 labels for 3 records"),
        ({"labels": np.zeros((3, 1), dtype=np.int64)}, "labels of shape"),
        ({"ids": ("a",)}, "1 ids for 3 records"),
        ({"groups": ("a",)}, "1 groups for 3 records"),
        ({"features": np.zeros(3)}, "two or more dimensions"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(fields, words):
    with pytest.raises(InvalidInput, match=words):
        Table(**{"features": np.zeros((3, 2)), "labels": None, **fields})


@pytest.mark.parametrize("amounts", [AMOUNTS, SHARES])
def test_the_roles_are_disjoint_and_hold_every_record(amounts):
    parts = divide(table(), amounts, seed=3, where="pool")
    names = [name for part in parts.values() for name in record_ids(part)]
    assert sorted(names) == sorted(record_ids(table()))
    again = divide(table(), amounts, seed=3, where="pool")
    assert all(record_ids(parts[role]) == record_ids(again[role]) for role in parts)
    other = divide(table(), amounts, seed=4, where="pool")
    assert set(record_ids(other["test"])) != set(record_ids(parts["test"]))


@pytest.mark.parametrize("amounts", [AMOUNTS, SHARES])
def test_dropping_a_private_record_changes_no_role(amounts):
    before = divide(table(), amounts, seed=0, where="pool")
    names = record_ids(table())
    private = record_ids(before["private"])
    for gone in private:
        after = divide(without(table(), names.index(gone)), amounts, seed=0, where="pool")
        assert record_ids(after["test"]) == record_ids(before["test"])
        assert record_ids(after["public"]) == record_ids(before["public"])
        assert record_ids(after["private"]) == [name for name in private if name != gone]


def test_under_shares_dropping_any_record_changes_no_other_role():
    names = record_ids(table())

    def roles(pool):
        parts = divide(pool, SHARES, seed=0, where="pool")
        return {name: role for role, part in parts.items() for name in record_ids(part)}

    before = roles(table())
    for row, gone in enumerate(names):
        assert roles(without(table(), row)) == {n: r for n, r in before.items() if n != gone}


def test_a_share_is_about_that_share():
    parts = divide(table(4000), SHARES, seed=0, where="pool")
    assert abs(parts["test"].records - 800) < 5 * 25.3  # five standard deviations
    assert abs(parts["public"].records - 960) < 5 * 26
    assert sum(part.records for part in parts.values()) == 4000


def test_a_sorted_file_gives_a_mixed_public_part_and_keeps_private_order():
    pool = Table(
        features=np.arange(400.0)[:, None], labels=(np.arange(400) >= 200).astype(np.int64)
    )
    parts = divide(pool, [("test", 50), ("public", 100), ("private", None)], seed=0, where="pool")
    first = parts["public"].labels[:30]
    assert 5 < first.sum() < 25
    assert np.all(np.diff(parts["private"].features[:, 0]) > 0)


@pytest.mark.parametrize("amounts", [AMOUNTS, SHARES])
def test_no_group_is_divided(amounts):
    groups = tuple(f"user-{row % 17}" for row in range(60))
    parts = divide(table(groups=groups), amounts, seed=1, where="pool")
    owners = [set(part.groups) for part in parts.values()]
    assert sum(len(owner) for owner in owners) == len(set.union(*owners)) == 17
    if amounts is AMOUNTS:  # at least as many as asked, by less than one group
        assert 10 <= parts["test"].records < 10 + 4
        assert 15 <= parts["public"].records < 15 + 4


def test_the_rows_keep_their_labels_ids_and_groups():
    pool = table(ids=tuple(f"r{row}" for row in range(60)), groups=tuple("abcdefghij" * 6))
    where = {name: row for row, name in enumerate(pool.ids)}
    for part in divide(pool, [("test", 0.3), ("private", None)], seed=0, where="pool").values():
        rows = [where[name] for name in part.ids]
        assert np.array_equal(part.features, pool.features[rows])
        assert np.array_equal(part.labels, pool.labels[rows])
        assert part.groups == tuple(pool.groups[row] for row in rows)


def test_copies_share_a_role_so_that_dropping_one_moves_nothing():
    once = table(40)
    pool = once.take(np.concatenate([np.arange(40), np.arange(40), np.arange(20)]))
    before = divide(pool, AMOUNTS, seed=0, where="pool")
    kinds = [{row.tobytes() for row in part.features} for part in before.values()]
    assert sum(len(kind) for kind in kinds) == 40
    private = {row.tobytes() for row in before["private"].features}
    for row in range(pool.records):
        if pool.features[row].tobytes() in private:
            after = divide(without(pool, row), AMOUNTS, seed=0, where="pool")
            for role in ("test", "public"):
                assert np.array_equal(after[role].features, before[role].features)
            assert after["private"].records == before["private"].records - 1


def test_two_public_roles_divide_copies_to_meet_their_counts():
    pool = Table(features=np.ones((10, 2)), labels=None)
    parts = divide(pool, [("test", 4), ("public", 6)], seed=0, where="pool")
    assert [part.records for part in parts.values()] == [4, 6]


def test_a_share_too_small_for_any_record_is_refused():
    with pytest.raises(InvalidInput, match="no record of pool is left for test; ask for more"):
        divide(table(5), [("test", 0.001), ("private", None)], seed=0, where="pool")


def test_asking_for_too_much_is_refused():
    with pytest.raises(InvalidInput, match="public asks for 55 records and pool has 50 left"):
        divide(table(), [("test", 10), ("public", 55)], seed=0, where="pool")
    with pytest.raises(InvalidInput, match="no record of pool is left for private"):
        divide(table(), [("test", 10), ("public", 50), ("private", None)], seed=0, where="pool")


def test_a_cap_keeps_what_there_is():
    assert cap(table(), None, role="private", seed=0, where="pool").records == 60
    assert cap(table(), 100, role="private", seed=0, where="pool").records == 60
    assert cap(table(), 7, role="private", seed=0, where="pool").records == 7
