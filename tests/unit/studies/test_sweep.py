"""Points that share a stage are neighbours, so that what is shared is made once."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from pate.engines import make_engine
from pate.pipeline.stage import Options
from pate.stages.catalogue import STAGES
from pate.studies.sweep import PointRuns, read_grid


@pytest.fixture
def sweep_over(tmp_path: Path):
    def make(*over: str) -> PointRuns:
        options = Options(
            data_root=tmp_path,
            engine=make_engine("serial"),
            progress=lambda *_: nullcontext(),  # type: ignore[arg-type]
        )
        return PointRuns.of(read_grid("digits-teachers", over), tmp_path / "swept", options)

    return make


def test_shared_stages_are_adjacent(sweep_over) -> None:
    sweep = sweep_over("student.seed=1,2", "aggregate.scale=8,16", "teachers.count=50,100")
    runs = [
        (p.recipe.teachers.count, p.recipe.aggregate.scale, p.recipe.student.seed)
        for p in sweep.in_order
    ]
    assert runs == [(k, b, s) for k in (50, 100) for b in (8, 16) for s in (1, 2)]


def test_results_that_several_points_share(sweep_over) -> None:
    sweep = sweep_over("student.seed=1,2", "aggregate.scale=8,16", "teachers.count=50,100")
    shared = {stage.name: len(sweep.one_of_each(stage.name)) for stage in STAGES}
    assert shared["data"] == 1
    assert shared["teach"] == shared["vote"] == 2
    assert shared["aggregate"] == 4
    assert shared["evaluate"] == len(sweep.grid.points) == 8


def test_a_student_that_takes_part_in_the_asking_makes_a_release_of_its_own(sweep_over) -> None:
    asking = (
        "aggregate.mechanism=interactive", "aggregate.threshold=30.0", "aggregate.sigma1=20.0",
        "aggregate.sigma2=10.0", "student.seed=1,2",
    )  # fmt: skip
    with pytest.raises(ValueError, match="takes no scale"):
        sweep_over(*asking)
    plain = sweep_over("student.seed=1,2")
    assert len(plain.one_of_each("aggregate")) == 1
    rounds = sweep_over("aggregate.choose=uncertain", "student.seed=1,2")
    assert len(rounds.one_of_each("aggregate")) == 1  # rounds choose by answers, not by students


def test_a_sweep_is_a_study_by_the_name_of_its_folder(sweep_over) -> None:
    sweep = sweep_over("student.seed=1,2")
    assert sweep.tag == sweep.options.study == "sweep swept"
    assert sweep.run(sweep.grid.points[0]).folder == sweep.folder
