"""``pate run`` and its stages through the command line: what runs, what not, what is told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import CENTROIDS

from pate._format import format_epsilon
from pate.accounting import Ledger
from pate.artifacts import fingerprint
from pate.engines.files import modules
from pate.partition import RECORD_SHARDS, PartitionSpec, partition

STAGES = ["data", "partition", "encoder", "encode", "teach", "vote", "aggregate", "account"]
STAGES += ["distill", "evaluate"]
RELEASES = {"aggregate", "pending-labels", "account", "account-private", "pending-sanitised"}
LEARNT = {"distill", "evaluate"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, project_in: Any) -> Path:
    """A folder in which the tiny recipe has run to its end; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("finished")
    project_in(folder).run()
    return folder


@pytest.fixture
def done(finished: Path, tmp_path: Path, project: Any) -> Any:
    """A project that has run already."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return project


def files_of(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def new_artifacts(project: Any, before: dict[str, set[str]]) -> dict[str, int]:
    """How many artifacts of each stage are there that were not there before."""
    now = project.all_artifacts()
    counted = {name: len(now[name] - before.get(name, set())) for name in now}
    return {name: count for name, count in counted.items() if count}


def came_out_alike(project: Any) -> bool:
    """Whether labels that were drawn twice are, by chance, the same.

    What is made from labels alone is then there already.
    """
    files = list(project.run_folder.glob("private/pending-labels/*/labels.npy"))
    return len(files) > len({file.read_bytes() for file in files})


def test_a_second_run_does_nothing_and_says_so(project: Any) -> None:
    first = project.run()
    assert [line for line in first.stdout.splitlines() if line.endswith(": running")] == [
        f"{stage}: running" for stage in STAGES
    ]
    files = files_of(project.run_folder) | files_of(project.folder / "data")
    charges = project.charges()
    assert [charge.split()[0] for charge in charges] == ["labels", "sanitised"]

    second = project.run()
    assert "nothing to do: runs/tiny is complete" in second.stdout
    assert "running" not in second.stdout
    untimed = [line for line in first.stdout.splitlines() if not line.startswith("Time: ")]
    assert len(untimed) == len(first.stdout.splitlines()) - 1
    assert second.stdout.splitlines()[-10:] == untimed[-10:]  # the same table
    files.pop(str(project.run_folder / "recipe.json"))
    now = files_of(project.run_folder) | files_of(project.folder / "data")
    assert files == {name: now[name] for name in files}
    assert project.charges() == charges


@pytest.mark.parametrize(
    ("setting", "expected", "pays"),
    [
        ("student.params.shrink=0.5", LEARNT, False),
        ("student.seed=5", LEARNT, False),
        ("evaluate.reference=true", {"evaluate", "evaluate-reference"}, False),
        ("privacy.sanitise=false", {"account", "account-private"}, False),
        ("privacy.doubt=0.02", {"account", "account-private", "pending-sanitised"}, True),
        ("aggregate.scale=3.0", RELEASES | LEARNT, True),
        ("teachers.retries=3", set(), False),
        ("teachers.timeout=60.0", set(), False),
    ],
)
def test_a_changed_key_reruns_what_depends_on_it(
    done: Any, setting: str, expected: set[str], pays: bool
) -> None:
    before, charges = done.all_artifacts(), done.charges()
    ran = done.call_run("--set", setting, "--spend")
    new = new_artifacts(done, before)
    if came_out_alike(done):
        expected = expected - {"distill", "evaluate"} | set(new) & {"distill", "evaluate"}
    assert set(new) == expected
    assert set(new.values()) <= {1}
    running = {f"{name}: running" for name in expected & set(STAGES)}
    assert running == {line for line in ran.stdout.splitlines() if line.endswith(": running")}
    assert ("nothing to do" in ran.stdout) == (not expected)
    assert done.charges()[: len(charges)] == charges
    assert (len(done.charges()) > len(charges)) == pays


@pytest.mark.parametrize("setting", ["teachers.count=5", "partition.key=another"])
def test_another_partition_trains_other_teachers(done: Any, setting: str) -> None:
    before = done.all_artifacts()
    done.call_run("--set", setting, "--spend")
    new = new_artifacts(done, before)
    expected = {"partition", "encode", "teach", "teacher", "vote"} | RELEASES | LEARNT
    if came_out_alike(done):
        expected -= LEARNT
        new = {name: count for name, count in new.items() if name not in LEARNT}
    assert set(new) == expected
    assert new["teacher"] == (5 if "count" in setting else 6)


def test_teachers_are_reused_where_their_shard_and_model_are_the_same(done: Any) -> None:
    before = done.all_artifacts()
    done.call_run("--set", "teachers.on_error=abstain", stage="teach")
    mix = '[{model = "centroids:Centroids"}, {model = "centroids:Centroids", weight = 2.0}]'
    done.write(teachers={"model": None})
    done.call_run("--set", f"teachers.mix={mix}", stage="teach")
    assert new_artifacts(done, before) == {"teach": 2, "teach-failures": 1}
    other = mix.replace("weight = 2.0", "params = {shrink = 0.1}")
    done.call_run("--set", f"teachers.mix={other}", stage="teach")
    assert new_artifacts(done, before) == {"teach": 3, "teach-failures": 1, "teacher": 3}


def test_whether_a_change_is_paid_for_does_not_tell_if_the_votes_are_the_same(done: Any) -> None:
    """Blobs this clear give every partition the same votes; asking again costs all the same."""
    charges = len(done.charges())
    refused = done.call_run("--set", "partition.key=another", code=3).stderr
    assert "this run has paid for labels of other teachers or records" in refused
    assert len(done.charges()) == charges
    done.call_run("--set", "partition.key=another", "--spend")
    votes = [path.read_bytes() for path in done.run_folder.glob("private/vote/*/counts.npy")]
    assert len(votes) == 2
    assert votes[0] == votes[1]
    assert len(done.charges()) > charges


STUDENT = (
    CENTROIDS
    + """

