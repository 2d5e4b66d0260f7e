"""The card and the page of a release, of this format and of the one before."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pate
from pate._format import strength
from pate.cli import app
from pate.releases.documents import escape_markdown, render_card, render_release_page
from pate.releases.files import SUMS, digests, render_sums
from pate.releases.verify import verify

BEFORE = Path(__file__).parent / "format-2"  # made by the version before format 3
THIRD = [Path(__file__).parent / name for name in ("format-3", "format-3-dpsgd")]


def files(folder=BEFORE):
    names = ("guarantee.json", "student.json", "release.json")
    return [json.loads((folder / name).read_text()) for name in names]


def sums_again(folder):
    """Make lists and checksums fit what the files hold now."""
    release = json.loads((folder / "release.json").read_text())
    release["files"] = {n: d for n, d in digests(folder).items() if n != "release.json"}
    (folder / "release.json").write_text(json.dumps(release))
    (folder / SUMS).write_text(render_sums(digests(folder)))


def test_a_release_of_the_format_before_verifies_and_loads():
    done = CliRunner().invoke(app, ["verify", str(BEFORE)])
    made_with = files()[2]["versions"]["matplotlib"]
    if importlib.metadata.version("matplotlib") == made_with:
        assert (done.exit_code, "ε = 14.4" in done.output) == (0, True), done.output
    else:  # plots of another version differ in their bytes
        assert done.exit_code == 4
        assert f"made by matplotlib {made_with}" in done.output
    student = pate.load_student(BEFORE)
    assert student.predict(np.zeros((3, 8, 8))).shape == (3,)
    assert student.predict_proba(np.ones((2, 8, 8))).shape == (2, 10)


@pytest.mark.parametrize("folder", THIRD, ids=lambda folder: folder.name)
@pytest.mark.sample(1)
def test_releases_of_format_3_verify_and_load(folder, tmp_path):
    checked = verify(folder)
    assert checked.problems == ()
    if importlib.metadata.version("matplotlib") == files(folder)[2]["versions"]["matplotlib"]:
        assert checked.notes == ()
    assert pate.load_student(folder).predict(np.zeros((3, 8, 8))).shape == (3,)
    # Nor does a file of a later format belong to it.
    shutil.copytree(folder, tmp_path / "forged")
    (tmp_path / "forged" / "deployment.yaml").write_text("epsilon: 0.01\n")
    sums_again(tmp_path / "forged")
    assert (
        "deployment.yaml does not follow from the JSON files"
        in verify(tmp_path / "forged").problems
    )


@pytest.mark.campaign
def test_a_page_of_format_3_warns_of_no_class_without_labels():
    """It was written without that sentence, and is compared byte for byte."""
    statement, header, release = files(THIRD[0])
    release["answers"]["by_class"][3] = 0
    sentence = "No released label is of class 3"
    assert sentence not in render_release_page(statement, header, release)
    assert sentence in render_release_page(statement, header, release | {"format": 4})


@pytest.mark.parametrize("name", ["MODEL_CARD.md", "report.html"])
def test_an_older_format_is_no_way_around_the_comparison(tmp_path, name):
    """Who claims format 2 for other texts than that format has is found out."""
    folder = tmp_path / "forged"
    shutil.copytree(BEFORE, folder)
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("14.38", "0.38"))
    sums_again(folder)
    problem = f"{name} does not match the JSON files"
    assert any(each.startswith(problem) for each in verify(folder).problems)


def test_an_older_release_cannot_pass_for_a_newer_one(tmp_path):
    folder = tmp_path / "forged"
    shutil.copytree(BEFORE, folder)
    release = json.loads((folder / "release.json").read_text())
    (folder / "release.json").write_text(json.dumps(release | {"format": 3}))
    sums_again(folder)
    assert any("does not match the JSON files" in each for each in verify(folder).problems)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 7.0, 14.0])
@pytest.mark.sample(2)
def test_card_and_page_judge_an_epsilon_alike(epsilon):
    statement, header, release = files()
    statement["guarantee"]["epsilon"] = epsilon
    release["format"] = 3
    sentence = f"This is a {strength(epsilon)[0]} guarantee. "
    assert sentence in render_card(statement, header, release)
    assert sentence in render_release_page(statement, header, release)


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.sample(1)
def test_names_and_notes_are_text_in_both(number):
    statement, header, release = files()
    nasty = "<script>alert(1)</script> *b* [x](http://y) `c`"
    release["format"] = number
    header["class_names"][3] = nasty
    release["notes"] = [nasty]
    card, page = (
        render_card(statement, header, release),
        render_release_page(statement, header, release),
    )
    assert "<script>alert" not in card
    assert "<script>alert" not in page
    assert str(escape_markdown(nasty)) in card
    assert page.count("<script") == 1  # the page's own


@pytest.mark.campaign
def test_a_setting_of_a_later_version_is_not_on_an_older_page():
    statement, header, release = files()
    before = render_release_page(statement, header, release)
    del release["recipe"]["evaluate"]["reference"]  # as if it had been added since
    assert "reference = false" in before
    assert "reference = false" not in render_release_page(statement, header, release)
