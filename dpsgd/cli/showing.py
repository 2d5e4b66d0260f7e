"""What a run has come to, for people and for machines. Only released figures."""

from __future__ import annotations

import json as encoder
from typing import TYPE_CHECKING, Any

import typer

from pate._format import describe_neighbours

if TYPE_CHECKING:
    from dpsgd.outcome import Outcome


class Epochs:
    """A table that grows by a line for each epoch."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._begun = False

    def show(self, row: dict[str, Any]) -> None:
        if self._silent:
            return
        if not self._begun:
            typer.echo(f"{'epoch':>5}  {'ε':>8}  test accuracy")
            self._begun = True
        typer.echo(f"{row['epoch']:>5}  {row['epsilon']:8.4f}  {_percent(row['accuracy']):>13}")


def show_outcome(outcome: Outcome, *, json: bool) -> None:
    """The guarantee in a sentence, the accuracy, what the data set has spent, and the files."""
    report = outcome.report
    if json:
        told = {
            **report,
            "folder": str(outcome.artifact.path),
            "files": sorted(outcome.artifact.manifest["files"]),
            "ledger": outcome.ledger,
            "new": outcome.new,
        }
        typer.echo(encoder.dumps(told, allow_nan=False))
        return
    if not outcome.new:
        typer.echo(f"nothing to do: {outcome.artifact.path} is complete")
        table = Epochs(silent=False)
        for row in report["epochs"]:
            table.show(row)
    typer.echo("")
    typer.echo(f"Test accuracy {_percent(report['accuracy'])} of {report['test_records']} records.")
    for line in _guarantee(report):
        typer.echo(line)
    if outcome.ledger is not None:
        typer.echo(f"Ledger: {outcome.ledger}.")
    files = ", ".join(sorted(outcome.artifact.manifest["files"]))
    typer.echo(f"Written to {outcome.artifact.path}: {files}")


def _guarantee(report: dict[str, Any]) -> list[str]:
    guarantee = report["guarantee"]
    parts = "PCA and training" if report["pca"] else "training"
    lines = [
        f"Guarantee: ε = {guarantee['epsilon']:.4g} at δ = {guarantee['delta']:g} for "
        f"{describe_neighbours(guarantee['neighbours'])}; it covers {parts}, all that was released "
        f"({report['accountant']} accountant; noise multiplier "
        f"{report['noise_multiplier']:.4g}, sampling rate "
        f"{report['sample_rate']:.4g}, {report['steps']} steps)."
    ]
    if "study" in report:
        lines.append(
            f"It is one run of the study “{report['study']}”: this ε holds if it was fixed before "
            "any result was seen; whoever chose it by its result has spent what all of them cost."
        )
    if guarantee["caveats"]:
        lines.append(f"NOT TO BE PUBLISHED AS PRIVATE: {'; '.join(guarantee['caveats'])}.")
    return lines


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"
