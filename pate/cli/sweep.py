"""``pate sweep``: many settings side by side, and what looking at them costs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli import options as shared
from pate.console import print_json, wide_console
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from pate.metrics import Share
    from pate.pipeline.recipe import Recipe
    from pate.pipeline.stage import Options
    from pate.studies.sweep import Sweep
    from pate.studies.tables import SweepRow

app = shared.new_app()

_TRIES = 10.0

Over = Annotated[
    list[str] | None,
    typer.Option("--over", help="What to vary, several times: section.key=value,value."),
]
Out = Annotated[Path | None, typer.Option("--out", help="The folder; default runs/NAME-sweep.")]
Selection = Annotated[
    bool,
    typer.Option(
        "--private-selection",
        help="Show no point but the best of a random number of tries, at an ε that covers the "
        "choice.",
    ),
]
Tries = Annotated[
    float | None,
    typer.Option(
        "--tries",
        help=f"With --private-selection: how many tries on average, above 1 (default {_TRIES:g}).",
    ),
]


@app.command()
def sweep(
    recipe: shared.RecipeName,
    over: Over = None,
    settings: shared.Settings = None,
    out: Out = None,
    private_selection: Selection = False,
    tries: Tries = None,
    data_root: shared.DataRoot = None,
    engine: shared.EngineName = "processes",
    plugin_path: shared.PluginPath = None,
    insecure_seed: shared.InsecureSeed = None,
    spend: shared.Spend = False,
    dry_run: shared.DryRun = False,
    quiet: shared.Quiet = False,
    json_logs: shared.JsonLogs = False,
    json: shared.Json = False,
) -> None:
    """Run every combination of some settings in one folder; teachers are trained once.

    Each point costs its own ε, and whoever chooses among them by their accuracies has spent all of
    them together: the command prints that ε. --private-selection pays for the choice instead.
    """
    mean = _mean_tries(private_selection, tries)
    options = shared.make_options(
        data_root=data_root,
        engine=engine,
        plugin_path=plugin_path,
        insecure_seed=insecure_seed,
        spend=spend,
        quiet=quiet,
        json_logs=json_logs,
        json=json,
    )
    options = replace(options, report=_without_done(options.report))
    if private_selection:
        if dry_run:
            raise InvalidInput(
                "--dry-run does not go with --private-selection; leave it out: what the choice "
                "costs is printed before it is charged"
            )
        from pate.api import Run
        from pate.cli.pipeline import show_summary
        from pate.studies import selection
        from pate.studies.sweep import read_grid

        grid = read_grid(recipe, over or [], settings or [])
        folder = out or Path("runs") / f"{grid.name}-sweep"
        candidates = [point.recipe for point in grid.points]
        first = candidates[0]
        options = options.with_recipe(data_root=first.data_root, plugins=first.plugins)
        chosen = selection.select(candidates, folder=folder, options=options, tries=mean)
        print_json(Run(chosen).as_json()) if json else show_summary(chosen)
        return
    from pate.studies import sweep as studies

    if dry_run:
        made = studies.prepare_sweep(
            recipe, over=over or [], set=settings, out=out, options=options
        )
        planned = made.preview()
        print_json(planned.as_json()) if json else typer.echo(str(planned))
        return
    result = studies.sweep(recipe, over=over or [], set=settings, out=out, options=options)
    if json:
        print_json(result.as_json())
    else:
        _show(result, options, recipe=recipe, settings=settings or [])


def _mean_tries(selection: bool, tries: float | None) -> float:
    """Return the mean number of tries; refuse options that do not go together."""
    from pate.accounting.events import MOST_TRIES

    if tries is not None and not selection:
        raise InvalidInput("--tries goes with --private-selection; without it every point is run")
    if tries is not None and not 1 < tries <= MOST_TRIES:
        raise InvalidInput(
            f"--tries is {tries:g}; it must be a number above 1 and at most {MOST_TRIES}, the mean "
            "of tries"
        )
    return _TRIES if tries is None else tries


def _without_done(report: Callable[[str], None]) -> Callable[[str], None]:
    """Print what happens, not what every point finds done."""

    def filtered(text: str) -> None:
        if not text.endswith(": done before"):
            report(text)

    return filtered


# --- the table ------------------------------------------------------------------------------------


def _show(result: Sweep, options: Options, *, recipe: str, settings: Sequence[str]) -> None:
    """Print a row for each point, what choosing costs, and what to do next; all was released."""
    from pate.accounting.ledger.data_ledger import total_line
    from pate.pipeline.ledger import open_ledger

    console = wide_console(140)
    console.print(f"{result.folder}: ε of each point alone, at δ = {result.deltas}, "
                  f"{result.rows[0].protects}", soft_wrap=True)  # fmt: skip
    console.print(_table(result, console.width))
    if result.seeded:
        console.print("The noise was seeded: this sweep is NOT PRIVATE.")
    first = result.grid.points[0].recipe
    placed = options.with_recipe(data_root=first.data_root, plugins=first.plugins)
    with open_ledger(first, placed) as ledger:
        console.print(total_line(ledger, first.record_unit, user=first.unit), soft_wrap=True)
    if not result.seeded:
        for sentence in _warning(result):
            console.print(sentence, soft_wrap=True)
    console.print(f"Tables and plot: {result.folder}/sweep.json, .csv, .png, .svg",
                  soft_wrap=True)  # fmt: skip
    console.print("To take one point up (all of it is done), here the first:", soft_wrap=True)
    for command in _next_commands(result, options, recipe=recipe, settings=settings):
        console.print(f"  {command}", soft_wrap=True)


def _warning(result: Sweep) -> list[str]:
    """Return what choosing by these accuracies costs, and the ways that account for it."""
    from pate.accounting.ledger.study_costs import earlier_releases_caveat

    before = earlier_releases_caveat(result.cost)
    return [
        f"Choosing the best by these accuracies costs all of them: {result.cost.describe()}.",
        *([] if before is None else [before]),
        "Accounted ways to choose: `pate sweep --private-selection`, whose ε covers the choice, or "
        "`pate plan`, which looks at no private data.",
    ]


def _next_commands(
    result: Sweep, options: Options, *, recipe: str, settings: Sequence[str]
) -> tuple[str, str]:
    """Return the commands that make the first point the folder's run, and write its report."""
    again, seed = shared.repeated(options), shared.seed_words(options)
    own = [*settings, *result.grid.points[0].settings, "privacy.sanitise=false"]
    sets = [word for setting in own for word in ("--set", setting)]
    folder = str(result.folder)
    return (
        shlex.join(["pate", "run", recipe, *sets, "--out", folder, *again]),
        shlex.join(["pate", "report", folder, *seed]),
    )


