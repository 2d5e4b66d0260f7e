"""``pate data``: list the named sets, and fetch them."""

from __future__ import annotations

import typer

from pate.cli import options

app = options.new_app(help="Data sets by name.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the named data sets, and which of them are on disk."""
    from pate.datasets.catalogue import CATALOGUE
    from pate.datasets.catalogue import data_root as default_root

    for each in CATALOGUE.values():
        there = "here" if each.present(default_root()) else f"pate data fetch {each.name}"
        classes = len(each.class_names)
        typer.echo(f"{each.name:14} {classes:3} classes {each.records:7} records  {there}")


@app.command()
def fetch(name: str, data_root: options.DataRoot = None) -> None:
    """Fetch a data set, check it, and put it where recipes find it."""
    from pate.datasets.catalogue import data_root as default_root
    from pate.datasets.fetch import fetch as fetch_

    place = fetch_(name, root=default_root(data_root), report=typer.echo)
    typer.echo(f"{name} is in {place}")
