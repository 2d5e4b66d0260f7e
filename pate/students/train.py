"""Training a student, by the method its section names.

A method is a function from (spec, data, tools) to a trained model, entered in :data:`METHODS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pate.artifacts import fingerprint
from pate.errors import InvalidInput
from pate.students.data import StudentData
from pate.students.self_training import self_training
from pate.students.spec import StudentSpec
from pate.students.supervised import supervised
from pate.students.tools import Show, Tools
from pate.teachers.errors import TeacherError
from pate.teachers.protocol import Teacher, guarded

Method = Callable[[StudentSpec, StudentData, Tools], Teacher]


def _torch_method(name: str) -> Method:
    """A method from a module of its name, which loads torch when it is first used."""

    def method(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
        module = importlib.import_module(f"pate.students.{name}")
        trained: Teacher = getattr(module, name)(spec, data, tools)
        return trained

    return method


METHODS: dict[str, Method] = {
    "supervised": supervised,
    "self-training": self_training,
    "fixmatch": _torch_method("fixmatch"),
    "mixmatch": _torch_method("mixmatch"),
    "gan": _torch_method("gan"),
}


def train_student(
    spec: StudentSpec,
    data: StudentData,
    *,
    plugin_path: Path | None = None,
    folder: Path | None = None,
    progress: Show | None = None,
    private: bool = False,
    factory: Callable[..., Any] | None = None,
) -> Teacher:
    """A trained student; :func:`pate.teachers.save` stores it and ``predict_labels`` asks it.

    In ``folder`` checkpoints are kept, so that a run that was killed goes on; a checkpoint of
    another section or other data is not used. The folder may be removed once the student is saved.
    ``private`` is for a reference model, which no student may be: one fit to private records.
    ``factory`` makes the untrained model where ``spec.model`` does not name one that can be found.
    torch modules train on the current device (:mod:`pate.devices`); others on the processor.

    >>> data = StudentData(inputs=[[0.0], [1.0]], rows=[0, 1], labels=[1, 0], classes=2)
    >>> spec = StudentSpec(model="sklearn.tree:DecisionTreeClassifier")
    >>> train_student(spec, data).predict([[0.2]])
    array([1])

    Guarantees:
        The student is a function of released labels and public inputs, so it costs no privacy
        beyond theirs (post-processing: Dwork and Roth 2014, Proposition 2.1). With ``private`` it
        is PRIVATE, and an error says where the model failed and never what it said.
    """
    if private and spec.method != "supervised":
        raise InvalidInput(f"a reference model is fitted once, and the method is {spec.method!r}")
    identity = "" if folder is None else fingerprint(spec.model_dump(mode="json"), data.digest())
    tools = Tools(
        spec=spec,
        classes=data.classes,
        plugin_path=plugin_path,
        folder=folder,
        identity=identity,
        show=progress,
        private=private,
        factory=factory,
    )
    try:
        trained: Teacher = guarded(
            "fit",
            lambda: METHODS[spec.method](spec, data, tools),
            private=private,
            silent=private,  # a student sees nothing private, and shows how far it has come
        )
    except (TeacherError, InvalidInput) as error:
        who = "the reference model" if private else "the student"
        raise type(error)(f"{who} failed: {error}") from None
    return trained
