"""``pate release`` and ``pate verify``: what may leave, and whether it is what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import running

_Trust = Annotated[
    list[str] | None,
    typer.Option("--trust", help="An installed package whose models may be imported."),
]


def release(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; new, or empty.")],
    labels: Annotated[bool, typer.Option("--labels", help="The released labels, too.")] = False,
    data_root: running.DataRoot = None,
    plugin_path: running.PluginPath = None,
) -> None:
    """Exports what may leave: the student, its guarantee, a model card, and checksums."""
    from pate.release.card import upwards
    from pate.release.finished import open_finished
    from pate.release.writing import write_release

    finished = open_finished(run, data_root=data_root, plugin_path=plugin_path)
    statement = write_release(finished, out, labels=labels)
    stated = statement["guarantee"]
    typer.echo(f"released to {out}: ε = {upwards(stated['epsilon'])} at δ = {stated['delta']:g}, "
               f"{statement['protects']}")  # fmt: skip
    typer.echo(f"Next: pate verify {out}")


def verify(
    folder: Annotated[Path, typer.Argument(help="A release's folder.")],
    plugin_path: running.PluginPath = None,
    trust: _Trust = None,
) -> None:
    """Checks a release: its files, its ε from the events in it, and that the student works."""
    from pate.release.card import upwards
    from pate.release.checking import verify_release

    checked = verify_release(folder, plugin_path=plugin_path, trust=trust or ())
    for problem in checked.problems:
        typer.echo(f"pate: {folder}: {problem}", err=True)
    for note in checked.notes:
        typer.echo(f"Note: {note}")
    if checked.problems or checked.epsilon is None or checked.delta is None:
        raise typer.Exit(1)
    typer.echo(
        f"verified: {folder} is whole, and its events come to ε = {upwards(checked.epsilon)} at "
        f"δ = {checked.delta:g}"
    )
