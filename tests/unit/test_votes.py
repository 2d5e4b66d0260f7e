"""Vote files: what is read, and what is refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

from pate.errors import InvalidInput
from pate.votes import Votes, read_counts, read_labels

COUNTS = np.array([[240, 5, 5], [130, 100, 20], [0, 0, 250]])


@pytest.fixture
def save(tmp_path):
    def save_(table, name="votes.npy"):
        np.save(tmp_path / name, table)
        return tmp_path / name

    return save_


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int32, np.float64, np.float32, ">i8"])
def test_counts_of_any_numeric_type(save, dtype):
    table = np.array([[240, 5, 5], [130, 100, 20]]).astype(dtype)
    votes = read_counts(save(table))
    assert votes.counts.dtype == np.int64
    np.testing.assert_array_equal(votes.counts, table)
    assert (votes.queries, votes.classes, votes.teachers) == (2, 3, 250)


def test_labels_become_counts(save):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, size=(50, 20))
    votes = read_labels(save(labels))
    expected = np.stack([np.bincount(column, minlength=7) for column in labels.T])
    np.testing.assert_array_equal(votes.counts, expected)
    wide = read_labels(save(labels), classes=10)
    assert wide.classes == 10
    np.testing.assert_array_equal(wide.counts[:, :7], expected)


def test_abstentions(save):
    labels = np.array([[0, 1, -1], [0, -1, -1], [1, 1, 2]])
    with pytest.raises(InvalidInput, match="--abstentions"):
        read_labels(save(labels))
    votes = read_labels(save(labels), abstentions=True)
    assert votes.counts.tolist() == [[2, 1, 0], [0, 2, 0], [0, 0, 1]]
    uneven = save(np.array([[200, 50], [200, 40]]))
    with pytest.raises(InvalidInput, match="--abstentions"):
        read_counts(uneven)
    assert read_counts(uneven, abstentions=True).teachers == 250


def test_what_could_be_either_is_an_error_that_names_the_flags(save):
    agreeing = np.tile(np.random.default_rng(0).integers(0, 10, size=40), (12, 1))
    for table in (np.ones((4, 4), int), agreeing):
        with pytest.raises(InvalidInput, match="add --counts or --labels"):
            read_counts(save(table))
        assert read_counts(save(table), certain=True).queries == len(table)
        assert read_labels(save(table)).queries == table.shape[1]


@pytest.mark.parametrize(
    "table",
    [
        COUNTS,
        np.tile([200, 50], (100, 1)),
        np.array([[10, 0, 0, 0, 0, 0, 0, 0, 0, 0]]),
        np.eye(1, 43, dtype=int) * 10,
        np.concatenate([np.full((5, 1), 250), np.zeros((5, 9999), int)], axis=1),
    ],
)
def test_plain_counts_need_no_flag(save, table):
    np.testing.assert_array_equal(read_counts(save(table)).counts, table)


def test_labels_without_the_flag_are_told_so(save):
    labels = np.random.default_rng(0).integers(0, 10, size=(250, 100))
    with pytest.raises(InvalidInput, match="add --labels"):
        read_counts(save(labels))


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (np.array([[1.5, 2.5]]), "fractions"),
        (np.array([[np.nan, 1.0]]), "NaN"),
        (np.array([[np.inf, 1.0]]), "infinity"),
        (np.array([[-1, 5]]), "negative"),
        (np.array([[1e300, 1.0]]), "too large"),
        (np.array([[2**63, 1]], dtype=np.uint64), "too large"),
        (np.zeros((0, 10), int), "empty"),
        (np.zeros((3, 0), int), "empty"),
        (np.array(5), "shape"),
        (np.arange(10), "shape"),
        (np.zeros((2, 2, 2), int), "shape"),
        (np.zeros((3, 4), int), "no votes"),
        (np.ones((3, 1), int), "one column"),
        (np.array([["a", "b"]]), "not numbers"),
        (np.array([[1 + 2j, 0]]), "not numbers"),
        (np.array([[True, False]]), "not numbers"),
        (np.array([[{"a": 1}, None]], dtype=object), "pickled"),
    ],
)
def test_bad_tables_are_refused_in_one_line(save, table, text):
    with pytest.raises(InvalidInput, match=text) as error:
        read_counts(save(table))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (np.array([[0, 1], [-1, 0]]), "negative label"),
        (np.array([[0, 10**12], [1, 0]]), "too large to be class"),
        (np.array([[0, 1.5]]), "fractions"),
    ],
)
def test_bad_labels_are_refused(save, table, text):
    with pytest.raises(InvalidInput, match=text):
        read_labels(save(table))
    with pytest.raises(InvalidInput, match="a label beyond the 2 classes"):
        read_labels(save(np.array([[0, 1], [2, 1]])), classes=2)


def test_bad_files_are_refused(tmp_path):
    header = b"\x93NUMPY\x01\x00v\x00"
    for name, content in (
        ("text.npy", b"1,2,3\n"),
        ("empty.npy", b""),
        ("cut.npy", None),
        ("header.npy", header + b"{'descr': '<f8', ((((".ljust(117) + b"\n"),
    ):
        path = tmp_path / name
        if content is None:
            np.save(path, COUNTS)
            content = path.read_bytes()[:-8]
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="not a readable"):
            read_counts(path)
    np.savez(tmp_path / "several.npz", a=COUNTS, b=COUNTS)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip file")
    for name in ("several.npz", "broken.npz"):
        with pytest.raises(InvalidInput, match="archive of arrays"):
            read_counts(tmp_path / name)
    with pytest.raises(InvalidInput, match="no vote file"):
        read_counts(tmp_path / "gone.npy")
    with pytest.raises(InvalidInput, match="no vote file"):
        read_counts(tmp_path)


def test_first_queries(save):
    votes = read_counts(save(COUNTS))
    assert votes.first(2).queries == 2
    assert votes.first(None) is votes
    for wrong in (0, 4):
        with pytest.raises(InvalidInput):
            votes.first(wrong)


def test_labels_are_counted_and_abstentions_are_not():
    labels = [[0, 2, -1], [0, 1, -1], [1, 2, 0]]
    votes = Votes.from_labels(labels, classes=4, abstentions=True)
    assert votes.counts.tolist() == [[2, 1, 0, 0], [0, 1, 2, 0], [1, 0, 0, 0]]
    assert votes.counts.dtype == np.int64


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "a row for each teacher"),
        ([[0.5, 1.0]], "whole"),
        ([[True, False]], "bool"),
        ([[0, 5]], "beyond the 5 classes"),
        ([[-1, 0]], "negative"),
    ],
)
def test_what_is_not_labels_is_refused(labels, message):
    with pytest.raises(InvalidInput, match=message):
        Votes.from_labels(labels, classes=5)
