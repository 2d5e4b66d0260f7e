"""One fit to the released labels."""

from __future__ import annotations

import numpy as np

from pate.errors import InvalidInput
from pate.students.data import StudentData
from pate.students.spec import StudentSpec
from pate.students.tools import Tools, refuse_torch_keys
from pate.teachers.placing import device_of
from pate.teachers.protocol import Teacher, train
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
