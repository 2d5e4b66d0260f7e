"""``pate release`` and ``pate verify``, on runs: what leaves, is refused, and is found."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pate
from pate.accounting import Conversion, Ledger, Repeated, compose, event_from_json
from pate.accounting.events import tally
from pate.accounting.ledger.terms import Terms
from pate.artifacts import digest_of, fingerprint
from pate.artifacts.manifest import write_sealed
from pate.errors import InvalidInput
from pate.releases.conventions import written_files
from pate.releases.documents import render_release_page
from pate.releases.files import SUMS, digests, render_sums
from pate.releases.guarantee import (
    guarantee_of_ledger,
    guarantee_of_plan,
    guarantee_record,
    read_events,
    write_events,
)
from pate.releases.verify import verify as verify_release

pytestmark = pytest.mark.xdist_group("release")  # the runs it releases are made once
TREE = {"model": "sklearn.tree:DecisionTreeClassifier", "params": {"max_depth": 3}}
WORDS = ("runs/tiny", "out", "--plugin-path", "plugins")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: Any, project_in: Any) -> Any:
    """A finished run with a student of scikit-learn."""
    project = project_in(tmp_path_factory.mktemp("finished"))
    project.write(student=TREE)
    project.call_run()
    return project


@pytest.fixture
def copied(finished: Any, tmp_path: Path, project_in: Any) -> Any:
    """A copy of it, data and ledger too, to be changed at will."""
    shutil.copytree(finished.folder, tmp_path / "project")
    return project_in(tmp_path / "project")


def release(project: Any, *words: str, code: int = 0) -> Any:
    return project.call("release", *WORDS, *words, code=code)


def read(project: Any, name: str) -> Any:
    return json.loads((project.folder / "out" / name).read_text())


def seal_again(file: Path, **facts: Any) -> None:
    """Writes a manifest that fits what the files hold now, as somebody with a program would."""
    manifest = json.loads((file.parent / "manifest.json").read_text())
    del manifest["seal"]
    manifest["facts"] |= facts
    manifest["files"][file.name] = {"sha256": digest_of(file), "bytes": file.stat().st_size}
    write_sealed(file.parent / "manifest.json", manifest)
    folder, digest = file.parent, fingerprint(manifest["files"], manifest["facts"])
    place = folder.parents[2] / "private" / "origins" / folder.parent.name
    for origin in place.glob("*.json"):
        content = json.loads(origin.read_text())
        del content["seal"]
        if content["folder"] == folder.name:
            write_sealed(origin, content | {"folder": digest[:20], "key": digest})
            folder.rename(folder.with_name(digest[:20]))


def change(file: Path, edit: Any) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def sums_again(out: Path) -> None:
    """Lists and checksums that fit what the files hold now."""
    listed = {n: d for n, d in digests(out).items() if n != "release.json"}
    change(out / "release.json", lambda content: content.update(files=listed))
    (out / SUMS).write_text(render_sums(digests(out)))


# --- what leaves ------------------------------------------------------------------------------


def test_a_release_holds_what_it_should_and_is_verified_anywhere(
    copied: Any, tmp_path: Path
) -> None:
    said = release(copied, "--labels").stdout
    out = copied.folder / "out"
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    arrays = ("asked", "answered", "labels", "kept", "kept_labels")
    assert files == {
        "MODEL_CARD.md",
        "SHA256SUMS",
        "deployment.yaml",
        "guarantee.json",
        "release.json",
        "report.html",
        "student.json",
        "student/model.onnx",
        "labels/labels.csv",
        "labels/croissant.json",
        *(f"labels/{name}.npy" for name in arrays),
    }
    assert out.stat().st_mode & 0o777 == 0o755
    statement = read(copied, "guarantee.json")
    figure = copied.json("account", "guarantees.json")["guarantee"]
    assert statement["guarantee"]["epsilon"] == figure["epsilon"]
    assert said.startswith("released to out: ε = ")
    np.testing.assert_array_equal(
        np.load(out / "labels" / "labels.npy"), copied.array("aggregate", "labels.npy")
    )
    subprocess.run(["sha256sum", "-c", "--quiet", SUMS], cwd=out, check=True)
    # Elsewhere: no run, no data, no ledger, no plug-ins, another folder.
    elsewhere = tmp_path / "elsewhere" / "given"
    shutil.copytree(out, elsewhere)
    shutil.rmtree(copied.folder)
    done = subprocess.run(
        [sys.executable, "-m", "pate", "verify", str(elsewhere)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "verified: " in done.stdout
    student = pate.load_student(elsewhere)
    assert student.predict(np.zeros((3, 4))).shape == (3,)


def test_the_student_answers_as_the_run_measured_it(copied: Any) -> None:
    release(copied)
    assert not (copied.folder / "out" / "labels").exists()
    student = pate.load_student(copied.folder / "out")
    truth = copied.array("data-test", "labels.npy")
    said = student.predict(copied.array("data-test", "features.npy"))
    measured = copied.json("evaluate", "evaluation.json")["student"]["accuracy"]
    assert (said == truth).mean() == measured
    assert student.class_names == ("0", "1", "2")
    chances = student.predict_proba(copied.array("data-test", "features.npy"))
    assert chances.shape == (30, 3)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    with pytest.raises(InvalidInput, match=r"the student takes \(n, 4\)"):
        student.predict(np.zeros((3, 5)))


@pytest.mark.campaign
def test_a_release_is_made_once_in_a_place_and_the_same_again_in_another(copied: Any) -> None:
    release(copied)
    refused = release(copied, code=2).stderr
    assert refused == "pate: out is not empty; a release is never overwritten: choose another\n"
    (copied.folder / "empty").mkdir()
    copied.call("release", "runs/tiny", "empty", "--plugin-path", "plugins")
    assert digests(copied.folder / "out") == digests(copied.folder / "empty")
    assert not list(copied.folder.glob(".draft*"))


def test_a_plugin_student_needs_its_code_and_trust(project: Any) -> None:
    project.call_run()
    said = release(project).stdout
    assert (
        "loading it runs code of its own and needs trust=True (--trust), because a Centroids"
        in said
    )
    out = project.folder / "out"
    card = (out / "MODEL_CARD.md").read_text()
    assert "The student needs code that is not part of this release: centroids:Centroids" in card
    for plugins in (None, project.folder / "plugins"):
        with pytest.raises(InvalidInput, match=r"\(centroids:Centroids\).*trust=True"):
            pate.load_student(out, plugins)
    student = pate.load_student(out, project.folder / "plugins", trust=True)
    assert student.predict(project.array("data-test", "features.npy")).shape == (30,)
    said = project.call("verify", "out", code=4).stdout
    assert said.startswith(
        "verified, except for the parts below: out holds the files of its SHA256SUMS"
    )
    assert "Not checked: the student was not tried: it needs code of its own" in said
    again = ("verify", "out", "--plugin-path", "plugins")
    assert "not tried" in project.call(*again, code=4).stdout
    assert "Not checked" not in project.call(*again, "--trust").stdout


@pytest.mark.campaign
def test_a_student_that_ends_the_process_fails_its_trial(project: Any) -> None:
    project.call_run()
    release(project)
    code = "import os\nclass Centroids:\n    def __init__(self, classes):\n        os._exit(0)\n"
    project.plugin("centroids", code)
    words = ("verify", "out", "--plugin-path", "plugins", "--trust")
    assert "ended with code 0 and without an answer" in project.call(*words, code=1).stderr


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("mlp", "network"),
        ("logistic", "linear"),
        ("sklearn.neighbors:KNeighborsClassifier", "onnx"),
    ],
)
@pytest.mark.campaign
def test_students_of_every_kind_on_encoded_features(project: Any, model: str, kind: str) -> None:
    project.write(
        encoder={"steps": ["standardise", {"name": "pca", "dimension": 3}]},
        student={"model": model, "inputs": "features", "epochs": 2},
    )
    project.call_run()
    release(project)
    out = project.folder / "out"
    assert not list(out.rglob("features.npy"))
    assert read(project, "student.json")["model"]["kind"] == kind
    said = pate.load_student(out).predict(project.array("data-test", "features.npy"))
    measured = project.json("evaluate", "evaluation.json")["student"]["accuracy"]
    assert (said == project.array("data-test", "labels.npy")).mean() == measured
    assert "was fitted on public inputs only" in (out / "MODEL_CARD.md").read_text()


IMAGES = """
import numpy as np


