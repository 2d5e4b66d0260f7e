"""Tables as objects: any library, encoders fitted on public inputs, messages without values."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import pate
from pate.datasets.columns import frame_cells
from pate.ensemble import Records, _ids
from pate.errors import InvalidInput
from pate.frames import as_frame, fit_frame_encoder, split_frame
from pate.record_votes import group_names

pd = pytest.importorskip("pandas")

STEPS = ["one-hot", "impute", "standardise"]


def people(count, seed, jobs=("clerk", "nurse", "smith")):
    """Records with text, gaps, a person and a label."""
    rng = np.random.default_rng(seed)
    job, age = rng.choice(np.array(jobs, dtype=object), count), rng.normal(40, 10, count)
    outcome = np.where((job == "nurse") | (age > 55), "ill", "well")
    job[rng.random(count) < 0.05] = None
    age[rng.random(count) < 0.05] = np.nan
    return pd.DataFrame(
        {"job": job, "age": age, "who": rng.integers(0, count, count), "outcome": outcome}
    )


PRIVATE = people(800, 0, ("clerk", "nurse", "smith", "SECRET"))
PUBLIC = people(200, 1)[["age", "job"]]  # in another order, without labels
TEST = people(200, 2)


def transformer():
    return make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["job"]),
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age"]),
    )


def classifier(**more):
    given = {"teachers": 25, "epsilon": 4.0, "classes": ["ill", "well"], "encoder": STEPS}
    return pate.PATEClassifier(**given | {"random_state": 0} | more)


def fit(clf, X=PRIVATE, public=PUBLIC, **more):
    return clf.fit(X, "outcome", public=public, groups="who", accept_overlap=True, **more)


def same(frame):
    return frame


def to_polars(frame):
    return pytest.importorskip("polars").from_pandas(frame)


def to_dataset(frame):
    return pytest.importorskip("datasets").Dataset.from_pandas(frame, preserve_index=False)


def to_arrow(frame):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame, preserve_index=False)


@pytest.mark.parametrize("library", [same, to_polars, to_dataset, to_arrow])
@pytest.mark.sample(2)
def test_tables_of_every_library_are_one(library):
    clf = fit(classifier(insecure_seed=0), library(PRIVATE), library(PUBLIC))
    own = fit(classifier(insecure_seed=0))
    assert (clf.labels_ == own.labels_).all()
    assert (clf.predict(library(TEST)) == own.predict(TEST)).all()
    assert clf.score(library(TEST), TEST["outcome"]) > 0.8
    assert list(clf.feature_names_in_) == ["job", "age"]
    assert clf.protects_ == (
        "all records of one user added or removed, or replaced under the same id"
    )
    ensemble = pate.train_teachers(
        "ridge",
        library(PRIVATE[["job", "age", "outcome"]]),
        "outcome",
        teachers=20,
        encoder=transformer().fit(PUBLIC[["job", "age"]]),
        random_state=0,
    )
    assert pate.vote(ensemble, library(PUBLIC)).counts.sum() == 20 * len(PUBLIC)


@pytest.mark.parametrize("votes", ["teachers", "records"])
@pytest.mark.parametrize("encoder", [STEPS, transformer()], ids=["steps", "transformer"])
def test_encoders_are_fitted_on_public_inputs_alone(encoder, votes):
    clf = fit(classifier(encoder=encoder, votes=votes), PRIVATE[:60])
    features = clf.encoder_.transform(PUBLIC[["job", "age"]])
    own = fit_frame_encoder(encoder, PUBLIC[["job", "age"]]).transform(PUBLIC[["job", "age"]])
    assert np.array_equal(features, own, equal_nan=True)
    assert features.shape == (len(PUBLIC), 5)  # three jobs, missing, age: no place for SECRET
    unknown = pd.DataFrame({"job": ["SECRET", "clerk"], "age": [40.0, 40.0]})
    codes = clf.encoder_.transform(unknown)
    assert len({tuple(row) for row in codes}) == 2
    assert clf.predict(unknown).shape == (2,)


def test_a_record_more_changes_the_features_of_no_other_shard(monkeypatch):
    seen = []

    def keep(model, given, classes, seeds):
        seen.append(given)
        return [None] * len(given)

    monkeypatch.setattr("pate.ensemble._train_group", keep)
    X, encoder = PRIVATE[["job", "age", "outcome"]], transformer().fit(PUBLIC[["job", "age"]])
    for rows in (X, X[:-1]):
        pate.train_teachers(
            "ridge",
            rows,
            "outcome",
            teachers=20,
            encoder=encoder,
            random_state=0,
            classes=["ill", "well"],
        )
    more, fewer = seen
    differ = [
        len(a[0]) != len(b[0]) or not np.array_equal(a[0], b[0], equal_nan=True)
        for a, b in zip(more, fewer, strict=True)
    ]
    assert sum(differ) == 1


def test_a_transformer_that_refuses_unknown_categories_is_refused_before_it_costs(tmp_path):
    for strict in (OneHotEncoder(), OrdinalEncoder()):
        encoder = make_column_transformer((strict, ["job"]), (SimpleImputer(), ["age"]))
        with pytest.raises(InvalidInput, match="handle_unknown='ignore'") as refusal:
            fit(classifier(encoder=encoder), ledger=tmp_path / "x.ledger")
        assert "SECRET" not in str(refusal.value)
    assert not (tmp_path / "x.ledger").exists()


class Centred(TransformerMixin, BaseEstimator):
    """Uses the other records of a batch, which no encoder may."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        ages = X[["age"]].to_numpy()
        return np.nan_to_num(ages - np.nanmean(ages))


