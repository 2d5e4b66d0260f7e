"""``pate audit`` through the command line: its files, what it leaves alone, what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from harness import Project, open_project, tiny_records

import pate
from pate.audits.retraining import Retraining
from pate.audits.run import open_retraining
from pate.partition import Shards, partition

DOCUMENTED = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
CANARIES = 20
WORDS = ("--shadows", "4", "--canaries", str(CANARIES))


def digests(folder, *, besides=()):
    """All files below a folder with their modes and contents."""
    return {
        file.relative_to(folder).as_posix(): (
            file.stat().st_mode & 0o777,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in folder.rglob("*")
        if file.is_file() and not any(file.is_relative_to(each) for each in besides)
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of teachers, in a project that tests may copy."""
    project = open_project(tmp_path_factory.mktemp("audit"))
    project.write(teachers={"count": 15, "model": "ridge"})
    project.run()
    return project


def audit(project, *words, code=0):
    return project.call("audit", "runs/tiny", *words, code=code)


def written(project):
    return json.loads((project.run_folder / "private" / "audit.json").read_text())


def test_an_audit_writes_private_files_and_changes_nothing_else(finished, plain_plots):
    private = finished.run_folder / "private"
    before = digests(finished.folder)
    said = audit(finished, *WORDS).stdout
    after = digests(finished.folder)
    assert {name: after[name] for name in before} == before  # not a byte of run, data or ledger
    new = {name for name in after if name not in before}
    assert new
    assert all(name.startswith("runs/tiny/private/audit") for name in new)
    assert {mode for name, (mode, _) in after.items() if name in new} == {0o600}
    assert {"audit.json", "audit.html", "audit-roc.png"} <= {
        each.name for each in private.iterdir()
    }
    found = written(finished)
    assert found["level"] == "PRIVATE"
    assert not found["contradicted"]
    assert len(found["realised"]["epsilons"]) == 90
    claimed = found["claimed"]["student"]["epsilon"]
    assert max(found["realised"]["epsilons"]) <= claimed
    by_attack = {(each["attack"], each["target"]): each for each in found["findings"]}
    exact = by_attack["leave-one-out, exact", "released labels"]
    assert 0 < exact["epsilon"] <= exact["values"]["largest realised ε"] <= claimed
    assert exact["confidence"] is None
    canaries = by_attack["canaries (mislabelled)", "released labels"]
    assert canaries["confidence"] == 0.95
    assert canaries["largest_possible"] > 0
    for target in ("student", "model without privacy"):
        assert ("threshold on the loss", target) in by_attack
        assert ("LiRA (online)", target) in by_attack
        assert ("label-only, distance to the boundary", target) in by_attack
        assert any(attack.startswith("attribute inference (column ") for attack, on in by_attack
                   if on == target)  # fmt: skip
    assert "PRIVATE: do not publish" in said
    assert found["verdict"] in said
    page = (private / "audit.html").read_text()
    assert "PRIVATE – do not publish" in page
    assert "never" not in found["verdict"]
    assert 'id="roc-wide"' in page


@pytest.mark.campaign
def test_leave_one_out_resumes_and_samples(finished, plain_plots):
    words = ("--attacks", "leave-one-out", "--json", "--quiet")
    first = json.loads(audit(finished, *words).stdout)
    section = DOCUMENTED.read_text().partition("## `pate audit`")[2].partition("\n## ")[0]
    assert set(first) == set(re.findall(r"^\| `(\w+)` \|", section, re.M))
    kept = sorted((finished.run_folder / "private" / "audit").glob("*/shard-*.npy"))
    assert len(kept) >= 15
    stamps = [file.stat().st_mtime_ns for file in kept]
    again = json.loads(audit(finished, *words).stdout)
    assert [file.stat().st_mtime_ns for file in kept] == stamps
    assert again["realised"] == first["realised"]
    some = json.loads(audit(finished, *words, "--records", "12").stdout)
    assert some["realised"]["records"] == 12
    assert set(some["realised"]["epsilons"]) <= set(first["realised"]["epsilons"])
    # The rows named as most exposed are the records behind these values.
    (top, *_) = first["exposed"]
    assert top["epsilon"] == pytest.approx(max(first["realised"]["epsilons"]))
    labels = np.load(finished.path("data") / "labels.npy")
    assert top["label"] == str(labels[top["record"]])