class Student(Centroids):
    pass
"""
)


def test_code_that_votes_do_not_depend_on_is_not_paid_for(project: Any) -> None:
    """Another student, a new file beside the plug-in, and a class that nobody uses."""
    project.plugin("centroids", STUDENT)
    project.write(encoder={"steps": ["standardise"]}, student={"model": "centroids:Student"})
    project.call_run()
    charges, teachers = project.charges(), project.artifacts("teacher")
    project.plugin("unrelated", "x = 1\n")
    assert "nothing to do" in project.call_run().stdout
    project.plugin("centroids", STUDENT + "\n\nclass Unused:\n    pass\n")
    assert "nothing to do" in project.call_run().stdout
    project.plugin("centroids", STUDENT.replace("    pass", "    changed = True"))
    done = project.call_run().stdout
    assert "teach: done before" in done
    assert "aggregate: done before" in done
    assert "distill: running" in done
    assert project.charges() == charges
    assert project.artifacts("teacher") == teachers


def test_a_changed_teacher_is_trained_again_and_paid_for_with_consent(project: Any) -> None:
    project.call_run()
    charges = project.charges()
    project.plugin("centroids", CENTROIDS.replace("(distance - ", "(2 * distance - 2 * "))
    refused = project.call_run(code=3)
    assert refused.stderr.count("\n") == 1
    assert project.charges() == charges
    project.call_run("--spend")
    assert len(project.charges()) > len(charges)


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ({"model": "centroids:Centroid"}, "did you mean 'Centroids'?"),
        ({"params": {"shrnk": 1}}, "unexpected keyword argument"),
    ],
)
def test_a_student_that_cannot_be_made_is_refused_before_the_charge(
    project: Any, student: Any, words: str
) -> None:
    """Before teachers are trained; and where they are, before the labels are paid for."""
    project.write("other", student=student)
    refused = project.call_run("--out", "runs/tiny", recipe="other", code=2)
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not project.artifacts("teacher")
    project.call_run(stage="vote")
    refused = project.call_run("--out", "runs/tiny", recipe="other", code=2)
    assert "the student cannot be made, so nothing was charged" in refused.stderr
    assert not project.charges()


@pytest.mark.campaign
def test_a_run_of_an_earlier_version_with_plugins_is_still_complete(
    project: Any, monkeypatch: Any
) -> None:
    """Its cache keys cover every file in the plug-in folder."""

    def of_folder(settings: Any, path: Path) -> str:
        return fingerprint(
            [(name, file.read_bytes().hex()) for name, file in modules(path).items()]
        )

    with monkeypatch.context() as earlier:
        earlier.setattr("pate.plugin_source.source_digest", of_folder)
        project.call_run()
        charges = project.charges()
    assert "nothing to do" in project.call_run().stdout
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    assert project.charges() == charges


def test_names_tell_nothing_to_who_has_not_the_key(done: Any) -> None:
    """Two owners of the same data have no fingerprint in common."""
    key = done.ledger.with_suffix(".key")
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    shutil.rmtree(done.folder / "data")
    (done.folder / "data").mkdir()
    done.call_run("--out", "other", "--set", "privacy.sanitise=true")
    for stage, names in done.all_artifacts(done.folder / "other").items():
        assert stage == "teacher" or not names & done.artifacts(stage)
    private = {
        file["sha256"]
        for stage in ("data", "partition", "teacher", "teach", "vote")
        for manifest in (done.run_folder / "private" / stage).glob("*/manifest.json")
        for name, file in json.loads(manifest.read_text())["files"].items()
        if name != "teacher.json"  # which format: the student's says the same
    }
    assert len(private) > 10
    for level in ("public", "released"):
        for manifest in (done.run_folder / level).rglob("manifest.json"):
            assert not [digest for digest in private if digest in manifest.read_text()]


def test_a_changed_plug_in_trains_again(done: Any) -> None:
    before = done.all_artifacts()
    code = (done.folder / "plugins" / "centroids.py").read_text()
    done.plugin("centroids", code.replace("(1 - self.shrink)", "(0.9 - self.shrink)"))
    done.run(stage="teach")
    assert new_artifacts(done, before)["teacher"] == 6


def test_other_noise_on_the_same_votes_needs_spend(done: Any) -> None:
    charges = done.charges()
    refused = done.call_run("--set", "aggregate.scale=3.0", code=3)
    assert refused.stderr.startswith("pate: ")
    assert "--spend" in refused.stderr
    assert done.charges() == charges


def test_more_queries_keep_the_answers_that_are_paid_for(done: Any) -> None:
    before = done.artifacts("aggregate")
    old = np.load(done.path("aggregate") / "labels.npy")
    done.call_run("--set", "aggregate.queries=20")
    (name,) = done.artifacts("aggregate") - before
    now = np.load(done.in_the_open("aggregate", name) / "labels.npy")
    np.testing.assert_array_equal(now[: len(old)], old)
    assert len(now) == 20
    with Ledger.open(done.ledger) as ledger:
        asked = [e.count for c in ledger.charges() if "labels" in c.release for e in c.events]
    assert asked == [12, 8]


def test_fewer_queries_of_the_same_votes_are_another_release(done: Any) -> None:
    """A shorter list would be printed with a smaller ε than what is out already: it is refused."""
    refused = done.call_run("--set", "aggregate.queries=5", code=3)
    assert "add --spend" in refused.stderr


def test_each_stage_alone_and_in_order(project: Any) -> None:
    seen: set[str] = set()
    together = {"partition": "data", "encode": "encoder"}  # two stages, one command
    for stage in STAGES:
        if stage in together.values():
            continue
        said = project.call_run(stage=stage).stdout
        assert f"{stage}: running" in said
        assert said.count(": running") == (2 if stage in together else 1)
        assert ("will charge ε" in said) == (stage == "aggregate")
        assert ("will bring the data set's ε to" in said) == (stage == "account")
        made = set(project.all_artifacts())
        assert stage in made
        assert not made & (set(STAGES) - {"data", *STAGES[: STAGES.index(stage) + 1]})
        seen |= made
    assert "nothing to do" in project.call_run().stdout
    assert set(project.all_artifacts()) == seen


def test_status_before_midway_and_after(project: Any) -> None:
    where = ("runs/tiny", "--plugin-path", "plugins")
    missing = project.pate("status", *where, code=2)
    assert missing.stderr == "pate: there is no run in runs/tiny\n"

    project.call_run(stage="teach")
    midway = states(project.call("status", *where).stdout)
    assert [midway[stage] for stage in STAGES[:6]] == ["done"] * 5 + ["missing"]
    assert midway["evaluate"] == "missing: distill is to be made first"
    assert "no ledger yet for tiny" in project.call("status", *where).stdout

    *_, last, publish = project.run().stdout.splitlines()
    assert publish.startswith("Publish: ε = ")
    assert last == "Next: pate status runs/tiny"  # the run remembers its plug-ins
    after = project.pate(*last.split()[2:]).stdout  # the command it advises
    assert set(states(after).values()) == {"done"}
    assert "Whole data set so far: ε = " in after
    assert "tiny.ledger)" in after
    assert "∞" not in after


@pytest.mark.parametrize(
    ("setting", "until", "stage", "why"),
    [
        ("aggregate.scale=3.0", "vote", "aggregate", "stale: aggregate.scale changed"),
        ("student.params.shrink=0.5", "account", "distill", "stale: student.params"),
        ("teachers.count=5", "encode", "teach", "stale: teachers.count changed"),
        ("privacy.doubt=0.1", "vote", "account", "stale: privacy.doubt changed"),
    ],
)
def test_status_of_a_changed_recipe_says_what_is_stale_and_why(
    done: Any, setting: str, until: str, stage: str, why: str
) -> None:
    done.call_run("--set", setting, stage=until)
    told = states(done.call("status", "runs/tiny", "--plugin-path", "plugins").stdout)
    assert told[stage].startswith(why)
    upstream = STAGES[: STAGES.index(stage)]
    assert {told[name] for name in upstream} == {"done"}
    if stage == "account":  # nothing is made from it
        assert told["distill"] == told["evaluate"] == "done"
    else:
        assert told["evaluate"].startswith("stale: ")


def test_status_names_the_key_also_once_teachers_were_trained_again(done: Any) -> None:
    """Two label sets are paid for; of the change to a third, what differs from the nearest."""
    done.call_run("--set", "aggregate.scale=3.0", "--spend")
    refused = done.call_run("--set", "teachers.count=5", code=3).stderr
    assert "`pate status` names it" in refused
    told = states(done.call("status", "runs/tiny", "--plugin-path", "plugins").stdout)
    assert {told[name] for name in STAGES[: STAGES.index("aggregate")]} == {"done"}
    assert told["aggregate"] == "stale: teachers.count changed"


def test_status_of_changed_data_says_so(done: Any) -> None:
    done.data(records=151)
    told = states(done.pate("status", "runs/tiny", "--plugin-path", "plugins").stdout)
    assert told["data"] == "stale: content changed"


def states(text: str) -> dict[str, str]:
    rows = [line.strip("│ \n").split("│") for line in text.splitlines() if line.startswith("│")]
    return {name.strip(): why.strip() for name, why in rows}


def test_the_resolved_recipe_is_written(done: Any) -> None:
    done.call_run("--set", "aggregate.scale=4.0", stage="partition")
    resolved = json.loads((done.run_folder / "recipe.json").read_text())
    assert resolved["aggregate"]["scale"] == 4.0
    assert resolved["partition"] == {"method": "hash", "by": "record", "key": "pate"}
    assert resolved["privacy"]["conversion"] == "improved"
    done.call("partition", "again.toml", code=2)
    (done.folder / "runs" / "tiny" / "recipe.json").write_text("{")
    broken = done.call("status", "runs/tiny", code=2)
    assert "recipe.json is damaged" in broken.stderr


def test_out_and_the_ledger_belong_to_different_things(done: Any) -> None:
    """Another run folder of the same data pays from the same ledger."""
    charges = done.charges()
    done.call_run("--out", "elsewhere/run", "--set", "partition.key=other")
    assert (done.folder / "elsewhere" / "run" / "released" / "distill").is_dir()
    assert done.charges()[:2] == charges
    assert len(done.charges()) == 4
    shutil.rmtree(done.folder / "elsewhere")
    again = done.call_run("--out", "elsewhere/run", "--set", "partition.key=other", code=3)
    assert "already paid for this release" in again.stderr
    assert len(done.charges()) == 4


def test_ledger_show(done: Any) -> None:
    for place in ("runs/tiny", "data/ledgers/tiny.ledger"):
        told = done.call("ledger", "show", place).stdout
        assert "12 × LaplaceNoisyMaxAnswer(scale=2.0)" in told
        assert "1 × SmoothRelease" in told
        assert "no budget was set" in told
        assert "tiny, by all ledgers: ε " in told


def test_ledger_show_where_nothing_was_paid(project: Any) -> None:
    project.call_run(stage="vote")
    none = project.call("ledger", "show", "runs/tiny", code=2)
    assert "tiny has paid for nothing yet" in none.stderr


def test_recipes_new_and_data_list(project: Any) -> None:
    listed = project.call("recipes").stdout
    pipelines = sorted((Path(__file__).parents[2] / "pipelines").glob("*.toml"))
    own = sorted(path.stem for path in pipelines if 'kind = "dpsgd"' not in path.read_text())
    assert {"digits", "tabular"} <= set(own) < {path.stem for path in pipelines}
    assert [line.split()[0] for line in listed.splitlines()] == own
    assert "scikit-learn's handwritten digits" in listed.lower()
    wrote = project.call("new", "my.toml").stdout
    assert wrote == "wrote my.toml; next: pate run my.toml\n"
    project.call("partition", "my.toml", "--engine", "serial")
    made = project.json("partition", "shards.json", project.folder / "runs" / "my")
    assert len(made) == RECORD_SHARDS
    there = project.call("new", "my.toml", code=2)
    assert "my.toml exists" in there.stderr
    sets = {line.split()[0]: line for line in project.call("data", "list").stdout.splitlines()}
    assert sets["digits"].endswith("here")
    assert sets["mnist"].endswith("pate data fetch mnist")


def test_epsilon_caps_the_queries_and_prints_the_plan(project: Any) -> None:
    project.write(privacy={"epsilon": 4.0}, aggregate={"scale": 4.0, "queries": 30})
    told = project.call_run().stdout
    plan = project.json("aggregate", "plan.json")
    assert 1 <= plan["queries"] < 30
    assert plan["guarantee"]["epsilon"] <= 4.0
    assert len(project.array("aggregate", "labels.npy")) == plan["answers"]
    assert f"Publish: ε = {format_epsilon(plan['guarantee']['epsilon'])} at δ = 0.001" in told
    assert row(told, "queries answered")[0] == f"{plan['answers']} of {plan['queries']}"


def test_epsilon_too_small_for_one_answer_exits_3(project: Any) -> None:
    project.write(privacy={"epsilon": 0.01})
    refused = project.run(code=3)
    assert refused.stderr.count("\n") == 1
    assert "one answer alone costs" in refused.stderr
    assert not project.artifacts("aggregate")
    assert not project.artifacts("pending-labels")
    assert project.charges() == []


def test_a_budget_refuses_the_second_release_and_leaves_all_as_it_was(project: Any) -> None:
    project.write(privacy={"budget": 10.0, "sanitise": False})
    project.call_run()
    before, charges = project.all_artifacts(), project.charges()
    assert len(charges) == 1
    refused = project.run("--set", "partition.key=other", "--spend", code=3)
    assert "past the budget of 10" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert project.charges() == charges
    assert project.artifacts("aggregate") == before["aggregate"]
    assert project.artifacts("distill") == before["distill"]
    assert "nothing to do" in project.call_run().stdout
    told = project.call("status", "runs/tiny", "--plugin-path", "plugins").stdout
    assert "left " in told
    assert " of 10" in told
    other = project.call_run("--set", "privacy.budget=50.0", "--set", "partition.key=b", code=2)
    assert "a budget never changes" in other.stderr


def test_serial_and_processes_agree_to_the_byte(done: Any) -> None:
    done.pate(
        *("vote", "tiny.toml", "--engine", "processes:2", "--plugin-path", "plugins"),
        *("--out", "runs/two"),
    )
    two = done.folder / "runs" / "two"
    for stage in ("data", "partition", "teach", "teacher", "vote"):
        assert done.artifacts(stage, two) == done.artifacts(stage)
    for name in ("predictions.npy", "counts.npy"):
        one = (done.path("vote") / name).read_bytes()
        assert (done.path("vote", two) / name).read_bytes() == one


def test_votes_are_what_the_teachers_say(done: Any) -> None:
    predictions = done.array("vote", "predictions.npy")
    counts = done.array("vote", "counts.npy")
    assert predictions.shape == (6, 30)
    np.testing.assert_array_equal(counts.sum(axis=1), np.full(30, 6))
    for label in range(3):
        np.testing.assert_array_equal(counts[:, label], (predictions == label).sum(axis=0))
    truth = np.load(done.path("data-answers") / "labels.npy")
    assert (counts.argmax(axis=1) == truth).mean() > 0.9  # well separated blobs


def test_the_partition_reports_in_private(project: Any) -> None:
    features = np.repeat(np.arange(40.0)[:, None], 3, axis=0)  # every record is there three times
    ids = np.array([f"r{i}" for i in range(120)])
    np.savez(project.folder / "tiny.npz", X=features, y=np.arange(120) // 3 % 3, key=ids)
    project.write(data={"id": "key", "public": 20, "test": 20})
    told = project.call_run(stage="partition").stdout
    report = project.json("partition", "report.json")
    shards = np.split(
        project.array("partition", "features.npy")[:, 0],
        project.array("partition", "offsets.npy")[1:-1],
    )
    values = [set(shard) for shard in shards]
    several = {v for v in set().union(*values) if sum(v in each for each in values) > 1}
    assert report["records_that_several_shards_hold"] == len(several) > 0
    assert report["smallest_shard"] == min(map(len, shards))
    assert report["largest_shard"] == max(map(len, shards))
    assert f"{project.path('partition').name}/report.json" in told
    assert str(len(several)) not in told.replace(project.path("partition").name, "")


def test_quiet_says_the_result_only(done: Any) -> None:
    loud, quiet = done.run(), done.run("--quiet")
    assert "done before" in loud.stdout
    assert quiet.stdout == loud.stdout[loud.stdout.index("nothing to do") :]
    assert quiet.stderr == ""


def test_json_logs_are_lines_of_json(project: Any) -> None:
    lines = [json.loads(line) for line in project.run("--json-logs").stderr.splitlines()]
    assert {line["stage"] for line in lines} == {"teach", "vote"}
    last = {line["stage"]: (line["done"], line["total"]) for line in lines}
    assert last == {"teach": (6, 6), "vote": (6, 6)}
    told = {"stage", "done", "total", "seconds", "slots", "rate", "left_seconds", "retries"}
    assert all(set(line) == told for line in lines)
    assert {line["slots"] for line in lines} == {1}


def test_the_insecure_seed_is_shouted_everywhere_and_repeats(project: Any) -> None:
    told = project.run("--insecure-seed", "1")
    assert "NOT PRIVATE" in told.stderr
    assert "NOT PRIVATE" in told.stdout
    released = project.json("aggregate", "manifest.json")
    assert released["facts"]["randomness"] == "not private"
    labels = project.array("aggregate", "labels.npy")
    project.call_run("--insecure-seed", "1", "--out", "again", "--spend")
    np.testing.assert_array_equal(
        project.array("aggregate", "labels.npy", project.folder / "again"), labels
    )


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def test_the_summary_shows_one_private_figure_and_marks_it(done: Any) -> None:
    told = done.call_run("--details").stdout
    private = done.json("account-private", "guarantees.json")["improved"]["epsilon"]
    value, mark = row(told, "data-dependent")
    assert value == format_epsilon(private)
    assert mark.startswith("Matters to the owner alone")
    assert format_epsilon(private) not in done.call_run().stdout
    figure, protects = row(told, "teachers")
    assert (figure, protects) == ("6", done.json("vote", "manifest.json")["facts"]["protects"])
    stated = done.json("account", "guarantees.json")["guarantee"]["epsilon"]
    shown = row(told, "the guarantee")[0]
    assert shown == format_epsilon(stated)
    assert -1e-12 < float(shown) / stated - 1 < 1e-3  # never below the truth
    student = done.json("evaluate", "evaluation.json")["student"]
    assert row(told, "student's accuracy")[0] == f"{100 * student['accuracy']:.1f} %"
    assert student["low"] < student["accuracy"] <= student["high"] <= 1


def test_a_reference_stays_private_and_is_marked(done: Any) -> None:
    told = done.call_run("--set", "evaluate.reference=true").stdout
    place = done.path("evaluate-reference")
    assert place.parts[-3] == "private"
    reference = json.loads((place / "evaluation.json").read_text())["reference"]
    accuracy, mark = row(told, "the same without privacy")
    assert accuracy == f"{100 * reference['accuracy']:.1f} %"
    assert mark == "private: do not publish"
    assert reference["accuracy"] > 0.9
    for evaluation in (done.run_folder / "released").rglob("evaluation.json"):
        assert "reference" not in json.loads(evaluation.read_text())


# --- a shard without records ------------------------------------------------------------------


def told(project: Any, *words: str) -> list[str]:
    """What a run prints, but for names of folders, figures and times."""
    done = project.run("--json-logs", "--insecure-seed", "3", *words)
    progress = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    lines = [re.sub(r"runs/\w+|[0-9a-f]{20}", "", line) for line in done.stdout.splitlines()]
    kept = ("stage", "done", "total", "retries")
    return [
        *(line for line in lines if ": running" in line or "report.json" in line),
        *(str({key: each[key] for key in kept}) for each in progress if each["left_seconds"] == 0),
    ]


@pytest.mark.parametrize("model", ["centroids:Centroids", "ridge", "logistic"])
def test_whether_a_shard_is_empty_does_not_show(project: Any, model: str) -> None:
    """The last record of a shard is taken away: its teacher abstains, and nothing else differs."""
    with np.load(project.folder / "tiny.npz") as saved:
        features, labels = saved["X"], saved["y"]
    names = np.array([f"id {number}" for number in range(150)])

    def private(keep: np.ndarray) -> None:
        np.savez(project.folder / "tiny.npz", X=features[keep], y=labels[keep], who=names[keep])

    private(np.ones(150, dtype=bool))
    project.write(
        data={"id": "who"},
        teachers={"count": 40, "model": model},
        privacy={"sanitise": True},
    )
    before = told(project, "--out", "runs/whole")
    whole = project.folder / "runs" / "whole"
    sizes = np.diff(project.array("partition", "offsets.npy", whole))
    alone = int(np.flatnonzero(sizes == 1)[0])
    kept = project.json("data", "ids.json", whole)
    order = partition(kept, teachers=40, spec=PartitionSpec())
    gone = kept[order.order[order.offsets[alone]]]
    private(names != gone)
    after = told(project, "--out", "runs/less")
    less = project.folder / "runs" / "less"
    assert before == after
    votes = [project.array("vote", "predictions.npy", run) for run in (whole, less)]
    assert (votes[0][alone] >= 0).all()
    assert (votes[1][alone] == -1).all()
    others = np.arange(40) != alone
    np.testing.assert_array_equal(votes[0][others], votes[1][others])
    counts = [project.array("vote", "counts.npy", run) for run in (whole, less)]
    assert (np.abs(counts[0] - counts[1]).sum(axis=1) == 1).all()
    figures = [project.json("account", "guarantees.json", run) for run in (whole, less)]
    assert figures[0]["guarantee"] == figures[1]["guarantee"]
    assert figures[0]["sanitised"] is not None
    assert figures[1]["sanitised"] is not None


# --- the sanitised figure -------------------------------------------------------------------------


def test_a_figure_without_a_price_adds_nothing_to_the_guarantee(project: Any) -> None:
    """So much noise that no votes matter: the figure is public, and nothing is charged for it."""
    project.write(aggregate={"mechanism": "gnmax", "scale": None, "sigma": 40.0})
    said = project.call_run().stdout
    costs = project.json("account", "guarantees.json")
    assert costs["sanitised"]["price"] == 0.0
    assert [charge.split()[0] for charge in project.charges()] == ["labels"]
    assert costs["guarantee"] == costs["plan"]["improved"] | {"neighbours": "add-remove"}
    assert (
        costs["guarantee"]["epsilon"]
        == project.json("aggregate", "plan.json")["guarantee"]["epsilon"]
    )
    assert format_epsilon(costs["guarantee"]["epsilon"]) in said


@pytest.mark.parametrize("mechanism", ["lnmax", "confident"])
@pytest.mark.sample(1)
def test_where_the_sanitised_figure_holds_is_said(project: Any, mechanism: str) -> None:
    noise = {"scale": None, "threshold": 3.0, "sigma1": 2.0, "sigma2": 2.0}
    own = {} if mechanism == "lnmax" else noise
    project.write(aggregate={"mechanism": mechanism} | own)
    said = " ".join(project.call_run("--details").stdout.replace("│", " ").split())
    project.call("report", "runs/tiny", "--plugin-path", "plugins")
    page = " ".join((project.run_folder / "report.html").read_text().split())
    costs = project.json("account", "guarantees.json")
    tells = costs["sanitised"]["epsilon"] < costs["guarantee"]["epsilon"]
    assert ("not below the guarantee: quote that" in said) is not tells
    for text in (said, page):
        assert "holds for the data at hand and in one direction" in text
        assert ("It is ex post" in text) is (mechanism == "confident")


STUDENTS = """
import centroids, torch

