"""``pate run`` and its stages: options shared by all, and how a run is put together."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pate.pipeline.runner import Run
    from pate.pipeline.stage import Options

RecipeName = Annotated[str, typer.Argument(help="A shipped recipe, or the path of a .toml file.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Override a key: section.key=value.")
]
Out = Annotated[Path | None, typer.Option("--out", help="The run's folder; default runs/NAME.")]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Where data sets live.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="serial, processes[:N], gpus[:0,1][@N] (cpu and mps are devices too), "
        "ray[:auto or :ADDRESS].",
    ),
]
PluginPath = Annotated[
    Path | None, typer.Option("--plugin-path", help="A folder with your own teachers.")
]
InsecureSeed = Annotated[
    int | None, typer.Option("--insecure-seed", help="Seeded noise, for tests: NOT PRIVATE.")
]
Spend = Annotated[
    bool,
    typer.Option("--spend", help="Pay again: for other noise on the same votes, or a lost answer."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but the result.")]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Progress as JSON lines on stderr.")]

STAGE_NAMES = (
    "partition",
    "encode",
    "teach",
    "vote",
    "aggregate",
    "account",
    "distill",
    "evaluate",
)


_under_way = False  # for the line that Ctrl-C leaves behind


def how_to_go_on() -> str:
    """What Ctrl-C leaves to say, where a run, a sweep or a comparison was under way."""
    return "; run the same command again to go on where it was" if _under_way else ""


def make_run(
    recipe: str,
    settings: list[str] | None,
    out: Path | None,
    data_root: Path | None,
    engine: str,
    plugin_path: Path | None,
    insecure_seed: int | None,
    spend: bool,
    quiet: bool,
    json_logs: bool,
) -> Run:
    """A run from what was typed; what its folder holds must be in the ledger."""
    from pate.pipeline.recipe import Recipe
    from pate.pipeline.runner import Run
    from pate.recipes.read import read_recipe
    from pate.stages.catalogue import STAGES
    from pate.stages.paid import require_paid
    from pate.stages.selected import require_made

    name, checked = read_recipe(recipe, settings, Recipe)
    options = make_options(data_root, engine, plugin_path, insecure_seed, spend, quiet, json_logs)
    run = Run(folder=out or Path("runs") / name, recipe=checked, stages=STAGES, options=options)
    require_made(run.recipe, run.store)
    require_paid(run)
    return run


def make_options(
    data_root: Path | None,
    engine: str,
    plugin_path: Path | None,
    insecure_seed: int | None,
    spend: bool,
    quiet: bool,
    json_logs: bool = False,
) -> Options:
    """How to run, from what was typed."""
    global _under_way
    from pate.datasets import data_root as default_root
    from pate.engines import Progress, make_engine, terminal_progress
    from pate.engines.on_ray.session import sweep_leftovers
    from pate.errors import InvalidInput
    from pate.pipeline.stage import Options

    if plugin_path is not None and not plugin_path.exists():
        raise InvalidInput(f"there is nothing at --plugin-path {plugin_path}")
    if insecure_seed is not None:
        typer.echo("pate: --insecure-seed is set: this run is NOT PRIVATE", err=True)

    def show(
        title: str, total: int, done: int, slots: int | None = None, /
    ) -> AbstractContextManager[Progress]:
        return terminal_progress(
            title, total, quiet=quiet, json_logs=json_logs, done=done, slots=slots
        )

    sweep_leftovers()
    _under_way = True
    return Options(
        data_root=default_root(data_root),
        engine=make_engine(engine),
        plugin_path=None if plugin_path is None else plugin_path.absolute(),
        insecure_seed=insecure_seed,
        spend=spend,
        say=_silent if quiet else typer.echo,
        progress=show,
    )


def _silent(text: str) -> None:
    """Says nothing."""
