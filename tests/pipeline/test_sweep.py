"""``pate sweep``: teachers once, every release paid and tagged, the cost of choosing printed."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import CENTROIDS, as_written

from pate._format import format_epsilon
from pate.accounting import Guarantee, LaplaceNoisyMaxAnswer, Ledger, Repeated, compose
from pate.accounting.ledger.study_costs import NOT_PLANNED, StudyCost, study_cost
from pate.accounting.ledger.terms import moment_for
from pate.errors import LedgerError

CHECKED = {"scale": None, "threshold": 3.0, "sigma1": 4.0, "sigma2": 4.0}
OVER = ("--over", "teachers.count=4,6", "--over", "aggregate.scale=2.0,4.0,8.0")
TWO = ("--over", "aggregate.scale=2.0,4.0")
STUDY = "sweep tiny-sweep"
DELTA = 1e-3

# Notes every training and every fit of a student in a file of its own, and may take its time.
NOTING = """
import os, time
import centroids


class Noting(centroids.Centroids):
    def __init__(self, classes, journal, nap=0.0):
        super().__init__(classes)
        self.journal, self.nap = journal, nap

    def fit(self, X, y):
        time.sleep(self.nap)
        with open(self.journal, "a") as file:
            file.write("fit\\n")
        return super().fit(X, y)
"""


@pytest.fixture(autouse=True)
def _no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes half of a small sweep's time; only one test here looks at the plots."""
    if request.node.name != "test_teachers_once_releases_paid_and_tagged_and_nothing_twice":
        monkeypatch.setattr("pate.studies.sweep.plot_sweep", lambda *_: None)


def sweep(project: Any, *words: str, code: int = 0) -> Any:
    """``pate sweep`` of the tiny recipe, in this process."""
    return project.call_run(*words, stage="sweep", code=code)


def swept(project: Any, name: str = "tiny-sweep") -> dict[str, Any]:
    return json.loads((project.folder / "runs" / name / "sweep.json").read_text())


def charges(project: Any) -> list[Any]:
    if not project.ledger.exists():
        return []
    with Ledger.open(project.ledger) as ledger:
        return ledger.charges()


def of_ledger(project: Any) -> float:
    """The ε of all releases of the data set, however they were chosen."""
    with Ledger.open(project.ledger) as ledger:
        return ledger.guarantee().epsilon


def study(project: Any, name: str = STUDY) -> StudyCost:
    with Ledger.open(project.ledger) as ledger:
        return study_cost(ledger, name)


def planned_scales(project: Any, name: str = STUDY) -> list[float]:
    """The scales of the plan in the ledger."""
    with Ledger.open(project.ledger) as ledger:
        events = ledger.study_plans()[name].events
    return [each.event.scale for each in events]


def unplanned(project: Any, *, releases: int) -> dict[str, Any]:
    """The cost in sweep.json of a study that was not all planned in advance."""
    return {"releases": releases, "unpaid": 0, "epsilon": of_ledger(project), "delta": DELTA,
            "planned_in_advance": False}  # fmt: skip


def unplanned_cost(project: Any) -> str:
    return f"cost ε = {format_epsilon(of_ledger(project))} at δ = 0.001 together ({NOT_PLANNED})"


def refused_of(project: Any, folder: str, scale: str) -> str:
    """The line that refuses to let out the point of this scale."""
    words = ("--set", "privacy.sanitise=false", "--set", f"aggregate.scale={scale}")
    project.call_run("--out", folder, *words)
    words = ("--plugin-path", "plugins", "--data-root", "data")
    (line,) = project.call("release", folder, "out", *words, code=2).stderr.splitlines()
    return line


def cost_of(scales: list[float], queries: int = 12) -> float:
    events = [Repeated(LaplaceNoisyMaxAnswer(scale=scale), queries) for scale in scales]
    return compose(events).guarantee(delta=DELTA).epsilon


def _fits(budget: float, scales: list[float]) -> bool:
    """Whether a ledger of this budget has room for releases with these scales."""
    moment = moment_for(Guarantee(epsilon=budget, delta=DELTA))
    events = [Repeated(LaplaceNoisyMaxAnswer(scale=scale), 12) for scale in scales]
    return compose(events, [moment]).guarantee(delta=DELTA).epsilon <= budget


@pytest.fixture
def noting(project: Any) -> Any:
    """A project whose teachers and students leave a line for each time they learn."""
    project.plugin("noting", NOTING)
    for section in ("teachers", "student"):
        journal = str(project.folder / f"{section}.journal")
        keys = {"model": "noting:Noting", "params": {"journal": journal}}
        project.sections[section] |= keys
    project.write()
    return project


def fits(project: Any, section: str) -> int:
    journal = project.folder / f"{section}.journal"
    return journal.read_text().count("fit") if journal.exists() else 0


