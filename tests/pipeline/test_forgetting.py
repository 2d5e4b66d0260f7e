"""Forgetting: shards as if the records had never been there, and no byte left of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
from harness import Project, tiny_records

import pate
from pate._files import exclusive_lock
from pate.errors import InvalidInput
from pate.pipeline.exclusions import Exclusions, unit_digests
from pate.pipeline.ledger import naming_key

RECORDS = 120
MARK = np.float32(1234.5677)  # of the records to forget, in every form that a file may hold
MARKED = (3, 4, 5, 6, 50)  # two people: 3 … 5 are person-1, of whose records others are unmarked

# Keeps its records, so that they are in its files; and dies while it is trained, if told so.
NEIGHBOURS = """
import os, signal
from pathlib import Path
import numpy as np


class Neighbours:
    def __init__(self, classes):
        self.classes = classes
        self.X, self.y = np.zeros((0, 0)), np.zeros(0, dtype=np.int64)

    def fit(self, X, y):
        if Path("die").exists():
            Path("die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        self.X, self.y = np.array(X), np.array(y)
        return self

    def predict(self, X):
        return self.y[((X[:, None, :] - self.X[None]) ** 2).sum(axis=2).argmin(axis=1)]
"""


def write_data(project, *, leave_out=()):
    """Three files; ids are secrets of their own, and so are those of people."""
    features, labels = tiny_records(RECORDS)
    features = features.astype(np.float32)
    features[list(MARKED), 3] = MARK
    rows = np.array([row for row in range(RECORDS) if row not in leave_out])
    ids = np.array([f"secret-{row}" for row in range(RECORDS)])
    people = np.array([f"person-{row // 3}" for row in range(RECORDS)])
    arrays = {"X": features, "y": labels, "id": ids, "person": people}
    np.savez(project.folder / "private.npz", **{n: v[rows] for n, v in arrays.items()})
    rng = np.random.default_rng(1)
    for name in ("public", "test"):
        X, y = tiny_records(30)
        np.savez(project.folder / f"{name}.npz", X=X + rng.normal(size=X.shape), y=y)


def new_project(folder, **data):
    project = Project(folder)
    folder.mkdir(exist_ok=True)
    project.plugin("neighbours", NEIGHBOURS)
    project.sections["data"] = {
        "name": "tiny",
        "private_path": "private.npz",
        "public_path": "public.npz",
        "test_path": "test.npz",
        "id": "id",
    } | data
    project.sections["encoder"] = {"steps": [{"name": "standardise"}]}
    project.sections["teachers"]["model"] = "neighbours:Neighbours"
    project.sections["student"]["model"] = "neighbours:Neighbours"
    write_data(project)
    project.write()
    return project


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A finished run, to be copied."""
    project = new_project(tmp_path_factory.mktemp("forgetting") / "first")
    project.run()
    return project


@pytest.fixture
def project(finished_run, tmp_path):
    shutil.copytree(finished_run.folder, tmp_path / "copy")
    shutil.copytree(finished_run.user_folder, tmp_path / ".user-of-copy")
    return Project(tmp_path / "copy", sections=finished_run.sections)


def ids_file(project, rows=MARKED):
    (project.folder / "ids.txt").write_text("".join(f"secret-{row}\n" for row in rows))
    return "ids.txt"


def forget(project, *words, rows=MARKED, code=0):
    return project.pate(
        "forget", "runs/tiny", "--ids", ids_file(project, rows), "--plugin-path", "plugins", *words,
        code=code,
    )  # fmt: skip


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def in_the_open(project):
    found = contents(project.run_folder)
    return {name: held for name, held in found.items() if name.startswith(("public/", "released/"))}


def made_of_records(project):
    """The files that private records reach, by stage and content: names follow from a key."""
    found = {
        stage: sorted(
            held
            for name, held in contents(project.run_folder / "private" / stage).items()
            if name.endswith((".npy", "shards.json", ".npz", ".safetensors"))
        )
        for stage in ("partition", "encode", "teacher", "vote")
    }
    assert all(found.values())
    return found


def certificate(project):
    (file,) = (project.run_folder / "private" / "certificates").glob("*.json")
    return json.loads(file.read_text())


def test_it_is_as_if_the_records_had_never_been_there(project, tmp_path):
    before, charges = in_the_open(project), project.charges()
    teachers = contents(project.run_folder / "private" / "teacher")
    said = forget(project, "--signed-by", "The Officer").stdout
    assert "were not touched" in said
    assert "--spend" in said
    assert "secret-" not in said
    assert in_the_open(project) == before  # nobody sees it, and nothing is drawn again
    assert project.charges() == charges

    fresh = new_project(tmp_path / "fresh")
    write_data(fresh, leave_out=MARKED)
    fresh.run()
    assert made_of_records(project) == made_of_records(fresh)

    found = certificate(project)
    assert (found["requested"], found["found"], found["signed_by"]) == (5, 5, "The Officer")
    (page,) = (project.run_folder / "private" / "certificates").glob("*.html")
    assert "Certificate of deletion" in page.read_text()
    assert "secret-" not in page.read_text() + json.dumps(found)
    changed = {each["number"] for each in found["parts"] if each["before"] != each["after"]}
    assert found["changed"] == sorted(changed)
    assert 0 < len(changed) < 6
    after = contents(project.run_folder / "private" / "teacher")
    same = {name for name in teachers.keys() & after.keys() if teachers[name] == after[name]}
    assert {name.split("/")[0] for name in teachers.keys() & after.keys()} == {
        name.split("/")[0] for name in same
    }
    assert len({name.split("/")[0] for name in teachers.keys() - same}) == len(changed)
    assert "ε = " in found["released"]

    # Whatever becomes of the source, the run is complete, and the records stay away.
    for rows in ((), MARKED, None):
        if rows is None:
            (project.folder / "private.npz").unlink()
        else:
            write_data(project, leave_out=rows)
        assert "nothing to do" in project.run().stdout
        project.pate("report", "runs/tiny", "--plugin-path", "plugins")
    assert made_of_records(project) == made_of_records(fresh)
    assert project.charges() == charges


NETWORKS = """
import torch
from torch import nn


class Together(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, classes))

    def forward(self, x):
        return self.layers(x)


class Remembers(Together):  # the largest value it was trained on; so each is trained by itself
    def __init__(self, classes):
        super().__init__(classes)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.largest = torch.maximum(self.largest, x.max())
        return super().forward(x)
"""


def sliced_project(folder, model):
    project = new_project(folder)
    project.plugin("networks", NETWORKS)
    project.sections["teachers"] = {"count": 16, "model": model, "slices": 3, "epochs": 2}
    project.write()
    return project


def saved_weights(project, stage):
    place = project.run_folder / "private" / stage
    return {n: held for n, held in contents(place).items() if n.endswith(".safetensors")}


def written(project, stage):
    place = project.run_folder / "private" / stage
    return {name: (place / name).stat().st_mtime_ns for name in saved_weights(project, stage)}


@pytest.mark.parametrize("model", ["networks:Together", "networks:Remembers"])
@pytest.mark.sample(1)
def test_only_later_slices_are_trained_again(tmp_path, model):
    project = sliced_project(tmp_path / "sliced", model)
    project.call_run(stage="vote")
    (features,) = (project.run_folder / "private").glob("encode/*/features.npy")
    mark = np.load(features).max().tobytes()
    stages = ("checkpoint", "teacher")
    before = {stage: saved_weights(project, stage) for stage in stages}
    times = {stage: written(project, stage) for stage in stages}

    def marked(stage):
        return [held for held in saved_weights(project, stage).values() if mark in held]

    assert all((len(marked(stage)) > 0) == (model == "networks:Remembers") for stage in stages)
    words = ("--ids", ids_file(project), "--plugin-path", "plugins")
    project.call("forget", "runs/tiny", *words)
    assert not any(map(marked, stages))
    fresh = sliced_project(tmp_path / "fresh", model)
    write_data(fresh, leave_out=MARKED)
    engine = "processes:1" if model == "networks:Together" else "serial"
    fresh.call_run("--engine", engine, stage="teach")
    fresh.call_run(stage="vote")
    assert made_of_records(project) == made_of_records(fresh)
    kept = {}
    for stage in stages:
        after = saved_weights(project, stage)
        assert sorted(after.values()) == sorted(saved_weights(fresh, stage).values())
        kept[stage] = before[stage].items() & after.items()
        assert before[stage].keys() & after.keys() == dict(kept[stage]).keys()
        assert (
            dict(kept[stage]).keys()
            == dict(times[stage].items() & written(project, stage).items()).keys()
        )
    changed = certificate(project)["changed"]
    assert len(kept["teacher"]) == 16 - len(changed)
    # More than those of the other teachers: some were trained from a checkpoint of their own.
    assert 2 * (16 - len(changed)) < len(kept["checkpoint"]) < 2 * 16
    assert "teach: done before" in project.call_run(stage="vote").stdout


@pytest.mark.parametrize("model", ["ridge", "neighbours:Neighbours"])
def test_slices_are_refused_for_models_that_cannot_go_on(tmp_path, model):
    project = sliced_project(tmp_path / "sliced", model)
    said = project.call_run(code=2).stderr
    assert repr(model) in said
    assert "torch modules" in said
    assert not (project.run_folder / "private" / "teacher").exists()


def test_no_byte_of_the_records_is_left(project, monkeypatch):
    temporary = project.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    words = ("runs/tiny", "--plugin-path", "plugins", "--quiet")
    project.pate("audit", *words, "--attacks", "leave-one-out", "--records", "20")
    project.pate("report", "runs/tiny", "--private", "--plugin-path", "plugins")
    project.run("--set", "teachers.count=4", stage="vote")  # other settings in the same folder
    project.run(stage="vote")
    draft = project.run_folder / "private" / "teach" / ".draft-killed00"
    draft.mkdir()
    (draft / "left.npy").write_bytes(MARK.tobytes())
    encoded = [
        features[features[:, 3] == features[:, 3].max()]
        for features in map(np.load, (project.run_folder / "private").glob("encode/*/features.npy"))
    ]
    assert [len(rows) for rows in encoded] == 2 * [len(MARKED)]
    marks = [MARK.tobytes(), np.float64(MARK).tobytes()]
    marks += [f'"secret-{row}"'.encode() for row in MARKED]
    marks += [row.tobytes() for rows in encoded for row in rows]

    def traces():
        own = {"private.npz", "ids.txt"}  # the user's, which are never touched
        files = [
            file
            for root in (project.folder, project.user_folder)
            for file in root.rglob("*")
            if file.is_file() and str(file.relative_to(root)) not in own
        ]
        return {
            file.relative_to(project.folder.parent).as_posix()
            for file in files
            if any(mark in file.read_bytes() for mark in marks)
        }

    held = {name.split("/private/")[1].split("/")[0] for name in traces()}
    assert held >= {"data", "partition", "encode", "teacher", "teach"}  # it can find them
    assert (project.run_folder / "private" / "audit").is_dir()
    source = (project.folder / "private.npz").read_bytes()
    forget(project)
    assert traces() == set()
    assert (project.folder / "private.npz").read_bytes() == source
    left = {each.name for each in (project.run_folder / "private").iterdir()}
    assert "audit" not in left
    assert "report.html" not in left


def test_new_labels_are_charged_once(project):
    labels, first = in_the_open(project), project.charges()
    forget(project, "--spend")
    assert len(project.charges()) > len(first)
    assert labels.items() <= in_the_open(project).items()  # nothing is recalled
    paid = project.charges()
    assert "nothing to do" in project.run().stdout
    words = ("forget", "runs/tiny", "--spend", "--plugin-path", "plugins")
    assert "nothing to forget" in project.pate(*words).stdout
    assert project.charges() == paid


def test_new_labels_of_a_killed_forgetting_are_not_paid_twice(project, monkeypatch):
    forget(project)
    first = project.charges()
    words = {"data_root": project.folder / "data", "plugin_path": project.folder / "plugins"}

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Exclusions, "save", killed)  # after the labels are drawn and paid
        with pytest.raises(KeyboardInterrupt):
            pate.forget(project.run_folder, spend=True, **words)
    paid, labels = project.charges(), in_the_open(project)
    assert len(paid) > len(first)
    assert pate.forget(project.run_folder, spend=True, **words).released
    assert project.charges() == paid
    assert in_the_open(project) == labels


