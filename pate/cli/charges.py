"""What a ledger has paid for, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from pate._format import describe_neighbours, format_epsilon, printable
from pate.accounting import Charge, Guarantee, Ledger, Neighbours
from pate.accounting.data_ledger import budget_line, data_set_line
from pate.accounting.data_set import NOT_PRIVATE, beside, shares_a_budget
from pate.accounting.events import Repeated
from pate.accounting.together import whole_studies
from pate.cli.summary import wide_console


def show_ledger(ledger: Ledger, *, one_teacher: Neighbours | None = None) -> None:
    """Every charge, what all come to, and what studies cost together.

    ``one_teacher`` is the relation between records under which one teacher changes, where the run
    is known that is asked about.
    """
    charges = ledger.charges()
    console = wide_console(140)
    console.print(_table(charges))
    both = shares_a_budget(ledger.path)
    console.print(printable(budget_line(ledger, own=both)), soft_wrap=True)
    if both:
        console.print(printable(data_set_line(ledger)), soft_wrap=True)
    if any(charge.studies for charge in charges):
        for line in _studies(ledger, one_teacher):
            console.print(printable(line), soft_wrap=True)


def _table(charges: list[Charge]) -> Table:
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
    """Each study: what it cost here, by the other method, and both together; then what holds."""
    studies = whole_studies(ledger, one_teacher=one_teacher or Neighbours.ADD_REMOVE)
    for study in studies:
        yield f"{study.here.name}: {study.here.told()}"
        if study.other is not None:
            yield f"  in {beside(ledger.path).name}: {study.other.told()}"
            yield f"  to publish both: {_together(study.together)}"
    yield "A study counts against the budget like anything else."
    if one_teacher is None and any(study.other is not None for study in studies):
        yield (
            "What both cost is said for records that went to their teachers by hash "
            '(partition.method = "hash").'
        )
    if ledger.path.name.endswith(NOT_PRIVATE):
        yield "None of these figures holds: none of these releases is private."


def _together(total: Guarantee | None) -> str:
    if total is None:  # δ of a restated figure came to one
        return "nothing is promised between data sets that differ in one record replaced"
    return f"{_figure(total)}, for {describe_neighbours(total.neighbours)}: ε add up, and so do δ"


def _figure(guarantee: Guarantee) -> str:
    return f"ε {format_epsilon(guarantee.epsilon)} at δ {format_epsilon(guarantee.delta)}"
