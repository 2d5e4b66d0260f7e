"""The plot of a plan: what the number of teachers, or ε, trades for right labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pate._plots import COLOURS, new_figure, plain_axes, render_figure
from pate.errors import InvalidInput
from pate.planner.forecast import Budget
from pate.planner.plan import Planned
from pate.planner.record_table import TableForecast
from pate.planner.search import Proposal


def plot_trade(planned: Planned, path: Path, *, title: str) -> None:
    """Plot how often one teacher, the plurality, and labels at ε are right, over the teachers.

    Record votes are a level line; where they were planned alone, a curve over ε.
    """
    with new_figure() as figure:
        axes = figure.subplots()
        if planned.proposal is None:
            assert planned.table is not None
            _plot_table(axes, planned.table, planned.budget, title=title)
        else:
            _plot_teachers(axes, planned.proposal, planned.table, title=title)
        axes.minorticks_off()
        axes.set_ylim(top=101)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        try:
            kind = path.suffix.removeprefix(".").lower() or "png"
            path.write_bytes(render_figure(figure, kind))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot plot {path}: {error}") from error


def _plot_table(axes: Any, table: TableForecast, budget: Budget, *, title: str) -> None:
    over = table.over_epsilon
    plain_axes(axes, title=title, x="ε", y="right, %")
    axes.plot([*over], [100 * right for right in over.values()], "D-", color=COLOURS[2],
              label="labels by record votes")  # fmt: skip
    axes.plot(budget.epsilon, 100 * table.label_accuracy, marker="*", markersize=17,
              color=COLOURS[3], linestyle="none", zorder=5, label="proposed")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks([*over], [f"{epsilon:g}" for epsilon in over])


def _plot_teachers(
    axes: Any, proposal: Proposal, table: TableForecast | None, *, title: str
) -> None:
    rows = proposal.over_teachers
    counts = [row.teachers for row in rows]
    plain_axes(axes, title=title, x="teachers", y="right, %")
    axes.plot(counts, [100 * row.teacher_accuracy for row in rows], "o--", color=COLOURS[1],
              label="one teacher")  # fmt: skip
    axes.plot(counts, [100 * row.plurality_accuracy for row in rows], "s-", color=COLOURS[0],
              label="plurality of all, without noise")  # fmt: skip
    planned = round(proposal.best.answered)
    for number, right in proposal.trade.items():
        main = number == min(proposal.trade, key=lambda each: abs(each - planned))
        axes.plot(
            counts,
            [100 * share for share in right],
            "-" if main else ":" if number < planned else "-.",
            marker="D" if main else None,
            color=COLOURS[2],
            linewidth=2.2 if main else 1.4,
            alpha=1.0 if main else 0.7,
            label=f"labels of gnmax, {number} at ε = {proposal.budget.epsilon:g}",
        )
    best = proposal.best
    axes.plot(best.teachers, 100 * best.label_accuracy, marker="*", markersize=17,
              color=COLOURS[3], linestyle="none", zorder=5,
              label=f"best: {best.spec.mechanism}, {best.teachers} teachers")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    if table is not None:
        label = f"record votes, {table.answered} at ε = {proposal.budget.epsilon:g}"
        axes.axhline(100 * table.label_accuracy, color=COLOURS[4], linewidth=2.2, label=label)
