"""Record votes from a recipe to a released student, on every engine, through kills, for users."""

from __future__ import annotations

import json
import signal
import subprocess

import numpy as np
import pytest
from harness import Project, tiny_records
from kills import WORDS, audit, charges, drafts, drawn_bytes, finished, published

import pate
from pate.accounting import Ledger, Neighbours, event_to_json
from pate.audits.run import open_retraining
from pate.components import Components
from pate.mechanisms import GaussianCounts, LaplaceCounts
from pate.record_votes import Cells

RECORDS, PRIVATE = 600, 540  # enough for votes to be above their noise


@pytest.fixture
def records(project):
    """The tiny project, with record votes in place of teachers."""
    project.data(records=RECORDS)
    project.sections.pop("teachers")
    project.sections |= {
        "votes": {"by": "records"},
        "aggregate": {"mechanism": "laplace-counts"},
        "privacy": {"epsilon": 1.0},
    }
    project.write()
    return project


def by_hand(project):
    """The table of votes from the stored records, one record at a time."""
    cells = Cells.load(project.path("cells"))
    folder = project.path("partition")
    home = folder if not list(project.path("encode").glob("*.npy")) else project.path("encode")
    features, labels = np.load(home / "features.npy"), np.load(folder / "labels.npy")
    reach = project.sections["votes"].get("reach", 1)
    counts = np.zeros((len(cells), 3), dtype=np.int64)
    for point, label in zip(features, labels, strict=True):
        counts[cells.nearest(point[None], reach=reach)[0], label] += 1
    return counts


def test_from_a_recipe_to_a_verified_release(records):
    said = records.run().stdout
    assert "Publish: ε = 1 at δ = 0, for one record added or removed." in said
    assert "30 × 3" in said
    counts = records.array("vote", "counts.npy")
    assert (counts == by_hand(records)).all()
    assert counts.sum() == PRIVATE
    with Ledger.open(records.ledger) as ledger:
        (charge,) = ledger.charges()
        assert charge.records is Neighbours.ADD_REMOVE
        (event,) = LaplaceCounts(scale=1.0).events()
        assert [event_to_json(each.event) for each in charge.events] == [event_to_json(event)]
    noised, soft = (records.array("aggregate", f"{n}.npy") for n in ("noised", "probabilities"))
    assert noised.shape == (30, 3)
    assert (noised != counts).any()
    assert (soft.argmax(axis=1) == records.array("aggregate", "labels.npy")).all()
    evaluation = records.json("evaluate", "evaluation.json")
    assert evaluation["student"]["accuracy"] > 0.8

    records.pate("report", records.run_folder)
    page = (records.run_folder / "report.html").read_text()
    assert "Every private record voted for its own class" in page
    assert "teachers learnt" not in page
    records.pate("report", records.run_folder, "--private")
    records.pate("release", records.run_folder, "out", "--labels", "--plugin-path", "plugins")
    out = records.folder / "out"
    statement = json.loads((out / "guarantee.json").read_text())
    stated, data_set = statement["guarantee"], statement["data_set"]
    assert (data_set["guarantee"]["neighbours"], data_set["records"]) == (
        "add-remove",
        ["add-remove"],
    )
    assert (stated["epsilon"], stated["delta"], stated["neighbours"]) == (1.0, 0.0, "add-remove")
    card = (out / "MODEL_CARD.md").read_text()
    assert "ε = 1 and δ = 0**, for one record added or removed" in card
    assert "the ε of all parts of the plan add up" in card
    assert (np.load(out / "labels" / "noised.npy") == noised).all()
    record = (out / "deployment.yaml").read_text()
    assert 'variant_name: "Pure DP"' in record
    assert "      epsilon: 1.0\n    privacy_parameters_details" in record  # and no δ
    assert "PATE with record votes" in record
    assert f"{PRIVATE}" not in record
    verify = ["verify", "out", "--plugin-path", "plugins", "--trust"]
    assert "come to ε = 1 at δ = 0" in records.pate(*verify).stdout
    # Another claim than the events come to, and another table than was planned, are found.
    wrong = np.load(out / "labels" / "noised.npy")[:-1]
    np.save(out / "labels" / "noised.npy", wrong)
    assert "noised.npy was damaged" in records.pate(*verify, code=1).stderr


