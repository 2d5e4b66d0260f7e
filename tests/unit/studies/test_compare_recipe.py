"""Recipes of comparisons: what resolves to what, and mistakes in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from oracles import gnmax, lnmax

from pate.accounting import ForAddRemove, PureDP
from pate.accounting.calibrate import moments_epsilon
from pate.accounting.events import Repeated
from pate.errors import BudgetExceeded, InvalidInput
from pate.pipeline.recipe import Recipe
from pate.recipes.read import find_recipe, read_recipe, remarks, shipped_recipes
from pate.studies.compare.recipe import CompareRecipe, make_points, with_seed

TEXT = """
kind = "compare"
[data]
name = "digits"
[encoder]
steps = ["standardise"]
[compare]
epsilons = [4, 1]
seeds = 2
delta = 1e-4
[pate.teachers]
count = 20
model = "ridge"
[pate.aggregate]
mechanism = "gnmax"
queries = 30
[pate.student]
model = "ridge"
[dpsgd.training]
steps = 5
learning_rate = 0.5
[dpsgd.model]
entry = "dpsgd.models:linear"
"""


@pytest.fixture
def read(tmp_path):
    def reading(*settings, text=TEXT):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return read_recipe(str(path), list(settings), CompareRecipe)[1]

    return reading


def test_both_methods_have_the_same_data_delta_and_encoder(read):
    recipe = read()
    pate, dpsgd = recipe.for_pate(2.0, noise=7.0), recipe.for_dpsgd(2.0)
    assert pate.data == dpsgd.data
    assert pate.encoder.steps == dpsgd.features.steps
    assert [step.name for step in dpsgd.features.steps] == ["standardise"]
    assert (pate.privacy.epsilon, pate.privacy.delta) == (2.0, 1e-4)
    assert (dpsgd.privacy.epsilon, dpsgd.privacy.delta) == (2.0, 1e-4)
    assert pate.aggregate.sigma == 7.0
    assert not pate.privacy.sanitise  # it would be one more release


def test_each_method_may_have_features_of_its_own(read):
    recipe = read("pate.encoder.steps=[]", "dpsgd.features.steps=['normalise']")
    assert recipe.for_pate(1.0, noise=1.0).encoder.steps == []
    assert [step.name for step in recipe.for_dpsgd(1.0).features.steps] == ["normalise"]
    recipe = read("dpsgd.features.scale=0.5")  # without steps: the shared ones stay
    assert len(recipe.for_dpsgd(1.0).features.steps) == 1
    recipe = read("dpsgd.features.steps=[]")
    assert recipe.for_dpsgd(1.0).features.steps == []


@pytest.mark.parametrize(("mechanism", "event"), [("gnmax", gnmax), ("lnmax", lnmax)])
@pytest.mark.sample(1)
def test_noise_that_is_left_out_is_the_least_that_fits(read, mechanism, event):
    recipe = read(f"pate.aggregate.mechanism={mechanism}")
    epsilon = moments_epsilon(delta=1e-4)
    key = {"gnmax": "sigma", "lnmax": "scale"}[mechanism]
    for public, count in ((300, 30), (20, 20)):
        for point in make_points(recipe, public=public, private=1000):
            noise = getattr(point.labels[0].recipe.aggregate, key)
            assert epsilon([Repeated(event(noise), count)]) <= point.epsilon
            assert epsilon([Repeated(event(0.999 * noise), count)]) > point.epsilon
            assert point.labels[0].plan.queries == count
            planned = epsilon([*point.labels[0].plan.events])
            assert 0.999 * point.epsilon < planned <= point.epsilon
            assert point.labels[0].plan.guarantee.epsilon == planned


@pytest.mark.campaign
def test_noise_that_is_given_decides_how_much_is_asked(read):
    recipe = read("pate.aggregate.sigma=20.0", "pate.aggregate.queries=1000")
    small, large, *_ = make_points(recipe, public=300, private=1000)
    assert small.labels[0].recipe.aggregate.sigma == large.labels[0].recipe.aggregate.sigma == 20.0
    assert 1 <= small.labels[0].plan.queries < large.labels[0].plan.queries <= 300
    assert small.labels[0].plan.guarantee.epsilon <= 1.0
    with pytest.raises(BudgetExceeded, match=r"at ε = 1 one answer of PATE alone costs"):
        make_points(read("pate.aggregate.sigma=0.1"), public=300, private=1000)


@pytest.mark.campaign
def test_points_go_by_repetition_and_the_largest_epsilon_has_the_baselines(read):
    points = make_points(read(), public=300, private=1000)
    assert [(point.seed, point.epsilon) for point in points] == [(0, 1), (0, 4), (1, 1), (1, 4)]
    assert [point.baselines for point in points] == [False, True, False, True]
    beside = [point.labels[0].recipe.evaluate for point in points]
    asked = [(each.reference, each.public_labels) for each in beside]
    assert asked == [(False, False), (True, True)] * 2
    assert [point.models[0].recipe.model.init for point in points] == [0, 0, 1, 1]
    assert points[0].labels[0].recipe.partition.key != points[2].labels[0].recipe.partition.key
    assert points[0].labels[0].recipe.data == points[2].labels[0].recipe.data
    for point in points:
        assert point.models[0].plan.noise_multiplier > 0
        assert point.models[0].recipe.privacy.epsilon == point.epsilon


RECORDS = (
    TEXT
    + """