class Telltale(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.seen_ = []
        return self

    def transform(self, X):
        if (X["job"] == "SECRET").any():
            raise ValueError(f"cannot encode {list(X['job'])}")
        self.seen_.append(len(X))
        return np.full((len(X), 1), float(len(self.seen_)))


def test_encoders_that_would_leak_are_refused_or_leave_nothing():
    with pytest.raises(InvalidInput, match="when others are present"):
        fit(classifier(encoder=Centred()))
    with pytest.raises(InvalidInput, match="encoder raised ValueError") as refusal:
        fit(classifier(encoder=Telltale()))
    assert "SECRET" not in str(refusal.value)
    encoder = fit_frame_encoder(Telltale(), PUBLIC)
    first, second = encoder.transform(PUBLIC[:3]), encoder.transform(PUBLIC[:3])
    assert (first == second).all()  # nothing is kept of the records before


def test_columns_that_differ_are_named_in_one_line():
    with pytest.raises(InvalidInput, match=r"^public lacks column 'who', which X has; .*alike$"):
        classifier().fit(PRIVATE, "outcome", public=PUBLIC)
    with pytest.raises(InvalidInput, match="public has column 'age', which X lacks"):
        fit(classifier(), PRIVATE.drop(columns="age"))
    with pytest.raises(InvalidInput, match="X has no column 'outcom'"):
        classifier().fit(PRIVATE, "outcom", public=PUBLIC)
    with pytest.raises(InvalidInput, match="X is no table with names"):
        classifier().fit(PRIVATE.to_numpy(), "outcome", public=PUBLIC)
    text = PRIVATE.assign(age=PRIVATE["age"].astype(object))
    text.loc[3, "age"] = "SECRET"
    with pytest.raises(InvalidInput, match="column 'age': a column holds numbers in") as refusal:
        fit(classifier(), text)
    assert "SECRET" not in str(refusal.value)
    clf = fit(classifier())
    with pytest.raises(InvalidInput, match="X lacks column 'age', which the table of fit has"):
        clf.predict(TEST[["job"]])


def test_gaps_that_no_model_takes_are_refused_before_it_costs(tmp_path):
    from sklearn.ensemble import HistGradientBoostingClassifier

    ledger = tmp_path / "x.ledger"
    with pytest.raises(InvalidInput, match="add 'impute' to encoder="):
        fit(classifier(encoder=["one-hot"]), ledger=ledger)
    trees = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2)
    with pytest.raises(InvalidInput, match="a self-training student takes none"):
        fit(classifier(encoder=["one-hot"], teacher=trees), ledger=ledger)
    assert not ledger.exists()
    given = classifier(encoder=["ordinal"], teacher=trees, student=trees, teachers=20)
    assert fit(given).predict(TEST).shape == (200,)
    with pytest.raises(InvalidInput, match="encoder: "):
        fit(classifier(encoder=["one-hott"]))
    with pytest.raises(InvalidInput, match="give steps such as"):
        fit(classifier(encoder=7))


