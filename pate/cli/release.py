"""``pate release`` and ``pate verify``: what may leave, and whether it is what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options

_UNCHECKED = 4  # exit code: no problem was found, but something could not be checked

_Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Try a student that needs code of its own: imports and runs the code that the release "
        "names. Only for code you know and a release from somebody you trust.",
    ),
]


def release(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; new, or empty.")],
    labels: Annotated[bool, typer.Option("--labels", help="The released labels, too.")] = False,
    chosen_beforehand: Annotated[
        bool,
        typer.Option(
            "--chosen-beforehand",
            help="A run of a sweep or comparison was chosen before "
            "any of its results was seen; the card says so.",
        ),
    ] = False,
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
) -> None:
    """Exports what may leave: the student, its guarantee, a model card, and checksums."""
    from pate._format import format_epsilon
    from pate.release.finished import open_finished
    from pate.release.sums import SUMS, digest_of_sums
    from pate.release.writing import write_release

    finished = open_finished(run, data_root=data_root, plugin_path=plugin_path)
    statement, header = write_release(
        finished, out, labels=labels, chosen_beforehand=chosen_beforehand
    )
    stated = statement["guarantee"]
    epsilon, delta = format_epsilon(stated["epsilon"]), stated["delta"]
    typer.echo(f"released to {out}: ε = {epsilon} at δ = {delta:g}, {statement['protects']}")
    typer.echo(f"It is the student of {finished.recipe.asked}.")
    if header["model"]["kind"] == "code":
        typer.echo(
            "The student is not data alone: loading it runs code of its own and needs trust=True "
            f"(--trust), because {header['model']['why']}."
        )
    typer.echo(f"sha256 of {SUMS}, to be told by another way: {digest_of_sums(out)}")
    typer.echo(f"Next: pate verify {out}")


def verify(
    folder: Annotated[Path, typer.Argument(help="A release's folder.")],
    plugin_path: options.PluginPath = None,
    trust: _Trust = False,
) -> None:
    """Checks a release: its files, its ε from the events in it, and that the student works.

    Whoever can change files can change their list, too: compare the digest that is printed with one
    from the owner. Without --trust nothing that the release names is run, imported or downloaded.
    Ends with 0 if all is well, 1 if not, and 4 if no problem was found but something could not be
    checked, such as a student that needs code of its own.
    """
    from pate._format import format_epsilon
    from pate.release.checking import verify_release
    from pate.release.sums import SUMS

    checked = verify_release(folder, plugin_path=plugin_path, trust=trust)
    for problem in checked.problems:
        typer.echo(f"pate: {folder}: {_printable(problem)}", err=True)
    if checked.problems or checked.epsilon is None or checked.delta is None:
        raise typer.Exit(1)
    but = ", but for what follows" if checked.notes else ""
    typer.echo(
        f"verified{but}: {folder} holds the files of its {SUMS}, and its events come to "
        f"ε = {format_epsilon(checked.epsilon)} at δ = {checked.delta:g}"
    )
    typer.echo(f"sha256 of {SUMS}, to be compared with the owner's: {checked.digest}")
    for note in checked.notes:
        typer.echo(f"Not checked: {_printable(note)}")
    if checked.notes:
        raise typer.Exit(_UNCHECKED)


def _printable(text: str) -> str:
    """A stranger's text, so that a terminal shows it and does nothing else."""
    shown = (each if each.isprintable() else repr(each)[1:-1] for each in text)
    return "".join(shown)[:500]
