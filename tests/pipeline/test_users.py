"""Users through the command line: a column of patients, DP-SGD and PATE that protect patients."""

from __future__ import annotations

import csv
import html
import json
import re
import sys

import numpy as np
import pytest
from harness import Project

from pate.accounting import (
    ForAddRemove,
    Ledger,
    Neighbours,
    PureDP,
    Repeated,
    SampledGaussian,
)

DATA = """
[data]
name = "patients"
private_path = "private.csv"
public_path = "public.csv"
test_path = "test.csv"
label = "ill"
group = "patient"
classes = ["no", "yes"]
"""
TRAINING = """
lot_size = 10
steps = 6
learning_rate = 1.0
"""
RECIPE = f"""
kind = "dpsgd"
{DATA}
[model]
entry = "dpsgd.models:linear"
[training]
{TRAINING}
[privacy]
noise_multiplier = 2.0
delta = 1e-3
"""
COMPARISON = f"""
kind = "compare"
{DATA}
[compare]
epsilons = [4]
seeds = 1
delta = 1e-3
reference = false
[pate.teachers]
count = 10
model = "ridge"
[pate.aggregate]
mechanism = "gnmax"
queries = 20
[pate.student]
model = "ridge"
[dpsgd.model]
entry = "dpsgd.models:linear"
[dpsgd.training]
{TRAINING}
"""
PATIENTS = 40


class Training(Project):
    program = "dpsgd"


def write_table(path, owners, *, seed):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient", "a", "b", "ill"])
        for owner in owners:
            ill = int(rng.integers(2))
            table.writerow([owner, *(rng.normal(size=2) + 3 * ill), ["no", "yes"][ill]])


@pytest.fixture
def patients(tmp_path, monkeypatch):
    """A folder with private records of forty patients, one to five of each."""
    monkeypatch.setattr("dpsgd.training.write_curve", lambda *_: None)
    monkeypatch.setattr("pate.studies.compare.save_figure", lambda *_, **__: None)
    owners = [f"secret-{patient}" for patient in range(PATIENTS) for _ in range(1 + patient % 5)]
    write_table(tmp_path / "private.csv", owners, seed=1)
    for part, size, seed in (("public", 60, 2), ("test", 50, 3)):
        write_table(tmp_path / f"{part}.csv", [f"{part}-{i}" for i in range(size)], seed=seed)
    (tmp_path / "mine.toml").write_text(RECIPE)
    (tmp_path / "both.toml").write_text(COMPARISON)
    return Training(tmp_path)


def steps_of(project):
    with Ledger.open(project.folder / "data" / "ledgers" / "patients.dpsgd.ledger") as ledger:
        found = [each.events[0] for each in ledger.charges()]
        return found, ledger.spent()


def test_a_group_column_protects_patients_by_itself(patients):
    assert "will charge ε" in patients.call("train", "mine.toml", "--dry-run").stdout
    done = patients.call("train", "mine.toml")
    assert "lots of 10 users on average" in done.stdout
    assert "Guarantee: " in done.stdout
    assert "for all contributions of one user removed (zero-out;" in done.stdout
    assert "contributions of one record" not in done.stdout
    step = SampledGaussian(sample_rate=10 / PATIENTS, noise_multiplier=2.0, per_user=True)
    charged, spent = steps_of(patients)
    assert charged == [Repeated(step, 6)]
    assert spent.neighbours is Neighbours.USER_ZERO_OUT
    (released,) = (patients.folder / "runs" / "mine" / "released" / "training").iterdir()
    report = json.loads((released / "guarantee.json").read_text())
    assert report["guarantee"]["neighbours"] == "user-zero-out"
    assert report["sample_rate"] == 10 / PATIENTS
    for file in released.iterdir():
        assert b"secret-" not in file.read_bytes()
    # With an agreed number of patients; and records, because they are asked for.
    stated = patients.call("train", "mine.toml", "--out", "stated", "--set", "training.users=50")
    assert "for all records of one user added or removed" in stated.stdout
    single = patients.call("train", "mine.toml", "--out", "single", "--set", "training.by=record")
    assert "for one record's contribution removed (zero-out; the number" in single.stdout
    charged, spent = steps_of(patients)
    assert charged[1].event.neighbours is Neighbours.USER_ADD_REMOVE
    assert charged[2].event.neighbours is Neighbours.ZERO_OUT
    assert spent.neighbours is Neighbours.LONE_RECORD
    assert "where its user has no other" in single.stdout  # for whom the total holds


