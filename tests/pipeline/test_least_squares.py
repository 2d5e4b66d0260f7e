"""Least squares by recipe: train, resume, report, release, verify and compare."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import Project
from safetensors.numpy import load_file

import dpsgd.training
import pate
from dpsgd.convex.least_squares import sum_squares
from dpsgd.features import prepare
from dpsgd.least_squares import LeastSquaresTrainer
from dpsgd.models import BoundedLinear
from dpsgd.plan import FitPlans
from dpsgd.recipe import DpsgdRecipe
from dpsgd.runs import name_of_run, open_ledger, plan_for
from pate.accounting import Ledger, Repeated, SampledGaussian, event_from_json
from pate.accounting.calibrate import pld_guarantee
from pate.accounting.composition import gaussian_noise
from pate.datasets.loading import load
from pate.errors import InvalidInput
from pate.recipes.read import read_recipe

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

[training]
method = "least-squares"

[privacy]
epsilon = 2.0
delta = 1e-3
accountant = "pld"
"""


class Training(Project):
    """A folder with data and a recipe; ``dpsgd`` and ``pate`` run in it."""

    def as_(self, program: str, *words: str, code: int = 0) -> str:
        type(self).program = program
        done = self.call(*words, code=code)
        assert "Traceback" not in done.stderr
        return done.stderr if code else done.stdout

    def train(self, *words: str, code: int = 0) -> str:
        return self.as_("dpsgd", "train", "tiny.toml", "--out", "run", *words, code=code)

    def charges(self):
        path = self.folder / "data/ledgers/tiny.dpsgd.ledger"
        if not path.exists():
            return []
        with Ledger.open(path) as ledger:
            return ledger.charges()

    def released(self):
        (found,) = self.folder.glob("run/released/training/*")
        return found


@pytest.fixture
def project(tmp_path, monkeypatch, plain_plots):
    monkeypatch.setenv("PATE_DATA", "data")
    monkeypatch.setattr("dpsgd.training.write_curve", lambda history, folder: None)
    rng = np.random.default_rng(11)
    labels = np.arange(400) % 3
    features = rng.normal(size=(400, 6)) + 4 * np.eye(6)[labels]
    np.savez(tmp_path / "tiny.npz", X=features, y=labels)
    (tmp_path / "data").mkdir()
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return Training(tmp_path)


# --- recipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.epochs=3", 'epochs is for steps, and method = "least-squares" takes none'),
        ("training.lot_size=3", "lot_size is for steps"),
        ("training.learning_rate=0.1", "learning_rate is for steps"),
        ("training.records=100", "records is for steps"),
        ("training.sampling=shuffle", "sampling is for steps"),
        ("training.intercept=-1.0", "intercept"),
        ("training.method=lasso", "least-squares"),
        ("training.per_user=2", "training.per_user is for users"),
        ("model.hidden=[4]", "has a linear model of its own"),
        ("model.kind=cnn", "has a linear model of its own"),
        ("clipping.rule=automatic", 'clipping.rule "automatic" is for gradients'),
        ("privacy.noise=fast", 'privacy.noise "fast" is for steps'),
    ],
)
def test_what_only_steps_have_is_refused_in_one_line(project, setting, words):
    said = project.train("--set", setting, code=2)
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert not project.charges()


def test_steps_take_no_intercept_and_need_a_rate(project):
    text = RECIPE.replace('method = "least-squares"', "steps = 3\nintercept = 0.3")
    (project.folder / "tiny.toml").write_text(text)
    assert 'intercept is for method = "least-squares"' in project.train(code=2)
    (project.folder / "tiny.toml").write_text(text.replace("\nintercept = 0.3", ""))
    assert "learning_rate is missing" in project.train(code=2)


def test_the_plan_is_one_gaussian_whatever_the_number_of_records(project):
    _, recipe = read_recipe(str(project.folder / "tiny.toml"), [], DpsgdRecipe)
    plan = plan_for(recipe, count=17)
    assert plan == plan_for(recipe, count=100_000)
    step = SampledGaussian(
        sample_rate=1.0, noise_multiplier=plan.noise_multiplier, public_rate=True
    )
    assert plan.events == (Repeated(step, 1),)
    assert 1 <= plan.noise_multiplier / gaussian_noise(2.0, delta=1e-3) < 1.001
    assert 1.999 < pld_guarantee(plan.events, delta=1e-3).epsilon <= 2.0


