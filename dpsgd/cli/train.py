"""``dpsgd train``: a recipe from data to a released model. Prints released values only."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate._format import (
    describe_neighbours,
    format_cost,
    format_epsilon_fixed,
)
from pate.console import print_json

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
        spent = format_epsilon_fixed(row["epsilon"])
        typer.echo(f"{row['epoch']:>5}  {spent:>8}  {_percent(row['accuracy']):>13}")


def show_outcome(outcome: TrainingOutcome, *, unit: str = "record", json: bool) -> None:
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
        print_json(shown)
        return
    if not outcome.new:
        typer.echo(f"nothing to do: {outcome.artifact.path} is complete")
        table = EpochTable()
        for row in report["epochs"]:
            table.show(row)
    typer.echo("")
    typer.echo(f"Test accuracy {_percent(report['accuracy'])} of {report['test_records']} records.")
    for line in _guarantee(report, unit):
        typer.echo(line)
    if outcome.ledger is not None:
        typer.echo(f"{outcome.ledger}.{_why_more(outcome)}")
    files = ", ".join(sorted(outcome.artifact.manifest["files"]))
    typer.echo(f"Written to {outcome.artifact.path}: {files}")
    typer.echo(f"Next: pate report {shlex.quote(str(outcome.artifact.path.parents[2]))}")


def _why_more(outcome: TrainingOutcome) -> str:
    """Return why the only release of a data set costs it more than its own ε, if it does."""
    guarantee = outcome.report["guarantee"]
    if outcome.charged is None or outcome.charged <= guarantee["epsilon"] * (1 + 1e-6):
        return ""
    rule = "by privacy loss distributions, which are tighter"
    if guarantee.get("accountant", "moments") == "moments":
        rule = "at the λ that is best for it alone"
    return (
        " That is more than this model's own ε, although there is no other release: a ledger adds "
        f"up log-moments, at one λ, and the model's own ε is {rule}."
    )


def _guarantee(report: dict[str, Any], unit: str) -> list[str]:
    guarantee = report["guarantee"]
    parts = "PCA and training" if report["pca"] else "training"
    accountant = report["accountant"]
    if accountant == "tightest":
        accountant = guarantee.get("accountant", "moments")
    steps = ""
    if report["lot_size"]:  # 0: least squares
        steps = f", sampling rate {report['sample_rate']:.4g}, {report['steps']} steps"
    lines = [
        f"Guarantee: {format_cost(guarantee['epsilon'], guarantee['delta'])} for "
        f"{describe_neighbours(guarantee['neighbours'], unit)}; it covers {parts}, all that was "
        f"released ({accountant} accountant; noise multiplier "
        f"{report['noise_multiplier']:.4g}{steps})."
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


def _recipes(incomplete: str) -> list[str]:
    """Return the shipped recipes that complete a word; a shell completes names of files itself."""
    from pate.recipes.read import shipped_recipes

    return [name for name in shipped_recipes("dpsgd") if name.startswith(incomplete)]


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A shipped recipe, or the path of a .toml file.", autocompletion=_recipes
        ),
    ],
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
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would be charged, and to which ledger; stop there."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the result.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The result as JSON for machines.")] = False,
) -> None:
    """Train a recipe; a finished run is not trained again."""
    global _under_way
    from dpsgd.recipe import DpsgdRecipe
    from pate.datasets.catalogue import data_root as default_root
    from pate.datasets.roles import unprotected_people
    from pate.recipes.read import read_recipe

    changes = [*(settings or [])]
    if epsilon is not None:
        changes.append(f"privacy.epsilon={epsilon!r}")
    name, checked = read_recipe(recipe, changes, DpsgdRecipe)
    plugin_path = checked.plugins.chosen(plugin_path)
    if insecure_seed is not None:
        typer.echo("dpsgd: --insecure-seed is set: this run is NOT PRIVATE", err=True)

    from dpsgd.runs import find_outcome

    folder, root = out or Path("runs") / name, default_root(data_root, checked.data_root)
    outcome = find_outcome(checked, folder, data_root=root, insecure_seed=insecure_seed)
    if outcome is None or dry_run:
        from dpsgd import training

        options = training.TrainingOptions(
            data_root=root,
            plugin_path=plugin_path,
            insecure_seed=insecure_seed,
            spend=spend,
            report=_silent if quiet else partial(typer.echo, err=json),
            show=_silent if quiet or json else EpochTable().show,
        )
        if dry_run:
            planned = training.preview(checked, folder, options)
            print_json(planned.as_json()) if json else typer.echo(str(planned))
            return
        _under_way = True
        outcome = training.train(checked, folder, options)
        _under_way = False
    show_outcome(outcome, unit=checked.unit, json=json)
    if json:
        return
    for note in (_unfound(outcome, named=not checked.data.own), unprotected_people(checked.data)):
        if note is not None:
            typer.echo(note)
    typer.echo(_publish_line(outcome, checked.unit))


def _unfound(outcome: TrainingOutcome, *, named: bool) -> str | None:
    """Return a warning of classes without recall, unless an earlier version kept no evaluation."""
    from dpsgd.runs import EXAMPLES
    from pate.artifacts.results import Evaluation, without_recall

    if not (outcome.artifact.path / EXAMPLES).is_file():
        return None
    return without_recall("model", Evaluation.load(outcome.artifact).unseen, named=named)


def _publish_line(outcome: TrainingOutcome, unit: str) -> str:
    """Return the one line of a run to quote, as ``pate run`` ends with it."""
    guarantee, unless = outcome.report["guarantee"], ""
    if outcome.whole is not None:
        unless = (
            f"; the whole data set's {format_cost(*outcome.whole)}, if another release led to the "
            "choice of these settings"
        )
    if guarantee["caveats"]:
        return f"Publish: no ε, because {'; '.join(guarantee['caveats'])}."
    return (
        f"Publish: {format_cost(guarantee['epsilon'], guarantee['delta'])}, for "
        f"{describe_neighbours(guarantee['neighbours'], unit)}{unless}."
    )


def _silent(text: Any) -> None:
    """Print nothing."""
