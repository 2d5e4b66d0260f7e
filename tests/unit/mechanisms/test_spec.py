"""[aggregate]: exactly the keys its mechanism needs, and messages that name the others."""

from __future__ import annotations

import json
import tomllib

import pytest
from pydantic import ValidationError

from pate.mechanisms import AggregateSpec, ConfidentGnmax, make_mechanism

GOOD = {
    "lnmax": {"scale": 20.0},
    "gnmax": {"sigma": 40.0},
    "confident": {"threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0},
    "interactive": {"threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0},
}


def complaint(**keys):
    with pytest.raises(ValidationError) as caught:
        AggregateSpec(**keys)
    (error,) = caught.value.errors()
    return ".".join(map(str, error["loc"])), error["msg"]


@pytest.mark.parametrize("mechanism", GOOD)
def test_every_missing_and_every_foreign_key_is_named(mechanism):
    needed = GOOD[mechanism]
    for key in needed:
        _, text = complaint(mechanism=mechanism, **{k: v for k, v in needed.items() if k != key})
        assert f'"{mechanism}" needs {key};' in text
    for key in {"scale", "sigma", "threshold", "sigma1", "sigma2"} - set(needed):
        _, text = complaint(mechanism=mechanism, **needed, **{key: 5.0})
        assert f'"{mechanism}" takes no {key};' in text


def test_all_problems_come_at_once():
    _, text = complaint(mechanism="confident", sigma=40.0, scale=3.0, sigma1=3.0)
    assert "needs threshold and sigma2, and takes no scale and no sigma;" in text
    assert "its keys are threshold, sigma1, sigma2" in text


@pytest.mark.parametrize("mechanism", ["lnmax", "gnmax", "confident"])
@pytest.mark.parametrize(("key", "value"), [("rounds", 3), ("keep", 0.5)])
def test_rounds_and_keep_are_for_the_interactive_one(mechanism, key, value):
    _, text = complaint(mechanism=mechanism, **GOOD[mechanism], **{key: value})
    assert f"takes no {key}" in text
    assert getattr(
        AggregateSpec(mechanism="interactive", **GOOD["interactive"], **{key: value}), key
    )


@pytest.mark.parametrize("mechanism", GOOD)
def test_a_resolved_recipe_reads_as_itself(mechanism):
    spec = AggregateSpec(mechanism=mechanism, **GOOD[mechanism], queries=500, answers=100)
    assert AggregateSpec(**spec.model_dump()) == spec
    assert AggregateSpec(**json.loads(spec.model_dump_json())) == spec
    assert AggregateSpec(**spec.model_dump(exclude_none=True)) == spec


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scale", 0),
        ("scale", -3.0),
        ("scale", float("nan")),
        ("scale", float("inf")),
        ("scale", 1e300),
        ("scale", 1e-300),
        ("scale", True),
        ("scale", "20"),
        ("queries", 0),
        ("queries", 2.5),
        ("answers", -1),
        ("answers", True),
        ("rounds", 0),
        ("keep", 1.5),
        ("mechanism", "lapmax"),
        ("scael", 20.0),
    ],
)
def test_a_bad_value_is_refused_at_its_key(key, value):
    place, _ = complaint(**{"scale": 20.0, key: value})
    assert place == key


def test_whole_numbers_of_toml_are_noise_too():
    table = tomllib.loads('mechanism = "confident"\nthreshold = 200\nsigma1 = 150\nsigma2 = 40\n')
    made = make_mechanism(AggregateSpec(**table))
    assert made == ConfidentGnmax(threshold=200.0, sigma1=150.0, sigma2=40.0)
    assert isinstance(made.sigma1, float)  # events compare and hash alike however it was written


def test_rounds_are_for_uncertain_choices_too():
    assert AggregateSpec(scale=20.0, choose="uncertain", rounds=4).in_rounds
    assert not AggregateSpec(scale=20.0, choose="diverse").in_rounds
    _, text = complaint(scale=20.0, choose="diverse", rounds=4)
    assert 'with choose = "diverse" takes no rounds; its keys are scale' in text
    _, text = complaint(scale=20.0, choose="uncertain", keep=0.5)
    assert "takes no keep" in text
    assert text.endswith("queries, answers, choose and rounds")


def test_a_seed_is_for_the_random_choice():
    assert AggregateSpec(scale=20.0, choose="random", choose_seed=7).choose_seed == 7
    _, text = complaint(scale=20.0, choose_seed=7)
    assert "takes no choose_seed" in text
    place, _ = complaint(scale=20.0, choose="random", choose_seed=-1)
    assert place == "choose_seed"
    place, _ = complaint(scale=20.0, choose="best")
    assert place == "choose"
