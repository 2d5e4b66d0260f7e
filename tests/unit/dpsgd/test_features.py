"""``[features] steps``: fitted on public inputs alone, each record encoded by itself."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpsgd.features import prepare
from dpsgd.models import build_model, linear
from dpsgd.recipe import DpsgdRecipe, FeaturesSpec, NetworkSpec
from dpsgd.runs import plan_run
from dpsgd.training import TrainingOptions, train
from pate.datasets.loading import load
from pate.datasets.table import Splits, Table
from pate.encoders.chain import fit_encoder, load_encoder
from pate.encoders.spec import EncoderSpec
from pate.errors import InvalidInput
from pate.recipes.read import read_recipe

RNG = np.random.default_rng(11)
SCATTER = ["scattering", {"name": "groupnorm", "groups": 27}]
FITTED = ["standardise", {"name": "pca", "dimension": 3}]


def recipe(steps, **features):
    return DpsgdRecipe.model_validate(
        {
            "kind": "dpsgd",
            "data": {"name": "digits"},
            "features": {"steps": steps, **features},
            "training": {"steps": 2, "learning_rate": 0.1, "lot_size": 10},
            "privacy": {"noise_multiplier": 1.5, "delta": 1e-5},
        }
    )


def splits(public=120, shape=(8, 8)):
    tables = (
        Table(features=RNG.random((n, *shape)), labels=np.arange(n) % 2) for n in (40, public, 10)
    )
    private, open_, test = tables
    return Splits(private=private, public=open_, test=test, class_names=("no", "yes"))


def prepared(tmp_path, steps, data, **features):
    return prepare(
        recipe(steps, **features),
        data,
        pca_file=tmp_path / "pca.npz",
        encoder_folder=tmp_path / "encoder",
    )


def test_steps_are_those_of_an_encoder_and_come_after_the_scale(tmp_path):
    data = splits(public=1)
    made = prepared(tmp_path, SCATTER, data, scale=0.5)
    assert made.shape == (81 * 2 * 2,)
    half = np.float32(0.5) * data.private.features.astype(np.float32)
    chain = fit_encoder(EncoderSpec(steps=SCATTER), half[:1])
    assert np.array_equal(made.features, chain.transform(half))
    assert made.test_features.shape == (10, 324)


def test_what_is_fitted_comes_from_public_inputs_alone(tmp_path):
    data = splits()
    first = prepared(tmp_path / "a", FITTED, data)
    other = dataclasses.replace(
        data.private, features=np.concatenate([data.private.features[:5], RNG.random((35, 8, 8))])
    )
    again = prepared(tmp_path / "b", FITTED, dataclasses.replace(data, private=other))
    assert torch.equal(first.features[:5], again.features[:5])
    assert torch.equal(first.test_features, again.test_features)
    public = dataclasses.replace(data.public, features=data.public.features**2)
    moved = prepared(tmp_path / "c", FITTED, dataclasses.replace(data, public=public))
    assert not torch.allclose(first.features[:5], moved.features[:5])


def test_a_run_that_goes_on_takes_its_encoder_up_again(tmp_path):
    data = splits()
    first = prepared(tmp_path, FITTED, data)
    public = dataclasses.replace(data.public, features=data.public.features**2)
    again = prepared(tmp_path, FITTED, dataclasses.replace(data, public=public))
    assert torch.equal(first.features, again.features)
    (tmp_path / "encoder" / "encoder.json").unlink()  # killed before it was whole
    anew = prepared(tmp_path, FITTED, data)
    assert torch.equal(first.features, anew.features)


def test_steps_cost_nothing_and_a_private_pca_after_them_does(tmp_path):
    assert plan_run(recipe(SCATTER), records=40).prior == ()
    pca = {"dimension": 2, "noise_multiplier": 2.0}
    both = recipe(FITTED, pca=pca)
    assert len(plan_run(both, records=40).prior) == 1
    made = prepare(both, splits(), pca_file=tmp_path / "pca.npz")
    assert made.shape == (2,)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("standardise", {}), ("pca", {"dimension": 1}), ("diffusion", {"dimension": 2})],
)
def test_too_few_public_inputs_are_refused_where_a_step_is_fitted(tmp_path, name, settings):
    steps = ["normalise", {"name": name, **settings}]
    with pytest.raises(InvalidInput, match="and 99 of them are too few") as refusal:
        prepared(tmp_path, steps, splits(public=99))
    assert f'step "{name}"' in str(refusal.value)
    assert prepared(tmp_path, steps, splits(public=100)).records == 40
    assert prepared(tmp_path / "b", ["normalise"], splits(public=1)).records == 40


def test_one_encoder_at_a_time():
    with pytest.raises(ValueError, match="steps and encoder are both set"):
        FeaturesSpec(steps=["normalise"], encoder="mine:encode")
    with pytest.raises(ValueError, match="did you mean groupnorm"):
        FeaturesSpec.model_validate({"steps": [{"name": "groupnrm"}]})


def test_the_linear_model_begins_at_zero_and_has_no_bias():
    spec = NetworkSpec(entry="dpsgd.models:linear")
    for shape in ((6,), (2, 3)):
        model = build_model(spec, shape=shape, classes=4)
        (weight,) = model.parameters()
        assert weight.shape == (4, 6)
        assert not weight.any()
        assert model(torch.ones(5, *shape)).shape == (5, 4)
    assert list(linear((6,), 4).state_dict()) == ["weight"]


@pytest.mark.parametrize("name", ["mnist-dpsgd-scatter", "fashion-dpsgd-scatter"])
def test_shipped_recipes_fit_what_they_fit_on_enough_public_inputs(name, tmp_path):
    _, checked = read_recipe(name, None, DpsgdRecipe)
    assert checked.data.public == 1000
    assert checked.data.private is None
    small = {"dimension": 20}
    steps = [
        step.model_dump(exclude_none=True) | (small if step.name == "pca" else {})
        for step in checked.features.steps
    ]
    assert [step["name"] for step in steps] == ["scattering", "groupnorm", "pca", "normalise"]
    made = prepared(tmp_path, steps, splits(shape=(28, 28)))
    assert made.shape == (20,)
    norms = made.features.square().sum(1)
    assert torch.allclose(norms, torch.ones_like(norms), atol=1e-5)
    model = build_model(checked.model, shape=made.shape, classes=2)
    assert model(made.features).shape == (40, 2)


def test_a_recipe_with_steps_is_read_without_numpy():
    code = (
        "import sys; from dpsgd.recipe import DpsgdRecipe\n"
        "from pate.recipes.read import read_recipe\n"
        "read_recipe('mnist-dpsgd-scatter', None, DpsgdRecipe)\n"
        "print([name for name in ('numpy', 'torch') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_released_encoder_and_model_are_all_one_needs(tmp_path):
    made = recipe([{"name": "groupnorm", "groups": 8}, *FITTED], scale=2.0)
    outcome = train(
        made,
        tmp_path / "run",
        TrainingOptions(data_root=tmp_path / "data", report=lambda text: None),
    )
    place = outcome.artifact.path
    chain = load_encoder(EncoderSpec(steps=made.features.steps), place / "encoder")
    model = build_model(made.model, shape=chain.shape, classes=10)
    model.load_state_dict(load_file(place / "model.safetensors"))
    test = load(made.data, root=tmp_path / "data").test
    with torch.no_grad():
        predicted = model(torch.from_numpy(chain.transform(2.0 * test.features))).argmax(1).numpy()
    assert outcome.report["accuracy"] == (predicted == test.labels).mean()
    assert not outcome.report["pca"]
    assert len(outcome.report["events"]) == 1  # the steps of training, and nothing for features


WAKES = """
class Wakes:
    def __init__(self):
        self.rare = 0.0
    def transform(self, X):
        if X.max() > 100:
            self.rare = float(X.max())
        return X + self.rare