@pytest.mark.campaign
def test_in_rounds_the_bound_is_of_the_first(tmp_path, plain_plots, monkeypatch):
    from pate.audits import leave_one_out

    seen = []

    def shown(pairs, *, delta):
        seen.append(len(pairs))
        return 0.0

    project = open_project(tmp_path)
    rounds = {"choose": "uncertain", "rounds": 4}
    project.write(teachers={"count": 15, "model": "ridge"}, aggregate=rounds)
    project.run()
    audit(project, "--attacks", "leave-one-out")
    (exact,) = written(project)["findings"]
    assert exact["note"].startswith("Answers decide what the next round asks")
    assert 0 <= exact["epsilon"] <= exact["values"]["largest realised ε"]
    monkeypatch.setattr(leave_one_out, "shown_epsilon", shown)
    audit(project, "--attacks", "leave-one-out")
    most = max(each["changed"] for each in written(project)["exposed"])
    assert seen
    assert max(seen) <= 3 < most  # of 12 queries, the first round asks 3


def test_record_votes_and_what_may_be_published(tmp_path, plain_plots):
    project = open_project(tmp_path)
    project.data(records=400)
    project.sections.pop("teachers")
    project.sections |= {
        "votes": {"by": "records"},
        "aggregate": {"mechanism": "laplace-counts"},
        "privacy": {"epsilon": 2.0},
    }
    project.write()
    project.run()
    audit(project, "--attacks", "leave-one-out,canaries")
    found = written(project)
    exact, canaries = found["findings"]
    assert exact["epsilon"] == pytest.approx(2.0, rel=1e-9)
    assert exact["epsilon"] <= 2.0
    assert set(found["realised"]["epsilons"]) == {2.0}
    assert found["exposed"] == []
    assert canaries["target"] == exact["target"] == "noised table"
    assert canaries["firm_epsilon"] <= 2.0  # of one in 10 000 audits, it is not
    assert found["publishable"].startswith("An audit with 60 canaries, none a private record")


class Dpsgd(Project):
    program = "dpsgd"


def trained(tmp_path, training=""):
    """A finished run of DP-SGD, as either program sees it."""
    project = Project(tmp_path)
    (tmp_path / "data").mkdir()
    project.data(records=300)
    (tmp_path / "tiny.toml").write_text(
        'kind = "dpsgd"\n[data]\nname = "tiny"\nsource = "tiny.npz"\npublic = 20\ntest = 60\n'
        "accept_unprotected = true\n[model]\nhidden = [8]\n"
        f"[training]\n{training}steps = 30\nlot_size = 40\nlearning_rate = 0.5\n"
        '[privacy]\nnoise_multiplier = 1.0\ndelta = 1e-3\naccountant = "moments"\n'
    )
    other = Dpsgd(tmp_path)
    other.call("train", "tiny.toml", "--quiet")
    return project, other


def test_membership_of_a_run_of_dpsgd_by_either_program(tmp_path, plain_plots):
    project, other = trained(tmp_path)
    before = digests(tmp_path)
    for program in (project, other):
        words = ("audit", "runs/tiny", "--attacks", "membership", "--shadows", "0")
        assert "DP-SGD model" in program.call(*words).stdout
    after = digests(tmp_path)
    assert {name: after[name] for name in before} == before
    found = written(project)
    assert {e["target"] for e in found["findings"]} == {"DP-SGD model", "model without privacy"}


@pytest.mark.campaign
def test_gradient_canaries_of_a_run_of_dpsgd(tmp_path, plain_plots):
    project, other = trained(tmp_path)
    said = other.call("audit", "runs/tiny", "--attacks", "canaries,leave-one-out",
                      "--canaries", "100").stdout  # fmt: skip
    found = written(project)
    gradients = next(e for e in found["findings"] if e["attack"] == "gradient canaries")
    assert 0 < gradients["epsilon"] < gradients["largest_possible"]
    assert gradients["firm_epsilon"] <= gradients["values"]["claimed ε"]
    assert found["publishable"].startswith("An audit with 100 canaries, none a private record")
    assert any("exact for PATE alone" in each for each in found["skipped"])
    assert "gradient canaries" in said


