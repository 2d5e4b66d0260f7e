"""Training a student, by the method its section names.

A method is a function from (spec, data, tools) to a trained model, entered in :data:`METHODS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pate.artifacts import fingerprint
from pate.errors import InvalidInput, TeacherError
from pate.students.data import Show, StudentData, Tools, refuse_torch_keys
from pate.students.self_training import self_training
from pate.students.spec import StudentSpec
from pate.teachers.placement import device_of
from pate.teachers.protocol import Teacher, guarded, train
from pate.teachers.torch_teacher import TorchTeacher


def supervised(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
    """One fit to the released labels.

    A torch module with augmentation, averaged weights, smoothed labels or early stopping is
    trained by the loop of students; otherwise as a teacher is.
    """
    student = tools.fresh()
    if isinstance(student, TorchTeacher):
        if spec.augment != "none" or spec.smoothing or spec.average or spec.validation:
            _fit_torch(spec, data, tools, student)
            return student
    else:
        refuse_torch_keys(spec)
        if spec.validation:
            raise InvalidInput(
                f"validation decides when to stop, and {spec.model} is fitted once; leave it out"
            )
    train(student, data.inputs[data.rows], data.labels, private=tools.private)
    return student


def _fit_torch(spec: StudentSpec, data: StudentData, tools: Tools, student: TorchTeacher) -> None:
    import torch

    from pate.students.augment import make_augment
    from pate.students.training import fit_table, settle

    learn, stop = tools.held_out(data)
    inputs = torch.from_numpy(np.array(data.inputs[data.rows], dtype=np.float32))
    labels = torch.from_numpy(data.labels)
    targets = torch.nn.functional.one_hot(labels, data.classes).float()
    # With zeros for private records: a module that does not fit may then say what it wants.
    settle(student, np.zeros_like(data.inputs[:2]) if tools.private else data.inputs)

    def score(module: torch.nn.Module) -> float:
        with torch.no_grad():
            said = module(inputs[stop].to(device_of(module))).argmax(dim=1).cpu()
            return float((said == labels[stop]).float().mean())

    with tools.progress(spec.epochs, 0) as bar:
        fit_table(
            student,
            inputs[learn],
            targets[learn],
            augment=make_augment(
                spec.augment, shape=data.inputs.shape[1:], plugin_path=tools.plugin_path
            ),
            smoothing=spec.smoothing,
            epochs=spec.epochs,
            seed=spec.seed,
            average=spec.average,
            score=score if len(stop) else None,
            patience=spec.patience,
            checkpoint=tools.checkpoint("epochs"),
            advance=bar.advance,
        )


Method = Callable[[StudentSpec, StudentData, Tools], Teacher]


def _torch_method(module: str, name: str) -> Method:
    """Return a method whose module, and with it torch, is loaded at its first use."""

    def method(spec: StudentSpec, data: StudentData, tools: Tools) -> Teacher:
        found = getattr(importlib.import_module(f"pate.students.{module}"), name)
        trained: Teacher = found(spec, data, tools)
        return trained

    return method


METHODS: dict[str, Method] = {
    "supervised": supervised,
    "self-training": self_training,
    "fixmatch": _torch_method("semi_supervised", "fixmatch"),
    "mixmatch": _torch_method("semi_supervised", "mixmatch"),
    "gan": _torch_method("gan", "gan"),
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
