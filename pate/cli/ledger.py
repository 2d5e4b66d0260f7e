"""``pate ledger``: the charges of a private data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options

app = typer.Typer(
    help="The charges of a private data set.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _root() -> None:
    pass


@app.command()
def show(
    place: Annotated[Path, typer.Argument(help="A run's folder, or a ledger file.")],
    data_root: options.DataRoot = None,
) -> None:
    """Print every charge, the budget spent and left, and what studies cost together."""
    from pate.accounting import Ledger
    from pate.artifacts import Store
    from pate.cli.tables import show_ledger
    from pate.datasets.catalogue import data_root as default_root
    from pate.errors import InvalidInput
    from pate.pipeline.ledger import ledger_path
    from pate.pipeline.runner import find_data_root, read_resolved
    from pate.stages.exactly_once import require_paid_in

    path, one_teacher = place, None
    if not place.is_file():
        recipe = read_resolved(place)
        root = default_root(data_root)
        if data_root is None:
            root = find_data_root(place, recipe, root)
        path, one_teacher = ledger_path(recipe, root), recipe.partition.neighbours
        require_paid_in(Store(root=place), recipe, root)
        if not path.exists():
            raise InvalidInput(f"{recipe.data.name} has paid for nothing yet")
    with Ledger.open(path) as ledger:
        show_ledger(ledger, one_teacher=one_teacher)
