"""Which public inputs to ask about: chosen from public features and released answers only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate.querying.choosing import Chooser as Chooser
    from pate.querying.coverage import cover as cover
    from pate.querying.coverage import near_inputs as near_inputs

_HOMES = {"Chooser": "choosing", "cover": "coverage", "near_inputs": "coverage"}

__all__ = ["Chooser", "cover", "near_inputs"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate.querying' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pate.querying.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
