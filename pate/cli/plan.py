"""``pate plan``: settings for an ε, fixed before any private vote is cast."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pate.cli import options
from pate.console import print_json, wide_console
from pate.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pate.planner.forecast import Forecast
    from pate.planner.plan import Planned
    from pate.planner.record_table import TableForecast
    from pate.planner.search import Proposal

app = options.new_app()

Epsilon = Annotated[
    float | None, typer.Option(help="What the labels may cost in all; default: the recipe's.")
]
DeltaOrRecipe = Annotated[float | None, typer.Option("--delta", help="Default: the recipe's.")]
SurrogateName = Annotated[
    str | None,
    typer.Option(
        "--surrogate",
        help="A public data set like yours, not yours: its name, or a file with the columns of "
        "[data]. Its teachers show how teachers agree, and its records how records vote.",
    ),
]
Accuracies = Annotated[
    list[str] | None,
    typer.Option(
        "--accuracy",
        help="Instead: what one teacher may reach, 0.8, or 500=0.8 among 500 teachers (several "
        "times).",
    ),
]
Teachers = Annotated[
    str | None, typer.Option("--teachers", help="Numbers of teachers to consider: 250,500,1000.")
]
Mechanisms = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        help="Some of lnmax,gnmax,gumbel,confident, of record votes laplace-counts,gaussian-counts "
        "(default: all but the last).",
    ),
]
Answers = Annotated[
    int | None, typer.Option(help="So many answers at least; the rest goes into accuracy.")
]
LabelAccuracy = Annotated[
    float | None, typer.Option(help="Least share of right labels, predicted.")
]
Rehearse = Annotated[
    bool,
    typer.Option(
        "--rehearse/--no-rehearse",
        help="On a surrogate: let what a student learns from labels drawn with each setting "
        "decide; else a rule of thumb.",
    ),
]
Records = Annotated[
    int | None,
    typer.Option(help="Private records, where their number is public but not in the catalogue."),
]
Public = Annotated[int | None, typer.Option(help="Public inputs; default: the recipe's.")]
Classes = Annotated[int | None, typer.Option(help="Classes.")]
OutFile = Annotated[
    Path | None,
    typer.Option("--out", help="Write the better of teachers and record votes as a recipe."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --out.")]
Plot = Annotated[
    Path | None, typer.Option(help="Plot how the number of teachers trades accuracy against noise.")
]


@app.command()
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
    json: options.Json = False,
    settings: options.Settings = None,
    data_root: options.DataRoot = None,
    plugin_path: options.PluginPath = None,
    quiet: options.Quiet = False,
) -> None:
    """Propose teachers or record votes, and their noise, for an ε, from public values alone.

    Never opens the private data: how teachers agree and records vote is seen on another data set
    (--surrogate); how teachers agree may be simulated (--accuracy).
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
        print_json(planned.as_json())
    else:
        _show(planned)
    if plot is not None:
        from pate.planner.trade_plot import plot_trade

        source = f"seen on {surrogate}" if surrogate else "simulated"
        shown = "record votes" if planned.proposal is None else "teachers against noise"
        plot_trade(planned, plot, title=f"{name}: {shown} ({source})")
    if out is not None:
        from pate.planner.planned_recipe import write_planned

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

    from pate._format import format_delta

    budget, table = planned.budget, planned.table
    delta = table.plan.guarantee.delta if planned.by_records and table else budget.delta
    words = ["pate", *sys.argv[1:]]
    lines = [
        f"{data} at ε = {budget.epsilon:g}, δ = {format_delta(delta)}, as `pate plan` proposed it:",
        "",
        f"  {shlex.join(words)}",
        "",
        f"Expected: {planned.expected}.",
    ]
    for sentence in planned.assumptions:
        lines += textwrap.wrap(sentence, 96)
    return lines


# --- the tables -----------------------------------------------------------------------------------


def _show(planned: Planned) -> None:
    """Print what teachers and record votes are expected to reach, and the proposal."""
    from pate._format import format_delta

    console = wide_console(140)
    budget = planned.budget
    if planned.proposal is not None:
        console.print(
            f"Over the number of teachers, at ε {budget.epsilon:g} and δ "
            f"{format_delta(budget.delta)}:"
        )
        _show_teachers(console, planned.proposal)
    if planned.table is not None:
        console.print("Record votes, over ε:")
        console.print(_over_epsilon(planned.table, chosen=budget.epsilon))
    console.print("Proposed:")
    if planned.by_records and planned.table is not None:
        lines = _proposed_table(planned.table)
    else:
        assert planned.proposal is not None
        lines = _proposed(planned.proposal.best)
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)
    console.print("Assumed:")
    for sentence in planned.assumptions:
        console.print(f"- {sentence}", soft_wrap=True)


