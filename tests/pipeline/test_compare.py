"""``pate compare`` through the real command line, on digits: small models, few steps."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harness import as_written

import pate
from pate._format import format_epsilon
from pate._format import format_epsilon_fixed as shown_epsilon
from pate.accounting import Guarantee, Ledger, exact_divergence
from pate.accounting.events import Repeated, tally
from pate.accounting.ledger.study_costs import NOT_PLANNED

EPSILONS, SEEDS, DELTA = (4.0, 8.0), 2, 1e-4
RECIPE = """
kind = "compare"
notes = "Digits, small.\\n\\nSettings were chosen in the dark."

[data]
name = "digits"
public = 100
test = 100

[compare]
epsilons = [8, 4]
seeds = 2
delta = 1e-4

[pate.teachers]
count = 30
model = "ridge"

[pate.aggregate]
mechanism = "gnmax"
queries = 25
choose = "diverse"

[pate.student]
model = "ridge"

[dpsgd.model]
entry = "dpsgd.models:linear"

[dpsgd.training]
steps = 12
lot_size = 200
learning_rate = 2.0

[dpsgd.privacy]
accountant = "moments"
"""
pytestmark = pytest.mark.xdist_group("compare")  # one comparison for all of them


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    """Plotting takes half the time of what runs in this process; ``made`` has the plots."""
    monkeypatch.setattr("pate.studies.compare.save_figure", lambda *_, **__: None)


WORDS = ("compare", "mine.toml", "--engine", "serial")
LEDGERS = ("digits.ledger", "digits.dpsgd.ledger")  # of PATE, and of DP-SGD


def write(project, text=RECIPE):
    (project.folder / "mine.toml").write_text(text)
    return project


def compare(project):
    """Runs the real command to its end, however busy the machine is."""
    done = subprocess.run(
        project.command(*WORDS),
        cwd=project.folder,
        env=project.environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Which inputs are answered, and so how far is asked, the votes decide.
CONFIDENT = """mechanism = "confident"
threshold = 15.0
sigma1 = 12.0
sigma2 = 8.0
"""


def ledgers(project):
    """The charges of both methods."""
    found = []
    for name in LEDGERS:
        path = project.folder / "data" / "ledgers" / name
        if not path.exists():
            found.append([])
            continue
        with Ledger.open(path) as ledger:
            found.append(ledger.charges())
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory, project_in):
    """A comparison that was run to its end, what it printed, and its files."""
    project = write(project_in(tmp_path_factory.mktemp("compare")))
    project.printed = compare(project)
    project.place = project.folder / "runs" / "mine"
    project.content = json.loads((project.place / "compare.json").read_text())
    return project


def rows(made, method):
    return [row for row in made.content["rows"] if row["method"] == method]


def test_there_is_a_row_for_each_method_and_epsilon(made):
    methods = [row["method"] for row in made.content["rows"]]
    assert methods == ["pate", "dpsgd"] * 2 + ["public-labels", "majority", "reference"]
    for method in ("pate", "dpsgd"):
        assert [row["target"] for row in rows(made, method)] == list(EPSILONS)
        for row in rows(made, method):
            accuracies = [once["accuracy"] for once in row["runs"]]
            assert len(accuracies) == SEEDS
            assert row["accuracy"] == pytest.approx(statistics.fmean(accuracies))
            assert row["spread"] == pytest.approx(statistics.stdev(accuracies))
            assert row["low"] < row["accuracy"] < row["high"]
            assert 0.99 * row["target"] <= row["epsilon"] <= row["target"]
            assert row["neighbours"] == {"pate": "add-remove", "dpsgd": "zero-out"}[method]
            assert row["data_dependent"] is False
            assert row["seconds"] > 0
            assert row["peak_memory_mb"] > 50
    assert {row["labels"] for row in rows(made, "pate")} == {25}
    head = {key: made.content[key] for key in ("format", "name", "data", "delta", "seeds")}
    assert head == {"format": 2, "name": "mine", "data": "digits", "delta": DELTA, "seeds": SEEDS}


def test_what_needs_no_epsilon_is_beside_it(made):
    (informed,), (majority,), (reference,) = (
        rows(made, method) for method in ("public-labels", "majority", "reference")
    )
    best = max(row["accuracy"] for row in rows(made, "pate"))
    assert majority["accuracy"] < 0.3 < best < reference["accuracy"]
    assert informed["labels"] == 25
    assert informed["epsilon"] is majority["epsilon"] is reference["epsilon"] is None
    publishable = {row["method"]: row["publishable"] for row in made.content["rows"]}
    assert publishable == {
        "pate": True, "dpsgd": True, "public-labels": True, "majority": True, "reference": False,
    }  # fmt: skip
    # The reference is kept in private; nothing of it is in the released folder.
    released = [str(path) for path in (made.place / "released").rglob("*")]
    assert not any("reference" in path for path in released)
    assert len(list(made.place.glob("private/evaluate-reference/*/evaluation.json"))) == SEEDS


def test_true_labels_are_those_of_the_inputs_that_were_asked_about(made):
    """The accuracy is that of a student trained here, on the labels of the split itself."""
    from pate.datasets.loading import load
    from pate.datasets.spec import DataSpec
    from pate.students.spec import StudentSpec
    from pate.students.train import StudentData, train_student
    from pate.teachers.protocol import predict_labels

    splits = load(DataSpec(name="digits", public=100, test=100), root=made.folder / "data")
    asked = {tuple(np.load(path)) for path in made.place.glob("released/aggregate/*/asked.npy")}
    (rows_asked,) = asked  # all points ask about the same inputs, which are chosen in public
    student = train_student(
        StudentSpec(model="ridge"),
        StudentData(
            inputs=np.array(splits.public.features),
            rows=np.array(rows_asked),
            labels=np.array(splits.public.labels)[list(rows_asked)],
            classes=10,
        ),
    )
    printed = predict_labels(student, np.array(splits.test.features), classes=10)
    (row,) = rows(made, "public-labels")
    assert [once["accuracy"] for once in row["runs"]] == [
        np.mean(printed == splits.test.labels)
    ] * 2


def test_every_charge_is_tagged_on_both_sides(made):
    for charges in ledgers(made):
        assert len(charges) == len(EPSILONS) * SEEDS
        assert {charge.studies for charge in charges} == {("compare mine",)}
    shown = made.call("ledger", "show", "runs/mine").stdout
    assert "compare mine" in shown
    assert "4 releases" in shown


def test_both_ledgers_knew_the_plan_before_the_first_charge(made):
    for name, charges in zip(LEDGERS, ledgers(made), strict=True):
        with Ledger.open(made.folder / "data" / "ledgers" / name) as ledger:
            plan = ledger.study_plans()["compare mine"]
        assert plan.after == 0
        assert len(plan.releases) == len(EPSILONS) * SEEDS
        paid = tally(event for charge in charges for event in charge.events)
        assert tally(plan.events) == paid


def test_a_model_records_its_study(made):
    files = list(made.place.glob("dpsgd/*/released/training/*/guarantee.json"))
    assert len(files) == len(EPSILONS) * SEEDS
    for file in files:
        report = json.loads(file.read_text())
        assert report["study"] == "compare mine"
        assert report["guarantee"]["publishable"] is True  # alone, if it was fixed beforehand


def gaussian_answers(sigma, count, delta):
    """ε of noisy-max answers by hand: one record moves two counts by one, so Rényi α/σ² each."""
    orders = 1 + np.geomspace(0.01, 1e4, 20_000)
    renyi = count * orders / sigma**2
    epsilons = renyi + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float(epsilons.min())


def sampled_steps(rate, noise, count, delta):
    """ε of DP-SGD steps by hand: Rényi divergence of a sampled Gaussian from its noise alone.

    An integral over what one step shows (Mironov, Talwar & Zhang 2019, Theorem 4), on a grid.
    """
    shown, width = np.linspace(-40 * noise, 40 * noise + 100, 100_001, retstep=True)
    density = -(shown**2) / (2 * noise**2) - np.log(noise * np.sqrt(2 * np.pi))
    sampled = np.log(rate) + (2 * shown - 1) / (2 * noise**2)
    ratio = np.logaddexp(np.log1p(-rate), sampled)
    best = np.inf
    for order in 1 + np.geomspace(0.2, 60, 300):
        terms = order * ratio + density
        moment = terms.max() + np.log(np.exp(terms - terms.max()).sum() * width)
        renyi = count * moment / (order - 1)
        best = min(
            best, renyi + np.log1p(-1 / order) - (np.log(delta) + np.log(order)) / (order - 1)
        )
    return best


def tied_answers(events):
    """ε of near ties of two classes, exactly: what votes can cost, and nearly what is charged."""
    orders, leads = np.arange(1.1, 8, 0.1), [[50 + lead, 50 - lead] for lead in range(8)]
    tied = sum(
        event.count
        * exact_divergence(leads, orders=orders, sigma=event.event.sigma).largest.max(axis=0)
        for event in events
    )
    return (tied + np.log(1 - 1 / orders) - np.log(DELTA * orders) / (orders - 1)).min()


def test_both_guarantees_follow_from_the_ledgers_and_meet_the_target_from_below(made):
    for_pate, for_dpsgd = ledgers(made)
    recomputed = {"pate": [], "dpsgd": []}
    for charge in for_pate:
        (event,) = charge.events
        assert isinstance(event, Repeated)
        assert event.count == 25
        assert gaussian_answers(event.event.sigma, event.count, DELTA) > 1.1 * min(EPSILONS)
        recomputed["pate"].append(tied_answers([event]))
    for charge in for_dpsgd:
        (event,) = charge.events
        assert event.count == 12
        step = event.event
        figure = sampled_steps(step.sample_rate, step.noise_multiplier, event.count, DELTA)
        recomputed["dpsgd"].append(figure)
    for method, figures in recomputed.items():
        wanted = sorted(EPSILONS * SEEDS)
        for figure, target in zip(sorted(figures), wanted, strict=True):
            # Of PATE, exact costs of two classes: below the bound for any number by 2 % or so.
            least = 0.99 if method == "dpsgd" else 0.97
            assert least * target <= figure <= target * (1 + 1e-4), method


def test_the_cost_of_all_together_is_printed_and_right(made):
    cost = made.content["cost"]
    (first, *_), (second, *_) = ledgers(made)
    assert first.studies == second.studies
    assert cost["planned_in_advance"] is True
    # By hand: Gaussian answers of several noises add up as n/σ², by the published bounds.
    events = [event for charge in ledgers(made)[0] for event in charge.events]
    total = sum(event.count / event.event.sigma**2 for event in events)
    assert cost["pate"]["epsilon"] < 0.9 * gaussian_answers(1.0, total, DELTA)
    assert tied_answers(events) <= cost["pate"]["epsilon"] <= 1.02 * tied_answers(events)
    together = cost["together"]
    assert together["epsilon"] == pytest.approx(cost["pate"]["epsilon"] + cost["dpsgd"]["epsilon"])
    assert together["delta"] == pytest.approx(2 * DELTA)
    assert together["epsilon"] > max(EPSILONS) * 2
    printed = made.printed
    assert printed.index("both, which a table of all of them costs") < printed.index(
        "PATE (teachers), ε = 4"
    )
    notes = " ".join(made.content["notes"])
    assert "This table, which rests on all of them: ε = " in notes
    assert "Settings were chosen in the dark." in notes
    relations = {
        key: figure["neighbours"] for key, figure in cost.items() if key != "planned_in_advance"
    }
    assert relations == {"pate": "add-remove", "dpsgd": "zero-out", "together": "zero-out"}
    assert "PATE's ε is for one record added or removed, DP-SGD's for one record's contrib" in notes
    assert "so the two ε can be compared; PATE's hides the number of records too" in notes
    assert notes.count("do not publish") == 1
    for note in made.content["notes"]:
        assert note in printed


def test_files_are_for_their_owner_and_agree(made):
    for kind in ("json", "csv", "png", "svg"):
        assert stat.S_IMODE((made.place / f"compare.{kind}").stat().st_mode) == 0o600
    with (made.place / "compare.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == len(made.content["rows"])
    for line, row in zip(table, made.content["rows"], strict=True):
        assert line["method"] == row["method"]
        assert float(line["accuracy"]) == row["accuracy"]
        assert json.loads(line["publishable"]) is row["publishable"]
        assert line["epsilon"] == ("" if row["epsilon"] is None else str(row["epsilon"]))
    assert stat.S_IMODE((made.place / "private").stat().st_mode) == 0o700


@pytest.mark.campaign
def test_a_notebook_shows_what_may_be_published(made):
    with contextlib.chdir(made.folder):
        found = pate.compare("mine.toml", engine="serial", data_root="data")
    shown = found._repr_html_()
    table, _, notes = shown.partition("Not shown, because it may not be published: ")
    assert "DP-SGD" in table
    assert "without privacy" not in table  # the accuracy of a model on private records
    assert notes.startswith("without privacy.")
    assert "together" in notes.partition("<details>")[0]
    assert [row["method"] for row in found.table()] == [row.method for row in found.rows]
    assert found.plot()._repr_png_().startswith(b"\x89PNG")
    assert repr(found) == f"<Comparison mine of {len(found.rows)} rows in runs/mine>"


def test_running_it_again_costs_nothing_and_changes_nothing(made):
    before = ledgers(made)
    again = made.call(*WORDS, "--json").stdout
    assert as_written(again) == made.content
    assert ledgers(made) == before


def test_what_is_done_is_reported_as_done(made):
    assert "done before" not in made.printed
    printed = made.call(*WORDS).stdout
    for method in ("PATE (teachers)", "DP-SGD"):
        for epsilon in EPSILONS:
            for number in range(SEEDS):
                what = f"{method}, ε = {epsilon:g}, repetition {number + 1} of {SEEDS}"
                assert f"{what}\n" in made.printed
                assert f"{what}: done before\n" in printed


@pytest.mark.parametrize("name", LEDGERS)
@pytest.mark.sample(1)
def test_a_comparison_whose_ledger_is_lost_is_refused_and_none_is_made(made, name):
    ledger = made.folder / "data" / "ledgers" / name
    table = (made.place / "compare.json").read_bytes()
    ledger.rename(made.folder / "away")
    try:
        for more in ((), ("--spend",), ("--epsilon", "4,8,16")):
            done = made.call(*WORDS, *more, code=2)
            assert done.stderr.count("\n") == 1
            assert f"data/ledgers/{name} lacks the charge of" in done.stderr
            assert "restore the ledger from a backup" in done.stderr
            assert not ledger.exists()
    finally:
        (made.folder / "away").replace(ledger)
    assert ledger.with_name("digits.key").exists()  # it is the charges that were missed
    assert (made.place / "compare.json").read_bytes() == table
    assert as_written(made.call(*WORDS, "--json").stdout) == made.content


@pytest.mark.parametrize("name", LEDGERS)
@pytest.mark.campaign
def test_an_older_copy_of_a_ledger_is_no_ledger_of_what_is_released(begun, name):
    """Of two points one is missing: the copy was made between them."""
    ledger = begun.folder / "data" / "ledgers" / name
    shutil.copy(ledger, begun.folder / "copy")
    compared(begun, "--epsilon", "4,8")
    shutil.copy(begun.folder / "copy", ledger)
    printed = begun.call(*ONCE, "--epsilon", "4,8", code=2).stderr
    assert printed.count("\n") == 1
    assert f"data/ledgers/{name} lacks the charge of" in printed
    assert "restore the ledger from a backup" in printed


@pytest.mark.campaign
def test_what_is_in_the_folder_and_not_asked_for_must_be_paid_for_too(begun):
    """Also a model whose checkpoint is gone: the name of its charge is lost."""
    kept = [begun.folder / "data" / "ledgers" / name for name in LEDGERS]
    for ledger in kept:
        ledger.rename(ledger.with_suffix(".away"))
    printed = begun.call(*ONCE, "--epsilon", "8", code=2).stderr
    assert f"data/ledgers/{LEDGERS[0]} lacks the charge of labels" in printed
    kept[0].with_suffix(".away").rename(kept[0])
    printed = begun.call(*ONCE, "--epsilon", "8", code=2).stderr
    assert f"data/ledgers/{LEDGERS[1]} lacks the charge of the model" in printed
    (checkpoint,) = begun.folder.glob("runs/mine/dpsgd/*/private/*/checkpoint.safetensors")
    checkpoint.unlink()
    for epsilon in ("4", "8"):
        printed = begun.call(*ONCE, "--epsilon", epsilon, code=2).stderr
        assert printed.count("\n") == 1
        assert "without its checkpoint.safetensors" in printed
    assert not kept[1].exists()


def test_the_folder_is_a_run_of_the_largest_epsilon_with_a_report(made):
    recipe = json.loads((made.place / "recipe.json").read_text())
    assert recipe["privacy"]["epsilon"] == 8.0
    assert recipe["partition"]["key"] == "pate"  # the recipe's own seed
    assert "missing" not in made.call("status", "runs/mine").stdout
    made.call("report", "runs/mine")
    text = (made.place / "report.html").read_text()
    assert 'id="comparison"' in text
    assert "publishing this section costs all of them together" in text
    assert "without privacy" not in text
    (reference,) = rows(made, "reference")
    section = text[text.index('id="comparison"') : text.index('id="provenance"')]
    section = re.sub(r"(?s)<svg.*?</svg>", "", section)  # coordinates may be any number
    assert f"{100 * reference['accuracy']:.1f}" not in re.findall(r"\d+\.\d", section)


ONCE = (*WORDS, "--seeds", "1", "--json")


def compared(project, *words):
    """The result of a comparison with one repetition, and whether all was fixed in advance."""
    content = as_written(project.call(*ONCE, *words).stdout)
    fixed = content["cost"]["planned_in_advance"]
    assert any(NOT_PLANNED in note for note in content["notes"]) is not fixed  # in words, too
    return content, fixed


@pytest.fixture(scope="module")
def first(tmp_path_factory, project_in):
    """A comparison at ε = 4, once, and a copy of its files."""
    project = write(project_in(tmp_path_factory.mktemp("first")))
    project.content, fixed = compared(project, "--epsilon", "4")
    assert fixed
    shutil.copytree(project.folder, project.folder.with_name("first-copy"))
    return project


@pytest.fixture
def begun(first):
    """The same, as it was at first: a test may go on in it."""
    shutil.rmtree(first.folder)
    shutil.copytree(first.folder.with_name("first-copy"), first.folder)
    return first


def readings(project):
    """What the ledgers publish of all their releases."""
    found = {}
    for method, name in zip(("pate", "dpsgd"), LEDGERS, strict=True):
        with Ledger.open(project.folder / "data" / "ledgers" / name) as ledger:
            found[method] = ledger.guarantee().epsilon
    return found


def require_readings(project, content):
    for method, reading in readings(project).items():
        assert content["cost"][method]["epsilon"] == pytest.approx(reading)


def figures(printed):
    """The ε that are announced: of PATE, of DP-SGD, and of both together."""
    heads = (
        "PATE: at most",
        "DP-SGD: at most",
        "both, which a table of all of them costs: at most",
    )
    return [re.search(rf"^{head} ε = (\S+) at", printed, re.MULTILINE)[1] for head in heads]


def test_points_that_are_added_later_cost_what_the_ledgers_state(begun):
    content = begun.content
    assert content["seeded"] is False
    assert content["rows"][0]["spread"] is None  # of one repetition there is none
    require_readings(begun, content)  # each ledger's λ is the best one for its plan
    before = files_of(begun)
    # A seeded one in the same folder would take its place.
    done = begun.call(*ONCE, "--epsilon", "4,8", "--insecure-seed", "1", code=2)
    assert "is of secure noise, and would be overwritten by one of seeded noise" in done.stderr
    assert len([line for line in done.stderr.splitlines() if "NOT PRIVATE" not in line]) == 1
    assert files_of(begun) == before
    printed = begun.call(*WORDS, "--seeds", "1", "--epsilon", "4,8").stdout
    content = json.loads((begun.folder / "runs/mine/compare.json").read_text())
    cost = content["cost"]
    assert [row["target"] for row in content["rows"] if row["method"] == "pate"] == [4, 8]
    assert [len(charges) for charges in ledgers(begun)] == [2, 2]  # one more on either side
    assert cost["planned_in_advance"] is False
    require_readings(begun, content)
    assert cost["together"]["epsilon"] == pytest.approx(sum(readings(begun).values()))
    assert cost["together"]["delta"] == pytest.approx(2 * DELTA)
    # What is printed before the first charge is what holds after the last one.
    beforehand = printed[: printed.index("PATE (teachers), ε = 4")]
    wanted = [cost[part]["epsilon"] for part in ("pate", "dpsgd", "together")]
    assert figures(beforehand) == [format_epsilon(each) for each in wanted]
    assert f"These are {NOT_PLANNED} (study “compare mine”)" in beforehand
    assert compared(begun, "--epsilon", "4")[1] is False  # what was seen stays seen


def files_of(project):
    """All files of runs and ledgers, and what is in them."""
    places = [each for name in ("runs", "data") for each in (project.folder / name).rglob("*")]
    return {str(each): each.read_bytes() for each in places if each.is_file()}


@pytest.mark.campaign
def test_true_labels_of_inputs_that_answers_decided_on_cost_what_the_answers_do(project):
    """How far was asked is known from answers, which were paid for."""
    recipe = RECIPE.replace('mechanism = "gnmax"\n', CONFIDENT)
    write(project, recipe.replace("steps = 12\n", "steps = 12\nrecords = 1500\n"))
    content, fixed = compared(project, "--epsilon", "4,8")
    assert fixed
    assert {row["neighbours"] for row in content["rows"]} == {"add-remove", None}
    assert content["cost"]["together"]["neighbours"] == "add-remove"
    alike = "Both ε are for one record added or removed and can be compared directly."
    assert alike in content["notes"]
    *_, pate = [row for row in content["rows"] if row["method"] == "pate"]
    (informed,) = [row for row in content["rows"] if row["method"] == "public-labels"]
    assert 0 < pate["epsilon"] <= pate["target"] == 8
    assert informed["epsilon"] == pate["epsilon"]
    assert informed["neighbours"] == pate["neighbours"] == "add-remove"
    assert informed["publishable"] is True
    (once,), (paid,) = informed["runs"], pate["runs"]
    assert (once["epsilon"], once["delta"]) == (paid["epsilon"], paid["delta"])
    project.call("report", "runs/mine")
    text = (project.folder / "runs/mine/report.html").read_text()
    section = text[text.index('id="comparison"') : text.index('id="provenance"')]
    assert alike in section
    row = re.search(r"<tr>\s*<t[hd][^>]*>true public labels.*?</tr>", section, re.DOTALL)
    assert row is not None
    assert shown_epsilon(pate["epsilon"]) in row[0]
    seeded, _ = compared(project, "--epsilon", "4", "--insecure-seed", "1", "--out", "runs/seeded")
    (informed,) = [row for row in seeded["rows"] if row["method"] == "public-labels"]
    assert informed["publishable"] is False  # it rests on answers that are not private


@pytest.mark.campaign
def test_a_comparison_of_the_same_name_elsewhere_is_part_of_the_study(project):
    write(project)
    _, fixed = compared(project, "--out", "a/c", "--epsilon", "4")
    assert fixed
    compared(project, "--out", "b/c", "--epsilon", "4,8", "--spend")
    assert [len(charges) for charges in ledgers(project)] == [3, 3]
    content, fixed = compared(project, "--out", "a/c", "--epsilon", "4")
    assert not fixed
    require_readings(project, content)


@pytest.mark.campaign
def test_a_lost_model_is_not_paid_for_again_unasked(project):
    write(project)
    _, fixed = compared(project, "--epsilon", "4,8")
    assert fixed
    (model,) = (project.folder / "runs/mine/dpsgd").glob("epsilon-4-*")
    model.rename(project.folder / "away")
    printed = project.call(*ONCE, "--epsilon", "4,8", code=3).stderr
    assert printed.count("\n") == 1
    assert "has already paid for such a model of the study “compare mine”" in printed
    assert "resume in its own folder, named “mine”" in printed
    assert "another name" not in printed  # there, PATE's labels would be the same, and paid for
    assert "add --spend" in printed
    assert [len(charges) for charges in ledgers(project)] == [2, 2]
    content, fixed = compared(project, "--epsilon", "4,8", "--spend")
    assert [len(charges) for charges in ledgers(project)] == [2, 3]
    assert not fixed
    require_readings(project, content)
    assert compared(project, "--epsilon", "4,8")[1] is False  # it is known from now on


@pytest.mark.campaign
@pytest.mark.parametrize("name", LEDGERS)
def test_what_was_run_by_itself_is_not_used(begun, name):
    """Points of either method in the comparison's folder that do not bear its tag."""
    file = begun.folder / "data" / "ledgers" / name
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM studies")
    before = ledgers(begun)
    printed = begun.call(*ONCE, "--epsilon", "4,8", code=2).stderr
    assert printed.count("\n") == 1
    assert "a study uses only what was released for it" in printed
    assert "give another --out and --spend, which pays for releases of its own" in printed
    assert ledgers(begun) == before
    compared(begun, "--epsilon", "4,8", "--out", "runs/own", "--spend")  # the remedy is one
    charged = [len(after) - len(old) for after, old in zip(ledgers(begun), before, strict=True)]
    assert charged == [2, 2]


