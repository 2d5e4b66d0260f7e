"""A plan for people: the proposal, what it was chosen from, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pate.planner.forecast import Forecast
    from pate.planner.planning import Planned


def show_plan(planned: Planned) -> None:
    """The best setting for each k, for each mechanism at that k, and the proposal in words."""
    proposal = planned.proposal
    console = Console(width=None if Console().is_terminal else 140, markup=False, highlight=False)
    budget = proposal.budget
    console.print(f"Over the number of teachers, at ε {budget.epsilon:g} and δ {budget.delta:g}:")
    console.print(_table(proposal.over_teachers, chosen=proposal.best))
    if len(proposal.over_mechanisms) > 1:
        console.print(f"With {proposal.best.teachers} teachers, over mechanisms:")
        console.print(_table(proposal.over_mechanisms, chosen=proposal.best))
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
    """The mechanism's noise in a few characters."""
    from pate.mechanisms import make_mechanism

    return make_mechanism(found.spec).settings()


def _table(rows: tuple[Forecast, ...], *, chosen: Forecast) -> Table:
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
            f"{row.plan.guarantee.epsilon:.4g}",
            f"{row.data_dependent.epsilon:.4g}",
            "–" if row.sanitised is None else f"{row.sanitised:.4g}",
        )
    return table


def _proposed(best: Forecast) -> list[str]:
    caps = f"{best.plan.queries} queries"
    if best.plan.answers != best.plan.queries:
        caps += f", {best.plan.answers} answers at most"
    lines = [
        f"{best.teachers} teachers, {best.spec.mechanism} with {noise_of(best)} (in votes), {caps}",
        f"ε {best.plan.guarantee.epsilon:.4g} at δ {best.plan.guarantee.delta:g}, "
        "data-independent: the guarantee",
        f"ε {best.data_dependent.epsilon:.4g} data-dependent, predicted",
    ]
    if best.sanitised is not None:
        lines.append(f"ε {best.sanitised:.4g} sanitised, predicted: if it were published")
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
