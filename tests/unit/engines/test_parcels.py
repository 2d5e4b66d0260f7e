"""Files as bytes that travel: whole, checked, under seal, and never elsewhere."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate.engines.on_ray.parcels import (
    Item,
    Parcel,
    ParcelError,
    below,
    pack,
    pack_rows,
    unpack,
)
from pate.engines.on_ray.sealing import Sealed, new_key, seal, unseal


def tree(folder):
    return {str(p.relative_to(folder)): p.is_file() and p.read_bytes() for p in folder.rglob("*")}


@pytest.fixture
def folder(tmp_path):
    """A folder like an artifact."""
    made = tmp_path / "teacher"
    (made / "deep" / "empty").mkdir(parents=True)
    (made / "weights.npy").write_bytes(bytes(range(256)) * 9)
    (made / "deep" / "none").write_bytes(b"")
    (made / "deep" / "name with ε").write_bytes(b"x")
    made.chmod(0o500)
    yield made
    made.chmod(0o700)


def travelled(parcel):
    return pickle.loads(pickle.dumps(parcel, protocol=5))


# ------------------------------------------------------------------ there and back


def test_a_file_arrives(tmp_path):
    for content in (b"", b"hello" * 1000):
        (tmp_path / "a").write_bytes(content)
        parcel = pack(tmp_path / "a")
        assert parcel.size == len(content)
        unpack(travelled(parcel), tmp_path / "b")  # it replaces what was there
        assert (tmp_path / "b").read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_folder_arrives(tmp_path, folder):
    unpack(travelled(pack(folder)), tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(folder)
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o500


def test_of_a_folder_whoever_came_first_stays(tmp_path, folder):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "first").write_text("here")
    unpack(pack(folder), tmp_path / "copy")
    assert tree(tmp_path / "copy") == {"first": b"here"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "teacher"]


def test_what_is_missing_is_missed_there_too(tmp_path):
    parcel = pack(tmp_path / "nothing")
    assert (parcel.kind, parcel.size) == ("missing", 0)
    unpack(parcel, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_parcel_shows_nothing_of_its_content(tmp_path):
    (tmp_path / "a").write_bytes(b"SECRET")
    assert "SECRET" not in repr(pack(tmp_path / "a"))


# ------------------------------------------------------------------ rows


def test_of_rows_only_those_travel(tmp_path):
    table = np.arange(1000, dtype=np.int64)[:, None] + [10**12, 10**13]
    np.save(tmp_path / "X.npy", table)
    parcel = travelled(pack_rows(tmp_path / "X.npy", 30, 50))
    unpack(parcel, tmp_path / "part.npy")
    assert np.array_equal(np.load(tmp_path / "part.npy"), table[30:50])
    sent = pickle.dumps(parcel)
    for row, value in enumerate(table[:, 0]):
        assert (value.tobytes() in sent) == (30 <= row < 50)


def test_rows_of_what_is_missing_or_broken(tmp_path):
    assert pack_rows(tmp_path / "X.npy", 0, 1).kind == "missing"
    (tmp_path / "X.npy").write_bytes(b"not numbers")
    assert pack_rows(tmp_path / "X.npy", 0, 1).size == 0
    np.save(tmp_path / "Y.npy", np.array([{}]), allow_pickle=True)
    assert pack_rows(tmp_path / "Y.npy", 0, 1).size == 0


# ------------------------------------------------------------------ what is not as it was sent


def damaged(parcel):
    """The parcel with something changed, in each of several ways."""
    flipped = parcel.data.copy()
    flipped[len(flipped) // 2] ^= 1
    first, *others = parcel.items
    yield replace(parcel, data=flipped)
    yield replace(parcel, data=parcel.data[:-1])
    yield replace(parcel, data=np.append(parcel.data, np.uint8(0)))
    yield replace(parcel, data=None)
    yield replace(parcel, items=(replace(first, digest="0" * 64), *others))
    yield replace(parcel, items=(replace(first, size=first.size - 1), *others))
    yield replace(parcel, items=(first, *parcel.items))


@pytest.mark.parametrize("way", range(7))
def test_what_was_damaged_is_refused_and_leaves_nothing(tmp_path, folder, way):
    for parcel in (pack(folder), pack(folder / "weights.npy")):
        bad = list(damaged(parcel))[way]
        with pytest.raises(ParcelError, match=r"^a file arrived"):
            unpack(bad, tmp_path / "copy")
    assert [p.name for p in tmp_path.iterdir()] == ["teacher"]


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", ".", "a\\x", "a\0", ".."])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    (tmp_path / "a").write_bytes(b"x")
    whole = pack(tmp_path / "a")
    (item,) = whole.items
    place = tmp_path / "in" / "copy"
    place.parent.mkdir()
    for bad in (
        replace(whole, kind="folder", items=(Item(name, item.size, item.digest),)),
        Parcel(kind="folder", folders=(name,)),
    ):
        with pytest.raises(ParcelError, match="leads out of its place"):
            unpack(bad, place)
    assert sorted(tree(tmp_path)) == ["a", "in"]


def test_a_place_without_a_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"x")
    for place in (Path("."), Path("/"), Path("")):
        with pytest.raises(ValueError, match="empty name"):
            unpack(pack(tmp_path / "a"), place)
    assert tree(tmp_path) == {"a": b"x"}


def test_what_is_at_the_working_name_is_not_removed(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("pate.engines.on_ray.parcels.secrets.token_hex", lambda _: "0")
    (tmp_path / ".copy.0").mkdir()
    (tmp_path / ".copy.0" / "mine").write_text("mine")
    with pytest.raises(ParcelError, match="remove it"):
        unpack(pack(folder), tmp_path / "copy")
    assert (tmp_path / ".copy.0" / "mine").exists()


# ------------------------------------------------------------------ places that were asked for


def test_what_was_asked_for_has_its_place():
    names = ["private/teacher/a", "private/teacher/b"]
    assert below(Path("/store"), names[1], names=names) == Path("/store/private/teacher/b")
    assert below(Path("/store/part.npy"), "", names=[]) == Path("/store/part.npy")


@pytest.mark.parametrize(
    "name", ["", "released/labels/x", "private/teacher/c", "../private/teacher/a", "/a", "a"]
)
def test_nothing_else_has_a_place(name):
    with pytest.raises(ParcelError, match="nobody asked for"):
        below(Path("/store"), name, names=["private/teacher/a"])
    if name:
        with pytest.raises(ParcelError, match="nobody asked for"):
            below(Path("/store"), name, names=[])


def test_a_name_that_leads_out_is_refused_though_it_was_asked_for():
    with pytest.raises(ParcelError, match="out of its place"):
        below(Path("/store"), "../x", names=["../x"])


def test_what_arrives_is_its_owners_alone(tmp_path):
    (tmp_path / "a").mkdir(mode=0o777)
    (tmp_path / "a").chmod(0o4777)
    unpack(pack(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode & 0o7777 == 0o700
    with pytest.raises(ParcelError, match="of a kind"):
        unpack(replace(pack(tmp_path / "a"), kind="blob"), tmp_path / "c")


# ------------------------------------------------------------------ under seal


@pytest.mark.parametrize("size", [0, 1, 1000, (1 << 24) + 5])
def test_what_is_sealed_opens_with_its_key_alone(size):
    content, key = b"SECRET" + bytes(size), new_key()
    sealed = travelled(seal(content, key))
    assert unseal(sealed, key) == content
    assert b"SECRET" not in pickle.dumps(sealed)
    assert "SECRET" not in repr(sealed)
    with pytest.raises(ParcelError, match="other than it was sent"):
        unseal(sealed, new_key())


def test_the_same_thing_never_looks_the_same():
    """Two under one key: were the stream used twice, their difference would show."""
    key, content = new_key(), bytes(1 << 12)
    ((nonce, one),), ((other_nonce, other),) = (seal(content, key).chunks for _ in range(2))
    assert nonce != other_nonce
    assert (one != other).mean() > 0.95
    assert len(np.unique(one)) == 256  # zeros are hidden too


def test_what_was_changed_is_not_opened(monkeypatch):
    monkeypatch.setattr("pate.engines.on_ray.sealing._CHUNK", 64)
    key = new_key()
    sealed = seal(bytes(200), key)
    assert unseal(sealed, key) == bytes(200)
    first, second, *rest = sealed.chunks
    flipped = first[1].copy()
    flipped[0] ^= 1
    for bad in (
        Sealed(((first[0], flipped), second, *rest)),
        Sealed(((second[0], first[1]), second, *rest)),
        Sealed(((first[0], first[1][:-1]), second, *rest)),
        Sealed((second, first, *rest)),
        Sealed((first, second)),
        Sealed(()),
        [1, 2],
    ):
        with pytest.raises(ParcelError):
            unseal(bad, key)
