"""Stored principal components are taken up again under their own terms only."""

from __future__ import annotations

import numpy as np
import pytest

from dpsgd.inputs import prepare
from dpsgd.recipe import Recipe
from pate.datasets.table import Splits, Table
from pate.errors import InvalidInput

TERMS = {"dimension": 3, "noise_multiplier": 2.0, "sample_rate": 0.9, "whiten": 0.5}


def recipe(**changed):
    return Recipe.model_validate(
        {
            "kind": "dpsgd",
            "data": {"name": "digits"},
            "features": {"pca": TERMS | changed},
            "training": {"steps": 2, "learning_rate": 0.1},
            "privacy": {"noise_multiplier": 1.5, "delta": 1e-5},
        }
    )


def splits():
    rng = np.random.default_rng(3)
    tables = (Table(features=rng.random((n, 6)), labels=np.arange(n) % 2) for n in (40, 4, 10))
    private, public, test = tables
    return Splits(private=private, public=public, test=test, class_names=("no", "yes"))


@pytest.mark.parametrize(
    "changed",
    [{"dimension": 2}, {"noise_multiplier": 2.5}, {"sample_rate": 1.0}, {"whiten": 0.0}],
)
def test_components_of_another_recipe_are_refused(tmp_path, changed):
    file = tmp_path / "pca.npz"
    first = prepare(recipe(), splits(), pca_file=file)
    stored = file.read_bytes()
    with pytest.raises(InvalidInput, match=r"another \[features.pca\]"):
        prepare(recipe(**changed), splits(), pca_file=file)
    assert file.read_bytes() == stored
    again = prepare(recipe(), splits(), pca_file=file)
    assert np.array_equal(again.features, first.features)
