"""Tables as they are: kinds and categories come from public records, codes from each record."""

from __future__ import annotations

import numpy as np
import pytest

from pate.datasets.columns import Cells, category, choose_columns, encode_columns
from pate.datasets.loading import load
from pate.datasets.spec import DataSpec
from pate.datasets.table import Column, record_ids
from pate.errors import InvalidInput

SECRET = "Zwolle-4711"
PUBLIC = "age,city,y\n31,Bern,a\n,Basel,b\n44,Bern,a\n50,Basel,b\nNA,,a\n"
TEST = "age,city,y\n20,Bern,a\n21,Zug,b\n"


def three(folder, private, public=PUBLIC, **fields):
    paths = {}
    for role, text in (("private", private), ("public", public), ("test", TEST)):
        (folder / f"{role}.csv").write_text(text)
        paths[f"{role}_path"] = str(folder / f"{role}.csv")
    return load(DataSpec(name="own", label="y", **paths, **fields), root=folder)


def test_public_records_decide_kinds_and_categories(tmp_path):
    splits = three(tmp_path, f"age,city,y\n60,Basel,a\n,{SECRET},b\n61.5,,a\n")
    assert splits.columns == (
        Column(name="age"),
        Column(name="city", categories=("Basel", "Bern")),
    )
    assert splits.categories == (0, 2)
    nan = np.nan
    np.testing.assert_array_equal(splits.private.features, [[60, 0], [nan, -1], [61.5, nan]])
    np.testing.assert_array_equal(splits.test.features, [[20, 1], [21, -1]])
    assert splits.public.features.dtype == np.float64
    assert np.isnan(splits.public.features[4]).all()


def test_private_text_among_numbers_is_refused_and_not_quoted(tmp_path):
    with pytest.raises(InvalidInput, match=r"column 'age' of .*private\.csv is not numeric") as e:
        three(tmp_path, f"age,city,y\n60,Basel,a\n{SECRET},Bern,b\n")
    assert SECRET not in str(e.value)
    splits = three(tmp_path, f"age,city,y\n60,Basel,a\n{SECRET},Bern,b\n", categorical=["age"])
    assert splits.columns[0].categories == ("31", "44", "50", "NA")  # as text
    assert splits.private.features[:, 0].tolist() == [-1, -1]


def pool(rows, folder, **fields):
    file = folder / "pool.csv"
    file.write_text("size,note,y\n" + "".join(",".join(row) + "\n" for row in rows))
    spec = {"source": str(file), "label": "y", "public": 0.4, "test": 0.2, **fields}
    return load(DataSpec(name="own", classes=["0", "1"], **spec), root=folder)


def test_one_private_record_changes_how_no_other_is_read(tmp_path):
    """Nor its role, nor its name; whatever is written in the record."""
    rng = np.random.default_rng(5)
    sizes = [["1", "2", "3.0", ""][each] for each in rng.integers(4, size=120)]
    rows = [
        [size, ["low", "high", "", f"{at}e1"][at % 4], str(at % 2)] for at, size in enumerate(sizes)
    ]
    categorical = {"size": [], "note": []}
    before = pool(rows, tmp_path, categorical=categorical)

    def content(splits):
        tables = (splits.private, splits.public, splits.test)
        return [
            dict(zip(record_ids(each), map(repr, each.features.tolist()), strict=True))
            for each in tables
        ]

    kept, *others = content(before)
    added = 0
    odds = [["4", "low", "0"], ["2", SECRET, "1"], ["", "", "1"], ["1e300", "nan", "0"]]
    odds += [[str(each), f"{SECRET} {each}", "1"] for each in range(5)]
    for odd in odds:
        after = pool([*rows, odd], tmp_path, categorical=categorical)
        found, *rest = content(after)
        if after.private.records > before.private.records:
            added += 1
            assert rest == others
            assert after.columns == before.columns
            assert kept.items() <= found.items()
            assert len(found) == len(kept) + 1
    assert added > 1


