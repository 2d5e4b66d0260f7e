"""What of a recipe the test of a student depends on."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from pate.engines import make_engine
from pate.metrics import wilson
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Options
from pate.stages.evaluate import EVALUATE


@pytest.fixture
def options():
    return Options(
        data_root=Path("data"), engine=make_engine("serial"), progress=lambda *_: nullcontext()
    )


def settings(options, **evaluate):
    recipe = Recipe.model_validate(
        {
            "data": {"name": "digits"},
            "teachers": {"count": 5, "model": "ridge"},
            "aggregate": {"scale": 2.0},
            "student": {"model": "ridge"},
            "evaluate": evaluate,
        }
    )
    return EVALUATE.settings(recipe, options)["evaluate"]


def test_a_key_that_is_not_set_makes_no_earlier_run_stale(options):
    assert settings(options) == {"reference": False}
    assert settings(options, public_labels=True) == {"reference": False, "public_labels": True}


@pytest.mark.parametrize(("right", "records"), [(0, 7), (7, 7), (3, 7), (950.5, 1000)])
def test_the_interval_holds_the_shares_whose_deviation_is_as_large(right, records):
    """Its ends solve |p − right/n| = z·√(p(1 − p)/n), which is how Wilson defined them."""
    low, high = wilson(right, records)
    share = right / records
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            deviation = (end * (1 - end) / records) ** 0.5
            assert abs(end - share) / deviation == pytest.approx(1.959963984540054)