@pytest.mark.parametrize("case", ["release", "unfinished", "no private folder", "nothing", "few"])
def test_mistakes_are_one_line(finished, tmp_path, case, plain_plots):
    place = tmp_path / "project"
    shutil.copytree(finished.folder, place, ignore=shutil.ignore_patterns("audit*"))
    project = Project(place)
    folder, words = "runs/tiny", []
    if case == "release":
        finished.pate("release", "runs/tiny", str(place / "given"))
        folder, expected = "given", "given is a release: an audit needs the private records"
    elif case == "unfinished":
        project.call("teach", "tiny.toml", "--set", "teachers.seed=5", "--engine", "serial",
                     "--plugin-path", "plugins")  # fmt: skip
        expected = "runs/tiny is not finished: vote is stale"
    elif case == "no private folder":
        shutil.rmtree(project.run_folder / "private")
        expected = "the private records of runs/tiny are not at hand: an audit looks at them"
    elif case == "nothing":
        folder, expected = "runs/none", "there is no run in runs/none"
    else:
        words, expected = ["--canaries", "3"], "3 canaries can show no ε"
    done = project.call("audit", folder, *words, code=2)
    assert expected in done.stderr
    (line,) = done.stderr.splitlines()  # before any attack is made
    assert line.startswith("pate: ")
    assert not (place / folder / "private" / "audit.json").exists()
    assert project.call("audit", "runs/tiny", "--attacks", "guess", code=2).stderr.startswith(
        "pate: attacks holds 'guess'; choose from leave-one-out, membership, canaries"
    )


def test_a_student_without_confidences_takes_label_attacks_alone(tmp_path, plain_plots):
    project = open_project(tmp_path)
    plain = (tmp_path / "plugins" / "centroids.py").read_text()
    project.plugin("plain", plain.replace("predict_proba", "_near"))
    project.write(student={"model": "plain:Centroids"})
    project.run()
    audit(project, "--attacks", "membership", "--shadows", "0")
    found = written(project)
    by_labels = {"label-only, noisy copies", "label-only, distance to the boundary"}
    assert {each["attack"] for each in found["findings"]} == by_labels
    assert any("gives no probabilities" in each for each in found["skipped"])


MEMORY = '''
import numpy as np

class Memory:
    """The private records themselves: the worst student that there is."""

    def fit(self, X, y):
        with np.load(PLACE) as kept:
            self.X, self.y = kept["X"], kept["y"]
        return self

    def predict(self, X):
        return self._near(X)[1]

    def _near(self, X):
        away = ((np.asarray(X)[:, None] - self.X[None]) ** 2).sum(axis=2)
        return away.min(axis=1), self.y[away.argmin(axis=1)]

    def predict_proba(self, X):
        away, label = self._near(X)
        return np.eye(3)[label] * np.exp(-away)[:, None] + (1 - np.exp(-away))[:, None] / 3

    def save(self, folder):
        pass

    def load(self, folder):
        self.fit(None, None)
'''


def test_a_student_that_holds_private_records_is_contradicted(tmp_path, plain_plots):
    """Whatever the accounting says: true labels reached the student."""
    project = open_project(tmp_path)
    project.write(aggregate={"scale": 200.0}, student={"model": "memory:Memory"})
    place = tmp_path / "memory.npz"
    project.plugin("memory", MEMORY.replace("PLACE", repr(str(place))))
    project.call("partition", "tiny.toml", "--plugin-path", "plugins")
    (shards,) = (tmp_path / "runs/tiny/private/partition").iterdir()
    np.savez(place, X=np.load(shards / "features.npy"), y=np.load(shards / "labels.npy"))
    project.run()
    words = ("--attacks", "membership", "--shadows", "0")
    said = audit(project, *words, code=1).stdout
    assert "CONTRADICTED: threshold on the loss" in said
    assert written(project)["contradicted"]
    assert written(project)["suspect"]


def test_shards_that_overlap_are_contradicted(tmp_path, monkeypatch):
    """Each teacher gets the records of the next one, too: a record reaches two."""

    def overlapping(*words, **named):
        shards = partition(*words, **named)
        parts = np.split(shards.order, shards.offsets[1:-1])
        both = [np.concatenate(pair) for pair in zip(parts, [*parts[1:], parts[0]], strict=True)]
        offsets = np.cumsum([0, *map(len, both)])
        return Shards(order=np.concatenate(both), offsets=offsets)

    project = open_project(tmp_path)
    project.write(teachers={"model": "ridge"})
    monkeypatch.setattr("pate.stages.data.partition", overlapping)
    run = pate.run(
        tmp_path / "tiny.toml", out=tmp_path / "run", data_root=tmp_path / "data",
        plugin_path=tmp_path / "plugins",
    )  # fmt: skip
    found = pate.audit(run, attacks=["membership"], shadows=0)
    assert found.contradicted
    assert "private records are in the shards more often than in the data" in found.verdict


def test_votes_that_are_counted_twice_are_found(finished):
    run = pate.open_run(finished.run_folder, data_root=finished.folder / "data",
                        plugin_path=finished.folder / "plugins")  # fmt: skip
    again = open_retraining(run.pipeline)
    assert again.faults() == ()
    counts = 2 * run.pipeline.artifact("vote").array("counts.npy")

    def artifact(name):
        return (
            SimpleNamespace(array=lambda _: counts)
            if name == "vote"
            else run.pipeline.artifact(name)
        )

    doubled = SimpleNamespace(recipe=run.pipeline.recipe, artifact=artifact)
    assert Retraining(run=doubled).faults() == ("30 votes are counted on one input, of 15 at most",)