def images():
    rng = np.random.default_rng(1)
    labels = np.arange(150) % 2
    X = rng.normal(size=(150, 8, 8)).astype("float32")
    X[labels == 1, :4] += 2
    return {"X": X, "y": labels}
"""

BACKBONE = """
import torch


def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.Linear(5, 2))
"""


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.campaign
def test_a_backbone_goes_along_with_its_weights(project: Any, kind: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    project.plugin("pictures", IMAGES)
    project.plugin("backbone", BACKBONE)
    torch.manual_seed(0)
    weights = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.Linear(5, 2)
    ).state_dict()
    place = project.folder / f"weights.{kind}"
    save_file(weights, place) if kind == "safetensors" else torch.save(weights, place)
    project.write(
        data={"source": "pictures:images"},
        encoder={"steps": [{"name": "torch", "model": "backbone:net", "weights": str(place)}]},
        teachers={"model": "sklearn.linear_model:LogisticRegression"},
        student={"model": "sklearn.linear_model:LogisticRegression", "inputs": "features"},
    )
    project.call_run()
    release(project)
    place.unlink()
    shutil.move(project.folder / "out", tmp_path / "given")
    assert (tmp_path / "given" / "encoder" / "step-0.onnx").is_file()
    student = pate.load_student(tmp_path / "given")  # not even the code of the backbone is needed
    said = student.predict(project.array("data-test", "features.npy"))
    measured = project.json("evaluate", "evaluation.json")["student"]["accuracy"]
    assert (said == project.array("data-test", "labels.npy")).mean() == measured


@pytest.mark.campaign
def test_a_network_for_images_and_a_class_that_saves_itself(project: Any) -> None:
    project.plugin("pictures", IMAGES)
    project.plugin("itself", (
        "import json\nimport numpy as np\nimport centroids\n"
        "class Itself(centroids.Centroids):\n"
        "    def fit(self, X, y):\n        return super().fit(X.reshape(len(X), -1), y)\n"
        "    def predict_proba(self, X):\n"
        "        return super().predict_proba(X.reshape(len(X), -1))\n"
        "    def save(self, folder):\n        np.save(folder / 'c.npy', self.centres)\n"
        "    def load(self, folder):\n        self.centres = np.load(folder / 'c.npy')\n"
    ))  # fmt: skip
    for model in ("small-cnn", "itself:Itself"):
        project.write(
            data={"source": "pictures:images"},
            teachers={"model": "itself:Itself"},
            student={"model": model, "epochs": 2},
        )
        project.call_run()
        release(project)
        own = {"trust": True} if ":" in model else {}
        student = pate.load_student(project.folder / "out", project.folder / "plugins", **own)
        assert student.predict(np.zeros((2, 8, 8))).shape == (2,)
        assert student.predict_proba(np.zeros((2, 8, 8))).shape == (2, 2)
        shutil.rmtree(project.folder / "out")


@pytest.mark.campaign
def test_digits_from_data_to_a_verified_release(project: Any) -> None:
    """The recipe as it is shipped, with fewer teachers; in processes of their own."""
    few = ("--set", "teachers.count=25")
    project.pate("run", "digits-teachers", "--out", "runs/digits", "--engine", "serial", *few)
    assert "released to out: ε = " in project.pate("release", "runs/digits", "out").stdout
    assert "verified: out holds the files of its SHA256SUMS" in project.pate("verify", "out").stdout
    student = pate.load_student(project.folder / "out")
    (features,) = (project.folder / "runs" / "digits").glob("public/data-test/*/features.npy")
    assert student.predict(np.load(features)).shape == (300,)


@pytest.mark.parametrize(
    "aggregate",
    [
        {"mechanism": "gnmax", "scale": None, "sigma": 3.0, "queries": 12},
        {"mechanism": "confident", "scale": None, "threshold": 3.0, "sigma1": 4.0, "sigma2": 4.0},
        {"mechanism": "interactive", "scale": None, "threshold": 3.0, "sigma1": 4.0, "sigma2": 4.0},
        {"choose": "uncertain", "rounds": 2},
    ],
    ids=lambda each: each.get("mechanism", "uncertain"),
)
@pytest.mark.parametrize("sanitise", [True, False])
@pytest.mark.campaign
def test_every_mechanism_with_and_without_a_sanitised_epsilon(
    project: Any, aggregate: Any, sanitise: bool
) -> None:
    project.data(records=600)
    project.write(
        aggregate=aggregate,
        privacy={"sanitise": sanitise},
        teachers={"count": 30},
        student=TREE,
    )
    project.call_run()
    release(project)
    statement = read(project, "guarantee.json")
    report = project.json("account", "guarantees.json")
    assert statement["guarantee"]["epsilon"] == report["guarantee"]["epsilon"]
    assert (statement["sanitised"] is None) == (report["sanitised"] is None)
    if not sanitise:
        assert statement["sanitised"] is None
    events = [event_from_json(text) for text in statement["labels"]]
    if statement["sanitised"] is not None:
        events.append(event_from_json(statement["sanitised"]["event"]))
    again = compose(events).guarantee(delta=1e-3).epsilon
    assert statement["guarantee"]["epsilon"] == pytest.approx(again, rel=1e-12)


@pytest.mark.campaign
def test_a_mix_of_teachers_is_named_and_stays_at_home(project: Any) -> None:
    mix = [
        {"model": "centroids:Centroids", "params": {"shrink": 0.125}},
        {"model": "sklearn.tree:DecisionTreeClassifier"},
    ]
    project.write(teachers={"model": None, "mix": mix}, student=TREE)
    project.call_run()
    release(project)
    card = (project.folder / "out" / "MODEL_CARD.md").read_text()
    assert "6 of centroids:Centroids, sklearn.tree:DecisionTreeClassifier;" in card
    assert pate.load_student(project.folder / "out").predict(np.zeros((1, 4))).shape == (1,)


def test_a_sanitised_epsilon_has_its_price_in_the_guarantee(project: Any) -> None:
    """Enough teachers, and little noise: the data-dependent cost is then below the other."""
    project.data(records=900)
    project.write(teachers={"count": 40}, aggregate={"scale": 4.0}, student=TREE)
    project.call_run()
    release(project)
    statement = read(project, "guarantee.json")
    assert statement["sanitised"]["charged"]
    assert len(statement["charges"]) == 2
    labels = compose([event_from_json(text) for text in statement["labels"]])
    assert statement["guarantee"]["epsilon"] > labels.guarantee(delta=1e-3).epsilon
    out = project.folder / "out"

    def lower(content: Any) -> None:
        content["guarantee"]["epsilon"] = labels.guarantee(delta=1e-3).epsilon

    change(out / "guarantee.json", lower)
    sums_again(out)
    assert any("guarantee.json: epsilon is" in each for each in verify_release(out).problems)


@pytest.mark.campaign
def test_a_sanitised_epsilon_that_reveals_no_vote_has_no_price(project: Any) -> None:
    """So much noise that the data-dependent bound never applies: the figure is the events' own."""
    project.write(aggregate={"scale": 60.0}, student=TREE)
    project.call_run()
    release(project)
    statement = read(project, "guarantee.json")
    assert not statement["sanitised"]["charged"]
    assert len(statement["charges"]) == 1
    # An exact data-dependent figure does not pass for one: it is not that of the events.
    lower = 0.9 * statement["sanitised"]["epsilon"]
    for place in ("account/guarantees.json", "pending-sanitised/sanitised.json"):
        stage, name = place.split("/")
        file = project.path(stage) / name
        change(file, lambda content: content.get("sanitised", content).update(epsilon=lower))
        seal_again(file)
    shutil.rmtree(project.folder / "out")
    assert "tiny.ledger holds no charge that pays for" in refused(project)


