"""``pate report``: what the page shows, what it must not show, and how mistakes are reported."""

from __future__ import annotations

import contextlib
import getpass
import html
import itertools
import json
import re
import shutil
import stat
import webbrowser
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from pate._format import format_epsilon_fixed
from pate.artifacts import StoreError
from pate.datasets.spec import DataSpec
from pate.metrics import Share
from pate.report.curves import CostCurves, MomentProfile
from pate.report.disclosure import OwnerAnswers
from pate.report.facts import Cost, ShownArtifacts, gather_facts
from pate.report.page import STAMP, render_page
from pate.report.private import gather_private
from pate.stages.catalogue import open_run

pytestmark = pytest.mark.xdist_group("report")  # one run and one page for most of them
VOID = {"meta", "br", "hr", "link", "img", "input", "wbr"}
NASTY = ["<script>alert(1)</script>", 'b & "b" $x$', "ネコ"]


def blurred(names=("0", "1", "2"), records=480):
    """Blobs that overlap, so that accuracies differ from one another and from one."""
    rng = np.random.default_rng(3)
    labels = np.arange(records) % len(names)
    features = rng.normal(size=(records, 4))
    features[np.arange(records), labels] += 1.6
    return features, np.array(names)[labels]


@pytest.fixture(scope="module")
def made(tmp_path_factory, project_in):
    """A finished run with checks and with a reference; and its public page."""
    project = project_in(tmp_path_factory.mktemp("report"))
    features, labels = blurred()
    np.savez(project.folder / "tiny.npz", X=features, y=labels.astype(int))
    project.write(
        teachers={"count": 24},
        aggregate={"mechanism": "confident", "scale": None, "threshold": 15.0, "sigma1": 15.0,
                   "sigma2": 6.0, "queries": 25, "answers": 20},
        evaluate={"reference": True},
        student={"params": {"shrink": 0.45}},
    )  # fmt: skip
    project.call_run()
    return project


@pytest.fixture(scope="module")
def page(made):
    done = made.call("report", "runs/tiny", "--plugin-path", "plugins", "--with-confusion")
    assert done.stdout == "wrote runs/tiny/report.html\n"
    return (made.run_folder / "report.html").read_text()


