"""The one ε of a run to quote: on the screen, on the page, for whom, and with which caveats."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pate._format import format_epsilon
from pate.accounting import Ledger
from pate.pipeline.runner import read_resolved
from pate.report.epsilons import WHEN

OFF = {"sanitise": None}  # the key left out


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, project_in: Any) -> Path:
    """A folder in which the tiny recipe has run, without a sanitised ε."""
    made = project_in(tmp_path_factory.mktemp("publish"))
    made.write(privacy=OFF)
    made.run()
    return Path(made.folder)


@pytest.fixture
def done(finished: Path, tmp_path: Path, project: Any) -> Any:
    """A project that has run already."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return project


def page_of(project: Any) -> str:
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    return " ".join((project.run_folder / "report.html").read_text().split())


def last_line(told: str) -> str:
    return told.splitlines()[-1]


def test_the_last_line_is_the_figure_of_the_calculator(done: Any) -> None:
    told = done.call_run().stdout
    words = ("epsilon", "lnmax", "--scale", "2", "--queries", "12", "--delta", "1e-3")
    counted = json.loads(done.call(*words, "--json").stdout)["data_independent"]
    shown = format_epsilon(counted["epsilon"])
    line = f"Publish: ε = {shown} at δ = 0.001, for one record added or removed."
    assert last_line(told) == line
    assert told.count("Publish:") == 1
    assert told.count("ε = ") == 2  # and the data set's total
    stated = done.json("account", "guarantees.json")["guarantee"]
    assert counted["neighbours"] == stated["neighbours"]
    assert "for one record added or removed." in done.call(*words).stdout


def test_a_shuffle_has_one_name_on_both_sides(done: Any) -> None:
    done.write("other", privacy=OFF, partition={"method": "shuffle"})
    told = done.call_run(recipe="other").stdout
    words = ("epsilon", "lnmax", "--scale", "2", "--queries", "12", "--delta", "1e-3")
    counted = done.call(*words, "--partition", "shuffle").stdout
    for text in (told, counted):
        assert "for one record replaced by another" in text


def test_the_unit_words_the_guarantee_and_changes_nothing_else(done: Any) -> None:
    before, paid = done.all_artifacts(), done.charges()
    told = done.call_run("--set", "data.unit=patient").stdout
    assert last_line(told).endswith(", for one patient added or removed.")
    assert "nothing to do" in told
    assert (done.all_artifacts(), done.charges()) == (before, paid)
    assert "for one patient added or removed" in page_of(done)


@pytest.mark.parametrize("unit", ["patient 1", "<b>", "", "a_b", "x" * 41])
def test_a_unit_is_a_noun(project: Any, unit: str) -> None:
    project.write(data={"unit": unit})
    assert "is not a noun to word guarantees with" in project.call_run(code=2).stderr


def test_a_unit_does_not_claim_persons_where_records_are_protected(project: Any) -> None:
    project.write(data={"unit": "patient", "group": "g"}, partition={"by": "record"})
    refused = project.call_run(code=2).stderr
    assert "leave unit out, or protect groups" in refused


def test_details_have_a_sentence_for_every_epsilon(done: Any) -> None:
    told = " ".join(done.call_run("--details").stdout.replace("│", " ").split())
    page = page_of(done)
    for name in ("guarantee", "conversion", "advanced", "naive"):
        assert WHEN[name].replace("&", "&amp;") in page
        assert WHEN[name] in told
    for name in ("dependent", "ledger"):
        assert WHEN[name] in told
        assert WHEN[name] not in page
    with Ledger.open(done.ledger) as ledger:
        total = format_epsilon(ledger.data_set_total().epsilon)
    assert f"whole data set {total} Matters for the budget" in told
    head, fold = page.split("<details><summary>Every other ε")
    stated = done.json("account", "guarantees.json")["guarantee"]
    assert f"ε = {format_epsilon(stated['epsilon'])}" in head
    assert "composition" in fold


def test_seeded_noise_publishes_nothing(project: Any) -> None:
    project.write(privacy=OFF)
    line = last_line(project.call_run("--insecure-seed", "3").stdout)
    assert line.startswith("Publish: no ε, because the noise was seeded and this run is NOT")