@pytest.mark.parametrize("sanitise", [True, False])
@pytest.mark.parametrize("budget", [None, 60.0])
@pytest.mark.campaign
def test_labels_that_were_extended_are_covered_by_the_ledger(
    project: Any, sanitise: bool, budget: float | None
) -> None:
    for queries in (12, 16, 20):  # the last builds on the second, and that on the first
        project.write(
            student=TREE,
            aggregate={"queries": queries},
            privacy={"sanitise": sanitise, "budget": budget},
        )
        project.call_run()
        if queries == 12:
            first = project.json("account", "guarantees.json")["guarantee"]["epsilon"]
    release(project)
    statement = read(project, "guarantee.json")
    assert statement["counted"] == "ledger"
    assert [each.split()[0] for each in statement["charges"]].count("labels") == 3
    with Ledger.open(project.ledger) as ledger:
        assert statement["guarantee"]["epsilon"] == ledger.guarantee().epsilon > first
    assert statement["guarantee"]["epsilon"] == statement["data_set"]["guarantee"]["epsilon"]


@pytest.mark.campaign
def test_the_cost_of_other_releases_is_stated_beside(project: Any) -> None:
    project.write(student=TREE, privacy={"sanitise": False})
    project.call_run()
    release(project)
    alone = read(project, "guarantee.json")
    project.write("other", student=TREE, aggregate={"scale": 3.0}, privacy={"sanitise": False})
    project.call_run("--out", "runs/other", recipe="other")
    shutil.rmtree(project.folder / "out")
    release(project)
    beside = read(project, "guarantee.json")
    assert beside["guarantee"] == alone["guarantee"]
    whole = beside["data_set"]["guarantee"]["epsilon"]
    assert whole > alone["data_set"]["guarantee"]["epsilon"]
    card = (project.folder / "out" / "MODEL_CARD.md").read_text()
    assert "Over **all PATE releases** of tiny" in card
    assert "* 1 other release was drawn from this data set." in card  # though after this one
    project.call("release", "runs/other", "second", "--plugin-path", "plugins")
    second = (project.folder / "second" / "MODEL_CARD.md").read_text()
    assert "* 1 other release was drawn from this data set." in second


