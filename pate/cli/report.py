"""``pate report``: the HTML page of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options

app = options.new_app()

File = Annotated[
    Path | None,
    typer.Option("--out", help="The page; default RUN/report.html, or RUN/private/report.html."),
]
Private = Annotated[
    bool,
    typer.Option(
        "--private",
        help="Add raw votes in sum and the data-dependent ε: a page that may NOT be published, "
        "and is stamped so.",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open it in a browser.")]


@app.command()
def report(
    folder: options.FinishedRun,
    out: File = None,
    private: Private = False,
    with_confusion: options.WithConfusion = False,
    show: Open = False,
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
    insecure_seed: options.InsecureSeed = None,
) -> None:
    """Write the page of a run: the guarantee, its cost, the student, provenance.

    The page is one file that loads nothing. It holds public and released values only, unless
    --private is given.
    """
    from pate.api import open_run

    run = open_run(
        folder, data_root=data_root, plugin_path=plugin_path, insecure_seed=insecure_seed
    )
    place = run.report(out, private=private, with_confusion=with_confusion)
    typer.echo(f"wrote {place}" + (" (PRIVATE: do not publish)" if private else ""))
    if show:
        import webbrowser

        if not webbrowser.open(place.absolute().as_uri()):
            typer.echo(f"pate: no browser could be started; open {place} by hand", err=True)