def interrupted(*words):
    raise KeyboardInterrupt


@pytest.mark.campaign
def test_a_model_keeps_its_study_whoever_brings_it_to_its_end(project, monkeypatch):
    write(project)
    from dpsgd import training

    with monkeypatch.context() as patch:
        patch.setattr(training._Training, "release", interrupted)
        project.call(*ONCE, "--epsilon", "4", code=130)
    options = training.TrainingOptions
    monkeypatch.setattr(
        training, "TrainingOptions", lambda **words: options(**words | {"study": None})
    )
    compared(project, "--epsilon", "4")
    (file,) = project.folder.glob("runs/mine/dpsgd/*/released/training/*/guarantee.json")
    assert json.loads(file.read_text())["study"] == "compare mine"


@pytest.mark.campaign
def test_fewer_points_after_a_result_cost_what_was_planned(project, monkeypatch):
    write(project)

    with monkeypatch.context() as patch:
        patch.setattr("dpsgd.training.train", lambda *words: sys.exit(9))
        project.call(*ONCE, "--epsilon", "4,8", code=9)
    assert [len(charges) for charges in ledgers(project)] == [1, 0]
    content, fixed = compared(project, "--epsilon", "4")
    assert fixed
    stopped = content["cost"]
    content, fixed = compared(project, "--epsilon", "4,8")
    assert fixed
    assert content["cost"] == stopped