@pytest.mark.campaign
def test_a_budget_is_the_epsilon_of_all_releases(project: Any) -> None:
    project.write(student=TREE, privacy={"budget": 30.0})
    project.call_run()
    release(project)
    assert read(project, "guarantee.json")["data_set"]["guarantee"]["epsilon"] == 30.0
    assert "ε = 30 at" in (project.folder / "out" / "MODEL_CARD.md").read_text()


# --- what is refused --------------------------------------------------------------------------


def refused(project: Any, *words: str) -> str:
    done = release(project, *words, code=2)
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (project.folder / "out").exists()
    assert not list(project.folder.glob(".draft*"))
    return str(done.stderr)


def test_seeded_noise_is_refused(project: Any) -> None:
    project.write(student=TREE)
    project.call_run("--insecure-seed", "3")
    said = refused(project)
    assert "labels.npy was drawn with seeded noise, which is not private" in said


@pytest.mark.parametrize("stage", ["aggregate", "account", "distill"])
def test_a_half_finished_run_is_refused(project: Any, stage: str) -> None:
    project.write(student=TREE)
    project.call_run(stage=stage)
    assert "runs/tiny is not finished: " in refused(project)


def test_a_stale_run_is_refused(copied: Any) -> None:
    change(copied.run_folder / "recipe.json", lambda recipe: recipe["student"].update(seed=5))
    assert "distill is stale: student.seed changed" in refused(copied)


def test_a_run_whose_plugins_are_gone_is_refused_with_a_hint(copied: Any) -> None:
    change(copied.run_folder / "home.json", lambda home: home.update(plugin_path="/gone"))
    (copied.folder / "plugins").rename(copied.folder / "moved")
    said = copied.call("release", "runs/tiny", "out", code=2).stderr
    assert "plugin changed" in said
    assert "--plugin-path" in said


def test_a_place_that_cannot_be_written_is_named(copied: Any) -> None:
    (copied.folder / "file").write_text("mine")
    for out in ("file", "file/out"):
        said = copied.call("release", "runs/tiny", out, "--plugin-path", "plugins", code=2).stderr
        assert said.startswith(
            ("pate: file exists and is not a directory", "pate: cannot write file/out: ")
        )
        assert said.count("\n") == 1
    assert (copied.folder / "file").read_text() == "mine"


@pytest.mark.parametrize("place", ["nowhere", "plugins"])
def test_a_folder_without_a_run_is_refused(copied: Any, place: str) -> None:
    said = copied.call("release", place, "out", code=2).stderr
    assert said == f"pate: there is no run in {place}\n"


def test_a_ledger_that_is_missing_is_refused_and_not_made(copied: Any) -> None:
    for file in copied.ledger.parent.iterdir():
        if file.is_file():
            file.unlink()
    change(copied.run_folder / "home.json", lambda home: home.update(data_root="/nowhere"))
    assert "tiny.ledger; a release is made where the ledger" in refused(copied)
    assert not list(copied.ledger.parent.glob("*.key"))


def test_a_ledger_of_another_machine_is_refused(copied: Any, tmp_path: Path) -> None:
    other = tmp_path / "other-root"
    shutil.copytree(copied.folder / "data", other)
    (other / "ledgers" / "tiny.key").write_bytes(os.urandom(32))
    assert "belongs to another ledger than" in refused(copied, "--data-root", str(other))


def test_a_charge_that_is_missing_is_refused(copied: Any) -> None:
    import sqlite3

    with sqlite3.connect(copied.ledger) as database:
        database.execute("UPDATE charges SET release = 'other ' || release")
    database.close()
    assert "lacks the charge of labels that are released in runs/tiny" in refused(copied)


def test_a_charge_for_less_is_refused(copied: Any) -> None:
    import sqlite3

    with sqlite3.connect(copied.ledger) as database:
        database.execute("UPDATE entries SET count = 3")
        database.execute("UPDATE running SET formulas = ''")  # so that the total is made anew
    database.close()
    assert "plan.json names other events than" in refused(copied)


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("aggregate", "labels.npy"),
        ("account", "guarantees.json"),
        ("distill", "model.skops"),
        ("evaluate", "evaluation.json"),
    ],
)
def test_a_damaged_file_is_named(copied: Any, stage: str, name: str) -> None:
    file = copied.path(stage) / name
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    said = refused(copied)
    assert f"{name} was damaged or changed" in said
    assert stage in said


