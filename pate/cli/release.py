"""``pate release`` and ``pate verify``: make a release, and check one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options

app = options.new_app()

_UNCHECKED = 4  # exit code: no problem was found, but something could not be checked

_Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Try a student that needs code of its own: imports and runs the code that the "
        "release names. Only for code you know and a release from somebody you trust.",
    ),
]


@app.command()
def release(
    run: options.FinishedRun,
    out: Annotated[Path, typer.Argument(help="The folder to write; new, or empty.")],
    labels: Annotated[bool, typer.Option("--labels", help="Include the released labels.")] = False,
    chosen_beforehand: Annotated[
        bool,
        typer.Option(
            "--chosen-beforehand",
            help="State that a run of a sweep or comparison was chosen before any of its results "
            "was seen; the card repeats it.",
        ),
    ] = False,
    with_confusion: options.WithConfusion = False,
    column_names: Annotated[
        bool,
        typer.Option(
            "--column-names",
            help="Publish the names of a table's columns with the student, so that it takes "
            "DataFrames; otherwise it takes arrays, with the columns in their order.",
        ),
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            metavar="hf",
            help="Add a folder for the Hugging Face hub, hf: weights, configuration and a card "
            "with metadata.",
        ),
    ] = None,
    owner: Annotated[
        Path | None,
        typer.Option(
            "--owner",
            help="A TOML file with what only you can state: license, publisher, intended_use, "
            "[answers] and more. Card, page and metadata repeat it.",
        ),
    ] = None,
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
) -> None:
    """Export what may leave: the student, its guarantee, a model card, and checksums."""
    from pate._format import format_cost
    from pate.releases.files import SUMS
    from pate.releases.write import write_release

    made = write_release(
        run,
        out,
        labels=labels,
        chosen_beforehand=chosen_beforehand,
        with_confusion=with_confusion,
        column_names=column_names,
        also=also or (),
        owner=owner,
        data_root=data_root,
        plugin_path=plugin_path,
    )
    typer.echo(f"released to {out}: {format_cost(made.epsilon, made.delta)}, "
               f"for {made.protects}")  # fmt: skip
    typer.echo(f"It is the student of {made.settings}.")
    if made.header["model"]["kind"] == "code":
        typer.echo(
            "The student is not data alone: loading it runs code of its own and needs trust=True "
            f"(--trust), because {made.header['model']['why']}."
        )
    typer.echo(f"sha256 of {SUMS}, to be shared out of band: {made.digest}")
    typer.echo(f"Next: pate verify {out}")


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A release's folder.")],
    plugin_path: options.PluginPath = None,
    trust: _Trust = False,
) -> None:
    """Check a release: its files, its ε from the events in it, and that the student works.

    Whoever can change files can change their list, too: compare the digest that is printed with one
    from the owner. Without --trust nothing that the release names is run, imported or downloaded.
    Exits with 0 if everything holds, 1 if not, and 4 if no problem was found but something could
    not be checked, such as a student that needs code of its own.
    """
    from pate._format import format_cost
    from pate.releases.files import SUMS
    from pate.releases.verify import verify as verify_release

    checked = verify_release(folder, plugin_path=plugin_path, trust=trust)
    for problem in checked.problems:
        typer.echo(f"pate: {folder}: {_printable(problem)}", err=True)
    if checked.problems or checked.epsilon is None or checked.delta is None:
        raise typer.Exit(1)
    but = ", except for the parts below" if checked.notes else ""
    typer.echo(
        f"verified{but}: {folder} holds the files of its {SUMS}, and its events come to "
        f"{format_cost(checked.epsilon, checked.delta)}"
    )
    typer.echo(f"sha256 of {SUMS}, to be compared with the owner's: {checked.digest}")
    for note in checked.notes:
        typer.echo(f"Not checked: {_printable(note)}")
    if checked.notes:
        raise typer.Exit(_UNCHECKED)


def _printable(text: str) -> str:
    """Escape what could move a terminal's cursor in a stranger's text, and shorten it."""
    shown = (each if each.isprintable() else repr(each)[1:-1] for each in text)
    return "".join(shown)[:500]
