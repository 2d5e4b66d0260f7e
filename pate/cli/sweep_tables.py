"""A sweep for people: a row for each point, what choosing among them costs, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from pate._format import format_epsilon
from pate.accounting.data_ledger import budget_line
from pate.accounting.together import led_to
from pate.cli.fitting import Column, fitted_table
from pate.datasets import data_root as default_root
from pate.pipeline.spending import open_ledger
from pate.sweep.values import as_setting

if TYPE_CHECKING:
    from rich.table import Table

    from pate.shares import Share
    from pate.sweep.results import Results, Row
    from pate.sweep.sweeping import Sweep

_UNSEEN = 140  # columns, where no terminal says how wide it is


def show_sweep(sweep: Sweep, results: Results, *, recipe: str, settings: Sequence[str]) -> None:
    """Everything there is to see; all of it was released, and paid for."""
    console = Console(
        width=None if Console().is_terminal else _UNSEEN, markup=False, highlight=False
    )
    console.print(f"{sweep.folder}: ε of each point alone, at δ = {results.deltas}, "
                  f"{results.rows[0].protects}", soft_wrap=True)  # fmt: skip
    console.print(_table(results, console.width))
    if results.seeded:
        console.print("The noise was seeded: this sweep is NOT PRIVATE.")
    with open_ledger(sweep.grid.points[0].recipe, sweep.options) as ledger:
        console.print(budget_line(ledger), soft_wrap=True)
    if not results.seeded:
        for sentence in warning(results):
            console.print(sentence, soft_wrap=True)
    console.print(f"Tables and picture: {sweep.folder}/sweep.json, .csv, .png, .svg",
                  soft_wrap=True)  # fmt: skip
    console.print("To take one point up (all of it is done), here the first:", soft_wrap=True)
    command, report = take_up(sweep, recipe=recipe, settings=settings)
    console.print(f"  {command}\n  {report}", soft_wrap=True)


def warning(results: Results) -> list[str]:
    """What choosing by these accuracies costs, and the ways that account for it."""
    before = led_to(results.cost)
    return [
        f"Choosing the best by these accuracies costs all of them: {results.cost.told()}.",
        *([] if before is None else [before]),
        "Accounted ways to choose: `pate sweep --private-selection`, whose ε covers the choice, or "
        "`pate plan`, which looks at no private data.",
    ]


def take_up(sweep: Sweep, *, recipe: str, settings: Sequence[str]) -> tuple[str, str]:
    """The commands that make the first point the folder's run, and write its report."""
    options = sweep.options
    shared = []
    if options.plugin_path is not None:
        shared += ["--plugin-path", str(options.plugin_path)]
    if options.insecure_seed is not None:
        shared += ["--insecure-seed", str(options.insecure_seed)]
    if options.data_root != default_root(None):
        shared += ["--data-root", str(options.data_root)]
    own = [*settings, *sweep.grid.points[0].settings, "privacy.sanitise=false"]
    sets = [word for setting in own for word in ("--set", setting)]
    folder = str(sweep.folder)
    return (
        shlex.join(["pate", "run", recipe, *sets, "--out", folder, *shared]),
        shlex.join(["pate", "report", folder, *shared]),
    )


def _table(results: Results, width: int) -> Table:
    """Where a terminal is narrow the labels go, then the interval: both are in the files."""
    grid = results.grid
    varied = any(axis.key == "teachers.count" for axis in grid.axes)
    headings = [("", 0), *((axis.key.replace(".", "\n", 1), 0) for axis in grid.axes), ("ε", 0)]
    headings += [] if varied else [("teachers", 4)]
    headings += [("answered", 2), ("labels\nright", 3), ("accuracy", 0), ("95 %", 1)]
    cells = zip(*(_cells(row, varied=varied) for row in results.rows), strict=True)
    columns = [
        Column(heading=heading, cells=column, rank=rank)
        for (heading, rank), column in zip(headings, cells, strict=True)
    ]
    return fitted_table(columns, width)


def _cells(row: Row, *, varied: bool) -> list[str]:
    """A row; without the teachers, where their number is among the settings."""
    student = row.student
    interval = (
        "too few labels"
        if student is None
        else f"{_percent(student.low)} … {_percent(student.high)}"
    )
    return [
        str(row.point.number),
        *map(as_setting, row.point.values),
        format_epsilon(row.epsilon),
        *([] if varied else [str(row.point.recipe.teachers.count)]),
        f"{row.answered} of {row.asked}",
        _accuracy(row.labels),
        _accuracy(student),
        interval,
    ]


def _accuracy(share: Share | None) -> str:
    return "" if share is None else f"{_percent(share.accuracy)} %"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