def test_a_manifest_that_was_changed_is_refused(copied: Any) -> None:
    manifest = copied.path("account") / "manifest.json"
    change(manifest, lambda content: content["facts"].update(more=1))
    assert "was changed by hand" in refused(copied)


def test_a_smaller_epsilon_under_a_new_seal_is_refused(copied: Any) -> None:
    file = copied.path("account") / "guarantees.json"
    change(file, lambda content: content["guarantee"].update(epsilon=0.5))
    seal_again(file)
    said = refused(copied)
    assert "guarantees.json does not agree with the charges in the ledger (epsilon is 0.5" in said


@pytest.mark.parametrize(
    ("key", "value"),
    [("publishable", False), ("delta", 1e-9), ("neighbours", "replace-one"), ("moment", 3.0)],
)
def test_another_guarantee_under_a_new_seal_is_refused(copied: Any, key: str, value: Any) -> None:
    file = copied.path("account") / "guarantees.json"
    change(file, lambda content: content["guarantee"].update({key: value}))
    seal_again(file)
    assert "guarantees.json does not agree with the charges in the ledger" in refused(copied)


def test_a_changed_sanitised_epsilon_is_refused(project: Any) -> None:
    project.data(records=900)
    project.write(teachers={"count": 40}, aggregate={"scale": 4.0}, student=TREE)
    project.call_run()
    file = project.path("account") / "guarantees.json"
    dependent = project.json("account-private", "guarantees.json")["improved"]["epsilon"]
    change(file, lambda content: content["sanitised"].update(epsilon=dependent))
    seal_again(file)
    assert "guarantees.json holds another sanitised ε than was drawn" in refused(project)


def test_an_epsilon_that_was_not_published_is_refused(copied: Any) -> None:
    """The exact data-dependent figure, put where a sanitised one would be."""
    file = copied.path("account") / "guarantees.json"
    exact = copied.json("account-private", "guarantees.json")["improved"]
    change(
        file,
        lambda content: content.update(sanitised=exact | {"confidence": 0.99, "price": 0.0}),
    )
    seal_again(file)
    assert "guarantees.json holds an ε that may not be published" in refused(copied)


def test_labels_changed_under_a_new_seal_are_refused(copied: Any) -> None:
    file = copied.path("aggregate") / "labels.npy"
    np.save(file, np.load(file)[::-1].copy())
    seal_again(file)
    assert "is stale: aggregate changed" in refused(copied)


def test_a_plan_with_fewer_events_under_a_new_seal_is_refused(copied: Any) -> None:
    file = copied.path("aggregate") / "plan.json"
    change(file, lambda content: content.update(events=content["events"][:0]))
    seal_again(file)
    assert "is stale: aggregate changed" in refused(copied)


def test_a_private_artifact_moved_among_the_released_is_refused(copied: Any) -> None:
    there = copied.path("account")
    private = copied.path("account-private")
    shutil.rmtree(there)
    shutil.copytree(private, there)
    said = refused(copied)
    assert "was moved there by hand: it is a PRIVATE artifact" in said


@pytest.mark.parametrize("where", ["student", "encoder"])
def test_a_path_of_the_machine_is_refused(project: Any, where: str) -> None:
    code = (
        "import centroids\nclass Reads(centroids.Centroids):\n"
        "    def __init__(self, classes, file=''):\n"
        "        super().__init__(classes)\n"
        "        self.file = file\n"
        "class Step:\n"
        "    def __init__(self, file=''):\n        self.file = file\n"
        "    def transform(self, X):\n        return X\n"
    )
    project.plugin("reads", code)
    params = {"file": "/home/somebody/cache"}
    if where == "student":
        project.write(student={"model": "reads:Reads", "params": params})
    else:
        steps = [{"name": "reads:Step", "params": params}]
        project.write(encoder={"steps": steps}, student={"inputs": "features"})
    project.call_run()
    assert "holds a path of this machine" in refused(project)


@pytest.mark.campaign
def test_what_a_student_wrote_of_the_machine_is_refused(project: Any) -> None:
    """A class that keeps where it was: found in the bytes, whatever the format."""
    code = (
        "import centroids, os\nclass Nosy(centroids.Centroids):\n"
        "    def fit(self, X, y):\n        super().fit(X, y)\n"
        "        self.place = os.path.abspath('runs/tiny')\n"
    )
    project.plugin("nosy", code)
    project.write(student={"model": "nosy:Nosy"})
    project.call_run()
    assert "student/teacher.json would carry the path of the run" in refused(project)


def test_a_student_that_saves_a_pickle_is_refused(project: Any) -> None:
    code = (
        "import centroids, pickle\nclass Own(centroids.Centroids):\n"
        "    def save(self, folder):\n"
        "        (folder / 'all.pkl').write_bytes(pickle.dumps(self.centres))\n"
        "    def load(self, folder):\n"
        "        self.centres = pickle.loads((folder / 'all.pkl').read_bytes())\n"
    )
    project.plugin("own", code)
    project.write(student={"model": "own:Own"})
    told = project.call_run(code=2).stderr
    assert "its save(folder) writes all.pkl, and no release takes such a file" in told
    assert project.charges() == []


# --- what verify finds ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def given(finished: Any) -> Path:
    """A release."""
    finished.call("release", "runs/tiny", "given", "--with-confusion", *WORDS[2:], "--labels")
    return finished.folder / "given"