def test_arrays_with_gaps_and_text_go_through_steps_too():
    X, U, y = PRIVATE[["job", "age"]], PUBLIC[["job", "age"]], PRIVATE["outcome"]
    clf = classifier().fit(X.to_numpy(), y, public=U.to_numpy(), accept_overlap=True)
    assert (clf.predict(TEST[["job", "age"]].to_numpy()) == TEST["outcome"]).mean() > 0.8


def test_a_dataset_of_images_is_an_array():
    datasets, image = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, size=(4, 5, 6), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image()})
    table = datasets.Dataset.from_dict({"image": list(map(image.fromarray, pixels))}, features)
    assert np.allclose(as_frame(table), pixels / 255)


def pictures(count, seed=0, label=True, **columns):
    """Pictures as a ``datasets.Dataset``: those of the class "yes" are bright."""
    datasets, image = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    pixels = (rng.random((count, 5, 5)) * 100 + y[:, None, None] * 120).astype(np.uint8)
    columns |= {"image": list(map(image.fromarray, pixels))}
    kinds = {"image": datasets.Image()}
    if label:
        columns |= {"label": y.tolist()}
        kinds |= {"label": datasets.ClassLabel(names=["no", "yes"])}
    if "who" in columns:
        kinds |= {"who": datasets.Value("int64")}
    return datasets.Dataset.from_dict(columns, datasets.Features(kinds)), y


@pytest.mark.parametrize("classes", [[0, 1], ["no", "yes"]], ids=["numbers", "names"])
def test_pictures_with_labels_and_people_in_other_columns(classes):
    private, _ = pictures(300, who=list(range(100)) * 3)
    test, labels = pictures(60, seed=1)
    clf = pate.PATEClassifier(teachers=20, epsilon=8.0, classes=classes, random_state=0)
    clf.fit(private, "label", public=test, groups="who")  # the labels of public are not used
    truth = np.array(classes)[labels]
    for each in (test, test.remove_columns("label")):
        assert (clf.predict(each) == truth).mean() > 0.9
    ensemble = pate.train_teachers("ridge", private, "label", groups="who", teachers=5)
    assert pate.vote(ensemble, test.remove_columns("label")).counts.sum() == 5 * 60
    with pytest.raises(InvalidInput, match=r"'image' of X .* where no other column is left"):
        as_frame(test)


def test_a_column_of_lists_is_an_array_beside_labels():
    datasets = pytest.importorskip("datasets")
    X = np.arange(12.0).reshape(4, 3)
    table = datasets.Dataset.from_dict({"x": X.tolist(), "label": [0, 1, 0, 1]})
    for each in (table, table.with_format("torch")):
        rest, labels, _ = split_frame(each, "label")
        assert np.array_equal(rest, X)
        assert labels.tolist() == [0, 1, 0, 1]
    uneven = datasets.Dataset.from_dict({"x": [[1.0], [2.0, 4321.5]], "label": [0, 1]})
    with pytest.raises(InvalidInput, match="column 'x' of X has arrays of several shapes") as error:
        split_frame(uneven, "label")
    assert "4321" not in str(error.value)


def test_a_label_without_a_name_is_no_other_label():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(a=datasets.Value("float64"), y=datasets.ClassLabel(names=["n"]))
    for odd in (-1, None):
        table = datasets.Dataset.from_dict({"a": [1.0, 2.0], "y": [0, odd]}, features)
        with pytest.raises(InvalidInput, match="'y' has a label without a name"):
            split_frame(table, "y", classes=["n"])


def test_a_lazy_table_is_read_and_several_tables_are_refused():
    datasets, polars = pytest.importorskip("datasets"), pytest.importorskip("polars")
    lazy = polars.LazyFrame({"a": [1.0, 2.0], "y": [0, 1]})
    rest, labels, _ = split_frame(lazy, "y")
    assert rest["a"].tolist() == [1.0, 2.0]
    assert labels.tolist() == [0.0, 1.0]
    one = datasets.Dataset.from_dict({"a": [1.0]})
    splits = datasets.DatasetDict(train=one, test=one)
    with pytest.raises(InvalidInput, match=r"DatasetDict of train, test; .* such as X\['train'\]"):
        as_frame(splits)
    with pytest.raises(InvalidInput, match="IterableDataset, which is streamed"):
        as_frame(one.to_iterable_dataset())


def test_dates_are_refused_by_the_name_of_their_column():
    with pytest.raises(InvalidInput, match="column 'born' of X holds values that are neither"):
        as_frame(pd.DataFrame({"born": pd.to_datetime(["2020-01-01"]), "age": [1.0]}))


