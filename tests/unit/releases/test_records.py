"""The form of records: columns by name, categories, missing values, the scale of pixels."""

from __future__ import annotations

import numpy as np
import pytest
from numpy import nan

from pate.datasets.table import Column
from pate.errors import InvalidInput
from pate.releases.records import RecordForm, form_record

pandas = pytest.importorskip("pandas")

AGE, CITY = Column(name="age"), Column(name="city", categories=("Bern", "Zug"))
CODE = Column(name="code", categories=("1", "2"))
SMOKER = Column(name="smoker", categories=("False", "True"))
TABLE = RecordForm(shape=(4,), dtype="float64", columns=(AGE, CITY, CODE, SMOKER), missing=True)
FRAME = pandas.DataFrame(
    {"age": [31, 44], "city": ["Zug", "Rom"], "code": [2, 1], "smoker": [True, False]}
)
CODES = [[31, 1, 1, 1], [44, -1, 0, 0]]
UNNAMED = RecordForm(
    shape=(2,),
    dtype="float64",
    columns=(Column(name=None), Column(name=None, categories=("Bern", "Zug"))),
    missing=False,
)


def test_columns_are_found_by_name_in_any_order():
    np.testing.assert_array_equal(TABLE.read(FRAME), CODES)
    np.testing.assert_array_equal(TABLE.read(FRAME[["smoker", "code", "age", "city"]]), CODES)
    text = FRAME.astype({"code": str, "city": "category", "age": "Int64", "smoker": str})
    np.testing.assert_array_equal(TABLE.read(text), CODES)


def test_an_array_holds_what_the_file_does_in_its_order():
    np.testing.assert_array_equal(TABLE.read(FRAME.to_numpy()), CODES)
    np.testing.assert_array_equal(
        TABLE.read([["31", "Zug", "2.0", "True"], ["", "", None, "False"]]),
        [[31, 1, 1, 1], [nan, nan, nan, 0]],
    )


def test_truth_values_are_what_they_were_learnt_as():
    """A column of True and False is 1 and 0 in Parquet and in frames, and text in CSV."""
    form = RecordForm(
        shape=(2,),
        dtype="float64",
        columns=(Column(name="a"), Column(name="b", categories=("0", "1"))),
    )
    frame = pandas.DataFrame({"a": [True, False], "b": [True, False]})
    np.testing.assert_array_equal(form.read(frame), [[1, 1], [0, 0]])


def test_missing_values():
    holes = FRAME.assign(age=[None, 44.0], city=[None, "Zug"], code=[nan, 1])
    np.testing.assert_array_equal(TABLE.read(holes), [[nan, nan, nan, 1], [44, 1, 0, 0]])
    with pytest.raises(InvalidInput, match="column 1 of X has missing values, and the student"):
        UNNAMED.read([[None, "Bern"]])


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (FRAME.drop(columns=["age", "city"]), "X has no column 'age', 'city'; the student takes"),
        (FRAME.assign(patient=1), "X has 'patient', which the student did not learn from; drop it"),
        (FRAME.assign(p=1, q=1), "X has 'p', 'q', which the student did not learn from; drop them"),
        (
            FRAME.assign(age=["old", 3]),
            "column .age. of X holds text, and the student",
        ),
        (FRAME.assign(age=["31", "NA"]), "column 'age' of X holds text"),
        (FRAME.assign(city=[0, 1]), "column 'city' of X holds numbers.* such as 'Bern'; give them"),
        (FRAME.assign(age=pandas.Timestamp("2020")), "column 'age' of X is of type datetime64"),
        (FRAME.to_numpy()[:, :3], r"the records have shape \(2, 3\); the student takes \(n, 4\)"),
        (np.zeros((1, 4)), "column 'city' of X holds numbers"),
    ],
)
def test_what_is_refused(X, words):
    with pytest.raises(InvalidInput, match=words):
        TABLE.read(X)


def test_without_names_only_arrays_are_taken():
    np.testing.assert_array_equal(UNNAMED.read([[3, "Zug"]]), [[3, 1]])
    for form in (UNNAMED, RecordForm(shape=(2,), dtype="float64")):
        with pytest.raises(InvalidInput, match=r"does not know the names.*such as X.to_numpy\(\)"):
            form.read(FRAME[["age", "city"]])


# --- images ---------------------------------------------------------------------------------------

PIXELS = np.random.default_rng(0).integers(0, 256, size=(3, 4, 5, 3), dtype=np.uint8)
UNIT = RecordForm(shape=(4, 5, 3), dtype="float32", range=(0, 1))
BYTES = RecordForm(shape=(4, 5, 3), dtype="float32", range=(0, 255))


def test_bytes_are_scaled_where_0_to_1_was_learnt():
    np.testing.assert_array_equal(UNIT.read(PIXELS), PIXELS / np.float32(255))
    np.testing.assert_array_equal(UNIT.read(PIXELS / 255), PIXELS / 255)
    np.testing.assert_array_equal(BYTES.read(PIXELS), PIXELS)
    assert UNIT.read(np.zeros((2, 4, 5, 3), dtype=np.uint8)).max() == 0
    assert UNIT.read(np.zeros((0, 4, 5, 3))).shape == (0, 4, 5, 3)


@pytest.mark.parametrize(
    ("form", "X", "words"),
    [
        (UNIT, PIXELS.astype(float), "from 0 to 249, and the student learnt from 0 … 1"),
        (UNIT, PIXELS.astype(np.int64), "int64 from"),
        (UNIT, PIXELS / 127.5 - 1, "learnt from 0 … 1"),
        (UNIT, PIXELS > 100, None),
        (UNIT, (PIXELS > 100).astype(np.uint8), "uint8 from 0 to 1"),
        (BYTES, PIXELS / 255, "the pixels reach 0.976471, and the student learnt from 0 … 255"),
        (UNIT, PIXELS.transpose(0, 3, 1, 2), r"channels come last, X.transpose\(0, 2, 3, 1\)"),
    ],
)
def test_pixels_on_another_scale_are_refused(form, X, words):
    if words is None:
        assert form.read(X).dtype == bool
        return
    with pytest.raises(InvalidInput, match=words):
        form.read(X)


def test_the_record_of_a_form():
    record = form_record(PIXELS / 255, None, missing=False, names=False)
    assert record["range"] == [0, 1]
    assert form_record(PIXELS, None, missing=False, names=False)["range"] == [0, 255]
    assert "range" not in form_record(PIXELS - 3.5, None, missing=False, names=False)
    columns = [{"name": "age", "categories": None}, {"name": "city", "categories": ["Bern"]}]
    hidden = form_record(np.zeros((3, 2)), columns, missing=True, names=False)
    assert hidden["columns"][1] == {"name": None, "categories": ["Bern"]}
    shown = form_record(np.zeros((3, 2)), columns, missing=True, names=True)
    assert [each["name"] for each in shown["columns"]] == ["age", "city"]


@pytest.mark.parametrize("form", [TABLE, UNNAMED, UNIT])
def test_drawn_records_are_of_the_form(form):
    drawn = form.drawn(40)
    assert drawn.shape == (40, *form.shape)
    assert drawn.dtype == form.dtype
    assert np.isnan(drawn).any() == bool(form.missing)
    for at, column in enumerate(form.columns or ()):
        if column.categories:
            codes = drawn[:, at][~np.isnan(drawn[:, at])]
            assert set(codes) <= set(range(-1, len(column.categories)))
