"""The user's own data: files, folders and code; good ones, and bad ones with one clear line."""

from __future__ import annotations

import csv
import sys

import numpy as np
import pytest
from PIL import Image

from pate.datasets.loading import load
from pate.datasets.own import _from_dataset, _from_mapping, _split_pool
from pate.datasets.parts import to_names
from pate.datasets.spec import DataSpec
from pate.datasets.table import record_ids
from pate.errors import InvalidInput

RNG = np.random.Generator(np.random.PCG64(11))
SECRET = "MARKER-4711"


def write_csv(path, rows=30, *, names=("no", "yes"), label="outcome", extra=(), drop=()):
    columns = {
        "patient": [f"p{row}" for row in range(rows)],
        "ward": [f"w{row // 3}" for row in range(rows)],
        "age": [20 + row for row in range(rows)],
        "dose": [f"{row / 7:.3f}" for row in range(rows)],
        label: [names[row % len(names)] for row in range(rows)],
        **dict(extra),
    }
    columns = {name: column for name, column in columns.items() if name not in drop}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return str(path)


KEYS = {"label": "outcome", "id": "patient", "group": "ward"}


def one(tmp_path, source, **fields):
    spec = {"name": "own", "source": str(source), "public": 9, "test": 6, **fields}
    return load(DataSpec(**spec), root=tmp_path)


def three(tmp_path, private, public, test, /, **fields):
    paths = {"private_path": str(private), "public_path": str(public), "test_path": str(test)}
    return load(DataSpec(name="own", **paths, **fields), root=tmp_path)


def test_one_csv_file(tmp_path):
    splits = one(tmp_path, write_csv(tmp_path / "a.csv"), **KEYS)
    assert splits.class_names == ("no", "yes")
    assert (splits.private.records, splits.public.records, splits.test.records) == (15, 9, 6)
    for part in (splits.private, splits.public, splits.test):
        assert part.features.shape[1] == 2
        rows = [int(name[1:]) for name in part.ids]
        assert part.features[:, 0].tolist() == [20 + row for row in rows]
        assert part.labels.tolist() == [row % 2 for row in rows]
        assert part.groups == tuple(f"w{row // 3}" for row in rows)
    wards = [set(part.groups) for part in (splits.private, splits.public, splits.test)]
    assert sum(len(ward) for ward in wards) == 10  # nobody's records are divided


def test_a_path_may_lie_below_the_data_root(tmp_path):
    write_csv(tmp_path / "below.csv")
    assert one(tmp_path, "below.csv", **KEYS).classes == 2


def test_columns_by_name_in_the_order_asked(tmp_path):
    extra = [("note", ["text"] * 30)]
    path = write_csv(tmp_path / "a.csv", extra=extra)
    splits = one(tmp_path, path, label="outcome", features=["dose", "age"])
    assert splits.private.features[:, 1].min() >= 20
    assert splits.private.ids is None


def test_three_csv_files_are_read_by_the_names_of_the_private_one(tmp_path):
    private = write_csv(tmp_path / "private.csv")
    drop = ["patient", "ward"]
    test = write_csv(tmp_path / "test.csv", 10, names=("maybe", "no", "yes"), drop=drop)
    public = tmp_path / "public.csv"
    public.write_text("dose,other,age\n0.5,x,33\n0.25,y,44\n")
    splits = three(tmp_path, private, public, test, **KEYS)
    assert splits.class_names == ("maybe", "no", "yes")
    assert splits.public.features.tolist() == [[33, 0.5], [44, 0.25]]
    assert splits.public.labels is None
    assert set(splits.test.labels.tolist()) == {0, 1, 2}
    assert splits.private.records == 30
    capped = three(tmp_path, private, public, test, private=20, public=1, **KEYS)
    assert (capped.private.records, capped.public.records) == (20, 1)  # single records, not wards