[record_votes.student]
model = "kernel-ridge"
"""
)


@pytest.mark.campaign
def test_record_votes_have_the_least_noise_of_a_pure_epsilon(read):
    points = make_points(read(text=RECORDS), public=300, private=1000)
    for point in points:
        teachers, records = point.labels
        assert [each.method for each in point.labels] == ["pate", "record-votes"]
        recipe = records.recipe
        assert recipe.data == teachers.recipe.data
        assert recipe.encoder.steps == teachers.recipe.encoder.steps  # the shared one
        assert recipe.aggregate.scale == 1 / point.epsilon
        assert (recipe.privacy.epsilon, recipe.privacy.delta) == (point.epsilon, 0.0)
        assert records.plan.events == (ForAddRemove(PureDP(epsilon=point.epsilon)),)
        assert records.plan.guarantee.delta == 0
        assert recipe.found_noise is None  # it is a setting like any other
    beside = [(e.recipe.evaluate.reference, e.recipe.evaluate.public_labels)
              for e in points[1].labels]  # fmt: skip
    assert beside == [(True, True), (False, True)]  # one reference is enough
    keys = {point.labels[1].recipe.partition.key for point in points}
    assert len(keys) == 2  # a repetition draws anew


def test_record_votes_by_gaussian_noise_are_at_the_delta_of_the_others(read):
    settings = ("record_votes.aggregate.mechanism=gaussian-counts", "record_votes.votes.reach=2")
    point, *_ = make_points(read(*settings, text=RECORDS), public=300, private=1000)
    records = point.labels[1]
    assert records.recipe.votes.reach == 2
    assert records.plan.guarantee.delta == 1e-4
    assert 0.99 < records.plan.guarantee.epsilon <= 1


def test_records_of_users_are_capped_as_users_of_teachers_are(read):
    text = RECORDS.replace('name = "digits"', 'name = "mine"\nsource = "x.npz"\ngroup = "who"')
    recipe = read("record_votes.votes.per_user=2", "dpsgd.training.by=record", text=text)
    point, *_ = make_points(recipe, public=300, private=1000)
    records = point.labels[1]
    assert records.recipe.aggregate.scale == 2.0
    assert records.plan.events == (ForAddRemove(PureDP(epsilon=1.0), per_user=True),)
    with pytest.raises(InvalidInput, match="write the same in both"):
        read("pate.partition.by=record", text=text)


def test_teachers_begin_at_their_least_epsilon(read):
    recipe = read("pate.least_epsilon=2", text=RECORDS)
    points = make_points(recipe, public=300, private=1000)
    assert [len(point.labels) for point in points] == [1, 2, 1, 2]
    with pytest.raises(InvalidInput, match=r"below pate\.least_epsilon; lower it"):
        read("pate.least_epsilon=5")
    alone = TEXT[: TEXT.index("[pate.")] + TEXT[TEXT.index("[dpsgd.training]") :]
    with pytest.raises(InvalidInput, match=r"add a section \[pate\] or \[record_votes\]"):
        read(text=alone)
    records = RECORDS[RECORDS.index("[record_votes") :]
    (point, *_) = make_points(read(text=alone + records), public=300, private=1000)
    assert [each.method for each in point.labels] == ["record-votes"]


def test_record_votes_beside_a_shuffled_partition_are_refused(read):
    """Their ε holds for one record added or removed, that of the teachers for one replaced."""
    with pytest.raises(InvalidInput, match="their ε would be about other data sets"):
        read("pate.partition.method=shuffle", text=RECORDS)
    read("pate.partition.method=shuffle")


@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("compare.epsilons=[]", "there is no ε to compare at"),
        ("compare.epsilons=[0]", "ε = 0 is no target"),
        ("compare.epsilons=[1, -2.0]", "ε = -2 is no target"),
        ("compare.epsilons=[1, 2, 1.0]", "ε = 1 is named twice"),
        ("compare.epsilons=two", "epsilons is"),
        ("compare.epsilons=['1']", "epsilons.0 is"),
        ("compare.seeds=0", "compare.seeds is 0"),
        ("compare.delta=1.0", "compare.delta is 1.0"),
        ("compare.epsilon=2", "did you mean epsilons"),
        ("pate.teacher.count=3", "did you mean teachers"),
        ("pate.aggregate.querys=3", "did you mean queries"),
        ("pate.aggregate.scale=3.0", "takes no scale"),
        ("dpsgd.trainig.steps=3", "did you mean training"),
        ("dpsgd.privacy.epsilon=3", "unknown key dpsgd.privacy.epsilon"),
        ("dpsgd.training.sampling=shuffle", 'a comparison needs "poisson"'),
        ("privacy.epsilon=3", "unknown key privacy.epsilon; did you mean compare.epsilons?"),
        ("teachers.count=3", "teachers belongs to [pate]: write [pate.teachers]"),
        ("dpsgd.model.model=mlp", "unknown key dpsgd.model.model; did you mean entry or kind?"),
        ("dpsgd.model.name=mlp", "did you mean entry or kind?"),
        ("dpsgd.training.model=mlp", "known are batch_size, by, epochs"),
        ("dpsgd.model=mlp", "it should be a section [dpsgd.model] with some of activation, entry"),
        ("data.private=100", "data.private is a number of records"),
        ("pate.aggregate.mechanism=confident", "needs threshold and sigma1 and sigma2"),
    ],
)
def test_mistakes_name_their_source(read, setting, printed):
    with pytest.raises(InvalidInput) as content:
        read(setting)
    assert printed in str(content.value)
    assert "\n" not in str(content.value)
    assert "mine.toml" in str(content.value) or f"--set {setting}" in str(content.value)


def test_mistakes_in_the_file_name_the_line(read):
    with pytest.raises(InvalidInput, match=r"mine\.toml:8: ε = 0|mine\.toml:8: .*ε = 0"):
        read(text=TEXT.replace("[4, 1]", "[4, 0]"))
    with pytest.raises(InvalidInput, match=r"mine\.toml:16: .*did you mean queries\?"):
        read(text=TEXT.replace("queries", "quieres"))
    with pytest.raises(InvalidInput, match="give queries, and the least sigma for them is found"):
        read(text=TEXT.replace("queries = 30\n", ""))


def test_a_recipe_of_another_kind_is_recognised(read):
    with pytest.raises(InvalidInput, match="is a recipe for `pate run`, not for `pate compare`"):
        read_recipe("digits", [], CompareRecipe)
    with pytest.raises(InvalidInput, match="is a recipe for `dpsgd train`, not for `pate compare`"):
        read_recipe("digits-dpsgd", [], CompareRecipe)
    with pytest.raises(InvalidInput, match="run `pate compare compare-digits`"):
        read_recipe("compare-digits", [], Recipe)
    with pytest.raises(InvalidInput, match="did you mean compare-digits"):
        find_recipe("compare-digit", kind="compare")


def test_shipped_recipes_are_sound_and_state_how_they_were_chosen():
    shipped = shipped_recipes("compare")
    assert set(shipped) == {"compare-digits", "compare-fashion", "compare-mnist"}
    for name in shipped:
        _, recipe = read_recipe(name, [], CompareRecipe)
        assert len(recipe.compare.epsilons) >= 3
        assert recipe.compare.seeds >= 3
        assert "chosen" in remarks(recipe.notes)


def test_the_recipe_loads_nothing_heavy():
    code = (
        "import pate.studies.compare.recipe, sys\n"
        "print([m for m in ('torch', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- repetitions ---------------------------------------------------------------------------------


def plain_recipe(**sections):
    return Recipe.model_validate(
        {
            "data": {"name": "digits"},
            "teachers": {"count": 5, "model": "ridge", "seed": 3},
            "aggregate": {"scale": 2.0},
            "student": {"model": "ridge", "seed": 2**32 - 1},
            **sections,
        }
    )


def test_a_repetition_changes_chance_and_nothing_else():
    first, other = plain_recipe(), with_seed(plain_recipe(), 1)
    changed = {name for name in Recipe.model_fields if getattr(first, name) != getattr(other, name)}
    assert changed == {"partition", "teachers", "student"}
    assert other.partition.key != first.partition.key
    assert (other.teachers.seed, other.student.seed) == (4, 0)  # a student's seed has an end
    assert Recipe.model_validate(other.model_dump(mode="json")) == other
    assert len({with_seed(first, n).partition.key for n in range(5)}) == 5


def test_a_repetition_of_record_votes_has_no_teachers_to_change():
    first = Recipe.model_validate(
        {
            "data": {"name": "digits"},
            "votes": {"by": "records"},
            "aggregate": {"mechanism": "laplace-counts", "scale": 2.0},
            "student": {"model": "ridge"},
        }
    )
    other = with_seed(first, 1)
    changed = {name for name in Recipe.model_fields if getattr(first, name) != getattr(other, name)}
    assert changed == {"partition", "student"}
    assert Recipe.model_validate(other.model_dump(mode="json")) == other


def test_random_inputs_to_ask_about_are_others():
    asked = plain_recipe(aggregate={"scale": 2.0, "choose": "random", "choose_seed": 5})
    assert with_seed(asked, 2).aggregate.choose_seed == 7
    assert with_seed(plain_recipe(), 2).aggregate.choose_seed == 0  # nothing reads it
