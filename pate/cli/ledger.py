"""``pate ledger``: the charges of a private data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate.cli import options
from pate.console import print_json, wide_console

if TYPE_CHECKING:
    from rich.table import Table

    from pate.accounting import Charge, Guarantee, Ledger, Neighbours

app = options.new_app(help="The charges of a private data set.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    pass


@app.command()
def show(
    place: Annotated[
        Path, typer.Argument(help="A run's folder, or a ledger file.", autocompletion=options.runs)
    ],
    data_root: options.DataRoot = None,
    json: options.Json = False,
) -> None:
    """Print every charge, the budget spent and left, and what studies cost together."""
    from pate.accounting import Ledger
    from pate.artifacts import Store
    from pate.datasets.catalogue import data_root as default_root
    from pate.dpsgd_runs import is_dpsgd_run, open_training
    from pate.errors import InvalidInput
    from pate.pipeline.ledger import ledger_path
    from pate.pipeline.runner import find_data_root, read_resolved
    from pate.stages.exactly_once import require_paid_in

    path, one_teacher = place, None
    if place.is_dir() and is_dpsgd_run(place):
        path = open_training(place, data_root=data_root).ledger_path
    elif not place.is_file():
        recipe = read_resolved(place)
        root = default_root(data_root)
        if data_root is None:
            root = find_data_root(place, recipe, root)
        path, one_teacher = ledger_path(recipe, root), recipe.neighbours
        require_paid_in(Store(root=place), recipe, root)
        if not path.exists():
            raise InvalidInput(f"{recipe.data.name} has paid for nothing yet")
    with Ledger.open(path) as ledger:
        if json:
            print_json(_report(ledger, one_teacher=one_teacher))
        else:
            _show(ledger, one_teacher=one_teacher)


def _report(ledger: Ledger, *, one_teacher: Neighbours | None) -> dict[str, Any]:
    """Return what :func:`_show` prints, as plain values."""
    import json as decoder

    from pate.accounting import Neighbours, event_to_json
    from pate.accounting.ledger.data_ledger import ledger_report
    from pate.accounting.ledger.data_set import shares_budget
    from pate.accounting.ledger.study_costs import total_study_costs
    from pate.stages.caveats import charged_elsewhere

    charges = ledger.charges()
    studies = (
        total_study_costs(ledger, one_teacher=one_teacher or Neighbours.ADD_REMOVE)
        if any(charge.studies for charge in charges)
        else ()
    )
    return ledger_report(ledger) | {
        "notes": charged_elsewhere(ledger) if shares_budget(ledger.path) else [],
        "charges": [
            {
                "number": each.number,
                "release": each.release,
                "charged_at": each.charged_at,
                "studies": list(each.studies),
                "neighbours": None if each.records is None else each.records.value,
                "events": [decoder.loads(event_to_json(event)) for event in each.events],
            }
            for each in charges
        ],
        "studies": [
            {
                "name": each.here.name,
                "here": _cost(each.here.guarantee),
                "other": None if each.other is None else _cost(each.other.guarantee),
                "together": None if each.together is None else _cost(each.together),
                "planned_in_advance": each.in_advance,
            }
            for each in studies
        ],
    }


def _cost(guarantee: Guarantee) -> dict[str, Any]:
    return {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "neighbours": guarantee.neighbours.value,
    }


def _show(ledger: Ledger, *, one_teacher: Neighbours | None) -> None:
    """Print the charges of a ledger; ``one_teacher`` is the relation of the run asked about."""
    from pate._format import printable
    from pate.accounting.ledger.data_ledger import budget_line, data_set_line
    from pate.accounting.ledger.data_set import shares_budget
    from pate.stages.caveats import charged_elsewhere

    charges = ledger.charges()
    console = wide_console(140)
    console.print(_table(charges))
    both = shares_budget(ledger.path)
    console.print(printable(budget_line(ledger, own=both)), soft_wrap=True)
    if both:
        console.print(printable(data_set_line(ledger)), soft_wrap=True)
        for sentence in charged_elsewhere(ledger):
            console.print(f"Note: {printable(sentence)}", soft_wrap=True)
    if any(charge.studies for charge in charges):
        for line in _studies(ledger, one_teacher):
            console.print(printable(line), soft_wrap=True)


def _table(charges: list[Charge]) -> Table:
    from rich.table import Table

    from pate._format import printable
    from pate.accounting import Repeated

    studied = any(charge.studies for charge in charges)
    table = Table()
    for heading in ("when", "release", *(["study"] if studied else []), "events"):
        table.add_column(heading)
    for charge in charges:
        events = ", ".join(
            f"{e.count} × {e.event}" if isinstance(e, Repeated) else str(e) for e in charge.events
        )
        study = [", ".join(charge.studies)] if studied else []
        cells = (charge.charged_at[:19], charge.release[:24], *study, events)
        table.add_row(*map(printable, cells))
    return table


def _studies(ledger: Ledger, one_teacher: Neighbours | None) -> Iterator[str]:
    """Yield lines on each study: its cost here, by the other method, and both together."""
    from pate.accounting import Neighbours
    from pate.accounting.ledger.data_set import NOT_PRIVATE, sibling_ledger
    from pate.accounting.ledger.study_costs import total_study_costs

    studies = total_study_costs(ledger, one_teacher=one_teacher or Neighbours.ADD_REMOVE)
    for study in studies:
        yield f"{study.here.name}: {study.here.describe()}"
        if study.other is not None:
            yield f"  in {sibling_ledger(ledger.path).name}: {study.other.describe()}"
            yield f"  to publish both: {_together(study.together)}"
    yield "A study counts against the budget like anything else."
    if one_teacher is None and any(study.other is not None for study in studies):
        yield (
            "The cost of both holds for records that went to their teachers by hash "
            '(partition.method = "hash").'
        )
    if ledger.path.name.endswith(NOT_PRIVATE):
        yield "None of these values holds: none of these releases is private."


def _together(total: Guarantee | None) -> str:
    from pate._format import describe_neighbours, format_delta, format_epsilon

    if total is None:  # δ of a restated guarantee came to one
        return "nothing is promised between data sets that differ in one record replaced"
    return (
        f"ε {format_epsilon(total.epsilon)} at δ {format_delta(total.delta)}, for "
        f"{describe_neighbours(total.neighbours)}: ε add up, and so do δ"
    )