def _show_teachers(console: Console, proposal: Proposal) -> None:
    """Print the best setting for each k, and for each mechanism at the best k."""
    console.print(_table(proposal.over_teachers, chosen=proposal.best))
    if len(proposal.over_mechanisms) > 1:
        console.print(f"With {proposal.best.teachers} teachers, over mechanisms:")
        console.print(_table(proposal.over_mechanisms, chosen=proposal.best))
    console.print(
        "ε: data-independent, the guarantee. ε dep.: data-dependent, predicted. ε san.: sanitised, "
        "predicted.",
        soft_wrap=True,
    )
    rows = (*proposal.over_teachers, *proposal.over_mechanisms)
    if any(row.data_dependent.epsilon > row.plan.guarantee.epsilon for row in rows):
        console.print(
            "ε dep. is above ε where answers decide what is paid for (it is taken at one λ, fixed "
            "before them, and ε at the best λ), or where ε rests on a tighter rule of composition.",
            soft_wrap=True,
        )


def _over_epsilon(table: TableForecast, *, chosen: float) -> Table:
    from rich.table import Table

    shown = Table()
    for heading in ("", "ε", "labels", "right"):
        shown.add_column(heading, justify="right")
    for epsilon, right in table.over_epsilon.items():
        shown.add_row(
            "→" if epsilon == chosen else "", f"{epsilon:g}", str(table.answered), _share(right)
        )
    return shown


def _proposed_table(table: TableForecast) -> list[str]:
    from pate._format import describe_neighbours, format_cost
    from pate.mechanisms import make_mechanism

    noise = make_mechanism(table.spec).settings()
    given = table.plan.guarantee
    lines = [
        f"record votes, {table.spec.mechanism} with {noise} (in votes)",
        f"{format_cost(given.epsilon, given.delta)}, for {describe_neighbours(given.neighbours)}: "
        "the guarantee",
        f"{table.answered} labels, {_share(table.label_accuracy)} of them right",
    ]
    if table.student_accuracy is not None:
        lines.append(f"{_share(table.student_accuracy)} reached by a student, on the surrogate")
    return lines


def _table(rows: tuple[Forecast, ...], *, chosen: Forecast) -> Table:
    from rich.table import Table

    from pate._format import format_epsilon
    from pate.mechanisms import make_mechanism

    table = Table()
    for heading in ("", "teachers", "one alone", "plurality", "mechanism", "noise", "answers",
                    "right", "student", "ε", "ε dep.", "ε san."):  # fmt: skip
        left = heading in ("", "mechanism", "noise")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "noise")
    for row in rows:
        same = row.teachers == chosen.teachers and row.spec == chosen.spec
        table.add_row(
            "→" if same else "",
            str(row.teachers),
            _share(row.teacher_accuracy),
            _share(row.plurality_accuracy),
            row.spec.mechanism,
            make_mechanism(row.spec).settings(),
            f"{row.answered:.0f}",
            _share(row.label_accuracy),
            "–" if row.student_accuracy is None else _share(row.student_accuracy),
            format_epsilon(row.plan.guarantee.epsilon),
            format_epsilon(row.data_dependent.epsilon),
            "–" if row.sanitised is None else format_epsilon(row.sanitised),
        )
    return table


def _proposed(best: Forecast) -> list[str]:
    from pate._format import format_cost, format_epsilon
    from pate.mechanisms import make_mechanism
    from pate.report.epsilons import why_above

    noise = make_mechanism(best.spec).settings()
    dependent = best.data_dependent
    given = best.plan.guarantee
    above = why_above(
        dependent.epsilon, given.epsilon, moment=dependent.moment, accountant=given.accountant
    )
    caps = f"{best.plan.queries} queries"
    if best.plan.answers != best.plan.queries:
        caps += f", {best.plan.answers} answers at most"
    lines = [
        f"{best.teachers} teachers, {best.spec.mechanism} with {noise} (in votes), {caps}",
        f"{format_cost(best.plan.guarantee.epsilon, best.plan.guarantee.delta)}, "
        "data-independent: the guarantee",
        f"ε {format_epsilon(dependent.epsilon)} data-dependent, predicted{above and f'.{above}'}",
        f"no sanitised ε: {best.why_not_sanitised}"
        if best.sanitised is None
        else f"ε {format_epsilon(best.sanitised)} sanitised, predicted: " + _verdict(best),
        f"{best.answered:.0f} answers expected, {_share(best.label_accuracy)} of them right",
    ]
    if best.student_accuracy is not None:
        lines.append(f"{_share(best.student_accuracy)} reached by a student, on the surrogate")
    return lines


def _verdict(best: Forecast) -> str:
    from pate._format import format_epsilon

    if not best.sanitising_pays or best.with_sanitised is None:
        return "it does not pay, and is not asked for"
    return f"it pays; the guarantee that covers it, too: ε {format_epsilon(best.with_sanitised)}"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
