"""``pate run``, its stages one at a time, ``status``, ``recipes`` and ``new``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli import options
from pate.console import wide_console

if TYPE_CHECKING:
    from pate.artifacts.results import Costs, StatedGuarantee
    from pate.metrics import Share
    from pate.pipeline.runner import PipelineRun

app = options.new_app()


def _command(until: str | None) -> Any:
    """Return the command that runs a recipe up to a stage, or to the end and prints a summary."""

    def command(
        recipe: options.RecipeName,
        settings: options.Settings = None,
        out: options.Out = None,
        data_root: options.DataRoot = None,
        engine: options.EngineName = "processes",
        plugin_path: options.PluginPath = None,
        insecure_seed: options.InsecureSeed = None,
        spend: options.Spend = False,
        dry_run: options.DryRun = False,
        quiet: options.Quiet = False,
        json_logs: options.JsonLogs = False,
    ) -> None:
        from pate.api import planned_charge, prepare_run

        given = options.make_options(
            data_root=data_root,
            engine=engine,
            plugin_path=plugin_path,
            insecure_seed=insecure_seed,
            spend=spend,
            quiet=quiet,
            json_logs=json_logs,
        )
        made = prepare_run(recipe, set=settings, out=out, options=given)
        if dry_run:
            typer.echo(planned_charge(made))
            return
        ran = made.execute(until=until)
        if until is not None:
            return
        if not ran:
            typer.echo(f"nothing to do: {made.folder} is complete")
        show_summary(made)

    return command


app.command("run", help="Run a recipe from data to student; stages that are done are skipped.")(
    _command(until=None)
)
for _stage in options.STAGES:
    app.command(_stage, help=f"Run the recipe up to {_stage}.")(_command(until=_stage))


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
    insecure_seed: options.InsecureSeed = None,
) -> None:
    """Print each stage (done, stale and why, or missing) and the budget, spent and left."""
    from rich.table import Table

    from pate.accounting import Ledger
    from pate.accounting.ledger.data_ledger import budget_line
    from pate.pipeline.ledger import ledger_path
    from pate.stages.catalogue import open_run

    run = open_run(
        folder, data_root=data_root, plugin_path=plugin_path, insecure_seed=insecure_seed
    )
    console = wide_console()
    console.print(f"{folder}: {run.recipe.asked}", soft_wrap=True)
    table = Table(show_header=False)
    for state in run.states():
        table.add_row(state.stage, state.why)
    console.print(table)
    place = ledger_path(run.recipe, run.options.data_root, seeded=insecure_seed is not None)
    if not place.exists():
        console.print(f"no ledger yet for {run.recipe.data.name}")
        return
    with Ledger.open(place) as ledger:
        console.print(budget_line(ledger), soft_wrap=True)


@app.command()
def recipes() -> None:
    """List the recipes that come with the package."""
    from pate.recipes.read import shipped_recipes, summary

    own = shipped_recipes("pate") | shipped_recipes("compare")
    for name, path in sorted(own.items()):
        typer.echo(f"{name:14} {summary(path)}")


@app.command()
def new(path: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write a recipe to start from."""
    from pate.errors import InvalidInput
    from pate.recipes.read import find_recipe

    if path.exists():
        raise InvalidInput(f"{path} exists; choose another name")
    try:
        text = find_recipe("digits").read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
    typer.echo(f"wrote {path}; next: pate run {path}")


# --- the summary ----------------------------------------------------------------------------------


def show_summary(run: PipelineRun) -> None:
    """Print the table at the end of a run: RELEASED values, and some marked "do not publish"."""
    from rich.table import Table

    from pate.accounting.ledger.data_ledger import budget_line
    from pate.artifacts.results import Costs, Evaluation, Labels, PrivateCosts, load_reference
    from pate.pipeline.ledger import open_ledger
    from pate.stages.caveats import sanitised_caveat, tuning_caveats

    released, costs = Labels.load(run.artifact("aggregate")), Costs.load(run.artifact("account"))
    private = PrivateCosts.load(run.artifact("account-private"))
    evaluation = Evaluation.load(run.artifact("evaluate"))
    conversion = str(costs.guarantee.conversion)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("teachers", str(run.recipe.teachers.count), costs.protects)
    planned = f"planned: at most {released.plan.answers} of {released.plan.queries}"
    kept = f"; {len(released.kept)} kept by the student" if len(released.kept) else ""
    answered = f"{len(released.answered)} of {len(released.asked)}"
    table.add_row("queries answered", answered, f"{planned}{kept}")
    if evaluation.labels is not None:
        table.add_row("labels that are right", *_share(evaluation.labels))
    priced = costs.sanitised is not None and costs.sanitised.price
    what = "labels and sanitised ε" if priced else "labels"
    if run.recipe.selection is not None:
        what = f"labels, and choosing among {len(run.recipe.selection.candidates)} candidates"
    meaning = f"δ = {costs.guarantee.delta:g}: the guarantee ({what})"
    table.add_row("ε, data-independent", _number(costs.guarantee), meaning)
    happened = costs.odometer[conversion]
    if happened.epsilon != costs.plan[conversion].epsilon:
        table.add_row("ε, of what was answered", _number(happened), "a reading: not the guarantee")
    table.add_row("ε, sanitised", *_sanitised(costs))
    if private.why_not is not None:
        table.add_row("ε, data-dependent", "none", "as the settings were chosen privately")
    else:
        dependent = _number(private.guarantees[conversion])
        table.add_row("ε, data-dependent", dependent, "private: do not publish")
    table.add_row("student's accuracy", *_share(evaluation.student))
    if run.recipe.evaluate.reference:
        reference = load_reference(run.artifact("evaluate-reference"))
        table.add_row("the same without privacy", _share(reference)[0], "private: do not publish")
    console = wide_console()
    console.print(f"{run.folder}:", soft_wrap=True)
    console.print(table)
    if released.seeded:
        console.print("The noise was seeded: this run is NOT PRIVATE.")
    if _pays_off(costs):
        console.print(sanitised_caveat(run.recipe.aggregate), soft_wrap=True)
    with open_ledger(run.recipe, run.options) as ledger:
        console.print(budget_line(ledger), soft_wrap=True)
        for sentence in tuning_caveats(run, ledger):
            console.print(f"Note: {sentence}", soft_wrap=True)
    console.print(f"Student: {run.artifact('distill').path}", soft_wrap=True)
    again = shlex.join([str(run.folder), *options.repeated(run.options)])
    console.print(f"Next: pate status {again}", soft_wrap=True)


def _share(share: Share) -> tuple[str, str]:
    interval = f"95 %: {100 * share.low:.1f} … {100 * share.high:.1f} %"
    return f"{100 * share.accuracy:.1f} %", f"of {share.records}; {interval}"


def _number(guarantee: StatedGuarantee) -> str:
    from pate._format import format_epsilon

    return format_epsilon(guarantee.epsilon)


def _sanitised(costs: Costs) -> tuple[str, str]:
    sanitised = costs.sanitised
    if sanitised is None:
        return "none", costs.why_not or "not asked for"
    if not _pays_off(costs):
        return _number(sanitised), "not below the guarantee: quote that"
    return _number(sanitised), (
        f"covers the labels and itself, at this data; {100 * sanitised.confidence:g} % sure; may "
        "be published"
    )


def _pays_off(costs: Costs) -> bool:
    """Return whether there is a sanitised ε below the guarantee."""
    return costs.sanitised is not None and costs.sanitised.epsilon < costs.guarantee.epsilon
