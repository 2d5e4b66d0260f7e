"""Any model is a teacher: an object with ``fit(X, y)`` and ``predict(X)``.

Names are loaded when they are first used: a recipe needs the specs and no numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate.teachers.adapters import make as make
    from pate.teachers.errors import OutOfMemory as OutOfMemory
    from pate.teachers.errors import TeacherError as TeacherError
    from pate.teachers.families import alike as alike
    from pate.teachers.families import predict_many_labels as predict_many_labels
    from pate.teachers.families import train_many as train_many
    from pate.teachers.persist import load as load
    from pate.teachers.persist import restore as restore
    from pate.teachers.persist import save as save
    from pate.teachers.protocol import Teacher as Teacher
    from pate.teachers.protocol import predict_labels as predict_labels
    from pate.teachers.protocol import train as train
    from pate.teachers.spec import ModelSpec as ModelSpec
    from pate.teachers.spec import TeachersSpec as TeachersSpec
    from pate.teachers.spec import model_for as model_for
    from pate.teachers.spec import seed_for as seed_for

_HOMES = {
    "ModelSpec": "spec",
    "OutOfMemory": "errors",
    "Teacher": "protocol",
    "TeacherError": "errors",
    "TeachersSpec": "spec",
    "alike": "families",
    "load": "persist",
    "make": "adapters",
    "model_for": "spec",
    "predict_labels": "protocol",
    "predict_many_labels": "families",
    "restore": "persist",
    "save": "persist",
    "seed_for": "spec",
    "train": "protocol",
    "train_many": "families",
}

__all__ = [
    "ModelSpec",
    "OutOfMemory",
    "Teacher",
    "TeacherError",
    "TeachersSpec",
    "alike",
    "load",
    "make",
    "model_for",
    "predict_labels",
    "predict_many_labels",
    "restore",
    "save",
    "seed_for",
    "train",
    "train_many",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate.teachers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pate.teachers.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
