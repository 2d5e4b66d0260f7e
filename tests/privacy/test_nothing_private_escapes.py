"""What is private stays in the private folder: markers are planted, and every byte is searched.

And one record more or less changes one shard and one teacher, as the guarantee supposes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re

import numpy as np
import pytest
from harness import Project, printed

from pate.accounting.ledger.running_total import formulas
from pate.artifacts import Draft, Level, Store, StoreError, fingerprint
from pate.artifacts.manifest import write_manifest
from pate.stages.catalogue import STAGES
from pate.stages.distill import DISTILL
from pate.stages.evaluate import EVALUATE

PLUGIN = '''
import sys
import warnings
import numpy as np


class Centroids:
    """Nearest centroid; as talkative about its records as its arguments say."""

    def __init__(self, classes, talks=False, fails=False, seed=0):
        self.classes, self.talks, self.fails, self.seed = classes, talks, fails, seed
        self.centres = np.zeros((0, 0))

    def fit(self, X, y):
        if self.talks:
            print("fitting", X.tolist(), y.tolist())
            print("fitting", X.tolist(), y.tolist(), file=sys.stderr)
            warnings.warn(f"odd values {X.tolist()}")
        if self.fails and (X > 1000).any():
            raise ValueError(f"cannot learn from {X.tolist()} with {y.tolist()}")
        self.centres = np.full((self.classes, X.shape[1]), 1e6)
        for label in np.unique(y):
            self.centres[label] = X[y == label].mean(axis=0)

    def predict(self, X):
        return ((X[:, None, :] - self.centres[None]) ** 2).sum(axis=2).argmin(axis=1)
'''

REFERENCE = "[evaluate]\nreference = true\n"
SHUFFLE = '[partition]\nmethod = "shuffle"\n'
VALUE = 1234.5678  # in features of private records
PRIVATE_ROWS, TEACHERS = 131, 6  # a number of records that nothing else comes to


def records(count, *, seed, marked=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    features = rng.normal(size=(count, 3)) + 5 * labels[:, None]
    features[:marked, 1] = VALUE
    return features, labels


class RecordsProject(Project):
    """Records of its own, in three files, with ids and groups or without."""

    def __init__(self, folder, *, form="npz", private=None, recipe=""):
        super().__init__(folder, name="my", sections={"data": {"name": "mine"}})
        self.form = form
        (folder / "data").mkdir(parents=True)
        self.plugin("mine", PLUGIN)
        rows = private or (*records(PRIVATE_ROWS, seed=1, marked=9), None, None)
        self.save("private", *rows)
        for number, name in enumerate(("public", "test"), start=2):
            self.save(name, *records(40, seed=number), None, None)
        keys = 'id = "who"\ngroup = "clinic"\nlabel = "y"\n' if rows[2] else ""
        keys += 'label = "y"\n' if form == "csv" and not rows[2] else ""
        (folder / "my.toml").write_text(
            '[data]\nname = "mine"\n'
            + "".join(f'{role}_path = "{role}.{form}"\n' for role in ("private", "public", "test"))
            + keys
            + f'[teachers]\ncount = {TEACHERS}\nmodel = "mine:Centroids"\n'
            '[aggregate]\nmechanism = "lnmax"\nscale = 2.0\nqueries = 15\n'
            '[privacy]\ndelta = 1e-3\n[student]\nmodel = "mine:Centroids"\n' + recipe
        )

    def save(self, name, features, labels, ids, groups):
        path = self.folder / f"{name}.{self.form}"
        if self.form == "npz":
            more = {} if ids is None else {"who": np.array(ids), "clinic": np.array(groups)}
            np.savez(path, X=features, y=labels, **more)
            return
        header = ["a", "b", "c", "y", *(["who", "clinic"] if ids else [])]
        lines = [",".join(header)]
        for row in range(len(labels)):
            keys = [ids[row], groups[row]] if ids else []
            lines.append(",".join([*map(repr, features[row].tolist()), str(labels[row]), *keys]))
        path.write_text("\n".join(lines) + "\n")

    def bytes_of(self, *words, stage="run", code=0):
        """What a run of the recipe prints."""
        return printed(self.run(*words, stage=stage, code=code)).encode()

    def teach(self, *words):
        """Up to the teachers, in this process: where start-up would be most of the time."""
        self.call_run("--quiet", *words, stage="teach")

    def output_of(self, *words):
        """A command in this process, and what it printed."""
        return printed(self.call(*words, "--plugin-path", "plugins"))

    def teachers(self):
        """Teacher folders, and when each was made."""
        folder = self.run_folder / "private" / "teacher"
        return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    def visible(self):
        """Every byte that may be seen by others: public and released folders, recipe and ledger."""
        projects = [*self.run_folder.rglob("*"), *(self.folder / "data" / "ledgers").rglob("*")]
        private = self.run_folder / "private"
        return {
            path: str(path).encode() + (path.read_bytes() if path.is_file() else b"")
            for path in projects
            if not path.is_relative_to(private) and path.suffix != ".key"
        }


def patterns(features, labels, ids=(), groups=()):
    """How a marker may look: as a number in memory, as text, as a digest of a record or a file."""
    marks = {"secret id": b"SECRET-ID", "secret clinic": b"SECRET-CLINIC", "text": b"1234.56"}
    for kind in ("<f8", ">f8", "<f4", ">f4"):
        marks[f"the value as {kind}"] = np.array(VALUE, dtype=kind).tobytes()
    marks["labels in order"] = np.ascontiguousarray(labels, dtype="<i8").tobytes()
    marks["number of records"] = re.compile(rb"(?<![\w.])%d(?![\w.])" % len(labels))
    return marks


def search(where, marks):
    """The names of marks found, and where."""
    return [
        (name, str(project))
        for project, content in where.items()
        for name, mark in marks.items()
        if (mark.search(content) if isinstance(mark, re.Pattern) else mark in content)
    ]


def marked(count=PRIVATE_ROWS):
    features, labels = records(count, seed=1, marked=9)
    ids = [f"SECRET-ID-{number:04d}" for number in range(count)]
    groups = [f"SECRET-CLINIC-{number % 60}" for number in range(count)]
    return features, labels, ids, groups


RAY = [pytest.mark.campaign, pytest.mark.xdist_group("ray")]


@pytest.mark.parametrize(
    ("form", "engine"),
    [
        ("npz", "processes:2"),
        ("csv", "serial"),
        pytest.param("csv", "gpus:cpu,cpu", marks=pytest.mark.campaign),
        pytest.param("npz", "ray", marks=RAY),
    ],
)
def test_markers_are_nowhere_in_the_open(tmp_path, form, engine):
    """A talkative teacher, JSON logs, every engine, a reference model, and every command after."""
    private = marked()
    project = RecordsProject(tmp_path / "project", form=form, private=private, recipe=REFERENCE)
    talk = ("--set", "teachers.params.talks=true", "--json-logs")
    output = {
        "run": project.bytes_of(*talk, "--engine", engine),
        "run again": project.bytes_of(*talk, "--engine", "serial"),
        "status": printed(project.call("status", "runs/my")).encode(),
    }
    marks = patterns(*private)
    assert search(project.visible() | output, marks) == []
    hidden = {path: path.read_bytes() for path in project.run_folder.rglob("*") if path.is_file()}
    found = {name for name, _ in search(hidden, marks)}  # the search finds what is there
    assert {"secret id", "secret clinic", "the value as <f8", "labels in order"} <= found


@pytest.mark.parametrize(
    ("on_error", "engine"),
    [("fail", "serial"), ("fail", "processes:2"), ("retry", "processes:2"), ("abstain", "serial")],
)
def test_a_failing_teacher_does_not_quote_its_records(tmp_path, engine, on_error):
    private = marked()
    project = RecordsProject(tmp_path / "project", private=private)
    settings = ("params.fails=true", "params.talks=true", f"on_error={on_error}")
    words = [word for each in settings for word in ("--set", f"teachers.{each}")]
    words += ["--json-logs", "--engine", engine]
    output = project.bytes_of(*words, stage="teach", code=0 if on_error == "abstain" else 2)
    assert (b"abstain" if on_error == "abstain" else b"ValueError") in output
    assert b"Traceback" not in output
    assert search(project.visible() | {"output": output}, patterns(*private)) == []


def test_a_failing_reference_does_not_quote_its_records(tmp_path):
    """The student's model on the private records: it learns from public ones without complaint."""
    private = marked()
    project = RecordsProject(tmp_path / "project", private=private, recipe=REFERENCE)
    words = ("--set", "student.params.fails=true", "--set", "student.params.talks=true")
    output = project.bytes_of(*words, "--json-logs", "--engine", "serial", code=2)
    assert b"the reference model failed: fit raised ValueError" in output
    assert b"Traceback" not in output
    assert search(project.visible() | {"output": output}, patterns(*private)) == []


