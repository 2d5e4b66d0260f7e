"""Runs of ``dpsgd train`` through ``pate status``, ``report``, ``release`` and ``verify``."""

from __future__ import annotations

import contextlib
import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Project

import pate
from pate.accounting import (
    Gaussian,
    LaplaceNoisyMaxAnswer,
    Ledger,
    Neighbours,
    Repeated,
    compose,
    event_from_json,
    event_to_json,
)
from pate.accounting.ledger.data_ledger import open_data_ledger
from pate.accounting.ledger.data_set import sibling_ledger
from pate.api import TrainedRun
from pate.dpsgd_runs import open_training
from pate.errors import InvalidInput
from pate.metrics import Share
from pate.releases.conventions import written_files
from pate.releases.files import RELEASE, SUMS, digests, render_sums
from pate.releases.guarantee import (
    guarantee_of_ledger,
    guarantee_record,
    read_events,
    statement_problems,
    write_events,
)
from pate.releases.training import training_content
from pate.releases.verify import verify as verify_release
from pate.report.training import gather_training_facts, render_training_page
from pate.stages.caveats import training_caveats

RECIPE = """\
kind = "dpsgd"

[data]
name = "tiny"
source = "tiny.npz"
accept_unprotected = true
public = 40
test = 60

[features]
scale = 0.5
steps = ["normalise"]
pca = { dimension = 5, noise_multiplier = 8.0 }

[model]
hidden = [8]

[training]
epochs = 6
lot_size = 40
learning_rate = 0.5

[privacy]
epsilon = 6.0
delta = 1e-3
accountant = "moments"
"""
pytestmark = pytest.mark.xdist_group("dpsgd release")  # one model for most of them
NAMES = ("MODEL_CARD.md", "SHA256SUMS", "deployment.yaml", "guarantee.json", "release.json",
         "report.html", "student.json", "student/model.onnx", "encoder/step-0.onnx")  # fmt: skip


class Training(Project):
    """A folder with data and a recipe; ``dpsgd`` and ``pate`` run in it."""

    def train(self, *words: str, code: int = 0) -> str:
        return self._as("dpsgd", "train", "tiny.toml", *words, code=code)

    def pate_of(self, *words: str, code: int = 0) -> str:
        return self._as("pate", *words, code=code)

    def _as(self, program: str, *words: str, code: int) -> str:
        type(self).program = program
        done = self.call(*words, code=code)
        assert "Traceback" not in done.stderr
        return done.stderr if code else done.stdout

    def change(self, old: str, new: str) -> None:
        file = self.folder / "tiny.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))


def make(folder: Path) -> Training:
    rng = np.random.default_rng(11)
    labels = np.arange(400) % 3
    features = rng.normal(size=(400, 6)) + 4 * np.eye(6)[labels]
    np.savez(folder / "tiny.npz", X=features, y=labels)
    (folder / "data").mkdir()
    (folder / "tiny.toml").write_text(RECIPE)
    return Training(folder)


@pytest.fixture(scope="module", autouse=True)
def settled(plain_plots: Any) -> Any:
    """The data root of commands that run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_DATA", "data")
        patch.setattr("dpsgd.training.write_curve", lambda history, folder: None)  # a slow picture
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A finished run, and its release in ``given``."""
    project = make(tmp_path_factory.mktemp("trained"))
    project.train()
    made = project.pate_of("release", "runs/tiny", "given")
    assert "NOT PRIVATE" not in made
    return project


@pytest.fixture
def copied(trained: Training, tmp_path: Path) -> Training:
    """A copy of the project whose run still names the ledger of the first."""
    shutil.copytree(trained.folder, tmp_path / "copy")
    return Training(tmp_path / "copy")


def change(file: Path, edit: Any) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def fitted(out: Path) -> tuple[str, ...]:
    """Make texts and lists fit to the JSON files, as a forger would; return what is found."""
    parts = [json.loads((out / f"{name}.json").read_text()) for name in
             ("guarantee", "student", "release")]  # fmt: skip
    for name, content in written_files(out, *parts).items():
        (out / name).write_bytes(content)
    (out / "report.html").unlink()  # which may be missing, and takes long to render
    listed_again(out)
    return verify_release(out).problems


def listed_again(out: Path) -> None:
    known = {name: each for name, each in digests(out).items() if name != RELEASE}
    change(out / RELEASE, lambda content: content.update(files=known))
    (out / SUMS).write_text(render_sums(digests(out)))


