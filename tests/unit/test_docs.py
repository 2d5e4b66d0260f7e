"""The documentation: short, linked, executed and current."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "data" / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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
LONG = pytest.param(ROOT / "docs" / "python-api.md", marks=pytest.mark.campaign)


@pytest.mark.parametrize(
    "page",
    [LONG if page in LONG.values else page for page in PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert failed == 0


def test_the_readme_is_short_and_has_examples():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    assert readme.count(">>>") >= 8


def test_the_command_reference_is_current():
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))["command_reference"]
    assert (ROOT / "docs" / "commands.md").read_text() == generate()