def test_teachers_once_releases_paid_and_tagged_and_nothing_twice(noting: Any) -> None:
    printed = sweep(noting, *OVER).stdout
    folder = noting.folder / "runs" / "tiny-sweep"
    assert fits(noting, "teachers") == 4 + 6
    assert printed.count("teach: running") == printed.count("vote: running") == 2
    assert printed.count("aggregate: running") == 6
    students = len(list(folder.glob("*/distill/*/")))  # equal releases share one
    assert 3 <= students <= 6
    assert fits(noting, "student") == students + 1  # it is tried once before the first charge
    paid = charges(noting)
    assert [each.studies for each in paid] == [(STUDY,)] * 6
    assert sorted(str(each.events) for each in paid) == sorted(
        str((Repeated(LaplaceNoisyMaxAnswer(scale=scale), 12),)) for scale in (2.0, 4.0, 8.0) * 2
    )

    found = swept(noting)
    assert found["complete"] is True
    assert found["points"] == len(found["rows"]) == 6
    assert [row["settings"]["teachers.count"] for row in found["rows"]] == [4, 4, 4, 6, 6, 6]
    assert [row["settings"]["aggregate.scale"] for row in found["rows"]] == [2.0, 4.0, 8.0] * 2
    for row in found["rows"]:
        assert row["epsilon"] == pytest.approx(cost_of([row["settings"]["aggregate.scale"]]))
        assert (row["delta"], row["asked"], row["answered"]) == (DELTA, 12, 12)
        assert row["teachers"] == row["settings"]["teachers.count"]
        assert row["student"]["low"] <= row["student"]["accuracy"] <= row["student"]["high"]
        assert row["labels"]["records"] == 12
    assert found["together"] == {
        "releases": 6, "unpaid": 0, "epsilon": pytest.approx(cost_of([2.0, 4.0, 8.0] * 2)),
        "delta": DELTA, "planned_in_advance": True,
    }  # fmt: skip
    assert found["seeded"] is False

    for kind in ("json", "csv", "png", "svg"):
        assert stat.S_IMODE((folder / f"sweep.{kind}").stat().st_mode) == 0o600
    with (folder / "sweep.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(line["accuracy"]) for line in table] == [
        row["student"]["accuracy"] for row in found["rows"]
    ]
    assert [line["aggregate.scale"] for line in table] == ["2.0", "4.0", "8.0"] * 2

    recipe = json.loads((folder / "recipe.json").read_text())
    assert (recipe["teachers"]["count"], recipe["aggregate"]["scale"]) == (4, 2.0)
    assert recipe["privacy"]["sanitise"] is False

    before = {file.name: file.read_bytes() for file in folder.glob("sweep.*")}
    again = sweep(noting, *OVER).stdout
    assert "running" not in again
    assert "6 of these points' releases are paid for" in again
    assert (fits(noting, "teachers"), fits(noting, "student")) == (10, students + 1)
    assert charges(noting) == paid
    assert {file.name: file.read_bytes() for file in folder.glob("sweep.*")} == before


def test_the_warning_states_what_all_of_it_costs(project: Any) -> None:
    printed = sweep(project, *TWO).stdout
    content = f"ε = {format_epsilon(cost_of([2.0, 4.0]))} at δ = 0.001 for 2 releases together"
    assert f"2 points: the study costs at most {content}" in printed
    assert f"Choosing the best by these accuracies costs all of them: {content}." in printed
    assert "--private-selection" in printed
    assert "`pate plan`" in printed
    # What all of it costs is printed before the first release is drawn.
    assert printed.index("at most") < printed.index("aggregate: running")
    shown = project.call("ledger", "show", "data/ledgers/tiny.ledger").stdout
    assert f"sweep tiny-sweep: {content}" in shown


@pytest.mark.campaign
def test_one_point_is_taken_up_as_it_is(project: Any) -> None:
    printed = sweep(project, *TWO, "--set", "aggregate.queries=10").stdout
    paid = charges(project)
    commands = [line.split() for line in printed.splitlines() if line.startswith("  pate ")]
    assert [words[1] for words in commands] == ["run", "report"]
    run, report = (shlex.split(" ".join(words))[1:] for words in commands)
    second = [word.replace("scale=2.0", "scale=4.0") for word in run]
    assert second != run
    taken = project.call(*second).stdout
    assert "nothing to do" in taken
    assert charges(project) == paid
    project.call(*report)
    assert (project.folder / "runs" / "tiny-sweep" / "report.html").is_file()


def test_points_of_one_release_pay_once(project: Any) -> None:
    printed = sweep(project, "--over", "student.seed=1,2,3").stdout
    assert len(charges(project)) == 1
    assert printed.count("aggregate: running") == 1
    assert f"ε = {format_epsilon(cost_of([2.0]))} at δ = 0.001 for 1 release." in printed
    found = swept(project)
    assert len(found["rows"]) == 3
    assert found["together"]["epsilon"] == pytest.approx(cost_of([2.0]))


def test_json_for_machines_and_nothing_else(project: Any) -> None:
    done = sweep(project, *TWO, "--json")
    assert as_written(done.stdout) == swept(project)
    assert "point 1 of 2" in done.stderr
    quiet = sweep(project, *TWO, "--json", "--quiet")
    assert quiet.stderr == ""
    assert as_written(quiet.stdout) == swept(project)


def test_quiet_prints_the_result_alone(project: Any) -> None:
    printed = sweep(project, *TWO, "--quiet").stdout
    assert "running" not in printed
    assert "Choosing the best" in printed


