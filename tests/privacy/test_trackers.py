"""Trackers are given public and released values alone: planted markers are searched for."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from harness import tiny_records

import pate
from pate.artifacts import Level, Store, StoreError
from pate.errors import InvalidInput
from pate.pipeline.callbacks import Metric

RECORDS = 157  # with 60 public and test records, 97 are private: nothing else comes to that
PRIVATE = RECORDS - 60
MARK = "SECRET-PATIENT"
EXAMPLE = Path(__file__).parents[2] / "examples" / "mlflow_tracking.py"


class Everything:
    """Keeps what it is given."""

    def __init__(self):
        self.stages, self.metrics = {}, {}

    def on_stage(self, name, state):
        assert not self.metrics
        self.stages[name] = state

    def on_metric(self, name, value):
        self.metrics[name] = value


@pytest.fixture
def run(project, monkeypatch):
    """Run the tiny recipe with trackers, on records that carry a marker."""
    features, labels = tiny_records(RECORDS)
    ids = np.array([f"{MARK}-{number}" for number in range(RECORDS)])
    np.savez(project.folder / "tiny.npz", X=features, y=labels, who=ids)
    project.write(data={"id": "who"})
    monkeypatch.chdir(project.folder)

    def call(*callbacks, **more):
        return pate.run(
            "tiny.toml", callbacks=callbacks, data_root="data", plugin_path="plugins",
            engine="serial", **more,
        )  # fmt: skip

    return call


def test_mlflow_holds_nothing_private(run, project):
    tracker = runpy.run_path(str(EXAMPLE))["MlflowTracker"]
    seen, store = Everything(), project.folder / "mlruns"
    with tracker(store.as_uri()) as mlflow:
        assert isinstance(mlflow, pate.Callback)
        made = run(mlflow, seen)
    guarantee = made.guarantee
    assert seen.metrics["epsilon"] == guarantee.epsilon
    assert seen.metrics["student_accuracy"] == made.evaluation.student.accuracy
    assert set(seen.metrics) <= {
        "teachers", "planned_queries", "planned_answers", "asked", "answered", "kept",
        "not_private", "epsilon", "delta", "student_accuracy", "labels_accuracy",
        "agreement_accuracy",
    }  # fmt: skip
    files = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    text = b"\n".join(files.values())
    assert repr(guarantee.epsilon).encode() in text  # the search finds what is there
    assert MARK.encode() not in text
    assert b"tiny.npz" not in text
    assert not re.search(rb"(?<![\w.])%d(\.0)?(?![\w.])" % PRIVATE, text)
    costs = project.json("account-private", "guarantees.json").values()
    dependent = {repr(each["epsilon"]) for each in costs} - {repr(guarantee.epsilon)}
    assert dependent
    assert not [each for each in dependent if each.encode() in text]
    # When a run began, and so how long it took, is not noted: MLflow's own times come after it.
    begun = min(int(each) for each in re.findall(rb"_time: (\d+)", text))
    last = max(path.stat().st_mtime for path in (project.run_folder / "released").rglob("*.json"))
    assert begun >= int(last * 1000) - 1


def test_until_and_seeds_are_told_apart(run):
    seen = Everything()
    run(seen, until="aggregate")
    assert seen.stages["aggregate"] == "done"
    assert seen.stages["account"] == "left out"
    assert "answered" in seen.metrics
    assert "epsilon" not in seen.metrics
    seeded = Everything()
    run(seeded, insecure_seed=1, out="runs/seeded")
    assert seeded.metrics["not_private"] == 1
    assert not {"epsilon", "delta"} & set(seeded.metrics)  # no ε holds


def test_a_run_that_fails_calls_nothing(run, project):
    project.plugin("centroids", "class Centroids:\n    def __init__(self, classes): 1 / 0\n")
    seen = Everything()
    with pytest.raises(pate.PateError):
        run(seen)
    assert not seen.stages


def test_calls_do_not_depend_on_whether_private_records_changed(run, project):
    """Released values may; which stages were run anew, and for how long, may not."""
    first, kept, drawn = Everything(), Everything(), Everything()
    run(first)
    run(kept, spend=True)
    assert (kept.stages, kept.metrics) == (first.stages, first.metrics)
    before = project.artifacts("vote")
    arrays = dict(np.load(project.folder / "tiny.npz"))
    features, labels = tiny_records(RECORDS + 1)  # one more record
    names = np.append(arrays["who"], f"{MARK}-{RECORDS}")
    np.savez(project.folder / "tiny.npz", X=features, y=labels, who=names)
    run(drawn, spend=True)
    assert project.artifacts("vote") > before  # the stages did run anew
    assert list(drawn.stages.items()) == list(kept.stages.items())
    assert list(drawn.metrics) == list(kept.metrics)


def test_what_is_no_tracker_is_refused_before_anything_is_paid_for(run, project):
    class Old(Everything):
        def on_stage(self, name, state, seconds):
            pass

    for wrong in (object(), Everything, Old(), None):
        with pytest.raises(InvalidInput, match=r"no pate\.Callback: give an object with on_stage"):
            run(Everything(), wrong)
    with pytest.raises(InvalidInput, match="callbacks is a Everything"):
        pate.run("tiny.toml", callbacks=Everything())
    assert not project.run_folder.exists()
    assert not project.charges()


def test_a_tracker_that_raises_does_not_undo_the_run(run, project):
    class Broken(Everything):
        def on_metric(self, name, value):
            raise ConnectionError(f"{MARK} of a server")

    seen = Everything()
    with pytest.raises(pate.PateError, match="tracker Broken raised ConnectionError") as raised:
        run(Broken(), seen)
    assert "test_trackers.py line" in str(raised.value)
    assert MARK not in str(raised.value)
    assert "pate.open_run('runs/tiny')" in str(raised.value)
    assert seen.metrics["epsilon"] == pate.open_run("runs/tiny").guarantee.epsilon


def test_a_private_value_is_no_metric(run, project):
    run()
    (votes,) = Store(root=project.run_folder).all("vote")
    assert votes.level is Level.PRIVATE
    with pytest.raises(StoreError, match="winners is PRIVATE; no tracker may be given it"):
        Metric.of(votes, "winners", 12)
    with pytest.raises(StoreError, match="is PRIVATE"):
        Metric("records", PRIVATE, Level.PRIVATE)
    with pytest.raises(InvalidInput, match="which is not a number"):
        Metric("epsilon", float("inf"), Level.RELEASED)
