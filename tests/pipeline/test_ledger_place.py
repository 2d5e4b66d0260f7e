"""The ledger that a command charges, whatever the current folder, and what it prints before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import CENTROIDS, Project


class HomeProject(Project):
    """A project of a user with a home folder, and without ``PATE_DATA``."""

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
def project(tmp_path: Path) -> HomeProject:
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
    assert "will charge ε 18.43 (δ 0.001) to " in first.stdout
    line = next(each for each in first.stdout.splitlines() if each.startswith("will charge"))
    assert line.endswith(f"{project.ledger}; 11.57 of 30 left after it")
    assert "will charge" not in project.run().stdout
    second = project.run("--spend", "--set", "teachers.count=5").stdout
    assert "; 1.377 of 30 left after it" in second
    refused = project.run("--spend", "--set", "teachers.count=4", code=3)
    assert "past the budget of 30" in refused.stderr
    assert "will charge" not in refused.stdout


def test_a_dry_run_charges_nothing(project: Any) -> None:
    planned = project.run("--dry-run").stdout.splitlines()[-1]
    assert planned.startswith("will charge ε 18.43 (δ 0.001) to ")
    assert planned.endswith("; 11.57 of 30 left after it")
    assert not project.ledger.exists()
    assert not project.run_folder.exists()
    project.run()
    assert "nothing to charge" in project.run("--dry-run").stdout
    again = project.run("--dry-run", "--set", "teachers.count=5").stdout.splitlines()[-1]
    assert again.startswith("will charge ε 10.2 ")
    assert len(project.charges()) == 1
    refused = project.run("--dry-run", "--set", "aggregate.queries=40", "--out", "more", code=3)
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
    elsewhere.pate("run", "../first/tiny.toml", *words, "--data-root", "own", "--out", "other")
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