@pytest.mark.campaign
def test_every_changed_byte_is_found(given: Path) -> None:
    files = sorted(path for path in given.rglob("*") if path.is_file())
    assert len(files) > 8
    for file in files:
        whole = file.read_bytes()
        every = max(1, len(whole) // 150)
        for at in range(0, len(whole), every):
            changed = bytearray(whole)
            changed[at] ^= 1 << (at % 8)
            file.write_bytes(changed)
            found = verify_release(given).problems
            assert found, f"{file.name}, byte {at}"
        for other in (whole[:-1], whole + b"\n", b""):
            file.write_bytes(other)
            assert verify_release(given).problems, file.name
        file.write_bytes(whole)
    assert not verify_release(given).problems


def test_what_is_added_or_lost_is_named(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in sorted(path.relative_to(given).as_posix() for path in given.rglob("*")):
        shutil.copytree(given, out)
        if (out / name).is_file():
            (out / name).unlink()
            problems = verify_release(out).problems
            assert any(Path(name).name in each for each in problems), name
        shutil.rmtree(out)
    for name in ("votes.npy", ".hidden", "student/more.json", "labels/counts.npy", "new/x.txt"):
        shutil.copytree(given, out)
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("more")
        assert f"{name} does not belong to the release" in verify_release(out).problems
        sums_again(out)  # also where the lists were made to fit
        problems = verify_release(out).problems
        assert any(name in each or "other files" in each for each in problems) or (
            name == "student/more.json" and problems
        )
        shutil.rmtree(out)
    shutil.copytree(given, out)
    (out / "student.json").rename(tmp_path / "student.json")
    (out / "student.json").symlink_to(tmp_path / "student.json")
    assert verify_release(out).problems == (
        "student.json is not a regular file and does not belong to the release",
    )


def _quieter(events: list[str]) -> list[str]:
    return [text.replace('"scale": 2.0', '"scale": 20.0') for text in events]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c["guarantee"].update(epsilon=1.0), "guarantee.json: epsilon is 1.0, and"),
        (lambda c: c["guarantee"].update(delta=1e-9), "guarantee.json: epsilon is"),
        (lambda c: c["guarantee"].update(epsilon=10**400), "too large"),
        (lambda c: c["guarantee"].update(epsilon=-1.0), "guarantee.epsilon is wrong"),
        (lambda c: c["guarantee"].update(epsilon=float("nan")), "NaN, which is not a number"),
        (lambda c: c["guarantee"].update(delta=1.5), "guarantee.delta is wrong"),
        (lambda c: c["guarantee"].update(more=1), "guarantee.more is wrong"),
        (lambda c: c.update(format=7), "format is wrong"),
        (lambda c: c.update(sanitised={}), "sanitised.epsilon is wrong"),
        (lambda c: c["sanitised"].update(confidence=1.01), "sanitised.confidence is wrong"),
        (lambda c: c["sanitised"].update(confidence=0.999), "not the one that release.json plans"),
        (lambda c: c["data_set"]["guarantee"].update(epsilon=1.0), "data_set: epsilon is 1.0"),
        (lambda c: c["data_set"].update(events=c["data_set"]["events"][:0]), "guarantee.json:"),
        (lambda c: c.update(labels=[]), "guarantee.json:"),
        (lambda c: c.update(labels=["nonsense"]), "it cannot be computed"),
        (lambda c: c.update(counted="trust me"), "counted is wrong"),
        (lambda c: c.pop("data_set"), "guarantee.json"),
        (lambda c: c["guarantee"].update(publishable=False), "guarantee.publishable is wrong"),
        (lambda c: c["guarantee"].update(neighbours="replace-one"), "neighbours are not those"),
        (lambda c: c.update(protects="one user added or removed"), "protects something else"),
        (lambda c: c.update(labels=_quieter(c["labels"])), "not those of the mechanism"),
    ],
)
@pytest.mark.sample(6)
def test_values_that_do_not_follow_are_found(
    given: Path, tmp_path: Path, edit: Any, says: str
) -> None:
    out = tmp_path / "out"
    shutil.copytree(given, out)
    change(out / "guarantee.json", edit)
    sums_again(out)
    assert any(says in each for each in verify_release(out).problems), verify_release(out)


