"""The picture of a sweep: every point is in it, in its place."""

from __future__ import annotations

import math
import stat
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pate._plots import new_figure
from pate.accounting import Guarantee
from pate.accounting.ledger.study_costs import StudyCost
from pate.metrics import Share
from pate.studies import plots
from pate.studies.plots import _sweep_title, plot_sweep, spread_out
from pate.studies.sweep import Sweep, read_grid
from pate.studies.tables import SweepRow


def sweep_of(folder: Path, *over: str, finished: int | None = None, student: bool = True) -> Sweep:
    grid = read_grid("digits-teachers", over)
    rows = tuple(
        SweepRow(
            point=point,
            epsilon=100.0 / float(point.recipe.aggregate.scale or 1),
            delta=1e-4,
            neighbours="add-remove",
            protects="one record added or removed",
            private=True,
            asked=60,
            answered=60,
            labels=None,
            student=Share(accuracy=0.5, low=0.4, high=0.6, records=300) if student else None,
        )
        for point in grid.points[:finished]
    )
    cost = StudyCost(
        name="sweep it",
        releases=len(rows),
        unpaid=len(grid.points) - len(rows),
        guarantee=Guarantee(epsilon=182.0, delta=1e-4),
        in_advance=True,
    )
    return Sweep(grid=grid, folder=folder, rows=rows, cost=cost, seeded=False)


@pytest.mark.parametrize("scales", [3, 10, 60])
def test_few_and_many_points(tmp_path: Path, scales: int) -> None:
    values = ",".join(str(8 + each) for each in range(scales))
    plot_sweep(sweep_of(tmp_path, "teachers.count=50,100,200", f"aggregate.scale={values}"))
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sweep.png", "sweep.svg"]


def test_the_same_points_give_the_same_picture(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plot_sweep(sweep_of(tmp_path / name, "teachers.count=50,100", "aggregate.scale=8,16"))
    for kind in ("png", "svg"):
        one, two = ((tmp_path / n / f"sweep.{kind}").read_bytes() for n in ("one", "two"))
        assert one == two


def test_the_title_states_what_choosing_costs_or_that_nothing_holds() -> None:
    results = sweep_of(Path("it"), "aggregate.scale=8,16", finished=1)
    title = _sweep_title(results)
    assert title.startswith("sweep it, digits: 1 of 2 points")
    assert "choosing by them costs ε = 182 at δ = 0.0001 for 2 releases together" in title
    seeded = _sweep_title(replace(results, seeded=True))
    assert "NOT PRIVATE" in seeded
    assert "costs" not in seeded


def test_any_text_can_be_plotted(tmp_path: Path) -> None:
    plot_sweep(sweep_of(tmp_path, "partition.key=$a$,$\\x,ネコ,a_b^c", "aggregate.scale=8,16"))
    assert (tmp_path / "sweep.png").is_file()


def test_without_a_student_there_is_no_picture(tmp_path: Path) -> None:
    plot_sweep(sweep_of(tmp_path, "aggregate.scale=8,16", student=False))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "epsilons",
    [
        [3.0],
        [3.0, 3.0, 3.0],
        [9.0, 1.0, 2.0, 1.0, 2.0],
        [9.94, 4.88, 4.92, 9.95, 24.8, 25.8],
        [1.0, 1.01] * 40,
        [0.0, 0.0, 1.0],
        [1.0 + each / 500 for each in range(500)],
    ],
)
def test_no_marker_covers_another_and_all_are_near_their_place(epsilons: list[float]) -> None:
    places, logarithmic = spread_out(epsilons)
    assert logarithmic == (min(epsilons) > 0 and max(epsilons) > 5 * min(epsilons))
    ranked = [place for _, place in sorted(zip(epsilons, places, strict=True))]
    assert all(before < after for before, after in pairwise(ranked))
    scale = math.log if logarithmic else float
    width = scale(max(epsilons)) - scale(min(epsilons)) or 2.0
    for epsilon, place in zip(epsilons, places, strict=True):
        assert abs(scale(place) - scale(epsilon)) <= 0.07 * width or len(set(epsilons)) == 1


def test_what_looks_alike_stands_apart() -> None:
    (one, two, _), _ = spread_out([9.94, 9.95, 20.0])
    assert (two - one) / (20.0 - 9.94) == pytest.approx(0.022)


# --- figures --------------------------------------------------------------------------------------


def test_a_missing_glyph_is_a_box_and_no_warning(tmp_path: Path) -> None:
    with new_figure() as figure:
        figure.subplots().set_title("\u05d0\u4e00")  # pytest makes an error of any warning
        plots.save_figure(figure, tmp_path, "picture")


def test_figures_are_the_same_every_time_and_undated(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        with new_figure() as figure:
            figure.subplots().plot([1, 2], [3, 4], label="$a")
            made.append(plots.save_figure(figure, tmp_path / name, "picture"))
    (png, svg), (png_again, svg_again) = made
    assert png.read_bytes() == png_again.read_bytes()
    assert svg.read_bytes() == svg_again.read_bytes()
    assert b"matplotlib.org" not in png.read_bytes()
    assert "date" not in svg.read_text()
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in made[0])
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