def test_no_cost_is_worked_out_from_votes_that_labels_were_not_drawn_from(project):
    """The labels came from other votes: their data-dependent ε would be wrong, and too small."""
    forget(project)
    page = project.pate("report", "runs/tiny", "--private", "--plugin-path", "plugins").stdout
    assert "PRIVATE" in page
    project.run("--set", "privacy.doubt=0.02", stage="account")
    for place in (project.run_folder / "private" / "account-private").glob("[!.]*"):
        held = b"".join(held for name, held in contents(place).items() if name != "manifest.json")
        assert b"records were forgotten" in held
        assert b"epsilon" not in held
    assert b"forgotten" not in b"".join(in_the_open(project).values())
    words = ("audit", "runs/tiny", "--plugin-path", "plugins", "--quiet")
    assert "--spend" in project.pate(*words, code=2).stderr


def test_requests_are_queued_and_doing_it_twice_changes_nothing(project):
    for rows in ((3,), (3, 4), (5, 6, 50)):
        forget(project, "--queue", rows=rows)
    assert b"secret-" not in (project.run_folder / "private" / "forgotten.json").read_bytes()
    assert not (project.run_folder / "private" / "certificates").exists()
    said = project.pate("forget", "runs/tiny", "--plugin-path", "plugins", "--json").stdout
    assert json.loads(said)["requested"] == 5
    assert (certificate(project)["requested"], certificate(project)["found"]) == (5, 5)
    before = contents(project.run_folder)
    assert "nothing to forget" in forget(project).stdout
    assert contents(project.run_folder) == before