def test_a_card_that_states_less_is_found(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(given, out)
    card = (out / "MODEL_CARD.md").read_text()
    figure = card.partition("ε = ")[2].split()[0]
    (out / "MODEL_CARD.md").write_text(card.replace(f"ε = {figure}", "ε = 0.1", 1))
    sums_again(out)
    (problem,) = verify_release(out).problems
    assert problem == "MODEL_CARD.md does not match the JSON files"


def test_verify_ends_with_one_and_a_line_for_each_problem(given: Path, copied: Any) -> None:
    shutil.copytree(given, copied.folder / "out")
    (copied.folder / "out" / "more.txt").write_text("more")
    (copied.folder / "out" / "guarantee.json").write_text("{}")
    said = copied.call("verify", "out", code=1).stderr
    assert said.splitlines() == [
        "pate: out: guarantee.json was damaged or changed",
        "pate: out: more.txt does not belong to the release",
    ]
    assert "there is no release in nowhere" in copied.call("verify", "nowhere", code=2).stderr
    assert "SHA256SUMS cannot be read" in copied.call("verify", "plugins", code=1).stderr


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c.update(format=5), "format is wrong"),
        (lambda c: c.update(format=1), "student.json is of another format than release.json"),
        (lambda c: c.update(public_inputs=0), "public_inputs is wrong"),
        (lambda c: c["recipe"]["teachers"].update(count=0), "recipe.teachers.count is wrong"),
        (lambda c: c["recipe"]["aggregate"].update(scale=-1.0), "recipe.aggregate"),
        (lambda c: c["recipe"].update(more={}), "recipe.more is wrong"),
        (lambda c: c["evaluation"]["student"].update(accuracy=1.5), "accuracy is wrong"),
        (lambda c: c["evaluation"]["confusion"][0].__setitem__(0, -1), "confusion.0.0 is wrong"),
        (lambda c: c["evaluation"]["confusion"][0].__setitem__(0, 99), "are right by its table"),
        (lambda c: c["answers"].update(asked=10**6), "more answers than were paid for"),
        (lambda c: c["answers"]["by_class"].append(1), "labels by class"),
        (lambda c: c.update(date="yesterday"), "date is wrong"),
    ],
)
@pytest.mark.sample(4)
def test_values_out_of_range_are_found(given: Path, tmp_path: Path, edit: Any, says: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(given, out)
    change(out / "release.json", edit)
    sums_again(out)
    assert any(says in each for each in verify_release(out).problems), verify_release(out)


def test_a_name_that_is_given_twice_is_found(given: Path, tmp_path: Path) -> None:
    """Of two values readers take either."""
    out = tmp_path / "out"
    shutil.copytree(given, out)
    text = (out / "guarantee.json").read_text()
    (out / "guarantee.json").write_text(text.replace("{", '{"counted": "ledger", ', 1))
    sums_again(out)
    assert "gives a key twice" in verify_release(out).problems[0]


# --- a release that was changed, and its lists made to fit -----------------------------------


@pytest.fixture
def forged(given: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(given, tmp_path / "forged"))


def again(out: Path) -> tuple[str, ...]:
    """The card and the lists made to fit, where they can be; what is found."""
    statement, header, release_told = (
        json.loads((out / name).read_text())
        for name in ("guarantee.json", "student.json", "release.json")
    )
    for name, content in written_files(out, statement, header, release_told).items():
        (out / name).write_bytes(content)
    if (out / "report.html").exists():
        (out / "report.html").write_text(render_release_page(statement, header, release_told))
    sums_again(out)
    return verify_release(out).problems


def planned_anew(content: Any, *, delta: float = 1e-3, count: int = 12) -> None:
    """All figures made to follow from fewer events, or another δ."""
    (event,) = tally(read_events(content["labels"]))
    labels = [Repeated(event, count)]
    content["labels"] = content["data_set"]["events"] = write_events(labels)
    content["sanitised"] = None
    plan = guarantee_of_plan(labels, delta=delta, conversion=Conversion.IMPROVED)
    content["guarantee"] = guarantee_record(plan, "add-remove")
    terms = Terms.from_json(json.dumps(content["data_set"]["terms"]))
    content["data_set"]["guarantee"] = guarantee_record(
        guarantee_of_ledger(labels, terms), "replace-one"
    )


def test_what_is_made_to_fit_is_as_good_as_the_first(forged: Path) -> None:
    """The forger of these tests does nothing wrong but what each test is about."""
    change(forged / "guarantee.json", planned_anew)
    (forged / "report.html").unlink()
    assert again(forged) == ()


def test_fewer_events_than_the_settings_ask_for_are_found(forged: Path) -> None:
    change(forged / "guarantee.json", lambda content: planned_anew(content, count=1))
    (forged / "report.html").unlink()
    assert again(forged) == (
        "guarantee.json: it counts other events than the settings in release.json ask for",
    )


def test_another_delta_than_that_of_the_settings_is_found(forged: Path) -> None:
    change(forged / "guarantee.json", lambda content: planned_anew(content, delta=0.9))
    (forged / "report.html").unlink()
    assert again(forged) == (
        "guarantee.json: the delta of its guarantee is not that of release.json",
    )


def test_another_delta_of_the_sanitised_epsilon_is_found(forged: Path) -> None:
    assert json.loads((forged / "guarantee.json").read_text())["sanitised"] is not None
    change(forged / "guarantee.json", lambda content: content["sanitised"].update(delta=0.9))
    says = "guarantee.json: the delta of its sanitised is not that of release.json"
    assert says in again(forged)


def test_words_on_the_card_are_checked(forged: Path) -> None:
    card = forged / "MODEL_CARD.md"
    card.write_text(card.read_text().replace("δ = 0.001", "δ = 1e-12"))
    sums_again(forged)
    says = "MODEL_CARD.md does not match the JSON files"
    assert verify_release(forged).problems == (says,)
    change(forged / "release.json", lambda content: content["versions"].update(pate="9.9"))
    sums_again(forged)
    problem, *_ = verify_release(forged).problems  # and other texts that name the version
    assert problem.startswith(f"{says} (made by pate 9.9; this is ")


@pytest.mark.campaign
def test_a_page_of_other_versions_is_not_called_verified(forged: Path, copied: Any) -> None:
    change(forged / "release.json", lambda content: content["versions"].update(matplotlib="1.0"))
    again(forged)
    page = forged / "report.html"
    page.write_text(page.read_text().replace("</main>", "<p>ε = 0.01</p></main>"))
    sums_again(forged)
    said = copied.call("verify", str(forged), code=4).stdout
    assert "Not checked: report.html was not compared with the JSON files: made by mat" in said


def test_more_labels_than_were_paid_for_are_found(forged: Path) -> None:
    for name in ("labels", "answered"):
        np.save(forged / "labels" / f"{name}.npy", np.arange(13) * (name == "answered"))
    assert again(forged) == ("labels/answered.npy holds 13 rows, and 12 were paid for",)
    np.save(forged / "labels" / "answered.npy", np.arange(12))
    assert again(forged) == (
        "labels/labels.npy does not hold a class for each row of labels/answered.npy",
    )
    np.save(forged / "labels" / "labels.npy", np.full(12, 3))
    assert "does not hold a class for each row" in again(forged)[0]
    np.save(forged / "labels" / "labels.npy", np.zeros(12, dtype=int))
    np.save(forged / "labels" / "answered.npy", np.zeros(12, dtype=int))
    assert again(forged) == (
        "labels/answered.npy does not hold rows of the public inputs, each once",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('big">ε = ', 'big">ε = 0.1, not '),
        ("default-src", "x-src"),
        ("<main", "<img src=http://x><main"),
        ("<main", "<!--><p>ε = 0.01</p><!----><main"),
        ("<main", "<svg><![CDATA[><p>ε = 0.01</p>]]></svg><main"),
        ("<title>", "<title>ε = 0.01 "),
        ("</style>", "\\75 rl(http://x)</style>"),
        ("</main>", "<p>ε = 0.01</p></main>"),
        ("<html", "<html "),
    ],
)
def test_a_page_that_was_changed_is_found(forged: Path, old: str, new: str) -> None:
    page = forged / "report.html"
    assert old in page.read_text()
    page.write_text(page.read_text().replace(old, new, 1))
    sums_again(forged)
    assert verify_release(forged).problems == ("report.html does not match the JSON files",)


