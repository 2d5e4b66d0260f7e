"""Other methods on the same data, where ``pate compare`` ran in this folder: ``compare.json``.

{"format": 2, "delta": 1e-5, "seeds": 3, "rows": [{"method": "dpsgd", "name": "DP-SGD",
 "epsilon": 2.0, "accuracy": 0.9, "spread": 0.01, "low": 0.88, "high": 0.92,
 "neighbours": "zero-out", "publishable": true, …}, …],
 "cost": {"together": {"epsilon": 20.0, "delta": 2e-5, "neighbours": "zero-out"}, …}, …}

Format 1 claimed DP-SGD's ε for one record added or removed although its sampling rate followed from
the number of records: it holds for zero-out, and is read so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate.accounting import Neighbours
from pate.errors import InvalidInput

_FILE, _FORMATS = "compare.json", (1, 2)
_WITH_EPSILON = ("pate", "dpsgd")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonTerms:
    """The terms that all rows of a comparison share."""

    delta: float
    repetitions: int
    epsilon_together: float | None  # of all runs compared; None: no guarantee
    delta_together: float | None
    neighbours_together: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMethod:
    """One method at one ε, or one that needs none: it used no private record."""

    method: str
    name: str
    epsilon: float | None
    accuracy: float
    spread: float | None  # standard deviation over repetitions
    low: float
    high: float
    neighbours: str | None
    terms: ComparisonTerms


def read_comparison(folder: Path) -> tuple[ComparedMethod, ...]:
    """Return the methods that may be shown; none where nothing was compared, or nothing private.

    Guarantees:
        The file has no level of its own: a row without ``"publishable": true`` is left out. Time
        and memory are not read.
    """
    path = folder / _FILE
    if not path.is_file():
        return ()
    try:
        content = json.loads(path.read_text())
        if content["format"] not in _FORMATS:
            raise ValueError(f"format {content['format']}")
        if content["format"] == 1:
            _restate(content)
        terms = _terms(content)
        found = tuple(
            _method(row, terms) for row in content["rows"] if row.get("publishable") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is damaged; compare again, or remove it") from error
    if not all(map(_makes_sense, found)):
        raise InvalidInput(f"{path} holds an impossible value; compare again, or remove it")
    return found if any(each.method in _WITH_EPSILON for each in found) else ()


def _restate(content: dict[str, Any]) -> None:
    together = content["cost"]["together"]
    for figure in (*content["rows"], *([] if together is None else [together])):
        ours = figure.get("method", "dpsgd") == "dpsgd"  # the sum rests on them, too
        if ours and figure["neighbours"] == Neighbours.ADD_REMOVE:
            figure["neighbours"] = Neighbours.ZERO_OUT.value


def _terms(content: Mapping[str, Any]) -> ComparisonTerms:
    together = content["cost"]["together"]
    return ComparisonTerms(
        delta=float(content["delta"]),
        repetitions=int(content["seeds"]),
        epsilon_together=None if together is None else float(together["epsilon"]),
        delta_together=None if together is None else float(together["delta"]),
        neighbours_together=None if together is None else str(together["neighbours"]),
    )


def _method(row: Mapping[str, Any], terms: ComparisonTerms) -> ComparedMethod:
    return ComparedMethod(
        method=str(row["method"]),
        name=str(row["name"]),
        epsilon=_number(row["epsilon"]),
        accuracy=float(row["accuracy"]),
        spread=_number(row["spread"]),
        low=float(row["low"]),
        high=float(row["high"]),
        neighbours=None if row["neighbours"] is None else str(row["neighbours"]),
        terms=terms,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _makes_sense(row: ComparedMethod) -> bool:
    shares = (row.low, row.accuracy, row.high)
    costs = row.epsilon is not None and math.isfinite(row.epsilon) and row.epsilon >= 0
    free = row.epsilon is None and row.method not in _WITH_EPSILON
    return all(0 <= share <= 1 for share in shares) and (free or costs)