def test_ids_are_taken_out_of_the_queue_again(project):
    forget(project, "--queue", rows=(3, 4, RECORDS))
    words = ("forget", "runs/tiny", "--plugin-path", "plugins")
    assert "1 in the queue" in forget(project, "--unqueue", rows=(4, RECORDS, 6)).stdout
    assert "the queue is empty" in project.pate(*words, "--unqueue").stdout
    before = contents(project.run_folder)
    assert "nothing to forget" in project.pate(*words).stdout
    assert contents(project.run_folder) == before
    assert "give one of" in forget(project, "--queue", "--unqueue", code=2).stderr


def test_a_request_for_all_records_is_refused_and_blocks_no_other_one(project):
    forget(project, "--queue", rows=range(100))
    before = contents(project.run_folder)
    for words in (["--queue"], []):
        refused = forget(project, *words, rows=range(RECORDS), code=2).stderr
        assert "all private records" in refused
        assert "--unqueue" in refused
        assert contents(project.run_folder) == before
    words = ("forget", "runs/tiny", "--plugin-path", "plugins")
    project.pate(*words, "--unqueue")
    assert "--unqueue" not in forget(project, rows=range(RECORDS), code=2).stderr
    forget(project, rows=(3,))
    assert certificate(project)["found"] == 1
    # A queue that covers all by now, because others left: nothing but it is in the way.
    exclusions = Exclusions.load(project.run_folder)
    rest = [f"secret-{row}" for row in range(RECORDS) if row != 3]
    run = pate.open_run(project.run_folder, data_root=project.folder / "data").pipeline
    queued = tuple(unit_digests("record", rest, key=naming_key(run.recipe, run.options.data_root)))
    replace(exclusions, queued=queued).save(project.run_folder)
    assert "--unqueue" in project.pate(*words, code=2).stderr
    project.pate(*words, "--unqueue")
    forget(project, rows=(4,))
    assert "nothing to do" in project.run().stdout


