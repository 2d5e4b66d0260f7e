"""A table with text and gaps, from the file to a student that knows its columns."""

from __future__ import annotations

import contextlib
import csv
import json
import operator
from typing import Any

import numpy as np
import pytest
from harness import Project

import pate
from pate.errors import InvalidInput

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("plain_plots")

STEPS = ["one-hot", "impute", "standardise"]
LOGISTIC = {"model": "sklearn.linear_model:LogisticRegression", "inputs": "features"}
TREES = {
    "model": "sklearn.ensemble:HistGradientBoostingClassifier",
    "params": {"max_iter": 5, "min_samples_leaf": 5},
}


class Trainer(Project):
    program = "dpsgd"


CITIES = ("Basel", "Bern", "Genf", "Zug")


def patients(records: int, seed: int = 0) -> list[dict[str, str]]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(records):
        age, sex, city = int(rng.integers(18, 90)), "fm"[rng.integers(2)], CITIES[rng.integers(4)]
        ill = (age - 50) / 10 + 2 * (sex == "f") - 2 * (city == "Genf") > 0.5
        row = {"age": str(age), "sex": sex, "city": city, "weight": f"{rng.normal(70, 9):.1f}"}
        for name in ("age", "sex", "weight"):
            if rng.random() < 0.05:
                row[name] = ""
        rows.append(row | {"outcome": "ill" if ill else "well"})
    return rows


