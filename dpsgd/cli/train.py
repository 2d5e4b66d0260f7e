"""``dpsgd train``: a recipe from data to a released model. Prints released values only."""

from __future__ import annotations

import json as encoder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate._format import describe_neighbours, format_epsilon, format_epsilon_fixed

if TYPE_CHECKING:
    from dpsgd.runs import TrainingOutcome


class EpochTable:
    """A table with one line for each epoch."""

    def __init__(self) -> None:
        self._begun = False

    def show(self, row: dict[str, Any]) -> None:
        if not self._begun:
            typer.echo(f"{'epoch':>5}  {'ε':>8}  test accuracy")
            self._begun = True
        spent = format_epsilon_fixed(row["epsilon"], places=4)
        typer.echo(f"{row['epoch']:>5}  {spent:>8}  {_percent(row['accuracy']):>13}")


def show_outcome(outcome: TrainingOutcome, *, json: bool) -> None:
    """Print the guarantee, the accuracy, the data set's total cost, and the files."""
    report = outcome.report
    if json:
        shown = {
            **report,
            "folder": str(outcome.artifact.path),
            "files": sorted(outcome.artifact.manifest["files"]),
            "ledger": outcome.ledger,
            "new": outcome.new,
        }
        typer.echo(encoder.dumps(shown, allow_nan=False))
        return
    if not outcome.new:
        typer.echo(f"nothing to do: {outcome.artifact.path} is complete")
        table = EpochTable()
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
        f"Guarantee: ε = {format_epsilon(guarantee['epsilon'])} at δ = {guarantee['delta']:g} for "
        f"{describe_neighbours(guarantee['neighbours'])}; it covers {parts}, all that was released "
        f"({report['accountant']} accountant; noise multiplier "
        f"{report['noise_multiplier']:.4g}, sampling rate "
        f"{report['sample_rate']:.4g}, {report['steps']} steps)."
    ]
    if "study" in report:
        lines.append(
            f"It is one run of the study “{report['study']}”: this ε holds if it was fixed before "
            "any result was seen; if it was chosen by its result, all runs of the study count."
        )
    if guarantee["caveats"]:
        lines.append(f"NOT TO BE PUBLISHED AS PRIVATE: {'; '.join(guarantee['caveats'])}.")
    return lines


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


_under_way = False  # a training run, for the hint after Ctrl-C


def how_to_resume() -> str:
    """Return the hint that follows Ctrl-C if a training run was interrupted."""
    return "; run the same command again to resume" if _under_way else ""


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe, or the path of a .toml file.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key: section.key=value.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; default runs/NAME.")
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Where data sets live.")
    ] = None,
    plugin_path: Annotated[
        Path | None, typer.Option("--plugin-path", help="A folder with your own models.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="The same as --set privacy.epsilon=E.")
    ] = None,
    insecure_seed: Annotated[
        int | None, typer.Option("--insecure-seed", help="Seeded noise, for tests: NOT PRIVATE.")
    ] = None,
    spend: Annotated[
        bool,
        typer.Option(
            "--spend", help="Pay again: for other settings here, or the same ones elsewhere."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The result as JSON for machines.")] = False,
) -> None:
    """Train a recipe; a finished run is not trained again."""
    global _under_way
    from dpsgd.recipe import DpsgdRecipe
    from pate.datasets.catalogue import data_root as default_root
    from pate.errors import InvalidInput
    from pate.recipes.read import read_recipe

    changes = [*(settings or [])]
    if epsilon is not None:
        changes.append(f"privacy.epsilon={epsilon!r}")
    name, checked = read_recipe(recipe, changes, DpsgdRecipe)
    if plugin_path is not None and not plugin_path.exists():
        raise InvalidInput(f"there is nothing at --plugin-path {plugin_path}")
    if insecure_seed is not None:
        typer.echo("dpsgd: --insecure-seed is set: this run is NOT PRIVATE", err=True)

    from dpsgd.runs import find_outcome

    folder, root = out or Path("runs") / name, default_root(data_root, checked.data_root)
    outcome = find_outcome(checked, folder, data_root=root, insecure_seed=insecure_seed)
    if outcome is None:
        from dpsgd import training

        options = training.TrainingOptions(
            data_root=root,
            plugin_path=None if plugin_path is None else plugin_path.absolute(),
            insecure_seed=insecure_seed,
            spend=spend,
            report=_silent if quiet or json else typer.echo,
            show=_silent if quiet or json else EpochTable().show,
        )
        _under_way = True
        outcome = training.train(checked, folder, options)
        _under_way = False
    show_outcome(outcome, json=json)


def _silent(text: Any) -> None:
    """Print nothing."""
