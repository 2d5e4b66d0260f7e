"""``pate plan``: what to ask for an ε, worked out before any private vote is cast."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli import running
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from pate.planner.planning import Planned
    from pate.planner.search import Mechanism

Epsilon = Annotated[
    float | None,
    typer.Option(help="What the labels may cost in all; default: the recipe's.",
                 show_default=False),
]  # fmt: skip
DeltaOrRecipe = Annotated[
    float | None, typer.Option("--delta", help="Default: the recipe's.", show_default=False)
]
SurrogateName = Annotated[
    str | None,
    typer.Option("--surrogate", help="A named data set like yours, not yours: its teachers show "
                 "how teachers agree.", show_default=False),
]  # fmt: skip
Accuracies = Annotated[
    list[str] | None,
    typer.Option("--accuracy", help="Instead: what one teacher may reach, 0.8, or 500=0.8 among "
                 "500 teachers (several times).", show_default=False),
]  # fmt: skip
Teachers = Annotated[
    str | None,
    typer.Option("--teachers", help="Numbers of teachers to look at: 250,500,1000.",
                 show_default=False),
]  # fmt: skip
Mechanisms = Annotated[
    str | None,
    typer.Option("--mechanism", help="Those to look at: gnmax,confident,lnmax (default: all).",
                 show_default=False),
]  # fmt: skip
Answers = Annotated[
    int | None,
    typer.Option(help="So many answers at least; the rest goes into accuracy.",
                 show_default=False),
]  # fmt: skip
LabelAccuracy = Annotated[
    float | None,
    typer.Option(help="Least share of right labels, predicted.",
                 show_default=False),
]  # fmt: skip
Rehearse = Annotated[
    bool,
    typer.Option("--rehearse/--no-rehearse", help="On a surrogate: let what a student learns from "
                 "labels drawn with each setting decide; else a rule of thumb."),
]  # fmt: skip
Records = Annotated[
    int | None,
    typer.Option(help="Private records, where their number is public but not in the catalogue.",
                 show_default=False),
]  # fmt: skip
Public = Annotated[
    int | None, typer.Option(help="Public inputs; default: the recipe's.", show_default=False)
]
Classes = Annotated[int | None, typer.Option(help="Classes.", show_default=False)]
OutFile = Annotated[
    Path | None, typer.Option("--out", help="Write the plan as a recipe.", show_default=False)
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --out.")]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw how the number of teachers trades accuracy against noise.",
                 show_default=False),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def plan(
    recipe: running.RecipeName,
    epsilon: Epsilon = None,
    delta: DeltaOrRecipe = None,
    surrogate: SurrogateName = None,
    accuracy: Accuracies = None,
    teachers: Teachers = None,
    mechanism: Mechanisms = None,
    answers: Answers = None,
    label_accuracy: LabelAccuracy = None,
    rehearse: Rehearse = True,
    records: Records = None,
    public: Public = None,
    classes: Classes = None,
    out: OutFile = None,
    force: Force = False,
    plot: Plot = None,
    json: Json = False,
    settings: running.Settings = None,
    data_root: running.DataRoot = None,
    plugin_path: running.PluginPath = None,
    quiet: running.Quiet = False,
) -> None:
    """Proposes teachers, mechanism, noise and queries for an ε, from public figures alone.

    Never opens the private data: how teachers agree is seen on another data set (--surrogate) or
    simulated (--accuracy).
    """
    from pate.accounting import Conversion
    from pate.datasets import data_root as default_root
    from pate.pipeline.recipe import Recipe
    from pate.planner.noise import Budget
    from pate.planner.planning import Request
    from pate.planner.planning import plan as make_plan
    from pate.recipes.read import find_recipe, read_recipe

    name, checked = read_recipe(recipe, settings, Recipe)
    if out is not None and out.exists() and not force:
        raise InvalidInput(f"{out} is there already; add --force to replace it")
    wanted = checked.privacy.epsilon if epsilon is None else epsilon
    if wanted is None:
        raise InvalidInput(f"say what the labels may cost: --epsilon, or privacy.epsilon in {name}")
    budget = Budget(
        epsilon=wanted,
        delta=checked.privacy.delta if delta is None else delta,
        conversion=Conversion(checked.privacy.conversion),
    )
    request = Request(
        budget=budget,
        surrogate=surrogate,
        accuracies=tuple(accuracy or ()),
        teachers=_numbers(teachers),
        mechanisms=_mechanisms(mechanism),
        answers=answers,
        label_accuracy=label_accuracy,
        rehearse=rehearse,
        records=records,
        public=public,
        classes=classes,
    )
    planned = make_plan(
        checked,
        request,
        root=default_root(data_root),
        plugin_path=None if plugin_path is None else plugin_path.absolute(),
        say=lambda text: None if quiet else typer.echo(f"pate: {text}", err=True),
    )
    if json:
        import json as encoder

        report = planned.proposal.as_json() | {"assumptions": list(planned.assumptions)}
        typer.echo(encoder.dumps(report, allow_nan=False))
    else:
        from pate.cli.plan_tables import show_plan

        show_plan(planned)
    if plot is not None:
        from pate.planner.plotting import plot_trade

        source = f"seen on {surrogate}" if surrogate else "simulated"
        plot_trade(planned.proposal, plot,
                   title=f"{checked.data.name}: teachers against noise ({source})")  # fmt: skip
    if out is not None:
        from pate.planner.writing import planned_recipe, said_in, write_recipe

        text = find_recipe(recipe).read_text(encoding="utf-8-sig")
        said = said_in(text, settings or [])
        content = planned_recipe(checked, planned.proposal.best, budget, said=said)
        write_recipe(out, content, comment=_comment(planned, checked.data.name), force=force)
    if not json:
        for file in (plot, out):
            if file is not None:
                typer.echo(f"wrote {file}" + (f"; next: pate run {file}" if file == out else ""))


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InvalidInput(
            f"--teachers {text} is not a list of whole numbers such as 250,1000"
        ) from None


def _mechanisms(text: str | None) -> tuple[Mechanism, ...]:
    from pate.planner.search import MECHANISMS

    wanted = MECHANISMS if text is None else tuple(text.split(","))
    found = tuple(each for each in MECHANISMS if each in wanted)
    unknown = [each for each in wanted if each not in MECHANISMS]
    if unknown or not found:
        raise InvalidInput(
            f"--mechanism {text}: those one can plan for are {', '.join(MECHANISMS)}"
        )
    return found


def _comment(planned: Planned, data: str) -> list[str]:
    """How it was planned, and the command that plans it again."""
    import sys
    import textwrap

    best = planned.proposal.best
    budget = planned.proposal.budget
    words = ["pate", *sys.argv[1:]]
    lines = [
        f"{data} at ε = {budget.epsilon:g}, δ = {budget.delta:g}, as `pate plan` proposed it:",
        "",
        f"  {shlex.join(words)}",
        "",
        f"Expected: {best.answered:.0f} answers, {100 * best.label_accuracy:.1f} % of them right.",
    ]
    for sentence in planned.assumptions:
        lines += textwrap.wrap(sentence, 96)
    return lines