@pytest.mark.parametrize(
    ("accountant", "epsilon", "most"),
    [("moments", 0.5, 1.2), ("pld", 0.5, 1.001), ("pld", 0.002, 1.3), ("abadi", 0.5, 2.0)],
)
def test_every_accountant_keeps_to_the_target(project, accountant, epsilon, most):
    settings = [f"privacy.accountant={accountant}", f"privacy.epsilon={epsilon}"]
    _, recipe = read_recipe(str(project.folder / "tiny.toml"), settings, DpsgdRecipe)
    noise = plan_for(recipe, count=1).noise_multiplier
    exact = gaussian_noise(epsilon, delta=1e-3)
    assert exact <= noise < most * exact


# --- whole runs -----------------------------------------------------------------------------------


def test_a_run_is_charged_released_and_verified(project):
    said = project.train()
    assert "least squares from sums over all records, noise multiplier" in said
    report = json.loads((project.released() / "guarantee.json").read_text())
    assert report["guarantee"]["epsilon"] <= 2.0
    assert report["guarantee"]["neighbours"] == "add-remove"
    assert report["accuracy"] > 0.8
    (charge,) = project.charges()
    assert tuple(map(event_from_json, report["events"])) == charge.events
    assert "nothing to do" in project.train()

    page = project.as_("pate", "report", "run")
    assert "report.html" in page
    text = (project.folder / "run/report.html").read_text()
    assert "XᵀX and XᵀY" in text
    assert "lots of" not in text
    project.as_("pate", "release", "run", "out")
    assert "come to ε = 2" in project.as_("pate", "verify", "out")
    card = (project.folder / "out/MODEL_CARD.md").read_text()
    assert "least squares" in card
    assert "Optimiser" not in card

    student = pate.load_student(project.folder / "out")
    rows = np.load(project.released() / "examples.npy")
    weights = load_file(project.released() / "model.safetensors")
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    scores = units @ weights["weight"].T + weights["bias"]
    np.testing.assert_array_equal(student.predict_labels(rows), scores.argmax(axis=1))
    chances = np.maximum(scores + 1 / 3, 1e-6)
    expected = chances / chances.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(student.predict_proba(rows), expected, atol=1e-4)


def test_a_run_that_is_killed_before_its_charge_resumes_with_the_same_draw(project, monkeypatch):
    def kill(*_, **__):
        raise InvalidInput("killed")

    with monkeypatch.context() as patch:
        patch.setattr("dpsgd.plan.FitPlans.charge", kill)
        assert "raised InvalidInput" in project.train(code=2)
    assert not project.charges()
    assert not list(project.folder.glob("run/released/training/*"))
    (begun,) = project.folder.glob("run/private/*/checkpoint.safetensors")
    drawn = load_file(begun)
    with monkeypatch.context() as patch:
        patch.setattr("dpsgd.training.save_file", kill)  # now between charge and publication
        assert "raised InvalidInput" in project.train(code=2)
    assert len(project.charges()) == 1
    project.train()
    assert len(project.charges()) == 1
    published = load_file(project.released() / "model.safetensors")
    for name, weights in published.items():
        np.testing.assert_array_equal(weights, drawn[name])


def _stopped(project, monkeypatch, *, paid):
    """Stop a run around its charge, and return what it noted of itself."""
    charge = FitPlans.charge

    def stop(*words, **named):
        if paid:
            charge(*words, **named)
        raise OSError("no space left")

    monkeypatch.setattr(FitPlans, "charge", stop)
    assert "raised OSError" in project.train(code=2)
    monkeypatch.setattr(FitPlans, "charge", charge)
    assert len(project.charges()) == paid
    (home,) = project.folder.glob("run/private/*/home.json")
    return home


@pytest.mark.parametrize("paid", [False, True], ids=["not paid", "paid"])
def test_no_other_noise_is_stated_or_paid_for_than_that_of_the_draw(project, monkeypatch, paid):
    home = _stopped(project, monkeypatch, paid=paid)
    whole = home.read_text()
    home.write_text(json.dumps(json.loads(whole) | {"noise_multiplier": 50.0}))
    before = {file.name for file in home.parent.iterdir()}
    refused = project.train(code=2)
    assert "belongs to another run: events differs" in refused
    assert len(project.charges()) == paid
    assert {file.name for file in home.parent.iterdir()} == before  # the draw stays
    home.write_text(whole)
    assert "Publish: ε = 2 " in project.train()
    assert len(project.charges()) == 1