def test_a_pool_of_numbers_is_divided_as_arrays_are(tmp_path):
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    (tmp_path / "a.csv").write_text(
        "u,v,y\n" + "".join(f"{a},{b},{c}\n" for (a, b), c in zip(X.tolist(), y, strict=True))
    )
    np.savez(tmp_path / "a.npz", X=X, y=y)
    spec = {"name": "own", "public": 20, "test": 10}
    table = load(DataSpec(source=str(tmp_path / "a.csv"), label="y", **spec), root=tmp_path)
    arrays = load(DataSpec(source=str(tmp_path / "a.npz"), **spec), root=tmp_path)
    for role in ("private", "public", "test"):
        one, other = getattr(table, role), getattr(arrays, role)
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.labels, other.labels)
        assert record_ids(one) == record_ids(other)
    assert arrays.columns is None
    assert [each.name for each in table.columns] == ["u", "v"]


def test_the_recipe_orders_categories(tmp_path):
    private = "age,city,y\n60,Basel,a\n61,Zug,b\n"
    splits = three(tmp_path, private, categorical={"city": ["Zug", "Bern", "Basel"]})
    assert splits.private.features[:, 1].tolist() == [2, 0]


REFUSED = {
    "mostly different": (
        "age,city,y\n" + "".join(f"1,person {n},a\n" for n in range(20)),
        {},
        "column 'city' of .* holds texts that are mostly different, as names",
    ),
    "too many": (
        "age,city,y\n" + "".join(f"1,{n} km,a\n" for n in range(1001)),
        {"categorical": ["city"]},
        "has 1001 categories in public records, and 1000 are the most",
    ),
    "empty": ("age,city,y\n,Bern,a\n,Bern,b\n", {}, "column 'age' of .* is empty in all public"),
    "infinite": ("age,city,y\ninf,Bern,a\n2,Bern,b\n", {}, "column 'age' of .* holds infinity"),
    "not there": (PUBLIC, {"categorical": ["citty"]}, "no feature column 'citty'; did you mean"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, tmp_path):
    public, fields, words = REFUSED[case]
    with pytest.raises(InvalidInput, match=words):
        three(tmp_path, "age,city,y\n60,Basel,a\n61,Bern,b\n", public, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"categorical": ["y"]}, "label column 'y' is also in categorical"),
        ({"categorical": ["a"], "features": ["b"]}, "which is not among features"),
        ({"categorical": {"a": ["x", "x"]}}, "a category of 'a' twice"),
    ],
)
def test_what_the_recipe_cannot_mean(fields, words):
    with pytest.raises(ValueError, match=words):
        DataSpec(name="own", source="x.csv", label="y", **fields)
    with pytest.raises(ValueError, match="categorical is for your own data"):
        DataSpec(name="digits", categorical=["a"])


def test_recipes_without_the_key_are_dumped_as_before():
    assert "categorical" not in DataSpec(name="digits").model_dump()
    spec = DataSpec(name="own", source="x.csv", categorical=["a"])
    assert DataSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_numbers_of_one_value_are_one_category():
    names = ["7", "07", 7, 7.0, "7.0", " 7 ", np.float64(7), np.int8(7)]
    assert {category(name) for name in names} == {"7"}
    assert category("2020-01-05") == "2020-01-05"
    cells = Cells.of(["10", "9", "x", None])
    (column,) = choose_columns(["c"], [cells], categorical={"c": []}, where="t")
    assert column.categories == ("10", "9", "x")
    (column,) = choose_columns(["c"], [Cells.of(["10", "9"])], categorical={"c": []}, where="t")
    assert column.categories == ("9", "10")
    assert encode_columns([column], [Cells.of([9, "10.0"])], where="t").ravel().tolist() == [0, 1]


FRAMES = """
import numpy as np, pandas
def frame(rows, **more):
    rng = np.random.default_rng(rows)
    made = {"age": rng.integers(20, 60, rows), "city": rng.choice(["Bern", "Zug"], rows)}
    return pandas.DataFrame(made | more)
def pool():
    return frame(40), np.arange(40) % 2
def parts():
    turned = frame(10)[["city", "age"]]
    return (frame(30), np.arange(30) % 2), turned, (frame(8), np.arange(8) % 2)
"""


def test_frames_of_the_users_own_code(tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "frames.py").write_text(FRAMES)
    spec = DataSpec(name="own", source="frames:pool", public=10, test=8)
    splits = load(spec, root=tmp_path, plugin_path=tmp_path)
    assert splits.categories == (0, 2)
    assert set(splits.private.features[:, 1]) == {0, 1}
    splits = load(DataSpec(name="own", source="frames:parts"), root=tmp_path, plugin_path=tmp_path)
    assert [each.name for each in splits.columns] == ["age", "city"]
    assert splits.public.features[:, 0].min() >= 20
