"""The documentation: short, linked, executed and current."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpsgd
import dpsgd.compat
import dpsgd.convex
import dpsgd.public
import pate

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "data" / "README.md"])


def anchors(page):
    """The anchors of a page's headings, as repositories and the site make them."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    headings = re.findall(r"(?m)^#+ (.*)", text)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" not in target:
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    if page.name == "CHANGELOG.md":  # it names files that are gone
        return
    named = re.findall(
        r"`((?:pate|dpsgd|tests|benchmarks|examples|pipelines)/[\w./-]+)`", page.read_text()
    )
    for name in named:
        assert (ROOT / name).exists(), f"{page.name} names {name}"


# The whole pipeline, several times.
LONG = pytest.param(ROOT / "docs" / "how-to" / "python-api.md", marks=pytest.mark.campaign)


@pytest.mark.parametrize(
    "page",
    [LONG if page in LONG.values else page for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert failed == 0


def scripts(page):
    """The Python on a page that shows no session."""
    found = re.findall(r"(?ms)^```python\n(.*?)^```", page.read_text())
    return [each for each in found if not each.startswith(">>>")]


DPSGD = ROOT / "docs" / "how-to" / "dpsgd.md"
TABLES = ROOT / "docs" / "how-to" / "tables.md"


@pytest.mark.campaign
def test_scripts_about_dpsgd_run():
    exec("\n".join(scripts(DPSGD)), {})


@pytest.mark.campaign
def test_scripts_about_a_release_run(tmp_path, monkeypatch):
    """They open the release of a table with the columns that the page on tables names."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 80, 600),
            "sex": rng.choice(["f", "m"], 600),
            "city": rng.choice(["Graz", "Linz"], 600),
            "weight": rng.normal(70, 9, 600),
        }
    )
    outcome = np.where(frame.age + frame.weight > 120, "ill", "well")
    frame.assign(outcome=outcome).to_csv("patients.csv", index=False)
    recipe = re.search(r"(?ms)^```toml\n(\[data\].*?)^```", TABLES.read_text())[1]
    Path("patients.toml").write_text(recipe)
    run = pate.run("patients.toml", set={"data.public": 250, "teachers.count": 50}, data_root=".")
    pate.release(run, "given", column_names=True, data_root=".")
    pages = [page for page in PAGES if page != DPSGD and scripts(page)]
    assert TABLES in pages
    for page in pages:
        exec("\n".join(scripts(page)), {"pate": pate, "frame": frame, "X": frame, "images": frame})
    assert pate.load_student("given").columns == ("age", "sex", "city", "weight")


DATE = r"\b20\d\d-\d\d-\d\d\b"


def test_every_table_of_results_has_its_date_and_its_command():
    page = re.sub(r"(?ms)^```.*?^```", "", (ROOT / "docs" / "results.md").read_text())
    tables = 0
    for section in re.split(r"(?m)^## ", page)[1:]:
        before = ""
        for block in re.split(r"((?:^\|.*\n)+)", section, flags=re.MULTILINE):
            if not block.startswith("|"):
                before = block
                continue
            tables += 1
            assert re.search(DATE, before), f"no date: {block.splitlines()[0]}"
            command = r"`(…|pate|dpsgd|python) |no command"
            assert re.search(command, before + block), f"no command: {block.splitlines()[0]}"
    assert tables >= 10


def test_every_public_name_is_in_the_reference():
    pages = "".join(page.read_text() for page in ROOT.glob("docs/reference/api/*.md"))
    listed = set(re.findall(r"(?m)^::: (\S+)$", pages))
    assert {f"pate.{name}" for name in pate.__all__ if name != "__version__"} <= listed
    for module in (dpsgd, dpsgd.compat, dpsgd.convex, dpsgd.public):
        assert {f"{module.__name__}.{name}" for name in module.__all__} <= listed


def test_the_readme_is_short_and_has_examples():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    assert readme.count(">>>") >= 8


def test_the_command_reference_is_current():
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))["command_reference"]
    assert (ROOT / "docs" / "reference" / "commands.md").read_text() == generate()
