"""The command line of ``dpsgd``."""

from __future__ import annotations

import json as encoder
import sys
from enum import StrEnum
from typing import Annotated

import typer

from pate.errors import PateError


class AccountantName(StrEnum):
    abadi = "abadi"
    moments = "moments"
    pld = "pld"


app = typer.Typer(
    name="dpsgd",
    help="DP-SGD that is exact.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, without the time that loading rich takes
)


@app.callback()
def _root() -> None:
    pass


@app.command()
def epsilon(
    sample_rate: Annotated[float, typer.Option(help="q: chance of a record to be in a lot.")],
    noise_multiplier: Annotated[float, typer.Option(help="σ over the clipping norm.")],
    steps: Annotated[int, typer.Option(min=1, help="Lots.")],
    delta: Annotated[float, typer.Option(help="δ: well below one over the records.")],
    accountant: Annotated[AccountantName, typer.Option()] = AccountantName.moments,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """ε of a training run."""
    from pate.accounting import Repeated, SampledGaussian
    from pate.accounting.dpsgd import DpsgdAccountant, Method

    step = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
    method = DpsgdAccountant(delta=delta, method=Method(accountant.value))
    guarantee = method.guarantee([Repeated(step, steps)])
    if json:
        typer.echo(encoder.dumps(guarantee.as_json()))
    else:
        typer.echo(
            f"ε = {guarantee.epsilon:.6g} at δ = {delta:g}, for records added or removed "
            f"({accountant} accountant)"
        )


def main() -> None:
    """Runs a command; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except PateError as error:
        print(f"dpsgd: {error}", file=sys.stderr)
        sys.exit(2)
