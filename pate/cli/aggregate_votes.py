"""``pate aggregate-votes``: labels from votes that were counted elsewhere, released once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli import options
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from pate.votes import Votes

app = options.new_app()

Noise = Annotated[float | None, typer.Option(show_default=False)]
MechanismName = Annotated[
    str, typer.Option("--mechanism", help="gnmax, lnmax, gumbel or confident.")
]
LedgerFile = Annotated[
    Path, typer.Option("--ledger", help="The ledger of the private data; created if missing.")
]
LabelsFile = Annotated[
    Path, typer.Option("--out", help="The labels (.npy); the guarantee goes beside it (.json).")
]
Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help="Ask fewer queries where all would cost more than this."),
]
Budget = Annotated[
    float | None, typer.Option("--budget", help="The budget of a ledger that is created.")
]


@app.command("aggregate-votes")
def aggregate_votes(
    votes: Annotated[Path, typer.Argument(help="Vote file (.npy): (queries, classes) counts.")],
    mechanism: MechanismName,
    delta: options.Delta,
    ledger: LedgerFile,
    out: LabelsFile,
    sigma: Noise = None,
    scale: Noise = None,
    threshold: Noise = None,
    sigma1: Noise = None,
    sigma2: Noise = None,
    epsilon: Epsilon = None,
    queries: options.Queries = None,
    budget: Budget = None,
    labels: options.Labels = False,
    counts: options.Counts = False,
    abstentions: options.Abstentions = False,
    classes: options.Classes = None,
    spend: options.Spend = False,
    json: options.Json = False,
) -> None:
    """Release noisy labels from a file of votes: charged once, and resumed after a kill.

    The labels are drawn in private, charged to the ledger, and only then written to --out. Where a
    query has no answer its label is -1. Run the same command again to complete it.
    """
    import numpy as np
    from pydantic import ValidationError

    from pate._format import format_cost
    from pate.aggregation import aggregate_votes as aggregate
    from pate.mechanisms import AggregateSpec, voting_mechanism

    noise = {"sigma": sigma, "scale": scale, "threshold": threshold, "sigma1": sigma1,
             "sigma2": sigma2}  # fmt: skip
    given = {key: value for key, value in noise.items() if value is not None}
    try:
        spec = AggregateSpec.model_validate({"mechanism": mechanism, **given})
    except ValidationError as error:
        raise InvalidInput(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    if labels and classes is None:
        raise InvalidInput(
            "--labels needs --classes: the number of classes is public and must not be read off "
            "the votes"
        )
    cast = read_votes(votes, None, labels, counts, abstentions, classes)
    assert cast is not None
    done = aggregate(
        cast,
        voting_mechanism(spec),
        delta=delta,
        ledger=ledger,
        out=out,
        epsilon=epsilon,
        queries=queries,
        budget=budget,
        spend=spend,
        report=partial(typer.echo, err=json),
    )
    answered = int(np.count_nonzero(done.labels >= 0))
    if json:
        from pate.console import print_json

        report = {"out": str(out), "answered": answered, "asked": len(done.labels),
                  "release": done.release, "guarantee": done.guarantee.as_json()}  # fmt: skip
        print_json(report)
        return
    if not done.drawn:
        typer.echo(f"nothing to draw: {out} was paid for before")
    typer.echo(f"{out}: {answered} labels of {len(done.labels)} queries")
    typer.echo(
        f"{format_cost(done.guarantee.epsilon, done.guarantee.delta)}, for data "
        f"sets that differ in the records of one teacher ({ledger.absolute()})"
    )


# --- vote files -----------------------------------------------------------------------------------


def read_votes(
    path: Path | None,
    queries: int | None,
    labels: bool,
    counts: bool,
    abstentions: bool,
    classes: int | None,
) -> Votes | None:
    """Return the votes of a file, read as its flags ask for; None without a file."""
    if path is None:
        if labels or counts or abstentions or classes:
            raise InvalidInput("--labels, --counts, --abstentions and --classes go with --votes")
        return None
    from pate.votes import read_counts, read_labels

    if labels and counts:
        raise InvalidInput("--labels and --counts contradict each other")
    _note_private_votes(path)
    if not labels:
        if classes:
            raise InvalidInput("--classes goes with --labels; counts have a column for each class")
        cast = read_counts(path, abstentions=abstentions, certain=counts)
        if not counts and cast.queries > 1 and (cast.counts == cast.counts[0]).all():
            typer.echo(
                f"pate: all {cast.queries} rows are the same; read as counts of {cast.teachers} "
                "teachers (if they are labels of teachers that agree, add --labels)",
                err=True,
            )
        return cast.first(queries)
    cast = read_labels(path, classes=classes, abstentions=abstentions).first(queries)
    if classes is None:
        typer.echo(
            f"pate: {cast.classes} classes, taken from the largest label; if there are more, give "
            "--classes, or the data-dependent ε is too small",
            err=True,
        )
    return cast


def _note_private_votes(path: Path) -> None:
    """Warn where a vote file lies in a run's private folder, and record the look there."""
    import contextlib
    import json
    from datetime import UTC, datetime

    from pate.stages.caveats import LOOKS

    folders = (each for each in path.absolute().parents if each.name == "private")
    private = next((each for each in folders if (each.parent / "recipe.json").is_file()), None)
    if private is None:
        return
    typer.echo(
        f"pate: {path} holds private votes; settings chosen by what follows are tuned on private "
        "data, and no ε accounts for that: `pate plan` chooses without them",
        err=True,
    )
    with contextlib.suppress(OSError):  # a copy one may only read
        line = json.dumps({"when": datetime.now(UTC).isoformat(timespec="seconds")})
        with (private / LOOKS).open("a") as file:
            file.write(line + "\n")
