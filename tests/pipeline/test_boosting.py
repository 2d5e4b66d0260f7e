"""LightGBM and XGBoost by class name: teachers on every engine, and students that are released."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pate
from pate.errors import InvalidInput
from pate.teachers.adapters import build
from pate.teachers.boosting import library_of
from pate.teachers.persist import load, restore, save
from pate.teachers.spec import ModelSpec, Training
from pate.testing import check_teacher, stored_as

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

LIGHTGBM = {
    "model": "lightgbm:LGBMClassifier",
    "params": {"n_estimators": 5, "min_child_samples": 2, "n_jobs": 2},
}
XGBOOST = {"model": "xgboost:XGBClassifier", "params": {"n_estimators": 5, "subsample": 0.7}}
FORMATS = {"lightgbm": (LIGHTGBM, "booster.txt"), "xgboost": (XGBOOST, "booster.json")}


def overlapping(project: Any) -> None:
    rng, y = np.random.default_rng(11), np.arange(150) % 3
    np.savez(project.folder / "tiny.npz", X=rng.normal(size=(150, 4)) + np.eye(4)[y], y=y)


@pytest.mark.parametrize(
    "model", [lightgbm.LGBMClassifier, xgboost.XGBClassifier, xgboost.XGBRFClassifier]
)
def test_boosters_keep_the_contract(model: Any) -> None:
    check_teacher(model, params={"n_estimators": 4})
    check_teacher(model, classes=2, features=3, records=33, seed=2**31 + 5)


@pytest.mark.parametrize("library", FORMATS)
def test_a_booster_is_kept_as_its_library_writes_it(library: str, tmp_path: Any) -> None:
    """And the same model gives the same bytes; labels may have gaps."""
    spec, name = FORMATS[library]
    model = getattr(sys.modules[library], spec["model"].partition(":")[2])
    rng, y = np.random.default_rng(0), np.resize([0, 4, 7], 60)
    X = rng.normal(size=(60, 5)) + y[:, None]
    X[::7, 2] = np.nan
    written = []
    for again in range(2):
        teacher = build(model, Training(params=spec["params"]), classes=9, seed=2**32 - 1)
        teacher.fit(X, y)
        save(teacher, tmp_path / str(again))
        written.append((tmp_path / str(again) / "own" / name).read_bytes())
        fresh = build(model, Training(params=spec["params"]), classes=9, seed=1)
        kept: Any = restore(fresh, tmp_path / str(again))
        assert set(np.unique(kept.predict(X))) == {0, 4, 7}
        np.testing.assert_array_equal(kept.predict_proba(X), teacher.predict_proba(X))
    assert written[0] == written[1]
    assert {each.suffix for each in tmp_path.rglob("*.*")} <= {".json", ".txt"}
    (tmp_path / "0" / "own" / name).write_bytes(b"damaged")
    with pytest.raises(pate.PateError, match="load raised"):
        restore(build(model, Training(), classes=9, seed=1), tmp_path / "0")


def scaled() -> Any:
    return make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(n_estimators=3))


def test_a_booster_inside_a_pipeline_is_fitted_again() -> None:
    made: Any = build(scaled, Training(), classes=3, seed=4)
    assert made.estimator[-1].get_params()["n_jobs"] == 1
    assert stored_as(lightgbm.LGBMClassifier) == "own"
    assert stored_as(scaled) == "refit"
    check_teacher(scaled)


@pytest.mark.campaign
def test_engines_give_the_same_votes_of_boosters(project: Any) -> None:
    overlapping(project)
    project.write(
        teachers={"count": 12, "model": None, "mix": [LIGHTGBM, XGBOOST, {"model": "ridge"}]}
    )
    found = []
    for engine, threads in (("serial", 1), ("processes:2", 2)):
        project.engine, project.threads = engine, threads
        run = project.folder / engine.partition(":")[0]
        project.run("--out", run, stage="vote")
        found.append([project.array("vote", f"{n}.npy", run) for n in ("predictions", "counts")])
    (labels, counts), (labels_again, counts_again) = found
    np.testing.assert_array_equal(labels, labels_again)
    np.testing.assert_array_equal(counts, counts_again)
    for first in range(3):
        assert (labels[first::3] != labels[first]).any()


@pytest.mark.parametrize("library", FORMATS)
@pytest.mark.campaign
def test_a_boosted_student_is_released_and_loads(project: Any, library: str) -> None:
    spec, name = FORMATS[library]
    project.write(student=spec)
    project.call_run()
    project.call("release", "runs/tiny", "out", "--plugin-path", "plugins")
    out = project.folder / "out"
    assert (out / "student" / "own" / name).is_file()
    why = json.loads((out / "student.json").read_text())["model"]["why"]
    assert library in why
    project.call("verify", "out", "--trust")
    with pytest.raises(InvalidInput, match="trust=True"):
        pate.load_student(out)
    X = np.load(project.folder / "tiny.npz")["X"]
    student: Any = load(project.path("distill"), ModelSpec(**spec), classes=3, seed=0)
    released = pate.load_student(out, trust=True)
    np.testing.assert_array_equal(released.predict(X), student.predict(X))
    assert released.predict_proba(X).shape == (len(X), 3)


def test_boosters_in_python(tmp_path: Any) -> None:
    rng, y = np.random.default_rng(0), np.arange(200) % 2
    X = rng.normal(size=(200, 3)) + 3 * y[:, None]
    for model in (lightgbm.LGBMClassifier(n_estimators=5), xgboost.XGBClassifier(n_estimators=5)):
        teachers = pate.train_teachers(model, X, y, teachers=4)
        counts = pate.vote(teachers, [[0.0, 0.0, 0.0], [3.0, 3.0, 3.0]]).counts
        np.testing.assert_array_equal(counts.argmax(axis=1), [0, 1])
        assert model.get_params()["n_jobs"] is None  # the caller's own object


def test_only_classifiers_are_taken_for_boosters() -> None:
    assert library_of(lightgbm.LGBMRegressor()) is None
    assert library_of(xgboost.XGBClassifier(objective=lambda y, p: (p, p))) is None


def test_a_library_that_is_absent_is_named_with_its_extra(project: Any) -> None:
    blocked = project.folder / "blocked"
    blocked.mkdir()
    (blocked / "lightgbm.py").write_text("raise ModuleNotFoundError('no', name='lightgbm')")
    code = (
        "import sys; sys.path.insert(0, 'blocked')\n"
        "from pate.plugins import resolve\n"
        "from pate.errors import InvalidInput\n"
        "try: resolve('lightgbm:LGBMClassifier')\n"
        "except InvalidInput as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'pate-privacy[boosting]'" in done.stdout


def test_boosters_are_loaded_only_where_they_are_named(project: Any) -> None:
    code = "import sys, pate, pate.cli, pate.teachers.adapters, pate.teachers.boosting\n"
    code += "print([n for n in ('lightgbm', 'xgboost', 'pandas') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=project.environment(), capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
