"""Every combination is a recipe that was read; what cannot be swept over is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pate.errors import InvalidInput
from pate.recipes.read import find_recipe
from pate.studies.sweep import MOST_POINTS, read_grid


def test_every_combination_in_the_order_given() -> None:
    grid = read_grid(
        "digits-teachers",
        ["teachers.count=50,100", "aggregate.scale=8,16,4"],
        ["aggregate.queries=30"],
    )
    assert grid.name == "digits-teachers"
    assert [point.number for point in grid.points] == [1, 2, 3, 4, 5, 6]
    found = [(p.recipe.teachers.count, p.recipe.aggregate.scale) for p in grid.points]
    assert found == [(50, 8), (50, 16), (50, 4), (100, 8), (100, 16), (100, 4)]
    assert {point.recipe.aggregate.queries for point in grid.points} == {30}
    assert grid.points[1].settings == ("teachers.count=50", "aggregate.scale=16")


def test_no_point_has_a_sanitised_epsilon() -> None:
    grid = read_grid("digits-teachers", ["aggregate.scale=8,16"])
    assert [point.recipe.privacy.sanitise for point in grid.points] == [False, False]


def test_a_recipe_may_lack_what_is_varied(tmp_path: Path) -> None:
    text = find_recipe("digits-teachers").read_text().replace("count = 100\n", "")
    (tmp_path / "open.toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"teachers\.count is missing"):
        read_grid(str(tmp_path / "open.toml"), ["aggregate.scale=8,16"])
    grid = read_grid(str(tmp_path / "open.toml"), ["teachers.count=5,6"])
    assert [point.recipe.teachers.count for point in grid.points] == [5, 6]


REFUSED = [
    ([], [], "there is nothing to sweep over"),
    (["teachers.count"], [], "not of the form"),
    (["count=1,2"], [], "not of the form"),
    (["teachers.=1,2"], [], "not of the form"),
    (["data=1,2"], [], "not of the form"),
    (["teachers.count="], [], "no value"),
    (["teachers.count=5,"], [], "after the last comma"),
    (["teachers.count=5,5"], [], "5 is given twice"),
    (["aggregate.scale=8,8.0"], [], "mean the same"),
    (["teachers.count=5", "teachers.count=6"], [], "given twice"),
    (["student.params={ a = 1 }", "student.params.a=1,2"], [], "set the same"),
    (["teachers.count=5,6"], ["teachers.count=7"], "--set teachers.count and --over"),
    (["student.params={ a = 1 },{}"], ["student.params.b=1"], "--set student.params.b and --over"),
    (["data.test=10,20"], [], "a sweep keeps its data"),
    (["data.name=digits,mnist"], [], "a sweep keeps its data"),
    (["privacy.budget=1,2"], [], "the budget belongs to the data set"),
    (["privacy.sanitise=true,false"], [], "price of its own"),
    (["partition.method=hash,shuffle"], [], "costs do not add up"),
    (["partition.by=record,group"], [], "costs do not add up"),
    (["teachers.count=5,x"], [], '--over teachers.count=x: teachers.count is "x"'),
    (["teachers.cuont=5,6"], [], "did you mean count?"),
    (["aggregate.scale=8,-1"], [], "--over aggregate.scale=-1: aggregate.scale is -1"),
    (["aggregate.scale=8,nan"], [], "aggregate.scale"),
    (["student.model=a,b"], ["student.method=nothing"], "--set student.method=nothing"),
]


@pytest.mark.parametrize(("over", "settings", "printed"), REFUSED)
def test_what_cannot_be_swept_over(over: list[str], settings: list[str], printed: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_grid("digits-teachers", over, settings)
    assert printed in str(refused.value)
    assert "\n" not in str(refused.value)


def test_too_many_points() -> None:
    values = ",".join(map(str, range(1, 41)))
    over = [f"student.seed={values}", f"teachers.seed={values}"]
    with pytest.raises(InvalidInput, match=f"40 × 40 values are 1600 points.*{MOST_POINTS}"):
        read_grid("digits-teachers", over)


def test_a_thousand_points_are_read() -> None:
    values = ",".join(map(str, range(MOST_POINTS)))
    assert len(read_grid("digits-teachers", [f"student.seed={values}"]).points) == MOST_POINTS