def test_canaries_that_cannot_show_anything_do_not_stop_the_rest(finished, tmp_path, plain_plots):
    project = open_project(shutil.copytree(finished.folder, tmp_path / "copy"))
    said = audit(project, "--attacks", "membership,canaries", "--shadows", "0",
                 "--canaries", "5000").stdout  # fmt: skip
    assert "Not made: canaries: " in said
    assert written(project)["findings"]
    alone = audit(project, "--attacks", "canaries", "--canaries", "5000", "--quiet", code=2).stderr
    assert alone.startswith("pate: 5000 mislabelled canaries need as many wrong labels")


def test_a_model_that_quotes_records_is_not_quoted(tmp_path, plain_plots):
    project = open_project(tmp_path)
    plain = (tmp_path / "plugins" / "centroids.py").read_text()
    refusal = "if len(X) > 30: raise ValueError(f'odd row {X[0]}')"
    refusing = plain.replace("        distance =", f"        {refusal}\n        distance =")
    project.plugin("quoting", refusing)
    project.write(student={"model": "quoting:Centroids"})
    project.run()
    done = audit(project, "--attacks", "membership", "--shadows", "0")
    assert "predict_proba raised ValueError in plugins/quoting.py" in done.stdout
    kept = (project.run_folder / "private" / "audit.json").read_text()
    assert "odd row" not in done.stdout + done.stderr + kept


def test_gradient_canaries_are_secret_and_held_against_the_claim_of_the_run(
    tmp_path, monkeypatch, plain_plots
):
    """Seeded, a published bound would depend on the number of records, by the lots."""
    from pate.audits import gradients
    from pate.audits.findings import Finding

    given, shown = [], 1.01

    def found(*words, **named):
        given.append(named.get("insecure_seed"))
        return Finding(
            attack="gradient canaries", target="DP-SGD training", knowledge="", source="",
            epsilon=shown * claimed, firm_epsilon=shown * claimed, confidence=0.95,
            values={"claimed ε": 9 * claimed, "canaries": 5.0}, publishable=True,
        )  # fmt: skip

    monkeypatch.setattr(gradients, "audit_dpsgd", found)
    project, _ = trained(tmp_path)
    claimed = pate.open_run(tmp_path / "runs/tiny", data_root=tmp_path / "data").guarantee.epsilon
    words = ("audit", "runs/tiny", "--attacks", "canaries", "--seed", "7")
    assert "CONTRADICTED" in project.call(*words, code=1).stdout
    assert written(project)["publishable"]
    shown = 0.99
    project.call(*words)
    assert given == [None, None]


def test_any_model_of_arrays():
    features, labels = tiny_records(600)
    rng = np.random.default_rng(0)
    members, others = (
        (features[:300], rng.permutation(labels[:300])),
        (features[300:], labels[300:]),
    )

    class Memory:
        def predict_proba(self, X):
            near = ((np.asarray(X)[:, None] - members[0][None]) ** 2).sum(axis=2)
            return np.eye(3)[members[1][near.argmin(axis=1)]] * 0.94 + 0.02

    guarantee = pate.Guarantee(epsilon=0.5, delta=1e-5)
    found = pate.audit(Memory(), members, others, guarantee=guarantee)
    assert found.findings[0].values["advantage"] > 0.3
    assert found.claim is not None
    assert found.subject == "Memory"
    with pytest.raises(pate.InvalidInput, match="Memory is audited as a model: give members"):
        pate.audit(Memory())
    with pytest.raises(pate.InvalidInput, match="object has no predict"):
        pate.audit(object(), members, others)
    assert found.verdict.startswith("CONTRADICTED: threshold on the loss")
    for wrong, line in (
        (features, "members are no pair of records and labels; give them as"),
        ((features[:0], labels[:0]), "there are no records; an attack needs members and others"),
        ((features[:9, :1], labels[:9]), r"have shapes \(9, 1\), \(300, 4\); give records of one"),
    ):
        with pytest.raises(pate.InvalidInput, match=line):
            pate.audit(Memory(), wrong, others)

    class Labels:
        def predict(self, X):
            return Memory().predict_proba(X).argmax(axis=1)

    (line,) = pate.audit(Labels(), members, others).skipped
    assert line.startswith("Attacks by confidences on the Labels: its model gives no probab")
