"""The trade over k as a picture: better teachers, or less noise for each."""

from __future__ import annotations

from pathlib import Path

from pate.errors import InvalidInput
from pate.planner.proposal import Proposal


def plot_trade(proposal: Proposal, path: Path, *, title: str) -> None:
    """How often one teacher, the plurality, and labels at ε are right, over the teachers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = proposal.over_teachers
    counts = [row.teachers for row in rows]
    figure, axes = plt.subplots(figsize=(7.5, 4.6), dpi=150)
    axes.plot(counts, [100 * row.teacher_accuracy for row in rows], "o--", color="#d9822b",
              label="one teacher")  # fmt: skip
    axes.plot(counts, [100 * row.plurality_accuracy for row in rows], "s-", color="#1f5a99",
              label="plurality of all, without noise")  # fmt: skip
    planned = round(proposal.best.answered)
    for number, right in proposal.trade.items():
        main = number == min(proposal.trade, key=lambda each: abs(each - planned))
        axes.plot(
            counts,
            [100 * share for share in right],
            "-" if main else ":" if number < planned else "-.",
            marker="D" if main else None,
            color="#2e8b57" if main else "#6ab187",
            linewidth=2.2 if main else 1.4,
            label=f"labels of gnmax, {number} at ε = {proposal.budget.epsilon:g}",
        )
    best = proposal.best
    axes.plot(best.teachers, 100 * best.label_accuracy, marker="*", markersize=17, color="#c0392b",
              linestyle="none", zorder=5,
              label=f"proposed: {best.spec.mechanism}, {best.teachers} teachers")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("teachers")
    axes.set_ylabel("right, %")
    axes.set_ylim(top=101)
    axes.grid(alpha=0.25)
    axes.set_title(title, fontsize=11)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    try:
        figure.savefig(path, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot draw {path}: {error}") from error
    finally:
        plt.close(figure)
