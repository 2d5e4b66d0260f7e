"""Features made without private data: fixed ones, or fitted on public inputs.

Names are loaded when they are first used: a recipe needs the specs and no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate.encoders.scattering import Scattering as Scattering

_HOMES = {
    "Scattering": "scattering",
}

__all__ = [
    "Scattering",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate.encoders' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pate.encoders.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