def _table(result: Sweep, width: int) -> Table:
    """Return the table; where a terminal is narrow the labels go, then the interval."""
    from pate.cli.tables import Column, fitted_table

    axes = result.grid.axes
    varied = any(axis.key == "teachers.count" for axis in axes)
    headings = [("", 0), *((axis.key.replace(".", "\n", 1), 0) for axis in axes), ("ε", 0)]
    headings += [] if varied else [("teachers", 4)]
    headings += [("answered", 2), ("labels\nright", 3), ("accuracy", 0), ("95 %", 1)]
    cells = zip(*(_cells(row, varied=varied) for row in result.rows), strict=True)
    columns = [
        Column(heading=heading, cells=column, rank=rank)
        for (heading, rank), column in zip(headings, cells, strict=True)
    ]
    return fitted_table(columns, width)


def _cells(row: SweepRow, *, varied: bool) -> list[str]:
    """Return the cells of a row; without the teachers, where their number is varied."""
    from pate._format import format_epsilon
    from pate.recipes.read import as_setting

    student = row.student
    interval = "too few labels"
    if student is not None:
        interval = f"{100 * student.low:.1f} … {100 * student.high:.1f}"
    return [
        str(row.point.number),
        *map(as_setting, row.point.values),
        format_epsilon(row.epsilon),
        *([] if varied else [_teachers(row.point.recipe)]),
        f"{row.answered} of {row.asked}",
        _accuracy(row.labels),
        _accuracy(student),
        interval,
    ]


def _teachers(recipe: Recipe) -> str:
    return "–" if recipe.by_records else str(recipe.teachers.count)


def _accuracy(share: Share | None) -> str:
    return "" if share is None else f"{100 * share.accuracy:.1f} %"
