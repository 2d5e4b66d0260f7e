"""Other ways to the same end, where a comparison was made of this run: ``compare.json``.

{"methods": [{"name": "DP-SGD", "epsilon": 2.0, "accuracy": 0.9, "low": 0.88, "high": 0.92,
              "publishable": true}, …]}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from pate.errors import InvalidInput

_FILE = "compare.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One method at one ε."""

    name: str
    epsilon: float
    accuracy: float
    low: float
    high: float


def read_comparison(folder: Path) -> tuple[Contender, ...]:
    """The methods that may be shown; none where nothing was compared.

    Guarantees:
        The file has no level of its own: a method that does not say ``"publishable": true`` is left
        out.
    """
    path = folder / _FILE
    if not path.is_file():
        return ()
    try:
        methods = json.loads(path.read_text())["methods"]
        found = tuple(
            Contender(
                name=str(each["name"]),
                **{key: float(each[key]) for key in ("epsilon", "accuracy", "low", "high")},
            )
            for each in methods
            if each.get("publishable") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is damaged; compare again, or remove it") from error
    if not all(math.isfinite(each.accuracy) and each.epsilon >= 0 for each in found):
        raise InvalidInput(f"{path} holds a figure that is none; compare again, or remove it")
    return found
