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
    """Fit once to the released labels.

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
    from pate.students.training import fit_table, initialise

    learn, stop = tools.held_out(data)
    inputs = torch.from_numpy(np.array(data.inputs[data.rows], dtype=np.float32))
    labels = torch.from_numpy(data.labels)
    targets = torch.nn.functional.one_hot(labels, data.classes).float()
    # Zeros in place of private records: the error of a module that does not fit may quote inputs.
    initialise(student, np.zeros_like(data.inputs[:2]) if tools.private else data.inputs)

    def score(module: torch.nn.Module) -> float:
        with torch.no_grad():
            predicted = module(inputs[stop].to(device_of(module))).argmax(dim=1).cpu()
            return float((predicted == labels[stop]).float().mean())

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
    """Train a student by the method that its section names.

    torch modules train on the current device (:mod:`pate.devices`), others on the CPU.

    Parameters
    ----------
    spec : StudentSpec
        The ``[student]`` section: model, method and settings.
    data : StudentData
        Released labels and public inputs.
    plugin_path : Path, optional
        Where the user's own models and augmentations are imported from.
    folder : Path, optional
        Folder of checkpoints, so that a killed run resumes; a checkpoint of another section or
        other data is ignored. It may be removed once the student is saved.
    progress : callable, optional
        Called with a title, the total and the steps done; returns a context with ``advance``.
    private : bool
        For a reference model fitted to private records, which is no student.
    factory : callable, optional
        Makes the untrained model, in place of ``spec.model``.

    Returns
    -------
    Teacher
        The trained model; :func:`pate.teachers.persist.save` stores it.

    >>> data = StudentData(inputs=[[0.0], [1.0]], rows=[0, 1], labels=[1, 0], classes=2)
    >>> spec = StudentSpec(model="sklearn.tree:DecisionTreeClassifier")
    >>> train_student(spec, data).predict([[0.2]])
    array([1])

    Guarantees:
        The student is a function of released labels and public inputs, so it costs no privacy
        beyond theirs (post-processing: Dwork and Roth 2014, Proposition 2.1). With ``private`` it
        is PRIVATE, and an error names the place where the model failed and never its message.
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
            silent=private,  # a student sees nothing private, and may show its progress
        )
    except (TeacherError, InvalidInput) as error:
        who = "the reference model" if private else "the student"
        raise type(error)(f"{who} failed: {error}") from None
    return trained
