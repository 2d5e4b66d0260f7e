"""The summary of a run, and its status."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.table import Table

from pate._format import format_epsilon
from pate.accounting import Ledger
from pate.accounting.ledger.data_ledger import budget_line
from pate.artifacts.results import (
    Costs,
    Evaluation,
    Labels,
    PrivateCosts,
    StatedGuarantee,
    load_reference,
)
from pate.cli.tables import wide_console
from pate.datasets.catalogue import data_root as default_root
from pate.metrics import Share
from pate.pipeline.ledger import ledger_path, open_ledger
from pate.pipeline.runner import PipelineRun
from pate.report.caveats import sanitised_caveat, tuning_caveats
from pate.stages.catalogue import open_run


def show_summary(run: PipelineRun) -> None:
    """Print the table at the end of a run: RELEASED values, and some marked "do not publish"."""
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
    delta = costs.guarantee.delta
    priced = costs.sanitised is not None and costs.sanitised.price
    what = "labels and sanitised figure" if priced else "labels"
    if run.recipe.selection is not None:
        what = f"labels, and choosing among {len(run.recipe.selection.candidates)} candidates"
    table.add_row(
        "ε, data-independent", _number(costs.guarantee), f"δ = {delta:g}: the guarantee ({what})"
    )
    happened = costs.odometer[conversion]
    if happened.epsilon != costs.plan[conversion].epsilon:
        table.add_row("ε, of what was answered", _number(happened), "a reading: not the guarantee")
    table.add_row("ε, sanitised", *_sanitised(costs))
    if private.why_not is not None:
        table.add_row("ε, data-dependent", "none", "as the settings were chosen privately")
    else:
        table.add_row(
            "ε, data-dependent", _number(private.guarantees[conversion]), "private: do not publish"
        )
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
    console.print(f"Next: pate status {_shell(run)}", soft_wrap=True)


def _shell(run: PipelineRun) -> str:
    """Return the run's folder and the options without which its fingerprints would differ."""
    words = [str(run.folder)]
    if run.options.plugin_path is not None:
        words += ["--plugin-path", str(run.options.plugin_path)]
    if run.options.insecure_seed is not None:
        words += ["--insecure-seed", str(run.options.insecure_seed)]
    if run.options.data_root != default_root(None):
        words += ["--data-root", str(run.options.data_root)]
    return shlex.join(words)


def _share(share: Share) -> tuple[str, str]:
    interval = f"95 %: {100 * share.low:.1f} … {100 * share.high:.1f} %"
    return f"{100 * share.accuracy:.1f} %", f"of {share.records}; {interval}"


def _number(guarantee: StatedGuarantee) -> str:
    return format_epsilon(guarantee.epsilon)


def _sanitised(costs: Costs) -> tuple[str, str]:
    figure = costs.sanitised
    if figure is None:
        return "none", costs.why_not or "not asked for"
    if not _pays_off(costs):
        return _number(figure), "not below the guarantee: quote that"
    return _number(figure), (
        f"covers the labels and itself, at this data; {100 * figure.confidence:g} % sure; may "
        "be published"
    )


def _pays_off(costs: Costs) -> bool:
    """Return whether there is a sanitised ε below the guarantee."""
    return costs.sanitised is not None and costs.sanitised.epsilon < costs.guarantee.epsilon


def show_status(
    folder: Path, data_root: Path | None, plugin_path: Path | None, insecure_seed: int | None
) -> None:
    """Print the stages of a run, and the ledger of its data."""
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