class Small(torch.nn.Sequential):
    def __init__(self, width=4, classes=3):
        super().__init__(torch.nn.Linear(width, classes))

class Pickled(centroids.Centroids):
    def save(self, folder):
        (folder / "model.pkl").write_bytes(b"")
    def load(self, folder):
        return self

class Forgetful(centroids.Centroids):
    def save(self, folder):
        raise OSError("the disk is full")
    def load(self, folder):
        return self

class Shy(centroids.Centroids):
    def fit(self, X, y):
        if len(X) < 290:
            raise ValueError("too few")
        return super().fit(X, y)
"""


@pytest.mark.parametrize(
    ("student", "said"),
    [
        ({"model": "students:Small", "params": {"width": 3}}, "got (n, 4)"),
        ({"model": "students:Small", "params": {"classes": 5}}, "(records, 3)"),
        ({"model": "students:Small", "method": "fixmatch", "augment": "affine"}, "affine"),
        ({"model": "students:Pickled"}, "its save(folder) writes model.pkl"),
        ({"model": "students:Forgetful"}, "save"),
        ({"model": "students:Shy"}, "too few"),
    ],
)
def test_a_student_that_cannot_learn_is_refused_before_the_charge(
    project: Any, student: dict[str, Any], said: str
) -> None:
    project.plugin("students", STUDENTS)
    project.write(student=student)
    (line,) = project.call_run(code=2).stderr.splitlines()
    assert "the student cannot be trained, asked and stored, so nothing was charged" in line
    assert said in line
    assert project.charges() == []


def test_a_student_that_needs_many_labels_is_tried_on_as_many_as_are_planned(project: Any) -> None:
    project.plugin("students", STUDENTS)
    project.data(records=600)
    project.write(
        data={"public": 400},
        aggregate={"queries": 300, "scale": 50.0},
        student={"model": "students:Shy"},
        privacy={"sanitise": False},
    )
    project.call_run()
    assert len(project.charges()) == 1