def test_private_folders_are_closed_to_others(tmp_path):
    project = RecordsProject(tmp_path / "project")
    before = os.umask(0o000)
    try:
        project.run("--engine", "processes:2", "--quiet")
    finally:
        os.umask(before)
    private = project.run_folder / "private"
    assert private.stat().st_mode & 0o777 == 0o700
    for artifact in private.glob("*/*"):
        assert artifact.stat().st_mode & 0o777 == 0o700, artifact
    key = tmp_path / "project" / "data" / "ledgers" / "mine.key"
    assert key.stat().st_mode & 0o777 == 0o600


def hashes(*contents):
    """Everything that looks like a digest, whole or cut short."""
    found = set(itertools.chain(*(re.findall(rb"(?<!\.)[0-9a-f]{16,}", each) for each in contents)))
    return {each for each in found if re.search(rb"[a-f]", each)}


def of_what_is_in_the_open(project):
    """Digests of the very files that are in the open, and of the mechanism's public settings."""
    for level in ("public", "released"):
        for manifest in (project.run_folder / level).rglob("manifest.json"):
            content = json.loads(manifest.read_text())
            yield from (entry["sha256"].encode() for entry in content["files"].values())
            yield content["facts"].get("family", "").encode()
            yield fingerprint(content["files"], content["facts"])[:20].encode()
            yield content["seal"].encode()