def test_a_certificate_that_was_changed_is_found(project):
    words = ("forget", "runs/tiny", "--plugin-path", "plugins", "--check")
    forget(project, "--signed-by", "The Officer")
    assert "as they were written: 1" in project.pate(*words).stdout
    (file,) = (project.run_folder / "private" / "certificates").glob("*.json")
    whole = file.read_text()
    for changed in (whole.replace("The Officer", "Another"), whole[:200], "{}"):
        file.write_text(changed)
        assert file.name in project.pate(*words, code=2).stderr
    file.write_text(whole)
    (found,) = json.loads(project.pate(*words, "--json").stdout)["certificates"]
    assert project.folder / found == file
    assert "--check" in forget(project, "--check", code=2).stderr


def test_unknown_ids_are_counted_in_private_only(project):
    before = made_of_records(project)
    unknown = forget(project, rows=(RECORDS, RECORDS + 1)).stdout
    assert (certificate(project)["requested"], certificate(project)["found"]) == (2, 0)
    assert certificate(project)["changed"] == []
    assert made_of_records(project) == before
    file = project.run_folder / "private" / "certificates"
    names = [re.escape(each.stem) for each in file.glob("*.json")]
    shutil.rmtree(file)
    known = forget(project, rows=(3, 4)).stdout
    names += [re.escape(each.stem) for each in file.glob("*.json")]
    # Both are told the same, stage by stage.
    assert _without(unknown, names) == _without(known, names)


