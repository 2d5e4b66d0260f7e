"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ConversionName(StrEnum):
    classic = "classic"
    improved = "improved"


class AccountantName(StrEnum):
    abadi = "abadi"
    moments = "moments"
    pld = "pld"


VotesFile = Annotated[
    Path | None,
    typer.Option(
        "--votes", help="Vote file (.npy): (queries, classes) counts.", show_default=False
    ),
]
Labels = Annotated[bool, typer.Option("--labels", help="The file is (teachers, queries) labels.")]
Counts = Annotated[bool, typer.Option("--counts", help="The file is (queries, classes) counts.")]
Abstentions = Annotated[bool, typer.Option("--abstentions", help="Teachers may abstain.")]
Classes = Annotated[
    int | None,
    typer.Option("--classes", min=2, help="How many classes exist; needed with --labels where "
                 "no teacher votes for the last ones.", show_default=False),
]  # fmt: skip
Queries = Annotated[
    int | None,
    typer.Option("--queries", min=1, help="Queries asked; of a vote file, the first N.",
                 show_default=False),
]  # fmt: skip
Delta = Annotated[float, typer.Option("--delta", help="δ: well below one over the records.")]
MaxMoment = Annotated[
    int | None,
    typer.Option("--max-moment", min=1, help="Whole λ up to M only, as in the papers. Otherwise a "
                 "fine grid up to λ = 65536.", show_default=False),
]  # fmt: skip
Conversion = Annotated[
    ConversionName, typer.Option("--conversion", help="How log-moments become ε.")
]
TargetEpsilon = Annotated[
    float | None,
    typer.Option("--target-epsilon", help="Find the noise for this ε; or, where the noise is "
                 "given, how far it goes.", show_default=False),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
