"""``pate new`` for the user's own data, and ``pate run`` of what it wrote, from another folder."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Project, tiny_records

NAMES = ("ill", "unclear", "well")
SECRET = "77123.25"  # the value of a feature


@pytest.fixture
def elsewhere(tmp_path_factory: Any) -> Project:
    return Project(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    return tmp_path


def write_table(
    path: Path, records: int, *, first: int = 0, sex: str = "", label: bool = True
) -> None:
    """Visits of patients, three each; with a column of text unless ``sex`` is empty."""
    features, labels = tiny_records(records)
    features[0, 3] = float(SECRET)
    extra = ["sex"] if sex else []
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["patient", "visit", "a", "b", "c", "d", *extra, *["outcome"][: int(label)]]
        )
        for row in range(records):
            at = first + row
            text = [sex[row % len(sex)]] if sex else []
            name = [NAMES[labels[row]]][: int(label)]
            writer.writerow([f"patient-{at // 3}", at, *features[row], *text, *name])


def write_images(folder: Path, each: int, *, size: int = 12, flat: bool = False) -> None:
    from PIL import Image

    rng = np.random.default_rng(each)
    for number, name in enumerate(("left", "right")):
        place = folder if flat else folder / name
        place.mkdir(parents=True, exist_ok=True)
        for at in range(each):
            pixels = rng.integers(0, 100, (size, size), dtype=np.uint8)
            pixels[:, number * size // 2 : (number + 1) * size // 2] += 120
            Image.fromarray(pixels).save(place / f"{name}-{at}.png")


def new(place: Project, recipe: Path, *words: Any) -> tuple[dict[str, Any], str]:
    """Writes a recipe; returns its content and what was printed."""
    done = place.call("new", recipe, *words)
    assert done.stderr == ""
    assert f"wrote {recipe}; next: pate run {recipe}" in done.stdout
    assert "patient-" not in done.stdout + recipe.read_text()
    assert SECRET not in done.stdout + recipe.read_text()
    return tomllib.loads(recipe.read_text()), done.stdout


def runs(place: Project, recipe: Path) -> str:
    """Runs a recipe; by chance, few labels may all be of one class, so the noise is seeded."""
    return place.call("run", recipe, "--engine", "serial", "--insecure-seed", "1").stdout


def test_one_table_with_people(folder: Path, elsewhere: Any) -> None:
    write_table(folder / "records" / "visits.csv", 900, sex="fm")
    words = ("--csv", folder / "records" / "visits.csv", "--label", "outcome")
    made, told = new(elsewhere, folder / "my.toml", *words, "--group", "patient", "--id", "visit")
    assert made["data"] == {
        "name": "visits",
        "source": "records/visits.csv",
        "test": 0.2,
        "public": 0.25,
        "accept_unprotected": True,
        "label": "outcome",
        "id": "visit",
        "group": "patient",
        "unit": "person",
        "classes": list(NAMES),
    }
    assert made["encoder"] == {"steps": ["one-hot", "impute", "standardise"]}
    assert made["student"]["inputs"] == "features"
    assert "partition" not in made  # a group column is enough
    assert "3 class names" in told
    assert "are public" in told
    assert "NOT protected" in told
    shown = runs(elsewhere, folder / "my.toml")
    assert "for one person added or removed" in shown
    assert "student's accuracy" in shown
    assert (elsewhere.folder / "runs" / "my").is_dir()


def test_three_tables(folder: Path, elsewhere: Any) -> None:
    write_table(folder / "records" / "clinic.csv", 600)
    write_table(folder / "open.csv", 90, first=900, label=False)
    write_table(folder / "trial.csv", 60, first=1800)
    words = ("--csv", folder / "records" / "clinic.csv", "--label", "outcome", "--id", "visit")
    others = ("--public", folder / "open.csv", "--test", folder / "trial.csv")
    made, told = new(elsewhere, folder / "my.toml", *words, "--group", "patient", *others)
    places = [made["data"][f"{role}_path"] for role in ("private", "public", "test")]
    assert places == ["records/clinic.csv", "open.csv", "trial.csv"]
    assert "accept_unprotected" not in made["data"]
    assert "NOT protected" not in told
    assert "student's accuracy" in runs(elsewhere, folder / "my.toml")


def test_arrays(folder: Path, elsewhere: Any) -> None:
    features, labels = tiny_records(400)
    np.savez(folder / "digits.npz", scans=features, y=labels)
    made, _ = new(elsewhere, folder / "my.toml", "--npz", folder / "digits.npz")
    assert made["data"]["features"] == ["scans"]
    assert made["data"]["name"] == "digits-own"  # not that of the named set
    assert made["data"]["classes"] == ["0", "1", "2"]
    assert "student's accuracy" in runs(elsewhere, folder / "my.toml")


def test_images(folder: Path, elsewhere: Any) -> None:
    write_images(folder / "x rays", 90)
    made, _ = new(elsewhere, folder / "my.toml", "--images", folder / "x rays")
    assert made["data"]["name"] == "x-rays"
    assert made["data"]["classes"] == ["left", "right"]
    assert "image_size" not in made["data"]
    assert made["encoder"]["steps"] == ["standardise"]
    assert "student's accuracy" in runs(elsewhere, folder / "my.toml")


@pytest.mark.campaign
def test_image_folders_of_three_roles_and_many_sizes(folder: Path, elsewhere: Any) -> None:
    write_images(folder / "scans", 100)
    write_images(folder / "open", 15, size=20, flat=True)
    write_images(folder / "open", 10, size=40, flat=True)
    write_images(folder / "trial", 10)
    others = ("--public", folder / "open", "--test", folder / "trial")
    made, _ = new(elsewhere, folder / "my.toml", "--images", folder / "scans", *others)
    assert made["data"]["image_size"] == 32
    assert made["encoder"]["steps"] == ["scattering", "standardise"]
    assert "student's accuracy" in runs(elsewhere, folder / "my.toml")


def test_few_records_run_with_a_remark_and_fewer_are_refused(folder: Path, elsewhere: Any) -> None:
    write_table(folder / "few.csv", 180)
    words = ("--csv", folder / "few.csv", "--label", "outcome", "--id", "visit")
    told = elsewhere.call("new", "my.toml", *words, "--group", "patient", code=2).stderr
    assert "leaves about 40 private people, too few" in told
    words = ("--csv", folder / "few.csv", "--label", "outcome")
    new(elsewhere, folder / "my.toml", *words)
    assert "100 records are few for PATE" in (folder / "my.toml").read_text()
    elsewhere.call("aggregate", folder / "my.toml", "--engine", "serial")


def test_numbers_of_records_are_rounded(folder: Path, elsewhere: Any) -> None:
    """One record more or less does not show, except where a rounded number changes."""
    texts = set()
    for records in (497, 498, 499):
        write_table(folder / "my.csv", records)
        recipe = folder / f"{records}.toml"
        new(elsewhere, recipe, "--csv", folder / "my.csv", "--label", "outcome", "--id", "visit")
        texts.add(recipe.read_text().replace(recipe.name, ""))
    assert len(texts) == 1
    assert "About 300 private records" in texts.pop()


def test_columns_that_not_all_files_have_are_left_out(folder: Path, elsewhere: Any) -> None:
    write_table(folder / "clinic.csv", 300, sex="fm")
    write_table(folder / "open.csv", 60, first=900)
    write_table(folder / "trial.csv", 60, first=1800)
    words = ("--csv", folder / "clinic.csv", "--label", "outcome", "--id", "visit")
    others = ("--public", folder / "open.csv", "--test", folder / "trial.csv")
    made, _ = new(elsewhere, folder / "my.toml", *words, "--group", "patient", *others)
    assert made["data"]["features"] == ["a", "b", "c", "d"]
    elsewhere.call("partition", folder / "my.toml", "--engine", "serial")


def test_columns_of_numbers_categories_and_remarks_are_told_apart(
    folder: Path, elsewhere: Any
) -> None:
    rows = [
        f"{at},{at if at % 3 else ''},{'xz'[at % 2]},remark {at},,{at % 2}" for at in range(300)
    ]
    (folder / "my.csv").write_text("a,b,c,note,gone,y\n" + "\n".join(rows) + "\n")
    made, told = new(elsewhere, folder / "my.toml", "--csv", folder / "my.csv", "--label", "y")
    assert made["data"]["features"] == ["a", "b", "c"]
    assert made["encoder"]["steps"] == ["one-hot", "impute", "standardise"]
    assert "Left out, as they are empty or hold texts of many kinds: note, gone." in told
    assert "remark" not in told + (folder / "my.toml").read_text()
    elsewhere.call("encode", folder / "my.toml", "--engine", "serial")


def test_a_ledger_of_the_same_name_is_pointed_out(folder: Path, elsewhere: Any) -> None:
    write_table(folder / "my.csv", 300)
    words = ("--csv", folder / "my.csv", "--label", "outcome", "--id", "visit")
    _, told = new(elsewhere, folder / "first.toml", *words)
    assert "A ledger of this name" not in told
    ledger = elsewhere.folder / "data" / "ledgers" / "my.ledger"
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.touch()
    _, told = new(elsewhere, folder / "second.toml", *words)
    assert f"A ledger of this name is at {ledger}: the run is charged to it." in told


def explained(text: str) -> None:
    """Every key of a recipe has a comment, beside it or above it."""
    above = ""
    for line in text.splitlines():
        if " = " in line and not line.startswith("#"):
            assert "  # " in line or above.startswith("#"), line
        above = line


STARTS = ("tabular", "images", "records", "compare")


@pytest.mark.parametrize("start", STARTS)
def test_a_recipe_without_data_explains_every_key_and_names_the_file_to_replace(
    folder: Path, start: str
) -> None:
    project = Project(folder)
    command = "compare" if start == "compare" else "run"
    done = project.call("new", "my", "--from", start)
    assert done.stdout.splitlines() == [
        "Replace the names of files, columns and classes in [data] of my.toml by yours.",
        f"wrote my.toml; next: pate {command} my.toml",
    ]
    text = (folder / "my.toml").read_text()
    explained(text)
    kind = "compare" if start == "compare" else "pate"
    assert text.startswith(f"#:schema ./.{kind}.schema.json\n")
    schema = json.loads((folder / f".{kind}.schema.json").read_text())
    pytest.importorskip("jsonschema").Draft202012Validator(schema).validate(tomllib.loads(text))
    missing = "private" if start == "images" else "private.csv"
    told = project.call(command, "my.toml", code=2).stderr
    assert told == f"pate: there is no file at {missing}\n"
    assert not (folder / "data").exists()
    again = project.call("new", "my", "--from", start, code=2).stderr
    assert again == "pate: my.toml exists; choose another name\n"


def test_record_votes_and_a_comparison_on_a_table(folder: Path, elsewhere: Any) -> None:
    write_table(folder / "visits.csv", 900, sex="fm")
    words = (
        "--csv",
        folder / "visits.csv",
        "--label",
        "outcome",
        "--group",
        "patient",
        "--id",
        "visit",
    )
    made, _ = new(elsewhere, folder / "mine.toml", *words, "--from", "records")
    explained((folder / "mine.toml").read_text())
    assert made["votes"] == {
        "by": "records", "cells": "auto", "expected_records": 200, "per_user": 1
    }  # fmt: skip
    assert (
        "at δ = 0, for all records of one person added or removed"
        in elsewhere.call("run", folder / "mine.toml", "--engine", "serial").stdout
    )
    done = elsewhere.call("new", folder / "both.toml", *words, "--from", "compare")
    assert f"next: pate compare {folder / 'both.toml'}" in done.stdout
    explained((folder / "both.toml").read_text())
    planned = elsewhere.call("compare", folder / "both.toml", "--dry-run").stdout
    assert len(re.findall(r"^will (charge|bring)", planned, re.MULTILINE)) == 2  # to two ledgers


def test_votes_of_ones_own(folder: Path) -> None:
    project = Project(folder)
    done = project.call("new", "votes", "--from", "own-votes")
    assert "wrote votes.sh; next: sh votes.sh" in done.stdout
    program = folder / "bin" / "pate"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pate "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "votes.sh"], cwd=folder, env=project.environment() | {"PATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert run().stderr == "pate: there is no vote file at votes.npy\n"
    np.save(folder / "votes.npy", np.tile(np.arange(20) % 10, (250, 1)))
    assert "labels.npy: 20 labels of 20 queries" in run().stdout
    assert (np.load(folder / "labels.npy") == np.arange(20) % 10).all()


MISTAKES = (
    (("--from", "images", "--csv", "visits.csv"), "--from images does not go with the data given"),
    (("--from", "own-votes", "--csv", "visits.csv"), "--from own-votes does not go with"),
    (("--from", "compare", "--label", "y"), "go with --csv"),
    (("--csv", "visits.csv"), "--csv needs --label"),
    (("--csv", "visits.csv", "--label", "outcom"), "did you mean 'outcome'?"),
    (("--csv", "visits.csv", "--label", "visit"), "differ in nearly every record"),
    (
        ("--csv", "visits.csv", "--label", "outcome", "--id", "patient"),
        "occur more than once; give each record its own, or name the column as group",
    ),
    (("--csv", "semicolons.csv", "--label", "y"), "'a;y'; separate columns by commas, or by tabs"),
    (("--csv", "nowhere.csv", "--label", "y"), "there is no file at nowhere.csv"),
    (("--csv", "header.csv", "--label", "y"), "holds no labels"),
    (("--csv", "words.csv", "--label", "y"), "has no column of numbers or categories"),
    (("--csv", "pictures", "--label", "y"), "pictures is a folder; --images takes one"),
    (("--csv", "visits.csv", "--npz", "arrays.npz"), "exclude one another"),
    (("--csv", "visits.csv", "--label", "outcome", "--test", "x.csv"), "--test goes with --public"),
    (("--images", "visits.csv"), "visits.csv is no folder; --images takes one"),
    (("--images", "records"), "holds no images"),
    (("--images", "pictures", "--label", "y"), "images have none"),
    (("--npz", "visits.csv"), "not a .npz file"),
    (("--npz", "arrays.npz"), "has no array of features 'X'; it has u, v"),
    (("--label", "y"), "go with --csv"),
)


def test_a_recipe_without_a_name_is_named_after_its_data(folder: Path) -> None:
    write_table(folder / "visits.csv", 900)
    (folder / "work").mkdir()
    project = Project(folder / "work")
    words = ("--csv", "../visits.csv", "--label", "outcome", "--group", "patient")
    assert "wrote visits.toml; next: pate run visits.toml" in project.call("new", *words).stdout
    made = (folder / "work" / "visits.toml").read_text()
    assert tomllib.loads(made)["data"]["source"] == "../visits.csv"
    refused = project.call("new", "--csv", "../visits.csv", "--label", "patient", code=2).stderr
    assert refused == "pate: visits.toml exists; choose another name\n"
    assert (folder / "work" / "visits.toml").read_text() == made
    assert "name the file to write" in project.call("new", "--from", "tabular", code=2).stderr


def test_mistakes_are_one_line_and_write_nothing(folder: Path) -> None:
    project = Project(folder)
    write_table(folder / "visits.csv", 300)
    (folder / "header.csv").write_text("a,y\n")
    (folder / "semicolons.csv").write_text("a;y\n1,5;x\n2,5;z\n")
    words = "".join(f"word {at},{at % 2}\n" for at in range(200))
    (folder / "words.csv").write_text(f"a,y\n{words}")
    np.savez(folder / "arrays.npz", u=np.zeros((4, 2)), v=np.zeros((4, 2)), y=np.arange(4) % 2)
    write_images(folder / "pictures", 2)
    for words, message in MISTAKES:
        told = project.call("new", "my.toml", *words, code=2).stderr
        assert told.startswith("pate: "), told
        assert told.count("\n") == 1
        assert message in told
        assert not (folder / "my.toml").exists()


def test_the_commands_for_own_data_of_the_first_page_run(elsewhere: Project) -> None:
    page = (Path(__file__).parents[2] / "docs" / "get-started.md").read_text()
    section = page.partition("## Your own data\n")[2].partition("\n## ")[0]
    snippet, commands = re.findall(r"(?ms)^```(?:python)?\n(.*?)^```", section)
    code = "".join(line[4:] + "\n" for line in snippet.splitlines() if line.startswith(">>> "))
    with contextlib.chdir(elsewhere.folder):
        exec(code, {})
    for line in commands.splitlines():
        program, *words = line.partition("#")[0].split()
        assert program == "pate"
        if words[0] == "run" and "--dry-run" not in words:
            words += ["--engine", "serial"]
        told = elsewhere.call(*words).stdout
    assert "student's accuracy" in told
    assert "for one person added or removed" in told
