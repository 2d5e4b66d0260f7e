"""The documentation site: built strictly, links lead somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parents[2]
_spec = spec_from_file_location("chromium", Path(__file__).parent / "chromium.py")
chromium = module_from_spec(_spec)
_spec.loader.exec_module(chromium)

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("site")]  # one build for all of them


class Page(HTMLParser):
    """The anchors of a page, where it leads, and what it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = {""}, [], []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded += [given[name] for name in ("src", "href") if given.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {file: Page(file) for file in site.rglob("*.html") if file.name != "404.html"}


def test_every_link_leads_somewhere(site, pages):
    assert len(pages) > 30
    for file, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(unquote(link))
            if re.match(r"[a-z]+:", target):
                continue
            there = (file.parent / target).resolve() if target else file
            assert there.is_file(), f"{file.relative_to(site)}: {link}"
            assert there not in pages or anchor in pages[there].anchors, f"{file.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for file, page in pages.items():
        for loaded in page.loaded:
            assert not re.match(r"(https?:)?//", loaded), f"{file.relative_to(site)}: {loaded}"
            there = file.parent / urldefrag(unquote(loaded)).url
            assert loaded.startswith("data:") or there.is_file(), f"{file.name}: {loaded}"
        assert 'class="mermaid"' not in file.read_text(encoding="utf-8")  # drawn by a remote script
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text())


def test_tutorials_show_what_they_printed(site):
    for tutorial in (ROOT / "docs" / "tutorials").glob("*.py"):
        page = (site / "tutorials" / f"{tutorial.stem}.html").read_text(encoding="utf-8")
        assert 'class="output"' in page
        assert (site / "tutorials" / f"{tutorial.stem}.ipynb").is_file()


@pytest.mark.skipif(chromium.find_chromium() is None, reason="no Chromium is installed")
def test_pages_fit_screens_and_search_works_from_a_folder(site, tmp_path):
    browser = chromium.Browser(chromium.find_chromium(), tmp_path)
    try:
        for name in ("index", "tutorials/first_student", "reference/api/pate", "results"):
            for width in (1280, 390):
                browser.show(width=width)
                browser.open(site / f"{name}.html")
                assert not browser.problems, (name, browser.problems)
                assert all(each.startswith(("file:", "data:")) for each in browser.requests)
                assert browser.run("document.documentElement.scrollWidth <= innerWidth"), name
        found = browser.run(
            """new Promise((found) => {
              const field = document.querySelector("[data-md-component=search-query]");
              field.focus();
              field.value = "ledger";
              const ask = setInterval(() => {
                field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
                const results = document.querySelectorAll(".md-search-result__item").length;
                if (results) { clearInterval(ask); found(results); }
              }, 100);
            })"""
        )
        assert found > 5
    finally:
        browser.close()