def test_another_accountant_resumes_with_the_noise_that_was_drawn(project, monkeypatch):
    recipe = project.folder / "tiny.toml"
    recipe.write_text(recipe.read_text().replace('"pld"', '"tightest"'))
    drawn = json.loads(_stopped(project, monkeypatch, paid=False).read_text())["noise_multiplier"]
    project.train("--set", "privacy.accountant=moments")
    (report,) = project.folder.glob("run/released/*/*/guarantee.json")
    found = json.loads(report.read_text())
    assert found["noise_multiplier"] == drawn
    assert found["guarantee"]["epsilon"] > 2.1  # by moments the same noise costs more


def test_a_run_that_another_process_finished_meanwhile_is_left_alone(project, monkeypatch):
    lock = dpsgd.training.locked_folder

    def later(*words):
        monkeypatch.setattr(dpsgd.training, "locked_folder", lock)
        project.train()  # between this one's plan and its lock
        return lock(*words)

    monkeypatch.setattr(dpsgd.training, "locked_folder", later)
    assert "Publish: ε = 2 " in project.train()
    assert len(project.charges()) == 1
    assert list(project.folder.glob("run/private/*/home.json"))


def test_a_refused_charge_leaves_no_draw_behind(project):
    assert "budget" in project.train("--set", "privacy.budget=0.5", code=3)
    assert not project.charges()
    assert not list(project.folder.glob("run/private/*/checkpoint*"))
    assert not list(project.folder.glob("run/released/training/*"))


def test_the_same_settings_are_not_drawn_twice_without_consent(project):
    project.train()
    said = project.as_("dpsgd", "train", "tiny.toml", "--out", "other", code=3)
    assert "already paid" in said
    project.as_("dpsgd", "train", "tiny.toml", "--out", "other", "--spend")
    assert len(project.charges()) == 2


def test_seeded_noise_is_marked(project):
    assert "NOT TO BE PUBLISHED" in project.train("--insecure-seed", "1")
    assert not project.charges()
    project.as_("pate", "report", "run")
    assert "NOT PRIVATE" in (project.folder / "run/report.html").read_text()


def test_the_model_is_that_of_the_estimator_without_noise(project):
    """Scaling, intercept and units, against ridge regression written apart."""
    settings = ["clipping.max_norm=0.5", "privacy.accountant=moments"]
    _, recipe = read_recipe(str(project.folder / "tiny.toml"), settings, DpsgdRecipe)
    splits = load(recipe.data, root=project.folder / "data")
    inputs = prepare(recipe, splits, pca_file=project.folder / "none")
    plan = plan_for(recipe, count=1)
    model = BoundedLinear(6, 3, norm=0.5)
    with open_ledger(recipe, plan, project.folder / "own.ledger") as ledger:
        trainer = LeastSquaresTrainer(
            model,
            recipe=recipe,
            plan=replace(plan, noise_multiplier=1e-6),
            inputs=inputs,
            ledger=ledger,
            checkpoint=project.folder / "own.safetensors",
            study=None,
            settings=["0" * 40],
            again=False,
            insecure_seed=3,
        )
        weights = trainer._draw()
    rows = inputs.features.numpy().astype(float)
    rows *= 0.5 / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 0.5)
    wide = np.column_stack([rows, np.full(len(rows), 0.15)])
    targets = np.eye(3)[inputs.labels.numpy()] - 1 / 3
    expected = np.linalg.solve(wide.T @ wide, wide.T @ targets).T
    np.testing.assert_allclose(weights["weight"].numpy(), expected[:, :-1], atol=2e-3)
    np.testing.assert_allclose(weights["bias"].numpy(), 0.15 * expected[:, -1], atol=2e-3)
    model.load_state_dict(weights)
    chances = model(5 * inputs.features[:9]).exp()  # longer rows are scaled to the norm
    torch.testing.assert_close(chances, model(inputs.features[:9]).exp())