def test_status_names_state_guarantee_and_ledger(trained: Training) -> None:
    said = trained.pate_of("status", "runs/tiny")
    assert "tiny, by all ledgers: ε " in trained.pate_of("ledger", "show", "runs/tiny")
    assert "tiny by DP-SGD" in said
    assert "ε = 6 at δ = 0.001" in said
    assert "zero-out" in said
    assert "tiny.dpsgd.ledger" in said


def test_the_page_is_made_from_released_values(
    trained: Training, copied: Training, plain_plots: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("pate.report.plots._svg", plain_plots)
        trained.pate_of("report", "runs/tiny", "--out", "plots.html")
    assert "<path " in (trained.folder / "plots.html").read_text()
    assert "wrote" in trained.pate_of("report", "runs/tiny")
    page = (trained.folder / "runs/tiny/report.html").read_text()
    for text in ("DP-SGD", "ε = 6", "zero-out", "principal components", "dpsgd train"):
        assert text in page, text
    assert str(trained.folder) not in page
    assert "tiny.npz" not in page
    assert "no private page" in trained.pate_of("report", "runs/tiny", "--private", code=2)
    # What the page needs was kept with the model: the data are not read.
    (copied.folder / "tiny.npz").unlink()
    copied.pate_of("report", "runs/tiny", "--out", "again.html")
    assert (copied.folder / "again.html").read_text().startswith(page[:200])


def test_what_to_read_first_of_a_model(trained: Training) -> None:
    with contextlib.chdir(trained.folder):
        facts = gather_training_facts(open_training(Path("runs/tiny")), confusion=True)
    share = Share(accuracy=0.9, low=facts.majority + 1e-9, high=1.0, records=100)
    found = tuple(replace(row, right=row.records) for row in facts.classes)
    fine = replace(facts, student=share, classes=found)
    assert fine.warnings == ()
    low = replace(
        fine, student=replace(share, low=facts.majority), classes=()
    )  # not shown by class
    (warning,) = low.warnings
    assert warning.startswith("The model is no better than a guess")
    assert warning in html.unescape(render_training_page(low))
    unseen = replace(fine, classes=(replace(found[0], right=0), *found[1:]))
    assert unseen.warnings[0].endswith("recall is zero.")
    weak = replace(fine, guarantee=replace(facts.guarantee, epsilon=8.001))
    assert weak.warnings[0].startswith("ε = 8.01 is a weak guarantee.")
    assert "More noise or fewer steps" in weak.warnings[0]


def test_a_release_is_verified_elsewhere_and_predicts_as_the_model(
    trained: Training, tmp_path: Path
) -> None:
    given = Path(shutil.copytree(trained.folder / "given", tmp_path / "elsewhere"))
    assert {each.relative_to(given).as_posix() for each in given.rglob("*") if each.is_file()} == {
        *NAMES
    }
    assert "verified: " in Training(tmp_path).pate_of("verify", "elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(trained.folder)
        run = pate.open_run("runs/tiny")
        assert isinstance(run, TrainedRun)
        with np.load("tiny.npz") as stored:
            data = dict(stored)
        student = pate.load_student(given)
        assert (student.predict(data["X"]) == run.student.predict(data["X"])).all()
        np.testing.assert_allclose(
            student.predict_proba(data["X"]), run.student.predict_proba(data["X"]), atol=1e-4
        )
        assert (student.predict(data["X"]) == data["y"]).mean() > 0.6
        assert student.class_names == ("0", "1", "2")
        assert run.guarantee.publishable
        assert "DP-SGD" in repr(run)
        with pytest.raises(InvalidInput, match="shape"):
            student.predict(data["X"][:, :4])


def test_epsilon_is_that_of_the_events_in_the_ledger(trained: Training) -> None:
    statement = json.loads((trained.folder / "given/guarantee.json").read_text())
    with Ledger.open(trained.folder / "data/ledgers/tiny.dpsgd.ledger") as ledger:
        (charge,) = ledger.charges()
    own = compose(charge.events).guarantee(delta=1e-3)
    assert statement["guarantee"]["epsilon"] == pytest.approx(own.epsilon, rel=1e-12)
    assert statement["guarantee"]["neighbours"] == "zero-out"
    assert statement["charges"] == [charge.release]
    card = (trained.folder / "given/MODEL_CARD.md").read_text()
    # Words of this format: another wording would fail to verify what was released before.
    assert "projected onto, and its accuracy after each epoch.\n" in card
    assert "The number of steps, the sampling rate and the noise were fixed before" in card
    assert "ε = 6 and δ = 0.001" in card
    assert "zero-out" in card
    assert "5 principal components" in card


@pytest.mark.parametrize("name", [*NAMES, "encoder/extra.onnx"])
def test_every_file_that_is_changed_is_found(trained: Training, tmp_path: Path, name: str) -> None:
    out = Path(shutil.copytree(trained.folder / "given", tmp_path / "out"))
    file = out / name
    file.write_bytes((file.read_bytes() if file.exists() else b"") + b" ")
    assert verify_release(out).problems
    if name.startswith(("student", "encoder")):
        with pytest.raises(InvalidInput):
            pate.load_student(out)


def fewer_steps(content: Any) -> None:
    """Make every figure follow from half of the steps."""
    (*prior, (event, count)) = [
        (each.event, each.count) if isinstance(each, Repeated) else (each, 1)
        for each in read_events(content["events"])
    ]
    few = [*(Repeated(*each) for each in prior), Repeated(event, count // 2)]
    content["events"] = content["data_set"]["events"] = write_events(few)
    content["guarantee"] = guarantee_record(compose(few).guarantee(delta=1e-3), "zero-out")
    from pate.accounting.ledger.terms import Terms

    terms = Terms.from_json(json.dumps(content["data_set"]["terms"]))
    whole = guarantee_of_ledger(few, terms)
    content["data_set"]["guarantee"] = guarantee_record(whole, "zero-out")
    assert not statement_problems(content)


def as_add_remove(content: Any) -> None:
    """Claim the stronger relation for events that do not have it."""
    content["guarantee"]["neighbours"] = "add-remove"
    content["protects"] = "one record added or removed"


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("file", "edit", "says"),
    [
        ("guarantee", fewer_steps, "its events are not those of the settings"),
        ("guarantee", as_add_remove, "its events are for zero-out"),
        ("guarantee", lambda c: c["guarantee"].update(epsilon=1.0), "epsilon is 1.0"),
        ("release", lambda c: c["training"].update(noise_multiplier=9.0), "not those of the"),
        ("release", lambda c: c["recipe"]["training"].update(sampling="shuffle"), "no guarantee"),
        ("release", lambda c: c["recipe"]["model"].update(hidden=[0]), "recipe.model.hidden"),
        ("release", lambda c: c["evaluation"]["student"].update(accuracy=0.5), "evaluation of the"),
        ("guarantee", lambda c: c["guarantee"].update(delta=1e-9), "epsilon is"),
        ("guarantee", lambda c: c.update(protects="everybody"), "protects something else"),
        ("guarantee", lambda c: c.update(accountant="pld"), "accountant"),
        ("guarantee", lambda c: c["data_set"].update(events=[]), "at least one event"),
        ("guarantee", lambda c: c["data_set"]["guarantee"].update(epsilon=0.1), "data_set"),
        ("guarantee", lambda c: c["data_set"].update(name="other"), "its data set is not"),
        ("guarantee", lambda c: c["data_set"].update(covers="user"), "it covers users, and its"),
        ("release", lambda c: c["training"].update(records=10_000), "not those of the"),
        ("release", lambda c: c["recipe"]["training"].update(records=310), "another number"),
        ("release", lambda c: c["recipe"]["training"].update(epochs=1), "not those of the"),
        ("release", lambda c: c["recipe"]["privacy"].update(noise="fast"), "no guarantee"),
        ("release", lambda c: c["recipe"]["privacy"].update(epsilon=1.0), "its ε is above"),
        ("release", lambda c: c["recipe"]["features"].update(pca=None), "not those of the"),
        ("release", lambda c: c["training"]["epochs"][0].update(step=10**6), "more steps"),
        ("release", lambda c: c.update(labels=True), "labels is wrong"),
    ],
)  # fmt: skip
def test_what_does_not_follow_is_found_though_texts_and_lists_fit(
    trained: Training, tmp_path: Path, file: str, edit: Any, says: str
) -> None:
    out = Path(shutil.copytree(trained.folder / "given", tmp_path / "out"))
    change(out / f"{file}.json", edit)
    try:
        problems = fitted(out)
    except (InvalidInput, ArithmeticError):  # it cannot even be rendered
        listed_again(out)
        problems = verify_release(out).problems
    assert any(says in each for each in problems), problems


def test_a_seeded_run_is_marked_everywhere_and_not_released(tmp_path: Path) -> None:
    project = make(tmp_path)
    project.change("epsilon = 6.0", "noise_multiplier = 2.0")
    project.change('steps = ["normalise"]\npca = { dimension = 5, noise_multiplier = 8.0 }\n', "")
    project.train("--insecure-seed", "3")
    assert "NOT PRIVATE" in project.pate_of("status", "runs/tiny")
    project.pate_of("report", "runs/tiny")
    page = (tmp_path / "runs/tiny/report.html").read_text()
    assert page.count("NOT PRIVATE") > 3
    assert "NOT PRIVATE" in project.pate_of("release", "runs/tiny", "out", code=2)
    assert not (tmp_path / "out").exists()
    # A private run of the same data: settings may have been chosen by the seeded one.
    project.train("--spend")
    assert "1 release of this data set had seeded noise" in project.pate_of("status", "runs/tiny")


def test_what_is_not_paid_for_or_not_finished_is_not_released(copied: Training) -> None:
    assert "omit --labels" in copied.pate_of("release", "runs/tiny", "out", "--labels", code=2)
    ledger = copied.folder / "data/ledgers/tiny.dpsgd.ledger"
    for file in ledger.parent.glob(f"{ledger.name}*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    said = copied.pate_of("release", "runs/tiny", "out", "--data-root", "data", code=2)
    assert "there is no data/ledgers/tiny.dpsgd.ledger" in said
    shutil.rmtree(copied.folder / "runs/other", ignore_errors=True)
    copied.train("--out", "runs/other", "--set", "model.hidden=[4]")  # another charge alone
    said = copied.pate_of("release", "runs/tiny", "out", "--data-root", "data", code=2)
    assert "lacks the charge" in said
    shutil.rmtree(copied.folder / "runs/other/released")
    assert "begun" in copied.pate_of("status", "runs/other")
    assert "not finished" in copied.pate_of("release", "runs/other", "out", code=2)
    assert not (copied.folder / "out").exists()


def test_a_run_that_states_less_than_it_was_charged_is_refused(copied: Training) -> None:
    from pate.artifacts.manifest import write_manifest

    (place,) = copied.folder.glob("runs/tiny/released/training/*")
    manifest = json.loads((place / "manifest.json").read_text())

    def edit(content: Any) -> None:
        *prior, last = map(event_from_json, content["events"])
        content["steps"] //= 2
        content["events"] = [*map(event_to_json, prior), event_to_json(Repeated(last.event, 1))]
        content["guarantee"]["epsilon"] = 0.5

    change(place / "guarantee.json", edit)
    said = copied.pate_of("release", "runs/tiny", "out", code=2)
    assert "guarantee.json" in said  # not what its manifest lists
    (place / "manifest.json").unlink()
    from pate.artifacts import Level

    write_manifest(
        place,
        stage="training",
        level=Level.RELEASED,
        only_for=manifest["only_for"],
        facts=manifest["facts"],
    )
    said = copied.pate_of("release", "runs/tiny", "out", code=2)
    assert not (copied.folder / "out").exists()
    assert "made from something else" in said or "does not agree" in said, said


def test_runs_of_a_study_need_the_statement_that_they_were_chosen_before(
    trained: Training, tmp_path: Path
) -> None:
    from dpsgd.recipe import DpsgdRecipe
    from dpsgd.training import TrainingOptions, train
    from pate.recipes.read import read_recipe

    project = make(tmp_path)
    project.change("epsilon = 6.0", "noise_multiplier = 2.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for epochs in (1, 2):
            changes = [f"training.epochs={epochs}", "model.hidden=[]"]
            _, recipe = read_recipe("tiny.toml", changes, DpsgdRecipe)
            options = TrainingOptions(
                data_root=Path("data"), study="lengths", report=lambda text: None
            )
            train(recipe, Path(f"runs/{epochs}"), options)
    said = project.pate_of("release", "runs/2", "out", code=2)
    assert "one of 2 releases of the study “lengths”" in said
    assert "--chosen-beforehand" in said
    content = training_content(
        tmp_path / "runs/2",
        labels=False,
        chosen_beforehand=True,
        with_confusion=False,
        data_root=tmp_path / "data",
        plugin_path=None,
    )
    _, first, *_, last = content.record["notes"]
    assert "Its owner states that it was chosen before" in last
    assert "1 other model was trained on this data set" in first


def test_a_study_of_another_run_is_not_noted_and_other_releases_are(copied: Training) -> None:
    """All charges of DP-SGD begin with the same word."""
    run = open_training(copied.folder / "runs/tiny", data_root=copied.folder / "data")
    votes = LaplaceNoisyMaxAnswer(scale=5.0)
    with Ledger.open(run.ledger_path) as ledger:
        (people,) = training_caveats(ledger, run.charges, data=run.recipe.data)
        assert people.startswith("The people in public and test records are not protected")
        ledger.charge([Gaussian(noise_multiplier=20.0)], release="dpsgd 00", study="another")
        with open_data_ledger(
            sibling_ledger(ledger.path),
            budget=None,
            delta=1e-3,
            neighbours=Neighbours.REPLACE_ONE,
            moment=2.0,
        ) as other:
            other.charge([votes], release="labels 00 00")
        (_, other, note) = training_caveats(ledger, run.charges, data=run.recipe.data)
    assert other.startswith("1 other model was trained on this data set by DP-SGD.")
    assert note.startswith("1 release of this data set by PATE: ε = ")
    assert note.endswith("on top of the ε of all DP-SGD releases.")


def test_a_run_of_an_earlier_version_is_evaluated_from_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make(tmp_path)
    project.change("epsilon = 6.0", "noise_multiplier = 2.0")
    with monkeypatch.context() as patch:  # which kept less with a model
        patch.setattr("pate.artifacts.store.Draft.save_array", lambda *values: None)
        patch.setattr("pate.artifacts.results.Evaluation.save", lambda *values: None)
        project.train()
    monkeypatch.chdir(tmp_path)
    run = open_training(Path("runs/tiny"))
    assert run.evaluation.student.accuracy == run.stated["accuracy"]
    assert run.examples.shape == (40, 6)


def test_a_model_that_is_no_data_is_refused_with_the_reason(tmp_path: Path) -> None:
    project = make(tmp_path)
    project.change("epsilon = 6.0", "noise_multiplier = 2.0")
    project.plugin("own", "def halve(records):\n    return records / 2\n")
    project.change(
        'scale = 0.5\nsteps = ["normalise"]\npca = { dimension = 5, noise_multiplier = 8.0 }\n',
        'encoder = "own:halve"\n',
    )
    with (tmp_path / "tiny.toml").open("a") as recipe:
        recipe.write('\n[plugins]\npath = "plugins"\n')
    project.train()
    refused = project.pate_of("release", "runs/tiny", "out", code=2)  # it knows the plug-ins
    assert "features.encoder own:halve is not a torch module" in refused
    assert not (tmp_path / "out").exists()
    (tmp_path / "elsewhere").mkdir()
    project.folder = tmp_path / "elsewhere"
    words = ("--attacks", "membership", "--shadows", "0")
    assert "TPR at 1 % FPR" in project.pate_of("audit", "../runs/tiny", *words)
    (tmp_path / "plugins").rename(tmp_path / "moved")
    words = ("release", "../runs/tiny", "out", "--plugin-path", "../moved")
    assert "is not a torch module" in project.pate_of(*words, code=2)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("old", "new", "relation"),
    [
        ("epochs = 6", "epochs = 6\nrecords = 300", "one record added or removed"),
        ('accountant = "moments"', "", "zero-out"),  # the tightest
        (
            'epsilon = 6.0\ndelta = 1e-3\naccountant = "moments"',
            'noise_multiplier = 2.0\ndelta = 1e-3\naccountant = "pld"',
            "zero-out",
        ),
        ("moments", "abadi", "zero-out"),
        ("hidden = [8]", 'entry = "own:Net"\nfix = true', "zero-out"),
        ("hidden = [8]", 'entry = "dpsgd.models:linear"', "zero-out"),
        ("hidden = [8]", 'hidden = [8]\nactivation = "tempered-sigmoid"', "zero-out"),
        ('["normalise"]', '[{ name = "pca", dimension = 5 }]', "zero-out"),
    ],
)
def test_other_recipes_are_released(tmp_path: Path, old: str, new: str, relation: str) -> None:
    project = make(tmp_path)
    project.plugin(
        "own",
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__(nn.Linear(*shape, 8), nn.BatchNorm1d(8), nn.ReLU(),\n"
        "                         nn.Linear(8, classes))\n",
    )
    project.change("public = 40", "public = 120")
    project.change(old, new)
    project.train("--plugin-path", "plugins")
    project.pate_of("release", "runs/tiny", "out")
    assert "verified: " in project.pate_of("verify", "out")
    assert relation in (tmp_path / "out/MODEL_CARD.md").read_text()


@pytest.mark.campaign
@pytest.mark.parametrize("more", ["", "\nusers = 100"])
def test_a_model_that_protects_users_is_released_as_such(tmp_path: Path, more: str) -> None:
    project = make(tmp_path)
    rng = np.random.default_rng(11)
    rows = [
        f"{n % 80},{n % 3},{','.join(map(str, rng.normal(size=2) + n % 3))}" for n in range(400)
    ]
    (tmp_path / "tiny.csv").write_text("\n".join(["who,what,a,b", *rows]) + "\n")
    project.change('source = "tiny.npz"', 'source = "tiny.csv"\ngroup = "who"\nlabel = "what"')
    project.change('steps = ["normalise"]\npca = { dimension = 5, noise_multiplier = 8.0 }\n', "")
    project.change("lot_size = 40", f"lot_size = 10{more}")
    project.train()
    assert "one user" in project.pate_of("status", "runs/tiny")
    project.pate_of("release", "runs/tiny", "out")
    assert "verified: " in project.pate_of("verify", "out")
    card = (tmp_path / "out/MODEL_CARD.md").read_text()
    wanted = "all records of one user added or removed" if more else "all contributions of one user"
    assert wanted in card
    assert "every user with probability" in card
    content = json.loads((tmp_path / "out/release.json").read_text())
    assert content["recipe"]["data"]["group"] is None
    assert content["recipe"]["training"]["by"] == "group"
    change(tmp_path / "out/release.json", as_of_records)
    assert fitted(tmp_path / "out")
    # Users of another column: nobody's records are protected together by all releases.
    with Ledger.open(tmp_path / "data/ledgers/tiny.dpsgd.ledger") as ledger:
        ledger.charge(ledger.charges()[0].events, release="dpsgd of wards", group="ward")
    project.pate_of("release", "runs/tiny", "both")
    assert "verified: " in project.pate_of("verify", "both")
    data_set = json.loads((tmp_path / "both/guarantee.json").read_text())["data_set"]
    assert (data_set["covers"], data_set["guarantee"]["neighbours"]) == ("mixed", "lone-record")
    assert "where its user has no other" in (tmp_path / "both/MODEL_CARD.md").read_text()
    change(tmp_path / "both/guarantee.json", as_of_one_column)
    assert any("it is not for lone-record" in each for each in fitted(tmp_path / "both"))


def as_of_one_column(content: Any) -> None:
    content["data_set"]["guarantee"]["neighbours"] = content["guarantee"]["neighbours"]


def as_of_records(content: Any) -> None:
    content["recipe"]["training"].update(by="record", users=None)


@pytest.mark.campaign
def test_images_and_scattering_are_released(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 2
    images = rng.integers(0, 120, size=(300, 16, 16)).astype(np.uint8)
    images[labels == 1, :8] += 120
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "tiny.npz", X=images, y=labels)
    project = Training(tmp_path)
    recipe = RECIPE.replace("scale = 0.5", "scale = 0.00392156862745098")
    plain = recipe.replace(
        'steps = ["normalise"]\npca = { dimension = 5, noise_multiplier = 8.0 }\n', ""
    )
    for name, text in {
        "cnn": plain.replace("hidden = [8]", 'kind = "cnn"'),
        "scattering": plain.replace(
            "scale = 0.00392156862745098", 'scale = 0.00392156862745098\nsteps = ["scattering"]'
        ),
    }.items():
        (tmp_path / "tiny.toml").write_text(text)
        project.train("--out", f"runs/{name}")
        project.pate_of("release", f"runs/{name}", f"out-{name}")
        student = pate.load_student(tmp_path / f"out-{name}")
        run = open_training(tmp_path / "runs" / name, data_root=tmp_path / "data")
        assert (student.predict(images) == run.student.predict(images)).all()


def test_forgetting_is_refused_honestly(trained: Training) -> None:
    (trained.folder / "ids.txt").write_text("7\n")
    said = trained.pate_of("forget", "runs/tiny", "--ids", "ids.txt", code=2)
    assert "only to train again without the records" in said
    assert re.search(r"bounded by ε = [0-9.]+ at δ = ", said)
    assert len(said.splitlines()) == 1
