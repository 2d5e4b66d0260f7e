"""What one must know to read the table: what differs between the methods, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from pate._format import compare_neighbours
from pate.accounting.together import NOT_PLANNED, WholeStudy, led_to
from pate.compare.costs import told
from pate.compare.recipe import CompareRecipe
from pate.compare.rows import Row

_ACCOUNTANTS = {
    "moments": "log-moments on a fine grid of λ",
    "abadi": "log-moments at whole λ up to 32, classic conversion",
    "pld": "privacy loss distributions, the tightest",
}
_SPREAD = (
    "± is the standard deviation over repetitions: other shards, teachers, students, first weights "
    "and noise, on the same split."
)


def make_notes(
    recipe: CompareRecipe,
    rows: Sequence[Row],
    cost: WholeStudy,
    *,
    tuning: str,
    seeded: bool,
) -> list[str]:
    """Sentences to stand below the table."""
    by_method = {row.method: row.neighbours or "" for row in rows if row.epsilon is not None}
    accountant = recipe.dpsgd.privacy.accountant
    notes = [
        compare_neighbours(by_method["pate"], by_method["dpsgd"]),
        "Both ε are data-independent and cover all that a run releases. PATE's is by log-moments "
        f"(improved conversion), DP-SGD's by {_ACCOUNTANTS[accountant]}; δ = "
        f"{recipe.compare.delta:g} for both.",
        "How settings were chosen is in neither ε. "
        + (f"The recipe says of it: “{tuning}”" if tuning else "The recipe says nothing of it."),
        _SPREAD if recipe.compare.seeds > 1 else "One repetition has no spread: add --seeds 3.",
        "Times and memory are for you alone: they follow from the private records.",
        *([] if seeded else _costs(cost, own_accountant=accountant != "moments")),
    ]
    if any(row.method == "reference" for row in rows):
        notes.append(
            "“without privacy” is the student's model trained on the private records themselves: "
            "do not publish it."
        )
    if not all(row.whole for row in rows):
        notes.append("≥: a run was killed on the way; what it took until then is not counted.")
    if seeded:
        notes.insert(0, "The noise was seeded: nothing in this table is private.")
    return notes


def _costs(cost: WholeStudy, *, own_accountant: bool) -> list[str]:
    models = None if cost.other is None else cost.other.guarantee
    before = led_to(*cost.parts)
    return [
        "Each run alone costs the ε of its row, if it was fixed before any result was seen.",
        f"All PATE students together: {told(cost.here.guarantee)}. All DP-SGD models together: "
        f"{told(models)}. This table, which rests on all of them: {told(cost.together)}."
        + ("" if cost.in_advance else f" These are {NOT_PLANNED}.")
        + (" Ledgers add up log-moments, DP-SGD's too." if own_accountant else ""),
        *([] if before is None else [before]),
    ]
