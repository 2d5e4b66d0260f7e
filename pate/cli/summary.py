"""The summary of a run, and its status."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.table import Table

from pate._format import format_epsilon
from pate.accounting import Ledger
from pate.accounting.ledger.data_ledger import budget_line
from pate.cli.tables import wide_console
from pate.datasets.catalogue import data_root as default_root
from pate.pipeline.ledger import ledger_path, open_ledger
from pate.pipeline.runner import Run
from pate.report.caveats import sanitised_caveat, tuning_caveats
from pate.stages.catalogue import open_run


def show_summary(run: Run) -> None:
    """Print the table at the end of a run: RELEASED values, and some marked "do not publish"."""
    released = run.artifact("aggregate")
    costs = run.artifact("account").json("guarantees.json")
    private = run.artifact("account-private").json("guarantees.json")
    evaluation = run.artifact("evaluate").json("evaluation.json")
    conversion = costs["guarantee"]["conversion"]
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("teachers", str(run.recipe.teachers.count), costs["protects"])
    asked, answered = released.facts["asked"], released.facts["answered"]
    kept = f"; {released.facts['kept']} kept by the student" if released.facts["kept"] else ""
    table.add_row("queries answered", f"{answered} of {asked}", f"{_planned(released)}{kept}")
    if evaluation["labels"]:
        table.add_row("labels that are right", *_share(evaluation["labels"]))
    delta = costs["guarantee"]["delta"]
    figure = costs.get("sanitised")
    what = "labels and sanitised figure" if figure and figure["price"] else "labels"
    if run.recipe.selection is not None:
        what = f"labels, and choosing among {len(run.recipe.selection.candidates)} candidates"
    table.add_row(
        "ε, data-independent", _number(costs["guarantee"]), f"δ = {delta:g}: the guarantee ({what})"
    )
    happened = costs["odometer"][conversion]
    if happened["epsilon"] != costs["plan"][conversion]["epsilon"]:
        table.add_row("ε, of what was answered", _number(happened), "a reading: not the guarantee")
    table.add_row("ε, sanitised", *_sanitised(costs))
    if "why_not" in private:
        table.add_row("ε, data-dependent", "none", "as the settings were chosen privately")
    else:
        table.add_row("ε, data-dependent", _number(private[conversion]), "private: do not publish")
    table.add_row("student's accuracy", *_share(evaluation["student"]))
    if run.recipe.evaluate.reference:
        reference = run.artifact("evaluate-reference").json("evaluation.json")["reference"]
        table.add_row("the same without privacy", _share(reference)[0], "private: do not publish")
    console = wide_console()
    console.print(f"{run.folder}:", soft_wrap=True)
    console.print(table)
    if released.facts["randomness"] != "private":
        console.print("The noise was seeded: this run is NOT PRIVATE.")
    if figure and _pays_off(costs):
        console.print(sanitised_caveat(run.recipe.aggregate), soft_wrap=True)
    with open_ledger(run.recipe, run.options) as ledger:
        console.print(budget_line(ledger), soft_wrap=True)
        for sentence in tuning_caveats(run, ledger):
            console.print(f"Note: {sentence}", soft_wrap=True)
    console.print(f"Student: {run.artifact('distill').path}", soft_wrap=True)
    console.print(f"Next: pate status {_shell(run)}", soft_wrap=True)


def _shell(run: Run) -> str:
    """Return the run's folder and the options without which its fingerprints would differ."""
    words = [str(run.folder)]
    if run.options.plugin_path is not None:
        words += ["--plugin-path", str(run.options.plugin_path)]
    if run.options.insecure_seed is not None:
        words += ["--insecure-seed", str(run.options.insecure_seed)]
    if run.options.data_root != default_root(None):
        words += ["--data-root", str(run.options.data_root)]
    return shlex.join(words)


def _planned(released: Any) -> str:
    plan = released.json("plan.json")
    return f"planned: at most {plan['answers']} of {plan['queries']}"


def _share(figure: dict[str, float]) -> tuple[str, str]:
    interval = f"95 %: {100 * figure['low']:.1f} … {100 * figure['high']:.1f} %"
    return f"{100 * figure['accuracy']:.1f} %", f"of {figure['records']:.0f}; {interval}"


def _number(guarantee: dict[str, Any]) -> str:
    return format_epsilon(guarantee["epsilon"])


def _sanitised(costs: dict[str, Any]) -> tuple[str, str]:
    figure = costs.get("sanitised")
    if figure is None:
        return "none", costs.get("why_not", "not asked for")
    if not _pays_off(costs):
        return _number(figure), "not below the guarantee: quote that"
    return _number(figure), (
        f"covers the labels and itself, at this data; {100 * figure['confidence']:g} % sure; may "
        "be published"
    )


def _pays_off(costs: dict[str, Any]) -> bool:
    """Return whether the sanitised ε is below the guarantee."""
    return bool(costs["sanitised"]["epsilon"] < costs["guarantee"]["epsilon"])


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
