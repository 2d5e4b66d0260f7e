"""The report in a real browser: it loads alone, sorts, can be read, and fits a phone and paper.

Needs a Chromium (``PATE_CHROMIUM``, or on the path); skipped, by name, where there is none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_spec = spec_from_file_location("chromium", _HERE / "chromium.py")
chromium = module_from_spec(_spec)
_spec.loader.exec_module(chromium)

PROGRAM = chromium.find_chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed"),
    pytest.mark.campaign,
    pytest.mark.xdist_group("browser"),  # one browser, and one run to look at
]

# WCAG 2: relative luminance and the ratio of text to what is painted behind it.
CONTRAST = """
(() => {
  const parse = (text) => {
    const parts = text.match(/[\\d.]+/g).map(Number);
    return parts.length === 3 ? [...parts, 1] : parts;
  };
  const over = (top, under) =>
    [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement)
      layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => v / 255).map(
      (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || element.closest("script, style, title, desc")) continue;
    const style = getComputedStyle(element);
    if (!element.getClientRects().length || style.visibility === "hidden") continue;
    const drawn = element.closest("svg");
    const paper = behind(drawn ? drawn.parentElement : element);
    const ink = over(parse(drawn ? style.fill : style.color), paper);
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    const text = element.textContent.trim().slice(0, 40);
    found.push({ ratio: (a + 0.05) / (b + 0.05), what: element.tagName, text });
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The public and the private page of `digits`, with a few teachers, and a comparison's."""
    folder = tmp_path_factory.mktemp("digits")

    def pate(*words):
        subprocess.run(
            [sys.executable, "-m", "pate", *words], cwd=folder, check=True, capture_output=True,
            env={"PYTHONPATH": str(_HERE.parents[1]), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1",
                 "PATH": "/usr/bin:/bin"},
        )  # fmt: skip

    pate("run", "digits-teachers", "--out", "runs/digits", "--engine", "serial",
         "--data-root", "data", "--quiet",
         "--set", "teachers.count=40")  # fmt: skip
    pate("report", "runs/digits")
    pate("report", "runs/digits", "--private")
    pate("compare", "compare-digits", "--engine", "serial", "--data-root", "data", "--quiet",
         "--epsilon", "4,8", "--seeds", "2", "--set", "pate.teachers.count=40",
         "--set", "dpsgd.training.epochs=2")  # fmt: skip
    pate("report", "runs/compare-digits")
    return {
        "compared": folder / "runs/compare-digits/report.html",
        "public": folder / "runs/digits/report.html",
        "private": folder / "runs/digits/private/report.html",
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    profile = tmp_path_factory.mktemp("chromium")
    started = chromium.Browser(PROGRAM, profile)
    yield started
    started.close()
    shutil.rmtree(profile, ignore_errors=True)


@pytest.mark.parametrize("kind", ["public", "private", "compared"])
def test_it_loads_alone_and_without_complaint(browser, pages, kind):
    browser.show()
    browser.open(pages[kind])
    assert browser.problems == []
    assert browser.requests == [pages[kind].as_uri()]
    sections = browser.run("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert {"guarantee", "run", "cost", "labels", "student", "provenance"} <= set(sections)
    assert ("raw" in sections) == (kind == "private")
    assert ("comparison" in sections) == (kind == "compared")
    stamped = browser.run("[...document.querySelectorAll('.stamp')].map(s => s.textContent)")
    assert stamped == (["PRIVATE – do not publish"] if kind == "private" else [])
    assert browser.run(
        "[...document.querySelectorAll('.wide svg')].every(s => s.clientWidth > 400)"
    )


def test_the_page_itself_forbids_requests(browser, pages):
    """So that a request, were one to slip in, is refused and would show here."""
    browser.open(pages["public"])
    browser.run(
        "document.body.append(Object.assign(new Image(), {src: 'https://example.invalid/x'}))"
    )
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert any("Content Security Policy" in each for each in browser.problems)


COLUMN = (
    "[...document.querySelectorAll('#student table.sortable tbody tr')].map(r => r.cells[{}].{})"
)


def test_tables_sort_by_a_click_and_by_the_keyboard(browser, pages):
    browser.show()
    browser.open(pages["public"])
    heading = "document.querySelectorAll('#student table.sortable thead th')[3]"
    before = browser.run(COLUMN.format(3, "dataset.value"))
    assert browser.run(f"{heading}.getAttribute('aria-sort')") is None
    browser.run(f"{heading}.querySelector('button').scrollIntoView({{block: 'center'}})")
    box = browser.run(
        f"(() => {{ const b = {heading}.querySelector('button').getBoundingClientRect(); "
        "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                clickCount=1)  # fmt: skip
    after = browser.run(COLUMN.format(3, "dataset.value"))
    assert after == sorted(before, key=float)
    assert after != before
    assert browser.run(f"{heading}.getAttribute('aria-sort')") == "ascending"
    browser.run(f"{heading}.querySelector('button').focus()")
    for kind in ("keyDown", "keyUp"):
        browser("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                windowsVirtualKeyCode=13)  # fmt: skip
    turned = browser.run(COLUMN.format(3, "dataset.value"))
    assert turned == sorted(before, key=float, reverse=True)
    assert browser.run(f"{heading}.getAttribute('aria-sort')") == "descending"
    sorted_by = "document.querySelectorAll('#student [aria-sort]').length"
    browser.run("document.querySelectorAll('#student table.sortable thead button')[0].click()")
    assert browser.run(sorted_by) == 1
    assert browser.run(COLUMN.format(0, "textContent")) == [str(n) for n in range(10)]
    assert browser.problems == []


def test_methods_that_were_compared_sort_too(browser, pages):
    browser.show()
    browser.open(pages["compared"])
    table = "document.querySelector('#comparison table.sortable')"
    rows = f"[...{table}.querySelectorAll('tbody tr')].map(r => r.cells[0].textContent)"
    assert browser.run(rows)[:3] == ["PATE (teachers)", "PATE (record votes)", "DP-SGD"]
    browser.run(f"{table}.querySelectorAll('thead button')[0].click()")
    names = browser.run(rows)
    assert names == sorted(names, key=str.lower)
    assert len(names) == 11  # four methods at two ε, and three without
    assert browser.problems == []


@pytest.mark.parametrize("kind", ["public", "private", "compared"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_text_stands_out_and_nothing_overflows(browser, pages, kind, scheme, width):
    browser.show(width=width, scheme=scheme)
    browser.open(pages[kind])
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    texts = browser.run(CONTRAST)
    assert len(texts) > 150
    assert [each for each in texts if each["ratio"] < 4.5] == []
    dark = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(20, 24, 27)") == (scheme == "dark")
    assert browser.run("document.documentElement.scrollWidth") <= width
    # What is wider than the page scrolls in a frame of its own; nothing else reaches beyond it.
    beyond = """[...document.querySelectorAll("body *")]
        .filter(e => !e.closest(".scroll, nav, pre, svg, .skip"))
        .filter(e => e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1)
        .map(e => e.outerHTML.slice(0, 80))"""
    assert browser.run(beyond) == []
    shown = "[...document.querySelectorAll('.plot')].filter(p => p.getClientRects().length)"
    kinds = browser.run(f"[...new Set({shown}.map(p => p.className))]")
    assert kinds == ["plot narrow" if width == 360 else "plot wide"]
    # Text in drawings is of a size one can read.
    sizes = browser.run(
        f"{shown}.flatMap(p => [...p.querySelectorAll('text')]"
        ".map(t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a))"
    )
    assert 9.5 < min(sizes) <= max(sizes) < 18


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, pages):
    browser.show()
    browser.open(pages["public"])
    for kind in ("keyDown", "keyUp"):
        browser("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab",
                windowsVirtualKeyCode=9)  # fmt: skip
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().top") >= 0
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    names = browser("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in names if not node.get("ignored")]
    for role in ("banner", "navigation", "main", "contentinfo", "table", "columnheader"):
        assert role in roles, role
    pictures = [n for n in names if not n.get("ignored") and n["role"]["value"] == "image"]
    assert len(pictures) >= 4
    assert all(n["name"]["value"] and n["description"]["value"] for n in pictures)


def test_on_paper(browser, pages, tmp_path):
    """The public page prints; the private one says on every sheet that it is private."""
    sheets = {}
    for kind, page in pages.items():
        browser.show()
        browser.open(page)
        browser.pdf(tmp_path / f"{kind}.pdf")
        assert (tmp_path / f"{kind}.pdf").read_bytes().startswith(b"%PDF")
        if shutil.which("pdftotext"):
            text = subprocess.run(
                ["pdftotext", tmp_path / f"{kind}.pdf", "-"], capture_output=True, check=True
            ).stdout.decode()
            sheets[kind] = [sheet for sheet in text.split("\f") if sheet.strip()]
    browser("Emulation.setEmulatedMedia", media="print")
    browser.open(pages["private"])
    mark = "getComputedStyle(document.querySelector('.watermark'))"
    assert browser.run(f"[{mark}.display, {mark}.position]") == ["block", "fixed"]
    browser("Emulation.setEmulatedMedia", media="")
    if sheets:
        assert all("PRIVATE – do not publish" in sheet for sheet in sheets["private"])
        assert not any("PRIVATE" in sheet for sheet in sheets["public"])
        assert len(sheets["private"]) >= 4
