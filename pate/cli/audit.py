"""``pate audit``: attacks on a finished run, and a page of how far they get. PRIVATE."""

from __future__ import annotations

from contextlib import nullcontext
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options

app = options.new_app()

Folder = Annotated[
    Path,
    typer.Argument(
        help="A finished run of pate run, dpsgd train or pate compare.",
        autocompletion=options.runs,
    ),
]
Attacks = Annotated[
    str | None,
    typer.Option("--attacks", help="Some of leave-one-out,membership,canaries; default all."),
]
Records = Annotated[
    int | None,
    typer.Option("--records", min=1, help="Leave out so many records, sampled by class."),
]
Canaries = Annotated[int | None, typer.Option("--canaries", min=1, help="The number of canaries.")]
Shadows = Annotated[
    int | None,
    typer.Option(
        "--shadows", min=0, help="Shadow models for each target; default 16 if two minutes do."
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seeds samples and shadow models.")]


@app.command()
def audit(
    folder: Folder,
    attacks: Attacks = None,
    records: Records = None,
    canaries: Canaries = None,
    shadows: Shadows = None,
    seed: Seed = 0,
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
    insecure_seed: options.InsecureSeed = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Attack what a run released, and compare with its guarantee. Results are PRIVATE.

    Writes RUN/private/audit.json, audit.html and plots, and what it resumes from in private/audit;
    no budget is spent. Ends with exit code 1 if an attack shows more than is claimed, or seems to:
    if it tells private from test records better than the guarantee allows.
    """
    from pate.api import Run, open_run
    from pate.api import audit as attack
    from pate.audits.results import lines
    from pate.audits.run import require_run

    require_run(folder)
    run = open_run(
        folder, data_root=data_root, plugin_path=plugin_path, insecure_seed=insecure_seed
    )
    with run.pipeline.kept() if isinstance(run, Run) else nullcontext():
        found = attack(
            run,
            attacks=None if attacks is None else [each.strip() for each in attacks.split(",")],
            records=records,
            canaries=canaries,
            shadows=shadows,
            seed=seed,
            verbose=not quiet,
        )
        files = found.write(folder / "private")  # before a forgetting may begin
    if json:
        shown = found.as_json() | {"files": [str(each) for each in files]}
        typer.echo(dumps(shown, ensure_ascii=False))  # lower bounds: no ε is rounded up
    else:
        for line in lines(found):
            typer.echo(line)
        page = next(each for each in files if each.suffix == ".html")
        typer.echo(f"wrote {page} and {len(files) - 1} files beside it (PRIVATE: do not publish)")
    if found.contradicted or found.leaks:
        raise typer.Exit(1)
