"""From private data to a publishable student, and an ε one can trust.

Names are loaded when they are first used, so that ``import pate`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate.accounting import Guarantee as Guarantee
    from pate.accounting import Ledger as Ledger
    from pate.errors import PateError as PateError
    from pate.releases.student import load_student as load_student
    from pate.votes import Votes as Votes

__version__ = "0.1.0"

_HOMES = {
    "Guarantee": "pate.accounting",
    "Ledger": "pate.accounting",
    "PateError": "pate.errors",
    "Votes": "pate.votes",
    "load_student": "pate.releases.student",
}

__all__ = ["Guarantee", "Ledger", "PateError", "Votes", "__version__", "load_student"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
