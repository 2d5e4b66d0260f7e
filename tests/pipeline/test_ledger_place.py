"""The ledger that a command charges, whatever the current folder, and what it prints before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import CENTROIDS, Project

from pate.accounting import Ledger


class HomeProject(Project):
    """A project of a user with a home folder, and without ``PATE_DATA``."""

    @property
    def user_folder(self) -> Path:
        return self.home / ".local" / "share"

    @property
    def home(self) -> Path:
        return self.folder.parent / "home"

    @property
    def ledger(self) -> Path:
        return self.home / ".local" / "share" / "pate" / "ledgers" / "tiny.ledger"

    def environment(self) -> dict[str, str]:
        own = {"PATE_DATA": "", "HOME": str(self.home), "XDG_DATA_HOME": ""}
        return super().environment() | own


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HomeProject:
    monkeypatch.delenv("PATE_DATA")  # of commands that are called in this process
    made = HomeProject(tmp_path / "first")
    made.folder.mkdir()
    made.plugin("centroids", CENTROIDS)
    made.data()
    made.write(privacy={"sanitise": False, "budget": 30.0})
    return made


def test_two_folders_spend_from_one_ledger(project: Any, tmp_path: Path) -> None:
    (project.folder / "data").mkdir()  # decides nothing any more
    first = project.run()
    assert project.ledger.is_file()
    assert str(project.ledger) in first.stdout
    other = HomeProject(shutil.copytree(project.folder, tmp_path / "second"))
    shutil.rmtree(other.folder / "runs")
    refused = other.run(code=3)
    assert "has already paid for this release" in refused.stderr
    assert len(project.charges()) == 1


def test_every_charge_is_printed_before_it_is_made(project: Any) -> None:
    first = project.run()
    assert "will charge ε 10.7 (δ 0.001) to " in first.stdout
    line = next(each for each in first.stdout.splitlines() if each.startswith("will charge"))
    assert line.endswith(f"{project.ledger}; 19.3 of 30 left after it")
    assert not _charged(project.run().stdout)
    complete = project.run("--spend").stdout
    assert "is complete, so nothing was charged; to draw labels anew, add another --out" in complete
    assert len(project.charges()) == 1
    second = project.run("--spend", "--set", "teachers.count=5").stdout
    (line,) = _charged(second)
    assert line.startswith("will bring the data set's ε to 13.2 (δ 0.001) by a charge to ")
    assert line.endswith(
        f"{project.ledger}; its increment of 2.45 is not an ε to publish; 16.8 of 30 left after it"
    )
    refused = project.run("--spend", "--set", "aggregate.scale=0.5", code=3)
    assert "past the budget of 30" in refused.stderr
    assert not _charged(refused.stdout)


def test_a_dry_run_charges_nothing(project: Any) -> None:
    planned = project.run("--dry-run").stdout.splitlines()[-1]
    assert planned.startswith("will charge ε 10.7 (δ 0.001) to ")
    assert planned.endswith("; 19.3 of 30 left after it")
    assert not project.ledger.exists()
    assert not project.run_folder.exists()
    project.run()
    shown = project.run("--dry-run").stdout
    assert "nothing to charge" in shown
    assert "aggregate: done\n" in shown
    again = project.run("--dry-run", "--set", "teachers.count=5").stdout.splitlines()[-1]
    assert "; its increment of 2.45 is not an ε to publish; " in again
    assert len(project.charges()) == 1
    refused = project.run("--dry-run", "--set", "aggregate.scale=0.5", "--out", "more", code=3)
    assert "past the budget of 30" in refused.stderr


def test_a_recipe_may_keep_its_ledger_beside_itself(project: Any, tmp_path: Path) -> None:
    recipe = project.folder / "tiny.toml"
    recipe.write_text('data_root = "records"\n' + recipe.read_text())
    elsewhere = HomeProject(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    shutil.copy(project.folder / "tiny.npz", elsewhere.folder)
    words = ("--engine", "serial", "--plugin-path", "../first/plugins")
    elsewhere.pate("run", "../first/tiny.toml", *words)
    assert (project.folder / "records" / "ledgers" / "tiny.ledger").is_file()
    assert not project.ledger.exists()
    elsewhere.pate("status", "runs/tiny", "--plugin-path", "../first/plugins")
    words += ("--data-root", "own", "--out", "other", "--spend")
    elsewhere.pate("run", "../first/tiny.toml", *words)
    assert (elsewhere.folder / "own" / "ledgers" / "tiny.ledger").is_file()


def test_a_ledger_of_an_earlier_version_is_not_forgotten(project: Any) -> None:
    (project.folder / "data").mkdir()
    project.run("--data-root", "data")
    shutil.rmtree(project.run_folder)
    refused = project.run(code=2)
    assert "has charges of this data set" in refused.stderr
    assert "give --data-root data" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not project.ledger.exists()
    shutil.move(project.folder / "data" / "ledgers", project.ledger.parent)
    assert "already paid" in project.run(code=3).stderr


def _charged(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith(("will charge", "will bring"))]


def test_a_dry_run_prices_a_sanitised_figure(project: Any) -> None:
    project.write(privacy={"sanitise": True, "budget": 60.0})
    labels, figure = _charged(project.run("--dry-run").stdout)
    first, second = _charged(project.run().stdout)
    assert labels.replace(" for the labels", "") == first
    assert figure.replace(" for a sanitised ε", "") == second
    assert " for a sanitised ε to " in figure
    project.write(privacy={"sanitise": True, "budget": None})
    other = project.run("--dry-run", "--data-root", "own", "--set", "privacy.budget=7.0").stdout
    assert "a sanitised ε does not fit into the budget, and will be left out" in other
    assert len(_charged(other)) == 1


def test_a_dry_run_names_what_needs_consent(project: Any) -> None:
    project.run()
    noise = project.run("--dry-run", "--set", "aggregate.scale=3.0").stdout
    assert "add --spend to pay for it\nwill bring" in noise
    assert (
        "add --spend"
        not in project.run("--dry-run", "--spend", "--set", "aggregate.scale=3.0").stdout
    )
    teachers = project.run("--dry-run", "--set", "teachers.count=5").stdout
    assert "or add --spend to pay for them\nwill bring" in teachers
    elsewhere = project.run("--dry-run", "--out", "elsewhere").stdout
    assert "--spend will be needed\nwill bring" in elsewhere
    # More of the same answers needs none, and costs only what is new.
    (more,) = _charged(project.run("--dry-run", "--set", "aggregate.queries=14").stdout)
    assert more == _charged(project.run("--set", "aggregate.queries=14").stdout)[0]
    assert len(project.charges()) == 2


def _private_file(project: Any) -> bytes:
    folder = project.home / ".local" / "share" / "pate"
    assert {each.name for each in folder.iterdir() if each.is_file()} == {
        "records.jsonl",
        "records.key",
    }
    for each in folder.glob("records.*"):
        assert each.stat().st_mode & 0o077 == 0
    return (folder / "records.key").read_bytes()


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["format", "root", "columns", "name", "split"])
def test_the_same_records_under_another_name_are_noticed(
    project: Any, tmp_path: Path, how: str
) -> None:
    project.call_run()
    with np.load(project.folder / "tiny.npz") as file:
        X, y = file["X"], file["y"]
    np.savez(project.folder / "more.npz", X=X, y=y, Z=X[:, ::-1])
    words = ["--out", "other", "--set", "data.name=other"]
    match how:
        case "root":
            words = ["--out", "other", "--data-root", str(tmp_path / "root")]
        case "format":
            rows = [
                ",".join(map(repr, map(float, row))) + f",{label}"
                for row, label in zip(X, y, strict=True)
            ]
            (project.folder / "t.csv").write_text("a,b,c,d,y\n" + "\n".join(reversed(rows)) + "\n")
            words += ["--set", "data.source=t.csv", "--set", "data.label=y"]
        case "split":
            words += ["--set", "data.source=more.npz", "--set", "data.test=40"]
        case "columns":
            shutil.copy(project.folder / "tiny.npz", project.folder / "copy.npz")
            words += ["--set", "data.source=copy.npz", "--set", 'data.classes=["0","1","2","3"]']
    planned = project.call_run(*words, "--dry-run").stdout
    refused = project.call_run(*words, code=3)
    for text in (planned, refused.stderr):
        assert f"the same records have a ledger at {project.ledger}: charges there" in text
    assert refused.stderr.count("\n") == 1
    assert not list(project.folder.parent.rglob("other.ledger"))
    assert not (tmp_path / "root" / "ledgers" / "tiny.ledger").exists()
    spent = project.call_run(*words, "--spend").stdout
    assert f"a ledger at {project.ledger}: charges there and here add up" in spent
    assert "add up\nwill charge" not in project.call_run(*words).stdout
    shown = project.call("ledger", "show", "other").stdout
    (note,) = json.loads(project.call("ledger", "show", "other", "--json").stdout)["notes"]
    assert note.startswith("The same records were charged to another ledger, too: ε = 10.7 ")
    assert f"Note: {note}" in shown
    key = _private_file(project)
    for file in (project.folder / "other").rglob("*"):
        assert file.is_dir() or key not in file.read_bytes()


def test_other_records_have_a_ledger_of_their_own(project: Any) -> None:
    project.call_run()
    project.data(records=153)
    done = project.call_run("--set", "data.name=other", "--out", "other").stdout
    assert "the same records" not in done
    project.call_run("--set", "data.name=seeded", "--out", "s", "--insecure-seed", "1")  # no budget


def test_data_that_cannot_be_read_leave_nothing_behind(project: Any) -> None:
    assert "there is no file" in project.call_run("--set", "data.source=no.npz", code=2).stderr
    assert "pate data fetch mnist" in project.call("run", "mnist", code=2).stderr
    assert not project.ledger.parent.exists()
    assert not (project.folder / "runs").exists()


def test_a_dry_run_of_a_sweep_charges_nothing(project: Any) -> None:
    words = ("sweep", "tiny.toml", "--over", "aggregate.scale=4.0,5.0", "--plugin-path", "plugins",
             "--engine", "serial", "--set", "privacy.budget=40")  # fmt: skip
    planned = json.loads(project.pate(*words, "--dry-run", "--json").stdout)
    assert not project.ledger.exists()
    assert not (project.folder / "runs").exists()
    (charge,) = planned["charges"]
    assert charge["of"] == "2 releases"
    assert charge["ledger"] == str(project.ledger)
    assert f"to {project.ledger}; " in project.pate(*words, "--dry-run").stdout
    project.pate(*words)
    with Ledger.open(project.ledger) as ledger:
        assert ledger.data_set_total().epsilon == pytest.approx(charge["total"], rel=1e-9)
    assert "nothing to charge: all releases in" in project.pate(*words, "--dry-run").stdout
    refused = project.pate(*words, "--dry-run", "--private-selection", code=2).stderr
    assert "--dry-run does not go with --private-selection" in refused


@pytest.mark.parametrize(
    ("section", "model"),
    [
        ("student", "logistc"),
        ("student", "sklearn.ensemble:RandomForestClassifer"),
        ("teachers", "logistc"),
    ],
)
def test_a_dry_run_refuses_models_that_cannot_be_made(
    project: Any, section: str, model: str
) -> None:
    project.write("other", **{section: {"model": model}})
    done = project.call_run("--dry-run", recipe="other", code=2)
    assert model.rpartition(":")[2] in done.stderr
    assert "will charge" not in done.stdout
    project.call_run("--dry-run", stage="partition", recipe="other")  # it needs no models


def test_a_dry_run_of_a_student_alone_refuses_it(project: Any) -> None:
    """The labels are paid for; another student costs nothing, and must be made all the same."""
    project.call_run(stage="account")
    project.write("other", student={"model": "centroids:Centroid"})
    refused = project.call_run("--out", "runs/tiny", "--dry-run", recipe="other", code=2)
    assert "did you mean 'Centroids'?" in refused.stderr
