"""``pate run``, its stages one at a time, ``status``, ``recipes``, ``schema`` and ``new``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli import options
from pate.console import print_json, wide_console

if TYPE_CHECKING:
    from pate.accounting.ledger.data_set import DataSetTotal
    from pate.artifacts.results import Costs
    from pate.metrics import Share
    from pate.pipeline.runner import PipelineRun

app = options.new_app()


class StartName(StrEnum):
    tabular = "tabular"
    images = "images"
    records = "records"
    compare = "compare"
    own_votes = "own-votes"


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
        details: options.Details = False,
        quiet: options.Quiet = False,
        verbose: options.Verbose = False,
        json_logs: options.JsonLogs = False,
        json: options.Json = False,
    ) -> None:
        from pate.api import Run, prepare_run
        from pate.cli.stage_table import shown_stages

        given = options.make_options(
            data_root=data_root,
            engine=engine,
            plugin_path=plugin_path,
            insecure_seed=insecure_seed,
            spend=spend,
            quiet=quiet,
            json_logs=json_logs,
            json=json,
        )
        made = prepare_run(recipe, set=settings, out=out, options=given)
        if dry_run:
            from pate.stages.preview import preview

            planned = preview(made, until=until)
            print_json(planned.as_json()) if json else typer.echo(str(planned))
            return
        live = not (quiet or json or json_logs)
        with shown_stages(made, until=until, live=live, verbose=verbose) as (shown, seconds):
            ran = shown.execute(until=until)
        if json:
            results = {"folder": made.folder} if until is not None else Run(made).as_json()
            print_json({**results, "ran": ran})
            return
        if until is not None:
            return
        if not ran:
            again = ", so nothing was charged; to draw labels anew, add another --out to --spend"
            typer.echo(f"nothing to do: {made.folder} is complete{again if spend else ''}")
        show_summary(made, details=details, seconds=seconds)

    return command


app.command("run", help="Run a recipe from data to student; stages that are done are skipped.")(
    _command(until=None)
)
for _stage in options.STAGES:
    app.command(_stage, help=f"Run the recipe up to {_stage}.")(_command(until=_stage))


@app.command()
def status(
    folder: options.RunFolder,
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
    insecure_seed: options.InsecureSeed = None,
    json: options.Json = False,
) -> None:
    """Print each stage (done, stale and why, or missing) and the budget, spent and left."""
    from rich.table import Table

    from pate.accounting import Ledger
    from pate.accounting.ledger.data_ledger import ledger_report, total_line
    from pate.dpsgd_runs import is_dpsgd_run
    from pate.pipeline.ledger import ledger_path
    from pate.stages.catalogue import open_run

    if is_dpsgd_run(folder):
        _show_trained(folder, data_root, plugin_path, json=json)
        return
    run = open_run(
        folder, data_root=data_root, plugin_path=plugin_path, insecure_seed=insecure_seed
    )
    place = ledger_path(run.recipe, run.options.data_root, seeded=insecure_seed is not None)
    if json:
        report: dict[str, Any] = {"folder": folder, "data": run.recipe.data.name}
        report["asked"], report["ledger"] = run.recipe.asked, None
        report["stages"] = [
            {"stage": each.stage, "done": each.done, "why": each.why} for each in run.states()
        ]
        if place.exists():
            with Ledger.open(place) as ledger:
                report["ledger"] = ledger_report(ledger)
        print_json(report)
        return
    console = wide_console()
    console.print(f"{folder}: {run.recipe.asked}", soft_wrap=True)
    table = Table(show_header=False)
    for state in run.states():
        table.add_row(state.stage, state.why)
    console.print(table)
    if not place.exists():
        console.print(f"no ledger yet for {run.recipe.data.name}")
        return
    with Ledger.open(place) as ledger:
        console.print(
            total_line(ledger, run.recipe.record_unit, user=run.recipe.unit), soft_wrap=True
        )


def _show_trained(
    folder: Path, data_root: Path | None, plugin_path: Path | None, *, json: bool
) -> None:
    """Print the state of a run of ``dpsgd train``."""
    from rich.table import Table

    from pate._format import format_cost, in_units
    from pate.accounting import Ledger
    from pate.accounting.ledger.data_ledger import ledger_report, total_line
    from pate.dpsgd_runs import is_finished, open_training

    console = wide_console()
    if not is_finished(folder):
        if json:
            print_json({"folder": folder, "done": False})
            return
        console.print(f"{folder}: DP-SGD, begun; run `dpsgd train` again to resume", soft_wrap=True)
        return
    run = open_training(folder, data_root=data_root, plugin_path=plugin_path)
    guarantee = run.guarantee
    if json:
        with Ledger.open(run.ledger_path) as ledger:
            report: dict[str, Any] = {"ledger": ledger_report(ledger)}
        report |= {"folder": folder, "data": run.recipe.data.name, "asked": run.asked, "done": True}
        report["guarantee"] = guarantee.as_json() | {"notes": list(guarantee.notes)}
        print_json(report)
        return
    console.print(f"{folder}: {run.asked}", soft_wrap=True)
    table = Table(show_header=False)
    steps = "least squares" if run.plan.one_sum else f"{run.plan.steps} steps"
    table.add_row("training", "done", steps)
    cost = format_cost(guarantee.epsilon, guarantee.delta)
    table.add_row("guarantee", cost, f"for {in_units(run.protects, run.recipe.unit)}")
    table.add_row("accuracy", *_share(run.evaluation.student))
    console.print(table)
    if not run.is_private:
        console.print(f"This run is NOT PRIVATE: {run.why_not_private}.", soft_wrap=True)
    with Ledger.open(run.ledger_path) as ledger:
        line = total_line(ledger, run.recipe.record_unit, user=run.recipe.unit)
        console.print(line, soft_wrap=True)
    for sentence in guarantee.notes:
        console.print(f"Note: {sentence}", soft_wrap=True)


@app.command()
def recipes() -> None:
    """List the recipes that come with the package."""
    from pate.recipes.read import shipped_recipes, summary

    own = shipped_recipes("pate") | shipped_recipes("compare")
    width = max(map(len, own))
    for name, path in sorted(own.items()):
        typer.echo(f"{name:{width}} {summary(path)}")


@app.command()
def schema(
    kind: Annotated[
        str, typer.Argument(help="pate, compare, dpsgd, federation or party: the kind of recipe.")
    ] = "pate",
) -> None:
    """Print the JSON schema of recipes, with a description of every key: for editors."""
    import json

    from pate.errors import InvalidInput
    from pate.recipes.read import COMMANDS
    from pate.recipes.schema import json_schema

    if kind not in COMMANDS:
        raise InvalidInput(f"{kind!r} is no kind of recipe; the kinds are {', '.join(COMMANDS)}")
    typer.echo(json.dumps(json_schema(kind), indent=2, ensure_ascii=False))


@app.command()
def new(
    path: Annotated[
        Path | None,
        typer.Argument(help="The file to write; of your own data, by default NAME.toml here."),
    ] = None,
    start: Annotated[
        StartName | None,
        typer.Option(
            "--from",
            help="A kind of recipe, every key explained: teachers on a table or on images, record "
            "votes, a comparison with DP-SGD, or a script for votes of your own teachers.",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Your own table: a .csv or .tsv file.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option("--images", help="Your own images: a sub-folder for each class.")
    ] = None,
    npz: Annotated[
        Path | None, typer.Option("--npz", help="Your own arrays: a .npz file with X and y.")
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="The column (or array) of the classes.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="The column that names the person of a record.")
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="The column that identifies a record.")
    ] = None,
    public: Annotated[
        Path | None, typer.Option("--public", help="Public inputs in a file of their own.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option("--test", help="Test records in a file of their own.")
    ] = None,
) -> None:
    """Write a recipe to start from: one for your own data, which runs as it is, or a shipped one.

    Of your own data only column names, class names and counts are read; no value is printed. With
    --from and no data, the recipe has names of files, columns and classes to replace. The JSON
    schema is written beside it, and its first line refers editors to that.
    """
    from pate.errors import InvalidInput

    own_votes = start is StartName.own_votes
    given = [each for each in (csv, images, npz) if each is not None]
    if path is None:
        if not given:
            raise InvalidInput("name the file to write: pate new my.toml")
        path = Path(f"{given[0].resolve().stem}.toml")
    if not path.suffix:
        path = path.with_suffix(".sh" if own_votes else ".toml")
    if len(given) > 1:
        raise InvalidInput("--csv, --images and --npz exclude one another; give one of them")
    wrong = {StartName.tabular: images, StartName.images: csv or npz, StartName.own_votes: given}
    if start is not None and wrong.get(start):
        raise InvalidInput(f"--from {start} does not go with the data given; omit one of them")
    from pate.planner import new_recipe

    notes: list[str] = []
    kind = start or (StartName.tabular if images is None else StartName.images)
    if given:
        if npz is not None and npz.suffix.lower() != ".npz":
            raise InvalidInput(f"{npz} is not a .npz file; save the arrays with numpy.savez")
        if csv is not None and label is None:
            raise InvalidInput("--csv needs --label, the column of the classes")
        if images is not None and (label or group or id_):
            raise InvalidInput("--label, --group and --id name columns; images have none")
        if (images is not None) != given[0].is_dir() and given[0].exists():
            raise InvalidInput(
                f"{given[0]} is {'no' if images else 'a'} folder; --images takes one"
            )
        files = new_recipe.OwnFiles(
            private=given[0], public=public, test=test, label=label, group=group, id=id_
        )
        notes = new_recipe.write_recipe(path, files, start=kind.value)
    elif any((label, group, id_, public, test)):
        raise InvalidInput("--label, --group, --id, --public and --test go with --csv, --npz "
                           "or --images")  # fmt: skip
    elif own_votes:
        notes = new_recipe.write_votes_script(path)
    elif start is not None:
        notes = new_recipe.write_recipe(path, None, start=kind.value)
    else:
        from pate.recipes.schema import copy_recipe

        copy_recipe(path, "digits")
    for note in notes:
        typer.echo(note)
    command = "sh" if own_votes else f"pate {'compare' if start is StartName.compare else 'run'}"
    typer.echo(f"wrote {path}; next: {command} {shlex.quote(str(path))}")


# --- the summary ----------------------------------------------------------------------------------


def show_summary(
    run: PipelineRun, *, details: bool = False, seconds: Mapping[str, float] | None = None
) -> None:
    """Print the summary of a run; its last line is the one to quote.

    With ``details`` every other ε is in it, some of them marked as not to be published.
    ``seconds`` are those of the stages that ran.
    """
    from rich.table import Table

    from pate._format import in_units
    from pate.accounting.ledger.data_ledger import total_line
    from pate.artifacts.results import (
        Costs,
        Evaluation,
        Labels,
        load_reference,
        without_recall,
    )
    from pate.cli.stage_table import duration
    from pate.pipeline.ledger import open_ledger
    from pate.stages.caveats import publish_line, tuning_caveats

    released, costs = Labels.load(run.artifact("aggregate")), Costs.load(run.artifact("account"))
    evaluation = Evaluation.load(run.artifact("evaluate"))
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    protects = in_units(costs.protects, run.recipe.unit)
    if released.table is not None:
        rows, classes = released.table.counts.shape
        along = run.recipe.votes.components is not None
        what, how = ("sums", "least squares") if along else ("counts", "smoothing")
        table.add_row(f"noised {what}", f"{rows} × {classes}", protects)
        table.add_row("labels", str(len(released.answered)), f"of all public inputs, by {how}")
    else:
        table.add_row("teachers", str(run.recipe.teachers.count), protects)
        planned = f"planned: at most {released.plan.answers} of {released.plan.queries}"
        kept = f"; {len(released.kept)} kept by the student" if len(released.kept) else ""
        answered = f"{len(released.answered)} of {len(released.asked)}"
        table.add_row("queries answered", answered, f"{planned}{kept}")
    if evaluation.labels is not None:
        table.add_row("labels that are right", *_share(evaluation.labels))
    table.add_row("student's accuracy", *_share(evaluation.student))
    if run.recipe.evaluate.reference and run.find("evaluate-reference"):
        reference = load_reference(run.artifact("evaluate-reference"))
        table.add_row("the same without privacy", _share(reference)[0], "private: do not publish")
    console = wide_console()
    console.print(f"{run.folder}:", soft_wrap=True)
    console.print(table)
    unfound = without_recall("student", evaluation.unseen, named=not run.recipe.data.own)
    if unfound is not None:
        console.print(f"Note: {unfound}", soft_wrap=True)
    with open_ledger(run.recipe, run.options) as ledger:
        if details:
            _show_epsilons(run, costs, ledger.data_set_total())
        for sentence in tuning_caveats(run, ledger):
            console.print(f"Note: {sentence}", soft_wrap=True)
        console.print(
            total_line(ledger, run.recipe.record_unit, user=run.recipe.unit), soft_wrap=True
        )
        publish = publish_line(run, ledger)
    if seconds:
        parts = ", ".join(f"{stage} {duration(each)}" for stage, each in seconds.items())
        console.print(f"Time: {duration(sum(seconds.values()))} ({parts})", soft_wrap=True)
    console.print(f"Student: {run.artifact('distill').path}", soft_wrap=True)
    again = shlex.join([str(run.folder), *options.seed_words(run.options)])
    console.print(f"Next: pate status {again}", soft_wrap=True)
    console.print(publish, soft_wrap=True)


def _show_epsilons(run: PipelineRun, costs: Costs, total: DataSetTotal) -> None:
    """Print every ε of a run with a sentence on when it matters."""
    from rich.table import Table

    from pate._format import format_delta, format_epsilon
    from pate.artifacts.results import PrivateCosts
    from pate.report.epsilons import every_epsilon

    private = PrivateCosts.load(run.artifact("account-private"))
    table = Table("ε", "", "when it matters", title_justify="left")
    table.title = f"Every ε at δ = {format_delta(costs.guarantee.delta)}"
    table.columns[1].justify = "right"
    for each in every_epsilon(costs, private, run.recipe, total=total):
        value = "–" if each.epsilon is None else format_epsilon(each.epsilon)
        table.add_row(each.name, value, each.when)
    wide_console().print(table)


def _share(share: Share) -> tuple[str, str]:
    interval = f"95 %: {100 * share.low:.1f} … {100 * share.high:.1f} %"
    return f"{100 * share.accuracy:.1f} %", f"of {share.records}; {interval}"