def test_names_in_the_open_tell_nothing_of_the_data(tmp_path):
    """The same private data twice, in two projects: no name, fingerprint or release id is shared.

    Were names plain hashes of what they were made from, one who suspects a certain data set could
    run the recipe on it and compare; nor is there a plain digest of a private file.
    """
    first, second = RecordsProject(tmp_path / "one"), RecordsProject(tmp_path / "two")
    seen = [
        hashes(project.bytes_of("--engine", "serial"), *project.visible().values())
        for project in (first, second)
    ]
    assert min(map(len, seen)) > 30
    # A ledger notes which code worked out its total, beside that total.
    known = {each for each in seen[0] & seen[1] if each.startswith(formulas().encode())}
    assert (seen[0] & seen[1]) - known <= set(of_what_is_in_the_open(first))
    private = {artifact.digest.encode() for artifact in Store(root=first.run_folder).all("vote")}
    private |= {line.encode() for line in first.artifact("partition").json("shards.json")}
    for stage in ("data", "partition", "encode", "teach", "vote", "account-private"):
        files = first.artifact(stage).manifest["files"].values()
        private |= {entry["sha256"].encode() for entry in files if entry["bytes"] > 8}
    assert len(private) > 15
    assert seen[0] & private == set()


def in_the_open(project):
    """Every name and byte under public/ and released/."""
    return {
        str(path.relative_to(project.run_folder)): path.read_bytes() if path.is_file() else b""
        for level in ("public", "released")
        for path in (project.run_folder / level).rglob("*")
    }


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory):
    """Two runs on data that differ in one record, with the same noise: the labels are the same."""
    private = (*records(PRIVATE_ROWS, seed=1), [f"id{n}" for n in range(PRIVATE_ROWS)], ["x"] * 131)
    projects = []
    for name, rows in (("whole", private), ("less", drop(private, 17))):
        project = RecordsProject(
            tmp_path_factory.mktemp("neighbours") / name, form="csv", private=rows
        )
        project.run("--engine", "serial", "--insecure-seed", "3", "--set", "privacy.sanitise=false")
        projects.append(project)
    return projects


def test_nothing_in_the_open_tells_whether_a_record_changed(neighbours):
    """Nothing but the labels, and what is made from them, may differ; here they are the same."""
    whole, less = neighbours
    labels = [project.artifact("aggregate").array("labels.npy").tolist() for project in neighbours]
    assert labels[0] == labels[1]
    votes = [project.artifact("vote").array("predictions.npy").tobytes() for project in neighbours]
    shards = [project.artifact("partition").json("shards.json") for project in neighbours]
    assert shards[0] != shards[1], votes
    assert in_the_open(whole) == in_the_open(less)
    assert len(in_the_open(whole)) > 30


def test_a_sanitised_figure_differs_alone(neighbours):
    """With it the figure, its file and what names that file may differ, and nothing else."""
    for project in neighbours:
        project.run("--engine", "serial", "--insecure-seed", "3", "--set", "privacy.sanitise=true")
    whole, less = map(in_the_open, neighbours)
    different = {name for name in {**whole, **less} if whole.get(name) != less.get(name)}
    assert {name.split("/")[1] for name in different} <= {"account"}


