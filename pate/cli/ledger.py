"""``pate ledger``: what a private data set has paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import running

app = typer.Typer(
    help="What a private data set has paid for.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _root() -> None:
    pass


@app.command()
def show(
    place: Annotated[Path, typer.Argument(help="A run's folder, or a ledger file.")],
    data_root: running.DataRoot = None,
) -> None:
    """Every charge, and the budget spent and left."""
    from pate.accounting import Ledger
    from pate.cli.summary import show_ledger
    from pate.datasets import data_root as default_root
    from pate.pipeline.runner import read_resolved
    from pate.pipeline.spending import ledger_path

    path = place if place.is_file() else ledger_path(read_resolved(place), default_root(data_root))
    with Ledger.open(path) as ledger:
        show_ledger(ledger)
