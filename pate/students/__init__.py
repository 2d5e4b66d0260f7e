"""The student learns from released labels and public inputs only, and may be published."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate.students.data import StudentData as StudentData
    from pate.students.spec import StudentSpec as StudentSpec
    from pate.students.train import train_student as train_student

_HOMES = {"StudentData": "data", "StudentSpec": "spec", "train_student": "train"}

__all__ = ["StudentData", "StudentSpec", "train_student"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate.students' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pate.students.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
