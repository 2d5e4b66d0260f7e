"""``[privacy] analysis``: recipes without it keep their cache keys; releases of before verify."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate.accounting import Analysis, compose
from pate.pipeline.recipe import Recipe
from pate.pipeline.stage import Options
from pate.recipes.read import read_recipe
from pate.releases.documents import caps_analysis
from pate.stages.account import ACCOUNT
from pate.stages.aggregate import AGGREGATE


def recipe(**privacy):
    given = read_recipe("digits-teachers", None, Recipe)[1].model_dump()
    given["privacy"] |= privacy
    given["aggregate"]["queries"] = None
    return Recipe.model_validate(given)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(data_root=tmp_path, engine=None, progress=None)


def test_left_out_it_is_not_among_the_settings(options):
    plain = recipe(epsilon=4.0)
    for stage in (AGGREGATE, ACCOUNT):
        assert "analysis" not in str(stage.settings(plain, options))
    assert "analysis" not in plain.privacy.model_dump(mode="json")


def test_it_is_a_setting_of_the_labels_only_where_it_decides_on_them(options):
    given = {"analysis": "tight"}
    assert AGGREGATE.settings(recipe(**given), options) == AGGREGATE.settings(recipe(), options)
    with_cap = recipe(**given, epsilon=4.0)
    assert AGGREGATE.settings(with_cap, options)["analysis"] == "tight"
    assert ACCOUNT.settings(recipe(**given), options)["privacy"]["analysis"] == "tight"


def test_answers_within_epsilon():
    plain, published, tight = (
        recipe(epsilon=4.0, analysis=each).plan(inputs=3000)
        for each in (None, "published", "tight")
    )
    assert plain == tight
    assert tight.answers > 2 * published.answers
    assert 3.5 < published.guarantee.epsilon <= 4
    assert 3.5 < tight.guarantee.epsilon <= 4
    assert [each.guarantee.analysis for each in (plain, published, tight)] == [
        Analysis.TIGHT,
        Analysis.PUBLISHED,
        Analysis.TIGHT,
    ]


def test_the_caps_of_an_earlier_version_are_recognised():
    """It found them by the published bounds, and releases hold the recipe without that."""
    plain = recipe(epsilon=4.0)
    earlier = plain.plan(inputs=3000, analysis=Analysis.PUBLISHED)
    now = plain.plan(inputs=3000)
    assert earlier.events != now.events
    assert caps_analysis(plain, earlier.events, inputs=3000) is Analysis.PUBLISHED
    assert caps_analysis(plain, now.events, inputs=3000) is None
    for chosen in ("tight", "published"):
        named = recipe(epsilon=4.0, analysis=chosen)
        assert caps_analysis(named, earlier.events, inputs=3000) is None
    # Where nothing is capped there is nothing to recognise.
    assert caps_analysis(recipe(), now.events, inputs=3000) is None


def test_a_budget_is_added_up_by_log_moments():
    """So caps and noise are found by these, and the first plan fits the ledger it is made for."""
    given = {"epsilon": 2.0, "delta": 1e-5}
    for mechanism, key in (("gumbel", "scale"), ("gnmax", "sigma"), ("lnmax", "scale")):
        for budget in (None, 2.0):
            sections = recipe(**given, budget=budget).model_dump()
            sections["aggregate"] = {"mechanism": mechanism, key: 40.0}
            plan = Recipe.model_validate(sections).plan(inputs=3000)
            moments = compose(plan.events).guarantee(delta=1e-5)
            assert plan.guarantee.epsilon <= 2.0
            assert plan.moment == moments.moment
            assert (moments.epsilon <= 2.0) == (budget is not None or mechanism != "gumbel")