def test_no_private_fingerprint_is_in_the_open_in_a_report_or_in_a_release(tmp_path):
    project = RecordsProject(tmp_path / "project")
    project.run("--engine", "serial", "--quiet")
    project.output_of("report", "runs/my")
    project.output_of("release", "runs/my", "out")
    known = set()
    for about in all_artifacts(project):
        known |= {about["made_from"], *about["inputs"].values()}
        if about["level"] == "PRIVATE":
            known |= {about["seal"], *(each["sha256"] for each in about["files"].values())}
    shared = {entry.decode() for entry in of_what_is_in_the_open(project)}
    secret = {each[:16].encode() for each in known - shared}
    assert len(secret) > 80
    shown = [project.run_folder / "report.html", *(project.folder / "out").rglob("*")]
    contents = dict(in_the_open(project)) | {
        str(path): path.read_bytes() for path in shown if path.is_file()
    }
    assert len(contents) > 40
    for name, content in contents.items():
        found = [each for each in secret if each in name.encode() or each in content]
        assert not found, name


def draft_of_an_earlier_version(self, stage, made_from, *, level, inputs=None, only_for=(), **_):
    """As :meth:`pate.artifacts.Store.draft` was: the origin stands in every manifest."""

    @contextlib.contextmanager
    def drafting():
        final = self.folder(stage, level, made_from)
        final.mkdir(parents=True)
        (self.root / "private").mkdir(mode=0o700, exist_ok=True)
        draft = Draft(path=final)
        yield draft
        write_manifest(final, stage=stage, made_from=made_from, level=level,
                       inputs=dict(inputs or {}), only_for=list(only_for),
                       facts=draft.facts)  # fmt: skip

    return drafting()


@pytest.mark.campaign
def test_a_run_of_an_earlier_version_loses_its_origins_and_nothing_else(tmp_path, monkeypatch):
    project = RecordsProject(tmp_path / "project")
    with monkeypatch.context() as earlier:
        earlier.setattr(Store, "draft", draft_of_an_earlier_version)
        project.call_run()
    assert not (project.run_folder / "private" / "origins").exists()
    before = [json.loads(file.read_text()) for file in project.run_folder.rglob("manifest.json")]
    origins = {each["made_from"] for each in before if each["level"] != "PRIVATE"}
    assert len(origins) > 4
    assert all(
        any(made_from[:20] in name for name in in_the_open(project)) for made_from in origins
    )
    charges = project.charges()
    output = project.output_of("status", "runs/my")
    assert output.count("done") == len(STAGES)
    for name, content in in_the_open(project).items():
        assert not [each for each in origins if each[:16] in name or each.encode() in content]
    assert "nothing to do" in printed(project.call_run())
    project.output_of("report", "runs/my")
    project.output_of("release", "runs/my", "out")
    assert project.charges() == charges
    after = [json.loads(file.read_text()) for file in project.run_folder.rglob("manifest.json")]
    assert len(after) == len(before)
    project.output_of("aggregate", "my.toml", "--engine", "serial", "--set", "aggregate.queries=20")
    assert len(project.charges()) == len(charges) + 1  # what was paid for is given out again


# --- who may open what ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    project = RecordsProject(tmp_path_factory.mktemp("finished") / "project")
    project.run("--engine", "serial", "--quiet")
    return project


def all_artifacts(project):
    """What is known of every artifact, in the open or not: its manifest, or its origin."""
    private = project.run_folder.glob("private/*/*/manifest.json")
    origins = project.run_folder.glob("private/origins/*/*.json")
    for file in sorted([*private, *origins]):
        yield json.loads(file.read_text())


def test_distill_can_open_nothing_private(finished):
    store = Store(root=finished.run_folder).cleared(DISTILL.name, DISTILL.clearance)
    levels = {"PUBLIC": 0, "RELEASED": 0, "PRIVATE": 0}
    for manifest in all_artifacts(finished):
        levels[manifest["level"]] += 1
        if manifest["level"] == "PRIVATE" or manifest["stage"] in ("data-answers", "data-test"):
            with pytest.raises(StoreError, match="distill may not open"):
                store.open(manifest["stage"], manifest["made_from"])
        else:
            store.open(manifest["stage"], manifest["made_from"])
    assert levels["PRIVATE"] >= 10
    assert min(levels.values()) >= 3
    assert set(DISTILL.needs) == {"aggregate", "data-public", "encoder"}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_labels_of_public_inputs_and_tests_are_for_evaluate_alone(finished, stage):
    store = Store(root=finished.run_folder).cleared(stage.name, stage.clearance)
    for name in ("data-answers", "data-test"):
        made_from = finished.artifact(name).manifest["made_from"]
        if stage is EVALUATE:
            assert store.open(name, made_from).array("labels.npy").shape == (40,)
        else:
            with pytest.raises(StoreError, match=f"{stage.name} may not open {name}"):
                store.open(name, made_from)
            assert name not in stage.needs
    labels = [path.parent.parent.name for path in
              (finished.run_folder / "public").rglob("labels.npy")]  # fmt: skip
    assert sorted(labels) == ["data-answers", "data-test"]


