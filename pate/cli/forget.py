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
Unqueue = Annotated[
    bool, typer.Option("--unqueue", help="Only take the ids out of the queue; without --ids, all.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Only check that certificates are as they were written.")
]
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
    unqueue: Unqueue = False,
    check: Check = False,
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
    from pate.errors import InvalidInput
    from pate.forgetting import read_ids
    from pate.forgetting.certificate import check_certificates
    from pate.stages.catalogue import open_run

    if queue + unqueue + check > 1 or (check and ids is not None):
        raise InvalidInput("give one of --queue, --unqueue and --check; the last without --ids")
    if check:
        run = open_run(
            folder, data_root=data_root, plugin_path=plugin_path, insecure_seed=insecure_seed
        )
        files = [str(file) for file in check_certificates(run)]
        if json:
            print_json({"format": 1, "certificates": files})
        else:
            typer.echo("\n".join([*files, f"as they were written: {len(files)}"]))
        return
    made = forget_ids(
        folder,
        () if ids is None else read_ids(ids),
        queue=queue,
        unqueue=unqueue,
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
