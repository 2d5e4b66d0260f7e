"""``pate plan``: from public figures to a recipe that runs, without a look at the private data."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.accounting import (
    GaussianNoisyMaxAnswer,
    GumbelNoisyMaxAnswer,
    LaplaceNoisyMaxAnswer,
    Repeated,
    ThresholdCheck,
    guarantee_of_plan,
)

SIMULATED = ("--accuracy", "0.9", "--records", "90", "--classes", "3")
SURROGATE = ("--surrogate", "digits", "--records", "90", "--teachers", "10,20")


def epsilon_of(row: dict[str, Any], delta: float) -> float:
    """The data-independent ε of a row of the table, from its own figures alone."""
    if row["mechanism"] == "lnmax":
        events = [Repeated(LaplaceNoisyMaxAnswer(scale=row["scale"]), row["queries"])]
    elif row["mechanism"] == "gumbel":
        events = [Repeated(GumbelNoisyMaxAnswer(scale=row["scale"]), row["queries"])]
    elif row["mechanism"] == "gnmax":
        events = [Repeated(GaussianNoisyMaxAnswer(sigma=row["sigma"]), row["queries"])]
    else:
        events = [
            Repeated(ThresholdCheck(sigma=row["sigma1"]), row["queries"]),
            Repeated(GaussianNoisyMaxAnswer(sigma=row["sigma2"]), row["answers"]),
        ]
    return guarantee_of_plan(events, delta=delta, adaptive=False).epsilon


@pytest.mark.parametrize("mechanism", ["gnmax", "confident", "lnmax"])
@pytest.mark.sample(1)
def test_the_plan_runs_and_keeps_its_promise(project: Any, mechanism: str) -> None:
    told = project.call(
        "plan", "tiny.toml", "--epsilon", "20", *SIMULATED, "--teachers", "6,9",
        "--mechanism", mechanism, "--out", "planned.toml", "--plot", "trade.png",
    )  # fmt: skip
    assert "wrote planned.toml; next: pate run planned.toml" in told.stdout
    assert "Taken as public: 90 private records of tiny, 30 public inputs" in told.stdout
    assert "simulated" in told.stdout
    assert "How record votes would do cannot be simulated" in told.stdout
    assert "no ε accounts for that" in told.stdout
    assert (project.folder / "trade.png").read_bytes().startswith(b"\x89PNG")
    text = (project.folder / "planned.toml").read_text()
    assert text.startswith("# tiny at ε = 20, δ = 0.001, as `pate plan` proposed it:")
    assert "pate plan tiny.toml --epsilon 20 --accuracy 0.9" in text

    project.call_run(recipe="planned")
    run = project.folder / "runs" / "planned"
    costs = project.json("account", "guarantees.json", run)
    plan = project.json("aggregate", "plan.json", run)
    recipe = json.loads((run / "recipe.json").read_text())
    row = recipe["aggregate"] | {"answers": plan["answers"]}
    assert 0.95 * 20 < epsilon_of(row, 1e-3) <= 20
    assert costs["guarantee"]["epsilon"] == pytest.approx(epsilon_of(row, 1e-3))
    assert recipe["aggregate"]["mechanism"] == mechanism
    assert plan["queries"] == recipe["aggregate"]["queries"]


@pytest.mark.campaign
def test_every_epsilon_of_the_table_is_the_accountants(project: Any) -> None:
    words = ("plan", "tiny.toml", "--epsilon", "8", "--delta", "1e-4", *SIMULATED, "--json")
    report = json.loads(project.call(*words).stdout)
    rows = report["over_teachers"] + report["over_mechanisms"]
    assert len(rows) >= 4
    for row in rows:
        assert row["data_independent"]["epsilon"] == epsilon_of(row, 1e-4)
        assert row["data_independent"]["neighbours"] == "add-remove"  # as `pate run` states it
        assert 7.9 < epsilon_of(row, 1e-4) <= 8
        assert row["predicted_data_dependent"] <= 8.0001
        assert row["predicted_plurality_accuracy"] >= row["predicted_teacher_accuracy"]
    assert report["proposal"] in report["over_teachers"]
    assert report["facts"] == {"private_records": 90, "public_inputs": 30, "classes": 3}
    assert len(report["trade"]) >= 2


def test_planning_opens_nothing_private(project: Any) -> None:
    """The data are gone and no ledger can be made: planning works all the same."""
    (project.folder / "tiny.npz").unlink()
    (project.folder / "data" / "ledgers").write_text("not a folder")
    project.write(teachers={"model": "sklearn.neighbors:NearestCentroid"})
    for words in ((*SIMULATED, "--teachers", "6,9"), SURROGATE):
        told = project.call("plan", "tiny.toml", "--epsilon", "9", *words)
        assert "No file of tiny was opened." in told.stdout
    project.write("named", data={"name": "mnist", "source": None, "public": None, "test": None})
    words = ("--epsilon", "1", "--accuracy", "1000=0.8", "--teachers", "100,250")
    told = project.call("plan", "named.toml", *words, "--mechanism", "gnmax")
    assert "60000 private records of mnist, 9000 public inputs, 10 classes" in told.stdout


def test_a_surrogate_that_was_private_before_is_told(project: Any) -> None:
    project.write(teachers={"model": "sklearn.neighbors:NearestCentroid"})
    words = ("plan", "tiny.toml", "--epsilon", "9", *SURROGATE, "--no-rehearse", "--json")
    words = (*words, "--mechanism", "gnmax")
    for end, warned in (("", False), ("dpsgd.ledger", True), ("ledger", True)):
        shutil.rmtree(project.folder / "data" / "ledgers", ignore_errors=True)
        if end:
            (project.folder / "data" / "ledgers").mkdir(parents=True)
            (project.folder / "data" / "ledgers" / f"digits.{end}").touch()
        told = json.loads(project.call(*words).stdout)["assumptions"]
        assert any("digits was used as private data before" in each for each in told) is warned


@pytest.mark.parametrize(
    ("choose", "kept"),
    [
        ({"choose": "first", "rounds": 4}, {"choose": "first"}),
        ({"choose": "uncertain", "rounds": 4}, {"choose": "uncertain", "rounds": 4}),
        ({"choose": "random", "choose_seed": 3}, {"choose": "random", "choose_seed": 3}),
        ({"rounds": 4}, {}),
    ],
)
@pytest.mark.sample(1)
def test_of_an_interactive_recipe_what_a_plan_can_use_is_kept(
    project: Any, choose: dict[str, Any], kept: dict[str, Any]
) -> None:
    interactive = {"mechanism": "interactive", "threshold": 4.0, "sigma1": 2.0, "sigma2": 1.0}
    project.write(aggregate={"scale": None, **interactive, **choose})
    words = (*SIMULATED, "--teachers", "9", "--out", "new.toml")
    project.call("plan", "tiny.toml", "--epsilon", "9", *words)
    written = tomllib.loads((project.folder / "new.toml").read_text())["aggregate"]
    assert written["mechanism"] != "interactive"
    keys = ("choose", "choose_seed", "rounds", "keep")
    assert {key: written[key] for key in keys if key in written} == kept


@pytest.mark.campaign
def test_a_surrogate_decides_by_rehearsal(project: Any) -> None:
    project.write(
        teachers={"model": "sklearn.neighbors:NearestCentroid"},
        encoder={"steps": [{"name": "pca", "dimension": 10}]},
    )
    words = ("plan", "tiny.toml", "--epsilon", "9", *SURROGATE, "--public", "400", "--json")
    report = json.loads(project.call(*words).stdout)
    assert report["rehearsed"]
    rows = report["over_teachers"]
    assert [row["teachers"] for row in rows] == [10, 20]
    best = max(rows, key=lambda row: row["rehearsed_student_accuracy"])
    assert report["proposal"] == best
    assert any("Chosen by rehearsal" in each for each in report["assumptions"])
    again = json.loads(project.call(*words).stdout)
    assert again == report  # a plan can be made again
    ruled = json.loads(project.call(*words, "--no-rehearse").stdout)
    assert not ruled["rehearsed"]
    assert ruled["proposal"] == max(ruled["over_teachers"], key=lambda row: row["useful_labels"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--epsilon", "0", *SIMULATED), "epsilon is 0; it must be finite and above zero"),
        (("--epsilon", "-1", *SIMULATED), "epsilon is -1; it must be finite and above zero"),
        ((*SIMULATED,), "give --epsilon, what the labels may cost"),
        (("--epsilon", "1"), "give --surrogate NAME"),
        (("--epsilon", "1", *SIMULATED, "--surrogate", "digits"), "not both"),
        (("--epsilon", "1", "--accuracy", "0.9"), "give it with --records"),
        (("--epsilon", "1", *SIMULATED, "--delta", "2"), "delta is 2.0"),
        (("--epsilon", "1", *SIMULATED, "--teachers", "some"), "not a list of whole numbers"),
        (("--epsilon", "1", *SIMULATED, "--teachers", "91"), "more than the 90 private records"),
        (
            ("--epsilon", "1", *SIMULATED, "--mechanism", "laplace"),
            "lnmax, gnmax, gumbel, confident",
        ),
        (("--epsilon", "1", *SIMULATED, "--answers", "31"), "more than the 30 public inputs"),
        (("--epsilon", "1", *SURROGATE[2:], "--surrogate", "mnist"), "pate data fetch mnist"),
        (("--epsilon", "1", *SURROGATE[2:], "--surrogate", "mnits"), "did you mean mnist?"),
        (("--epsilon", "1", *SIMULATED, "--out", "tiny.toml"), "add --force to replace it"),
        (("--epsilon", "1", *SIMULATED, "--out", "no/where.toml"), "cannot write no/where.toml"),
        (("--epsilon", "1", *SIMULATED, "--plot", "no/where.png"), "cannot plot no/where.png"),
    ],
)
@pytest.mark.sample(5)
def test_mistakes_are_one_line(project: Any, words: tuple[str, ...], says: str) -> None:
    before = (project.folder / "tiny.toml").read_text()
    told = project.call("plan", "tiny.toml", *words, "--quiet", code=2)
    (line,) = told.stderr.strip().splitlines()
    assert says in line
    assert (project.folder / "tiny.toml").read_text() == before


def test_the_private_set_is_no_surrogate(project: Any) -> None:
    words = ("--epsilon", "1", "--surrogate", "digits")
    told = project.call("plan", "digits-teachers", *words, code=2)
    assert "would look at the private data" in told.stderr
    told = project.call("plan", "digit", *words, code=2)
    assert "did you mean digits?" in told.stderr
    told = project.call("plan", "digits", *words, code=2)
    assert "would look at the private data" in told.stderr


@pytest.mark.campaign
def test_a_written_plan_is_replaced_only_on_demand(project: Any) -> None:
    words = ("plan", "tiny.toml", "--epsilon", "9", *SIMULATED, "--teachers", "9")
    words = (*words, "--out", "new.toml")
    project.call(*words)
    first = (project.folder / "new.toml").read_text()
    project.call(*words, code=2)
    assert (project.folder / "new.toml").read_text() == first
    project.call(*words, "--set", "student.seed=4", "--force")
    assert "seed = 4" in (project.folder / "new.toml").read_text()


def test_tuning_that_left_a_trace_is_told(project: Any) -> None:
    first = project.call_run()
    assert "other release" not in first.stdout
    (votes,) = project.run_folder.glob("private/vote/*/counts.npy")
    looked = project.call("epsilon", "lnmax", "--scale", "2", "--delta", "1e-3", "--votes", votes)
    assert "holds private votes" in looked.stderr
    assert "no ε accounts for that" in looked.stderr
    second = project.call_run("--set", "aggregate.scale=3.0", "--spend")
    assert "1 other release was drawn from this data set" in second.stdout
    assert "Votes in this folder were given to `pate epsilon` 1 time." in second.stdout
    again = project.call_run()  # the first release: it may be taken after a look at the other one
    assert "1 other release was drawn from this data set" in again.stdout


def test_seeded_trials_are_told(project: Any) -> None:
    project.call_run("--insecure-seed", "1", "--out", "runs/trial")
    told = project.call_run()
    assert "1 release of this data set had seeded noise" in told.stdout
    assert "not accounted for" in told.stdout


def test_votes_elsewhere_are_nobodys_business(project: Any) -> None:
    np.save(project.folder / "votes.npy", np.array([[90, 10], [50, 50]]))
    told = project.call(
        "epsilon", "lnmax", "--scale", "2", "--delta", "1e-3", "--votes", "votes.npy"
    )
    assert "private votes;" not in told.stderr
    assert not list(Path(project.folder).rglob("votes-looked-at.jsonl"))


RECORDS = {"votes": {"by": "records"}, "privacy": {"epsilon": 4.0, "delta": None, "sanitise": None}}


def _by_records(project: Any) -> None:
    project.sections.pop("teachers")
    project.write(
        "records",
        **RECORDS,
        aggregate={"mechanism": "laplace-counts", "scale": None, "queries": None},
    )


def test_record_votes_are_planned_and_compared_with_teachers(project: Any) -> None:
    """The private data are gone: records and linear teachers of a surrogate vote."""
    _by_records(project)
    _like_tiny(project, "like.npz")
    words = ("--surrogate", "like.npz", *SURROGATE[2:4], "--set", "data.label=y")
    (project.folder / "tiny.npz").rename(project.folder / "away.npz")
    told = project.call("plan", "records.toml", *words, "--teachers", "5,10", "--plot", "both.svg")
    assert "No file of tiny was opened." in told.stdout
    assert "% of all 30 public inputs right at ε = 4; 10 teachers (gnmax)" in told.stdout
    assert "Record votes are predicted to win" in told.stdout
    assert "record votes, laplace-counts with b 0.25 (in votes)" in told.stdout
    assert "ridge teachers" in told.stdout
    assert "record votes, 30 at ε = 4" in (project.folder / "both.svg").read_text()

    more = ("--mechanism", "gnmax", "--teachers", "5", "--out", "taught.toml", "--quiet")
    project.call("plan", "records.toml", *words, *more)
    taught = tomllib.loads((project.folder / "taught.toml").read_text())
    assert (taught["teachers"], "votes" in taught) == ({"count": 5, "model": "ridge"}, False)
    (project.folder / "away.npz").rename(project.folder / "tiny.npz")
    project.call_run("--insecure-seed", "0", recipe="taught")  # five answers with noise: any class

    simulated = ("--accuracy", "0.9", *SIMULATED[2:])
    refused = project.call("plan", "records.toml", *simulated, "--quiet", code=2)
    assert refused.stderr.count("\n") == 1
    assert "how records vote cannot be simulated from --accuracy" in refused.stderr


@pytest.mark.campaign
def test_a_recipe_of_teachers_is_planned_with_record_votes(project: Any) -> None:
    _like_tiny(project, "like.npz")
    words = ("plan", "tiny.toml", "--surrogate", "like.npz", *SURROGATE[2:4], "--epsilon", "4")
    words = (*words, "--set", "data.label=y", "--mechanism", "laplace-counts,gaussian-counts")
    words = (*words, "--plugin-path", "plugins")
    report = json.loads(project.call(*words, "--json").stdout)
    assert (report["by"], report["proposal"]) == ("records", None)
    found = report["records"]
    assert (found["mechanism"], found["guarantee"]["epsilon"]) == ("laplace-counts", 4.0)
    assert list(found["over_epsilon"]) == ["1", "2", "4", "8", "16"]
    assert found["over_epsilon"]["4"] == found["predicted_label_accuracy"] > 0.9

    told = project.call(*words, "--out", "tabled.toml", "--plot", "table.png")
    assert "ε = 4 at δ = 0, for one record added or removed: the guarantee" in told.stdout
    assert (project.folder / "table.png").read_bytes().startswith(b"\x89PNG")
    written = tomllib.loads((project.folder / "tabled.toml").read_text())
    assert written["votes"] == {"by": "records", "cells": "auto", "expected_records": 90}
    assert written["aggregate"] == {"mechanism": "laplace-counts"}
    assert written["privacy"] == {"epsilon": 4.0}
    assert "teachers" not in written
    assert "# tiny at ε = 4, δ = 0, as" in (project.folder / "tabled.toml").read_text()
    done = project.call_run(recipe="tabled")
    assert "Publish: ε = 4 at δ = 0, for one record added or removed." in done.stdout

    grouped = ("--set", "data.group=owner", "--mechanism", "gnmax,laplace-counts")
    np.savez(
        project.folder / "like.npz", **np.load(project.folder / "like.npz"), owner=np.arange(400)
    )
    told = project.call(*words, *grouped, "--teachers", "5", "--no-rehearse")
    assert "Record votes were not considered: the recipe protects users" in told.stdout


def _like_tiny(project: Any, name: str) -> None:
    rng = np.random.default_rng(3)
    labels = np.arange(400) % 3
    features = rng.normal(size=(400, 4))
    features[np.arange(400), labels] += 6.0
    if name.endswith(".npz"):
        np.savez(project.folder / name, X=features, y=labels)
        return
    rows = [",".join(map(str, [*row, label])) for row, label in zip(features, labels, strict=True)]
    (project.folder / name).write_text("a,b,c,d,y\n" + "\n".join(rows) + "\n")


@pytest.mark.parametrize("name", ["like.npz", "like.csv"])
@pytest.mark.sample(1)
def test_a_file_is_a_surrogate(project: Any, name: str) -> None:
    _like_tiny(project, name)
    more = ("--set", "data.label=y", "--no-rehearse", "--plugin-path", "plugins", "--json")
    words = ("plan", "tiny.toml", "--epsilon", "9", "--surrogate", name, *SURROGATE[2:], *more)
    report = json.loads(project.call(*words).stdout)
    assert report["facts"]["classes"] == 3  # of the file: the private one was not opened
    assert report["proposal"]["predicted_plurality_accuracy"] > 0.9
    assert any(f"was seen on {name}" in each for each in report["assumptions"])
    assert not any("used as private data" in each for each in report["assumptions"])


def test_the_private_file_is_no_surrogate(project: Any) -> None:
    def plan(name: str, code: int) -> str:
        more = ("--no-rehearse", "--plugin-path", "plugins")
        words = ("plan", "tiny.toml", "--epsilon", "9", "--surrogate", name, *SURROGATE[2:])
        done = project.call(*words, *more, code=code)
        return done.stderr if code else done.stdout

    shutil.copy(project.folder / "tiny.npz", project.folder / "copy.npz")
    assert "is the private data set" in plan("./tiny.npz", code=2)
    assert "there is no file" in plan("no.npz", code=2)
    project.call_run(stage="aggregate")  # from now on its records are known by their digest
    assert "is the private data set" in plan("copy.npz", code=2)
    _like_tiny(project, "like.npz")
    words = ("--set", "data.name=like", "--set", "data.source=like.npz", "--out", "like")
    project.call_run(*words, stage="aggregate")
    assert "like.npz was used as private data before" in plan("like.npz", code=0)
