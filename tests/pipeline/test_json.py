"""``--json``: one object on standard output, whose keys are documented."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness import open_project

from pate import open_run
from pate._format import format_epsilon

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    project = open_project(tmp_path_factory.mktemp("json"))
    project.write(privacy={"budget": 60.0, "sanitise": True})
    project.done = project.call_run("--json")
    return project


def _object(done: Any) -> dict[str, Any]:
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def _epsilons(value: Any) -> list[dict[str, Any]]:
    """All objects that have an ε."""
    if isinstance(value, list):
        return [found for each in value for found in _epsilons(each)]
    if not isinstance(value, dict):
        return []
    own = [value] if "epsilon" in value else []
    return own + [found for each in value.values() for found in _epsilons(each)]


def _documented(command: str) -> set[str]:
    """The keys in the table of a command on the page."""
    section = PAGE.read_text().partition(f"## `{command}`")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.M))


def test_a_run(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = _object(made.done)
    monkeypatch.chdir(made.folder)
    assert "aggregate: running" in made.done.stderr
    run = open_run(
        made.run_folder, data_root=made.folder / "data", plugin_path=made.folder / "plugins"
    )
    assert report["guarantee"]["epsilon"] == run.guarantee.epsilon
    assert report["answered"] == len(run.labels.answered) == 12
    assert report["student_right"]["accuracy"] == run.evaluation.student.accuracy
    assert report["ledger"]["path"] == str(made.ledger)
    assert report["ledger"]["left"] == pytest.approx(60 - report["ledger"]["data_set"]["epsilon"])
    assert report["ran"][-1] == "evaluate"
    private = made.json("account-private", "guarantees.json")["improved"]["epsilon"]
    assert str(private) not in made.done.stdout  # a data-dependent ε is not for machines either
    assert set(report) == _documented("pate run")
    again = _object(made.call_run("--json", "--quiet"))
    assert again == report | {"ran": []}


def test_every_epsilon_is_exact_and_as_printed(made: Any) -> None:
    found = _epsilons(_object(made.done))
    assert len(found) > 3
    for each in found:
        assert each["epsilon_printed"] == format_epsilon(each["epsilon"])
        assert float(each["epsilon_printed"]) >= each["epsilon"] * (1 - 1e-11)


def test_status_and_ledger(made: Any) -> None:
    words = ("runs/tiny", "--data-root", "data", "--json")
    status = _object(made.call("status", *words, "--plugin-path", "plugins"))
    assert all(stage["done"] for stage in status["stages"])
    assert set(status) == _documented("pate status")
    ledger = _object(made.call("ledger", "show", *words))
    assert status["ledger"] == {key: ledger[key] for key in status["ledger"]}
    assert [each["release"] for each in ledger["charges"]] == made.charges()
    assert ledger["charges"][0]["events"][0]["count"] == 12
    assert set(ledger) == _documented("pate ledger show")
    assert _object(made.call("ledger", "show", made.ledger, "--json")) == ledger


def test_a_dry_run_and_a_stage(made: Any) -> None:
    planned = _object(made.call_run("--json", "--dry-run", "--set", "aggregate.queries=14"))
    assert [each["of"] for each in planned["charges"]] == ["the labels", "a sanitised ε"]
    assert set(planned) == {"stages", "charges", "notes"}
    assert {each["stage"]: each["why"] for each in planned["stages"]}["aggregate"] == (
        "stale: aggregate.queries changed"
    )
    staged = _object(made.call_run("--json", stage="vote"))
    assert staged == {"folder": "runs/tiny", "ran": []}


def test_a_plan(made: Any) -> None:
    simulated = ("--accuracy", "0.9", "--records", "90", "--classes", "3", "--teachers", "6")
    done = made.call("plan", "tiny.toml", "--epsilon", "9", *simulated, "--json")
    assert set(_object(done)) == _documented("pate plan")


def test_a_sweep_and_a_private_selection(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pate.studies.sweep.plot_sweep", lambda *_: None)
    over = ("--over", "aggregate.scale=2.0,4.0", "--insecure-seed", "1", "--json")
    swept = project.call_run(*over, stage="sweep")
    assert set(_object(swept)) == _documented("pate sweep")
    assert "point 1 of 2" in swept.stderr
    chosen = project.call_run(*over, "--private-selection", "--out", "chosen", stage="sweep")
    assert set(_object(chosen)) == _documented("pate run") - {"ran"}
    assert _object(chosen)["seeded"]


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--set", "teachers.cont=3"), 2), (("--set", "aggregate.scale=0.1", "--spend"), 3)],
)
def test_an_error_is_one_line_and_an_exit_code(
    made: Any, words: tuple[str, ...], code: int
) -> None:
    refused = made.call_run("--json", "--quiet", *words, code=code)
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
