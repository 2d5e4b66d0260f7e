"""``pate compare``: PATE (teachers, record votes) and DP-SGD on one split, at the same (ε, δ)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pate.cli import options as shared
from pate.console import print_json, wide_console

if TYPE_CHECKING:
    from pate.studies.compare import Comparison
    from pate.studies.tables import ComparisonRow

app = shared.new_app()

Epsilons = Annotated[
    str | None,
    typer.Option("--epsilon", help="The ε to compare at, such as 0.5,1,2; default: the recipe's."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", help="Repetitions of each method; default: the recipe's.")
]


@app.command()
def compare(
    recipe: shared.RecipeName,
    epsilon: Epsilons = None,
    seeds: Seeds = None,
    settings: shared.Settings = None,
    out: shared.Out = None,
    data_root: shared.DataRoot = None,
    engine: shared.EngineName = "processes",
    plugin_path: shared.PluginPath = None,
    insecure_seed: shared.InsecureSeed = None,
    spend: shared.Spend = False,
    dry_run: shared.DryRun = False,
    quiet: shared.Quiet = False,
    json: shared.Json = False,
) -> None:
    """Compare PATE with DP-SGD on the same data within the same ε; what is done is skipped.

    Every run is charged to the data's ledgers, with the tag of the comparison. The table is
    followed by the cost of all of them together.
    """
    from pate.studies import compare as studies

    epsilons = None if epsilon is None else _parsed(epsilon)
    options = shared.make_options(
        data_root=data_root,
        engine=engine,
        plugin_path=plugin_path,
        insecure_seed=insecure_seed,
        spend=spend,
        quiet=quiet,
        json=json,
    )
    if dry_run:
        planned = studies.prepare_comparison(
            recipe, epsilons=epsilons, seeds=seeds, set=settings, out=out, options=options
        )[1].preview()
        print_json(planned.as_json()) if json else typer.echo(str(planned))
        return
    comparison = studies.compare(
        recipe, epsilons=epsilons, seeds=seeds, set=settings, out=out, options=options
    )
    if json:
        print_json(comparison.as_json())
    else:
        _show(comparison, shared.seed_words(options))


def _parsed(epsilon: str) -> list[float]:
    """Return the ε of a list; a mistake names the option."""
    from pate.errors import InvalidInput
    from pate.studies.compare.recipe import checked_epsilons

    try:
        values = [float(part) for part in epsilon.split(",")]
    except ValueError:
        raise InvalidInput(
            f"--epsilon “{epsilon}” is no list of numbers; write it as 0.5,1,2"
        ) from None
    try:
        return checked_epsilons(values)
    except InvalidInput as error:
        raise InvalidInput(f"--epsilon {epsilon}: {error}") from None


# --- the table ------------------------------------------------------------------------------------

# Heading, side, and rank: what a narrow terminal has no room for is in the notes or the files.
_COLUMNS: tuple[tuple[str, Literal["left", "right"], int], ...] = (
    ("method", "left", 0), ("ε", "right", 0), ("accuracy, %", "right", 0), ("labels", "right", 1),
    ("time", "right", 2), ("memory", "right", 3), ("neighbours", "left", 4),
    ("data-dep.", "left", 5), ("publish?", "left", 0),
)  # fmt: skip
_NONE = "–"


def _show(comparison: Comparison, again: list[str]) -> None:
    """Print the table, its notes, and where it was written."""
    from pate.cli.tables import Column, fitted_table

    console = wide_console(120)
    cells = zip(*map(_cells, comparison.rows), strict=True)
    columns = [
        Column(heading=heading, cells=column, justify=justify, rank=rank)
        for (heading, justify, rank), column in zip(_COLUMNS, cells, strict=True)
    ]
    console.print(fitted_table(columns, console.width))
    for note in comparison.notes:
        console.print(f"• {note}", soft_wrap=True)
    files = "compare.json, compare.csv, compare.png, compare.svg"
    console.print(f"Written to {comparison.folder}: {files}", soft_wrap=True)
    words = shlex.join([str(comparison.folder), *again])
    console.print(f"Next: pate report {words}", soft_wrap=True)


def _cells(row: ComparisonRow) -> list[str]:
    from pate._format import format_epsilon
    from pate.cli.stage_table import duration

    more, dependent = "" if row.whole else "≥ ", row.data_dependent
    return [
        row.name,
        _NONE if row.epsilon is None else format_epsilon(row.epsilon),
        _accuracy(row.accuracy, row.spread, len(row.runs)),
        _NONE if row.labels is None else str(row.labels),
        _NONE if row.seconds is None else f"{more}{duration(row.seconds)}",
        _NONE if row.peak_memory_mb is None else f"{row.peak_memory_mb:.0f} MB",
        row.neighbours or _NONE,
        _NONE if dependent is None else "yes" if dependent else "no",
        "yes" if row.publishable else "NO",
    ]


def _accuracy(mean: float, spread: float | None, runs: int) -> str:
    """Return an accuracy in per cent, with its spread.

    >>> _accuracy(0.91234, 0.0123, 3), _accuracy(0.1, None, 1)
    ('91.2 ± 1.2 (3)', '10.0')
    """
    if spread is None:
        return f"{100 * mean:.1f}"
    return f"{100 * mean:.1f} ± {100 * spread:.1f} ({runs})"
