"""Recipes of ``dpsgd train``: a mistake is one line, with its place and the nearest key."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpsgd.features import prepare
from dpsgd.models import build_model, build_optimizer
from dpsgd.recipe import DpsgdRecipe, NetworkSpec, TrainingSpec
from dpsgd.runs import digest_of_settings, name_of_run, plan_run
from dpsgd.schedules import Constant, Linear
from pate.accounting import Neighbours, Repeated, SampledGaussian, guarantee_of_plan
from pate.accounting.events import relation_of
from pate.datasets.table import Splits, Table
from pate.errors import InvalidInput
from pate.recipes.read import read_recipe, shipped_recipes

ACCEPTED = "accept_unprotected = true"
RECIPE = """\
# Mine.
kind = "dpsgd"

[data]
name = "digits"

[features]
pca = { dimension = 8, noise_multiplier = 5.0 }

[model]
hidden = [16]

[training]
epochs = 4
lot_size = 50
learning_rate = { start = 0.5, end = 0.1, epochs = 2 }

[clipping]
rule = "per-layer"
max_norm = 4.0

[privacy]
epsilon = 2.0
delta = 1e-4
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads the recipe with some text replaced, and with settings."""
    monkeypatch.chdir(tmp_path)

    def read_(old="", new="", *settings):
        assert old in RECIPE
        Path("my.toml").write_text(RECIPE.replace(old, new, 1))
        return read_recipe("my.toml", list(settings), DpsgdRecipe)[1]

    return read_


def plain(**sections):
    """A recipe from sections alone, with the two that are needed filled in."""
    filled = {
        "kind": "dpsgd",
        "data": {"name": "digits"},
        "training": {"epochs": 2, "learning_rate": 0.1},
        "privacy": {"epsilon": 2.0},
    }
    return DpsgdRecipe.model_validate(filled | sections)


MISTAKES = {
    "misspelt key": ("lot_size", "lotsize", ["my.toml:15", "training.lotsize", "lot_size?"]),
    "misspelt section": ("[clipping]", "[cliping]", ["my.toml:18", "[cliping]", "clipping?"]),
    "key of another section": ("lot_size = 50", "delta = 50", ["my.toml:15", "[privacy]"]),
    "misspelt key of the PCA": ("dimension", "dimensions", ["my.toml:8", "features.pca.dimensions",
                                                            "dimension?"]),
    "misspelt key of the rate": ("end =", "ends =", ["my.toml:16", "learning_rate.ends", "end?"]),
    "rate without an end": (", end = 0.1", "", ["my.toml:16", "start, end and epochs"]),
    "rate that is text": ('{ start = 0.5, end = 0.1, epochs = 2 }', '"fast"',
                          ["my.toml:16", "learning_rate", "'fast'", "number"]),
    "rate of zero": ("{ start = 0.5, end = 0.1, epochs = 2 }", "0", ["my.toml:16", "above zero"]),
    "rule unknown": ('"per-layer"', '"perlayer"', ["my.toml:19", "clipping.rule", "per-layer?"]),
    "norm below zero": ("max_norm = 4.0", "max_norm = -4.0", ["my.toml:20", "max_norm", "-4.0"]),
    "norms of a flat rule": ('rule = "per-layer"\nmax_norm = 4.0', "max_norm = [1.0, 2.0]",
                             ["my.toml:18", "one max_norm"]),
    "quantile of another rule": ("max_norm = 4.0", "quantile = 0.5", ["my.toml:18", "adaptive"]),
    "two lengths": ("epochs = 4", "epochs = 4\nsteps = 9", ["my.toml:13", "both set"]),
    "no length": ("epochs = 4\n", "", ["my.toml:13", "epochs and steps", "both missing"]),
    "two costs": ("epsilon = 2.0", "epsilon = 2.0\nnoise_multiplier = 1.0",
                  ["my.toml:22", "epsilon and noise_multiplier", "keep one"]),
    "no cost": ("epsilon = 2.0\n", "", ["my.toml:22", "both missing"]),
    "cost of zero": ("epsilon = 2.0", "epsilon = 0.0", ["my.toml:23", "privacy.epsilon is 0.0"]),
    "no training": ("[training]\nepochs = 4\nlot_size = 50\n"
                    "learning_rate = { start = 0.5, end = 0.1, epochs = 2 }\n", "",
                    ["my.toml: training is missing", "[training]"]),
    "accountant unknown": ("delta = 1e-4", 'accountant = "pldd"', ["my.toml:24", "pld?"]),
    "hidden of the network": ("hidden = [16]", 'hidden = [16]\nkind = "cnn"', ["my.toml:10"]),
    "params of nothing": ("hidden = [16]", "params = { a = 1 }", ["my.toml:10", "entry"]),
    "entry without a colon": ("hidden = [16]", 'entry = "mine"', ["my.toml:11", "module:attr"]),
    "so many private": ('name = "digits"', 'name = "digits"\nprivate = 500',
                        ["data.private", "share"]),
    "momentum of adam": ("lot_size = 50", 'momentum = 0.9\noptimizer = "adam"',
                         ["my.toml:13", "momentum"]),
    "kind misspelt": ('kind = "dpsgd"', 'kind = "dpsdg"', ["my.toml:2", "kind", "'dpsgd'"]),
    "number for text": ('"per-layer"', "3", ["my.toml:19", "clipping.rule is 3"]),
    "text for a number": ("lot_size = 50", 'lot_size = "50"', ["my.toml:15", "lot_size"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line_with_the_place(case, read):
    old, new, fragments = MISTAKES[case]
    with pytest.raises(InvalidInput) as mistake:
        read(old, new)
    message = str(mistake.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


OWN = {"name": "own", "source": "x.csv", "public": 1, "test": 1, "group": "patient"}
SINGLE = OWN | {"group": None}
USERS = {
    "a number of records": ({"records": 90}, OWN, {}, "give training.users"),
    "a PCA": ({}, OWN, {"pca": {"dimension": 2, "noise_multiplier": 5.0}}, "features.pca protects"),
    "no groups": ({"users": 9}, SINGLE, {}, "set data.group"),
    "a cap without groups": ({"per_user": 9}, SINGLE, {}, "set data.group"),
    "users of records": ({"users": 9, "by": "record"}, OWN, {}, 'by is "record"'),
    "groups of a named set": ({"by": "group"}, {"name": "digits"}, {}, "set without groups"),
    "another unit": ({"by": "patient"}, OWN, {}, "'record' or 'group'"),
}


def grouped(data=OWN, features=None, *, epsilon=None, **training):
    return DpsgdRecipe.model_validate(
        {
            "kind": "dpsgd",
            "data": data,
            "features": features or {},
            "training": {"epochs": 3, "learning_rate": 1.0} | training,
            "privacy": {"epsilon": epsilon} if epsilon else {"noise_multiplier": 1.0},
        }
    )


@pytest.mark.parametrize("case", USERS)
def test_what_does_not_go_with_users_is_refused(case):
    training, data, features, words = USERS[case]
    with pytest.raises(ValidationError, match=re.escape(words)):
        grouped(data, features, **training)


def test_a_group_column_protects_users_unless_records_are_asked_for():
    names = ["ann", "bob", "ann", "cid"] * 5
    users = plan_run(grouped(), records=20, groups=names)
    assert (users.sample_rate, users.steps) == (2 / 3, 6)
    assert relation_of(users.events) is Neighbours.USER_ZERO_OUT
    stated = plan_run(grouped(users=40, lot_size=4), records=20, groups=names)
    assert (stated.sample_rate, stated.steps) == (0.1, 30)
    assert relation_of(stated.events) is Neighbours.USER_ADD_REMOVE
    single = plan_run(grouped(by="record"), records=20, groups=names)
    assert single.sample_rate == 4 / 20
    assert relation_of(single.events) is Neighbours.ZERO_OUT
    with pytest.raises(InvalidInput, match=r"no groups.*data\.group"):  # of a source in Python
        plan_run(grouped(SINGLE, by="group"), records=20)
    with pytest.raises(InvalidInput, match="more than there are private users"):
        plan_run(grouped(lot_size=4), records=20, groups=names)


def test_the_names_of_runs_without_users_are_those_of_before():
    recipe = grouped({"name": "digits"}, epsilon=2.0)
    assert name_of_run(recipe, None)[:20] == "21db7efc0166e8936cf2"
    assert digest_of_settings(recipe, None)[:20] == "c7f692e90addace03bad"
    names = {name_of_run(grouped(**more), None) for more in ({}, {"users": 9}, {"by": "record"})}
    assert len(names) == 3


def test_accepting_that_people_are_unprotected_changes_no_name(read):
    """It decides whether a run starts, not what is trained: nobody pays again for it."""
    own = 'name = "own"\nsource = "x.csv"\npublic = 1\ntest = 1'
    before, after = read('name = "digits"', own), read('name = "digits"', f"{own}\n{ACCEPTED}")
    assert after.data.accept_unprotected
    for name in (name_of_run, digest_of_settings):
        assert name(before, None) == name(after, None)


def test_settings_override(read):
    recipe = read("", "", "privacy.epsilon=0.5", "clipping.max_norm=[1.0, 2.0]")
    assert recipe.privacy.epsilon == 0.5
    assert recipe.clipping.max_norm == [1.0, 2.0]
    with pytest.raises(InvalidInput, match=r"^--set training\.epoch=3: .*did you mean epochs\?"):
        read("", "", "training.epoch=3")


def test_shipped_recipes_are_good_and_of_one_kind_each():
    names = set(shipped_recipes("dpsgd"))
    assert {"digits-dpsgd", "mnist-dpsgd-abadi"} <= names
    others = [set(shipped_recipes(kind)) for kind in ("pate", "compare")]
    assert not any(names & each for each in others)
    assert names.union(*others) == set(shipped_recipes())
    for name in names:
        read_recipe(name, None, DpsgdRecipe)
    with pytest.raises(InvalidInput, match=r"did you mean mnist-dpsgd-abadi\?"):
        read_recipe("mnist-dpsgd-abady", None, DpsgdRecipe)
    with pytest.raises(InvalidInput, match="digits-dpsgd") as none:
        read_recipe("qqq", None, DpsgdRecipe)
    assert "tabular" not in str(none.value)


def test_a_recipe_says_the_same_after_a_round_trip():
    recipe = DpsgdRecipe.model_validate(tomllib.loads(RECIPE))
    again = DpsgdRecipe.model_validate_json(recipe.model_dump_json())
    assert again == recipe
    assert name_of_run(again, None) == name_of_run(recipe, None)


def test_a_runs_name_follows_from_settings_and_seed_but_not_from_the_budget(read):
    name = name_of_run(read(), None)
    assert name_of_run(read("", "", "privacy.budget=9.0"), None) == name
    assert name_of_run(read("", "", "privacy.epsilon=2.5"), None) != name
    assert name_of_run(read(), 1) != name
    assert name_of_run(read("", "", "model.fix=true"), None) != name


def test_keys_that_were_added_later_change_no_name_of_a_run_that_does_not_use_them():
    """With another name or digest, what the ledger has paid for would be trained and paid again."""
    recipe = plain()
    assert name_of_run(recipe, None)[:20] == "2a92aeb237e924d37cf4"
    assert digest_of_settings(recipe, None)[:20] == "55bf58450b12d3cc6b18"


# --- the plan ---------------------------------------------------------------------------------


def test_the_plan_covers_pca_and_steps_within_epsilon(read):
    plan = plan_run(read(), records=1000)
    assert (plan.lot_size, plan.sample_rate, plan.steps) == (50, 0.05, 80)
    pca = SampledGaussian(sample_rate=1.0, noise_multiplier=5.0)
    step = SampledGaussian(sample_rate=0.05, noise_multiplier=plan.noise_multiplier)
    assert plan.events == (pca, Repeated(step, 80))
    spent = guarantee_of_plan(plan.events, delta=1e-4).epsilon
    assert 2.0 * (1 - 1e-3) < spent <= 2.0
    alone = guarantee_of_plan([Repeated(step, 80)], delta=1e-4).epsilon
    assert alone < spent - 0.1  # the PCA was paid for


def test_a_pca_too_dear_is_refused_by_its_key(read):
    with pytest.raises(InvalidInput, match=r"costs .* alone; raise .*features\.pca\.noise_mult"):
        plan_run(read("= 5.0", "= 0.5"), records=1000)


def test_noise_as_given_and_a_lot_of_its_own_size():
    recipe = plain(privacy={"noise_multiplier": 1.5})
    plan = plan_run(recipe, records=900)
    assert (plan.noise_multiplier, plan.lot_size, plan.steps) == (1.5, 30, 60)
    assert plan.learning_rate == Constant(0.1)
    with pytest.raises(InvalidInput, match="lot_size is 50"):
        plan_run(plain(training={"steps": 2, "learning_rate": 1, "lot_size": 50}), records=49)


def test_the_rate_falls_over_epochs(read):
    assert plan_run(read(), records=1000).learning_rate == Linear(0.5, 0.1, 40)


# --- inputs and models ------------------------------------------------------------------------


def splits(shape=(6,), records=40):
    rng = np.random.default_rng(3)

    def table(count):
        features = rng.random((count, *shape))
        return Table(features=features, labels=np.arange(count) % 2)

    return Splits(
        private=table(records), public=table(4), test=table(10), class_names=("no", "yes")
    )


def test_inputs_are_scaled_and_projected_and_the_pca_is_drawn_once(tmp_path):
    pca = {"dimension": 3, "noise_multiplier": 2.0}
    recipe = plain(features={"scale": 0.5, "pca": pca})
    data, file = splits(), tmp_path / "pca.npz"
    first = prepare(recipe, data, pca_file=file)
    again = prepare(recipe, data, pca_file=file)
    assert first.shape == (3,)
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.test_features, again.test_features)
    other = prepare(recipe, data, pca_file=tmp_path / "other.npz")
    assert not torch.equal(first.features, other.features)
    expected = np.float32(0.5) * data.private.features.astype(np.float32) @ first.pca.components_
    np.testing.assert_allclose(first.features.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_an_encoder_sees_each_record(tmp_path):
    (tmp_path / "enc.py").write_text("def first_two(rows):\n    return rows[:, :2]\n")
    recipe = plain(features={"encoder": "enc:first_two"})
    inputs = prepare(recipe, splits(), pca_file=tmp_path / "pca.npz", plugin_path=tmp_path)
    assert inputs.shape == (2,)
    assert inputs.pca is None


def test_images_become_channels_first_for_the_network(tmp_path):
    recipe = plain(model={"kind": "cnn"})
    for shape, expected in (((28, 28), (1, 28, 28)), ((14, 20, 3), (3, 14, 20))):
        inputs = prepare(recipe, splits(shape), pca_file=tmp_path / "pca.npz")
        assert inputs.shape == expected
        model = build_model(recipe.model, shape=inputs.shape, classes=2)
        assert model(inputs.test_features).shape == (10, 2)
        assert 0 <= inputs.accuracy(model) <= 1
    with pytest.raises(InvalidInput, match="14 by 14"):
        build_model(recipe.model, shape=(1, 8, 8), classes=2)


def test_the_network_is_the_published_one():
    model = build_model(NetworkSpec(kind="cnn"), shape=(1, 28, 28), classes=10)
    assert sum(weight.numel() for weight in model.parameters()) == 26_010


def test_first_weights_follow_the_seed_and_leave_torchs_generator_alone():
    state = torch.get_rng_state()
    one, same = (build_model(NetworkSpec(hidden=[4]), shape=(6,), classes=2) for _ in range(2))
    other = build_model(NetworkSpec(hidden=[4], init=1), shape=(6,), classes=2)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one[0].weight, same[0].weight)
    assert not torch.equal(one[0].weight, other[0].weight)


OWN = """
from torch import nn

