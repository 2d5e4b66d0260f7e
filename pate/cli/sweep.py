"""``pate sweep``: many settings side by side, and what looking at them costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli import running
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES = 10.0

Over = Annotated[
    list[str] | None,
    typer.Option("--over", help="What to vary, several times: section.key=value,value.",
                 show_default=False),
]  # fmt: skip
Out = Annotated[Path | None, typer.Option("--out", help="The folder; default runs/NAME-sweep.")]
Selection = Annotated[
    bool,
    typer.Option("--private-selection", help="Show no point but the best of a random number of "
                 "tries, at an ε that covers the choice."),
]  # fmt: skip
Tries = Annotated[
    float | None,
    typer.Option("--tries", help="With --private-selection: how many tries on average, above 1 "
                 f"(default {_TRIES:g}).", show_default=False),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def sweep(
    recipe: running.RecipeName,
    over: Over = None,
    settings: running.Settings = None,
    out: Out = None,
    private_selection: Selection = False,
    tries: Tries = None,
    data_root: running.DataRoot = None,
    engine: running.EngineName = "processes",
    plugin_path: running.PluginPath = None,
    insecure_seed: running.InsecureSeed = None,
    spend: running.Spend = False,
    quiet: running.Quiet = False,
    json_logs: running.JsonLogs = False,
    json: Json = False,
) -> None:
    """Runs every combination of some settings in one folder; teachers are trained once.

    Each point costs its own ε, and whoever chooses among them by their accuracies has spent all of
    them together: the command says that figure. --private-selection pays for the choice instead.
    """
    mean = _checked(private_selection, tries, json)
    from pate.sweep.grid import read_grid

    grid = read_grid(recipe, over or [], settings or [])
    first = [*(settings or []), *grid.points[0].settings]
    made = running.make_run(recipe, first, out, data_root, engine, plugin_path, insecure_seed,
                            spend, quiet, json_logs)  # fmt: skip
    folder = made.folder if out else made.folder.with_name(f"{made.folder.name}-sweep")
    options = replace(made.options, say=_only_news(made.options.say, json and not quiet))
    if private_selection:
        from pate.cli.summary import show_summary
        from pate.sweep.selecting import select

        candidates = [point.recipe for point in grid.points]
        show_summary(select(candidates, folder=folder, options=options, tries=mean))
        return
    from pate.cli.sweep_tables import show_sweep
    from pate.sweep.running import run_sweep
    from pate.sweep.sweeping import Sweep

    swept = Sweep.of(grid, folder, made.stages, options)
    results = run_sweep(swept)
    if json:
        import json as encoder

        typer.echo(encoder.dumps(results.as_json(), allow_nan=False, ensure_ascii=False))
    else:
        show_sweep(swept, results, recipe=recipe, settings=settings or [])


def _checked(selection: bool, tries: float | None, json: bool) -> float:
    """The mean number of tries; what only makes sense with a selection, or without, is refused."""
    from pate.accounting.events import MOST_TRIES

    if tries is not None and not selection:
        raise InvalidInput("--tries goes with --private-selection; without it every point is run")
    if tries is not None and not 1 < tries <= MOST_TRIES:
        raise InvalidInput(
            f"--tries is {tries:g}; it must be a number above 1 and at most {MOST_TRIES}, the mean "
            "of tries"
        )
    if selection and json:
        raise InvalidInput("--json goes without --private-selection, which shows no table")
    return _TRIES if tries is None else tries


def _only_news(say: Callable[[str], None], aside: bool) -> Callable[[str], None]:
    """Says what happens, not what every point finds done; ``aside`` keeps it off the output."""

    def tell(text: str) -> None:
        if text.endswith(": done before"):
            return
        if aside:
            typer.echo(text, err=True)
        else:
            say(text)

    return tell