def test_whole_numbers_with_gaps_are_numbers():
    frame = as_frame(pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [None, 2]}))
    assert [kind.kind for kind in frame.dtypes] == ["f", "f"]


@pytest.mark.parametrize("library", [to_polars, to_dataset, to_arrow])
def test_code_of_a_recipe_may_return_tables_of_every_library(library, tmp_path, monkeypatch):
    from pate.datasets.own import read_entry

    (tmp_path / "tables_here.py").write_text("pools = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import tables_here

    labels = PRIVATE["outcome"].to_numpy()
    tables_here.mine = lambda: (library(PRIVATE[["job", "age"]]), labels)
    tables_here.theirs = lambda: (PRIVATE[["job", "age"]], labels)
    (mine,), (theirs,) = (
        read_entry(f"tables_here:{name}", plugin_path=None) for name in ("mine", "theirs")
    )
    assert mine.columns == theirs.columns == ("job", "age")
    for a, b in zip(mine.cells, theirs.cells, strict=True):
        assert np.array_equal(a.numbers, b.numbers, equal_nan=True)
        assert a.texts == b.texts


class Columns:
    """A table of columns without a type, such as lists."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name):
        return self.columns[name]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pd.DataFrame({"a": [1, 2]}, dtype=object), pd.DataFrame({"a": [1, "x"]}, dtype=object)),
        (Columns(a=[1, 2]), Columns(a=[1, "x"])),
        ([[1, 2], [3, 4]], [[1, 2], [3, "x"]]),
        ([[1, "a"], [2, "b"]], [[1, "a"], [None, "b"]]),
        ([[True, "a"], [True, "b"]], [[True, "a"], [None, "b"]]),
    ],
)
def test_no_record_renames_or_retypes_another(one, other):
    """A name decides the shard: one record must not move others between teachers."""
    labels = np.zeros(2, dtype=np.int64)
    first, second = (Records.of(as_frame(each)) for each in (one, other))
    assert _ids(first.array, labels)[0] == _ids(second.array, labels)[0]
    assert first.array[0].tolist() == second.array[0].tolist()
    if isinstance(one, pd.DataFrame):
        assert list(first.template.dtypes) == list(second.template.dtypes)


def test_text_is_objects_whatever_the_values():
    texts, mixed = ["a", "b"], ["a", 1]
    for values in (texts, mixed):
        frame = as_frame(pd.DataFrame({"a": np.array(values, dtype=object)}))
        assert frame.dtypes.tolist() == [np.dtype(object)]


def test_a_gap_in_a_dictionary_of_pyarrow_is_no_other_records_value():
    pa = pytest.importorskip("pyarrow")
    columns = {"job": pa.array([None, "nurse"]), "age": pa.array([None, 41])}
    table = pa.table({name: each.dictionary_encode() for name, each in columns.items()})
    frame = as_frame(table)
    assert frame.isna().to_numpy().tolist() == [[True, True], [False, False]]
    cells = frame_cells(table, where="X")
    assert cells["job"].places.tolist() == [-1, 0]
    assert np.isnan(cells["age"].numbers[0])


def test_an_image_of_another_depth_scales_no_other():
    image = pytest.importorskip("PIL.Image").fromarray
    usual, deep = image(np.full((2, 2), 51, np.uint8)), image(np.full((2, 2), 300, np.int32))
    alone, beside = (as_frame(Columns(image=[usual, each])) for each in (usual, deep))
    assert alone[0, 0, 0] == beside[0, 0, 0] == 0.2


@pytest.mark.parametrize("library", [same, to_polars, to_dataset, to_arrow])
def test_long_numbers_of_people_stay_apart(library):
    table = library(pd.DataFrame({"who": [2**60, 2**60 + 1], "age": [30.0, 40.0]}))
    _, _, who = split_frame(table, None, "who")
    assert group_names(who, 2) == [str(2**60), str(2**60 + 1)]


def test_text_in_an_array_of_objects_is_not_quoted():
    X = np.array([[1.0, "SECRET"]] * 20, dtype=object)
    with pytest.raises(InvalidInput) as caught:
        classifier(encoder=None).fit(X, ["ill", "well"] * 10, public=np.zeros((20, 2)))
    assert "SECRET" not in f"{caught.value}{caught.value.__context__}"
