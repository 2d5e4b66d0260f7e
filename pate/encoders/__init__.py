"""Features made without private data: fixed ones, or fitted on public inputs.

Names are loaded when they are first used: a recipe needs the specs and no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate.encoders.chain import Chain as Chain
    from pate.encoders.chain import fit_encoder as fit_encoder
    from pate.encoders.persist import encoder_content as encoder_content
    from pate.encoders.persist import load_encoder as load_encoder
    from pate.encoders.persist import save_encoder as save_encoder
    from pate.encoders.scattering import Scattering as Scattering
    from pate.encoders.spec import EncoderSpec as EncoderSpec
    from pate.encoders.spec import StepSpec as StepSpec

_HOMES = {
    "Chain": "chain",
    "EncoderSpec": "spec",
    "Scattering": "scattering",
    "StepSpec": "spec",
    "encoder_content": "persist",
    "fit_encoder": "chain",
    "load_encoder": "persist",
    "save_encoder": "persist",
}

__all__ = [
    "Chain",
    "EncoderSpec",
    "Scattering",
    "StepSpec",
    "encoder_content",
    "fit_encoder",
    "load_encoder",
    "save_encoder",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate.encoders' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pate.encoders.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
