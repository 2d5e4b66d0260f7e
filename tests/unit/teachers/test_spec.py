"""The [teachers] section: what it accepts, and who gets which model."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pate.teachers.spec import TeachersSpec, model_for, seed_for, shares

TREE = "sklearn.tree:DecisionTreeClassifier"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"count": 1, "model": TREE}, "greater than or equal to 2"),
        ({"count": 5}, "need 'model', or 'mix'"),
        ({"count": 5, "model": TREE, "mix": [{"model": TREE}]}, "not both"),
        ({"count": 5, "mix": [{"model": TREE}], "epochs": 3}, "'epochs' belongs to"),
        ({"count": 5, "mix": [{"model": TREE}], "params": {"a": 1}}, "'params' belongs to"),
        ({"count": 2, "mix": [{"model": TREE}] * 3}, "entry 3 of the mix gets none of the 2"),
        ({"count": 5, "model": TREE, "epoch": 3}, "Extra inputs"),
        ({"count": 5, "model": TREE, "weight": 2}, "Extra inputs"),
        ({"count": 5, "model": "os; rm"}, "not 'module:attr'"),
        ({"count": 5, "model": ""}, "not 'module:attr'"),
        ({"count": 5, "model": TREE, "lr": 0}, "greater than 0"),
        ({"count": 5, "model": TREE, "lr": float("nan")}, "finite"),
        ({"count": 5, "model": TREE, "optimizer": "lion"}, "'sgd', 'adam' or 'adamw'"),
        ({"count": 5, "model": TREE, "on_error": "ignore"}, "'fail', 'retry' or 'abstain'"),
        ({"count": 5, "model": TREE, "retries": -1}, "greater than or equal to 0"),
        ({"count": 5, "model": TREE, "timeout": 0}, "greater than 0"),
        ({"count": 5, "mix": [{"model": TREE, "weight": 0}]}, "greater than 0"),
    ],
)
def test_what_is_refused(section, message):
    with pytest.raises(ValidationError, match=message):
        TeachersSpec.model_validate(section)


def test_batched_goes_with_one_model_and_with_a_mix():
    for one in ({"model": TREE}, {"mix": [{"model": TREE}]}):
        assert TeachersSpec.model_validate({"count": 4, **one}).batched
        assert not TeachersSpec.model_validate({"count": 4, **one, "batched": False}).batched


@pytest.mark.parametrize("mixed", [True, False])
def test_a_resolved_section_reads_back(mixed):
    one = {"mix": [{"model": TREE}, {"model": "a:B"}]} if mixed else {"model": TREE, "epochs": 2}
    spec = TeachersSpec.model_validate({"count": 4, **one})
    assert TeachersSpec.model_validate(spec.model_dump()) == spec
    assert TeachersSpec.model_validate_json(spec.model_dump_json()) == spec


def test_one_model_for_all():
    spec = TeachersSpec(count=3, model=TREE, params={"max_depth": 2}, epochs=4, lr=0.5)
    for teacher in range(3):
        model = model_for(spec, teacher)
        assert (model.model, model.params, model.epochs, model.lr) == (
            TREE,
            {"max_depth": 2},
            4,
            0.5,
        )
    with pytest.raises(IndexError):
        model_for(spec, 3)


@given(
    st.lists(st.floats(0.5, 20), min_size=1, max_size=5),
    st.integers(min_value=60, max_value=400),
)
def test_a_mix_follows_its_weights_and_is_spread_evenly(weights, count):
    mix = [{"model": f"m:M{i}", "weight": weight} for i, weight in enumerate(weights)]
    if 0 in shares(tuple(weights), count):
        return
    spec = TeachersSpec.model_validate({"count": count, "mix": mix})
    names = [model_for(spec, teacher).model for teacher in range(count)]
    whole = Counter(names)
    for i, weight in enumerate(weights):
        expected = weight / sum(weights) * count
        assert abs(whole[f"m:M{i}"] - expected) < 1
        half = names[: count // 2].count(f"m:M{i}")
        assert abs(half - whole[f"m:M{i}"] / 2) <= 1.5


def test_seeds_differ_and_stay():
    spec = TeachersSpec(count=500, model=TREE)
    seeds = [seed_for(spec, teacher) for teacher in range(500)]
    assert len(set(seeds)) == 500
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert seed_for(spec, 7) == seeds[7] == 2730836579  # pinned: a resumed run must find the same
    assert seed_for(spec, 7, attempt=1) != seeds[7]
    assert seed_for(TeachersSpec(count=9, model=TREE, seed=1), 7) != seeds[7]


def test_specs_are_light():
    code = (
        "import pate.teachers.spec, pate.students.spec, sys\n"
        "print([m for m in ('torch', 'sklearn', 'numpy', 'scipy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_scikit_learn_teacher_loads_no_torch():
    code = (
        "import sys; from pate.teachers.adapters import make\n"
        "from pate.teachers.protocol import train\n"
        "from pate.teachers.spec import ModelSpec\n"
        "import numpy as np; t = make(ModelSpec(model='sklearn.tree:DecisionTreeClassifier'),\n"
        "    classes=2, seed=0); train(t, np.eye(4), np.arange(4) % 2)\n"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