def _without(text, names):
    """Leave out what is drawn at random, or follows from records under a key."""
    return re.sub("|".join([*names, "[0-9a-f]{16,}"]), "…", text)


def test_a_new_release_does_not_show_whether_an_id_was_a_record(project):
    first = project.charges()
    said = forget(project, "--spend", rows=(RECORDS,)).stdout
    assert certificate(project)["found"] == 0
    assert "New labels were drawn" in said
    assert len(project.charges()) > len(first)


def test_records_do_not_come_back(project):
    """Through a run that was opened before, one that goes on meanwhile, or under another name."""
    root = project.folder / "data"
    before = pate.open_run(
        project.run_folder, data_root=root, plugin_path=project.folder / "plugins"
    )
    with before.pipeline.kept():
        assert "wait for it" in forget(project, code=2).stderr
    forget(project)
    held = contents(project.run_folder)
    with pytest.raises(InvalidInput, match="open it again"):
        before.pipeline.execute()
    with pytest.raises(InvalidInput, match="open it again"):
        pate.audit(before, attacks=["leave-one-out"])
    refused = project.run("--set", 'data.id="person"', code=2).stderr
    assert "by names that data.id" in refused
    sweep = ("sweep", "tiny.toml", "--over", "aggregate.scale=3,4", "--out", "runs/tiny")
    refused = project.pate(*sweep, "--plugin-path", "plugins", code=2).stderr
    assert "another --out for a study" in refused
    assert contents(project.run_folder) == held
    with exclusive_lock(project.run_folder):
        assert "wait for it" in project.run(code=2).stderr


def test_people_and_tables_of_records(tmp_path):
    """With groups a person is forgotten; of record votes the table is counted again."""
    project = new_project(tmp_path / "people", group="person")
    project.sections.pop("teachers")
    project.sections |= {
        "votes": {"by": "records", "per_user": 2},
        "aggregate": {"mechanism": "laplace-counts"},
        "privacy": {"epsilon": 4.0},
    }
    project.write()
    project.run()
    before, votes = in_the_open(project), project.array("vote", "counts.npy").sum()
    run = pate.open_run(project.run_folder, data_root=project.folder / "data")
    made = pate.forget(run, ["person-1", "person-7", "nobody"])
    assert (made.requested, certificate(project)["found"]) == (3, 2)
    assert in_the_open(project) == before
    assert project.array("vote", "counts.npy").sum() == votes - 2 * 2
    fresh = new_project(tmp_path / "fresh", group="person")
    fresh.sections = project.sections
    fresh.write()
    write_data(fresh, leave_out=(3, 4, 5, 21, 22, 23))
    fresh.run(stage="vote")
    for stage, name in (("vote", "counts.npy"), ("encode", "features.npy")):
        assert (project.array(stage, name) == fresh.array(stage, name)).all()
    assert "nothing to do" in project.run().stdout


