"""The comparison as files: ``compare.json``, ``compare.csv``, ``compare.png``, ``compare.svg``.

All are for their owner: rows that may not be published are among them, marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pate.accounting import Guarantee
from pate.accounting.ledger.study_costs import WholeStudy
from pate.compare.picture import draw
from pate.compare.recipe import CompareRecipe
from pate.compare.rows import Row
from pate.studies.files import write_table

_COLUMNS = (
    "method", "name", "epsilon", "target", "delta", "accuracy", "spread", "low", "high", "labels",
    "seconds", "peak_memory_mb", "neighbours", "data_dependent", "publishable",
)  # fmt: skip
_FORMAT = 2


def write_comparison(
    folder: Path,
    name: str,
    recipe: CompareRecipe,
    rows: Sequence[Row],
    cost: WholeStudy,
    notes: Sequence[str],
    *,
    seeded: bool,
) -> dict[str, Any]:
    """Writes all four files into the run's folder, and returns what the JSON file holds."""
    content = {
        "format": _FORMAT,
        "name": name,
        "data": recipe.data.name,
        "delta": recipe.compare.delta,
        "seeds": recipe.compare.seeds,
        "seeded": seeded,
        "rows": [row.as_json() for row in rows],
        "cost": {
            "pate": _cost(cost.here.guarantee),
            "dpsgd": None if cost.other is None else _cost(cost.other.guarantee),
            "together": None if cost.together is None else _cost(cost.together),
            "planned_in_advance": cost.in_advance,
        },
        "notes": list(notes),
    }
    flat = [row.as_json() | {"delta": row.runs[0].delta} for row in rows]
    write_table(folder, "compare", content, rows=flat, columns=_COLUMNS)
    title = f"PATE and DP-SGD on {recipe.data.name}, δ = {recipe.compare.delta:g}"
    draw(rows, folder, title=title, private=not seeded)
    return content


def _cost(guarantee: Guarantee) -> dict[str, Any]:
    return {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "neighbours": guarantee.neighbours.value,
    }