def test_a_dry_run_is_about_patients_too(patients):
    """It planned for records, and refused groups that were there."""
    (line,) = patients.call("train", "mine.toml", "--dry-run").stdout.splitlines()
    assert line in patients.call("train", "mine.toml").stdout.splitlines()
    (patients.folder / "test.csv").write_text((patients.folder / "public.csv").read_text())
    for more in ([], ["--dry-run"]):
        refused = patients.call("train", "mine.toml", "--out", "b", *more, code=2)
        assert "60 records of test.csv have groups of public records" in refused.stderr


def test_groups_that_own_code_returns_are_not_passed_over(patients):
    (patients.folder / "mine.py").write_text(
        "import numpy as np\n"
        "def part(seed, name):\n"
        "    rng = np.random.default_rng(seed)\n"
        "    y = rng.integers(2, size=60)\n"
        "    groups = [f'{name} {row // 3}' for row in range(60)]\n"
        "    return {'X': rng.normal(size=(60, 2)) + y[:, None], 'y': y, 'groups': groups}\n"
        "def read():\n"
        "    return [part(seed, name) for seed, name in enumerate('abc')]\n"
    )
    recipe = RECIPE.replace(DATA, '[data]\nname = "coded"\nsource = "mine:read"\n')
    (patients.folder / "mine.toml").write_text(recipe)
    words = ("train", "mine.toml", "--plugin-path", ".")
    refused = patients.call(*words, code=2)
    assert 'mine:read returned groups: name them with group = "groups"' in refused.stderr
    assert 'by = "record" in [training]' in refused.stderr
    assert not (patients.folder / "data").exists()
    named = ("--set", "data.group=groups")
    assert "of one user removed" in patients.call(*words, *named).stdout
    single = patients.call(*words, *named, "--set", "training.by=record", "--out", "b").stdout
    assert "for one record's contribution removed (zero-out; the number" in single


def test_a_total_over_patients_and_records_is_not_worded_for_patients(patients):
    """The owner's noun stands for what a run protects, and for nothing less."""
    unit = ("--set", "data.unit=patient")
    own = patients.call("train", "mine.toml", *unit).stdout
    assert "Whole data set so far" in own
    assert "for all contributions of one patient removed" in own
    patients.call("train", "mine.toml", "--out", "b", "--set", "training.by=record")
    again = patients.call("train", "mine.toml", *unit).stdout
    (total,) = [line for line in again.splitlines() if line.startswith("Whole data set")]
    assert "patient" not in total.partition(" (/")[0]
    assert "costs for one record and for one user are added up" in total
    words = ("--out", "c", "--set", "training.by=record", *unit)
    refused = patients.call("train", "mine.toml", *words, code=2)
    assert 'data.unit is "patient", and training.by = "record" protects single' in refused.stderr
    shown = Project(patients.folder).call(
        "ledger", "show", "data/ledgers/patients.dpsgd.ledger", "--json"
    )
    assert json.loads(shown.stdout)["publish"]["neighbours"] == "lone-record"


def test_rows_of_other_people_that_are_equal_are_counted_for_their_owner(patients, monkeypatch):
    private, public = (patients.folder / f"{name}.csv" for name in ("private", "public"))
    rows = [line.partition(",")[2] for line in private.read_text().splitlines()[1:4]]
    with public.open("a") as file:
        file.writelines(f"other-{number},{row}\n" for number, row in enumerate(rows))
    note = "3 public records have the very features of a private record, under another id or group"
    for words in (("train", "mine.toml", "--dry-run"), ("train", "mine.toml")):
        assert patients.call(*words).stdout.count(note) == 1
    monkeypatch.setattr("pate.studies.compare.CompareRuns._agree", lambda *_: sys.exit(9))
    for more, code in ((("--dry-run",), 0), ((), 9)):
        words = ("compare", "both.toml", "--engine", "serial", *more)
        assert Project(patients.folder).call(*words, code=code).stdout.count(note) == 1


MISTAKES = {
    "training.records=50": "give training.users",
    "training.by=patient": "'record' or 'group'",
    "training.user=50": "did you mean users?",
    "training.lot_size=41": "more than there are private users",
    "features.pca={ dimension = 2, noise_multiplier = 5.0 }": "features.pca protects single",
}


@pytest.mark.parametrize("change", MISTAKES)
def test_mistakes_are_refused_in_a_line_before_a_charge(patients, change):
    refused = patients.call("train", "mine.toml", "--set", change, code=2)
    assert MISTAKES[change] in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert "secret-" not in refused.stderr
    assert not (patients.folder / "data").exists()


