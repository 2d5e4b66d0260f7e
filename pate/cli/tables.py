"""Tables that commands print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from pate._format import SAME_AT_PUBLIC_RATE, describe_neighbours, format_epsilon, printable
from pate.accounting import Charge, Guarantee, Ledger, Neighbours
from pate.accounting.events import Repeated
from pate.accounting.ledger.data_ledger import budget_line, data_set_line
from pate.accounting.ledger.data_set import NOT_PRIVATE, shares_budget, sibling_ledger
from pate.accounting.ledger.study_costs import total_study_costs

if TYPE_CHECKING:
    from pate.planner.forecast import Forecast
    from pate.planner.plan import Planned


def wide_console(width: int = 110) -> Console:
    """Return a console that is wide where no terminal sets the width; paths print as they are."""
    return Console(width=None if Console().is_terminal else width, markup=False, highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; those of a higher ``rank`` go first, those of rank 0 never do."""

    heading: str
    cells: Sequence[str]
    justify: Literal["left", "right"] = "right"
    rank: int = 0

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        lines = [line for text in (self.heading, *self.cells) for line in text.split("\n")]
        return max(map(cell_len, lines), default=0)


def fitting_columns(columns: Sequence[Column], width: int) -> tuple[Column, ...]:
    """Return the columns for which there is room, with a border around each.

    >>> name, note = Column(heading="ε", cells=["2.5"]), Column(heading="note", cells=[""], rank=1)
    >>> [each.heading for each in fitting_columns([name, note], 80)]
    ['ε', 'note']
    >>> [each.heading for each in fitting_columns([name, note], 12)]
    ['ε']
    """
    kept = list(columns)
    while sum(each.width + 3 for each in kept) + 1 > width:
        least = max(kept, key=lambda each: each.rank)
        if least.rank == 0:
            break
        kept.remove(least)
    return tuple(kept)


def fitted_table(columns: Sequence[Column], width: int) -> Table:
    """Return a table of the columns that fit; no value in it is cut short."""
    kept = fitting_columns(columns, width)
    table = Table()
    for each in kept:
        table.add_column(each.heading, justify=each.justify, no_wrap=True, min_width=each.width,
                         vertical="bottom")  # fmt: skip
    for row in zip(*(each.cells for each in kept), strict=True):
        table.add_row(*row)
    return table


# --- pate epsilon ------------------------------------------------------------------------------

_TITLES = {
    "data_independent": "data-independent",
    "data_dependent": "data-dependent",
    "all_answered": "if all were answered",
}