class Outline(HTMLParser):
    """Elements in order, and whether all that was opened was closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def all(self, name):
        return [attributes for each, attributes in self.elements if each == name]


def test_the_page_is_whole_and_orderly(page):
    outline = Outline(page)
    assert page.startswith("<!DOCTYPE html>")
    assert outline.all("html") == [{"lang": "en"}]
    for landmark in ("header", "nav", "main", "footer", "h1", "title"):
        assert len(outline.all(landmark)) >= 1, landmark
    assert [s["id"] for s in outline.all("section")] == [
        "warnings", "guarantee", "run", "cost", "labels", "student", "evaluation",
        "provenance",
    ]  # fmt: skip
    levels = [int(name[1]) for name, _ in outline.elements if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [given["id"] for _, given in outline.elements if "id" in given]
    assert len(ids) == len(set(ids))
    for _, given in outline.elements:
        for key in ("aria-labelledby", "href"):
            for target in given.get(key, "").removeprefix("#").split():
                assert target in ids
    assert len(outline.all("caption")) == len(outline.all("table")) >= 4
    assert all(given.get("scope") in ("col", "row") for given in outline.all("th"))
    assert all(given["role"] == "img" for given in outline.all("svg"))
    assert outline.elements[[n for n, _ in outline.elements].index("body") + 1][0] == "a"  # skip


def test_the_page_needs_nothing_else(page):
    assert len(page.encode()) < 1_000_000
    outline = Outline(page)
    for name, given in outline.elements:
        assert name not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in given
        assert all(v.startswith("#") for k, v in given.items() if k in ("href", "xlink:href"))
    assert re.findall(r"url\((?!#)", page) == []
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\"' <]+", page)) <= {"http://www.w3.org/1999/xlink"}


def test_the_page_shows_what_was_released(made, page):
    text = html.unescape(page)
    costs = made.json("account", "guarantees.json")
    evaluation = made.json("evaluate", "evaluation.json")
    labels = made.array("aggregate", "labels.npy")
    assert f"{100 * evaluation['student']['accuracy']:.1f}\u202f%" in text
    assert f'data-value="{costs["guarantee"]["epsilon"]}"' in text
    assert f'data-value="{costs["sanitised"]["epsilon"]}"' in text
    for name, count in enumerate(np.bincount(labels, minlength=3)):
        row = re.search(rf'<tr><th scope="row">{name}</th><td class="n" data-value="(\d+)"', text)
        assert row is not None
        assert int(row[1]) == count
    confusion = np.array(evaluation["confusion"])
    assert confusion.sum() == evaluation["student"]["records"]
    assert confusion.trace() == sum(row["right"] for row in evaluation["classes"])
    cells = re.search(r'<table class="confusion">.*?</table>', text, flags=re.DOTALL)
    shown = [int(c.replace("·", "0")) for c in re.findall(r"<td[^>]*>([\d·]+)</td>", cells[0])]
    assert shown == confusion.ravel().tolist()
    assert made.path("distill").parent.parent.name == "released"
    assert "one record added or removed" in text
    assert "pate run recipe.toml" in text


def numbers_in(page):
    """Every number with a point in the text of the page, but for the geometry of its plots."""
    text = re.sub(r' (d|x|y|points|transform|viewBox|width|height)="[^"]*"', "", page)
    text = re.sub(r"<style>.*?</style>", "", html.unescape(text), flags=re.DOTALL)
    return set(re.findall(r"(?<![\d.])\d+\.\d+", text))


def test_nothing_private_is_on_the_page(made):
    """Figures that are private or no guarantee, in whatever way one might write them.

    With seeded noise, so that no other figure comes out alike by chance some day.
    """
    words = ["--plugin-path", "plugins", "--insecure-seed", "11", "--data-root", "seeded"]
    made.call("run", "tiny.toml", "--engine", "serial", *words, "--out", "runs/seeded")
    for more in ([], ["--private"]):
        made.call("report", "runs/seeded", *words, *more)
    run = made.folder / "runs" / "seeded"
    private = made.json("account-private", "guarantees.json", run)["improved"]["epsilon"]
    costs = made.json("account", "guarantees.json", run)
    reading = costs["odometer"]["improved"]["epsilon"]
    assert reading != costs["plan"]["improved"]["epsilon"]
    reference = made.json("evaluate-reference", "evaluation.json", run)["reference"]
    written = {f"{f:.{n}g}" for f in (private, reading) for n in range(3, 17)}
    written |= {f"{f:.{n}f}" for f in (private, reading) for n in range(2, 16)}
    written |= {format_epsilon_fixed(private), format_epsilon_fixed(reading)}
    for key in ("accuracy", "low", "high"):
        written |= {f"{reference[key]:.{n}f}" for n in range(3, 17)}
        written |= {f"{100 * reference[key]:.{n}f}" for n in range(1, 15)}
    public = (run / "report.html").read_text()
    assert numbers_in(public) & written == set()
    assert len(numbers_in((run / "private" / "report.html").read_text()) & written) >= 5
    for mark in ("data-dependent (private)", STAMP, "Raw panels", "Largest shard"):
        assert mark not in public


def test_the_page_is_the_same_where_nothing_private_can_be_read(made, page, tmp_path):
    """Every private file but manifests and origins, by which a run is known, is gone."""
    place = tmp_path / "tiny"
    shutil.copytree(made.run_folder, place)
    for file in (place / "private").rglob("*"):
        known = file.name == "manifest.json" or "origins" in file.parts
        if file.is_file() and not known:
            file.unlink()
    words = ["--plugin-path", "plugins", "--data-root", "data"]
    made.call("report", place, *words, "--with-confusion")
    assert (place / "report.html").read_text() == page
    done = made.call("report", place, *words, "--private", code=2)
    assert "is missing" in done.stderr
    assert not (place / "private" / "report.html").exists()


def test_the_store_refuses_what_is_private_or_reserved(made, monkeypatch):
    monkeypatch.chdir(made.folder)
    run = open_run(Path("runs/tiny"), plugin_path=Path("plugins"))
    shown = ShownArtifacts(run)
    assert shown.open("aggregate").level.name == "RELEASED"
    for name in ("vote", "account-private", "evaluate-reference", "partition", "data-test"):
        with pytest.raises(StoreError, match="report may not open"):
            shown.open(name)


def test_no_page_reveals_the_machine(made, page):
    for trace in (str(made.folder), "data root", "tiny.npz/", "/tmp", "/home"):
        assert trace not in page
    if len(getpass.getuser()) > 4:
        assert getpass.getuser() not in page
    assert not re.search(r"\d\d:\d\d", re.sub(r"<(style|script|svg).*?</\1>", "", page, flags=re.S))


def test_the_same_run_gives_the_same_page(made, page, tmp_path):
    words = ["--plugin-path", "plugins", "--with-confusion", "--out", tmp_path / "again.html"]
    made.call("report", "runs/tiny", *words)
    assert (tmp_path / "again.html").read_text() == page
    mode = stat.S_IMODE((tmp_path / "again.html").stat().st_mode)
    assert mode == 0o644


def test_the_private_page_is_stamped_and_for_its_owner(made, page):
    done = made.call("report", "runs/tiny", "--plugin-path", "plugins", "--private")
    file = made.run_folder / "private" / "report.html"
    assert "do not publish" in done.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = html.unescape(file.read_text())
    assert f"<title>{STAMP}" in text
    assert text.count(STAMP) >= 4  # title, banner, sheets on paper by two ways
    private = made.json("account-private", "guarantees.json")["improved"]["epsilon"]
    reference = made.json("evaluate-reference", "evaluation.json")["reference"]["accuracy"]
    assert f'data-value="{private}"' in text
    assert f'data-value="{reference}"' in text
    assert "data-dependent (private)" in text
    Outline(file.read_text())
    assert (made.run_folder / "report.html").read_text() == page  # untouched


def test_private_facts_add_up(made, monkeypatch):
    monkeypatch.chdir(made.folder)
    run = open_run(Path("runs/tiny"), plugin_path=Path("plugins"))
    facts = gather_private(run)
    assert sum(facts.winners) == len(made.array("aggregate", "asked.npy"))
    assert facts.dependent_curve[-1] == pytest.approx(facts.dependent.epsilon, rel=1e-12)
    assert all(a < b for a, b in itertools.pairwise(facts.dependent_curve))
    assert facts.dependent_queries[-1] == len(made.array("aggregate", "asked.npy"))


@pytest.mark.campaign
def test_names_of_classes_are_text(project):
    features, labels = blurred(NASTY)
    np.savez(project.folder / "tiny.npz", X=features, y=labels)
    project.call_run()
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    text = (project.run_folder / "report.html").read_text()
    outline = Outline(text)
    assert len(outline.all("script")) == 1  # the page's own
    assert "alert(1)" in text
    assert "<script>alert" not in text
    for name in NASTY:
        assert html.escape(name) in text


@pytest.mark.parametrize(
    ("sections", "words", "said"),
    [
        ({}, ["--insecure-seed", "7"], "This run is NOT PRIVATE"),
        ({"partition": {"method": "shuffle"}}, [], "does not cover one record added or removed"),
        ({"aggregate": {"mechanism": "gnmax", "scale": None, "sigma": 2.0}}, [], "GNMax"),
        ({"privacy": {"sanitise": False}}, [], "none: not asked for"),
        ({"privacy": {"conversion": "classic"}}, [], "(α(λ) + log 1/δ)/λ"),
        (
            {"aggregate": {"mechanism": "interactive", "scale": None, "threshold": 1.0,
                           "sigma1": 1.0, "sigma2": 1.0, "queries": 20}},
            [],
            "Interactive-GNMax",
        ),
    ],
    ids=["seeded", "shuffled", "gnmax", "not sanitised", "classic", "interactive"],
)  # fmt: skip
@pytest.mark.sample(1)
def test_variants_of_a_run(project, sections, words, said):
    project.write(**sections)
    project.call_run(*words)
    for more in ([], ["--private"]):
        project.call("report", "runs/tiny", "--plugin-path", "plugins", *words, *more)
    text = html.unescape((project.run_folder / "report.html").read_text())
    Outline((project.run_folder / "private" / "report.html").read_text())
    assert said in text
    seeded = bool(words)
    assert ("does not hold: seeded noise" in text) == seeded
    assert ("drawn once" in text) != seeded
    assert ("The noise was drawn from a known seed" in text) == seeded
    assert ("by a shuffle of their positions" in text) == ("partition" in sections)


def test_traces_of_tuning_are_shown(project):
    project.call_run()
    votes = project.path("vote") / "counts.npy"
    project.call("epsilon", "lnmax", "--votes", votes, "--counts", "--scale", "2",
                 "--delta", "1e-3")  # fmt: skip
    project.write(aggregate={"scale": 3.0})
    project.call_run("--spend")
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    text = html.unescape((project.run_folder / "report.html").read_text())
    assert "1 other release was drawn from this data set. If" in text
    assert "given to `pate epsilon` 1 time" in text
    ledger = project.call("ledger", "show", "runs/tiny").stdout
    published = re.search(r"to be published: ε ([\d.]+)", ledger)[1]
    shown = re.search(r"charged to its ledger: ε = ([\d.]+)", text)[1]
    assert float(shown) == pytest.approx(float(published), rel=2e-3)


@pytest.mark.campaign
def test_more_queries_later_are_shown(project):
    project.call_run()
    project.write(aggregate={"queries": 20})
    project.call_run()
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    text = (project.run_folder / "report.html").read_text()
    assert "Queries were added after earlier answers had been seen" in text
    assert "at the one λ that the ledger fixed" in text
    assert "are not a guarantee" in text
    for words in ("before the votes were opened", "Labels alone", "naive composition"):
        assert words not in text  # they hold for a plan that was fixed, and this one grew


def test_what_to_read_first(made):
    with contextlib.chdir(made.folder):
        run = open_run(made.run_folder, plugin_path=made.folder / "plugins")
        facts = gather_facts(run, confusion=True)
    # The noise is drawn anew each time: the accuracies that the warnings look at are set here.
    share = Share(accuracy=0.9, low=0.75, high=0.96, records=facts.student.records)
    found = tuple(replace(row, correct=row.records) for row in facts.classes)
    facts = replace(facts, student=share, classes=found)
    (own,) = [note for note in facts.notes if "are not protected" in note]  # said once
    assert own not in facts.warnings
    named = facts.recipe.model_copy(update={"data": DataSpec(name="digits")})
    fine = replace(facts, recipe=named, guarantee=replace(facts.guarantee, epsilon=8.0))
    assert fine.warnings == ()
    weak = replace(fine, guarantee=replace(facts.guarantee, epsilon=8.001))
    (warning,) = weak.warnings
    assert warning.startswith("ε = 8.01 is a weak guarantee.")
    assert replace(weak, seeded=True).warnings == ()  # no guarantee at all: another notice
    most = max(row.records for row in facts.classes) / facts.student.records
    low = Share(accuracy=most + 0.1, low=most, high=most + 0.2, records=facts.student.records)
    (warning,) = replace(fine, student=low).warnings
    assert warning.startswith("The student is no better than a guess")
    assert replace(fine, student=replace(low, low=most + 1e-9)).warnings == ()
    hidden = tuple(replace(row, records=0, correct=0, predicted=0) for row in facts.classes)
    unshown = replace(fine, student=low, classes=hidden, confusion=())  # as without confusion=True
    assert unshown.warnings == (warning,)
    unseen = replace(facts.classes[1], correct=0)
    (warning,) = replace(fine, classes=(facts.classes[0], unseen, facts.classes[2])).warnings
    assert warning == f"The student finds no test record of class {unseen.name}: recall is zero."
    # The released labels tell of a class that is missing where errors by class are left out.
    unlearnt = tuple(replace(row, labels=0) for row in hidden[1:])
    (warning,) = replace(fine, classes=(hidden[0], *unlearnt), confusion=()).warnings
    names = f"{hidden[1].name}, {hidden[2].name}"
    assert warning.startswith(f"No released label is of classes {names}: the student cannot find")
    (warning,) = replace(fine, classes=(*found[:2], replace(unseen, labels=0))).warnings
    assert "recall is zero" in warning  # once for one class


@pytest.mark.campaign
def test_a_data_dependent_figure_above_the_guarantee_has_its_reason(made):
    with contextlib.chdir(made.folder):
        run = open_run(made.run_folder, plugin_path=made.folder / "plugins")
        facts = gather_facts(run)
        raw = gather_private(run)
    reason = "because it is taken at one λ (λ = 3)"
    above = replace(facts.guarantee, epsilon=facts.guarantee.epsilon + 1, moment=3.0)
    assert reason in render_page(replace(facts, private=replace(raw, dependent=above)))
    assert reason not in render_page(replace(facts, private=raw))


def test_a_comparison_has_its_section(made, tmp_path):
    place = tmp_path / "tiny"
    shutil.copytree(made.run_folder, place)
    rows = [
        {"method": "dpsgd", "name": "<b>DP-SGD", "epsilon": e, "accuracy": 0.8, "spread": 0.02,
         "low": 0.7, "high": 0.9, "neighbours": "add-remove", "publishable": True,
         "seconds": 1234.5}
        for e in (1.0, 2.0)
    ]  # fmt: skip
    rows[0]["low"] = 0.3  # which is within reach of the majority class
    rows.append(rows[0] | {"method": "majority", "name": "majority class", "epsilon": None,
                           "accuracy": 0.34, "neighbours": None})  # fmt: skip
    hidden = rows[0] | {"name": "without privacy at all", "publishable": False}
    cost = {"together": {"epsilon": 7.12341, "delta": 2e-5, "neighbours": "add-remove"}}
    content = {"format": 1, "delta": 1e-5, "seeds": 3, "rows": [*rows, hidden], "cost": cost}
    (place / "compare.json").write_text(json.dumps(content))
    made.call("report", place, "--plugin-path", "plugins", "--data-root", "data")
    text = (place / "report.html").read_text()
    assert text.index('id="comparison"') < text.index('id="warnings"')
    shown = html.unescape(text)
    assert "<h1>tiny: PATE and DP‑SGD compared</h1>" in shown
    section = shown[shown.index('id="comparison"') : shown.index('id="warnings"')]
    assert section.index("<figure>") < section.index("<table") < section.index("<p>PATE and DP-SGD")
    assert shown.count("(no better than the majority class)") == 1
    assert "at ε 1: 80.0 % (30.0 to 90.0 %), no better than the majority class" in section
    assert "publishing this section costs all of them together: ε = 7.13 at δ" in text
    assert "All ε here are for one record's contribution removed (zero-out" in html.unescape(text)
    assert "<b>DP" not in text
    assert "without privacy at all" not in text
    assert "1234" not in text  # times are for the owner
    (place / "compare.json").write_text("{")
    done = made.call("report", place, "--plugin-path", "plugins", "--data-root", "data", code=2)
    assert done.stderr.count("\n") == 1


def test_it_opens_the_page(made, monkeypatch):
    seen = []
    monkeypatch.setattr(webbrowser, "open", lambda address: seen.append(address) or True)
    made.call("report", "runs/tiny", "--plugin-path", "plugins", "--open")
    assert seen == [(made.run_folder / "report.html").as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    done = made.call("report", "runs/tiny", "--plugin-path", "plugins", "--open")
    assert "by hand" in done.stderr


def one_line(done):
    assert done.stderr.startswith("pate: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.campaign
def test_mistakes_are_one_line(made, tmp_path):
    run = ["report", "runs/tiny", "--plugin-path", "plugins"]
    assert "there is no run in" in one_line(made.call("report", "runs/none", code=2))
    told = one_line(made.call("report", "runs/tiny", "--plugin-path", "nowhere", code=2))
    assert "there is nothing at --plugin-path nowhere" in told
    for place in (tmp_path, tmp_path / "no" / "page.html", made.folder / "tiny.npz" / "page.html"):
        assert f"cannot write {place}" in one_line(made.call(*run, "--out", place, code=2))
    assert list(tmp_path.iterdir()) == []  # no half a page
    told = one_line(made.call(*run, "--insecure-seed", "3", code=2))
    assert "give the --insecure-seed it was run with" in told
    told = one_line(made.call(*run, "--data-root", tmp_path / "elsewhere", code=2))
    assert "give the run's own --data-root" in told
    assert not (tmp_path / "elsewhere").exists()  # no key was drawn


def test_the_error_of_a_half_finished_run_names_what_is_missing(project):
    project.call_run(stage="aggregate")
    told = one_line(project.call("report", "runs/tiny", "--plugin-path", "plugins", code=2))
    assert "is not finished: account is missing" in told
    project.call_run()
    file = project.path("account") / "guarantees.json"
    file.write_text(file.read_text().replace("epsilon", "epsilom"))
    told = one_line(project.call("report", "runs/tiny", "--plugin-path", "plugins", code=2))
    assert "was damaged or changed" in told
    assert not (project.run_folder / "report.html").exists()


def test_a_page_can_be_built_from_facts(made, monkeypatch, page):
    """What a release puts beside the student."""
    monkeypatch.chdir(made.folder)
    run = open_run(Path("runs/tiny"), plugin_path=Path("plugins"))
    facts = gather_facts(run, confusion=True)
    assert render_page(facts, owner=OwnerAnswers()) == page


def test_many_classes_and_a_tiny_epsilon(made, monkeypatch):
    monkeypatch.chdir(made.folder)
    facts = gather_facts(open_run(Path("runs/tiny"), plugin_path=Path("plugins")))
    row = facts.classes[0]
    many = 60
    confusion = np.eye(many, dtype=int)
    confusion[3, 7] = 5
    none = Cost(epsilon=0.0, delta=1e-5, moment=2.0, conversion="improved")
    large = replace(
        facts,
        classes=tuple(replace(row, name=f"class {n}") for n in range(many)),
        confusion=tuple(map(tuple, confusion.tolist())),
        guarantee=none,
        plan=dict.fromkeys(facts.plan, none),
        sanitised=None,
        curves=CostCurves(queries=(1,), naive=(0.0,), advanced=(0.0,), moments=(0.0,)),
        profile=MomentProfile(moments=(1.0, 2.0), epsilons=(0.0, 0.0)),
    )
    text = render_page(large)
    Outline(text)
    assert re.search(r">5</th><td>class 3</td><td>class 7</td>", text)
    assert 'class="confusion"' not in text
    assert "labels-wide" not in text  # no picture of sixty bars
    assert "strong" in text
