"""The mechanisms that a recipe can name. A new one is a new file and one line here."""

from __future__ import annotations

from typing import Final

from pate.mechanisms.confident import ConfidentGnmax
from pate.mechanisms.gaussian import GaussianNoisyMax
from pate.mechanisms.interactive import InteractiveGnmax
from pate.mechanisms.laplace import LaplaceNoisyMax
from pate.mechanisms.mechanism import Mechanism

MECHANISMS: Final[dict[str, type[Mechanism]]] = {
    LaplaceNoisyMax.name: LaplaceNoisyMax,
    GaussianNoisyMax.name: GaussianNoisyMax,
    ConfidentGnmax.name: ConfidentGnmax,
    InteractiveGnmax.name: InteractiveGnmax,
}


def registered_keys() -> tuple[str, ...]:
    """Return the recipe keys of all mechanisms, each once."""
    keys = (key for kind in MECHANISMS.values() for key in _keys(kind))
    return tuple(dict.fromkeys(keys))


def _keys(kind: type[Mechanism]) -> tuple[str, ...]:
    return kind.required_keys() + kind.optional_keys()