def show_report(report: dict[str, Any]) -> None:
    """Print what was asked, and a row for each guarantee of ``pate epsilon``."""
    guarantees = {key: report[key] for key in _TITLES if key in report}
    plain = {
        key: value
        for key, value in report.items()
        if key not in guarantees and not (key in ("epsilon", "moment") and guarantees)
    }
    console = Console(width=None if Console().is_terminal else 100)
    facts = Table(show_header=False, box=None, pad_edge=False)
    for key, value in plain.items():
        text = f"{value:.10g}" if isinstance(value, float) else str(value)
        facts.add_row(key.replace("_", " "), text)
    console.print(facts)
    console.print()
    table = Table()
    for heading, justify in (("cost", "left"), ("ε", "right"), ("λ", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for key, guarantee in guarantees.items():
        moment = guarantee["moment"]
        table.add_row(
            _TITLES[key],
            format_epsilon(guarantee["epsilon"], digits=6),
            "" if moment is None else f"{moment:g}",
            "may be published" if guarantee["publishable"] else "private: do not publish",
        )
    console.print(table)
    console.print(_reading(report), soft_wrap=True)


def _reading(report: dict[str, Any]) -> str:
    guarantee = report["data_independent"]
    text = (
        f"δ = {guarantee['delta']:g}; neighbours: {describe_neighbours(guarantee['neighbours'])}."
    )
    if report.get("mechanism") == "dpsgd":
        text += f" {SAME_AT_PUBLIC_RATE.capitalize()}."
    if "data_dependent" in report:
        text += " The data-dependent ε was worked out from private votes and is itself private."
    if "expected_answered" in report:
        text += " Costs are expected costs, for planning; a run pays for what it answers."
    return text


# --- pate ledger -------------------------------------------------------------------------------


def show_ledger(ledger: Ledger, *, one_teacher: Neighbours | None = None) -> None:
    """Print every charge, their total, and what studies cost together.

    ``one_teacher`` is the relation between records under which one teacher changes, where the run
    is known that is asked about.
    """
    charges = ledger.charges()
    console = wide_console(140)
    console.print(_charges_table(charges))
    both = shares_budget(ledger.path)
    console.print(printable(budget_line(ledger, own=both)), soft_wrap=True)
    if both:
        console.print(printable(data_set_line(ledger)), soft_wrap=True)
    if any(charge.studies for charge in charges):
        for line in _studies(ledger, one_teacher):
            console.print(printable(line), soft_wrap=True)


def _charges_table(charges: list[Charge]) -> Table:
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
    if total is None:  # δ of a restated figure came to one
        return "nothing is promised between data sets that differ in one record replaced"
    return f"{_figure(total)}, for {describe_neighbours(total.neighbours)}: ε add up, and so do δ"


def _figure(guarantee: Guarantee) -> str:
    return f"ε {format_epsilon(guarantee.epsilon)} at δ {format_epsilon(guarantee.delta)}"


# --- pate plan ---------------------------------------------------------------------------------


def show_plan(planned: Planned) -> None:
    """Print the best setting for each k, for each mechanism at that k, and the proposal."""
    proposal = planned.proposal
    console = Console(width=None if Console().is_terminal else 140, markup=False, highlight=False)
    budget = proposal.budget
    console.print(f"Over the number of teachers, at ε {budget.epsilon:g} and δ {budget.delta:g}:")
    console.print(_plan_table(proposal.over_teachers, chosen=proposal.best))
    if len(proposal.over_mechanisms) > 1:
        console.print(f"With {proposal.best.teachers} teachers, over mechanisms:")
        console.print(_plan_table(proposal.over_mechanisms, chosen=proposal.best))
    console.print(
        "ε: data-independent, the guarantee. ε dep.: data-dependent, predicted. ε san.: sanitised, "
        "predicted.",
        soft_wrap=True,
    )
    console.print("Proposed:")
    for line in _proposed(proposal.best):
        console.print(f"  {line}", soft_wrap=True)
    console.print("Assumed:")
    for sentence in planned.assumptions:
        console.print(f"- {sentence}", soft_wrap=True)


def noise_of(found: Forecast) -> str:
    """Return the mechanism's noise in a few characters."""
    from pate.mechanisms import make_mechanism

    return make_mechanism(found.spec).settings()


def _plan_table(rows: tuple[Forecast, ...], *, chosen: Forecast) -> Table:
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
            noise_of(row),
            f"{row.answered:.0f}",
            _share(row.label_accuracy),
            "–" if row.student_accuracy is None else _share(row.student_accuracy),
            format_epsilon(row.plan.guarantee.epsilon),
            format_epsilon(row.data_dependent.epsilon),
            "–" if row.sanitised is None else format_epsilon(row.sanitised),
        )
    return table


def _proposed(best: Forecast) -> list[str]:
    caps = f"{best.plan.queries} queries"
    if best.plan.answers != best.plan.queries:
        caps += f", {best.plan.answers} answers at most"
    lines = [
        f"{best.teachers} teachers, {best.spec.mechanism} with {noise_of(best)} (in votes), {caps}",
        f"ε {format_epsilon(best.plan.guarantee.epsilon)} at δ {best.plan.guarantee.delta:g}, "
        "data-independent: the guarantee",
        f"ε {format_epsilon(best.data_dependent.epsilon)} data-dependent, predicted",
    ]
    if best.sanitised is not None:
        lines.append(
            f"ε {format_epsilon(best.sanitised)} sanitised, predicted: if it were published"
        )
    else:
        lines.append(f"no sanitised ε: {best.why_not_sanitised}")
    lines.append(
        f"{best.answered:.0f} answers expected, {_share(best.label_accuracy)} of them right"
    )
    if best.student_accuracy is not None:
        lines.append(f"{_share(best.student_accuracy)} reached by a student, on the surrogate")
    return lines


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