def test_patients_are_compared_with_patients(patients):
    project = Project(patients.folder)
    words = ("--engine", "serial", "--set", "data.unit=patient")
    printed = project.call("compare", "both.toml", *words).stdout
    table = json.loads((patients.folder / "runs" / "both" / "compare.json").read_text())
    relations = {row["method"]: row["neighbours"] for row in table["rows"]}
    assert relations["pate"] == "user-add-remove"
    assert relations["dpsgd"] == "user-zero-out"
    assert "where one patient's contribution is removed, so the two ε can be" in table["notes"][0]
    assert table["cost"]["together"]["neighbours"] == "user-zero-out"
    project.call("report", "runs/both")
    page = html.unescape((patients.folder / "runs" / "both" / "report.html").read_text())
    section = page[page.index('id="comparison"') : page.index('id="guarantee"')]
    assert ">all records of one patient added or removed<" in section
    assert "for all contributions of one patient removed (zero-out; the number of pat" in section
    texts = {"screen": printed, "page": page, "notes": " ".join(table["notes"])}
    model = f"runs/both/{table['runs']['dpsgd']['folder']}"
    texts["status"] = project.call("status", model).stdout
    for name, folder in (("refused model", model), ("refused student", "runs/both")):
        texts[name] = project.call("release", folder, "out", code=2).stderr
        assert "which cost ε = " in texts[name]
    for where, text in texts.items():
        assert "one patient" in text, where
        assert not re.search(r"\bone user\b|\bnumber of users\b", text), where
    charged, spent = steps_of(patients)
    assert spent.neighbours is Neighbours.USER_ZERO_OUT
    assert charged[0].event.per_user
    assert charged[0].event.sample_rate == 10 / PATIENTS
    shown = project.call("ledger", "show", "data/ledgers/patients.ledger").stdout
    assert "patients, by all ledgers" in shown
    assert "for all contributions of one user removed" in shown.split("by all ledgers")[1]
    assert "where its user has no other" not in shown


@pytest.mark.campaign
def test_record_votes_of_patients_are_compared_with_patients(patients):
    """All three methods protect patients; what they cost together does, too."""
    project = Project(patients.folder)
    words = ("both.toml", "--engine", "serial", "--set", "record_votes.votes.per_user=2")
    project.call("compare", *words, "--set", "record_votes.student.model=ridge")
    table = json.loads((patients.folder / "runs" / "both" / "compare.json").read_text())
    relations = {row["method"]: row["neighbours"] for row in table["rows"]}
    assert relations["pate"] == relations["record-votes"] == "user-add-remove"
    assert "at most 2 records of each user vote once each, at the pub" in " ".join(table["notes"])
    cost = table["cost"]
    assert [cost[each]["neighbours"] for each in ("pate", "dpsgd", "together")] == [
        "user-add-remove", "user-zero-out", "user-zero-out",
    ]  # fmt: skip
    assert cost["planned_in_advance"] is True
    with Ledger.open(patients.folder / "data" / "ledgers" / "patients.ledger") as ledger:
        teachers, table = ledger.charges()
        total = ledger.data_set_total()
    assert (teachers.group, table.group) == ("patient", "patient")
    (event,) = (each.event for each in table.events)
    assert event == ForAddRemove(PureDP(epsilon=4.0), per_user=True)
    assert table.records is Neighbours.USER_ADD_REMOVE
    assert total.neighbours is Neighbours.USER_ZERO_OUT


@pytest.mark.campaign
def test_patients_and_records_have_no_total_for_patients(patients):
    words = ("both.toml", "--engine", "serial", "--set", "dpsgd.training.by=record")
    Project(patients.folder).call("compare", *words)
    table = json.loads((patients.folder / "runs" / "both" / "compare.json").read_text())
    assert "PATE protects more at the same ε" in table["notes"][0]
    assert table["cost"]["together"]["neighbours"] == "zero-out"


def test_a_class_that_a_model_never_finds_is_flagged_and_not_named(patients):
    """One private record has it; who of the test people has it is not shown."""
    lines = [f"p-{row},{row % 7},1.0,no" for row in range(200)]
    text = "\n".join(["patient,a,b,ill", "p,0.0,1.0,yes", *lines]) + "\n"
    (patients.folder / "private.csv").write_text(text)
    quick = ("--set", "privacy.noise_multiplier=0.4", "--set", "training.steps=20")
    printed = patients.call("train", "mine.toml", *quick).stdout
    flag = "The model finds no test record of at least one class: recall is zero."
    assert flag in printed
    Project(patients.folder).call("report", "runs/mine")
    page = html.unescape((patients.folder / "runs" / "mine" / "report.html").read_text())
    assert flag in page
    assert "finds no test record of class" not in page
    Project(patients.folder).call("release", "runs/mine", "out")
    assert "finds no test record" not in (patients.folder / "out" / "report.html").read_text()
