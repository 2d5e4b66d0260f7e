"""Record → teacher: every record once, and nobody moves because of somebody else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from pate.datasets.table import Table, cap, record_ids
from pate.errors import InvalidInput
from pate.partition import PartitionSpec, partition

HASH, SHUFFLE = PartitionSpec(by="record"), PartitionSpec(method="shuffle", by="record")
USERS = PartitionSpec(by="group")
SPECS = [HASH, SHUFFLE, USERS]


def teacher_of(ids, shards):
    """Record → teacher, read off the shards."""
    owner = np.repeat(np.arange(shards.count), shards.sizes())
    return {ids[row]: int(teacher) for row, teacher in zip(shards.order, owner, strict=True)}


def split(ids, *, teachers, spec=HASH, groups=None):
    return teacher_of(ids, partition(ids, teachers=teachers, spec=spec, groups=groups))


def names(count, prefix="r"):
    return [f"{prefix}{number}" for number in range(count)]


@given(
    ids=st.lists(st.text(max_size=8), min_size=30, max_size=90, unique=True),
    teachers=st.integers(1, 4),
    spec=st.sampled_from(SPECS),
    data=st.data(),
)
def test_every_record_is_in_exactly_one_shard(ids, teachers, spec, data):
    """Any text is an id: empty, with zeros inside, or half a surrogate pair."""
    groups = [f"u{data.draw(st.integers(0, 40))}" for _ in ids]
    try:
        shards = partition(ids, teachers=teachers, spec=spec, groups=groups)
    except InvalidInput:
        owners = ids if spec.by == "record" else groups
        assume(len(set(owners)) > 40 * teachers)  # so many that none can be without
        raise
    assert shards.count == teachers
    assert shards.sizes().min() >= 1
    assert sorted(shards.order.tolist()) == list(range(len(ids)))
    assert shards.offsets[0] == 0
    assert shards.offsets[-1] == len(ids)
    again = partition(ids, teachers=teachers, spec=spec, groups=groups)
    assert (again.order == shards.order).all()


@given(
    gone=st.sets(st.integers(0, 199), max_size=20),
    extra=st.sets(st.integers(200, 900), max_size=20),
    turned=st.randoms(use_true_random=False),
)
def test_a_keyed_hash_is_stable_when_records_come_go_or_change_places(gone, extra, turned):
    before = split(names(200), teachers=5)
    kept = [name for number, name in enumerate(names(200)) if number not in gone]
    changed = kept + [f"r{number}" for number in extra]
    turned.shuffle(changed)
    after = split(changed, teachers=5)
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_the_order_in_a_shard_does_not_hang_on_the_file():
    ids = names(100)
    forward, backward = (partition(each, teachers=4, spec=HASH) for each in (ids, ids[::-1]))
    assert [ids[row] for row in forward.order] == [ids[::-1][row] for row in backward.order]
    assert forward.order.tolist() != sorted(forward.order.tolist())


@pytest.mark.parametrize("place", [0, 41, 99])
@pytest.mark.parametrize("name", ["a", "zzz", "r50-and-a-half"])
def test_a_shuffle_moves_nobody_when_one_record_is_replaced(place, name):
    """Also where the new record's id, such as a digest of its content, sorts elsewhere."""
    ids = names(100)
    replaced = [*ids[:place], name, *ids[place + 1 :]]
    before, after = (split(each, teachers=5, spec=SHUFFLE) for each in (ids, replaced))
    assert after.pop(name) == before.pop(ids[place])
    assert after == before


def test_a_shuffle_is_not_stable_when_one_record_goes_and_says_so():
    ids = names(100)
    before, after = (split(each, teachers=5, spec=SHUFFLE) for each in (ids, ids[1:]))
    assert sum(after[name] != before[name] for name in ids[1:]) > 20
    assert SHUFFLE.protects(named=True) == "one record replaced"
    assert HASH.protects(named=False) == "one record added or removed"
    assert HASH.protects(named=True).endswith("added or removed, or replaced under the same id")
    users = "all records of one user added or removed, or replaced under the same id"
    assert {USERS.protects(named=named) for named in (True, False)} == {users}