def test_seeded_noise_is_not_private(project: Any) -> None:
    done = sweep(project, "--over", "aggregate.scale=2.0,4.0", "--insecure-seed", "3")
    assert "this sweep is NOT PRIVATE" in done.stdout
    assert not project.ledger.exists()
    assert [row["private"] for row in swept(project)["rows"]] == [False, False]
    assert "--insecure-seed 3" in done.stdout  # a point is taken up with the same seed
    assert swept(project)["seeded"] is True
    assert "Choosing the best" not in done.stdout  # no figure of it would hold


def test_a_budget_too_small_is_refused_before_anything_is_charged(noting: Any) -> None:
    one, all_of_them = cost_of([2.0]), cost_of([2.0, 4.0, 8.0] * 2)
    budget = (one + all_of_them) / 2  # enough for any of them, not for all
    done = sweep(noting, *OVER, "--set", f"privacy.budget={budget}", code=3)
    assert charges(noting) == []
    assert fits(noting, "teachers") == 0
    (line,) = done.stderr.splitlines()
    assert "the 6 releases of this sweep would bring ε to" in line
    assert "nothing was charged" in line
    fewer = ("--over", "aggregate.scale=8.0,16.0", "--set", f"privacy.budget={budget}")
    sweep(noting, *fewer)
    assert len(charges(noting)) == 2


def test_a_point_that_pays_for_no_answer_is_named(project: Any) -> None:
    done = sweep(project, "--over", "privacy.epsilon=20.0,0.001", code=3)
    (line,) = done.stderr.splitlines()
    assert "privacy.epsilon=0.001: one answer alone costs" in line
    assert charges(project) == []


def test_more_teachers_than_records_are_found_before_anything_is_charged(noting: Any) -> None:
    """Where their number is public: of a hashed partition it is not reported (test_run.py)."""
    shuffled = ("--set", "partition.method=shuffle")
    done = sweep(noting, *shuffled, "--over", "teachers.count=4,500", code=2)
    (line,) = done.stderr.splitlines()
    assert "500 teachers are more than the private records" in line
    assert charges(noting) == []
    assert fits(noting, "teachers") == 0


def test_labels_too_few_for_a_student_leave_a_row_without_one(project: Any) -> None:
    printed = sweep(project, "--over", "aggregate.queries=1,12").stdout
    rows = swept(project)["rows"]
    assert rows[0]["student"] is None
    assert rows[1]["student"] is not None
    assert "too few labels" in printed
    assert sweep(project, "--over", "aggregate.queries=1,12").stdout.count("running") == 0
    assert len(charges(project)) == 2


@pytest.mark.campaign
def test_points_added_after_a_result_are_covered_by_the_ledger_alone(project: Any) -> None:
    sweep(project, *TWO)
    assert swept(project)["together"]["planned_in_advance"] is True
    fewer = sweep(project, "--over", "aggregate.scale=4.0").stdout  # was planned with the others
    assert NOT_PLANNED not in fewer
    assert swept(project)["together"]["releases"] == 2  # one more was looked at
    assert swept(project)["together"]["planned_in_advance"] is True
    printed = sweep(project, "--over", "aggregate.scale=4.0,8.0").stdout
    whole = of_ledger(project)
    content = f"ε = {format_epsilon(whole)} at δ = 0.001 for 3 releases together"
    assert f"costs all of them: {content} ({NOT_PLANNED})." in printed
    # The same cost is printed before the new point is drawn.
    first = printed.splitlines()[0]
    assert first.startswith(f"2 points, 1 to be paid for; not all of the study “{STUDY}” was ")
    assert f"To look at it costs {content}" in first
    assert swept(project)["together"] == unplanned(project, releases=3)
    assert whole > cost_of([2.0, 4.0, 8.0])
    again = sweep(project, "--over", "aggregate.scale=4.0,8.0").stdout
    assert NOT_PLANNED in again  # it stays so
    assert swept(project)["together"] == unplanned(project, releases=3)


@pytest.mark.campaign
def test_a_sweep_of_the_same_name_elsewhere_is_part_of_the_study(project: Any) -> None:
    for place in ("one", "two", "one"):
        sweep(project, *TWO, "--out", f"{place}/it", *(["--spend"] if place == "two" else []))
        found = json.loads((project.folder / place / "it" / "sweep.json").read_text())
    assert len(charges(project)) == 4
    assert found["together"] == unplanned(project, releases=4)


BEFORE = ("--set", "aggregate.scale=2.0", "--set", "privacy.sanitise=false")


def refused_as_not_its_own(project: Any, *words: str, made: str) -> None:
    """A sweep that would use another's release: one line, and nothing is charged or tagged."""
    paid = charges(project)
    (line,) = sweep(project, *words, code=2).stderr.splitlines()
    assert f"holds labels that were released {made}" in line
    assert line.endswith("give another --out and --spend, which pays for releases of its own")
    assert charges(project) == paid