def kill_when(project, ready):
    """Starts the comparison, and kills it and all it started once ``ready`` is true."""
    process = subprocess.Popen(
        project.command(*WORDS),
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 600
        while not ready():
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.campaign
def test_killed_and_run_again_it_pays_once_and_knows_its_times(project):
    write(project, RECIPE.replace("steps = 12", "steps = 300"))
    place = project.folder / "runs" / "mine"
    checkpoints = "dpsgd/epsilon-4-seed-0-*/private/*/checkpoint.safetensors"
    # In the middle of a model, then among the second repetition's shards and votes.
    kill_when(project, lambda: ledgers(project)[1] and any(place.glob(checkpoints)))
    assert not any(place.glob("dpsgd/*/released/training/*"))
    assert not (place / "compare.json").exists()
    kill_when(project, lambda: len(list(place.glob("private/partition/*/manifest.json"))) == 2)
    compare(project)
    for charges in ledgers(project):
        assert len(charges) == len(EPSILONS) * SEEDS
        assert {charge.studies for charge in charges} == {("compare mine",)}
    content = json.loads((place / "compare.json").read_text())
    priced = [row for row in content["rows"] if row["method"] in ("pate", "dpsgd")]
    assert all(row["seconds"] > 0 and row["peak_memory_mb"] > 50 for row in priced)
    whole = {(row["method"], row["target"]): [once["whole"] for once in row["runs"]]
             for row in priced}  # fmt: skip
    assert whole["dpsgd", 4.0] == [False, True]  # the one that was killed in the middle
    assert whole["dpsgd", 8.0] == [True, True]
    assert whole["pate", 4.0][0] is True


def test_a_budget_without_room_is_refused_before_anything_is_charged(project):
    write(project)
    folder = project.folder / "data" / "ledgers"
    folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(folder / "digits.dpsgd.ledger", budget=Guarantee(epsilon=3.0, delta=DELTA)):
        pass
    printed = project.call(*WORDS, code=3).stderr
    assert printed.count("\n") == 1
    assert "what DP-SGD is to release here would bring ε" in printed
    assert "past the budget of 3" in printed
    assert ledgers(project) == [[], []]
    assert not (folder / "digits.ledger").exists()  # its terms are still to be agreed on


def test_a_model_that_dpsgd_refuses_is_refused_before_anything_is_charged(project):
    project.plugin(
        "nets",
        "from torch import nn\n"
        "def norm(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(),\n"
        "                         nn.Linear(8, classes))\n"
        "def narrow(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, classes - 1))\n",
    )
    write(project, RECIPE.replace("dpsgd.models:linear", "nets:norm"))
    words = (*WORDS, "--plugin-path", "plugins", "--epsilon", "8", "--seeds", "1")
    printed = project.call(*words, code=2).stderr
    assert printed.count("\n") == 1
    assert "2 (BatchNorm1d): mixes the examples" in printed
    assert "by fix = true in the section of the model" in printed
    narrow = project.call(*words, "--set", "dpsgd.model.entry=nets:narrow", code=2)
    assert "has 9 outputs" in narrow.stderr
    assert ledgers(project) == [[], []]
    assert not list(project.folder.rglob("*.ledger"))
    project.call(*words, "--set", "dpsgd.fix=true")  # reaches dpsgd.fix
    assert [len(each) for each in ledgers(project)] == [1, 1]


def test_shards_that_cannot_be_made_leave_no_ledger(project):
    """Its terms are agreed on for ever: not by a comparison that never begins."""
    write(project)
    words = ("--set", "pate.teachers.count=100000", "--set", "pate.partition.method=shuffle")
    printed = project.call(*WORDS, *words, code=2).stderr
    assert len(printed.splitlines()) == 1
    assert "100000" in printed
    assert not list(project.folder.rglob("*.ledger"))


@pytest.mark.campaign
def test_seeded_noise_is_reported_and_publishes_nothing(project):
    write(project)
    done = project.call(*WORDS, "--insecure-seed", "1", "--epsilon", "4", "--seeds", "1", "--json")
    assert "NOT PRIVATE" in done.stderr
    content = json.loads(done.stdout)
    for row in content["rows"]:
        assert row["publishable"] is (row["method"] in ("majority", "public-labels"))
    assert content["notes"][0] == "The noise was seeded: nothing in this table is private."
    assert content["seeded"] is True
    assert not any("cost" in note or "together" in note for note in content["notes"])
    assert ledgers(project) == [[], []]  # the private ledgers were not touched
    project.call("report", "runs/mine", "--insecure-seed", "1")
    assert 'id="comparison"' not in (project.folder / "runs/mine/report.html").read_text()
    before = files_of(project)
    printed = project.call(*ONCE, "--epsilon", "4", code=2).stderr  # secure noise in its place
    assert printed.count("\n") == 1
    assert "is of seeded noise, and would be overwritten by one of secure noise" in printed
    assert files_of(project) == before


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("mine.toml", "--epsilon", "0"), "--epsilon 0: ε = 0 is no target"),
        (("mine.toml", "--epsilon", "1,-2"), "--epsilon 1,-2: ε = -2 is no target"),
        (("mine.toml", "--epsilon", "nan"), "ε = nan is no target"),
        (("mine.toml", "--epsilon", "inf"), "ε = inf is no target"),
        (("mine.toml", "--epsilon", "one,2"), "--epsilon “one,2” is no list of numbers"),
        (("mine.toml", "--epsilon", ""), "is no list of numbers"),
        (("mine.toml", "--epsilon", "1,2,1.0"), "ε = 1 is named twice"),
        (("mine.toml", "--seeds", "0"), "--seeds 0: give a whole number"),
        (("mine.toml", "--set", "pate.teachers.cuont=3"), "did you mean count?"),
        (("mine.toml", "--plugin-path", "nowhere"), "nothing at --plugin-path nowhere"),
        (("mine.toml", "--engine", "steam"), "steam"),
        (("digits",), "is a recipe for `pate run`, not for `pate compare`"),
        (("digits-dpsgd",), "run `dpsgd train digits-dpsgd`"),
        (("compare-digit",), "did you mean compare-digits?"),
        (("nowhere.toml",), "there is no recipe file nowhere.toml"),
        (("mine.toml", "--out", "mine.toml/run"), "mine.toml"),
    ],
)
def test_a_mistake_is_one_line(project, words, printed):
    write(project)
    done = project.call("compare", *words, code=2)
    assert done.stderr.count("\n") == 1
    assert printed in done.stderr
    assert done.stdout == ""
    assert not list(project.folder.glob("data/ledgers/*.ledger"))