def test_a_shuffle_is_even():
    sizes = partition(names(103), teachers=10, spec=SHUFFLE).sizes()
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("spec", [USERS], ids=["hash"])
def test_a_user_has_one_teacher(spec):
    ids = names(300)
    users = [f"user-{number % 40}" for number in range(300)]
    shards = split(ids, teachers=6, spec=spec, groups=users)
    teachers = {user: {shards[i] for i, u in zip(ids, users, strict=True) if u == user}
                for user in set(users)}  # fmt: skip
    assert all(len(own) == 1 for own in teachers.values())
    assert len(set.union(*teachers.values())) == 6


def test_a_user_who_leaves_moves_no_other():
    ids = names(300)
    users = [f"user-{number % 40}" for number in range(300)]
    before = split(ids, teachers=6, spec=USERS, groups=users)
    left = [number for number in range(300) if users[number] != "user-7"]
    after = split([ids[n] for n in left], teachers=6, spec=USERS, groups=[users[n] for n in left])
    assert after == {ids[n]: before[ids[n]] for n in left}


def test_another_user_in_somebodys_place_changes_two_teachers():
    """Which the guarantee does not cover: it says "replaced under the same id"."""
    ids = names(300)
    users = [f"user-{number % 40}" for number in range(300)]

    def contents(records, users):
        """Record -> shard of data sets in which only the user ``user-7`` differs."""
        shards = partition(ids, teachers=6, spec=USERS, groups=users)
        bounds = zip(shards.offsets, shards.offsets[1:], strict=False)
        return [{(records[row], users[row]) for row in shards.order[a:b]} for a, b in bounds]

    before = contents(ids, users)
    own = [number % 40 == 7 for number in range(300)]
    other = [f"{each}-new" if mine else each for each, mine in zip(ids, own, strict=True)]
    same_id = contents(other, users)
    assert sum(one != two for one, two in zip(before, same_id, strict=True)) == 1
    replaced = ["somebody-else" if mine else user for user, mine in zip(users, own, strict=True)]
    other_id = contents(other, replaced)
    assert sum(one != two for one, two in zip(before, other_id, strict=True)) == 2


def test_users_are_not_shuffled():
    with pytest.raises(ValueError, match="would move others"):
        PartitionSpec(by="group", method="shuffle")


def test_ids_alike_up_to_a_zero_are_two_ids():
    ids = ["a", "a\0", *names(30)]
    shards = partition(ids, teachers=3, spec=SHUFFLE)
    assert sorted(shards.order.tolist()) == list(range(32))


@pytest.mark.parametrize("method", ["hash", "shuffle"])
def test_another_key_is_another_partition(method):
    ids = names(400)
    one, other = (
        split(ids, teachers=4, spec=PartitionSpec(method=method, key=key)) for key in ("a", "b")
    )
    moved = sum(one[name] != other[name] for name in ids)
    assert 240 < moved < 360  # three quarters, with five standard deviations of room


NAMES = ["ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana", "ivo", "jo", "kai", "lea"]


def test_the_hash_is_the_published_one():
    """A change here would retrain every teacher of every user: raise the stage's version."""
    assigned = split(NAMES, teachers=3)
    shards = [sorted(n for n in assigned if assigned[n] == teacher) for teacher in range(3)]
    assert [" ".join(shard) for shard in shards] == [
        "dora emil fay ivo jo lea",
        "hana",
        "ada ben cleo gus kai",
    ]


def test_more_teachers_than_records():
    """A shuffle's number of records is public; a hash's is private."""
    with pytest.raises(InvalidInput, match=r"^11 teachers are more than the private records"):
        partition(names(10), teachers=11, spec=SHUFFLE)
    assert partition(names(10), teachers=11, spec=HASH).sizes().sum() == 10
    assert partition(names(10), teachers=11, spec=USERS, groups=names(10, "u")).count == 11