def test_an_empty_label_column_is_allowed_in_public_only(tmp_path):
    private = write_csv(tmp_path / "private.csv")
    blank = write_csv(tmp_path / "blank.csv", names=("",))
    test = write_csv(tmp_path / "test.csv")
    assert three(tmp_path, private, blank, test, **KEYS).public.labels is None
    with pytest.raises(InvalidInput, match=r"a label of .*blank\.csv is missing"):
        three(tmp_path, private, test, blank, **KEYS)


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (("10", "9", "2"), ("2", "9", "10")),
        (("1.0", "0"), ("0", "1")),
        (("b", "a", "10"), ("10", "a", "b")),
        ((" yes ", "no"), ("no", "yes")),
    ],
)
def test_class_names_are_sorted(tmp_path, written, names):
    assert one(tmp_path, write_csv(tmp_path / "a.csv", names=written), **KEYS).class_names == names


def test_classes_of_the_recipe_are_used_as_given(tmp_path):
    path = write_csv(tmp_path / "a.csv")
    splits = one(tmp_path, path, classes=["yes", "no", "unknown"], **KEYS)
    assert splits.class_names == ("yes", "no", "unknown")
    path = write_csv(tmp_path / "a.csv", names=("yes", "no", SECRET))
    with pytest.raises(InvalidInput, match="not among the 2 classes") as caught:
        one(tmp_path, path, classes=["yes", "no"], **KEYS)
    assert SECRET not in str(caught.value)


def test_tsv_bom_and_blank_lines(tmp_path):
    path = tmp_path / "a.tsv"
    lines = [f"{row}\t{row % 2}" for row in range(20)]
    path.write_text("x\ty\n" + "\n\n".join(lines) + "\n", encoding="utf-8-sig")
    splits = one(tmp_path, path, label="y")
    assert splits.private.records == 5
    assert splits.private.features.shape[1] == 1