"""


def test_a_step_that_remembers_a_private_record_is_refused(tmp_path):
    (tmp_path / "wakes.py").write_text(WAKES)
    data = splits()
    settled = {"pca_file": tmp_path / "pca.npz", "plugin_path": tmp_path}
    prepare(recipe(["wakes:Wakes"]), data, **settled)
    data.private.features[3] = 200
    with pytest.raises(InvalidInput, match="wakes:Wakes changes when it transforms"):
        prepare(recipe(["wakes:Wakes"]), data, **settled)


def test_the_encoder_is_released_as_it_was_fitted(tmp_path, monkeypatch):
    from dpsgd import training

    fitted = {}

    def used(made, splits, *, encoder_folder, **more):
        inputs = prepare(made, splits, encoder_folder=encoder_folder, **more)
        for file in encoder_folder.rglob("*"):
            if file.is_file():
                fitted[file.relative_to(encoder_folder)] = file.read_bytes()
        inputs.encoder.steps[0].mean += 1.0  # as if it had learnt from what it saw
        return inputs

    monkeypatch.setattr(training, "prepare", used)
    options = TrainingOptions(data_root=tmp_path / "data", report=lambda text: None)
    released = train(recipe(FITTED), tmp_path / "run", options).artifact.path / "encoder"
    assert len(fitted) == 3
    for file, content in fitted.items():
        assert (released / file).read_bytes() == content


# --- stored principal components ------------------------------------------------------------------

PCA = {"dimension": 3, "noise_multiplier": 2.0, "sample_rate": 0.9, "whiten": 0.5}


@pytest.mark.parametrize(
    "changed",
    [{"dimension": 2}, {"noise_multiplier": 2.5}, {"sample_rate": 1.0}, {"whiten": 0.0}],
)
def test_components_of_another_recipe_are_refused(tmp_path, changed):
    file, data = tmp_path / "pca.npz", splits(public=4, shape=(6,))
    first = prepare(recipe([], pca=PCA), data, pca_file=file)
    stored = file.read_bytes()
    with pytest.raises(InvalidInput, match=r"another \[features.pca\]"):
        prepare(recipe([], pca=PCA | changed), data, pca_file=file)
    assert file.read_bytes() == stored
    again = prepare(recipe([], pca=PCA), data, pca_file=file)
    assert np.array_equal(again.features, first.features)