def test_a_shard_may_be_empty():
    assert partition(names(20), teachers=20, spec=HASH).sizes().min() == 0
    assert partition(names(20), teachers=20, spec=SHUFFLE).sizes().tolist() == [1] * 20
    shards = partition(names(20), teachers=5, spec=USERS, groups=["u", "v"] * 10)
    assert sorted(shards.sizes().tolist()) == [0, 0, 0, 10, 10]


def test_groups_are_needed_for_groups():
    with pytest.raises(InvalidInput, match="no group column"):
        partition(names(10), teachers=2, spec=USERS)


@pytest.mark.parametrize("bad", [{"key": ""}, {"method": "random"}, {"by": "user"}, {"keys": "a"}])
def test_bad_settings(bad):
    with pytest.raises(ValidationError):
        PartitionSpec(**bad)


def test_shards_are_spread_like_a_hash():
    """60 000 ids over 250 teachers: sizes are binomial, by a chi-square within six deviations."""
    sizes = partition(names(60_000), teachers=250, spec=HASH).sizes()
    assert sizes.sum() == 60_000
    chi_square = ((sizes - 240) ** 2 / 240).sum()
    assert abs(chi_square - 249) < 6 * np.sqrt(2 * 249)


@given(
    count=st.integers(1, 60),
    gone=st.integers(0, 59),
    slices=st.integers(2, 5),
    spec=st.sampled_from([HASH, USERS]),
)
def test_a_slice_follows_from_the_id_alone(count, gone, slices, spec):
    """Of the record, or of its user; and shards are those without slices."""
    ids = names(count)
    users = [f"u{number // 3}" for number in range(count)] if spec is USERS else None

    def slice_of(rows):
        some = [ids[row] for row in rows]
        owners = users and [users[row] for row in rows]
        shards = partition(some, teachers=3, spec=spec, groups=owners, slices=slices)
        assert len(shards.slices) == 3 * slices + 1
        assert (shards.slices[::slices] == shards.offsets).all()
        assert teacher_of(some, shards) == split(some, teachers=3, spec=spec, groups=owners)
        number = np.repeat(np.arange(3 * slices), np.diff(shards.slices))
        return {some[row]: int(each) for row, each in zip(shards.order, number, strict=True)}

    found = slice_of(range(count))
    kept = [row for row in range(count) if row != gone]
    assert slice_of(kept).items() <= found.items()
    if users:
        assert len({(users[int(name[1:])], each) for name, each in found.items()}) == len(
            set(users)
        )


@pytest.mark.parametrize("spec", [HASH, SHUFFLE, USERS])
@pytest.mark.parametrize("slices", [1, 3])
def test_equal_records_without_ids_reach_one_teacher(spec, slices):
    """The numbers of copies follow from other records: they change nothing in other shards."""
    rng = np.random.default_rng(0)
    values, users = rng.integers(0, 6, 60), rng.integers(0, 15, 60)

    def learnt(values, users):
        table = Table(features=values[:, None].astype(float), labels=np.zeros(len(values), int))
        owners = [f"u{user}" for user in users] if spec is USERS else None
        shards = partition(record_ids(table), teachers=4, spec=spec, groups=owners, slices=slices)
        slices_of = np.split(values[shards.order], shards.slices[1:-1])
        return [[each.tolist() for each in slices_of[n * slices :][:slices]] for n in range(4)]

    before = learnt(values, users)
    for place in range(60):
        kept = users != users[place] if spec is USERS else np.arange(60) != place
        after = (
            learnt(np.where(kept, values, 9), users)
            if spec is SHUFFLE
            else learnt(values[kept], users[kept])
        )
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_a_number_of_private_records_is_drawn_by_their_places():
    """By what they hold, a record replaced by one that is not drawn let another one in."""
    values = np.arange(60.0)

    def drawn(values):
        table = Table(features=values[:, None], labels=np.zeros(60, int))
        return cap(table, 40, role="private", seed=0, where="a file").features[:, 0]

    before = drawn(values)
    assert len(before) == 40
    for place in range(60):
        after = drawn(np.where(np.arange(60) == place, 99.5, values))
        assert (before != after).sum() == (place in before)