def test_a_kernel_ridge_is_released_as_data(records):
    steps = ["standardise", {"name": "pca", "dimension": 3}]
    student = {"model": "kernel-ridge", "inputs": "features"}
    records.sections["votes"] |= {"cells": "auto", "expected_records": 40}
    records.write(encoder={"steps": steps}, student=student)
    records.call_run()
    assert records.array("cells", "centres.npy").shape == (7, 3)  # 40/(4·1.36), of 30 inputs
    records.pate("release", records.run_folder, "out", "--labels")
    out = records.folder / "out"
    assert np.load(out / "labels" / "noised.npy").shape == (7, 3)
    assert "cells are 7 clusters of public inputs" in (out / "MODEL_CARD.md").read_text()
    header = json.loads((out / "student.json").read_text())
    assert header["model"] == {"kind": "kernel"}
    assert "contains public inputs" in (out / "MODEL_CARD.md").read_text()
    assert "Not checked" not in records.pate("verify", "out").stdout
    given = pate.load_student(out)
    own = pate.open_run(records.run_folder).student
    X = records.array("data-test", "features.npy")
    assert (given.predict_labels(X) == own.predict_labels(X)).all()
    np.testing.assert_allclose(given.predict_proba(X), own.predict_proba(X), rtol=0, atol=1e-6)


def test_the_table_is_the_same_on_every_engine_and_with_an_encoder(records):
    steps = ["standardise", {"name": "pca", "dimension": 3}]
    records.sections["votes"] |= {"reach": 2, "cells": 11}
    records.write(encoder={"steps": steps})
    tables = []
    for engine in ("serial", "processes:2"):
        records.engine = engine
        out = records.folder / "runs" / engine.partition(":")[0]
        records.run("--out", out, stage="vote")
        tables.append(records.array("vote", "counts.npy", run=out))
    records.name = "serial"
    assert (tables[0] == tables[1]).all()
    assert (tables[0] == by_hand(records)).all()
    assert tables[0].shape == (11, 3)
    assert tables[0].sum() == 2 * PRIVATE


def test_records_vote_along_components_from_a_recipe_to_a_release(records, monkeypatch):
    records.sections["votes"] |= {"components": "auto", "expected_records": 500}
    records.sections["aggregate"] = {"mechanism": "gaussian-counts"}
    student = {"model": "kernel-ridge", "inputs": "features"}
    records.write(
        privacy={"epsilon": 4.0, "delta": 1e-5}, student=student, encoder={"steps": ["standardise"]}
    )
    tables = []
    for engine in ("serial", "processes:2"):
        records.engine = engine
        out = records.folder / "runs" / engine.partition(":")[0]
        records.run("--out", out, stage="vote")
        tables.append(records.array("vote", "counts.npy", run=out))
    assert (tables[0] == tables[1]).all()
    assert tables[0].shape == (2, 3)  # twelve of 30 inputs to a component
    records.engine = "serial"
    said = records.run().stdout
    assert "for one record added or removed." in said
    with Ledger.open(records.ledger) as ledger:
        (charge,) = ledger.charges()
        assert charge.records is Neighbours.ADD_REMOVE
        (event,) = GaussianCounts(sigma=1.0).events()
        assert [type(each.event) for each in charge.events] == [type(event)]
    report = records.pate("report", records.run_folder).stdout
    assert report
    page = (records.run_folder / "report.html").read_text()
    assert "along 2 components of a kernel of the public inputs" in page
    records.pate("release", records.run_folder, "out", "--labels")
    out = records.folder / "out"
    assert np.load(out / "labels" / "noised.npy").shape == (2, 3)
    card = (out / "MODEL_CARD.md").read_text()
    assert "a vector of length one along 2 components" in card
    assert "in units of 1/4096 vote" in card
    assert "Not checked" not in records.pate("verify", "out").stdout
    records.pate("audit", records.run_folder)
    assert "canaries" in next(records.run_folder.rglob("audit.json")).read_text()
    run = pate.open_run(
        records.run_folder,
        data_root=records.folder / "data",
        plugin_path=records.folder / "plugins",
    )
    again, exact = open_retraining(run.pipeline), Components.coordinates
    assert again.faults() == ()
    monkeypatch.setattr(Components, "coordinates", lambda self, X: 3 * exact(self, X))
    assert len(again.faults()) == 2  # votes that are too long, and sums that are not theirs


