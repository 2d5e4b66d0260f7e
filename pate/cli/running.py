"""Options of ``pate sweep`` and ``pate compare``, until both use :mod:`pate.cli.options`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pate.cli import options
from pate.cli.options import DataRoot as DataRoot
from pate.cli.options import EngineName as EngineName
from pate.cli.options import InsecureSeed as InsecureSeed
from pate.cli.options import JsonLogs as JsonLogs
from pate.cli.options import Out as Out
from pate.cli.options import PluginPath as PluginPath
from pate.cli.options import Quiet as Quiet
from pate.cli.options import RecipeName as RecipeName
from pate.cli.options import Settings as Settings
from pate.cli.options import Spend as Spend

if TYPE_CHECKING:
    from pate.pipeline.runner import Run
    from pate.pipeline.stage import Options


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
    """Return a run that has not been executed."""
    from pate.api import prepare_run

    given = make_options(data_root, engine, plugin_path, insecure_seed, spend, quiet, json_logs)
    return prepare_run(recipe, set=settings, out=out, options=given)


def make_options(
    data_root: Path | None,
    engine: str,
    plugin_path: Path | None,
    insecure_seed: int | None,
    spend: bool,
    quiet: bool,
    json_logs: bool = False,
) -> Options:
    """Return how to run, from what was typed."""
    return options.make_options(
        data_root=data_root,
        engine=engine,
        plugin_path=plugin_path,
        insecure_seed=insecure_seed,
        spend=spend,
        quiet=quiet,
        json_logs=json_logs,
    )
