"""``pate forget``: records leave a run, and all that was made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pate.cli import options

app = options.new_app()

Ids = Annotated[
    Path | None,
    typer.Option(
        "--ids",
        help="Ids of records, or of groups where those are protected: a text file, one in a line.",
    ),
]
Queue = Annotated[bool, typer.Option("--queue", help="Only note the ids, for the next forgetting.")]
Spend = Annotated[
    bool,
    typer.Option("--spend", help="Then draw new labels, charge them, and train a new student."),
]
SignedBy = Annotated[str | None, typer.Option("--signed-by", help="A name for the certificate.")]


@app.command()
def forget(
    folder: options.RunFolder,
    ids: Ids = None,
    queue: Queue = False,
    spend: Spend = False,
    signed_by: SignedBy = None,
    data_root: options.DataRoot = None,
    engine: options.EngineName = "serial",
    plugin_path: options.PluginPath = None,
    insecure_seed: options.InsecureSeed = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Forget records: train the shards that held them again, and remove the rest of them.

    Without --ids, what is queued or was interrupted is carried out. Files of your own are never
    touched. What was released stays released, and paid; RUN/private/certificates has the
    certificate.
    """
    from pate.api import forget as forget_ids
    from pate.console import print_json
    from pate.forgetting import read_ids

    made = forget_ids(
        folder,
        () if ids is None else read_ids(ids),
        queue=queue,
        spend=spend,
        signed_by=signed_by,
        data_root=data_root,
        engine=engine,
        plugin_path=plugin_path,
        insecure_seed=insecure_seed,
        verbose=not quiet and not json,
    )
    if json:
        print_json(made.as_json())
        return
    for line in made.lines():
        typer.echo(line)