def test_a_record_less_moves_one_vote_through_the_whole_pipeline(records):
    """Also with an encoder, whose rounding must not carry one record to others."""
    names = np.array([f"r{n}" for n in range(RECORDS)])
    records.data(records=RECORDS, ids=names)
    records.sections["data"] |= {"id": "ids", "classes": ["0", "1", "2"]}
    records.write(encoder={"steps": ["standardise", {"name": "pca", "dimension": 3}]})
    records.run("--out", "runs/all", stage="vote")
    whole = records.array("vote", "counts.npy", run=records.folder / "runs/all")
    content = dict(np.load(records.folder / "tiny.npz"))
    place = records.path("data", records.folder / "runs/all")
    gone = sorted(json.loads((place / "ids.json").read_text()))[7]
    kept = names != gone
    np.savez(records.folder / "tiny.npz", **{k: v[kept] for k, v in content.items()})
    records.run("--out", "runs/less", "--spend", stage="vote")
    less = records.array("vote", "counts.npy", run=records.folder / "runs/less")
    moved = whole - less
    assert sorted(moved[moved != 0]) == [1]
    assert np.nonzero(moved)[1] == content["y"][names == gone]


def test_users_are_capped_and_protected(records):
    rng = np.random.default_rng(1)
    users = [f"u{n}" for n in rng.integers(200, size=RECORDS)]
    records.data(records=RECORDS, who=np.array(users))
    records.sections["data"] |= {"group": "who", "unit": "patient"}
    records.sections["votes"] |= {"per_user": 2}
    records.write(privacy={"epsilon": 4.0})
    said = records.run().stdout
    assert "Publish: ε = 4 at δ = 0, for all records of one patient added or removed." in said
    assert "aggregate.scale = 0.5" in said
    users = json.loads((records.path("data") / "groups.json").read_text())
    counts = records.array("vote", "counts.npy")
    assert counts.sum() == sum(min(2, users.count(user)) for user in set(users))
    with Ledger.open(records.ledger) as ledger:
        (charge,) = ledger.charges()
        assert (charge.records, charge.group) == (Neighbours.USER_ADD_REMOVE, "who")
        assert ledger.data_set_total().neighbours is Neighbours.USER_ADD_REMOVE
    records.pate("release", records.run_folder, "out", "--plugin-path", "plugins")


def test_equal_records_of_two_users_do_not_name_each_other(records):
    """Copies are numbered in order; a user who leaves must not rename another's record."""
    features, labels = tiny_records(40)
    X, y = np.concatenate([features, features]), np.concatenate([labels, labels])
    who = np.array([f"a{n // 8}" for n in range(40)] + [f"b{n // 4}" for n in range(40)])
    public, _ = tiny_records(30)
    records.sections["data"] |= {"group": "who", "public": None, "test": None, "source": None}
    records.sections["data"] |= {f"{role}_path": f"{role}.npz" for role in ("public", "test")}
    records.sections["data"] |= {"private_path": "private.npz", "classes": ["0", "1", "2"]}
    records.sections["data"]["accept_unprotected"] = None
    for role, apart in (("public", 1e-3), ("test", 2e-3)):
        np.savez(records.folder / f"{role}.npz", X=public + apart, y=labels[:30])
    records.write()
    tables = []
    second = np.array([name.startswith("b") for name in who])  # without all of the first ones
    for out, kept in (("all", who != ""), ("less", second)):
        np.savez(records.folder / "private.npz", X=X[kept], y=y[kept], who=who[kept])
        records.run("--out", f"runs/{out}", "--spend", stage="vote")
        tables.append(records.array("vote", "counts.npy", run=records.folder / "runs" / out))
    moved = tables[0] - tables[1]
    assert (moved >= 0).all()
    assert moved.sum() == 5  # one vote of each that left, and nobody else's


def test_gaussian_noise_is_found_for_epsilon(records):
    records.sections["aggregate"]["mechanism"] = "gaussian-counts"
    records.write()
    assert "Publish: ε = 1 at δ = 1e-5, for one record added or removed." in records.run().stdout
    records.pate("report", records.run_folder)
    records.pate("release", records.run_folder, "out", "--plugin-path", "plugins")
    assert "at λ = " in (records.folder / "out" / "MODEL_CARD.md").read_text()


def test_another_look_at_the_same_votes_costs_again(records):
    records.run()
    before = charges(records)
    records.write(privacy={"epsilon": 2.0})
    refused = records.run(code=3)
    assert "--spend" in refused.stderr
    assert charges(records) == before
    records.run("--spend")
    assert len(charges(records)) == 2
    # And teachers on the same data are charged to the same ledger, apart.
    plain = Project(folder=records.folder, name="plain")
    plain.write("plain", privacy={"delta": 1e-3, "sanitise": False})
    said = plain.run("--quiet").stdout
    assert "for one record added or removed" in said
    plain.pate("report", plain.run_folder)
    page = (plain.run_folder / "report.html").read_text()
    assert "each for the data sets that its charge is stated for" in page