@pytest.mark.parametrize("name", ["guarantee.json", "release.json", "student.json"])
def test_json_that_never_ends_is_a_problem_and_no_traceback(
    forged: Path, copied: Any, name: str
) -> None:
    (forged / name).write_text("[" * 200_000)
    if name != "release.json":
        sums_again(forged)
    (forged / SUMS).write_text(render_sums(digests(forged)))
    said = copied.call("verify", str(forged), code=1).stderr
    assert said
    assert all(line.startswith(f"pate: {forged}: ") for line in said.splitlines())


def test_a_list_that_is_no_file_or_has_no_end_is_refused(forged: Path) -> None:
    sums = forged / SUMS
    sums.write_bytes(b"x" * 11_000_000)
    assert "is larger than any such file" in verify_release(forged).problems[0]
    sums.unlink()
    os.mkfifo(sums)
    assert "is not a regular file" in verify_release(forged).problems[0]
    sums.unlink()
    sums.symlink_to("/dev/zero")
    assert "is not a regular file" in verify_release(forged).problems[0]


def test_text_of_a_release_does_nothing_to_a_terminal(forged: Path, copied: Any) -> None:
    code = {"kind": "code", "model": {}, "encoder": None, "seed": 0, "why": "it is so"}
    needs = code | {"needs": ["\x1b[2Jok\nok"]}
    change(forged / "student.json", lambda content: content.update(model=needs))
    (forged / "student" / "model.onnx").rename(forged / "student" / "model.skops")
    (forged / "student" / "teacher.json").write_text('{"format": "skops"}')
    assert again(forged) == ()
    said = copied.call("verify", str(forged), code=4).stdout
    assert "\x1b" not in said
    assert "\\x1b[2Jok\\nok" in said


def test_both_commands_print_the_digest_of_the_list(copied: Any) -> None:
    said = release(copied).stdout
    digest = hashlib.sha256((copied.folder / "out" / SUMS).read_bytes()).hexdigest()
    assert f"sha256 of SHA256SUMS, to be shared out of band: {digest}\n" in said
    said = copied.call("verify", "out").stdout
    assert f"sha256 of SHA256SUMS, to be compared with the owner's: {digest}\n" in said


# --- what a run may hold ----------------------------------------------------------------------


@pytest.mark.campaign
def test_a_class_may_be_called_anything(copied: Any) -> None:
    file = copied.path("evaluate") / "evaluation.json"
    names = ["ε = 0.1", "<img src=http://x>\n\n# **Safe**", "`|`"]

    def call(content: Any) -> None:
        for each, name in zip(content["classes"], names, strict=True):
            each["class"] = name

    change(file, call)
    seal_again(file)
    release(copied)
    card = (copied.folder / "out" / "MODEL_CARD.md").read_text()
    assert r"ε = 0.1, &lt;img src=http\://x&gt; \# \*\*Safe\*\*, \`\|\`; " in card
    assert copied.call("verify", "out").stdout.startswith("verified: ")


def test_an_accuracy_that_the_table_does_not_come_to_is_refused(copied: Any) -> None:
    file = copied.path("evaluate") / "evaluation.json"
    change(file, lambda content: content["student"].update(accuracy=0.999, high=1.0))
    seal_again(file)
    assert "states another accuracy than its table of confusions" in refused(copied)


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("account", "guarantees.json"),
        ("pending-labels", "charge.json"),
        ("evaluate", "evaluation.json"),
    ],
)
@pytest.mark.parametrize("content", ["{}", "[]", "3"])
def test_an_empty_file_under_a_new_seal_is_damaged(
    copied: Any, stage: str, name: str, content: str
) -> None:
    file = copied.path(stage) / name
    file.write_text(content)
    seal_again(file)
    assert f"{name} is damaged; remove its folder and run the recipe again" in refused(copied)


def test_a_place_inside_the_run_is_refused_for_what_it_is(copied: Any) -> None:
    place = "runs/tiny/given"
    said = copied.call("release", "runs/tiny", place, "--plugin-path", "plugins", code=2).stderr
    assert said == (
        f"pate: {place} lies in the run runs/tiny, beside what is private; choose another\n"
    )


def test_the_card_states_how_far_its_values_and_lists_hold(given: Path) -> None:
    card = (given / "MODEL_CARD.md").read_text()
    told = card.partition("also holds a sanitised ε")[2].partition("\n")[0]
    assert not re.search(r"\d", told)
    for words in ("not a differential privacy guarantee", "for the data at hand only",
                  "bounds one direction", "known only after the answers"):  # fmt: skip
        assert words in told
    assert "their sum is not a guarantee beyond this" in card
    assert "compare its own digest" in card
