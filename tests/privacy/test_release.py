"""What is private stays out of a release: markers are planted, and every byte of it is searched."""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
from harness import Project

from pate.accounting import Ledger
from pate.errors import InvalidInput
from pate.releases.write import pipeline_content, require_clean

VALUE = 1234.5678  # in features of private records
pytestmark = pytest.mark.xdist_group("private release")  # the runs it releases are made once
PRIVATE_ROWS, TEST_ROWS = 331, 137  # numbers that nothing else comes to
ROOT = Path(__file__).parents[2]
RECIPE = """
[data]
name = "mine"
private_path = "secret-private.npz"
public_path = "public.npz"
test_path = "test.npz"
id = "who"
group = "clinic"
[encoder]
steps = ["standardise"]
[teachers]
count = 16
model = "sklearn.tree:DecisionTreeClassifier"
[teachers.params]
max_depth = 2
[aggregate]
mechanism = "{mechanism}"
{noise}
queries = 15
[privacy]
delta = 1e-3
[student]
model = "{model}"
inputs = "{inputs}"
epochs = 2
[evaluate]
reference = true
"""
LAPLACE = "scale = 2.0"
CHECKED = "threshold = 6.0\nsigma1 = 3.0\nsigma2 = 3.0"


def records(count, *, seed, marked=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    features = rng.normal(size=(count, 3)) + 1.5 * labels[:, None]
    features[:marked, 1] = VALUE
    ids = [f"SECRET-ID-{seed}-{number:04d}" for number in range(count)]
    groups = [f"SECRET-CLINIC-{seed}-{number % 90}" for number in range(count)]
    return {"X": features, "y": labels, "who": np.array(ids), "clinic": np.array(groups)}


class SecretProject(Project):
    """A finished run of somebody whose name and machine are marked too."""

    def __init__(self, folder, **recipe):
        super().__init__(folder / "SECRETUSER", name="my")
        (self.folder / "data").mkdir(parents=True)
        np.savez(self.folder / "secret-private.npz", **records(PRIVATE_ROWS, seed=1, marked=9))
        np.savez(self.folder / "public.npz", **records(60, seed=2))
        np.savez(self.folder / "test.npz", **records(TEST_ROWS, seed=3))
        (self.folder / "my.toml").write_text(RECIPE.format(**recipe))
        self.run("--quiet")

    def environment(self):
        return super().environment() | {"HOME": str(self.folder), "USER": "SECRETUSER"}

    def private(self, stage, name):
        (file,) = self.run_folder.glob(f"private/{stage}/*/{name}")
        return file


@pytest.fixture(
    scope="module",
    params=[
        ("lnmax", LAPLACE, "sklearn.neighbors:KNeighborsClassifier", "raw"),
        ("confident", CHECKED, "mlp", "features"),
        ("interactive", CHECKED, "sklearn.tree:DecisionTreeClassifier", "features"),
    ],
    ids=lambda each: each[0],
)
def project(request, tmp_path_factory):
    keys = ("mechanism", "noise", "model", "inputs")
    made = SecretProject(
        tmp_path_factory.mktemp("project"), **dict(zip(keys, request.param, strict=True))
    )
    rival = {
        "method": "dpsgd", "name": "SECRET-RIVAL", "epsilon": 2.0, "accuracy": 0.5, "spread": None,
        "low": 0.4, "high": 0.6, "neighbours": "add-remove", "publishable": True,
    }  # fmt: skip
    cost = {"together": {"epsilon": 4.0, "delta": 2e-5, "neighbours": "add-remove"}}
    # No charge of this run covers what was compared.
    comparison = {"format": 1, "delta": 1e-5, "seeds": 1, "rows": [rival], "cost": cost}
    (made.run_folder / "compare.json").write_text(json.dumps(comparison))
    made.pate("release", "runs/my", "out", "--labels")
    return made


def numbers(name, value):
    """A figure as text, to six digits, and in memory."""
    return {
        f"{name} as text": re.compile(re.escape(repr(value)[:7]).encode()),
        f"{name} in memory": re.compile(re.escape(np.float64(value).tobytes())),
    }


def marks(project):
    found = {
        "secret id": re.compile(rb"SECRET-ID-1"),
        "any id": re.compile(rb"SECRET-ID"),
        "clinic": re.compile(rb"SECRET-CLINIC"),
        "user": re.compile(rb"SECRETUSER"),
        "folder": re.compile(re.escape(str(project.folder).encode())),
        "host": re.compile(rb"\b" + re.escape(socket.gethostname().encode()) + rb"\b"),
        "number of records": re.compile(rb"(?<![\w.])%d(?![\w.])" % PRIVATE_ROWS),
        "a file of the data": re.compile(rb"secret-private"),
        "a column of the data": re.compile(rb"\bclinic\b"),
        "a comparison": re.compile(rb"SECRET-RIVAL"),
        "value": re.compile(rb"1234\.56"),
    }
    for kind in ("<f8", ">f8", "<f4", ">f4"):
        found[f"value as {kind}"] = re.compile(re.escape(np.array(VALUE, dtype=kind).tobytes()))
    counts = np.load(project.private("vote", "counts.npy"))
    for kind in ("<i8", "<i4", "<i2", "<f8", "<f4", "u1"):
        found[f"votes as {kind}"] = re.compile(re.escape(counts[:8].astype(kind).tobytes()))
    exact = json.loads(project.private("account-private", "guarantees.json").read_text())
    for conversion in ("classic", "improved"):
        found |= numbers(f"ε ({conversion})", exact[conversion]["epsilon"])
    reference = json.loads(project.private("evaluate-reference", "evaluation.json").read_text())
    found |= numbers("the reference", reference["reference"]["accuracy"])
    (key,) = project.folder.glob("data/ledgers/*.key")
    found["key"] = re.compile(re.escape(key.read_bytes()) + b"|" + key.read_bytes().hex().encode())
    for folder in project.run_folder.glob("private/*/*"):
        found[f"fingerprint {folder.parent.name}"] = re.compile(folder.name[:16].encode())
    for file in project.run_folder.glob("private/*/*/*.npy"):
        if file.stat().st_size > 200:
            found[f"what {file.name} holds"] = re.compile(re.escape(file.read_bytes()[128:]))
    return found


def layers(name, content):
    yield name, content
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from layers(f"{name}/{member}", archive.read(member))


def search(folder, wanted):
    found = []
    for file in sorted(folder.rglob("*")):
        content = file.read_bytes() if file.is_file() else b""
        for name, part in layers(str(file.relative_to(folder)), content):
            text = name.encode() + b"\n" + part
            found += [(what, name) for what, mark in wanted.items() if mark.search(text)]
    return found


@pytest.mark.sample(1)
def test_nothing_private_is_in_a_release(project):
    wanted = marks(project)
    student = json.loads(
        next(project.run_folder.glob("released/evaluate/*/evaluation.json")).read_text()
    )
    reference = json.loads(project.private("evaluate-reference", "evaluation.json").read_text())
    if student["student"]["accuracy"] == reference["reference"]["accuracy"]:
        wanted = {name: mark for name, mark in wanted.items() if "reference" not in name}
    there = {what for what, _ in search(project.run_folder / "private", wanted)}
    assert {"secret id", "value as <f8", "ε (improved) as text", "what counts.npy holds"} <= there
    # Answers lie in private until they are paid for, and these were.
    paid = ("answered", "asked", "labels", "kept", "kept_labels", "rows")
    answers = {f"what {name}.npy holds" for name in paid}
    assert [each for each in search(project.folder / "out", wanted) if each[0] not in answers] == []


@pytest.mark.sample(1)
def test_the_exact_epsilon_is_in_no_sentence(project):
    """Also rounded, as people write it; curves of a plot may pass through any number."""
    exact = json.loads(project.private("account-private", "guarantees.json").read_text())
    stated = json.loads((project.folder / "out" / "guarantee.json").read_text())
    files = [
        p for p in (project.folder / "out").rglob("*") if p.suffix in (".md", ".html", ".json")
    ]
    texts = [re.sub(r"(?s)<svg.*?</svg>", "", file.read_text()) for file in files]
    assert len(texts) >= 5
    own = repr(stated["guarantee"]["epsilon"])
    assert any(re.search(rf"(?<![\d.]){re.escape(own)}(?!\d)", text) for text in texts)
    for conversion in ("classic", "improved"):
        for digits in (4, 5):
            figure = re.escape(f"{exact[conversion]['epsilon']:.{digits}g}")
            for text in texts:
                assert not re.search(rf"(?<![\d.]){figure}(?!\d)", text)


@pytest.mark.sample(1)
def test_a_release_names_charges_by_chance_alone(project):
    """The ledger's own names hold keyed fingerprints: two of them would tell if data changed."""
    statement = json.loads((project.folder / "out" / "guarantee.json").read_text())
    with Ledger.open(next(project.folder.glob("data/ledgers/*.ledger"))) as ledger:
        charges = [each.release.split() for each in ledger.charges()]
    assert sorted(statement["charges"]) == sorted(f"{kind} {name}" for kind, _, name in charges)
    everything = b"".join(
        p.read_bytes() for p in (project.folder / "out").rglob("*") if p.is_file()
    )
    for _, made_from, _ in charges:
        assert made_from[:12].encode() not in everything


@pytest.mark.sample(1)
def test_a_release_is_good_where_nothing_else_is(project, tmp_path):
    shutil.copytree(project.folder / "out", tmp_path / "given")
    output = Project(tmp_path).pate("verify", "given").stdout
    assert "verified: given holds the files of its SHA256SUMS" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given"]


@pytest.mark.parametrize("kind", ["path", "fingerprint", "key", "pickle", "figure", "archive"])
@pytest.mark.sample(6)
def test_the_last_look_finds_what_must_not_leave(project, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(project.folder)
    content = pipeline_content(project.run_folder)
    (tmp_path / "clean.txt").write_text("nothing")
    require_clean(tmp_path, content)
    (key,) = project.folder.glob("data/ledgers/*.key")
    name = next((project.run_folder / "private" / "vote").iterdir()).name
    if kind == "path":
        (tmp_path / "note.txt").write_text(f"see {project.run_folder}/x")
    elif kind == "fingerprint":
        (tmp_path / "note.txt").write_text(f"from {name}")
    elif kind == "key":
        (tmp_path / "note.bin").write_bytes(b"a" + key.read_bytes())
    elif kind == "pickle":
        np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    elif kind == "figure":
        (tmp_path / "a.json").write_text('{"a": [{"publishable": false}]}')
    else:
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inside", f"from {name}")
    with pytest.raises(InvalidInput, match="nothing was released"):
        require_clean(tmp_path, content)