def test_a_sweep_uses_no_point_that_was_run_by_itself(project: Any) -> None:
    project.call_run("--out", "runs/tiny-sweep", *BEFORE)
    refused_as_not_its_own(project, *TWO, made="by a run of its own")
    assert not (project.folder / "runs/tiny-sweep/sweep.json").exists()
    sweep(project, *TWO, "--out", "runs/own", "--spend")  # the point of before is drawn again
    assert [each.studies for each in charges(project)] == [(), *[("sweep own",)] * 2]
    assert swept(project, "own")["together"]["planned_in_advance"] is True


@pytest.mark.parametrize("after", ["drawn", "paid"])
def test_a_run_that_was_killed_is_finished_by_a_sweep_if_it_was_not_paid_for(
    project: Any, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    from pate.stages import exactly_once

    pay = exactly_once._pay

    def killed(*arguments: Any) -> None:
        if after == "paid":
            pay(*arguments)
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "_pay", killed)
        project.call_run("--out", "runs/tiny-sweep", "--set", "privacy.sanitise=false", code=9)
    if after == "paid":
        refused_as_not_its_own(project, *TWO, made="by a run of its own")
        return
    sweep(project, *TWO)  # what was drawn and not paid for was seen by nobody
    assert [each.studies for each in charges(project)] == [(STUDY,)] * 2
    assert swept(project)["together"]["planned_in_advance"] is True


def test_a_sweep_uses_no_point_of_another(project: Any) -> None:
    sweep(project, "--over", "aggregate.scale=2.0", "--out", "t/a")
    (project.folder / "t/a").rename(project.folder / "t/b")
    refused_as_not_its_own(project, *TWO, "--out", "t/b", made="for the study “sweep a”")