def test_another_release_is_a_clause_also_after_going_back(done: Any) -> None:
    second = last_line(done.call_run("--set", "aggregate.scale=3.0", "--spend").stdout)
    first = last_line(done.call_run().stdout)  # paid for before the other, and chosen after it
    with Ledger.open(done.ledger) as ledger:
        total = ledger.data_set_total()
    clause = (
        f"; the whole data set's ε = {format_epsilon(total.epsilon)} at δ = 0.001, if another "
        "release led to the choice of these settings."
    )
    assert second.endswith(clause)
    assert first.endswith(clause)
    assert len(done.charges()) == 2


def test_one_epsilon_is_one_value_wherever_it_stands(done: Any) -> None:
    """Three digits, rounded up, on screen, page and card; in full for machines."""
    stated = done.json("account", "guarantees.json")["guarantee"]["epsilon"]
    shown = format_epsilon(stated)
    done.call("release", "runs/tiny", "given", "--plugin-path", "plugins")
    texts = {
        "run": done.call_run("--details").stdout,
        "status": done.call("status", "runs/tiny").stdout,
        "ledger": done.call("ledger", "show", "runs/tiny").stdout,
        "verify": done.call("verify", "given", code=4).stdout,  # its class is the harness's own
        "calculator": done.call(
            "epsilon", "lnmax", "--scale", "2", "--queries", "12", "--delta", "1e-3"
        ).stdout,
        "page": re.sub(r"<[^>]*>", " ", page_of(done)),
        "card": (done.folder / "given/MODEL_CARD.md").read_text(),
    }
    assert len(shown.replace(".", "")) == 3
    longer = re.compile(rf"(?<![\d.]){re.escape(f'{stated:.9f}'[:4])}\d")  # the same, less rounded
    for where, text in texts.items():
        assert re.search(rf"(?<![\d.]){re.escape(shown)}(?!\d)", text), where
        assert not longer.search(text), where
    printed = json.loads(done.call_run("--json").stdout)["guarantee"]
    assert (printed["epsilon"], printed["epsilon_printed"]) == (stated, shown)


@pytest.mark.campaign
def test_settings_of_a_study_quote_the_study(done: Any) -> None:
    words = ("--over", "aggregate.scale=3.0,4.0", "--plugin-path", "plugins", "--engine", "serial")
    done.call("sweep", "tiny.toml", *words)
    told = done.call_run("--set", "aggregate.scale=3.0", "--out", "runs/again", "--spend").stdout
    line = last_line(told)
    assert line.endswith(", which covers the 2 releases compared with it.")
    own = done.json("account", "guarantees.json")["guarantee"]["epsilon"]
    assert float(line.split("ε = ")[1].split()[0]) > own


def test_a_priced_sanitised_figure_is_in_the_line(project: Any) -> None:
    line = last_line(project.call_run().stdout)  # the harness asks for one
    costs = project.json("account", "guarantees.json")
    assert f"ε = {format_epsilon(costs['guarantee']['epsilon'])}" in line
    assert line.endswith("the price of its sanitised ε included.")


# --- sanitise is off by default -------------------------------------------------------------------


def test_nothing_is_sanitised_unless_asked_for(done: Any) -> None:
    assert len(done.charges()) == 1
    assert done.json("account", "guarantees.json")["why_not"] == "not asked for"


@pytest.mark.campaign
def test_a_run_of_an_earlier_version_stays_complete(project: Any) -> None:
    """It was sanitised by default: the recipe does not name the key, and its result has one."""
    project.call_run()  # "sanitise = true" gives what the old default gave
    before, paid = project.all_artifacts(), project.charges()
    project.write(privacy=OFF)
    told = project.call_run("--details").stdout
    assert "nothing to do" in told
    assert "the price of its sanitised ε included" in last_line(told)
    assert (project.all_artifacts(), project.charges()) == (before, paid)
    where = ("runs/tiny", "--plugin-path", "plugins")
    assert "stale" not in project.call("status", *where).stdout  # recipe.json is the new one now
    assert WHEN["sanitised"] in page_of(project)
    project.write(privacy={"sanitise": False})  # asked for by name, it is another account
    assert "account: running" in project.call_run().stdout
    assert project.charges() == paid


def test_an_unset_key_is_the_same_as_false(done: Any) -> None:
    assert read_resolved(done.run_folder).privacy.sanitise is None
    assert "nothing to do" in done.call_run("--set", "privacy.sanitise=false").stdout
