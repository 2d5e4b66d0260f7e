"""Mechanisms, data and teachers of many kinds, each from a recipe to a student."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "custom_teacher"


def released(project: Any) -> dict[str, Any]:
    return project.json("aggregate", "manifest.json")["facts"]


def right_votes(project: Any, run: Path | None = None) -> float:
    """How often most teachers are right: without noise, so the same in every run."""
    truth = project.array("data-answers", "labels.npy", run)
    return float((project.array("vote", "counts.npy", run).argmax(axis=1) == truth).mean())


# --- mechanisms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregate", "remedy"),
    [
        ({"mechanism": "gnmax", "sigma": 0.1}, "lower the noise"),
        ({"mechanism": "confident", "threshold": 1.0, "sigma1": 0.1, "sigma2": 0.1},
         "lower the threshold"),
    ],
    ids=["gnmax", "confident"],
)  # fmt: skip
def test_too_few_classes_advise_what_the_mechanism_has(
    project: Any, aggregate: dict[str, Any], remedy: str
) -> None:
    project.write(aggregate={"scale": None, **aggregate, "queries": 1})
    refused = project.call_run("--insecure-seed", "1", code=2).stderr
    few = "1 released labels of 1 class are too few for a student"
    assert f"{few}; allow more queries, or {remedy}" in refused


@pytest.mark.parametrize(
    ("aggregate", "events"),
    [
        ({"mechanism": "lnmax", "scale": 2.0}, {"lnmax_answer"}),
        ({"mechanism": "gnmax", "sigma": 2.0, "scale": None}, {"gnmax_answer"}),
        (
            {"mechanism": "confident", "threshold": 4.0, "sigma1": 2.0, "sigma2": 1.0},
            {"gnmax_answer", "threshold_check"},
        ),
        (
            {"mechanism": "interactive", "threshold": 4.0, "sigma1": 2.0, "sigma2": 1.0}
            | {"rounds": 2, "keep": 0.5, "queries": 24},
            {"gnmax_answer", "threshold_check"},
        ),
    ],
    ids=["lnmax", "gnmax", "confident", "interactive"],
)
def test_every_mechanism_runs_to_a_student(
    project: Any, aggregate: dict[str, Any], events: set[str]
) -> None:
    project.write(aggregate={"scale": None, **aggregate})
    told = project.call_run("--insecure-seed", "1", "--details").stdout
    facts, plan = released(project), project.json("aggregate", "plan.json")
    assert len(plan["events"]) == len(events)
    assert 1 <= facts["answered"] <= plan["answers"]
    assert facts["asked"] <= plan["queries"]
    labels = project.array("aggregate", "labels.npy")
    assert len(labels) == facts["answered"]
    assert set(labels) <= {0, 1, 2}
    costs = project.json("account", "guarantees.json")
    assert costs["odometer"]["improved"]["epsilon"] <= costs["guarantee"]["epsilon"] + 1e-9
    assert "Publish: no ε, because the noise was seeded" in told
    reading = facts["answered"] < plan["answers"]
    assert ("│ what was answered " in told) == reading
    if aggregate["mechanism"] == "interactive":
        kept = project.array("aggregate", "kept.npy")
        assert len(kept) == facts["kept"]
        assert (kept >= 12).all()  # there is no student in the first round
        assert not set(kept) & set(project.array("aggregate", "answered.npy"))
        assert facts["kept"] > 0
    else:
        assert facts["kept"] == 0
    assert "nothing to do" in project.call_run("--insecure-seed", "1").stdout


def test_an_interactive_release_depends_on_its_student(project: Any) -> None:
    """The student takes part in the rounds, so another one is another release."""
    interactive = {"mechanism": "interactive", "threshold": 4.0, "sigma1": 2.0, "sigma2": 1.0}
    project.write(aggregate={"scale": None, **interactive})
    project.call_run()
    before = len(project.charges())
    refused = project.call_run("--set", "student.params.shrink=0.1", code=3)
    assert "--spend" in refused.stderr
    assert len(project.charges()) == before


# --- data ---------------------------------------------------------------------------------------


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    labels = np.arange(150) % 3
    features = rng.normal(size=(150, 2))
    features[np.arange(150), labels % 2] += 6.0 * (1 + labels // 2)
    return features, labels


def test_csv_with_id_label_and_user_columns(project: Any) -> None:
    features, labels = records()
    with (project.folder / "people.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["name", "visit", "height", "note", "weight", "kind"])
        for i, (row, label) in enumerate(zip(features, labels, strict=True)):
            kind = ["red", "green", "blue"][label]
            out.writerow([f"user-{i // 3}", f"visit-{i}", row[0], "x", row[1], kind])
    project.sections["data"] = {
        "name": "people",
        "source": "people.csv",
        "accept_unprotected": True,
        "public": 30,
        "test": 30,
        "id": "visit",
        "label": "kind",
        "group": "name",
        "features": ["height", "weight"],
    }
    project.write()
    told = project.call_run().stdout
    assert "all records of one user" in told
    ids, groups = project.json("data", "ids.json"), project.json("data", "groups.json")
    assert all(name.startswith("visit-") for name in ids)
    assert project.array("data", "features.npy").shape == (90, 2)
    assert project.json("data-test", "class_names.json") == ["blue", "green", "red"]
    # Every user is with one teacher: each shard, found again by its records, has users of its own.
    rows = {row.tobytes(): user for row, user in zip(
        project.array("data", "features.npy"), groups, strict=True)}  # fmt: skip
    sorted_rows = project.array("partition", "features.npy")
    offsets = project.array("partition", "offsets.npy")
    users = [
        {rows[row.tobytes()] for row in sorted_rows[start:stop]}
        for start, stop in itertools.pairwise(offsets)
    ]
    assert sum(map(len, users)) == len(set().union(*users)) == len(set(groups))
    public = "".join(p.read_text() for p in (project.run_folder / "public").rglob("*.json"))
    assert "user-" not in public
    assert "visit-" not in public


def test_grouping_without_a_group_column_is_one_sentence(project: Any) -> None:
    project.write(partition={"by": "group"})
    refused = project.call_run(code=2)
    assert "has no group column" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_data_from_the_users_own_code(project: Any) -> None:
    project.plugin(
        "hospital",
        "import numpy as np\n"
        "def load():\n"
        "    y = np.arange(150) % 3\n"
        "    X = np.random.default_rng(3).normal(size=(150, 3))\n"
        "    X[np.arange(150), y] += 8\n"
        "    return {'X': X, 'y': y, 'ids': [f'p{i}' for i in range(150)]}\n",
    )
    project.write(data={"name": "hospital", "source": "hospital:load"})
    project.run()
    assert all(name.startswith("p") for name in project.json("data", "ids.json"))
    assert (project.folder / "data" / "ledgers" / "hospital.ledger").is_file()
    assert project.json("evaluate", "evaluation.json")["student"]["records"] == 30


def test_three_files(project: Any) -> None:
    features, labels = records()
    np.savez(project.folder / "a.npz", X=features[:90], y=labels[:90])
    np.save(project.folder / "b.npy", features[90:120])
    np.savez(project.folder / "c.npz", X=features[120:], y=labels[120:])
    project.sections["data"] = {
        "name": "three",
        "private_path": "a.npz",
        "public_path": "b.npy",
        "test_path": "c.npz",
    }
    project.write()
    told = project.call_run().stdout
    assert "labels that are right" not in told  # nobody knows the labels of public inputs
    np.testing.assert_array_equal(project.array("data-public", "features.npy"), features[90:120])
    np.testing.assert_array_equal(project.array("data", "features.npy"), features[:90])
    assert project.json("evaluate", "evaluation.json")["labels"] is None


def test_a_shuffled_split_says_replaced_only(project: Any) -> None:
    told = project.call_run("--set", "partition.method=shuffle").stdout
    assert "one record replaced" in told
    assert "added" not in told
    sizes = np.diff(project.array("partition", "offsets.npy"))
    assert sizes.max() - sizes.min() <= 1


# --- teachers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "teachers",
    [
        {"model": "boosting:Boosting", "params": {"trees": 2, "depth": 1}},
        {"model": "network:Network", "epochs": 12, "params": {"hidden": 8}},
    ],
    ids=["boosting", "network"],
)
def test_the_examples_run(project: Any, teachers: dict[str, Any]) -> None:
    for file in EXAMPLES.glob("*.py"):
        assert len(file.read_text().splitlines()) < 40
        shutil.copy(file, project.folder / "plugins")
    project.write(teachers={"count": 3, **teachers}, student={"model": teachers["model"]})
    project.call_run()
    assert right_votes(project) > 0.6


def test_the_shipped_mix_of_models(project: Any) -> None:
    words = ("--set", "teachers.count=3", "--set", "data.private=0.6", "--set", "data.public=60")
    few = ("--set", "aggregate.queries=20", "--set", "student.params.n_estimators=10")
    project.call("run", "tabular-teachers", "--engine", "serial", *words, *few)
    run = project.folder / "runs" / "tabular-teachers"
    kinds = [
        json.loads((run / "private" / "teacher" / name / "teacher.json").read_text())["format"]
        for name in project.artifacts("teacher", run)
    ]
    assert len(kinds) == 3
    assert set(kinds) <= {"skops", "constant"}
    assert right_votes(project, run) > 0.6


FLAKY = '''
import os
import numpy as np
from centroids import Centroids


class Flaky(Centroids):
    """Fails on the shards that hold a record named in the file beside; how is a parameter."""

    def __init__(self, classes, how="raise", when="fit", seed=0):
        super().__init__(classes)
        self.how, self.when, self.bad = how, when, False

    def fail(self):
        if self.how == "die":
            os._exit(9)
        if self.how == "once" and os.path.exists("once"):
            return
        open("once", "a").close()
        raise ValueError(f"could not use the record {self.centres[0]}")

    def fit(self, X, y):
        super().fit(X, y)
        self.bad = bool((X[:, 0] == np.load("bad.npy")[:, None]).any())
        if self.bad and self.when == "fit":
            print("the private record is", X[0])
            self.fail()

    def predict(self, X):
        if self.bad and self.when == "predict":
            self.fail()
        return super().predict(X)
'''


def flaky(project: Any, **params: str) -> set[int]:
    """Sets the recipe up so that two of six teachers fail; returns which."""
    project.call_run(stage="partition")
    features = project.array("partition", "features.npy")
    offsets = project.array("partition", "offsets.npy")
    np.save(project.folder / "bad.npy", features[offsets[[1, 4]], 0])
    project.plugin("flaky", FLAKY)
    project.write(teachers={"model": "flaky:Flaky", "params": params})
    return {1, 4}


@pytest.mark.parametrize("when", ["fit", "predict"])
def test_on_error_fail_says_which_teacher_and_where_and_no_record(project: Any, when: str) -> None:
    flaky(project, when=when)
    failed = project.call_run(code=2)
    assert failed.stderr.startswith("pate: teacher 1 ")
    assert f"{when} raised ValueError in plugins/flaky.py line " in failed.stderr
    assert "record" not in failed.stdout + failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not project.artifacts("vote")
    assert project.charges() == []


@pytest.mark.parametrize(
    ("how", "when", "engine"),
    [
        ("raise", "fit", "serial"),
        ("raise", "predict", "serial"),
        ("die", "fit", "processes:2"),
        pytest.param("die", "predict", "processes:2", marks=pytest.mark.campaign),
    ],
)
@pytest.mark.sample(1)
def test_on_error_abstain_goes_on_without_them(
    project: Any, how: str, when: str, engine: str
) -> None:
    bad = flaky(project, how=how, when=when)
    project.engine = engine
    told = project.call_run("--set", "teachers.on_error=abstain").stdout
    predictions = project.array("vote", "predictions.npy")
    assert {n for n in range(6) if (predictions[n] == -1).all()} == bad
    assert (predictions[[0, 2, 3, 5]] >= 0).all()
    np.testing.assert_array_equal(project.array("vote", "counts.npy").sum(axis=1), np.full(30, 4))
    stage = "teach" if when == "fit" else "vote"
    assert f"{stage}: which teachers abstain, if any" in told
    assert set(project.json(f"{stage}-failures", "failed.json")) == {"1", "4"}
    assert project.path(f"{stage}-failures").parts[-3] == "private"
    assert "the private record" not in told


COUNTS = '''
class Counts:
    """Once it is loaded, adds how often it was called; its files say nothing of that."""

    def transform(self, X):
        if not hasattr(self, "calls"):
            return X
        self.calls += 1
        return X + (self.calls - 1) + SHIFT

    def save(self, folder):
        (folder / "nothing.txt").write_text("nothing")

    def load(self, folder):
        self.calls = 0
'''


def test_a_step_of_ones_own_is_new_for_every_shard(project: Any) -> None:
    project.write(encoder={"steps": ["counts:Counts"]})
    project.plugin("counts", f"SHIFT = 0\n{COUNTS}")
    project.call_run(stage="encode")
    records = project.array("partition", "features.npy").astype(np.float32)
    np.testing.assert_array_equal(project.array("encode", "features.npy"), records)
    project.plugin("counts", f"SHIFT = 5.0\n{COUNTS}")  # what is fitted stays the same
    project.run(stage="encode")
    found = [np.load(file) for file in project.run_folder.glob("*/encode/*/features.npy")]
    assert sorted(float((features - records).mean().round(3)) for features in found) == [0, 5]


PLACED = '''
import os
import numpy as np


class Placed:
    """Rounds, so to speak, by how many places its group has; some shards end the worker."""

    def __init__(self, when="never"):
        self.when, self.places, self.bad = when, 0, False

    def family(self):
        return self.when

    @classmethod
    def fit_many(cls, teachers, shards):
        for teacher, shard in zip(teachers, shards, strict=True):
            if teacher is not None:
                teacher.places = len(teachers)
                teacher.bad = bool((shard[0][:, 0] == np.load("bad.npy")[:, None]).any())
                if teacher.bad and teacher.when == "fit":
                    os._exit(9)
        return [None] * len(teachers)

    @classmethod
    def predict_many(cls, teachers, X):
        if any(t is not None and t.bad and t.when == "predict" for t in teachers):
            os._exit(9)
        return [[0 if t is None else (t.places + len(teachers)) % 3] * len(X) for t in teachers]

    def fit(self, X, y):
        self.fit_many([self], [(X, y)])

    def predict(self, X):
        return np.array(self.predict_many([self], X)[0])
'''


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["fit", "predict"])
def test_a_worker_that_is_lost_changes_no_vote_of_the_others(project: Any, when: str) -> None:
    project.write(teachers={"count": 16})  # two in a group
    project.call_run(stage="partition")
    features = project.array("partition", "features.npy")
    first = project.array("partition", "offsets.npy")[[1, 6]]
    np.save(project.folder / "bad.npy", features[first, 0])
    project.plugin("placed", PLACED)
    project.engine = "processes:2"
    model = {"model": "placed:Placed", "params": {"when": when}}
    project.write(teachers={"count": 16, "on_error": "abstain", **model})
    project.call_run(stage="vote")
    predictions = project.array("vote", "predictions.npy")
    assert {n for n in range(16) if (predictions[n] == -1).all()} == {1, 6}
    assert (np.delete(predictions, [1, 6], axis=0) == (2 + 2) % 3).all()
    assert (project.array("vote", "counts.npy") == [0, 14, 0]).all()


def test_on_error_retry_tries_again_and_then_fails(project: Any) -> None:
    flaky(project, how="once")
    project.write(teachers={"model": "flaky:Flaky", "params": {"how": "once"}})
    failed = project.call_run(code=2)
    assert "teacher 1 failed" in failed.stderr
    (project.folder / "once").unlink()
    done = project.call_run("--set", "teachers.on_error=retry", "--set", "teachers.retries=2")
    assert "abstain" not in done.stdout
    assert (project.folder / "once").exists()
    assert len(project.artifacts("teacher")) == 6
    np.testing.assert_array_equal(project.array("vote", "counts.npy").sum(axis=1), np.full(30, 6))

    project.write(teachers={"model": "flaky:Flaky", "params": {"how": "raise"}})
    failed = project.call_run("--set", "teachers.on_error=retry", code=2)
    assert "teacher 1 failed" in failed.stderr


def test_a_model_that_cannot_be_made_is_nobodys_abstention(project: Any) -> None:
    project.write(teachers={"params": {"shrnk": 1}, "on_error": "abstain"})
    failed = project.call_run(code=2)
    assert "Centroids cannot be made with params" in failed.stderr
    assert "shrnk" in failed.stderr
    assert project.charges() == []


def test_an_ensemble_that_abstains_as_a_whole_is_not_asked(project: Any) -> None:
    flaky(project)
    features = project.array("data", "features.npy")
    np.save(project.folder / "bad.npy", features[:, 0])
    failed = project.call_run("--set", "teachers.on_error=abstain", code=2)
    assert "every teacher failed" in failed.stderr
    assert project.charges() == []


def test_a_damaged_or_lost_teacher_does_not_vote(project: Any) -> None:
    project.call_run(stage="teach")
    victim = sorted((project.run_folder / "private" / "teacher").iterdir())[0]
    arrays = victim / "arrays.npz"
    content = arrays.read_bytes()
    arrays.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for on_error in ("fail", "abstain"):
        told = project.call_run(
            "--set", f"teachers.on_error={on_error}", stage="vote", code=2
        ).stderr
        assert "arrays.npz was damaged or changed" in told
    shutil.rmtree(victim)
    told = project.call_run(stage="vote", code=2).stderr
    assert "private/teach/" in told
    shutil.rmtree(project.run_folder / "private" / "teach")
    project.call_run(stage="vote")  # as advised: the one that is gone is trained again
    assert len(project.artifacts("teacher")) == 6
