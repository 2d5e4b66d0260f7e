"""Messages on recipes: each names a place where its remedy is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dpsgd.recipe import DpsgdRecipe
from pate.errors import InvalidInput
from pate.recipes.read import read_recipe
from pate.studies.compare.recipe import CompareRecipe

TRAINING = """kind = "dpsgd"
[data]
name = "digits"
[training]
epochs = 1
learning_rate = 1.0
[privacy]
epsilon = 2.0
delta = 1e-4
"""
COMPARISON = """kind = "compare"
[data]
name = "digits"
[compare]
epsilons = [2]
delta = 1e-4
[pate.teachers]
count = 10
model = "ridge"
[pate.aggregate]
mechanism = "gnmax"
queries = 5
[pate.student]
model = "ridge"
[dpsgd.training]
epochs = 1
"""


def refusal(tmp_path: Path, text: str, model: type[BaseModel]) -> str:
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_recipe(str(tmp_path / "my.toml"), None, model)
    return str(caught.value)


def accepted(tmp_path: Path, text: str, model: type[Any]) -> Any:
    (tmp_path / "my.toml").write_text(text)
    return read_recipe(str(tmp_path / "my.toml"), None, model)[1]


def test_steps_of_an_encoder_lead_to_the_section_that_takes_them(tmp_path: Path) -> None:
    steps = 'steps = ["standardise"]\n'
    told = refusal(tmp_path, f"{TRAINING}[encoder]\n{steps}", DpsgdRecipe)
    assert told.endswith("unknown key encoder.steps; steps belongs to [features]")
    assert accepted(tmp_path, f"{TRAINING}[features]\n{steps}", DpsgdRecipe).features.steps


def test_a_missing_key_names_the_innermost_section(tmp_path: Path) -> None:
    whole = f"{COMPARISON}learning_rate = 1.0\n"
    told = refusal(tmp_path, whole.replace("count = 10\n", ""), CompareRecipe)
    assert told.endswith("pate.teachers.count is missing; add it to [pate.teachers]")
    assert accepted(tmp_path, whole, CompareRecipe)