def test_all_records_of_a_user_count_as_one(project, monkeypatch):
    with (project.folder / "private.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient", "a", "b", "ill"])
        rng = np.random.default_rng(5)
        for patient in range(40):
            for _ in range(1 + patient % 5):
                ill = int(rng.integers(2))
                table.writerow([f"p{patient}", *(rng.normal(size=2) + 3 * ill), ["no", "yes"][ill]])
    for part in ("public", "test"):
        with (project.folder / f"{part}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["patient", "a", "b", "ill"])
            for at in range(60):
                ill = at % 2
                table.writerow(
                    [f"{part}-{at}", *(rng.normal(size=2) + 3 * ill), ["no", "yes"][ill]]
                )
    text = RECIPE.partition("[features]")
    data = """\
kind = "dpsgd"
[data]
name = "tiny"
private_path = "private.csv"
public_path = "public.csv"
test_path = "test.csv"
label = "ill"
group = "patient"
accept_unprotected = true

[features]
"""
    (project.folder / "tiny.toml").write_text(
        data + text[2].replace('steps = ["normalise"]', "") + "\n"
    )
    seen = []

    def watched(rows, labels, **given):
        seen.append((len(rows), given["weights"]))
        return sum_squares(rows, labels, **given)

    monkeypatch.setattr("dpsgd.least_squares.sum_squares", watched)
    assert "user" in project.train("--set", "training.per_user=3")
    ((used, weights),) = seen
    assert used == 8 * (1 + 2 + 3 + 3 + 3)
    assert weights.sum() == pytest.approx(40)
    assert {round(1 / each) for each in weights} == {1, 2, 3}
    (charge,) = project.charges()
    assert charge.group == "patient"
    assert charge.events[0].event.per_user


# --- beside the others ----------------------------------------------------------------------------

COMPARISON = """\
kind = "compare"

[data]
name = "digits"
public = 100
test = 100

[compare]
epsilons = [0.5]
seeds = 2
delta = 1e-4
reference = false

[pate.teachers]
count = 30
model = "ridge"

[pate.aggregate]
mechanism = "gnmax"
queries = 25

[pate.student]
model = "ridge"

[dpsgd.model]
entry = "dpsgd.models:linear"

[dpsgd.training]
steps = 2
lot_size = 200
learning_rate = 2.0

[least_squares]
intercept = 0.0
"""


@pytest.mark.campaign
def test_it_is_compared_where_the_recipe_has_its_section(project, monkeypatch):
    monkeypatch.setattr("pate.studies.compare.save_figure", lambda *_, **__: None)
    (project.folder / "mine.toml").write_text(COMPARISON)
    said = project.as_("pate", "compare", "mine.toml", "--engine", "serial", "--out", "cmp")
    assert "least squares, ε = 0.5, repetition 2 of 2" in said
    content = json.loads((project.folder / "cmp/compare.json").read_text())
    (row,) = [each for each in content["rows"] if each["method"] == "least-squares"]
    assert row["neighbours"] == "add-remove"
    assert row["target"] == 0.5
    assert row["publishable"]
    assert 0.49 < row["epsilon"] <= 0.5
    assert row["accuracy"] > 0.5
    assert "Least squares is a linear model" in " ".join(content["notes"])
    with Ledger.open(project.folder / "data/ledgers/digits.dpsgd.ledger") as ledger:
        charges = ledger.charges()
        spent = ledger.spent()
    sums = [c for c in charges if c.events[0].event.sample_rate == 1]
    assert (len(charges), len(sums)) == (4, 2)
    assert all(each.studies == ("compare cmp",) for each in charges)
    assert spent.epsilon > row["epsilon"]
    again = project.as_("pate", "compare", "mine.toml", "--engine", "serial", "--out", "cmp")
    assert again.count("done before") == 6
    project.as_("pate", "report", "cmp")
    assert "least squares" in (project.folder / "cmp/report.html").read_text()


def test_without_the_section_nothing_changes(project):
    from pate.studies.compare.recipe import CompareRecipe, make_points

    without = COMPARISON.partition("[least_squares]")[0]
    (project.folder / "mine.toml").write_text(without)
    _, recipe = read_recipe(str(project.folder / "mine.toml"), [], CompareRecipe)
    for point in make_points(recipe, public=100, private=1000):
        assert [each.method for each in point.models] == ["dpsgd"]


def test_repetitions_have_names_of_their_own(project):
    from pate.studies.compare.recipe import CompareRecipe, make_points

    (project.folder / "mine.toml").write_text(COMPARISON)
    _, recipe = read_recipe(str(project.folder / "mine.toml"), [], CompareRecipe)
    points = make_points(recipe, public=100, private=1000)
    names = {name_of_run(each.recipe, None) for point in points for each in point.models}
    assert len(names) == 4
    with pytest.raises(InvalidInput, match=r"least_squares\.max_norm"):
        read_recipe(str(project.folder / "mine.toml"), ["least_squares.max_norm=0"], CompareRecipe)
    assert math.isclose(points[0].models[1].recipe.clipping.max_norm[0], 1.0)