def test_only_private_folders_hold_what_comes_from_private_records(finished):
    """The whole list, so that a new artifact in the open has to be entered here on purpose."""
    found = {
        level.name: sorted(path.name for path in (finished.run_folder / level.folder).iterdir())
        for level in (Level.PUBLIC, Level.RELEASED)
    }
    assert found == {
        "PUBLIC": ["data-answers", "data-public", "data-test", "encoder"],
        "RELEASED": ["account", "aggregate", "distill", "evaluate"],
    }


# --- one record more or less ------------------------------------------------------------------


def drop(private, row):
    features, labels, *names = private
    return (
        np.delete(features, row, axis=0),
        np.delete(labels, row),
        *(None if each is None else [n for i, n in enumerate(each) if i != row] for each in names),
    )


def changed(project, private, *words):
    """Shards that differ, teachers trained anew, and teachers left alone, after new data."""
    project.teach(*words)
    shards, teachers = project.artifact("partition").json("shards.json"), project.teachers()
    project.save("private", *private)
    project.teach(*words)
    newest = max(
        Store(root=project.run_folder).all("partition"),
        key=lambda each: each.path.stat().st_mtime_ns,
    )
    after = newest.json("shards.json")
    now = project.teachers()
    assert teachers.items() <= now.items(), "a teacher that was there has been touched"
    return sum(a != b for a, b in zip(shards, after, strict=True)), len(now) - len(teachers)


@pytest.mark.parametrize(
    ("form", "named", "row"),
    [("npz", False, 0), ("npz", False, PRIVATE_ROWS - 1), ("npz", True, 57), ("csv", True, 0)],
)
def test_a_dropped_record_changes_one_shard_and_one_teacher(tmp_path, form, named, row):
    """Records are named by their ids, or by what they hold."""
    private = marked() if named else (*records(PRIVATE_ROWS, seed=1), None, None)
    project = RecordsProject(tmp_path / "project", form=form, private=private)
    assert changed(project, drop(private, row)) == (1, 1)


def test_a_record_replaced_under_its_id_changes_one_shard_and_one_teacher(tmp_path):
    private = marked()
    project = RecordsProject(tmp_path / "project", private=private)
    features = private[0].copy()
    features[57] += 3
    assert changed(project, (features, *private[1:])) == (1, 1)


def test_a_user_who_leaves_changes_one_shard_and_one_teacher(tmp_path):
    private = marked()
    project = RecordsProject(tmp_path / "project", private=private)
    gone = [row for row in range(PRIVATE_ROWS) if private[3][row] == "SECRET-CLINIC-7"]
    assert len(gone) > 1
    smaller = private
    for row in reversed(gone):
        smaller = drop(smaller, row)
    assert changed(project, smaller, "--set", "partition.by=group") == (1, 1)


def test_a_shuffle_protects_a_replaced_record_only_and_says_so(tmp_path):
    """Records named by their content: a replaced one changes its name, and one shard."""
    private = (*records(PRIVATE_ROWS, seed=1), None, None)
    project = RecordsProject(tmp_path / "project", private=private, recipe=SHUFFLE)
    features = private[0].copy()
    features[57] += 3
    assert changed(project, (features, *private[1:])) == (1, 1)
    output = project.bytes_of("--engine", "serial")
    released = project.artifact("aggregate").facts["protects"]
    report = project.artifact("account").json("guarantees.json")["protects"]
    assert {released, report} == {"one record replaced"}
    assert b"one record replaced" in output
    assert b"added" not in output


def test_a_shuffle_does_not_survive_a_dropped_record(tmp_path):
    private = (*records(PRIVATE_ROWS, seed=1), None, None)
    project = RecordsProject(tmp_path / "project", private=private, recipe=SHUFFLE)
    shards, teachers = changed(project, drop(private, 5))
    assert shards == teachers > 1
