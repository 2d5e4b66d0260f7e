"""``pate plan``: settings for an ε, fixed before any private vote is cast."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli import options
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from pate.planner.plan import Planned

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
    typer.Option("--mechanism", help="Those to look at: lnmax,gnmax,confident (default: all).",
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
    recipe: options.RecipeName,
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
    settings: options.Settings = None,
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
    quiet: options.Quiet = False,
) -> None:
    """Propose teachers, mechanism, noise and queries for an ε, from public values alone.

    Never opens the private data: how teachers agree is seen on another data set (--surrogate) or
    simulated (--accuracy).
    """
    from pate.planner.plan import plan as make_plan

    if out is not None and out.exists() and not force:
        raise InvalidInput(f"{out} exists; add --force to replace it")
    planned = make_plan(
        recipe,
        epsilon=epsilon,
        delta=delta,
        surrogate=surrogate,
        accuracy=accuracy,
        teachers=_numbers(teachers),
        mechanisms=None if mechanism is None else mechanism.split(","),
        answers=answers,
        label_accuracy=label_accuracy,
        rehearse=rehearse,
        records=records,
        public=public,
        classes=classes,
        set=settings,
        data_root=data_root,
        plugin_path=plugin_path,
        report=lambda text: None if quiet else typer.echo(f"pate: {text}", err=True),
    )
    name = planned.recipe.data.name
    if json:
        import json as encoder

        report = planned.proposal.as_json() | {"assumptions": list(planned.assumptions)}
        typer.echo(encoder.dumps(report, allow_nan=False))
    else:
        from pate.cli.tables import show_plan

        show_plan(planned)
    if plot is not None:
        from pate.planner.plan import plot_trade

        source = f"seen on {surrogate}" if surrogate else "simulated"
        plot_trade(planned.proposal, plot,
                   title=f"{name}: teachers against noise ({source})")  # fmt: skip
    if out is not None:
        from pate.planner.plan import write_planned

        write_planned(out, planned, source=recipe, settings=settings or [],
                      comment=_comment(planned, name), force=force)  # fmt: skip
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


def _comment(planned: Planned, data: str) -> list[str]:
    """Return comment lines: how it was planned, and the command that plans it again."""
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