def write(file: Any, rows: list[dict[str, str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)


@pytest.fixture
def table(project: Any) -> Any:
    write(project.folder / "patients.csv", patients(400))
    project.sections["data"] |= {
        "source": "patients.csv", "label": "outcome", "public": 100, "test": 60
    }  # fmt: skip
    project.sections["aggregate"] |= {"scale": 0.5, "queries": 60}
    project.sections["teachers"]["model"] = "ridge"
    project.sections["encoder"] = {"steps": STEPS}
    project.sections["student"] = LOGISTIC
    return project


def test_a_released_student_knows_its_columns(table: Any) -> None:
    table.write()
    table.call_run()
    table.call("release", "runs/tiny", "out", "--column-names")
    student = pate.load_student(table.folder / "out")
    assert student.columns == ("age", "sex", "city", "weight")
    others = [*patients(60, seed=1), {"age": "", "sex": "", "city": "Rom", "weight": ""}]
    frame = pandas.DataFrame(others).drop(columns="outcome")
    frame = frame.astype({"age": object}).replace("", None)
    frame["age"], frame["weight"] = (pandas.to_numeric(frame[name]) for name in ("age", "weight"))
    found = student.predict(frame)
    assert set(found) == {"ill", "well"}
    np.testing.assert_array_equal(student.predict(frame[sorted(frame)[::-1]]), found)
    np.testing.assert_array_equal(student.predict(frame.to_numpy()), found)
    for library, convert in (("polars", "DataFrame"), ("datasets", "Dataset.from_pandas")):
        other = operator.attrgetter(convert)(pytest.importorskip(library))(frame)
        np.testing.assert_array_equal(student.predict(other), found)
    np.testing.assert_array_equal(np.array(["ill", "well"])[student.predict_labels(frame)], found)
    with contextlib.chdir(table.folder):
        own = pate.open_run(table.run_folder, data_root="data").student
    np.testing.assert_array_equal(own.predict(frame), found)
    np.testing.assert_allclose(own.predict_proba(frame), student.predict_proba(frame), atol=1e-4)
    for wrong, words in (
        (frame.drop(columns="sex"), "X has no column 'sex'"),
        (frame.assign(patient=3), "X has 'patient', which the student did not learn from"),
        (frame.assign(age="old"), "column 'age' of X holds text"),
        (frame.to_numpy()[:, 1:], r"the student takes \(n, 4\)"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            student.predict(wrong)
        assert "\n" not in str(caught.value)
    card = (table.folder / "out" / "MODEL_CARD.md").read_text()
    assert "3. city: category, Basel, Bern, Genf, Zug\n" in card
    assert "Values may be missing" in card


def test_names_are_published_only_if_the_owner_allows(table: Any) -> None:
    rows = [{f"secret-{name}": value for name, value in each.items()} for each in patients(400)]
    write(table.folder / "patients.csv", rows)
    table.write(data={"label": "secret-outcome", "categorical": ["secret-sex", "secret-city"]})
    table.call_run()
    table.call("release", "runs/tiny", "out")
    for file in (table.folder / "out").rglob("*"):
        assert not file.is_file() or b"secret-" not in file.read_bytes()
    card = (table.folder / "out" / "MODEL_CARD.md").read_text()
    assert "2. category, f, m\n" in card
    student = pate.load_student(table.folder / "out")
    X = pandas.DataFrame(patients(5, seed=2)).drop(columns="outcome")
    assert student.predict(X.to_numpy()).shape == (5,)
    with pytest.raises(InvalidInput, match="does not know the names of its columns"):
        student.predict(X)


@pytest.mark.campaign
def test_trees_take_missing_values_raw_and_keep_them_in_a_release(table: Any) -> None:
    table.write(
        encoder={"steps": ["ordinal"]}, teachers=TREES, student=TREES | {"inputs": "features"}
    )
    table.call_run()
    table.call("release", "runs/tiny", "out", "--column-names")
    header = json.loads((table.folder / "out" / "student.json").read_text())
    assert header["input"]["missing"] is True
    trust = header["model"]["kind"] == "code"  # skl2onnx does not take all trees with gaps
    student = pate.load_student(table.folder / "out", trust=trust)
    assert student.predict(pandas.DataFrame({n: [None] for n in student.columns})).shape == (1,)


REFUSED = {
    "no one-hot": ({"encoder": {"steps": ["impute"]}}, 'add the step "one-hot"'),
    "no encoder": ({"encoder": None}, "2 of 4 columns hold categories"),
    "scaled": (
        {"encoder": {"steps": ["standardise", "one-hot"]}},
        "would take codes of categories",
    ),
    "gaps": (
        {"encoder": {"steps": ["one-hot"]}},
        'the model ridge of [teachers] takes none; add the step "impute" to the encoder',
    ),
    "gaps for the student": (
        {"encoder": {"steps": ["one-hot"]}, "teachers": TREES},
        "the model sklearn.linear_model:LogisticRegression of [student] takes none",
    ),
    "a method that compares": (
        {
            "encoder": {"steps": ["one-hot"]},
            "teachers": TREES,
            "student": {"method": "self-training"},
        },
        "the student's method 'self-training' takes none",
    ),
    "a raw student": ({"student": {"inputs": "raw"}}, 'set inputs = "features" in [student]'),
    "a misspelt column": ({"data": {"categorical": ["siti"]}}, "no feature column 'siti'"),
    "a misspelt strategy": (
        {"encoder": {"steps": [{"name": "impute", "strategy": "mode"}]}},
        "encoder.steps.0.strategy",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_before_a_charge(table: Any, case: str) -> None:
    sections, words = REFUSED[case]
    table.write(**sections)
    failed = table.call_run(code=2)
    assert words in failed.stderr
    assert failed.stderr.strip().count("\n") == 0
    assert table.charges() == []


def test_gaps_in_private_records_alone_are_found(table: Any) -> None:
    """And a category that public records lack is unknown, not an error."""
    for role, records in (("private", 200), ("public", 60), ("test", 30)):
        rows = patients(records, seed=records)
        for row in rows:
            row |= {name: row[name] or "40" for name in ("age", "weight")} | {
                "sex": row["sex"] or "f"
            }
        if role == "private":
            rows[7] |= {"age": "", "city": "Xanten"}
        write(table.folder / f"{role}.csv", rows)
    paths = {f"{role}_path": f"{role}.csv" for role in ("private", "public", "test")}
    gone = dict.fromkeys(("source", "public", "test"))
    table.write(data=paths | gone, encoder={"steps": ["one-hot"]})
    failed = table.call_run(code=2)
    assert "records have missing values, and the model ridge of [teachers] takes none" in (
        failed.stderr
    )
    assert "Xanten" not in failed.stderr
    assert table.charges() == []
    table.write(data=paths | gone)
    done = table.call_run()
    assert "Xanten" not in done.stdout


@pytest.mark.campaign
def test_transformers_of_scikit_learn_leave_as_a_graph(table: Any) -> None:
    bins = {"name": "sklearn.preprocessing:KBinsDiscretizer",
            "params": {"n_bins": 4, "encode": "ordinal"}}  # fmt: skip
    table.write(encoder={"steps": ["one-hot", "impute", bins]}, data={"features": ["age", "sex"]})
    table.call_run()
    table.call("release", "runs/tiny", "out", "--column-names")
    header = json.loads((table.folder / "out" / "student.json").read_text())
    assert [each["name"] for each in header["encoder"]] == ["one-hot", "impute", "onnx"]
    table.call("verify", "out")
    frame = pandas.DataFrame({"sex": ["f", None], "age": [31.0, None]})
    assert pate.load_student(table.folder / "out").predict(frame).shape == (2,)


DPSGD = """\
kind = "dpsgd"
[data]
name = "patients"
source = "patients.csv"
label = "outcome"
accept_unprotected = true
public = 120
test = 60
[features]
steps = ["one-hot", "impute"]
[model]
hidden = [4]
[training]
epochs = 2
lot_size = 40
learning_rate = 0.5
[privacy]
epsilon = 6.0
delta = 1e-3
accountant = "moments"
"""


@pytest.mark.campaign
def test_models_of_dpsgd_read_tables_and_know_their_columns(tmp_path: Any) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "patients.csv", patients(400))
    recipe, trainer, project = tmp_path / "t.toml", Trainer(tmp_path), Project(tmp_path)
    for steps, words in (
        ("[]", "2 of 4 columns hold categories"),
        ('["one-hot"]', 'the model takes none; add the step "impute" to [features]'),
    ):
        recipe.write_text(DPSGD.replace('["one-hot", "impute"]', steps))
        failed = trainer.call("train", "t.toml", "--out", "run", code=2)
        assert words in failed.stderr
    assert not [*tmp_path.rglob("*.ledger")]
    recipe.write_text(DPSGD)
    trainer.call("train", "t.toml", "--out", "run")
    project.call("release", "run", "out", "--column-names")
    student = pate.load_student(tmp_path / "out")
    frame = pandas.DataFrame({"weight": [70.0, None], "age": [31.0, None], "city": ["Zug", "Rom"],
                              "sex": ["f", None]})  # fmt: skip
    found = student.predict(frame)
    assert set(found) <= {"ill", "well"}
    np.testing.assert_array_equal(student.predict(frame[list(student.columns or ())]), found)
    with pytest.raises(InvalidInput, match="X has no column 'sex'"):
        student.predict(frame.drop(columns="sex"))


def snapshot(folder: Any) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_finds_steps_that_do_not_fit_and_writes_nothing(table: Any) -> None:
    refusals = {
        ("standardise",): 'step "standardise" would take codes of categories for numbers',
        (): "2 of 4 columns hold categories",
        ("one-hot", "ordinal"): "step ordinal finds no column of categories",
        ("one-hot",): 'student.inputs is "raw", and columns hold categories',
    }
    for steps, refusal in refusals.items():
        student = LOGISTIC | ({"inputs": "raw"} if "raw" in refusal else {})
        table.write(encoder={"steps": list(steps)}, student=student)
        before = snapshot(table.folder)
        assert refusal in table.call_run("--dry-run", code=2).stderr
        assert snapshot(table.folder) == before
        assert refusal in table.call_run(code=2).stderr  # and so the run itself
        table.call_run("--dry-run", stage="partition")  # which would not get so far
    table.write()
    assert "ε" in table.call_run("--dry-run").stdout
    assert not table.charges()


@pytest.mark.parametrize("text", [True, False])
def test_the_recipe_to_start_from_runs_on_a_table_with_text(table: Any, text: bool) -> None:
    for number, name in enumerate(("private", "public", "test")):
        rows = patients(600 if name == "private" else 150, seed=number)
        left_out = set() if text else {"sex", "city"}
        write(
            table.folder / f"{name}.csv",
            [
                {"mark": f"{at}.{number}"}  # no row of one file is in another
                | {key: value for key, value in row.items() if key not in left_out}
                for at, row in enumerate(rows)
            ],
        )
    table.call("new", "start.toml", "--from", "tabular")
    recipe = table.folder / "start.toml"
    made = recipe.read_text().replace('["no", "yes"]', '["ill", "well"]')
    recipe.write_text(made.replace("count = 200", "count = 20").replace("40.0", "5.0"))
    words = ("run", "start.toml", "--set", "privacy.epsilon=8.0", "--engine", "serial")
    if not text:  # as the comment on the steps says
        assert "leave the step out" in table.call(*words, "--dry-run", code=2).stderr
        recipe.write_text(recipe.read_text().replace('steps = ["one-hot", ', "steps = ["))
    table.call(*words, "--dry-run")
    assert "student's accuracy" in table.call(*words, "--insecure-seed", "1").stdout