BAD_CSV = {
    "no label named": (write_csv, {"label": None}, "label is not set; name the label column"),
    "wrong label": (write_csv, {"label": "outcom"}, "no label column 'outcom'; did you mean"),
    "wrong id": (write_csv, {"id": "zzz"}, "no id column 'zzz'; it has patient, ward, age"),
    "wrong group": (write_csv, {"group": "Ward"}, "no group column 'Ward'; did you mean 'ward'"),
    "wrong feature": (write_csv, {"features": ["agee"]}, "no feature column 'agee'; did you"),
    "words": (write_csv, {"id": None}, "column 'patient' of .* holds texts that are mostly"),
    "no features": ("outcome\na\nb\n", {}, "no feature column beside"),
    "infinite": ("x,outcome\n1,a\ninf,b\n", {}, "column 'x' of .* holds infinity"),
    "hole in label": ("x,outcome\n1,a\n2,\n", {}, "a label of .* is missing"),
    "hole in id": ("x,outcome,i\n1,a,\n2,b,7\n", {"id": "i"}, "id column 'i' of .* is empty"),
    "empty": ("", {}, "is empty; its first line must name the columns"),
    "header only": ("x,outcome\n", {}, "holds no records"),
    "no header": ("1,2\n3,4\n", {}, "the first line of .* holds numbers"),
    "ragged": ("x,outcome\n1,a\n2\n", {}, "line 3 of .* has 1 values for 2 columns"),
    "one class": ("x,outcome\n1,a\n2,a\n", {}, "name 1 class; classification needs 2"),
    "twin columns": ("x,x,outcome\n1,2,a\n", {}, "two columns of one name"),
    "nameless column": ("x,,outcome\n1,2,a\n", {}, "column 2 of .* has no name"),
    "twin ids": ("x,outcome,i\n1,a,7\n2,b,7\n", {"id": "i"}, "1 ids of .* occur more than once"),
    "binary": (b"x,outcome\n\xff\xfe,a\n", {}, "not UTF-8"),
    "public unset": (write_csv, {"public": None, "features": ["age"]}, "public is not set"),
    "test unset": (write_csv, {"test": None, "features": ["age"]}, "test is not set"),
    "too few": (write_csv, {"test": 40, "features": ["age"]}, "test asks for 40 records"),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_bad_csv(case, tmp_path):
    content, fields, words = BAD_CSV[case]
    path = tmp_path / "bad.csv"
    if callable(content):
        content(path)
        fields = {**KEYS, "group": None, **fields}
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        fields = {"label": "outcome", **fields}
    with pytest.raises(InvalidInput, match=words) as caught:
        one(tmp_path, path, **fields)
    text = str(caught.value)
    assert "\n" not in text
    assert SECRET not in text
    assert caught.value.__cause__ is None or SECRET not in str(caught.value.__cause__)


def arrays(rows=40, **changes):
    made = {
        "X": RNG.normal(size=(rows, 4, 4)).astype(np.float32),
        "y": np.arange(rows) % 3,
        "who": np.array([f"u{row}" for row in range(rows)]),
        **changes,
    }
    return {key: value for key, value in made.items() if value is not None}


def test_npz(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    splits = one(tmp_path, tmp_path / "a.npz", group="who")
    assert splits.private.features.shape == (25, 4, 4)
    assert splits.private.features.dtype == np.float32
    assert splits.class_names == ("0", "1", "2")
    assert splits.private.groups[0].startswith("u")
    made = arrays()
    np.savez(tmp_path / "b.npz", pixels=made["X"], names=np.array(list("ab") * 20))
    splits = one(tmp_path, tmp_path / "b.npz", label="names", features=["pixels"])
    assert splits.class_names == ("a", "b")


def test_npy_public_inputs_beside_npz(tmp_path):
    for name in ("private", "test"):
        np.savez(tmp_path / f"{name}.npz", **arrays())
    np.save(tmp_path / "public.npy", arrays()["X"].astype(np.float64))
    files = [tmp_path / name for name in ("private.npz", "public.npy", "test.npz")]
    splits = three(tmp_path, *files)
    assert splits.public.labels is None
    assert splits.private.features.dtype == splits.public.features.dtype == np.float64
    with pytest.raises(InvalidInput, match="holds features and no labels"):
        three(tmp_path, files[0], files[2], files[1])
    with pytest.raises(InvalidInput, match="name one file twice"):
        three(tmp_path, files[0], files[0], files[2])
    np.save(tmp_path / "public.npy", np.zeros((5, 3)))
    with pytest.raises(InvalidInput, match=r"public\.npy has shape \(3,\) and one of"):
        three(tmp_path, *files)


BAD_NPZ = {
    "no features": ({"X": None}, {}, "no array of features 'X'; it has y, who"),
    "no labels": ({"y": None}, {}, "no array of labels 'y'"),
    "no ids": ({}, {"id": "ids"}, "no id array 'ids'"),
    "unequal": ({"y": np.arange(39)}, {}, "has 40 records and 39 labels"),
    "empty": ({"X": np.zeros((0, 4)), "y": np.zeros(0)}, {}, "holds no records"),
    "NaN": ({"X": np.full((40, 2), np.nan)}, {}, "a feature of .* holds NaN"),
    "NaN label": ({"y": np.full(40, np.nan)}, {}, r"a label of .* is missing \(NaN\)"),
    "fractions": ({"y": np.linspace(0, 1, 40)}, {}, "hold fractions"),
    "two labels each": ({"y": np.zeros((40, 2))}, {}, "labels of .* have shape"),
    "objects": ({"X": np.array([[{}]] * 40)}, {}, "not a readable file of arrays"),
    "words": ({"X": np.array([["a"]] * 40)}, {}, "not numbers"),
    "flat": ({"X": np.zeros(40)}, {}, "give a row of numbers for each record"),
    "one class": ({"y": np.zeros(40)}, {}, "name 1 class"),
    "two keys": ({}, {"features": ["X", "who"]}, "features names 2 arrays"),
    "complex": ({"X": np.zeros((40, 2), dtype=complex)}, {}, "hold complex128, not numbers"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(case, tmp_path):
    changes, fields, words = BAD_NPZ[case]
    np.savez(tmp_path / "bad.npz", allow_pickle=True, **arrays(**changes))
    with pytest.raises(InvalidInput, match=words) as caught:
        one(tmp_path, tmp_path / "bad.npz", **fields)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_what_they_say(tmp_path):
    for name in ("a.npz", "a.parquet", "a.xlsx"):
        (tmp_path / name).write_bytes(b"not this")
    with pytest.raises(InvalidInput, match="not a readable file of arrays"):
        one(tmp_path, tmp_path / "a.npz")
    with pytest.raises(InvalidInput, match=r"a format that cannot be read; give \.npz"):
        one(tmp_path, tmp_path / "a.xlsx")
    with pytest.raises(InvalidInput, match="there is no file at"):
        one(tmp_path, tmp_path / "absent.csv", label="y")
    np.save(tmp_path / "array.npy", np.zeros((3, 3)))
    (tmp_path / "array.npy").rename(tmp_path / "b.npz")
    with pytest.raises(InvalidInput, match=r"is not a \.npz file"):
        one(tmp_path, tmp_path / "b.npz")


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidInput, match="run pip install pyarrow"):
        one(tmp_path, tmp_path / "a.parquet", label="y")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "key": list(range(30)),
        "age": [20 + row for row in range(30)],
        "smoker": [row % 5 == 0 for row in range(30)],
        "dose": [row / 7 for row in range(30)],
        "outcome": pyarrow.array(["no", "yes"] * 15).dictionary_encode(),
    }
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    splits = one(tmp_path, path, label="outcome", id="key")
    assert splits.class_names == ("no", "yes")
    rows = [int(name) for name in splits.private.ids]
    assert splits.private.features[:, 0].tolist() == [20 + row for row in rows]
    assert splits.private.features[:, 1].tolist() == [float(row % 5 == 0) for row in rows]
    assert splits.private.labels.tolist() == [row % 2 for row in rows]
    columns["dose"] = [None if row % 6 == 1 else row / 7 for row in range(30)]
    columns["ward"] = pyarrow.array(["east", "west", None] * 10).dictionary_encode()
    parquet.write_table(pyarrow.table(columns), path)
    splits = one(tmp_path, path, label="outcome", id="key")
    rows = np.array([int(name) for name in splits.private.ids])
    np.testing.assert_array_equal(np.isnan(splits.private.features[:, 2]), rows % 6 == 1)
    np.testing.assert_array_equal(splits.private.features[:, 3], np.array([0, 1, np.nan])[rows % 3])
    columns["ward"] = [b"bytes"] * 30
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(InvalidInput, match=r"column 'ward' of .* neither numbers nor text"):
        one(tmp_path, path, label="outcome", id="key")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidInput, match="not a readable Parquet file"):
        one(tmp_path, path, label="outcome")


def write_images(folder, *, classes=("cat", "dog"), each=10, size=(9, 7), mode="L"):
    for kind in classes:
        (folder / kind).mkdir(parents=True)
        for number in range(each):
            shape = size[::-1] if mode == "L" else (*size[::-1], 3)
            pixels = RNG.integers(0, 256, size=shape, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    return folder


def test_image_folder(tmp_path):
    folder = write_images(tmp_path / "pets")
    (folder / "cat" / "notes.txt").write_text("passed over")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.png").write_bytes(b"passed over")
    splits = one(tmp_path, folder)
    assert splits.class_names == ("cat", "dog")
    assert splits.private.features.shape == (5, 7, 9)
    assert splits.private.features.dtype == np.float32
    assert 0 <= splits.private.features.min() < splits.private.features.max() <= 1
    for name, label, image in zip(
        splits.private.ids, splits.private.labels, splits.private.features, strict=True
    ):
        assert name.startswith(splits.class_names[label] + "/")
        with Image.open(folder / name) as original:
            assert np.allclose(image * 255, np.asarray(original), atol=1e-4)
    assert one(tmp_path, folder, image_size=5).private.features.shape == (5, 5, 5)


def test_grey_and_coloured_folders_agree_on_colour(tmp_path):
    private = write_images(tmp_path / "private")
    test = write_images(tmp_path / "test", mode="RGB")
    public = write_images(tmp_path / "flat", classes=("",))
    splits = three(tmp_path, private, public, test)
    assert splits.private.features.shape == (20, 7, 9, 3)
    assert splits.public.features.shape == (10, 7, 9, 3)
    assert splits.public.labels is None


def test_deep_grey_images_are_not_clipped(tmp_path):
    folder = tmp_path / "deep"
    for kind in ("a", "b"):
        (folder / kind).mkdir(parents=True)
        for number in range(10):
            pixels = np.full((4, 4), 6553 * number, dtype=np.uint16)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    splits = one(tmp_path, folder)
    for name, image in zip(splits.private.ids, splits.private.features, strict=True):
        assert np.allclose(image, 6553 * int(name[2]) / 65535, atol=1e-4)


def test_bad_image_folders(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidInput, match="holds no images"):
        one(tmp_path, tmp_path / "none")
    with pytest.raises(InvalidInput, match="images outside any class folder"):
        one(tmp_path, write_images(tmp_path / "flat", classes=("",)))
    with pytest.raises(InvalidInput, match="name 1 class"):
        one(tmp_path, write_images(tmp_path / "one", classes=("cat",), each=30))
    folder = write_images(tmp_path / "pets")
    with pytest.raises(InvalidInput, match=r"label names a column and .* is a folder"):
        one(tmp_path, folder, label="y")
    Image.new("L", (3, 3)).save(folder / "dog" / "z.png")
    with pytest.raises(InvalidInput, match=r"dog/z\.png is 3×3 pixels .* 9×7; set image_size"):
        one(tmp_path, folder)
    assert one(tmp_path, folder, image_size=8).classes == 2
    (folder / "dog" / "z.png").write_bytes(b"not an image")
    with pytest.raises(InvalidInput, match=r"dog/z\.png is not a readable image"):
        one(tmp_path, folder)


PLUGIN = """
import numpy as np
from pate.datasets.table import Splits, Table

X = np.arange(80.0).reshape(40, 2)
y = np.arange(40) % 2
names = np.array(["no", "yes"])[y]

def pair(): return X, names
def mapping(): return {"X": X, "y": y, "ids": [f"r{i}" for i in range(40)], "groups": X[:, 0]}
def three(): return {"private": (X, y), "public": X[:5] + 0.5, "test": (X[:9], y[:9])}
def triple(): return (X, names), {"X": X[:5]}, Table(features=X[:9], labels=y[:9])
as_object = (X, y)
def splits():
    return Splits(private=Table(features=X, labels=y), public=Table(features=X[:5], labels=None),
                  test=Table(features=X[:9], labels=y[:9]), class_names=("no", "yes"))

class Torch:
    def __len__(self): return 40
    def __getitem__(self, row):
        import torch
        return torch.full((3, 2), float(row)), torch.tensor(row % 4)

class Pictures:
    def __len__(self): return 40
    def __getitem__(self, row):
        from PIL import Image
        return Image.new("L", (3, 2), 5 * row), row % 2

class Mixed(Torch):
    def __getitem__(self, row):
        record, label = super().__getitem__(row)
        return (record.double() if row == 7 else record), label

def raises(): raise RuntimeError("MARKER-4711")
def nothing(): return None
def wrong_key(): return {"X": X, "Y": y}
def no_test(): return {"private": (X, y), "public": X}
def four(): return X, y, X, y
def unlabelled(): return X
def unlabelled_test(): return (X, y), X, X
def uneven(): return X, y[:-1]
def bad_splits():
    return Splits(private=Table(features=X, labels=y + 1), public=Table(features=X, labels=None),
                  test=Table(features=X, labels=y), class_names=("no", "yes"))
def one_class():
    return Splits(private=Table(features=X, labels=y * 0), public=Table(features=X, labels=None),
                  test=Table(features=X, labels=y), class_names=("no", "yes"))
"""


@pytest.fixture
def plugins(tmp_path):
    (tmp_path / "hospital_plugin.py").write_text(PLUGIN)

    def run(attribute, **fields):
        spec = DataSpec(
            **{"name": "own", "source": f"hospital_plugin:{attribute}", "public": 5, "test": 6}
            | fields
        )
        return load(spec, root=tmp_path, plugin_path=tmp_path)

    return run


@pytest.mark.parametrize("attribute", ["pair", "mapping", "as_object"])
def test_a_pool_from_code(plugins, attribute):
    splits = plugins(attribute)
    assert (splits.private.records, splits.public.records, splits.test.records) == (29, 5, 6)
    assert splits.private.labels.tolist() == (splits.private.features[:, 0] // 2 % 2).tolist()
    assert splits.class_names == (("no", "yes") if attribute == "pair" else ("0", "1"))
    assert (splits.private.ids is not None) == (attribute == "mapping")


@pytest.mark.parametrize("attribute", ["three", "splits"])
def test_parts_from_code(plugins, attribute):
    splits = plugins(attribute, public=None, test=None)
    assert (splits.private.records, splits.public.records, splits.test.records) == (40, 5, 9)
    assert splits.public.labels is None
    assert plugins(attribute, private=7, public=None, test=3).private.records == 7


def test_names_and_numbers_do_not_mix(plugins):
    with pytest.raises(InvalidInput, match="name all classes"):
        plugins("triple", public=None, test=None)


def test_datasets_from_code(plugins):
    splits = plugins("Torch")
    assert splits.private.features.shape == (29, 3, 2)
    assert splits.private.labels.tolist() == (splits.private.features[:, 0, 0] % 4).tolist()
    splits = plugins("Pictures")
    assert splits.private.features.shape == (29, 2, 3)
    assert splits.private.features.max() <= 1


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("raises", r"raised RuntimeError in .*/hospital_plugin.py line \d+; run it on its own"),
        ("Mixed", "returns records of several shapes or types; make them agree"),
        ("nothing", "returned NoneType; return arrays"),
        ("wrong_key", "returned an unknown key; known are X, y"),
        ("no_test", "returned no 'test'"),
        ("four", "returned 4 objects"),
        ("unlabelled", "has no labels; private records need them"),
        ("unlabelled_test", r"\(test\) has no labels; test records need them"),
        ("uneven", "has 40 records and 39 labels"),
        ("bad_splits", "private labels of own are not whole numbers from 0 to 1"),
        ("one_class", "private records of own are all of one class"),
        ("absent", "absent"),
    ],
)
def test_bad_code(plugins, attribute, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        plugins(attribute, public=5, test=5)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("cell", [np.nan, "x"])
def test_one_private_cell_of_a_frame_moves_no_other_record(cell):
    """It changes the type of its column; where that was part of names, all records moved."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(200, 3)).astype(np.float32), columns=list("abc"))
    frame["k"] = rng.integers(0, 3, size=200).astype(np.int8)
    spec = DataSpec(
        name="mine", source="m:f", public=0.3, test=0.2, categorical={"k": ["0", "1", "2"]}
    )

    def roles(records):
        splits = _split_pool(spec, _from_mapping({"X": records, "y": np.arange(200) % 2}, "m:f"))
        names = dict(zip(splits.private.features[:, 0], record_ids(splits.private), strict=True))
        return splits, names

    before, names = roles(frame)
    first = before.private.features[0, 0]
    frame["k"] = frame["k"].astype(object if cell == "x" else np.float64)
    frame.loc[frame["a"] == first, "k"] = cell
    after, names_after = roles(frame)
    moved = first not in names_after  # the record itself may have another role now
    for role in ("public", "test"):
        one, other = (set(getattr(each, role).features[:, 0]) for each in (before, after))
        assert one ^ other <= {first}
    assert {key: name for key, name in names.items() if key != first} == {
        key: name for key, name in names_after.items() if key != first
    }
    assert moved or names[first] != names_after[first]


def test_one_id_changes_no_name_of_another():
    assert to_names(np.array([1.0, 2.0, 3.5]), where="x", what="id") == ("1", "2", "3.5")
    assert to_names(np.array([1.0, 2.0, 3.0]), where="x", what="id") == ("1", "2", "3")


def test_a_record_of_another_type_is_refused_since_it_would_rename_all_others():
    records = [np.zeros(2, np.float32), np.zeros(2, np.int32)]
    with pytest.raises(InvalidInput, match="several shapes or types"):
        _from_dataset(records, "mine")