def make(shape, classes, width=4):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, classes))

ready = nn.Linear(6, 2)

def nothing():
    return 3
"""


def test_a_model_of_ones_own(tmp_path):
    (tmp_path / "own_models.py").write_text(OWN)

    def build(entry, **params):
        spec = NetworkSpec(entry=f"own_models:{entry}", params=params)
        return build_model(spec, shape=(6,), classes=2, plugin_path=tmp_path)

    assert build("make", width=7)[0].out_features == 7
    first, second = build("ready"), build("ready")
    assert first is not second
    assert torch.equal(first.weight, second.weight)
    with pytest.raises(InvalidInput, match="gives a int"):
        build("nothing")
    with pytest.raises(InvalidInput, match="cannot be called with these params"):
        build("make", depth=3)
    with pytest.raises(InvalidInput, match="takes no params"):
        build("ready", width=3)


def test_optimisers():
    model = torch.nn.Linear(2, 2)
    sgd = TrainingSpec(epochs=1, learning_rate=0.3, momentum=0.9)
    made = build_optimizer(sgd, model)
    assert isinstance(made, torch.optim.SGD)
    assert (made.defaults["lr"], made.defaults["momentum"]) == (0.3, 0.9)
    adam = TrainingSpec(epochs=1, learning_rate=0.3, optimizer="adam")
    assert isinstance(build_optimizer(adam, model), torch.optim.Adam)
    assert math.isclose(build_optimizer(adam, model).defaults["lr"], 0.3)


@pytest.mark.parametrize("hidden", [[10**12], [10**30], [8, 10**12, 8]])
def test_a_network_beyond_all_memory_is_refused_before_it_is_made(hidden):
    with pytest.raises(InvalidInput, match=r"model.hidden makes a network .*; use fewer units"):
        build_model(NetworkSpec(hidden=hidden), shape=(4,), classes=3)