def test_dry_run_and_status(records):
    assert "ε" in records.run("--dry-run").stdout
    assert not charges(records)
    refused = records.run(stage="teach", code=2)
    assert "has no stage 'teach'" in refused.stderr
    over = ("--over", "student.seed=1,2", "--private-selection", "--quiet")
    refused = records.call_run(*over, stage="sweep", code=2)
    assert "private selection among tables of record votes is not supported" in refused.stderr
    assert not charges(records)
    records.run("--quiet")
    assert "cells" in records.pate("status", records.run_folder).stdout


@pytest.mark.parametrize("moment", ["drawn", "charged", "published"])
@pytest.mark.sample(1)
def test_killed_on_either_side_of_the_charge(records, moment):
    before = {
        "drawn": "Ledger.charge = die",
        "charged": "charge = Ledger.charge\n"
        "Ledger.charge = lambda *a, **k: (charge(*a, **k), die())",
        "published": "publish = store._publish\n"
        "store._publish = lambda w, f, **k: (publish(w, f, **k), "
        "f.parent.name == 'aggregate' and die())",
    }[moment]
    code = (
        "import os, signal, sys\n"
        "from pate.accounting import Ledger\n"
        "from pate.artifacts import store\n"
        "from pate.cli import main\n"
        "def die(*a, **k): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{before}\n"
        f"sys.argv = ['pate', *{WORDS!r}, 'serial']\n"
        "main()\n"
    )
    done = subprocess.run(
        [records.command()[0], "-c", code],
        cwd=records.folder,
        env=records.environment(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    paid, drawn = audit(records), drawn_bytes(records)
    assert len(finished(records, "pending-labels")) == 1
    assert len(published(records, "aggregate")) == (moment == "published")
    assert len(paid) == (moment != "drawn")
    records.run("--quiet")
    assert len(charges(records)) == 1
    (answer,) = finished(records, "pending-labels")
    noised = (answer.path / "noised.npy").read_bytes()
    assert (records.path("aggregate") / "noised.npy").read_bytes() == noised
    assert drawn.items() <= drawn_bytes(records).items()
    assert not drafts(records)


@pytest.mark.parametrize(
    ("sections", "rule"),
    [
        ({"teachers": {"count": 5, "model": "ridge"}}, "remove the section [teachers]"),
        ({"teachers": {"count": 5}}, "remove the section [teachers]"),
        ({"aggregate": {"mechanism": "lnmax", "scale": 2.0}}, "takes votes by teachers"),
        ({"votes": {"by": "teachers"}}, "takes votes by records"),
        ({"votes": {"by": "everybody"}}, "votes.by"),
        ({"votes": {"per_user": 2}}, "no users are protected"),
        ({"votes": {"reach": 31}}, "there are 30 cells"),
        ({"votes": {"cells": 31}}, "there are 30 public inputs"),
        ({"votes": {"cell": 3}}, "cells"),
        ({"votes": {"cells": "auto"}}, "needs expected_records"),
        ({"votes": {"components": "auto"}}, "needs expected_records"),
        ({"votes": {"components": 5}}, "choose gaussian-counts"),
        ({"votes": {"components": 5, "reach": 2}}, "leave reach out"),
        ({"votes": {"expected_records": 90}}, 'only cells = "auto" and components = "auto" use'),
        ({"partition": {"method": "shuffle"}}, 'with votes.by = "records" leave it out'),
        ({"privacy": {"sanitise": True}}, "does not depend on the votes"),
        ({"privacy": {"epsilon": None}}, "scale is found if epsilon in [privacy] is given"),
        ({"aggregate": {"queries": 5}}, "takes no queries"),
        ({"aggregate": {"scale": 0.5}}, "past the budget of 1"),
        ({"aggregate": {"mechanism": "gaussian-counts"}, "privacy": {"delta": 0.0}}, "delta is 0"),
    ],
)
def test_a_recipe_that_does_not_go_together_is_refused_in_one_line(records, sections, rule):
    records.write(**sections)
    refused = records.call_run("--quiet", code=2 if "past the budget" not in rule else 3)
    assert rule in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not charges(records)


@pytest.mark.campaign
def test_the_shipped_recipe_reaches_its_accuracy(project):
    """96.9 ± 0.8 % over ten splits, with secure noise."""
    said = project.pate("run", "digits", "--out", "runs/digits", "--engine", "serial").stdout
    assert "Publish: ε = 1 at δ = 0, for one record added or removed." in said
    assert "Whole data set so far: ε = 1 at δ = 1e-5" in said
    run = project.folder / "runs" / "digits"
    assert project.json("evaluate", "evaluation.json", run)["student"]["accuracy"] > 0.87
    assert "ε = 1 at δ = 0" in project.pate("release", "runs/digits", "given").stdout
    project.pate("verify", "given")