def test_a_draw_for_another_sweep_is_not_used_either(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be charged for the sweep that it was drawn for."""
    from pate.stages import exactly_once

    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "_pay", lambda *arguments: sys.exit(9))
        sweep(project, "--over", "aggregate.scale=2.0", "--out", "t/a", code=9)
    (project.folder / "t/a").rename(project.folder / "t/b")
    refused_as_not_its_own(project, *TWO, "--out", "t/b", made="for the study “sweep a”")


def test_a_run_in_the_folder_meanwhile_is_noticed(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second point is released by itself while the first one runs: the sweep stops."""
    from pate.studies import sweep as studies

    run, others = studies._run_point, []

    def beside(*arguments: Any) -> Any:
        row = run(*arguments)
        if not others:
            others.append("it")
            words = ("--set", "aggregate.scale=4.0", "--set", "privacy.sanitise=false", "--spend")
            project.call_run("--out", "runs/tiny-sweep", *words)
        return row

    monkeypatch.setattr(studies, "_run_point", beside)
    (line,) = sweep(project, *TWO, code=2).stderr.splitlines()
    assert "released by a run of its own" in line
    assert [each.studies for each in charges(project)] == [(STUDY,), ()]
    assert len(swept(project)["rows"]) == 1


def test_a_point_from_before_is_not_used_though_its_makings_are_gone(project: Any) -> None:
    """The labels are left; they are found done once teachers and votes are there again."""
    project.call_run(*BEFORE, "--out", "runs/tiny-sweep")
    shutil.rmtree(project.folder / "runs/tiny-sweep/private/teach")
    refused_as_not_its_own(project, *TWO, made="by a run of its own")


def test_a_point_from_before_whose_origin_is_gone_is_not_drawn_again_for_free(project: Any) -> None:
    project.call_run(*BEFORE, "--out", "runs/tiny-sweep")
    shutil.rmtree(project.folder / "runs/tiny-sweep/private")
    assert "--spend" in sweep(project, *TWO, code=3).stderr
    assert len(charges(project)) == 1


def tag_afterwards(project: Any, name: str) -> None:
    """Adds a study's tag to all charges, as older versions did to what a study reused."""
    with Ledger.open(project.ledger) as ledger:
        for each in ledger.charges():
            ledger.charge(each.events, release=each.release, study=name)


@pytest.mark.campaign
def test_a_ledger_of_an_older_version_adds_up_as_before(project: Any) -> None:
    """There a point of one study was taken over by another: it bears the tags of both."""
    sweep(project, "--over", "aggregate.scale=2.0", "--out", "t/a")
    alone = study(project, "sweep a")
    assert alone.in_advance
    tag_afterwards(project, "sweep b")
    (project.folder / "t/a").rename(project.folder / "t/b")
    printed = sweep(project, *TWO, "--out", "t/b").stdout
    assert printed.count("aggregate: running") == 1
    assert [each.studies for each in charges(project)] == [("sweep a", "sweep b"), ("sweep b",)]
    assert "not all of the study “sweep b” was planned before its first result" in printed
    found = json.loads((project.folder / "t/b/sweep.json").read_text())
    assert found["together"] == unplanned(project, releases=2)
    assert study(project, "sweep a") == alone
    refused = refused_of(project, "t/b", "4.0")
    assert "one of 2 releases of the study “sweep b”" in refused
    assert unplanned_cost(project) in refused
    refused = refused_of(project, "t/b", "2.0")  # of both
    assert "“sweep a”" in refused
    assert "“sweep b”" in refused
    assert unplanned_cost(project) in refused


def test_what_builds_on_a_point_of_two_studies_is_of_both(project: Any) -> None:
    """A sanitised ε, paid for later: the tags are there as soon as its charge is."""
    sweep(project, "--over", "aggregate.scale=2.0")
    tag_afterwards(project, "sweep b")
    project.call_run("--out", "runs/tiny-sweep", "--set", "aggregate.scale=2.0")
    labels, sanitised = charges(project)
    assert sanitised.release.startswith("sanitised ")
    assert sanitised.studies == labels.studies == (STUDY, "sweep b")


def test_stopped_after_a_result_it_costs_what_was_planned(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To stop may have been decided by what came out: the smaller figure would not cover that."""
    from pate.studies import sweep as studies

    three = ("--over", "aggregate.scale=2.0,4.0,8.0")
    run, seen = studies._run_point, []

    def killed(*arguments: Any) -> Any:
        if seen:
            raise SystemExit(9)
        seen.append(run(*arguments))
        return seen[0]

    with monkeypatch.context() as patch:
        patch.setattr(studies, "_run_point", killed)
        sweep(project, *three, code=9)
    assert len(charges(project)) == 1
    whole = {"epsilon": pytest.approx(cost_of([2.0, 4.0, 8.0])), "delta": DELTA,
             "planned_in_advance": True}  # fmt: skip
    assert swept(project)["together"] == whole | {"releases": 1, "unpaid": 2}
    printed = sweep(project, "--over", "aggregate.scale=2.0,4.0").stdout
    assert swept(project)["together"] == whole | {"releases": 2, "unpaid": 1}
    assert "for 3 releases together, 1 of them not made yet." in printed
    sweep(project, *three)
    assert swept(project)["together"] == whole | {"releases": 3, "unpaid": 0}


@pytest.mark.campaign
def test_another_sweep_in_the_folder_meanwhile_is_not_forgotten(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one planned and knows must not hide what the other one paid for."""
    from pate.studies import sweep as studies

    run, others = studies._run_point, []

    def beside(*arguments: Any) -> Any:
        row = run(*arguments)
        if not others:
            others.append("--over")
            sweep(project, "--over", "aggregate.scale=8.0")
        return row

    monkeypatch.setattr(studies, "_run_point", beside)
    sweep(project, *TWO)
    assert planned_scales(project) == [2.0, 4.0]  # that of the first
    assert [each.studies for each in charges(project)] == [(STUDY,)] * 3
    assert swept(project)["together"] == unplanned(project, releases=3)


def test_what_was_planned_and_never_paid_for_is_forgotten(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pate.studies import sweep as studies

    with monkeypatch.context() as patch:
        patch.setattr(studies, "_run_point", lambda *arguments: sys.exit(9))
        sweep(project, "--over", "aggregate.scale=2.0,4.0,8.0", code=9)
    assert charges(project) == []
    assert planned_scales(project) == [2.0, 4.0, 8.0]  # before anything is drawn
    sweep(project, *TWO)
    assert planned_scales(project) == [2.0, 4.0]
    assert swept(project)["together"] == {
        "releases": 2, "epsilon": pytest.approx(cost_of([2.0, 4.0])), "delta": DELTA,
        "planned_in_advance": True, "unpaid": 0,
    }  # fmt: skip


def test_once_something_is_charged_the_plan_stays(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the first charge, before its point is in a table."""
    from pate.stages import exactly_once

    pay = exactly_once._pay

    def killed(*arguments: Any) -> None:
        pay(*arguments)
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "_pay", killed)
        sweep(project, *TWO, code=9)
    assert len(charges(project)) == 1
    assert swept(project)["rows"] == []
    sweep(project, "--over", "aggregate.scale=2.0,8.0")
    assert planned_scales(project) == [2.0, 4.0]
    assert swept(project)["together"] == unplanned(project, releases=2)


@pytest.mark.campaign
def test_lost_answers_are_not_paid_for_again_unasked(project: Any) -> None:
    sweep(project, *TWO)
    shutil.rmtree(project.folder / "runs" / "tiny-sweep")
    done = sweep(project, *TWO, code=3)
    assert "add --spend" in done.stderr
    assert len(charges(project)) == 2
    sweep(project, *TWO, "--spend")
    assert len(charges(project)) == 4
    assert swept(project)["together"] == unplanned(project, releases=4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["plug-in", "records"])
def test_what_changed_is_not_paid_for_again_unasked(project: Any, what: str) -> None:
    sweep(project, *TWO)
    if what == "records":
        project.data(records=156)
    else:
        project.plugin("centroids", CENTROIDS.replace("np.exp(-", "np.exp(-2 * "))
    (line,) = sweep(project, *TWO, code=3).stderr.splitlines()
    assert "of other records or by another plug-in" in line
    assert len(charges(project)) == 2
    sweep(project, "--over", "aggregate.scale=3.0")  # was asked for, and never paid for
    assert len(charges(project)) == 3
    sweep(project, *TWO, "--spend")
    assert len(charges(project)) == 5


@pytest.mark.campaign
@pytest.mark.parametrize("paid", [1, 2])
def test_a_charge_without_its_release_is_not_counted_twice(
    project: Any, monkeypatch: pytest.MonkeyPatch, paid: int
) -> None:
    """Killed between charge and publication, on a budget with no room for another one."""
    from pate.stages import exactly_once

    budget = next(b for b in np.arange(3.0, 40.0, 0.1) if _fits(b, [2.0, 4.0])).round(1)
    assert not _fits(budget, [2.0, 4.0, 4.0])
    words = ("--over", "aggregate.scale=2.0,4.0", "--set", f"privacy.budget={budget}")
    pay = exactly_once._pay

    def killed(*arguments: Any) -> None:
        pay(*arguments)
        if len(charges(project)) == paid:
            raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "_pay", killed)
        sweep(project, *words, code=9)
    assert len(charges(project)) == paid
    assert len(swept(project)["rows"]) == paid - 1
    printed = sweep(project, *words).stdout
    assert f"{paid} of these points' releases are paid for" in printed
    assert swept(project)["together"]["planned_in_advance"] is True
    assert len(charges(project)) == 2
    assert swept(project)["complete"] is True


@pytest.mark.campaign
def test_killed_in_the_middle_it_resumes(noting: Any) -> None:
    noting.sections["student"]["params"]["nap"] = 0.3
    noting.write()
    words = ["sweep", "tiny.toml", "--plugin-path", "plugins", "--engine", "processes:1", *OVER]
    process = subprocess.Popen(
        noting.command(*words),
        cwd=noting.folder,
        env=noting.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and process.poll() is None:
            if (noting.folder / "runs/tiny-sweep/sweep.json").exists() and (
                len(swept(noting)["rows"]) >= 2
            ):
                break
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    left = swept(noting)
    assert 2 <= len(left["rows"]) < 6
    assert left["complete"] is False
    paid = charges(noting)
    assert len(left["rows"]) <= len(paid) <= len(left["rows"]) + 1

    printed = noting.run(*OVER, stage="sweep").stdout
    found = swept(noting)
    assert found["complete"] is True
    assert [row for row in found["rows"] if row in left["rows"]] == left["rows"]
    assert charges(noting)[: len(paid)] == paid
    assert len(charges(noting)) == len({each.release for each in charges(noting)}) == 6
    assert found["together"]["planned_in_advance"] is True
    assert printed.count("aggregate: running") <= 6 - len(left["rows"])
    for row in left["rows"]:
        assert f"point {row['point']} of 6:" not in printed
    assert fits(noting, "teachers") == 4 + 6


MISTAKES = [
    ((), "there is nothing to sweep over"),
    (("--over", "teachers.count="), "there is no value"),
    (("--over", "teachers.count=4", "--over", "teachers.count=5"), "given twice"),
    (("--over", "teachers.count=4,4"), "4 is given twice"),
    (("--over", "data.test=4,5"), "keeps its data"),
    (("--over", "privacy.budget=4,5"), "never changes"),
    (("--over", "teachers.cuont=4,5"), "did you mean count?"),
    (("--over", "aggregate.scale=4,x"), "--over aggregate.scale=x"),
    (("--over", "teachers.count=4,5", "--set", "teachers.count=6"), "set the same"),
    (("--over", "student.seed=1,2", "--tries", "5"), "--tries goes with --private-selection"),
    (("--over", "student.seed=1,2", "--private-selection", "--tries", "1"), "above 1"),
    (("--over", "student.seed=1,2", "--private-selection", "--tries", "nan"), "above 1"),
    (("--over", "student.seed=1,2", "--engine", "steam"), "steam"),
    (("--over", "student.seed=1,2", "--plugin-path", "nowhere"), "nothing at --plugin-path"),
    (("--over", "student.seed=1,2", "--out", "tiny.toml"), "tiny.toml"),
]


@pytest.mark.parametrize(("words", "printed"), MISTAKES)
def test_a_mistake_is_one_line(project: Any, words: tuple[str, ...], printed: str) -> None:
    done = sweep(project, *words, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("pate: ")
    assert printed in line
    assert done.stdout == ""
    assert not (project.folder / "runs").exists()
    assert charges(project) == []


# --- what was planned is known from the ledger alone ----------------------------------------------


@pytest.mark.parametrize("mechanism", ["confident", "interactive"])
def test_what_is_charged_is_what_was_planned(project: Any, mechanism: str) -> None:
    """Also where answers depend on checks, or are asked for in rounds."""
    project.write(aggregate=CHECKED | {"mechanism": mechanism})
    sweep(project, "--over", "aggregate.sigma2=3.0,4.0")
    cost = study(project)
    assert (cost.releases, cost.unpaid, cost.in_advance) == (2, 0, True)
    spent = [event for each in charges(project) for event in each.events]
    assert cost.guarantee.epsilon == compose(spent).guarantee(delta=DELTA).epsilon
    assert cost.guarantee.epsilon == of_ledger(project)
    assert swept(project)["together"]["epsilon"] == cost.guarantee.epsilon


@pytest.mark.parametrize("left", [None, "{", "[]", "{}"])
@pytest.mark.campaign
def test_a_table_that_is_lost_or_damaged_is_written_anew(project: Any, left: str | None) -> None:
    sweep(project, *TWO)
    file = project.folder / "runs/tiny-sweep/sweep.json"
    before = file.read_bytes()
    file.unlink()
    if left is not None:
        file.write_text(left)
    sweep(project, *TWO)
    assert file.read_bytes() == before
    file.unlink()
    sweep(project, "--over", "aggregate.scale=2.0,4.0,8.0")
    assert swept(project)["together"] == unplanned(project, releases=3)


@pytest.mark.parametrize("older", [False, True], ids=["lost", "an older copy"])
@pytest.mark.sample(1)
def test_without_the_charges_of_its_points_a_sweep_does_not_go_on(
    project: Any, tmp_path: Path, older: bool
) -> None:
    if older:
        project.call_run("--out", "runs/before", "--set", "aggregate.scale=8.0")
        shutil.copy(project.ledger, tmp_path / "copy")
    sweep(project, *TWO)
    table = (project.folder / "runs/tiny-sweep/sweep.json").read_bytes()
    kept = project.ledger.rename(tmp_path / "kept")
    if older:
        shutil.copy(tmp_path / "copy", project.ledger)
    assert project.ledger.with_suffix(".key").is_file()
    ledgers = sorted(file.name for file in project.ledger.parent.iterdir())
    for words in (TWO, ("--over", "aggregate.scale=2.0,4.0,8.0")):
        done = sweep(project, *words, code=LedgerError.exit_code)
        (line,) = done.stderr.splitlines()
        assert "data/ledgers/tiny.ledger lacks the charge of labels" in line
        assert "restore the ledger from a backup" in line
        assert sorted(file.name for file in project.ledger.parent.iterdir()) == ledgers
    assert (project.folder / "runs/tiny-sweep/sweep.json").read_bytes() == table
    if older:
        assert kept.read_bytes() != project.ledger.read_bytes()
        assert {each.studies for each in charges(project)} == {()}
    kept.replace(project.ledger)  # brought back, it goes on
    assert "running" not in sweep(project, *TWO).stdout
    assert (project.folder / "runs/tiny-sweep/sweep.json").read_bytes() == table


def test_without_the_charges_of_earlier_points_a_sweep_does_not_go_on(project: Any) -> None:
    """Results of the study are in the folder, so nothing new can be planned before them."""
    sweep(project, *TWO)
    project.ledger.unlink()
    done = sweep(project, "--over", "aggregate.scale=8.0", code=LedgerError.exit_code)
    assert "restore the ledger from a backup" in done.stderr


@pytest.mark.campaign
def test_teachers_that_were_changed_after_results_were_not_planned(project: Any) -> None:
    sweep(project, *TWO)
    assert study(project).in_advance
    code = (project.folder / "plugins/centroids.py").read_text()
    project.plugin("centroids", code.replace("shrink=0.0", "shrink=0.3"))
    printed = sweep(project, *TWO, "--spend").stdout
    assert printed.count("aggregate: running") == 2
    assert [each.studies for each in charges(project)] == [(STUDY,)] * 4
    assert swept(project)["together"] == unplanned(project, releases=4)
    assert of_ledger(project) > cost_of([2.0, 4.0] * 2)
    assert f"for 4 releases together ({NOT_PLANNED})" in printed


def test_teachers_that_were_changed_before_any_result_cost_nothing_more(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pate.studies import sweep as studies

    with monkeypatch.context() as patch:
        patch.setattr(studies, "_run_point", lambda *arguments: sys.exit(9))
        sweep(project, *TWO, code=9)
    code = (project.folder / "plugins/centroids.py").read_text()
    project.plugin("centroids", code.replace("shrink=0.0", "shrink=0.3"))
    sweep(project, *TWO)
    assert swept(project)["together"]["planned_in_advance"] is True
    assert swept(project)["together"]["epsilon"] == pytest.approx(cost_of([2.0, 4.0]))


@pytest.mark.campaign
@pytest.mark.parametrize("first", ["secure", "seeded"])
def test_seeded_noise_and_secure_noise_do_not_share_a_folder(project: Any, first: str) -> None:
    seed = ("--insecure-seed", "3")
    sweep(project, *TWO, *(seed if first == "seeded" else ()))
    folder = project.folder / "runs/tiny-sweep"
    before = {file.name: file.read_bytes() for file in folder.glob("sweep.*")}
    paid = charges(project)
    done = sweep(project, *TWO, *(seed if first == "secure" else ()), code=2)
    *_, line = done.stderr.splitlines()  # after a warning, where a seed is given
    assert line.startswith(f"pate: runs/tiny-sweep/sweep.json is of {first} noise")
    assert "choose another --out" in line
    assert done.stdout == ""
    assert {file.name: file.read_bytes() for file in folder.glob("sweep.*")} == before
    assert charges(project) == paid
    seeded = project.ledger.with_suffix(".not-private.ledger")
    assert seeded.exists() is (first == "seeded")


@pytest.mark.campaign
def test_a_seeded_sweep_in_between_changes_nothing(project: Any) -> None:
    seed = ("--insecure-seed", "3")
    sweep(project, *TWO)
    table = swept(project)
    sweep(project, *TWO, *seed, code=2)
    # One of the same name elsewhere, over more values: its charges are in a ledger of its own.
    sweep(project, "--over", "aggregate.scale=2.0,4.0,8.0", *seed, "--out", "other/tiny-sweep")
    sweep(project, *TWO)
    assert swept(project) == table
    assert len(charges(project)) == 2
    printed = sweep(project, "--over", "aggregate.scale=2.0,4.0,8.0").stdout
    assert NOT_PLANNED in printed
    assert swept(project)["together"] == unplanned(project, releases=3)


def test_one_study_protects_in_one_way(project: Any) -> None:
    sweep(project, *TWO, "--set", "partition.method=hash")
    paid, table = charges(project), swept(project)
    words = ("--over", "aggregate.scale=8.0", "--set", "partition.method=shuffle")
    done = sweep(project, *words, code=2)
    (line,) = done.stderr.splitlines()
    assert "protects one record added or removed" in line
    assert "one record replaced: such costs do not add up; choose another --out" in line
    assert charges(project) == paid
    assert swept(project) == table
    assert "teach: running" not in done.stdout
    sweep(project, *words, "--out", "runs/other")
    assert [each.studies for each in charges(project)] == [(STUDY,)] * 2 + [("sweep other",)]


def test_private_selection_is_handed_over(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pate.cli import pipeline
    from pate.studies import selection

    asked: dict[str, Any] = {}
    shown: list[Any] = []

    def select(candidates: Any, **more: Any) -> str:
        asked.update(more, candidates=candidates)
        return "a finished run"

    monkeypatch.setattr(selection, "select", select)
    monkeypatch.setattr(pipeline, "show_summary", shown.append)
    done = sweep(project, *OVER, "--private-selection", "--tries", "3.5")
    assert asked["tries"] == 3.5
    assert asked["folder"] == Path("runs/tiny-sweep")
    assert asked["options"].study is None
    assert [each.aggregate.scale for each in asked["candidates"]] == [2.0, 4.0, 8.0] * 2
    assert shown == ["a finished run"]
    assert done.stdout == ""
    sweep(project, *OVER, "--private-selection")
    assert asked["tries"] == 10.0


@pytest.mark.campaign
def test_digits_as_they_come(tmp_path: Path) -> None:
    """A named data set and a family that trains as one, through a real process."""
    words = [
        sys.executable, "-m", "pate", "sweep", "digits-teachers", "--data-root", "data", "--engine",
        "serial", "--over", "teachers.count=5,10", "--over", "aggregate.scale=1.0,4.0",
        "--set", "teachers.model=ridge", "--set", "teachers.params={}",
        "--set", "aggregate.queries=60",
        "--set", "student.model=sklearn.neighbors:KNeighborsClassifier",
        "--set", "student.params={ n_neighbors = 3 }", "--out", "swept",
    ]  # fmt: skip
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "swept" / "sweep.json").read_text())["rows"]
    assert len(rows) == 4
    assert rows[2]["student"]["accuracy"] > rows[3]["student"]["accuracy"]  # less noise
    assert rows[2]["labels"]["accuracy"] > 0.7
    with Ledger.open(tmp_path / "data" / "ledgers" / "digits.ledger") as ledger:
        assert [each.studies for each in ledger.charges()] == [("sweep swept",)] * 4


def test_every_point_of_a_sweep_is_tried_before_one_is_paid_for(project: Any) -> None:
    words = ("--over", "student.model=centroids:Centroids,centroids:Centroid")
    for more in (("--dry-run",), ()):
        (line,) = project.call_run(*words, *more, stage="sweep", code=2).stderr.splitlines()
        assert line.startswith("pate: student.model=centroids:Centroid: the student cannot be made")
        assert project.charges() == []
        assert not project.artifacts("teacher", project.folder / "runs" / "tiny-sweep")


def test_a_cost_that_cannot_be_computed_is_found_before_one_is_paid(
    project: Any, monkeypatch: Any
) -> None:
    from pate.stages import account

    older = account._older_rules

    def overflow(events: Any, delta: float) -> Any:
        if events[0].event.scale == 4.0:
            raise OverflowError("math range error")
        return older(events, delta)

    monkeypatch.setattr(account, "_older_rules", overflow)
    (line,) = sweep(project, *TWO, code=2).stderr.splitlines()
    assert line.startswith("pate: aggregate.scale=4.0: what ")
    assert "cannot be computed (OverflowError); nothing was charged" in line
    assert project.charges() == []


def test_a_study_that_has_charges_does_not_deny_them(project: Any) -> None:
    budget = ("--set", "privacy.budget=30.0", "--set", "privacy.sanitise=false")
    project.call_run("--over", "aggregate.scale=2.0", *budget, stage="sweep")
    more = ("--over", "aggregate.scale=2.0,0.5", *budget)
    refused = project.call_run(*more, stage="sweep", code=3).stderr
    assert "the release of this sweep would bring" in refused
    assert "; nothing more was charged: " in refused
    assert len(project.charges()) == 1