def test_other_commands_point_to_it(project):
    write(project)
    assert "run `pate compare mine.toml`" in project.call("run", "mine.toml", code=2).stderr


def test_a_dry_run_states_the_charges_of_both_methods(made, tmp_path, project_in):
    """Of a comparison that is done there are none; of a new one they are what it came to."""
    assert "nothing to charge" in made.call(*WORDS, "--dry-run").stdout
    elsewhere = (*WORDS, "--out", "elsewhere", "--dry-run")
    assert "--spend will be needed" in made.call(*elsewhere).stdout
    assert "--spend will be needed" not in made.call(*elsewhere, "--spend").stdout
    assert not (made.folder / "elsewhere").exists()
    new = write(project_in(tmp_path))
    planned = json.loads(new.call(*WORDS, "--dry-run", "--json").stdout)
    assert not (new.folder / "runs").exists()
    assert [Path(each["ledger"]).name for each in planned["charges"]] == list(LEDGERS)
    assert not any(Path(each["ledger"]).exists() for each in planned["charges"])
    count = len(EPSILONS) * SEEDS
    assert [each["of"] for each in planned["charges"]] == [
        f"{count} releases of PATE",
        f"{count} releases of DP-SGD",
    ]
    with Ledger.open(made.folder / "data" / "ledgers" / LEDGERS[1]) as ledger:
        total = ledger.data_set_total()
    assert planned["charges"][1]["total"] == pytest.approx(total.epsilon, rel=1e-9)