def test_what_cannot_be_forgotten_is_refused_in_a_line(project, tmp_path):
    for words, expected in (
        (("--ids", "nowhere.txt"), "cannot read ids from nowhere.txt"),
        (("--ids", "tiny.toml", "--data-root", "elsewhere"), "was not run with the data root"),
    ):
        done = project.pate("forget", "runs/tiny", *words, "--plugin-path", "plugins", code=2)
        assert expected in done.stderr
        assert len(done.stderr.splitlines()) == 1
    everybody = forget(project, rows=range(RECORDS), code=2).stderr
    assert "remove the folder instead" in everybody
    assert not (project.run_folder / "private" / "forgotten.json").exists()  # nor is it queued
    with pytest.raises(InvalidInput, match="there is no run"):
        pate.forget(tmp_path, ["1"])
    (project.run_folder / "private" / "forgotten.json").write_text('{"digests": [], "seal": ""}')
    for words in (("forget", "runs/tiny"), ("status", "runs/tiny")):
        assert "is damaged; restore it" in project.pate(*words, code=2).stderr


# --- kills ----------------------------------------------------------------------------------------


def finish_and_compare(project, expected):
    """A killed forgetting is finished by the same command, and by one without ids."""
    charges = project.charges()
    ids = ["--ids", ids_file(project)]
    state = project.run_folder / "private" / "forgotten.json"
    if state.exists() and json.loads(state.read_text())["begun"] is not None:
        assert "pate forget" in project.run(code=2).stderr  # nothing else is run before
        ids = []
    project.pate("forget", "runs/tiny", *ids, "--plugin-path", "plugins")
    assert made_of_records(project) == expected
    found = contents(project.run_folder / "private")
    assert not [name for name, held in found.items() if MARK.tobytes() in held]
    assert certificate(project)["found"] == len(MARKED)
    assert "nothing to do" in project.run().stdout
    assert project.charges() == charges


def test_killed_while_it_trains(project, finished_run):
    before = in_the_open(project)
    (project.folder / "die").touch()
    assert forget(project, "--signed-by", "The Officer", code=-signal.SIGKILL).returncode < 0
    assert in_the_open(project) == before
    whole = Project(project.folder.with_name("whole"), sections=project.sections)
    shutil.copytree(finished_run.folder, whole.folder)
    forget(whole)
    finish_and_compare(project, made_of_records(whole))
    assert certificate(project)["signed_by"] == "The Officer"


def killed_at(folder, call):
    """Forgets in this process, which dies at a system call that changes the disk; never returns."""
    os.chdir(folder)
    left = call

    def dying(function):
        def replaced(*words, **more):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*words, **more)

        return replaced

    for name in ("rename", "replace", "unlink", "rmdir", "link", "mkdir"):
        setattr(os, name, dying(getattr(os, name)))
    pate.forget(
        "runs/tiny", [f"secret-{row}" for row in MARKED], data_root="data", plugin_path="plugins"
    )
    os._exit(0)


def kill_everywhere(finished_run, tmp_path, step):
    whole = Project(tmp_path / "whole", sections=finished_run.sections)
    shutil.copytree(finished_run.folder, whole.folder)
    forget(whole)
    expected, killed, call = made_of_records(whole), 0, 0
    while True:
        project = Project(tmp_path / f"at-{call}", sections=finished_run.sections)
        shutil.copytree(finished_run.folder, project.folder)
        process = multiprocessing.get_context("fork").Process(
            target=killed_at, args=(project.folder, call)
        )
        process.start()
        process.join()
        if process.exitcode == 0:
            return killed
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        finish_and_compare(project, expected)
        shutil.rmtree(project.folder)
        call += step


def test_killed_at_some_change_of_the_disk(finished_run, tmp_path):
    assert kill_everywhere(finished_run, tmp_path, step=40) > 2


@pytest.mark.campaign
def test_killed_at_every_change_of_the_disk(finished_run, tmp_path):
    assert kill_everywhere(finished_run, tmp_path, step=1) > 80
